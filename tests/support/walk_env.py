"""A small, slow, obviously correct vector environment in numpy: a random walk on a line."""

from __future__ import annotations

import pickle
import zlib
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

EDGE = 4
TIME_LIMIT = 9


class WalkVectorEnv(VectorEnv):
    """Each environment is a position in -EDGE..EDGE that moves by action - 1 plus a random -1, 0 or 1.

    Leaving the range terminates, TIME_LIMIT steps truncate; both may happen at once. The reward is the new position.
    Observation: float32 (position, steps taken), both scaled to [-1, 1].
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP, num_threads: int = 1
    ) -> None:
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_mode
        self.metadata = {**self.metadata, "autoreset_mode": autoreset_mode}
        self.num_threads = num_threads
        self.single_observation_space = Box(-1, 1, (2,), np.float32)
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.position = np.zeros(num_envs, np.int64)
        self.age = np.zeros(num_envs, np.int64)
        self.ended = np.zeros(num_envs, np.bool_)
        self.generators = [np.random.default_rng(i) for i in range(num_envs)]
        self.was_reset = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self.refuse_if_closed()
        if seed is not None:
            self.seed(self.seeds(seed))
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = self.checked_mask(options)
        self.reset_envs(mask)
        self.was_reset = True
        return self.observe(), self.info()

    def step(self, actions: Any) -> Any:
        self.refuse_if_closed()
        if not self.was_reset:
            raise RuntimeError("reset() was never called")
        self.check_actions(actions)
        if self.autoreset_mode == AutoresetMode.DISABLED and self.ended.any():
            raise RuntimeError("an episode has ended: reset it")
        pending = self.ended.copy()
        rewards = self.move(np.asarray(actions), ~pending)
        outside = np.abs(self.position) > EDGE
        terminations = outside & ~pending
        truncations = (self.age >= TIME_LIMIT) & ~pending
        self.position = self.position.clip(-EDGE, EDGE)
        self.reset_envs(pending)
        self.ended = terminations | truncations
        info = self.info()
        obs = self.observe()
        if self.autoreset_mode == AutoresetMode.SAME_STEP and self.ended.any():
            ended = self.ended.copy()
            final = {"final_obs": obs, "_final_obs": ended, "final_info": info, "_final_info": ended.copy()}
            self.reset_envs(ended)
            obs, info = self.observe(), self.info() | final
        return obs, rewards, terminations, truncations, info

    def move(self, actions: Any, mask: Any) -> Any:
        """Moves the environments of a mask; returns the rewards, 0 for the others."""
        for i in np.flatnonzero(mask):
            self.position[i] += actions[i] - 1 + self.generators[i].integers(-1, 2)
            self.age[i] += 1
        return np.where(mask, self.position, 0).astype(np.float64)

    def reset_envs(self, mask: Any) -> None:
        for i in np.flatnonzero(mask):
            self.position[i] = self.generators[i].integers(-2, 3)
            self.age[i] = 0
        self.ended = self.ended & ~mask

    def observe(self) -> Any:
        return np.stack([self.position / EDGE, self.age / TIME_LIMIT], 1).astype(np.float32)

    def info(self) -> dict[str, Any]:
        return {"age": self.age.copy(), "_age": np.ones(self.num_envs, np.bool_)}

    def seeds(self, seed: Any) -> list[int]:
        if isinstance(seed, int):
            return list(range(seed, seed + self.num_envs))
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, got {len(seed)}")
        return list(seed)

    def seed(self, seeds: list[int]) -> None:
        self.generators = [np.random.default_rng(seed) for seed in seeds]

    def checked_mask(self, options: dict[str, Any]) -> Any:
        mask = options["reset_mask"]
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(f"reset_mask: expected bool ({self.num_envs},) with a True, got {mask}")
        return mask

    def check_actions(self, actions: Any) -> None:
        if not self.action_space.contains(np.asarray(actions)):
            raise ValueError(f"expected actions in {self.action_space}, got {actions}")

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise RuntimeError("this environment is closed")

    def saved(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("position", "age", "ended", "generators", "was_reset")}

    def save_state(self) -> bytes:
        body = pickle.dumps(self.saved())
        return zlib.crc32(body).to_bytes(4, "big") + body

    def load_state(self, state: bytes) -> None:
        if len(state) < 5 or zlib.crc32(state[4:]).to_bytes(4, "big") != state[:4]:
            raise ValueError("a damaged state")
        vars(self).update(pickle.loads(state[4:]))
