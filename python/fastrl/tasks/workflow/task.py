"""The search for the best workflow of a defender of CAGE Challenge 2."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastrl.algorithms import declaration
from fastrl.algorithms.ppo_settings import PPOConfig, PPODeclaration
from fastrl.algorithms.protocol import Algorithm
from fastrl.envs.cage2.workflow import parse_workflow
from fastrl.envs.spec import EnvSpec
from fastrl.runs.errors import TrainError
from fastrl.runs.metrics import brief, counted
from fastrl.runs.settings import RunConfig, settings_type
from fastrl.sources.collecting import CollectConfig
from fastrl.tasks import workflow
from fastrl.tasks.cage2.evaluate import RULESETS, protocol_steps
from fastrl.tasks.cage2.settings import EnvConfig as Cage2Config
from fastrl.tasks.cage2.settings import GameConfig
from fastrl.tasks.cage2.task import TASK as CAGE2
from fastrl.tasks.workflow.settings import PRESETS, EnvConfig, InnerConfig, SearchConfig
from fastrl.training.comparison import modes
from fastrl.training.device import make_algorithm
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.profiler import GpuMeter, Profile
from fastrl.training.task import Task, stopping
from fastrl.utils.config import ConfigError
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.play.policy import Policy
    from fastrl.tasks.workflow.scores import WorkflowScores
    from fastrl.tasks.workflow.trainer import SearchTrainer
    from fastrl.training.comparison import Comparison

# Names of the two policies in tables of scores.
BEST, PLAIN = "workflow", "plain PPO"

# Episodes of the final measurement of a policy's return and compliance.
_FINAL_EPISODES = 1000


class WorkflowTask(Task):
    """See `fastrl.training.task.Task`."""

    name = workflow.NAME
    summary = workflow.SUMMARY
    score_hint = "score its best policy by the challenge's protocol"
    evaluation_options = ("ruleset", "mode", "device")
    can_train_longer = False
    evaluates_on_the_way = False
    run = RunConfig(total_timesteps=None, total_episodes=100_000, row_seconds=0.0, eval_episodes=200)
    env = EnvConfig()
    common_options = ("--workflow", "--search")
    presets = PRESETS
    shown = {  # noqa: RUF012
        "plain_rollout/ep_rew_mean": lambda value: f"PPO without workflows: return {brief(value)}",
        "rollout/compliance": lambda value: f"compliance {brief(value)}",
        "search/best_return": lambda value: f"best {brief(value)}",
        "search/counting": lambda value: f"{counted(int(value), 'order')} count",
    }

    def takes(self, algorithm: type[Algorithm[Any]]) -> bool:
        # PPO itself: the search would leave out what a class of the user's own adds.
        return PPODeclaration in (algorithm, *algorithm.__bases__)

    def settings_type(self, algorithm: str) -> type[Any]:
        if not self.takes(declaration(algorithm)):
            raise TrainError(f"--algo {algorithm}: a search for workflows trains with {PPODeclaration.name}")
        tables = {"run": self.run, "env": self.env, "search": SearchConfig(), "inner": InnerConfig()}
        return settings_type(tables)

    def description(self, prog: str) -> str:
        return (
            "Searches for the order of priority by which a defender repairs best, then trains PPO without orders for as"
            f" many episodes, to compare with. One order alone:\n"
            f"  {prog} cage2-workflow --workflow op_server,enterprise,op_host,defender,user --no-plain-ppo"
        )

    def algorithm_table(self, algorithm: str) -> str:
        return "inner"

    def checkpoint_facts(self, settings: Any) -> dict[str, Any]:
        return {**CAGE2.checkpoint_facts(settings), "action_masks": settings.inner.action_masks}

    def make_trainer(self, settings: Any, console: Console | None = None, *, stage: int = 0) -> SearchTrainer:
        from fastrl.tasks.workflow.learner import WorkflowPPO
        from fastrl.tasks.workflow.source import ENV_ID, source_of
        from fastrl.tasks.workflow.trainer import SearchTrainer

        run: RunConfig = settings.run
        _check(run)
        if self.ranks.count > 1 or run.shards is not None:
            raise TrainError("a search for workflows trains in one process: leave out --ranks and run.shards")
        self.prepare(run)
        search: SearchConfig = settings.search
        if search.plain_ppo and console is not None:
            show(
                console,
                f"{run.total_episodes:,} episodes for workflows, then as many for PPO without workflows, to compare"
                " with (--no-plain-ppo: none)",
            )
        evaluation = self.evaluation(settings)
        inner: InnerConfig = settings.inner
        source = source_of(settings)
        total_timesteps = (run.total_episodes or 0) * source.episode_steps
        ppo = inner.ppo(source.episode_steps)

        problem = source.problem(total_timesteps, run.seed)
        make = functools.partial(WorkflowPPO, ppo, separate=inner.networks == "separate")
        algorithm, device = make_algorithm(run.device, problem, make)
        return SearchTrainer(
            settings,
            algorithm,
            source,
            make_plain=functools.partial(CAGE2.make_trainer, plain_settings(settings), console),
            callbacks=[*stopping(settings.run), *([] if evaluation is None else [evaluation])],
            profile=Profile(GpuMeter(device).use),
            header=self.header(settings, ENV_ID),
            device=device,
            open_films=functools.partial(self.films, settings),
        )

    def play_spec(self, settings: Any) -> EnvSpec:
        """Games without workflows: the order is part of the policy's network."""
        return EnvSpec("fastrl/Cage2-v0", settings.env.options())

    def play_steps(self, settings: Any) -> int:
        return 0

    def num_envs(self, settings: Any) -> int:
        return 1

    def make_policy(self, state: Mapping[str, Any], *others: Any, **options: Any) -> Policy:
        if "policy" not in state:
            raise ConfigError("the search has not tried a workflow yet: there is no policy")
        return super().make_policy(state, *others, **options)

    def check_state(self, state: Mapping[str, Any], settings: Any) -> None:
        from fastrl.algorithms.ppo import PPO

        inner, num_envs = settings.inner, len(state["source"]["numbers"])
        PPO.check_state(inner.ppo(settings.env.episode_length), state["learner"])
        if num_envs != inner.episodes_per_update:
            raise ValueError(
                f"{inner.episodes_per_update:,} environments are claimed, the state is of {num_envs:,}"
            )

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> WorkflowScores:
        """Scores the best workflow's policy, and PPO without workflows if the run has trained it: by the challenge's
        protocol, of both rulesets unless options have one, and in the run's own games.

        Raises:
            ConfigError: no workflow has been tried yet.
        """
        from fastrl.play.policy import Policy
        from fastrl.tasks.workflow.scores import WorkflowScores, score_by_protocol
        from fastrl.tasks.workflow.source import measure

        if "policy" not in state:
            raise ConfigError("the search has not tried a workflow yet: there is no policy to score")
        order, env = parse_workflow(state["workflow"]), settings.env
        contenders = {BEST: state}
        if state["plain"] is not None:
            contenders[PLAIN] = state["plain"]
        # Other seeds than those of training.
        outcomes = [
            measure(
                env,
                order,
                each["policy"],
                _FINAL_EPISODES,
                options.seed + 1,
                action_masks=settings.inner.action_masks,
            )
            for each in contenders.values()
        ]
        rulesets = RULESETS if options.ruleset in (None, "both") else [options.ruleset]
        share = len(RULESETS) * 2 // (len(rulesets) * len(contenders))
        evaluations = tuple(
            score_by_protocol(
                Policy(dict(each), device=options.device, seed=options.seed),
                order,
                name,
                ruleset=rules,
                episodes=options.episodes,
                seed=options.seed,
                num_threads=env.num_threads,
                deterministic=options.mode == "deterministic",
                advance=lambda steps: options.advance(steps * share),
            )
            for rules in rulesets
            for name, each in contenders.items()
        )
        return WorkflowScores(outcomes[0], outcomes[1] if len(outcomes) > 1 else None, evaluations)

    def evaluation_work(self, episodes: int) -> int:
        # Two policies on each ruleset; with fewer policies or rulesets each step counts several times.
        return protocol_steps(episodes) * len(RULESETS) * 2

    def evaluation_variants(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{**options, "mode": mode} for mode in modes(options, default="deterministic")]

    def show_scores(self, comparison: Comparison, console: Console) -> None:
        from fastrl.tasks.workflow.scores import WorkflowScores

        super().show_scores(comparison, console)
        # Tables beside the published scores.
        for scored in comparison.scored:
            assert isinstance(scored.scores, WorkflowScores)
            for each in scored.scores.evaluations:
                if each.evaluation.contender == BEST:
                    dataclasses.replace(each.evaluation, contender=scored.name).show(console)

    def scores_from_tree(self, tree: Mapping[str, Any]) -> WorkflowScores:
        from fastrl.tasks.workflow.scores import WorkflowScores

        return WorkflowScores.from_tree(tree)


def plain_settings(settings: Any) -> Any:
    """The settings of PPO without workflows: those of the task ``cage2``, on the same games for as many episodes."""
    run, env = settings.run, settings.env
    defaults: RunConfig = CAGE2.run
    return CAGE2.settings_type(PPODeclaration.name)(
        run=dataclasses.replace(
            defaults,
            seed=run.seed,
            device=run.device,
            total_timesteps=run.total_episodes * env.episode_length,
            torch_threads=run.torch_threads,
            row_seconds=run.row_seconds,
            eval_episodes=0,
        ),
        env=Cage2Config(
            # Rollouts of whole episodes, no more than the budget has.
            num_envs=min(Cage2Config().num_envs, run.total_episodes),
            **{field.name: getattr(env, field.name) for field in dataclasses.fields(GameConfig)},
        ),
        collect=CollectConfig(n_workers=env.n_workers),
        ppo=PPOConfig(
            num_steps=env.episode_length,
            action_masks=settings.inner.action_masks,
            update_backend=settings.inner.update_backend,
        ),
    )


def _check(run: RunConfig) -> None:
    """Refuses settings of runs that a search does not have.

    Raises:
        TrainError
    """
    if run.total_episodes is None:
        raise TrainError("--total-timesteps: the length of a search is in episodes, give --total-episodes")
    if run.total_episodes < 2:
        raise TrainError(f"--total-episodes should be at least 2, got {run.total_episodes}")
    if run.init_from is not None:
        raise TrainError("--init: a search starts with new networks")
    if run.stages:
        raise TrainError("run.stages: a search has none")
    if run.eval_freq or run.eval_points:
        raise TrainError("--eval-freq: a search measures each policy that it trains, leave it out")


TASK = WorkflowTask()
