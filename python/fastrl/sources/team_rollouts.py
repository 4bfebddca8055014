"""Rollouts of environments of many agents, as experience for an algorithm that learns from them."""

import contextlib
import dataclasses
from typing import Self

import numpy as np
from rich.console import Console

from fastrl.collectors.live import LiveCollector
from fastrl.collectors.synchronous import LockstepCollector
from fastrl.collectors.team_backend import EPISODE_INFO, LEVEL, Difficulty
from fastrl.collectors.team_spec import TeamSpec
from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.sources.collecting import CollectConfig
from fastrl.sources.rollouts import RolloutSource


class MultiAgentSource(RolloutSource):
    """Brings fragments of environments of many agents, as `RolloutSource` does those of one.

    The episodes' info has the fields of `fastrl.collectors.team_backend.EPISODE_INFO`, among them the level of
    difficulty.

    Args:
        episode_steps: after which an episode ends at the latest.
        others: as of `RolloutSource`.

    Attributes:
        form: of a parallel environment of PettingZoo; None: it is a compiled one.
    """

    spec: TeamSpec
    form: ParallelForm | None = None

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
        super().__init__(spec, num_envs, collect, seed=seed, console=console, episode_info=EPISODE_INFO)

    def _see_env(self) -> None:
        try:
            env = self.spec.make_team(1, workers=1)
        except (ValueError, TypeError, OverflowError) as error:
            where = "" if str(error).startswith("env: ") else f"--env {self.spec.id}: "
            raise TrainError(f"{where}{error}") from None
        self.num_agents = env.num_agents
        self.obs_space, self.action_space = env.single_observation_space, env.single_action_space
        if isinstance(env, ParallelVectorEnv):
            self.form, self.obs_space = env.form, env.form.obs_space
        env.close()

    def set_difficulty(self, level: int, difficulty: Difficulty | None) -> None:
        """Sets the difficulty of the episodes that start from now on.

        Args:
            level: number of the difficulty, in the info of these episodes.
            difficulty: None: as it is.

        Raises:
            NotImplementedError: the environment's difficulty is fixed.
            TrainError: workers step the environments.
        """
        if difficulty is not None:
            if self.collect.collector in ("executor", "ray"):
                raise TrainError(
                    f"--collector {self.collect.collector}: its workers do not get the difficulty of a curriculum:"
                    " choose native, sequential or sync, or --curriculum.mode off"
                )
            with contextlib.closing(self.spec.make_team(1, workers=1)) as env:
                env.set_difficulty(num_agents=difficulty.num_agents, density=difficulty.density)
        self._difficulty = level, difficulty
        self._give_difficulty()

    def _give_difficulty(self) -> None:
        if isinstance(self._collector, LockstepCollector | LiveCollector):
            self._collector.set_difficulty(*self._difficulty)

    def __enter__(self) -> Self:
        super().__enter__()
        self._give_difficulty()
        return self

    def take_episodes(self) -> Episodes:
        episodes = super().take_episodes()
        info = {name: episodes.info.get(name, np.empty(0)) for name in EPISODE_INFO}
        return dataclasses.replace(episodes, info={**info, LEVEL: info[LEVEL].astype(np.int64)})
