"""The protocol of a task: a problem's settings, environments and scores, without a training loop."""

from __future__ import annotations

import copy
import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from fastrl._native._rust import __version__
from fastrl.algorithms import check_takes, find
from fastrl.algorithms.protocol import Algorithm, DatasetAlgorithm, OffPolicyAlgorithm, Problem
from fastrl.collectors.resources import use_cores
from fastrl.collectors.threads import choose_threads
from fastrl.envs.rows import has_state, space_state
from fastrl.envs.spec import EnvSpec
from fastrl.runs.errors import TrainError
from fastrl.runs.logger import Shown
from fastrl.runs.settings import RunConfig, Settings
from fastrl.training.callbacks import Callback, EarlyStopping
from fastrl.training.device import make_algorithm, use_threads
from fastrl.training.evaluation import Evaluation, Returns, Scores, settings_to_play
from fastrl.training.profiler import GpuMeter, Profile
from fastrl.training.stages import Stage, stage_of, stages_of
from fastrl.training.task_settings import TaskSettings
from fastrl.training.trainer import Trainer
from fastrl.utils.config import ConfigError, build, check, to_tree
from fastrl.utils.output import quiet_console
from fastrl.utils.ranks import ALONE, Ranks
from fastrl.utils.seeding import evaluation_seed
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from fastrl.algorithms.intrinsic import RND
    from fastrl.collectors.team_spec import TeamSpec
    from fastrl.envs.multi_agent import MultiAgentVectorEnv
    from fastrl.play.episodes import EnvEpisodes, VectorEpisodes
    from fastrl.play.film import Films
    from fastrl.play.policy import Policy, Spaces
    from fastrl.sources.demo_arrays import Demos
    from fastrl.sources.source import Source
    from fastrl.training.comparison import Comparison
    from fastrl.training.evaluation_options import Advance, EvaluationOptions

NO_AGENTS = "an agent of your own plays CAGE 2, or environments of one agent"


class Task(TaskSettings, ABC):
    """A problem: its settings and presets (`TaskSettings`), how its environments are made, how a policy is scored.

    A new task is a folder of ``fastrl.tasks`` with a module ``task`` that has one, ``TASK``; there is no list to
    extend. Anywhere else, ``fastrl train my_task.task:TASK`` finds it.

    Class attributes:
        summary: one line for help texts.
        score_hint: what ``fastrl eval`` does with a run of it, after "To"; empty: it scores no such run.
        film: ``fastrl render`` can show a run of it.
        can_train_longer: a complete run can be resumed with a further goal.
        common_options: names of options of its own that ``--help`` shows beside those of all tasks.
        rare_options: names of options of all tasks that ``--help`` leaves out.
        evaluation_options: further options of ``fastrl eval`` that `evaluate` takes.
        has_protocol: policies are evaluated in episodes of a protocol, not in the environment of their run.
        shown: texts that a console shows of metrics that only its runs have.
        evaluates_on_the_way: its runs may be evaluated before their end.

    Attributes:
        spec: of environments, set by `on`; None: the settings name them.
        demos: data set to learn from, set by `with_demos`; None: the settings name its folder.
        ranks: that train together, set by `with_ranks`.
        needs_demos: trainings have the data set that they learn from; False, set by `to_act`: they may lack it.
    """

    summary: ClassVar[str]
    score_hint: ClassVar[str] = "score it on new episodes"
    film: ClassVar[bool] = False
    can_train_longer: ClassVar[bool] = True
    common_options: ClassVar[Sequence[str]] = ()
    rare_options: ClassVar[Sequence[str]] = ()
    evaluation_options: ClassVar[Sequence[str]] = ()
    has_protocol: ClassVar[bool] = False
    shown: ClassVar[Shown] = {}
    evaluates_on_the_way: ClassVar[bool] = True

    ranks: Ranks = ALONE
    spec: EnvSpec | None = None
    demos: Demos | None = None
    needs_demos: bool = True

    def description(self, prog: str) -> str:
        """Text for the help of ``fastrl train``, perhaps with an example."""
        return f"Trains {self.summary}."

    def on(self, spec: EnvSpec) -> Self:
        """A copy of the task with environments of a spec that no setting can name, such as a function of a notebook."""
        return self._with(spec=spec)

    def with_demos(self, demos: Demos) -> Self:
        """A copy of the task with a data set that no setting can name, because it is in memory."""
        return self._with(demos=demos)

    def with_ranks(self, ranks: Ranks) -> Self:
        """A copy of the task for one of several ranks."""
        return self._with(ranks=ranks)

    def to_act(self) -> Self:
        """A copy of the task for policies that act and do not learn: no data set has to be there."""
        return self._with(needs_demos=False)

    def _with(self, **attributes: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def env_spec(self, settings: Settings) -> EnvSpec:
        """Specification of one environment, for tasks with the `make_source` of this class. Those that train on any
        environment give `spec` if there is one.

        Raises:
            TrainError: its environments are no Gymnasium environments.
        """
        raise TrainError(f"{self.name} has environments of several agents, of which there is no EnvSpec")

    def play_spec(self, settings: Settings) -> EnvSpec:
        """Specification of one environment to use a policy in: it gives observations as `Policy.predict` takes them."""
        return self.env_spec(settings)

    def frames_first(self, settings: Any) -> bool:
        """True if the algorithm learns from stacked frames [k, h, w], which `play_spec` gives as [h, w, k]."""
        return False

    def play_spaces(self, settings: Any) -> Spaces:
        """The observation space and the action space of `play_spec`, of which an environment is built.

        Raises:
            TrainError, CollectError: it cannot be built.
        """
        from fastrl.play.episodes import build_any

        spec = self.play_spec(settings)
        env = build_any(spec, self.num_envs(settings))
        spec.close(env)
        if isinstance(env, VectorEnv):
            return env.single_observation_space, env.single_action_space
        return env.observation_space, env.action_space

    def make_policy(
        self,
        state: Mapping[str, Any],
        settings: Any,
        spaces: Spaces,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> Policy:
        """Policy of one agent.

        Args:
            state: of a checkpoint; its part of `Trainer.policy_checkpoint` is enough.
            settings: of its run.
            spaces: observation space and action space of an environment as of `play_spec`.
            device: where PyTorch acts; a compiled actor acts on the CPU.
            seed: of draws.

        Raises:
            CheckpointError: the policy is for other spaces.
        """
        from fastrl.play.policy import Policy
        from fastrl.runs.checkpoint import CheckpointError

        try:
            return Policy(
                state,
                spaces=spaces,
                make_actor=find(settings.run.algo).make_actor,
                frames_first=self.frames_first(settings),
                device=device,
                seed=seed,
            )
        except ValueError as error:
            raise CheckpointError(f"{self.play_spec(settings).id}: {error}") from None

    def has_action_masks(self, settings: Any) -> bool:
        """True if the policy is given the environment's action masks."""
        return bool(getattr(self.algorithm_settings(settings), "action_masks", False))

    def played(
        self,
        state: Mapping[str, Any],
        settings: Any,
        spec: EnvSpec,
        env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
        *,
        device: str = "cpu",
    ) -> EnvEpisodes | VectorEpisodes:
        """Episodes of a policy without exploration; arguments and errors are those of `make_policy`.

        Args:
            spec: of environments in rows.
            env: that it has made. A vector environment only has the spaces: the episodes make their own.
        """
        from fastrl.play.episodes import EnvEpisodes, VectorEpisodes, spaces_of

        policy = self.make_policy(state, settings, spaces_of(env), device=device)
        acting = {"squash": policy.squash, "action_masks": self.has_action_masks(settings)}
        if isinstance(env, VectorEnv):
            return VectorEpisodes(spec, env, policy.actor, **acting)
        return EnvEpisodes(env, spec.id, policy.actor, **acting)

    def films(self, settings: Any) -> Films:
        """Makes films of policies of a run with these settings.

        Raises:
            TrainError, CollectError: the environment cannot be built, or does not draw itself.
        """
        from fastrl.play.film import env_films

        def played(state: Mapping[str, Any], spec: EnvSpec, env: Any) -> EnvEpisodes | VectorEpisodes:
            return self.played(state, settings, spec, env)

        spec = self.play_spec(settings).as_rows()
        return env_films(spec, self.num_envs(settings), self.play_steps(settings), played)

    def agent_films(self, path: str, settings: Any) -> Films:
        """Makes films of an agent of the user's own, which look at no checkpoint.

        Args:
            path: import path, see `fastrl.play.own_agent.OwnAgent`.
            settings: of runs in the same environment.

        Raises:
            TrainError, CollectError: as of `films`.
            ConfigError: there is no such agent, or the task has none.
        """
        raise ConfigError(f"{path}: {NO_AGENTS}")

    def team_env(self, settings: Any) -> Any:
        """One environment of several agents: a parallel one of PettingZoo, or a `MultiAgentVectorEnv` of one.

        Raises:
            TrainError, CollectError: it cannot be built.
        """
        return self.make_team(settings, 1)

    def team_spec(self, settings: Any) -> TeamSpec | None:
        """Specification of the environments of many agents; None: they are of one."""
        return None

    def make_team(
        self,
        settings: Any,
        num_envs: int,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> MultiAgentVectorEnv:
        """Environments of `team_spec`, for evaluation.

        Args:
            options: further ones of ``TeamSpec.make_team``.

        Raises:
            TrainError, CollectError: they cannot be built.
        """
        spec, masks = self.team_spec(settings), self.has_action_masks(settings)
        assert spec is not None, "it has many agents"
        try:
            return spec.make_team(num_envs, action_masks=masks, autoreset_mode=autoreset_mode, **options)
        except (ValueError, TypeError, OverflowError) as error:
            raise TrainError(str(error)) from None

    def play_steps(self, settings: Any) -> int:
        """Steps after which an episode of a film or an evaluation is cut off; 0: the environment's own limit."""
        collect = getattr(settings, "collect", None)
        return 0 if collect is None else int(collect.max_episode_steps)

    def num_envs(self, settings: Settings) -> int:
        """Environments that are stepped."""
        return int(settings.env.num_envs)

    def episode_info(self, settings: Settings) -> Sequence[str]:
        """Keys of the environment's info that callbacks want to know of each episode."""
        return ()

    def make_trainer(self, settings: Any, console: Console | None = None, *, stage: int = 0) -> Trainer:
        """The trainer of a run.

        Args:
            settings: of the type that `settings_type` gives.
            console: gets lines about collectors, curricula and failures; None: nothing does.
            stage: of the run, see `fastrl.training.stages`. The first one checks whether all others can follow.

        Raises:
            TrainError, ConfigError, CollectError: settings that do not go together, or an environment that cannot be
                built.
        """
        whole, present = settings, stage_of(settings, stage)
        trainer = self._stage_trainer(whole, present, console or quiet_console())
        if whole.run.stages and not stage:
            before = trainer
            for each in stages_of(whole)[1:]:
                after = self._stage_trainer(whole, each, quiet_console())
                try:
                    self.check_weights(before.header, each.settings)
                    after.algorithm.start_stage(before.algorithm.state_dict())
                except ValueError as error:
                    raise TrainError(f"run.stages: stage {each.index + 1}: {error}") from None
                before = after
        return trainer

    def _stage_trainer(self, whole: Any, stage: Stage, console: Console) -> Trainer:
        """The trainer of a stage of a run.

        Args:
            whole: the settings of the run.
        """
        settings = self.resolve_defaults(stage.settings)
        run: RunConfig = settings.run
        if texts := whole.run.stages:
            text = texts[stage.index] if stage.until else f"to the end, step {run.total_timesteps:,}"
            line = f"stage {stage.index + 1} of {len(texts) + 1} from step {stage.start:,}: {text}"
            print_lines(console, line)
        self.prepare(run)
        algorithm_type = find(run.algo)
        seeded = dataclasses.replace(settings, run=dataclasses.replace(run, seed=stage.seed))
        ranks = self.ranks.with_shards(run.shards)
        if ranks.shards and not algorithm_type.takes_shards:
            raise TrainError(f"--algo {run.algo} learns from whole batches, without --ranks and run.shards")
        source = self.make_source(seeded, algorithm_type, console)
        source.ranks = ranks
        if ranks.count > 1:
            source.check_ranks()
        total_timesteps = run.total_timesteps or (run.total_episodes or 1) * source.episode_steps
        config = self.algorithm_settings(settings)

        problem = dataclasses.replace(
            source.problem(stage.until or total_timesteps, run.seed),
            first_timestep=stage.start,
            schedule_start=run.schedule_start,
            ranks=ranks,
        )
        try:
            check_takes(algorithm_type, problem, source.env_actions)
            make = functools.partial(algorithm_type, config)
            algorithm, device = make_algorithm(run.device, problem, make)
            intrinsic = intrinsic_of(settings, dataclasses.replace(problem, device=device))
            check_own_modules(algorithm.networks(), source)
        except ValueError as error:
            raise TrainError(f"--algo {run.algo} on {source.env_id}: {error}") from None
        header = self.header(settings, source.env_id)
        callbacks = [*self.callbacks(settings, source, console), *stopping(run)]
        if source.opponents:
            from fastrl.training.opponents import OpponentsCallback

            policy = {**header, "policy": algorithm.policy_state()}
            callbacks.append(OpponentsCallback(source, settings, policy, self.films))
        if issubclass(algorithm_type, DatasetAlgorithm):
            from fastrl.sources.dataset import DatasetSource
            from fastrl.training.validation_loss import ValidationLoss

            assert isinstance(source, DatasetSource)
            callbacks.append(ValidationLoss(source))
        if (evaluation := self.evaluation(settings)) is not None:
            callbacks.append(evaluation)
        action_space = problem.action_space if source.env_actions is None else source.env_actions
        header["action_space"] = space_state(action_space)
        played = problem.obs_space
        if self.frames_first(settings):
            from fastrl.networks.stacked_frames import stacked_last

            header["frames_first"], played = True, stacked_last(played)
        if has_state(played):
            header["obs_space"] = space_state(played)
        if source.form is not None:
            header["agents"] = source.form.state()
        next_stage: Callable[[], Trainer] | None = None
        if whole.run.stages:
            header["stages"] = {"index": stage.index, "config": to_tree(self.resolve_defaults(whole))}
        if stage.until is not None:
            following = stage_of(whole, stage.index + 1)
            next_stage = functools.partial(self._stage_trainer, whole, following, console)
        return Trainer(
            run,
            algorithm,
            source,
            callbacks=callbacks,
            profile=Profile(GpuMeter(device).use),
            header=header,
            ranks=ranks,
            device=device,
            open_films=functools.partial(self.films, settings),
            intrinsic=intrinsic,
            stage=stage.index,
            stage_end=stage.until,
            next_stage=next_stage,
        )

    def prepare(self, run: RunConfig) -> None:
        """Chooses threads, and sets up PyTorch."""
        use_cores(run.threads)
        choose_threads(run.threads)
        use_threads(run.torch_threads, self.ranks.local_count)

    def header(self, settings: Any, env_id: str) -> dict[str, Any]:
        """Entries that checkpoints have beside the trainer's state."""
        return {
            "kind": self.name,
            "algorithm": find(settings.run.algo).name,
            "environment": env_id,
            "version": __version__,
            "config": to_tree(settings),
            **self.checkpoint_facts(settings),
        }

    def evaluation(self, settings: Any) -> Evaluation | None:
        """The callback that evaluates; None without evaluation."""
        run: RunConfig = settings.run
        if not run.eval_episodes:
            return None
        evaluate = functools.partial(self._evaluate_state, settings)
        work = self.evaluation_work(run.eval_episodes)
        return Evaluation(evaluate, self.scores_from_tree, work, run.eval_freq, run.eval_points)

    def _evaluate_state(
        self, settings: Any, state: Mapping[str, Any], advance: Advance, *, on_the_way: bool
    ) -> Scores:
        if "stages" in state:
            # The policy is of a stage of the run.
            config_type = type(settings)
            settings = build(config_type, check(config_type, state["config"], "the stage"))
        settings = settings_to_play(settings, state)
        run: RunConfig = settings.run
        # Compiled actors are as good on any machine; PyTorch acts on a GPU where that is asked for.
        device = "cuda" if run.device == "cuda" else "cpu"
        seed = evaluation_seed(run.seed) if on_the_way else run.seed
        from fastrl.training.evaluation_options import EvaluationOptions

        options = EvaluationOptions(run.eval_episodes, seed, advance, device=device)
        return self.evaluate(state, settings, options)

    def check_state(self, state: Mapping[str, Any], settings: Any) -> None:
        """Compares a checkpoint with settings, before memory is taken for what a file claims.

        Raises:
            ValueError, KeyError: they do not belong together.
        """
        algorithm = find(settings.run.algo)
        if "collector" in state["source"]:
            from fastrl.sources.rollouts import check_num_envs

            check_num_envs(state["source"], self.num_envs(settings))
        algorithm.check_state(self.algorithm_settings(settings), state["learner"])

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        """Makes the source of experience.

        Raises:
            TrainError, CollectError: settings that do not suit, or an environment that cannot be built.
        """
        team, num_envs = self.team_spec(settings), self.num_envs(settings)
        options: dict[str, Any] = {"seed": settings.run.seed, "console": console}
        of_demos: dict[str, Any] = {"demos": self.demos, "needs_demos": self.needs_demos}
        if issubclass(algorithm, DatasetAlgorithm):
            from fastrl.sources.dataset import DatasetSource
            from fastrl.sources.team_rollouts import MultiAgentDatasetSource

            way = algorithm.dataset_spec(self.algorithm_settings(settings))
            if team is not None:
                return MultiAgentDatasetSource(team, num_envs, settings.demos, way, **of_demos, **options)
            spec = self.env_spec(settings)
            return DatasetSource(spec, num_envs, settings.demos, way, **of_demos, **options)
        if team is not None:
            from fastrl.sources.team_rollouts import MultiAgentSource

            options["episode_steps"] = self.play_steps(settings)
            return MultiAgentSource(team, num_envs, settings.collect, **options)
        spec, options["episode_info"] = self.env_spec(settings), self.episode_info(settings)
        if issubclass(algorithm, OffPolicyAlgorithm):
            from fastrl.sources.transitions import TransitionSource

            options |= {"offline": settings.demos, **of_demos}
            return TransitionSource(spec, num_envs, settings.collect, settings.replay, **options)
        from fastrl.sources.rollouts import RolloutSource

        return RolloutSource(spec, num_envs, settings.collect, **options)

    def callbacks(self, settings: Any, source: Source, console: Console) -> list[Callback]:
        """Makes the callbacks, apart from evaluation."""
        return []

    def checkpoint_facts(self, settings: Any) -> dict[str, Any]:
        """Entries of checkpoints about the environment besides its settings, such as the actions that a policy uses."""
        return {}

    def check_weights(self, state: Mapping[str, Any], settings: Any) -> None:
        """Compares a checkpoint with the settings of a new run that starts with its weights.

        Raises:
            ValueError: the weights mean something else in the new run, though their sizes may be the same.
        """

    @abstractmethod
    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Scores:
        """Scores a policy without exploration, on episodes that it was not trained on.

        Args:
            state: of a checkpoint; its part of `Trainer.policy_checkpoint` is enough.
            settings: of its run.
            options: of the episodes; of those after ``advance`` only the task's ``evaluation_options`` count.

        Raises:
            TrainError, CollectError: the environment cannot be built or stepped.
        """

    def evaluation_variants(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The options of the evaluations that ``fastrl eval`` makes of one run, usually one."""
        return [dict(options)]

    def evaluate_baseline(self, name: str, options: EvaluationOptions) -> Scores:
        """Scores a scripted policy, as `evaluate` scores a trained one.

        Raises:
            ConfigError: there is no such baseline.
        """
        raise ConfigError(f"{self.name} has no baselines, got {name!r}")

    def evaluate_agent(self, path: str, settings: Any, options: EvaluationOptions) -> Scores:
        """Scores an agent of the user's own, as `evaluate` scores a trained policy.

        Args:
            path: import path, see `fastrl.play.own_agent.OwnAgent`.
            settings: of runs in the same environment.

        Raises:
            ConfigError: there is no such agent, or the task scores none.
            HookError: the agent has raised.
        """
        raise ConfigError(f"{path}: {NO_AGENTS}")

    def scores_tree(self, name: str, scores: Any) -> dict[str, Any]:
        """Scores of a run, with its name, for JSON."""
        return {"run": name, **scores.to_tree()}

    def show_scores(self, comparison: Comparison, console: Console) -> None:
        """Prints scores of several runs, with their names."""
        for each in comparison.scored:
            print_lines(console, f"{each.label}:")
            each.scores.show(console)
        print_lines(console, *comparison.lines())

    def evaluation_work(self, episodes: int) -> int:
        """Total of what `evaluate` advances by."""
        return episodes

    def scores_from_tree(self, tree: Mapping[str, Any]) -> Scores:
        """The inverse of ``to_tree`` of the task's scores."""
        return Returns.from_tree(tree)


def stopping(run: RunConfig) -> list[Callback]:
    """The callback of ``run.stop_at_return``, if it is set."""
    return [] if run.stop_at_return is None else [EarlyStopping(run.stop_at_return)]


def intrinsic_of(settings: Any, problem: Problem) -> RND | None:
    """The intrinsic rewards that settings ask for; None: there are none.

    Raises:
        ValueError: the run has stages, whose observations may differ.
    """
    config = getattr(settings, "intrinsic", None)
    if config is None or config.kind == "none":
        return None
    if problem.first_timestep or settings.run.stages:
        raise ValueError("--intrinsic rnd is for runs without stages: leave out run.stages or intrinsic")
    from fastrl.algorithms.intrinsic import RND

    return RND(config, problem)


def check_own_modules(networks: Sequence[nn.Module], source: Source) -> None:
    """Refuses modules of the user's own that give NaN or infinity for observations of the environment.

    Raises:
        ValueError, TrainError, CollectError
    """
    from fastrl.networks.own_network import OwnModule

    own = [module for network in networks for module in network.modules() if isinstance(module, OwnModule)]
    if own and len(rows := source.sampled_rows()):
        for module in own:
            module.check_finite(rows)
