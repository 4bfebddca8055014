"""A Gymnasium environment over a compiled vector environment of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Tuple
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native._rust import TrafficScene
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.viewer import View


class AgentView(NamedTuple):
    """The part of an environment that agents of users observe and act in, where it differs from its original.

    Attributes:
        obs: values at the start of an observation.
        actions: for each of the agent's actions the environment's; -1: it does not have it.
    """

    obs: int
    actions: tuple[int, ...]


class SingleEnv(gymnasium.Env[NDArray[Any], Any]):
    """One environment of a compiled simulator, for `gymnasium.make`.

    A subclass names its `vector_class` and adds what its simulator has besides. Options are those of the vector
    environment; observations and infos have no leading axis.

    Attributes:
        vector: the vector environment of one that it wraps.

    Raises:
        TypeError: an option that only a batch of environments has.
    """

    vector_class: ClassVar[type[NativeVectorEnv]]
    vector: NativeVectorEnv

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        for name in ("num_envs", "autoreset_mode", "num_threads"):
            if name in options:
                raise TypeError(
                    f"{name} belongs to the vector environment: use gymnasium.make_vec or"
                    f" {self.vector_class.__name__}"
                )
        self.render_mode, self._options = render_mode, options
        self._build(options)

    def _build(self, options: Mapping[str, Any]) -> None:
        fixed = {"num_threads": 1, "autoreset_mode": AutoresetMode.DISABLED, "render_mode": self.render_mode}
        build: Any = self.vector_class
        self.vector = build(1, **fixed, **options)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        if "render_fps" in self.vector.metadata:
            self.metadata = type(self).metadata | {"render_fps": self.vector.metadata["render_fps"]}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self.vector.reset(seed=seed, options=options)
        return _first(obs), self._info(info)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, rewards, terminations, truncations, info = self.vector.step(self._batch_of_one(action))
        return _first(obs), float(rewards[0]), bool(terminations[0]), bool(truncations[0]), self._info(info)

    def _batch_of_one(self, action: Any) -> Any:
        if isinstance(self.action_space, Tuple):
            return tuple(np.asarray(part)[np.newaxis] for part in action)
        batch = np.asarray(action)
        if batch.size == 1 and self.action_space.shape in ((), (1,)):
            batch = batch.reshape(self.action_space.shape)
        return batch[np.newaxis]

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """The vector environment's info without masks and leading axes."""
        return {key: value[0] for key, value in info.items() if not key.startswith("_")}

    def render(self) -> Any:
        """The vector environment's text or picture (uint8 [H, W, 3]); None with "human" or without a render mode."""
        frames = self.vector.render()
        return None if frames is None else frames[0]

    @property
    def view(self) -> View | None:
        """The drawing of `scene`; None: the simulator has no scenes."""
        return self.vector.view

    def scene(self) -> TrafficScene:
        """See `NativeVectorEnv.scene`."""
        return self.vector.scene()

    def save_state(self) -> bytes:
        """See `NativeVectorEnv.save_state`."""
        return self.vector.save_state()

    def load_state(self, state: bytes) -> None:
        """See `NativeVectorEnv.load_state`."""
        self.vector.load_state(state)

    def close(self) -> None:
        self.vector.close()


def _first(obs: Any) -> Any:
    """The first observation of a batch; of a tuple or dict, each part's."""
    if isinstance(obs, tuple):
        return tuple(map(_first, obs))
    return {key: part[0, ...] for key, part in obs.items()} if isinstance(obs, dict) else obs[0]
