"""Bit flipping: a goal environment whose reward is almost never seen by chance."""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

Obs = dict[str, NDArray[np.float32]]


class BitFlipEnv(gymnasium.Env[Any, Any]):
    """Bits have to become those of a goal; registered as ``fastrl/BitFlip-v0``.

    Bits and goal are random at the start and differ. An action flips one bit. The reward is -1 for each step after
    which bits and goal differ; where they are the same it is 0, and the episode terminates. After ``bits`` steps it is
    truncated. (Andrychowicz et al., "Hindsight Experience Replay", 2017, section 3.1.)

    Observations: a dict of ``observation`` and ``achieved_goal``, both the bits, and ``desired_goal``; float32 [bits].

    The optimum flips each wrong bit once: half of the bits are wrong on average, so the best mean return is about
    ``1 - bits / 2``. An episode without success returns ``-bits``.

    Args:
        bits: at least 1.
    """

    def __init__(self, bits: int = 12) -> None:
        if bits < 1:
            raise ValueError(f"bits should be at least 1, got {bits}")
        space = Box(0, 1, (bits,), np.float32)
        self.observation_space: Dict = Dict(
            {"achieved_goal": space, "desired_goal": space, "observation": space}
        )
        self.action_space: Discrete = Discrete(bits)
        self.bits = bits
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        if (self._state == self._goal).all():
            self._state[self.np_random.integers(self.bits)] += 1
            self._state %= 2
        self._steps, self._over = 0, False
        return self._obs(), {}

    def step(self, action: SupportsFloat) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the episode has ended: call reset() before the next step()")
        chosen = int(action)  # type: ignore[call-overload]
        if not 0 <= chosen < self.bits:
            raise ValueError(f"action should be from 0 to {self.bits - 1}, got {action}")
        self._state[chosen] = 1 - self._state[chosen]
        self._steps += 1
        terminated = bool(self.compute_terminated(self._state, self._goal, {}))
        truncated = not terminated and self._steps >= self.bits
        self._over = terminated or truncated
        reward = float(self.compute_reward(self._state, self._goal, {}))
        return self._obs(), reward, terminated, truncated, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Rewards [...] of goals [..., bits]: 0 where they are the same, else -1."""
        return self.compute_terminated(achieved_goal, desired_goal, info).astype(np.float32) - 1

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Goals [..., bits] that are the same, bool [...]."""
        return np.asarray(np.equal(achieved_goal, desired_goal).all(-1))

    def _obs(self) -> Obs:
        return {
            "achieved_goal": self._state.copy(),
            "desired_goal": self._goal.copy(),
            "observation": self._state.copy(),
        }
