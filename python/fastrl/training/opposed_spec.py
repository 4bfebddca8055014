"""Environments of many agents in which policies of runs play those that do not learn."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gymnasium.vector import AutoresetMode

from fastrl.collectors.team_spec import SELF, TeamSpec
from fastrl.envs.opponents import OpponentVectorEnv, Pool
from fastrl.runs.checkpoint import CheckpointError, find_checkpoint, load_newest, to_play, using_checkpoint
from fastrl.runs.settings import table_of
from fastrl.utils.config import ConfigError

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv
    from fastrl.play.opponents import PolicyOpponent


@dataclass(frozen=True)
class OpposedSpec(TeamSpec):
    """A spec of the agents that learn in the environments of another spec.

    Attributes:
        whole: the environments of all agents.
        task: whose runs can be opponents.
        learners: names of the agents that learn, with ``*`` for any characters.
        opponents: run directories and `SELF`, perhaps with `weighted` weights.
        pool_size: how many of the run's newest snapshots are opponents.
        snapshots: the directory of these; None: there are none yet.
    """

    whole: TeamSpec = dataclasses.field(default_factory=lambda: TeamSpec(""))
    task: str = ""
    learners: Sequence[str] = ()
    opponents: Sequence[str] = ()
    pool_size: int = 1
    snapshots: Path | None = None

    def with_options(self, options: Mapping[str, Any]) -> Self:
        whole = self.whole.with_options(options)
        return dataclasses.replace(self, whole=whole, options=whole.options)

    def with_snapshots(self, directory: Path) -> Self:
        return dataclasses.replace(self, snapshots=directory)

    @property
    def is_compiled(self) -> bool:
        return self.whole.is_compiled

    @property
    def is_local(self) -> bool:
        return self.whole.is_local

    @property
    def is_nameless(self) -> bool:
        return self.whole.is_nameless

    def shares(self) -> Mapping[str, float]:
        return dict(map(weighted, self.opponents))

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
        **options: Any,
    ) -> OpponentVectorEnv:
        """See `TeamSpec.make_team`.

        Args:
            options: further ones of the other spec's.

        Raises:
            ConfigError: there is no such agent, none or all of them learn, or there are no opponents.
            CheckpointError: a run directory has no policy that can play the others.
        """
        shares = dict(self.shares())
        if not shares:
            raise ConfigError("--learners: expected --opponents, run directories that play the other agents")
        own = shares.pop(SELF, 0.0)
        states = {run: self._state(run) for run in shares}
        # An opponent may keep to masks that the policies that learn do without.
        action_masks |= any(_has_masks(state) for state in states.values())
        with contextlib.closing(self.whole.make_team(1, workers=1, action_masks=action_masks)) as env:
            agents, free, frozen = self._sides(env)
            if not free:
                raise ConfigError(f"--opponents: expected --learners beside it, some of {', '.join(agents)}")
            if not frozen:
                raise ConfigError(f"--learners: expected some agents, and not all of {', '.join(agents)}")
            opponents = [self._frozen(run, state, env, frozen) for run, state in states.items()]
            pool = self._pool(env, frozen) if own else None
        weights = [*shares.values()]
        if pool is not None:
            weights += pool_shares(own, pool.count, pool.size)
        return OpponentVectorEnv(
            num_envs,
            functools.partial(self.whole.make_team, workers=workers, action_masks=action_masks, **options),
            opponents=opponents,
            weights=weights if any(weights) else None,
            pool=pool,
            frozen=frozen,
            autoreset_mode=autoreset_mode,
        )

    def check_self(self, state: Mapping[str, Any]) -> None:
        """Refuses a policy that cannot play the agents that do not learn.

        Args:
            state: of its checkpoint.

        Raises:
            CheckpointError
        """
        with contextlib.closing(self.whole.make_team(1, workers=1, action_masks=_has_masks(state))) as env:
            self._frozen("--opponents self: this run", state, env, self._sides(env)[2])

    def _sides(self, env: MultiAgentVectorEnv) -> tuple[list[str], list[int], list[int]]:
        """Names of all agents, and indices of those that learn and of those that do not."""
        agents = list(map(str, env.agents))
        free = named(self.learners, agents)
        return agents, free, [a for a in range(len(agents)) if a not in free]

    def _pool(self, env: MultiAgentVectorEnv, frozen: Sequence[int]) -> Pool:
        """The run's snapshots so far, as the agents that do not learn."""
        directory = self.snapshots

        def load(number: int, env: MultiAgentVectorEnv) -> PolicyOpponent:
            assert directory is not None, "a pool without snapshots loads none"
            file = str(snapshot_file(directory, number))
            return self._frozen(file, policy_state(file), env, frozen, deterministic=False)

        count = 0 if directory is None else snapshots_in(directory)
        return Pool(self.pool_size, load, count, load(count - 1, env).state_size if count else 0)

    def _state(self, run: str) -> Mapping[str, Any]:
        """See `policy_state`; of a run in these environments."""
        state = policy_state(run)
        there = state.get("kind"), state.get("environment")
        if there != (self.task, self.id):
            raise CheckpointError(
                f"{run} is a run of {' '.join(map(str, there))}: expected one of {self.task} {self.id}"
            )
        return state

    def _frozen(
        self,
        run: str,
        state: Mapping[str, Any],
        env: MultiAgentVectorEnv,
        frozen: Sequence[int],
        *,
        deterministic: bool = True,
    ) -> PolicyOpponent:
        """The policies of a run, as the agents that do not learn.

        Args:
            run: its directory, for messages.
            state: of its checkpoint.
            deterministic: they take their most probable actions; otherwise these are drawn.

        Raises:
            CheckpointError: it cannot play them.
        """
        from fastrl.play.opponents import PolicyOpponent

        agents = list(map(str, env.agents))
        of_run = named(state["config"]["env"].get("learners") or ("*",), agents, f"{run}: --learners")
        with using_checkpoint(Path(run), "holds no policy that this fastrl can use"):
            policies = state["policy"]["policies"]
            spaces, players = env.agent_spaces(padded=False), dict[int, int]()
            for a in frozen:
                if a in of_run[: len(policies)]:
                    players[a] = of_run.index(a)
                    continue
                alike = {
                    policy
                    for policy, each in zip(policies, of_run, strict=False)
                    if (env.groups[each], spaces[each]) == (env.groups[a], spaces[a])
                }
                if len(alike) == 1:
                    players[a] = policies.index(*alike)
                else:
                    raise CheckpointError(
                        f"{run} has no policy for {agents[a]}, it has learned to play"
                        f" {', '.join(agents[each] for each in of_run)}"
                    )
            opponent = PolicyOpponent.from_team(
                state["policy"], players, action_masks=_has_masks(state), deterministic=deterministic
            )
        opponent.check_fits(env, run)
        return opponent


def named(patterns: Sequence[str], agents: Sequence[str], what: str = "--learners") -> list[int]:
    """The indices of the agents that some pattern is of.

    Args:
        what: has the patterns, for errors.

    Raises:
        ConfigError: a pattern is of none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(agent, pattern) for agent in agents):
            raise ConfigError(f"{what} {pattern}: there is no such agent, only {', '.join(agents)}")
    return [a for a, agent in enumerate(agents) if any(fnmatchcase(agent, pattern) for pattern in patterns)]


def weighted(opponent: str) -> tuple[str, float]:
    """The name or path of an opponent, and its weight: ``runs/a:0.5``, or 1."""
    name, _, text = opponent.rpartition(":")
    try:
        weight = float(text) if name else 0.0
    except ValueError:
        weight = 0.0
    return (name, weight) if 0 < weight < math.inf else (opponent, 1.0)


def pool_shares(weight: float, count: int, size: int) -> list[float]:
    """The weights of the places of a pool, the newest snapshot first: even ones, and 0 of those that are empty.

    Args:
        weight: of the pool.
        count: snapshots that it has had.
    """
    filled = min(count, size)
    return [weight / max(filled, 1)] * filled + [0.0] * (size - filled)


def snapshot_file(directory: Path, number: int) -> Path:
    return directory / f"snapshot-{number:06d}.safetensors"


def snapshots_in(directory: Path) -> int:
    """The number of the snapshot after the last one in a folder."""
    return max((int(file.stem[9:]) + 1 for file in directory.glob("snapshot-*[0-9].safetensors")), default=0)


def policy_state(run: str) -> Mapping[str, Any]:
    """The state of the policy that a run plays with, to be read only.

    A process reads a file once. Where the file has changed since, or the run has a newer one, environments that are
    made from then on have the new policy, and those that are there keep theirs.
    """
    path = to_play(Path(run))
    file = find_checkpoint(path)
    return _state_in(path, file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=128)
def _state_in(path: Path, file: Path, changed: int) -> Mapping[str, Any]:
    """The state in a file that was last changed at that time, without what only training needs."""
    return {name: part for name, part in load_newest(path)[1].items() if name not in ("learner", "source")}


def _has_masks(state: Mapping[str, Any]) -> bool:
    return bool(state["config"].get(table_of(state["algorithm"]), {}).get("action_masks"))
