"""A point that drifts, to be held near 0."""

import pickle
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.envs.single import SingleEnv
from fastrl.envs.vector import NativeVectorEnv

EDGE = 5


class DriftVec:
    """Stands for the compiled class: N points, moved by action - 1 and -1, 0 or 1 at random. Beyond `EDGE` an episode
    terminates, and it is truncated after ``limit`` steps. It need not reset by itself: collectors do."""

    obs_dim = 1

    def __init__(self, num_envs: int, limit: int) -> None:
        self.num_envs, self._limit = num_envs, limit
        self._random = [np.random.default_rng(i) for i in range(num_envs)]
        self._position = np.zeros(num_envs)
        self._time = np.zeros(num_envs, np.int64)

    def reset(self, obs: Any, seeds: Any = None, reset_mask: Any = None) -> None:
        for i in range(self.num_envs) if reset_mask is None else np.flatnonzero(reset_mask):
            if seeds is not None:
                self._random[i] = np.random.default_rng(int(seeds[i]))
            self._position[i], self._time[i] = self._random[i].integers(-2, 3), 0
            obs[i] = self._position[i]

    def observe(self, obs: Any) -> None:
        obs[:, 0] = self._position

    def step(
        self,
        actions: NDArray[Any],
        obs: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        final_obs: Any = None,
    ) -> None:
        self._position += actions - 1 + [random.integers(-1, 2) for random in self._random]
        self._time += 1
        self.observe(obs)
        rewards[:] = -np.abs(self._position)
        terminations[:] = np.abs(self._position) > EDGE
        truncations[:] = (self._time >= self._limit) & ~terminations

    def save_state(self) -> bytes:
        return pickle.dumps((self._random, self._position, self._time))

    def load_state(self, state: bytes) -> None:
        self._random, self._position, self._time = pickle.loads(state)

    def close(self) -> None:
        pass


class DriftVectorEnv(NativeVectorEnv):
    """N points."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        limit: int = 20,
        num_threads: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            lambda mode: DriftVec(num_envs, limit),  # type: ignore[arg-type,return-value]
            Box(-EDGE - 2, EDGE + 2, (1,), np.float32),
            Discrete(3),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=(),
        )


class DriftEnv(SingleEnv):
    """One point."""

    vector_class = DriftVectorEnv
