"""Every episode of many-agent worlds: noted while they are trained on, or played for its own sake."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv

# What is known of an episode that has ended: the fields of `MultiAgentVectorEnv.episodes()` and the level of the
# curriculum that it began with.
MEASURES = (
    "length",
    "return_mean",
    "num_agents",
    "collision_rate",
    "mean_speed",
    "throughput",
    "min_ttc",
    "success",
)
# What means over episodes are called, and the fields that they are taken of.
MEANS = {
    "mean_return": "return_mean",
    "mean_length": "length",
    "success_rate": "success",
    "collision_rate": "collision_rate",
    "mean_speed": "mean_speed",
    "throughput": "throughput",
    "min_ttc": "min_ttc",
}
EPISODE = np.dtype([*((name, np.float64) for name in MEASURES), ("level", np.int64)])

# Chooses the actions of all rows: observations float32 [K*A, D] and alive bool [K*A] to int64 [K*A] or
# float32 [K*A, n].
Act = Callable[[NDArray[np.float32], NDArray[np.bool_]], NDArray[Any]]


class WatchedWorlds:
    """Worlds that note each episode that ends. (By itself an environment tells of each world's last one.)

    It is stepped like the environment that it is made of, in autoreset mode "same_step".

    Args:
        env: the worlds.
        level: of the curriculum, that the first episodes begin with.
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
        obs: NDArray[np.float32],
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
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None:
        self.env.step_into(actions, obs, rewards, terminations, truncations, alive, final_obs)
        account = self.env.episodes()
        ended = np.flatnonzero(account["finished"] != self._finished)
        if len(ended):
            self._finished[ended] = account["finished"][ended]
            rows = episodes_of(account, ended)
            rows["level"] = self._levels[ended]
            self._levels[ended] = self.level
            self._ended.append(rows)

    def episodes(self) -> dict[str, NDArray[Any]]:
        """As the environment's."""
        return self.env.episodes()

    def take(self) -> NDArray[np.void]:
        """Those that have ended since the last call, `EPISODE` [E], in the order in which they ended."""
        rows = np.concatenate([np.empty(0, EPISODE), *self._ended])
        self._ended = []
        return rows

    def save_state(self) -> dict[str, Any]:
        """The environment's state, and what the notes depend on; what `take` has not given yet is not in it."""
        return {"env": self.env.save_state(), "levels": self._levels.tolist(), "level": self.level}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where the other worlds stood.

        Raises:
            ValueError: the state is of other worlds.
        """
        self.env.load_state(state["env"])
        self._levels[:] = state["levels"]
        self.level = state["level"]
        self._finished[:] = self.env.episodes()["finished"]
        self._ended = []

    def close(self) -> None:
        self.env.close()


def episodes_of(account: dict[str, NDArray[Any]], worlds: NDArray[np.intp]) -> NDArray[np.void]:
    """What an environment's `episodes()` says of some worlds, `EPISODE` [E], with level 0."""
    rows = np.zeros(len(worlds), EPISODE)
    for name in MEASURES:
        rows[name] = account[name][worlds]
    return rows


def play(
    env: "MultiAgentVectorEnv",
    act: Act,
    seeds: Sequence[int],
    advance: Callable[[int], object] = lambda episodes: None,
) -> NDArray[np.void]:
    """One episode of each world, `EPISODE` [K], in the worlds' order.

    Args:
        env: in autoreset mode "same_step".
        seeds: one for each world.
        advance: called with how many episodes have ended at once, whenever some do.
    """
    rows = env.num_envs * env.num_agents
    obs = np.empty((rows, *(env.single_observation_space.shape or ())), np.float32)
    rewards = np.empty(rows, np.float32)
    alive, terminations, truncations = (np.empty(rows, np.bool_) for _ in range(3))
    env.reset_into(obs, alive, seed=list(seeds))
    before = env.episodes()["finished"].copy()
    played = np.zeros(env.num_envs, EPISODE)
    running = np.ones(env.num_envs, np.bool_)
    while running.any():
        env.step_into(act(obs, alive), obs, rewards, terminations, truncations, alive)
        account = env.episodes()
        ended = np.flatnonzero(running & (account["finished"] != before))
        if len(ended):
            played[ended] = episodes_of(account, ended)
            running[ended] = False
            advance(len(ended))
    return played


def mean_of(values: NDArray[np.floating]) -> float:
    """Over those that are known; NaN if none is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
