"""A native object of many agents in plain Python: what `MultiAgentVectorEnv` wraps, without a simulator."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from fastrl.envs.multi_agent import MultiAgentVectorEnv

AGENTS = 3
LIMIT = 5


class StubWorlds:
    """Action 1 ends an agent's part, at `LIMIT` steps the time is up. Rewards are 1 + the row within the world; an
    observation is [seed, time + 1]. Every third episode of a world has an agent less."""

    num_agents = AGENTS
    obs_dim = 2

    def __init__(self, num_envs: int, mode: str) -> None:
        self.num_envs = num_envs
        self.mode = mode
        self.seeds = np.zeros(num_envs)
        self.time = np.full(num_envs, -1)
        self.count = np.zeros(num_envs, int)
        self.lives = np.zeros((num_envs, AGENTS), bool)

    def _begin(self, i: int) -> None:
        self.count[i] += 1
        self.time[i] = 0
        self.lives[i] = True
        self.lives[i, -1] = self.count[i] % 3 != 0

    def observe(self, obs: Any, alive: Any = None) -> None:
        rows = obs.reshape(self.num_envs, AGENTS, 2)
        rows[..., 0] = self.seeds[:, None]
        rows[..., 1] = self.time[:, None] + 1
        rows[~self.lives] = 0
        if alive is not None:
            alive[:] = self.lives.ravel()

    def reset(self, obs: Any, seeds: Any = None, reset_mask: Any = None, alive: Any = None) -> None:
        for i in range(self.num_envs):
            if reset_mask is None or reset_mask[i]:
                if seeds is not None:
                    self.seeds[i] = seeds[i] % 1000
                self._begin(i)
        self.observe(obs, alive)

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        final_obs: Any = None,
        alive: Any = None,
    ) -> None:
        if (actions > 1).any():
            raise ValueError("action: expected 0 or 1")
        shape = (self.num_envs, AGENTS)
        before = self.lives.copy()
        resting = ~before.any(axis=1)
        if resting.any() and self.mode == "disabled":
            raise gymnasium.error.ResetNeeded("has ended")
        self.time += 1
        rewards.reshape(shape)[:] = before * (1 + np.arange(AGENTS))
        terminations.reshape(shape)[:] = before & (actions.reshape(shape) == 1)
        late = (self.time >= LIMIT)[:, None]
        truncations.reshape(shape)[:] = before & ~terminations.reshape(shape) & late
        after = before & ~(terminations | truncations).reshape(shape)
        self.observe(obs)
        if final_obs is not None:
            final_obs[:] = obs
        self.lives = after
        for i in range(self.num_envs):
            if resting[i] or (self.mode == "same_step" and not after[i].any()):
                self._begin(i)
                self.lives, kept = self.lives, obs.copy()
                self.observe(obs)
                others = np.repeat(np.arange(self.num_envs) != i, AGENTS)
                obs[others] = kept[others]
        alive[:] = self.lives.ravel()

    def save_state(self) -> bytes:
        return pickle.dumps((self.seeds, self.time, self.count, self.lives))

    def load_state(self, state: bytes) -> None:
        self.seeds, self.time, self.count, self.lives = pickle.loads(state)

    def close(self) -> None:
        pass


def stub_env(num_envs: int, mode: str = "same_step") -> MultiAgentVectorEnv:
    return MultiAgentVectorEnv(
        lambda mode: StubWorlds(num_envs, mode),
        Box(0, 1000, (2,), np.float32),
        Discrete(2),
        autoreset_mode=mode,
        name="stub",
    )
