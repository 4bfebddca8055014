"""A native object of several agents in plain Python, to test `MultiAgentVectorEnv` without a simulator."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from fastrl.envs.multi_agent import MultiAgentVectorEnv

AGENTS = 3
LIMIT = 5


class StubNativeVec:
    """K environments of `AGENTS` agents. Action 1 terminates an agent, `LIMIT` steps truncate an episode. The reward of
    agent a is 1 + a, an observation is [seed, time + 1]. Every third episode of an environment has one agent less."""

    num_agents = AGENTS
    obs_dim = 2

    def __init__(self, num_envs: int, mode: str) -> None:
        self.num_envs = num_envs
        self.mode = mode
        self.seeds = np.zeros(num_envs)
        self.time = np.full(num_envs, -1)
        self.count = np.zeros(num_envs, int)
        self.alive = np.zeros((num_envs, AGENTS), bool)

    def _start(self, i: int) -> None:
        self.count[i] += 1
        self.time[i] = 0
        self.alive[i] = True
        self.alive[i, -1] = self.count[i] % 3 != 0

    def observe(self, obs: Any, alive: Any = None) -> None:
        per_agent = obs.reshape(self.num_envs, AGENTS, 2)
        per_agent[..., 0] = self.seeds[:, None]
        per_agent[..., 1] = self.time[:, None] + 1
        per_agent[~self.alive] = 0
        if alive is not None:
            alive[:] = self.alive.ravel()

    def reset(self, obs: Any, seeds: Any = None, reset_mask: Any = None, alive: Any = None) -> None:
        for i in range(self.num_envs):
            if reset_mask is None or reset_mask[i]:
                if seeds is not None:
                    self.seeds[i] = seeds[i] % 1000
                self._start(i)
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
        before = self.alive.copy()
        ended = ~before.any(axis=1)
        if ended.any() and self.mode == "disabled":
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
        self.alive = after
        for i in range(self.num_envs):
            if ended[i] or (self.mode == "same_step" and not after[i].any()):
                self._start(i)
                kept = obs.copy()
                self.observe(obs)
                others = np.repeat(np.arange(self.num_envs) != i, AGENTS)
                obs[others] = kept[others]
        alive[:] = self.alive.ravel()

    def save_state(self, index: int | None = None) -> bytes:
        assert index is None, "all are saved"
        return pickle.dumps((self.seeds, self.time, self.count, self.alive))

    def load_state(self, state: bytes, index: int | None = None) -> None:
        assert index is None, "all are restored"
        self.seeds, self.time, self.count, self.alive = pickle.loads(state)

    def close(self) -> None:
        pass


def stub_env(num_envs: int, mode: str = "same_step") -> MultiAgentVectorEnv:
    return MultiAgentVectorEnv(
        lambda mode: StubNativeVec(num_envs, mode),
        Box(0, 1000, (2,), np.float32),
        Discrete(2),
        autoreset_mode=mode,
        name="stub",
    )
