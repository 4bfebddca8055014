"""Statistics of every episode of a vector environment of several agents, in training and in evaluation."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.episode_log import EPISODE_FIELDS

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv

# Fields of `MultiAgentVectorEnv.episodes()` but for the number of finished episodes.
MEASURES = EPISODE_FIELDS[1:]
# Names of means over episodes, and the fields that they are means of.
MEANS = {
    "mean_return": "return_mean",
    "mean_length": "length",
    "success_rate": "success",
    "collision_rate": "collision_rate",
    "mean_speed": "mean_speed",
    "throughput": "throughput",
    "min_ttc": "min_ttc",
}
# The record of a finished episode: `MEASURES`, and the level of the curriculum at its start.
EPISODE = np.dtype([*((name, np.float64) for name in MEASURES), ("level", np.int64)])

# Maps observations [K*A, D] and alive bool [K*A] to actions int64 [K*A] or [K*A, n], or float32 [K*A, n].
Act = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[Any]]


class RecordEpisodeStatistics:
    """A wrapper that records every finished episode. (The environment itself keeps only the last one of each index.)

    It is stepped like the environment that it wraps.

    Args:
        env: in autoreset mode "same_step".
        level: the level of the curriculum for the first episodes.
    """

    def __init__(self, env: "MultiAgentVectorEnv", level: int = 0) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.num_agents = env.num_agents
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.autoreset_mode = env.autoreset_mode
        self.level = level
        self._levels = np.full(env.num_envs, level)
        self._finished = env.episodes()["finished"].copy()
        self._ended: list[NDArray[np.void]] = []

    def reset_into(
        self,
        obs: NDArray[Any],
        alive: NDArray[np.bool_],
        *,
        seed: int | Sequence[int] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.env.reset_into(obs, alive, seed=seed, reset_mask=reset_mask)
        self._levels[slice(None) if reset_mask is None else reset_mask] = self.level

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[Any] | None = None,
    ) -> None:
        self.env.step_into(actions, obs, rewards, terminations, truncations, alive, final_obs)
        statistics = self.env.episodes()
        ended = np.flatnonzero(statistics["finished"] != self._finished)
        if len(ended):
            self._finished[ended] = statistics["finished"][ended]
            records = episode_records(statistics, ended)
            records["level"] = self._levels[ended]
            self._levels[ended] = self.level
            self._ended.append(records)

    def episodes(self) -> dict[str, NDArray[Any]]:
        """See `MultiAgentVectorEnv.episodes`."""
        return self.env.episodes()

    def take(self) -> NDArray[np.void]:
        """The episodes finished since the last call, `EPISODE` [E], in the order of their ends."""
        records = np.concatenate([np.empty(0, EPISODE), *self._ended])
        self._ended = []
        return records

    def save_state(self) -> dict[str, Any]:
        """The environment's state and the levels; records that `take` has not returned yet are not part of it."""
        return {"env": self.env.save_state(), "levels": self._levels.tolist(), "level": self.level}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores a state of `save_state`.

        Raises:
            ValueError: the state is of an environment with other options.
        """
        self.env.load_state(state["env"])
        self._levels[:] = state["levels"]
        self.level = state["level"]
        self._finished[:] = self.env.episodes()["finished"]
        self._ended = []

    def close(self) -> None:
        self.env.close()


def episode_records(statistics: dict[str, NDArray[Any]], indices: NDArray[np.intp]) -> NDArray[np.void]:
    """The records, `EPISODE` [E] with level 0, of some environments' last episodes, from `episodes()`."""
    records = np.zeros(len(indices), EPISODE)
    for name in MEASURES:
        records[name] = statistics[name][indices]
    return records


def run_episodes(
    env: "MultiAgentVectorEnv",
    act: Act,
    seeds: Sequence[int],
    advance: Callable[[int], object] = lambda episodes: None,
) -> NDArray[np.void]:
    """Runs one episode in each environment and returns their records, `EPISODE` [K], by environment index.

    Args:
        env: in autoreset mode "same_step".
        act: the policy.
        seeds: one for each environment.
        advance: called with the number of episodes that ended, after each step in which some did.
    """
    size = env.num_envs * env.num_agents
    space = env.single_observation_space
    obs = np.empty((size, *space.shape), space.dtype)
    rewards = np.empty(size, np.float32)
    alive, terminations, truncations = (np.empty(size, np.bool_) for _ in range(3))
    env.reset_into(obs, alive, seed=list(seeds))
    before = env.episodes()["finished"].copy()
    records = np.zeros(env.num_envs, EPISODE)
    running = np.ones(env.num_envs, np.bool_)
    # One compiled call steps all environments, which a loop over single episodes would not.
    while running.any():
        env.step_into(act(obs, alive), obs, rewards, terminations, truncations, alive)
        statistics = env.episodes()
        ended = np.flatnonzero(running & (statistics["finished"] != before))
        if len(ended):
            records[ended] = episode_records(statistics, ended)
            running[ended] = False
            advance(len(ended))
    return records


def finite_mean(values: NDArray[np.floating]) -> float:
    """The mean of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
