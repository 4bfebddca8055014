"""CAGE Challenge 4: a team of defenders, scored by the challenge's protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.team_spec import CompiledTeamSpec
from fastrl.runs.settings import RunConfig
from fastrl.tasks import cage4
from fastrl.tasks.cage4.evaluate import Cage4Scoring, evaluate
from fastrl.tasks.cage4.scores import Evaluation
from fastrl.tasks.cage4.settings import PRESETS, EnvConfig
from fastrl.training.comparison import check_baseline
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task

if TYPE_CHECKING:
    from fastrl.envs.cage4.env import Cage4VectorEnv
    from fastrl.envs.record_episodes import Act
    from fastrl.play.film import Films


class Cage4Task(Cage4Scoring, Task):
    """See `fastrl.training.task.Task`."""

    summary = cage4.SUMMARY
    film = True
    score_hint = "score it by the challenge's protocol"
    run = RunConfig(algo="ippo", total_timesteps=4_000_000, eval_episodes=100)
    env = EnvConfig()
    presets = PRESETS
    rare_options = ("--collector", "--n-workers")
    many_agents = True

    def description(self, prog: str) -> str:
        return (
            f"Trains five defenders of the network of CAGE Challenge 4, such as\n  {prog} cage4 --algo mappo"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for("fastrl/Cage4-v0") or ()

    def algorithm_defaults(self, algorithm: type[Algorithm[Any]]) -> Any:
        config = super().algorithm_defaults(algorithm)
        return dataclasses.replace(config, action_masks=True) if hasattr(config, "action_masks") else config

    def team_spec(self, settings: Any) -> CompiledTeamSpec:
        return CompiledTeamSpec("fastrl/Cage4-v0", settings.env.options())

    def play_steps(self, settings: Any) -> int:
        return super().play_steps(settings) or settings.env.episode_length - 1

    def team_env(self, settings: Any) -> Cage4VectorEnv:
        from fastrl.envs.cage4.env import Cage4VectorEnv

        return Cage4VectorEnv(1, **settings.env.options())

    def films(self, settings: Any) -> Films:
        from fastrl.play.film import team_films
        from fastrl.play.team_policy import TeamPolicy

        env, masks = self._film_env(settings), self.has_action_masks(settings)
        return team_films(env, lambda state: TeamPolicy(state["policy"]).act_in(env, action_masks=masks))

    def agent_films(self, path: str, settings: Any) -> Films:
        """Makes films of a baseline, such as ``baseline:guard``. See `Task.agent_films`."""
        from fastrl.envs.cage4.baselines import baseline_act
        from fastrl.play.film import team_films

        kind, _, name = path.partition(":")
        if kind != "baseline":
            return super().agent_films(path, settings)
        check_baseline(name, cage4.BASELINES)
        env = self._film_env(settings, view="challenge", messages=0)
        return team_films(env, lambda state: baseline_act(name, env))

    def _film_env(self, settings: Any, **changes: Any) -> Cage4VectorEnv:
        """A game whose rewards are the team's, so that a film's return is the score."""
        from fastrl.envs.cage4.env import Cage4VectorEnv

        options = {**settings.env.options(), "rewards": "team", **changes}
        return Cage4VectorEnv(1, autoreset_mode="disabled", **options)

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Evaluation:
        """Scores a policy by the challenge's protocol."""
        from fastrl.play.team_policy import TeamPolicy

        policy = TeamPolicy(state["policy"], seed=options.seed)
        masks = self.has_action_masks(settings)

        def make_act(env: Cage4VectorEnv) -> Act:
            return policy.act_in(env, action_masks=masks, deterministic=options.mode == "deterministic")

        return evaluate(make_act, options, **settings.env.options())

    def scores_from_tree(self, tree: Mapping[str, Any]) -> Evaluation:
        return Evaluation.from_tree(tree)


TASK = Cage4Task()
