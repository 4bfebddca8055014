"""Statistics of the episodes of a vector environment of several agents."""

import math
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
# The record of a finished episode.
EPISODE = np.dtype([(name, np.float64) for name in MEASURES])

# Gives actions int64 [K*A] or [K*A, n], or float32 [K*A, n], for observations [K*A, D], alive bool [K*A] and the memory
# of the agents' episodes, float32 [K*A, n], and this memory after the step, of agents that do not act zeros. It is None
# where all episodes start, and without memory.
Act = Callable[[NDArray[Any], NDArray[np.bool_], Any], tuple[NDArray[Any], Any]]


def episode_records(statistics: dict[str, NDArray[Any]], indices: NDArray[np.intp]) -> NDArray[np.void]:
    """The records, `EPISODE` [E], of some environments' last episodes, from `episodes()`."""
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
    running, state = np.ones(env.num_envs, np.bool_), None
    # One compiled call steps all environments, which a loop over single episodes would not.
    while running.any():
        actions, state = act(obs, alive, state)
        env.step_into(actions, obs, rewards, terminations, truncations, alive)
        over = terminations | truncations
        if state is not None:
            state[over] = 0
        if not over.any():
            continue
        statistics = env.episodes()
        ended = np.flatnonzero(running & (statistics["finished"] != before))
        if len(ended):
            records[ended] = episode_records(statistics, ended)
            running[ended] = False
            advance(len(ended))
    return records


def finite_mean(values: NDArray[np.floating]) -> float:
    """The mean of the finite values, in whatever order they are; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return math.fsum(finite.tolist()) / len(finite) if len(finite) else math.nan
