"""Replay of demonstrations: the stored actions played again, and compared to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from fastrl.demos.team_plan import team_of
from fastrl.envs.contract import AGENT, ENV_EPISODE, ENV_STEP
from fastrl.envs.exact_rows import recorded_space
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import build_any
from fastrl.play.play import play
from fastrl.utils.config import ConfigError
from fastrl.utils.trust import TrustError, imports_environment

if TYPE_CHECKING:
    from fastrl.replay.episodes import Episode, EpisodeDataset

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
    if data.meta.get("agents"):
        return _replay_team(data, spec, longest, episodes, advance)
    built = build_any(spec, None)
    if isinstance(built, VectorEnv):
        spec.close(built)
        raise ConfigError(f"{spec.id} makes a vector environment; episodes are replayed in a single one")
    report = ReplayReport(str(data.path), spec.id)
    try:
        check_spaces(data, built.observation_space, built.action_space, spec.id)
        for i in _chosen(len(data), episodes):
            episode = data[i]
            difference = _replayed(built, spec.id, data.obs_space, episode, longest)
            report.episodes += 1
            report.steps += len(episode.rewards)
            if difference:
                report.differences.append((int(episode.index), difference))
            advance(1)
    finally:
        spec.close(built)
    return report


def _chosen(total: int, count: int | None) -> list[int]:
    """Indices of some of all episodes, evenly chosen; None: of all."""
    size = total if count is None else min(count, total)
    chosen: list[int] = np.linspace(0, total - 1, size).round().astype(int).tolist()
    return chosen


def _replay_team(
    data: EpisodeDataset,
    spec: EnvSpec,
    longest: int,
    episodes: int | None,
    advance: Callable[[int], object],
) -> ReplayReport:
    """Replays episodes of many agents: episodes are the environment's, steps those of all agents; see `replay`."""
    from fastrl.replay.episodes import check_spaces

    found = team_of(spec, prefer_many=True)
    if found is None:
        raise ConfigError(
            f"{spec.id} has one agent, {data.path} has many: give the environment of the data set"
        )
    report, env_episodes = ReplayReport(str(data.path), spec.id), data.first_infos(ENV_EPISODE)
    present = np.unique(env_episodes)
    with contextlib.closing(found[0].make_team(1, workers=1)) as env:
        check_spaces(data, recorded_space(env.obs_space), env.single_action_space, spec.id)
        if env.num_agents != len(data.meta["agents"]):
            raise ConfigError(
                f"{spec.id} has {env.num_agents} agents, {data.path} {len(data.meta['agents'])}"
            )
        for i in _chosen(len(present), episodes):
            lives = [data[k] for k in np.flatnonzero(env_episodes == present[i]).tolist()]
            difference = _replayed_team(env, data.obs_space, lives, longest)
            report.episodes += 1
            report.steps += sum(map(len, lives))
            if difference:
                report.differences.append((int(present[i]), difference))
            advance(1)
    return report


def _replayed_team(env: MultiAgentVectorEnv, space: Any, lives: list[Episode], longest: int) -> str:
    """Plays an episode of the environment, of which these are the agents' episodes; returns the first difference, or an
    empty text."""
    if lives[0].seed is None:
        raise ConfigError(f"episode {lives[0].index} has no seed, so that it cannot be replayed")
    size = env.num_agents
    obs = np.zeros((size, *env.single_observation_space.shape), env.single_observation_space.dtype)
    actions = np.zeros((size, *(env.single_action_space.shape or ())), env.single_action_space.dtype)
    rewards, (terminated, truncated, alive) = np.zeros(size), np.zeros((3, size), np.bool_)
    env.reset_into(obs, alive, seed=[lives[0].seed])
    places = [(int(life.infos[AGENT][0]), int(life.infos[ENV_STEP][0]), life) for life in lives if life.infos]
    for t in range(max(first + len(life) for _, first, life in places)):
        acting = [(a, t - first, life) for a, first, life in places if first <= t < first + len(life)]
        if {a for a, _, _ in acting} != set(np.flatnonzero(alive).tolist()):
            return f"before step {t + 1} other agents act, or their episodes are not in the data set"
        for a, i, life in acting:
            if difference := _difference(space, life.observations[i], obs[a].reshape(space.shape)):
                return f"agent {a} has another observation before step {t + 1}: {difference}"
            actions[a] = life.actions[i]
        env.step_into(actions, obs, rewards, terminated, truncated, alive)
        for a, i, life in acting:
            if rewards[a].tobytes() != life.rewards[i].tobytes():
                return f"agent {a} has another reward at step {t + 1}: {life.rewards[i]} stored, now {rewards[a]}"
            ends = bool(terminated[a]), bool(truncated[a] or (t + 1 == longest and not terminated[a]))
            before = bool(life.terminated[i]), bool(life.truncated[i])
            if ends != before:
                return f"step {t + 1} ends otherwise for agent {a}: {_end(before)} stored, now {_end(ends)}"
            last = life.observations[i + 1]
            if any(ends) and (difference := _difference(space, last, obs[a].reshape(space.shape))):
                return f"agent {a} has another last observation after step {t + 1}: {difference}"
    return ""


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
    steps, actions = len(episode.rewards), iter(episode.actions)

    def act(obs: Any, info: object, state: object) -> tuple[Any, None]:
        action = next(actions)
        return action.item() if np.ndim(action) == 0 else np.array(action), None

    for step in play(act, env, [int(episode.seed)], steps, name=name):
        number, i = step.number, step.number - 1
        if difference := _difference(space, _at(episode.observations, number), step.obs):
            where = f"from step {number} of {steps} on another observation"
            return f"{where if number else 'the first observation differs'}: {difference}"
        if not number:
            continue
        stored = np.float64(episode.rewards[i])
        if np.float64(step.reward).tobytes() != stored.tobytes():
            return f"from step {number} of {steps} on another reward: {stored} stored, now {step.reward}"
        is_cut = number == longest and not step.terminated
        ends = bool(step.terminated), is_cut or bool(step.truncated)
        before = bool(episode.terminated[i]), bool(episode.truncated[i])
        if ends != before:
            return f"step {number} of {steps} ends otherwise: {_end(before)} stored, now {_end(ends)}"
    return ""


def _end(flags: tuple[bool, bool]) -> str:
    terminated, truncated = flags
    names = [name for name, is_set in (("terminated", terminated), ("truncated", truncated)) if is_set]
    return " and ".join(names) or "no end"


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
    try:
        return next(_differences(space, stored, obs), "")
    except (LookupError, TypeError, ValueError) as error:
        return f"it does not fit the space: {type(error).__name__}: {error}"


def _differences(space: Any, stored: Any, obs: Any) -> Iterator[str]:
    for name, leaf, before, now in _leaves(space, stored, obs):
        if isinstance(leaf, gymnasium.spaces.Text):
            if str(before) != now:
                yield f"obs{name}: {before!r} stored, now {now!r}"
            continue
        ours, theirs = np.asarray(before), np.asarray(now).astype(leaf.dtype)
        if ours.shape != theirs.shape:
            yield f"obs{name}: shape {list(ours.shape)} stored, now {list(theirs.shape)}"
        elif ours.tobytes() != theirs.tobytes():
            flat, other = ours.ravel(), theirs.ravel()
            at = next(i for i in range(flat.size) if flat[i].tobytes() != other[i].tobytes())
            yield f"obs{name}{f'[{at}]' if flat.size > 1 else ''}: {flat[at]} stored, now {other[at]}"
