"""A small, obviously correct environment of several agents in numpy: each walks on a line to its own goal.

Beside it a rule of actions. Processes that use them need no PyTorch.
"""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from fastrl.collectors.team_spec import TeamSpec

# The distance from its goal beyond which an agent crashes.
EDGE = 4.0
# The largest distance of a goal at the start.
FARTHEST = 3


def by_numbers(obs: Any, agents: Any) -> Any:
    """Actions that depend on the observation and the agent."""
    return (np.abs(obs * 1000).sum(1).astype(np.int64) + agents) % 3


class TeamEnv:
    """K environments of A agents, with the interface of ``fastrl.envs.multi_agent.MultiAgentVectorEnv``, in autoreset
    mode SAME_STEP or DISABLED.

    An agent moves by action - 1 (``Discrete(3)``) or by the action clipped to [-1, 1] (``Box(1)``). Arriving (within
    0.5 of the goal) terminates with reward 1, going beyond `EDGE` terminates with reward -1; otherwise the
    reward is minus the distance over `EDGE`. ``horizon`` steps truncate. Walking straight to the goal is best;
    `best_return` is its mean return. An episode may have fewer than A agents; the others stay not alive.

    Observation: float32 (signed distance to the goal over `EDGE`, share of the horizon passed, bias 1). The random
    generator of an environment decides its goals and blocked moves only.

    Args:
        num_envs: K.
        num_agents: A.
        box: continuous actions.
        horizon: the most steps of an episode.
        team: weight of the team's mean reward (over the agents that act) in each reward; the rest is the agent's own.
        density: chance that a move is blocked.
    """

    compiled_rollout = None

    def __init__(
        self,
        num_envs: int,
        num_agents: int,
        *,
        box: bool = False,
        horizon: int = 8,
        team: float = 0.0,
        density: float = 0.0,
    ) -> None:
        self.num_envs, self.num_agents = num_envs, num_agents
        self.horizon, self.team = horizon, team
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.obs_space = self.single_observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = Box(-1, 1, (1,), np.float32) if box else Discrete(3)
        shape = (num_envs, num_agents)
        self.generators = [np.random.default_rng(i) for i in range(num_envs)]
        self.next_agents = np.full(num_envs, num_agents)
        self.next_density = np.full(num_envs, density)
        self.agents = np.zeros(num_envs, np.int64)
        self.density = np.zeros(num_envs)
        self.age = np.zeros(num_envs, np.int64)
        self.distance = np.zeros(shape)  # signed, from the agent to its goal
        self.alive = np.zeros(shape, np.bool_)
        self.sums = np.zeros(shape)
        self.moved = np.zeros(shape)
        self.driven = np.zeros(shape)
        self.arrived = np.zeros(shape, np.bool_)
        self.crashed = np.zeros(shape, np.bool_)
        self.last = {name: np.zeros(num_envs, kind) for name, kind in EPISODE.items()}
        self.closed = False

    # The flat interface.

    def reset_into(self, obs: Any, alive: Any, *, seed: Any = None, reset_mask: Any = None) -> None:
        self.refuse_if_closed()
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise ValueError(f"expected {self.num_envs} seeds, got {len(seeds)}")
        mask = np.ones(self.num_envs, np.bool_) if reset_mask is None else reset_mask
        if seed is not None:
            for i in np.flatnonzero(mask):
                self.generators[i] = np.random.default_rng(int(seeds[i]))
        self.begin(mask)
        rows = np.repeat(mask, self.num_agents)
        obs[rows] = self.observe()[rows]
        alive[rows] = self.alive.reshape(-1)[rows]

    def step_into(
        self,
        actions: Any,
        obs: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        alive: Any,
        final_obs: Any = None,
    ) -> None:
        self.refuse_if_closed()
        moves = self.moves(actions)
        before = self.alive.copy()
        for i in np.flatnonzero(self.density > 0):
            moves[i, self.generators[i].random(self.num_agents) < self.density[i]] = 0
        self.distance -= np.where(before, moves, 0)
        self.age += 1
        gap = np.abs(self.distance)
        arrived, crashed = before & (gap < 0.5), before & (gap > EDGE)
        own = np.where(arrived, 1.0, np.where(crashed, -1.0, -gap / EDGE)) * before
        mean = own.sum(1, keepdims=True) / np.maximum(before.sum(1, keepdims=True), 1)
        reward = np.where(before, (1 - self.team) * own + self.team * mean, 0)
        terminated = arrived | crashed
        self.alive = before & ~terminated
        late = self.age >= self.horizon
        truncated = self.alive & late[:, None]
        self.sums += reward
        self.moved += np.abs(moves) * before
        self.driven += before
        self.arrived |= arrived
        self.crashed |= crashed
        rewards[:] = reward.reshape(-1)
        terminations[:] = terminated.reshape(-1)
        truncations[:] = truncated.reshape(-1)
        ended = late | ~self.alive.any(1)
        # Agents that end with this step still get their true last observations.
        true_obs = self.observe(before)
        if ended.any():
            agents = np.repeat(ended, self.num_agents)
            if final_obs is not None:
                final_obs[agents] = true_obs[agents]
            self.finish(ended)
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                self.begin(ended)
                true_obs[agents] = self.observe()[agents]
            else:
                self.alive[ended] = False
        obs[:] = true_obs
        alive[:] = self.alive.reshape(-1)

    # Shaped [K, A, ...], allocating.

    def reset(self, *, seed: Any = None, reset_mask: Any = None) -> tuple[Any, Any]:
        obs, alive = self.empty()[0], np.empty(self.num_envs * self.num_agents, np.bool_)
        self.reset_into(obs, alive, seed=seed, reset_mask=reset_mask)
        return obs.reshape(self.num_envs, self.num_agents, -1), alive.reshape(self.num_envs, self.num_agents)

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, terminations, truncations, alive, final_obs = self.empty()
        flat = np.asarray(actions).reshape(-1, *self.single_action_space.shape)
        self.step_into(flat, obs, rewards, terminations, truncations, alive, final_obs)
        arrays = (obs, rewards, terminations, truncations, alive, final_obs)
        return tuple(x.reshape(self.num_envs, self.num_agents, *x.shape[1:]) for x in arrays)

    def empty(self) -> tuple[Any, ...]:
        size = self.num_envs * self.num_agents
        flags = [np.zeros(size, np.bool_) for _ in range(3)]
        return (
            np.zeros((size, 3), np.float32),
            np.zeros(size, np.float32),
            *flags,
            np.zeros((size, 3), np.float32),
        )

    # Difficulty, statistics and state.

    def set_difficulty(self, *, num_agents: Any = None, density: Any = None) -> None:
        """Takes effect at each environment's next reset."""
        if num_agents is not None:
            wanted = np.broadcast_to(np.asarray(num_agents), self.num_envs)
            if not ((wanted >= 1) & (wanted <= self.num_agents)).all():
                raise ValueError(f"num_agents must be 1 to {self.num_agents}, got {num_agents}")
            self.next_agents = wanted.copy()
        if density is not None:
            self.next_density = np.broadcast_to(np.asarray(density, np.float64), self.num_envs).copy()

    def episodes(self) -> dict[str, Any]:
        return {name: values.copy() for name, values in self.last.items()}

    def best_return(self) -> float:
        """The expected return of an agent that walks straight to its goal, without blocked moves and team reward."""
        return float(np.mean([1 - sum(range(1, n)) / EDGE for n in range(1, FARTHEST + 1)]))

    def save_state(self) -> bytes:
        return pickle.dumps({name: value for name, value in vars(self).items() if name not in FIXED})

    def load_state(self, state: bytes) -> None:
        vars(self).update(pickle.loads(state))

    def close(self) -> None:
        self.closed = True

    # Internals.

    def moves(self, actions: Any) -> Any:
        shape = (self.num_envs, self.num_agents)
        if isinstance(self.single_action_space, Discrete):
            if actions.dtype != np.int64 or actions.shape != (self.num_envs * self.num_agents,):
                raise ValueError(f"expected int64 [K * A] actions, got {actions.dtype} {actions.shape}")
            actions = actions.reshape(shape)
            if ((actions < 0) | (actions > 2))[self.alive].any():
                raise ValueError("expected actions 0 to 2")
            return np.where(self.alive, actions, 1) - 1.0
        if actions.dtype != np.float32 or actions.shape != (self.num_envs * self.num_agents, 1):
            raise ValueError(f"expected float32 [K * A, 1] actions, got {actions.dtype} {actions.shape}")
        actions = actions.reshape(shape).astype(np.float64)
        if not np.isfinite(actions[self.alive]).all():
            raise ValueError("expected finite actions")
        return np.where(self.alive, actions, 0).clip(-1, 1)

    def begin(self, mask: Any) -> None:
        for i in np.flatnonzero(mask):
            steps = self.generators[i].integers(1, FARTHEST + 1, self.num_agents)
            sides = self.generators[i].integers(0, 2, self.num_agents) * 2 - 1
            self.distance[i] = steps * sides
        self.agents = np.where(mask, self.next_agents, self.agents)
        self.density = np.where(mask, self.next_density, self.density)
        fresh = np.arange(self.num_agents) < self.agents[:, None]
        self.alive = np.where(mask[:, None], fresh, self.alive)
        for array in (self.age, self.sums, self.moved, self.driven, self.arrived, self.crashed):
            array[mask] = 0

    def finish(self, mask: Any) -> None:
        present = np.arange(self.num_agents) < self.agents[:, None]

        def mean(x: Any) -> Any:
            return (x * present).sum(1) / self.agents

        values = {
            "finished": self.last["finished"] + 1,
            "length": self.age,
            "return_mean": mean(self.sums),
            "num_agents": self.agents,
            "collision_rate": mean(self.crashed),
            "mean_speed": mean(self.moved) / np.maximum(self.age, 1),
            "throughput": self.arrived.sum(1) * 3600.0 / np.maximum(self.age, 1),
            "min_ttc": np.full(self.num_envs, np.inf),
            "success": mean(self.arrived),
            "driving_time": self.driven.sum(1),
            "arrival_time": (self.driven * self.arrived).sum(1) / np.maximum(self.arrived.sum(1), 1),
        }
        for name, array in self.last.items():
            array[mask] = values[name][mask]

    def observe(self, mask: Any = None) -> Any:
        """Observations of the agents in a mask [K, A] (by default those that are alive); zeros for others."""
        mask = self.alive if mask is None else mask
        age = np.broadcast_to(self.age[:, None] / self.horizon, self.distance.shape)
        obs = np.stack([self.distance / EDGE, age, np.ones_like(age)], -1) * mask[..., None]
        return obs.reshape(-1, 3).astype(np.float32)

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise RuntimeError("this environment is closed")


@dataclasses.dataclass(frozen=True)
class TeamEnvSpec(TeamSpec):
    """A spec of some `TeamEnv`, which each call of `make_team` gives."""

    env: Any = None

    def make_team(self, num_envs: int, *, workers: int | None = None, action_masks: bool = False) -> Any:
        assert self.env.num_envs == num_envs
        self.env.autoreset_mode = AutoresetMode.DISABLED
        return self.env


FIXED = ("num_envs", "num_agents", "horizon", "team", "autoreset_mode", "single_observation_space")
FIXED += ("single_action_space", "obs_space", "closed")
EPISODE = {
    "finished": np.int64,
    "length": np.int64,
    "return_mean": np.float64,
    "num_agents": np.int64,
    "collision_rate": np.float64,
    "mean_speed": np.float64,
    "throughput": np.float64,
    "min_ttc": np.float64,
    "success": np.float64,
    "driving_time": np.float64,
    "arrival_time": np.float64,
}
