"""Data sets in memory, for tests of what learns from demonstrations."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.replay import episodes as files
from fastrl.replay.episode_writer import EpisodeWriter


@dataclass
class Episode:
    """An episode in the form of `fastrl.demos`."""

    observations: Any
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    expert_actions: NDArray[Any] | None = None
    infos: Mapping[str, Any] | None = None


class DemoSet(list[Episode]):
    """Episodes with the attributes of a data set."""

    def __init__(
        self,
        obs_space: Space[Any],
        action_space: Space[Any],
        episodes: Iterable[Episode],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(episodes)
        self.obs_space, self.action_space, self.meta = obs_space, action_space, dict(meta or {})

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(episode.rewards) for episode in self], np.int64)

    @property
    def num_steps(self) -> int:
        return int(self.lengths.sum())

    @property
    def returns(self) -> NDArray[np.float64]:
        return np.array([episode.rewards.sum() for episode in self], np.float64)


def played(
    env: gymnasium.Env[Any, Any],
    policy: Callable[[Any], Any],
    episodes: int,
    *,
    seed: int = 0,
    steps: int = 10_000,
) -> DemoSet:
    """Episodes that a policy plays.

    Args:
        policy: an action for an observation.
        steps: after which an episode is cut off.
    """
    found = []
    for number in range(episodes):
        obs, _ = env.reset(seed=1000 * seed + number)
        observations, actions, rewards, ends = [obs], [], [], []
        while not (ends and any(ends[-1])):
            action = policy(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            observations.append(obs)
            actions.append(action)
            rewards.append(float(reward))
            ends.append((terminated, truncated or len(rewards) >= steps))
        over = np.array(ends, np.bool_)
        found.append(
            Episode(
                stacked(env.observation_space, observations),
                np.array(actions),
                np.array(rewards),
                over[:, 0],
                over[:, 1],
            )
        )
    return DemoSet(env.observation_space, env.action_space, found)


def written(demos: DemoSet, path: Path, env: str, *, shard_bytes: int = 2000) -> Any:
    """The data set on disk, in several files."""
    facts = {"env": {"id": env, "options": {}}}
    with EpisodeWriter(path, facts, demos.obs_space, demos.action_space, shard_bytes=shard_bytes) as writer:
        for index, each in enumerate(demos):
            writer.write(
                files.Episode(
                    each.observations,
                    each.actions,
                    each.rewards,
                    each.terminated,
                    each.truncated,
                    index=index,
                )
            )
    return files.load(path)


def stacked(space: Space[Any], values: list[Any]) -> Any:
    """Values with a further first axis, in dicts and tuples as of the space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: stacked(child, [value[key] for value in values]) for key, child in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(stacked(child, [value[i] for value in values]) for i, child in enumerate(space.spaces))
    return np.array(values)


def cartpole_expert(obs: Any) -> int:
    """Balances CartPole-v1 for 500 steps."""
    return int(obs[2] + 0.3 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0)
