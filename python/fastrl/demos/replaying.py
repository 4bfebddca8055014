"""Replay of demonstrations: the stored actions played again, and compared to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.training.episodes import build_any
from fastrl.utils.config import ConfigError
from fastrl.utils.forks import ending_copies
from fastrl.utils.trust import TrustError, imports_environment

# Differences that a report shows.
_SHOWN = 5


@dataclass
class ReplayReport:
    """Result of a replay.

    Attributes:
        path: of the data set. env: id of the environment.
        episodes, steps: that were played.
        differences: of episodes that differ: the number of the episode, and the first difference in words.
    """

    path: str
    env: str
    episodes: int = 0
    steps: int = 0
    differences: list[tuple[int, str]] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not self.differences

    def lines(self) -> list[str]:
        """All of it in words."""
        same = self.episodes - len(self.differences)
        first = (
            f"{self.path}: {same:,} of {self.episodes:,} episodes of {self.env} agree to the bit, {self.steps:,} steps:"
            " observations, rewards and ends"
        )
        shown = [f"episode {index}: {what}" for index, what in self.differences[:_SHOWN]]
        more = len(self.differences) - len(shown)
        return [first, *shown, *([f"and {more:,} more"] if more else [])]


def replay(
    demos: Any,
    *,
    episodes: int | None = None,
    env: Any = None,
    trust: bool = False,
    advance: Callable[[int], object] = lambda episodes: None,
) -> ReplayReport:
    """Plays the stored actions of a data set again.

    Args:
        demos: a data set, or its directory.
        episodes: so many, evenly chosen; None: all.
        env: the environment, if it is not to be made as the data set says.
        trust: the data set's environment may import code.
        advance: called with 1 after each episode.

    Raises:
        UserError: the environment cannot be made, or is another one; or the episodes have no seeds.
        CollectError: the environment raised.
    """
    from fastrl.replay.episodes import EpisodeDataset, check_spaces, load

    data = demos if isinstance(demos, EpisodeDataset) else load(Path(demos))
    spec, longest = _spec_of(data, env, trust=trust)
    built = build_any(spec, None)
    if isinstance(built, VectorEnv):
        spec.close_vector(built)
        raise ConfigError(f"{spec.id} makes a vector environment; episodes are replayed in a single one")
    report = ReplayReport(str(data.path), spec.id)
    try:
        check_spaces(data, built.observation_space, built.action_space, spec.id)
        count = len(data) if episodes is None else min(episodes, len(data))
        for i in np.linspace(0, len(data) - 1, count).round().astype(int).tolist():
            episode = data[i]
            difference = _replayed(built, spec.id, data.obs_space, episode, longest)
            report.episodes += 1
            report.steps += len(episode.rewards)
            if difference:
                report.differences.append((int(episode.index), difference))
            advance(1)
    finally:
        contract.close(built)
    return report


def _spec_of(data: Any, env: Any, *, trust: bool) -> tuple[EnvSpec, int]:
    """The environment of a data set, and the steps after which its recording truncated episodes."""
    from fastrl.envs.spec import any_spec

    facts: Mapping[str, Any] = data.meta.get("env") or {}
    options = dict(facts.get("options") or {})
    longest = int(facts.get("max_episode_steps") or 0)
    if env is not None:
        if isinstance(env, str) and env == facts.get("id"):
            return EnvSpec(env, options), longest
        return any_spec(env), longest
    name = facts.get("id")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{data.path} does not say its environment: give --env ID")
    would = imports_environment(name, {})
    if would and not trust:
        raise TrustError(
            f"{data.path}: env would {would}; only if you trust this data set, give --trust or --env {name} (in"
            " Python, trust=True)"
        )
    return EnvSpec(name, options), longest


def _replayed(env: gymnasium.Env[Any, Any], name: str, space: Any, episode: Any, longest: int) -> str:
    """Plays an episode; returns the first difference, or an empty text."""
    if episode.seed is None:
        raise ConfigError(f"episode {episode.index} has no seed, so that it cannot be replayed")
    steps = len(episode.rewards)
    step = 0
    try:
        with ending_copies():
            obs, _ = env.reset(seed=int(episode.seed))
        if difference := _difference(space, _at(episode.observations, 0), obs):
            return f"the first observation differs: {difference}"
        for step in range(1, steps + 1):
            action = episode.actions[step - 1]
            given = action.item() if np.ndim(action) == 0 else np.array(action)
            with ending_copies():
                obs, reward, terminated, truncated, _ = env.step(given)
            if difference := _difference(space, _at(episode.observations, step), obs):
                return f"from step {step} of {steps} on another observation: {difference}"
            stored = np.float64(episode.rewards[step - 1])
            if np.float64(reward).tobytes() != stored.tobytes():
                return f"from step {step} of {steps} on another reward: {stored} stored, now {reward}"
            if step == longest and not terminated:
                truncated = True
            ends = bool(terminated), bool(truncated)
            before = bool(episode.terminated[step - 1]), bool(episode.truncated[step - 1])
            if ends != before:
                return f"step {step} of {steps} ends otherwise: {_end(before)} stored, now {_end(ends)}"
    except (Exception, SystemExit) as error:
        trace = own_traceback(error)
        cause = last_line(trace) if trace else f"{type(error).__name__}: {error}"
        raise CollectError(
            f"{name} failed at step {step} of episode {episode.index}: {cause}", trace
        ) from error
    return ""


def _end(flags: tuple[bool, bool]) -> str:
    terminated, truncated = flags
    names = [name for name, is_set in (("terminated", terminated), ("truncated", truncated)) if is_set]
    return " and ".join(names) or "it goes on"


def _at(observations: Any, step: int) -> Any:
    """The observation of a step."""
    if isinstance(observations, Mapping):
        return {key: _at(child, step) for key, child in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_at(child, step) for child in observations)
    return observations[step]


def _leaves(space: Any, stored: Any, obs: Any, name: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, stored[key], obs[key], f"{name}[{key!r}]")
    elif isinstance(space, gymnasium.spaces.Tuple):
        for i, child in enumerate(space.spaces):
            yield from _leaves(child, stored[i], obs[i], f"{name}[{i}]")
    else:
        yield name, space, stored, obs


def _difference(space: Any, stored: Any, obs: Any) -> str:
    """The first difference of an observation from the stored one; empty: there is none."""
    for name, leaf, before, now in _leaves(space, stored, obs):
        if isinstance(leaf, gymnasium.spaces.Text):
            if str(before) != now:
                return f"obs{name}: {before!r} stored, now {now!r}"
            continue
        ours, theirs = np.asarray(before), np.asarray(now).astype(leaf.dtype)
        if ours.shape != theirs.shape:
            return f"obs{name}: shape {list(ours.shape)} stored, now {list(theirs.shape)}"
        if ours.tobytes() != theirs.tobytes():
            flat, other = ours.ravel(), theirs.ravel()
            at = next(i for i in range(flat.size) if flat[i].tobytes() != other[i].tobytes())
            return f"obs{name}{f'[{at}]' if flat.size > 1 else ''}: {flat[at]} stored, now {other[at]}"
    return ""
