"""Rollouts of environments of many agents, as experience for an algorithm that learns from them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium.spaces import Space

from fastrl.collectors.protocol import Difficulty
from fastrl.collectors.team_backend import EPISODE_INFO, LEVEL, OPPONENT
from fastrl.collectors.team_spec import SELF, TeamSpec
from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.exact_rows import recorded_space
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.opponents import OpponentVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import EPISODE_STEPS
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.sources.collecting import CollectConfig
from fastrl.sources.dataset import DatasetSource
from fastrl.sources.demo_arrays import Demos, check_env
from fastrl.sources.rollouts import RolloutSource
from fastrl.utils.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


class MultiAgentSource(RolloutSource):
    """Brings fragments of environments of many agents, as `RolloutSource` does those of one.

    The episodes' info has the fields of `fastrl.collectors.team_backend.EPISODE_INFO`, among them the level of
    difficulty.

    Args:
        episode_steps: after which an episode ends at the latest.
        others: as of `RolloutSource`.
    """

    spec: TeamSpec

    def __init__(
        self,
        spec: TeamSpec,
        num_envs: int,
        collect: CollectConfig,
        *,
        episode_steps: int,
        seed: int = 0,
        console: Console | None = None,
    ) -> None:
        self.episode_steps = collect.max_episode_steps or episode_steps
        self._difficulty: tuple[int, Difficulty | None] = 0, None
        self.opponents = spec.shares()
        info = (*EPISODE_INFO, OPPONENT) if self.opponents else EPISODE_INFO
        super().__init__(spec, num_envs, collect, seed=seed, console=console, episode_info=info)

    def _see_env(self) -> None:
        self.num_agents, self.obs_space, self.action_space, self.form, self._agents = _seen(self.spec)

    def set_difficulty(self, level: int, difficulty: Difficulty | None) -> None:
        """Sets the difficulty of the episodes that start from now on.

        Args:
            level: number of the difficulty, in the info of these episodes.
            difficulty: None: as it is.

        Raises:
            NotImplementedError: the environment's difficulty is fixed.
        """
        if difficulty is not None and not math.isnan(difficulty.num_agents):
            with contextlib.closing(self.spec.make_team(1, workers=1)) as env:
                env.set_difficulty(num_agents=int(difficulty.num_agents), density=difficulty.density)
        self._difficulty = level, difficulty
        self._give_difficulty()

    def set_weights(self, opponents: Sequence[float], snapshots: int = 0) -> None:
        """Sets the weights of the opponents in the draws of the episodes that start from now on.

        Args:
            opponents: as of `fastrl.envs.opponents.OpponentVectorEnv.set_weights`.
            snapshots: as of its ``set_pool``.
        """
        level, difficulty = self._difficulty
        new = (difficulty or Difficulty())._replace(opponents=tuple(opponents), snapshots=snapshots)
        self.set_difficulty(level, new)

    def use_snapshots(self, directory: Path) -> None:
        """Says where the snapshots of the opponents' pool are, before it runs."""
        self.spec = self.spec.with_snapshots(directory)
        self._plan = dataclasses.replace(self.plan, env=self.spec)

    def _give_difficulty(self) -> None:
        if self._collector is not None:
            self._collector.set_difficulty(*self._difficulty)

    def __enter__(self) -> Self:
        super().__enter__()
        self._give_difficulty()
        return self

    def lines(self) -> list[str]:
        scored = self.spec.scored_agents
        of_whom = [] if scored is None else [f"returns are those of {', '.join(self._agents[:scored])}"]
        return [*super().lines(), *of_whom]

    def take_episodes(self) -> Episodes:
        episodes = super().take_episodes()
        info = {name: episodes.info.get(name, np.empty(0)) for name in self._episode_info}
        numbers = {name: info[name].astype(np.int64) for name in (LEVEL, OPPONENT) if name in info}
        return dataclasses.replace(episodes, info=info | numbers)


class MultiAgentDatasetSource(DatasetSource):
    """Brings minibatches of demonstrations of many agents, as `DatasetSource` does those of one."""

    episode_steps = EPISODE_STEPS

    def _see_env(self, spec: EnvSpec) -> None:
        assert isinstance(spec, TeamSpec)
        if SELF in spec.shares():
            raise TrainError(
                f"--opponents {SELF}: learning from demonstrations takes no snapshots: name run directories"
            )
        self.num_agents, self.obs_space, self.action_space, self.form, self._agents = _seen(spec)

    def _check_demos(self, demos: Demos, name: str) -> None:
        check_env(demos, self.env_id, recorded_space(self.obs_space), self.action_space, name)
        recorded = [each["name"] for each in demos.meta.get("agents") or ()]
        if recorded != self._agents:
            found = f"the agents {', '.join(recorded)}" if recorded else "no names of agents"
            raise TrainError(
                f"{name} has {found}, {self.env_id} has {', '.join(self._agents)}: choose a data set of this"
                " environment"
            )


def _form(env: MultiAgentVectorEnv) -> ParallelForm | None:
    """The form of a parallel environment of PettingZoo, or of its agents that learn; None: it is another one, or rows
    are longer than these agents need."""
    whole = env.unopposed if isinstance(env, OpponentVectorEnv) else env
    if not isinstance(whole, ParallelVectorEnv):
        return None
    if whole is env:
        return whole.form
    form = whole.form.of_agents([whole.form.agents.index(agent) for agent in env.agents])
    fits = form.row_space.shape == env.single_observation_space.shape
    return form if fits and form.action_space == env.single_action_space else None


def _seen(spec: TeamSpec) -> tuple[int, Space[Any], Space[Any], ParallelForm | None, list[str]]:
    """Number of agents, spaces of one of them, the form of a parallel environment of PettingZoo, and their names.

    Raises:
        TrainError, CollectError: the environment cannot be built.
    """
    try:
        with contextlib.closing(spec.make_team(1, workers=1)) as env:
            names = list(map(str, env.agents))
            return env.num_agents, env.obs_space, env.single_action_space, _form(env), names
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        where = "" if str(error).startswith("env: ") else f"--env {spec.id}: "
        raise TrainError(f"{where}{error}") from None
