"""Vehicles that drive together: traffic of compiled environments, and how a policy is scored in it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastrl.algorithms.protocol import Algorithm, DatasetAlgorithm
from fastrl.collectors.team_spec import CompiledTeamSpec, TeamSpec
from fastrl.play.play import Step, team_seeds
from fastrl.runs.errors import TrainError, check_memory
from fastrl.runs.metrics import counted, percent
from fastrl.runs.settings import RunConfig
from fastrl.tasks import traffic
from fastrl.tasks.opponents import opposed
from fastrl.tasks.traffic.curriculum import Curriculum, CurriculumCallback, CurriculumConfig
from fastrl.tasks.traffic.scores import Scores, score, score_tables
from fastrl.tasks.traffic.settings import (
    PRESETS,
    EnvConfig,
    check_preset,
    choose_num_envs,
    environment_options,
    episode_steps,
    full_traffic,
    step_seconds,
    vehicles_of,
)
from fastrl.training.callbacks import Callback
from fastrl.training.episode_means import EpisodeMeans
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task
from fastrl.utils.config import ConfigError, Values
from fastrl.utils.tables import print_lines, show

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.play.film import Films
    from fastrl.sources.source import Source
    from fastrl.training.comparison import Comparison


class TrafficTask(Task):
    """See `fastrl.training.task.Task`."""

    name = traffic.NAME
    summary = traffic.SUMMARY
    film = True
    run = RunConfig(algo="ippo", total_timesteps=None, total_episodes=300, save_freq=100, eval_freq=50)
    env = EnvConfig()
    tables = {"curriculum": CurriculumConfig()}  # noqa: RUF012
    common_options = ("--vehicles", "--density")
    # All are compiled, and `auto` takes threads for them.
    rare_options = ("--collector", "--n-workers")
    presets = PRESETS
    many_agents = True
    shown = {  # noqa: RUF012
        "rollout/ep_success_rate": lambda value: f"success {percent(value)}",
        "rollout/ep_collision_rate": lambda value: f"collisions {percent(value)}",
        "curriculum/vehicles": lambda value: counted(int(value), "vehicle"),
    }

    def description(self, prog: str) -> str:
        return (
            "Trains vehicles that drive together, each an agent, such as\n"
            f"  {prog} fastrl/coop-merge-v0 --algo mappo --vehicles 6 --total-episodes 5000\n"
            f"  {prog} traffic --preset performance --vehicles 12 --total-episodes 800"
        )

    def settings_tables(self, algorithm: type[Algorithm[Any]]) -> dict[str, Any]:
        tables = super().settings_tables(algorithm)
        if issubclass(algorithm, DatasetAlgorithm):
            # Recorded episodes have the traffic that they have.
            del tables["curriculum"]
        return tables

    def make_settings(
        self, changes: Values | None = None, *, preset: str | None = None, **options: Any
    ) -> Any:
        settings = super().make_settings(changes, preset=preset, **options)
        if preset is not None:
            check_preset(preset, settings.env.id)
        return settings

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for(settings.env.id) or ()

    def resolve_defaults(self, settings: Any) -> Any:
        env: EnvConfig = settings.env
        num_envs = env.num_envs
        if num_envs is None and not hasattr(settings, "collect"):
            num_envs = 1
        elif num_envs is None:
            run: RunConfig = settings.run
            # An upper bound: every episode is counted at its greatest length.
            steps = run.total_timesteps or (run.total_episodes or 1) * episode_steps(env)
            num_envs = choose_num_envs(steps, self._num_steps(settings), is_live=settings.collect.is_live)
        resolved = dataclasses.replace(env, num_envs=num_envs, vehicles=vehicles_of(env))
        return dataclasses.replace(settings, env=resolved)

    def num_envs(self, settings: Any) -> int:
        return int(self.resolve_defaults(settings).env.num_envs)

    def _num_steps(self, settings: Any) -> int:
        """Steps of each environment between updates."""
        return int(self.algorithm_settings(settings).num_steps)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        if not issubclass(algorithm, DatasetAlgorithm):
            self._check_memory(settings)
            collect = settings.collect
            if collect.is_live and collect.period is None:
                collect = dataclasses.replace(collect, period=step_seconds(settings.env))
                settings = dataclasses.replace(settings, collect=collect)
        return super().make_source(settings, algorithm, console)

    def _check_memory(self, settings: Any) -> None:
        """Refuses sizes for which the system would kill the process.

        Raises:
            TrainError
        """
        env: EnvConfig = settings.env
        assert env.num_envs is not None, "resolve_defaults() comes first"
        steps, episodes = env.num_envs * self._num_steps(settings), settings.collect.episodes_per_update
        if episodes:
            steps = episodes * episode_steps(env)
        # Bytes of an agent's step: two observations of about 70 numbers, and some more.
        needed = steps * vehicles_of(env) * 600
        table = self.algorithm_table(settings.run.algo)
        check_memory(
            needed, "this takes at least", f"a smaller --num-envs, --vehicles or --{table}.num-steps"
        )

    def callbacks(self, settings: Any, source: Source, console: Console) -> list[Callback]:
        from fastrl.sources.team_rollouts import MultiAgentSource

        if not isinstance(source, MultiAgentSource):
            return []
        if settings.env.learners and settings.curriculum.mode != "off":
            raise ConfigError(
                "--curriculum.mode: expected off beside --learners, with fewer vehicles some are missing"
            )
        episodes = settings.run.total_episodes or max(settings.run.total_timesteps // source.episode_steps, 1)
        curriculum = Curriculum(settings.curriculum, full_traffic(settings.env), episodes)
        return [EpisodeMeans(), CurriculumCallback(curriculum, source, console)]

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Scores:
        from fastrl.play.team_policy import TeamPolicy

        make = functools.partial(self.make_team, settings)
        masks = self.has_action_masks(settings)
        act_in = functools.partial(TeamPolicy(state["policy"]).act_in, action_masks=masks)
        return score(make, act_in, episodes=options.episodes, seed=options.seed, advance=options.advance)

    def team_spec(self, settings: Any) -> TeamSpec:
        whole = CompiledTeamSpec(settings.env.id, environment_options(settings.env))
        return opposed(whole, self.name, settings.env)

    def play_steps(self, settings: Any) -> int:
        return super().play_steps(settings) or episode_steps(settings.env)

    def films(self, settings: Any) -> Films:
        """See `Task.films`; at real speed, on the seeds that ``fastrl eval`` uses too."""
        from fastrl.play.film import SCENE_FPS, Films
        from fastrl.play.team_policy import TeamPolicy
        from fastrl.tasks.traffic import render

        try:
            env = render.made(self.team_spec(settings))
        except render.RenderError as error:
            raise TrainError(str(error)) from None

        def play_drawn(state: Mapping[str, Any], episodes: int, seed: int) -> Iterator[Step]:
            masks, seeds = self.has_action_masks(settings), team_seeds(seed, episodes)
            act = TeamPolicy(state["policy"]).act_in(env, action_masks=masks)
            return render.moments(env, act, seeds)

        return Films(play_drawn, SCENE_FPS, env.close, env.view)

    def show_scores(self, comparison: Comparison, console: Console) -> None:
        scores: list[tuple[str, Any]] = [(each.name, each.scores) for each in comparison.scored]
        first = scores[0][1]
        title = (
            f"{counted(first.episodes, 'episode')} on the seeds of --seed {first.seed}, without exploration"
        )
        show(console, *score_tables(scores, title))
        print_lines(console, *comparison.lines())

    def scores_from_tree(self, tree: Mapping[str, Any]) -> Scores:
        return Scores(**tree)


TASK = TrafficTask()
