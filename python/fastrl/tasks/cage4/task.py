"""CAGE Challenge 4: a team of defenders, scored by the challenge's protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastrl.collectors.team_spec import CompiledTeamSpec, TeamSpec
from fastrl.envs.cage4.env import AGENTS
from fastrl.runs.settings import RunConfig
from fastrl.tasks import cage4
from fastrl.tasks.cage4.evaluate import Cage4Scoring, evaluate
from fastrl.tasks.cage4.scores import Evaluation
from fastrl.tasks.cage4.settings import PRESETS, EnvConfig
from fastrl.tasks.opponents import opposed
from fastrl.training.comparison import check_baseline
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task

if TYPE_CHECKING:
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
    common_options = ("--learners", "--opponents")
    rare_options = ("--collector", "--n-workers")
    many_agents = masks_by_default = True

    def description(self, prog: str) -> str:
        return (
            f"Trains five defenders of the network of CAGE Challenge 4, such as\n  {prog} cage4 --algo mappo"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for("fastrl/Cage4-v0") or ()

    def resolve_defaults(self, settings: Any) -> Any:
        """Policies of all agents are named; those of the agents that learn count."""
        table = self.algorithm_table(settings.run.algo)
        config = getattr(settings, table)
        if not settings.env.learners or len(config.policies) != len(AGENTS):
            return settings
        from fastrl.training.opposed_spec import named

        policies = tuple(config.policies[a] for a in named(settings.env.learners, AGENTS))
        return dataclasses.replace(settings, **{table: dataclasses.replace(config, policies=policies)})

    def team_spec(self, settings: Any) -> TeamSpec:
        return opposed(CompiledTeamSpec("fastrl/Cage4-v0", settings.env.options()), self.name, settings.env)

    def play_steps(self, settings: Any) -> int:
        return super().play_steps(settings) or settings.env.episode_length - 1

    def films(self, settings: Any) -> Films:
        from fastrl.play.film import team_films
        from fastrl.play.team_policy import TeamPolicy

        # The rewards are the team's, so that a film's return is the score.
        env = self.team_spec(settings).with_options({"rewards": "team"}).make_team(1)
        masks = self.has_action_masks(settings)
        return team_films(env, lambda state: TeamPolicy(state["policy"]).act_in(env, action_masks=masks))

    def agent_films(self, path: str, settings: Any) -> Films:
        """Makes films of a baseline, such as ``baseline:guard``. See `Task.agent_films`."""
        from fastrl.envs.cage4.baselines import baseline_act
        from fastrl.envs.cage4.env import Cage4VectorEnv
        from fastrl.play.film import team_films

        kind, _, name = path.partition(":")
        if kind != "baseline":
            return super().agent_films(path, settings)
        check_baseline(name, cage4.BASELINES)
        options = {**settings.env.options(), "rewards": "team", "view": "challenge", "messages": 0}
        env = Cage4VectorEnv(1, autoreset_mode="disabled", **options)
        return team_films(env, lambda state: baseline_act(name, env))

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Evaluation:
        """Scores a policy by the challenge's protocol."""
        from fastrl.play.team_policy import TeamPolicy

        policy = TeamPolicy(state["policy"], seed=options.seed)
        masks = self.has_action_masks(settings)

        def make_act(env: Any) -> Act:
            return policy.act_in(env, action_masks=masks, deterministic=options.mode == "deterministic")

        return evaluate(make_act, options, self.team_spec(settings))

    def scores_from_tree(self, tree: Mapping[str, Any]) -> Evaluation:
        return Evaluation.from_tree(tree)


TASK = Cage4Task()
