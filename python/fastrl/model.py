"""Models: an algorithm and an environment from Python, trained, scored, saved and used.

A model has the settings that the command line gives for the same environment, and the same trainer: with one seed both
end with the same parameters, to the bit.
"""

import contextlib
import inspect
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms import find
from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.protocol import CollectError
from fastrl.envs.spec import EnvSpec
from fastrl.model_arguments import (
    check_hooks,
    check_options,
    env_settings,
    import_path,
    is_callback,
    is_logger,
    is_only_one,
    recorded_env,
    task_on,
)
from fastrl.runs.checkpoint import Checkpoints, save_checkpoint
from fastrl.runs.directory import RunDirectory, new_directory
from fastrl.runs.errors import HookError
from fastrl.runs.logger import Logger
from fastrl.runs.row import Row
from fastrl.runs.settings import with_one_goal
from fastrl.training.callbacks import Callback
from fastrl.training.evaluation import settings_to_play
from fastrl.training.run import load_weights, name_of, train
from fastrl.training.stages import saved_settings, saved_stage, stage_of
from fastrl.training.summary import Summary
from fastrl.training.task import Task
from fastrl.training.trainer import Trainer
from fastrl.utils.config import (
    ConfigError,
    Values,
    build,
    by_keyword,
    check,
    load_toml,
    replaced,
    to_tree,
)
from fastrl.utils.other_names import no_attribute, other_setting
from fastrl.utils.output import is_watched, plain_console, quiet_console
from fastrl.utils.processes import require_main_guard
from fastrl.utils.ranks import Ranks

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from fastrl.play.distribution import ActionDistribution
    from fastrl.play.policy import Policy
    from fastrl.play.team_policy import TeamPolicy


class _ModelType(type):
    """The type of models: methods of other libraries' classes are answered by ours."""

    # Type checkers should still know which attributes there are.
    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            raise no_attribute(f"fastrl.{cls.__name__}", name)


class Model(metaclass=_ModelType):
    """An algorithm that learns in an environment::

        model = fastrl.PPO("CartPole-v1", num_envs=16, seed=0, learning_rate=2e-3)
        model.learn(100_000)
        mean, std = model.evaluate(episodes=20)
        model.save("cart.safetensors")
        action, state = model.predict(obs)

    ``fastrl.PPO`` is a model whose algorithm is PPO, and so on; ``fastrl.Model(env, algo=MyAlgorithm)`` takes one of
    the user's own.

    Args:
        env: the environment. An id of Gymnasium or of fastrl; the import path ``"my_module:make_env"`` of a function or
            class that makes environments; that function or class itself, also with arguments in a
            ``functools.partial``; a ``gymnasium.Env``, which this process steps (if it has a spec, further ones are
            built from it); a ``gymnasium.vector.VectorEnv``; or the name of a task, such as "cage2". Of an algorithm
            that learns from recorded demonstrations also a data set, which names its environment.
        algo: name of an algorithm, an import path ``"my_module:MyAlgorithm"``, or a class; None: the task's own.
        config: settings of a TOML file (its path), or nested dicts like ``{"ppo": {"gamma": 0.98}}``.
        preset: name of a preset; "auto": what the command line takes for the environment without ``--preset``.
        network: a ``torch.nn.Module`` of the user's own, a class or ``"my_module:Net"``, with arguments in
            ``network_options``.
        num_envs: environments that are stepped together.
        collector: how they are stepped, "auto", "sequential", "sync", "executor", "native", "ray" or "live".
        seed: fixes everything random.
        device: where networks learn, "auto", "cpu" or "cuda".
        demos: recorded demonstrations, for algorithms that learn from them: a data set or its folder.
        trust: the file of ``config`` may import code, connect to a Ray cluster and write files, as it says.
        settings: any other setting by its name (``learning_rate=1e-3``), its table and name (``run__eval_freq=100``),
            or a table of them (``collect={"n_workers": 4}``). A name that several tables have means the algorithm's.

    Attributes:
        task: what is known of its problem; its interface may change.

    Raises:
        UserError: one line about what was expected, what came and what to do: an unknown environment, algorithm or
            setting, spaces that the algorithm does not take, a network that does not fit.
        CollectError: the environment cannot be built; the error has the traceback of its own code.
    """

    _algo: str | None = None

    def __init__(
        self,
        env: Any,
        *others: Never,
        algo: str | type[Algorithm[Any]] | None = None,
        config: str | Path | Mapping[str, Any] | None = None,
        preset: str = "auto",
        network: Any = None,
        num_envs: int | None = None,
        collector: str | None = None,
        seed: int | None = None,
        device: Literal["auto", "cpu", "cuda"] | None = None,
        demos: Any = None,
        trust: bool = False,
        **settings: Any,
    ) -> None:
        require_main_guard()
        if others:
            raise ConfigError(
                f"expected the environment alone, then names and values, got {env!r} and {others[0]!r}; no policy is"
                " named: hidden=(64, 64) or network= say what the network is"
            )
        if algo is not None and self._algo is not None:
            raise ConfigError(
                f"algo: fastrl.{type(self).__name__} is {self._algo}: leave it out, or take fastrl.Model"
            )
        name = self._algo if algo is None else import_path("algo", algo)
        if isinstance(getattr(env, "meta", None), Mapping) and demos is None:
            # A data set in place of the environment that it was recorded in.
            demos, (env, settings) = env, recorded_env(env, settings)
        task = task_on(env, name)
        tree = config if isinstance(config, Mapping) else {} if config is None else load_toml(config)
        source = "config" if isinstance(config, Mapping) else str(config)
        trust = trust or isinstance(config, Mapping)
        chosen = None if preset == "auto" else preset
        if name is None:
            env_id = env if isinstance(env, str) else None
            name = task.choose_algorithm(chosen, tree, source, trust=trust, env_id=env_id)
        given: dict[str, Any] = {
            "num_envs": num_envs,
            "collector": collector,
            "seed": seed,
            "device": device,
            "network": None if network is None else import_path("network", network),
        }
        if isinstance(demos, str | Path):
            given["demos__path"] = Path(demos)
        elif demos is not None:
            task = task.with_demos(demos)
        keywords = {key: value for key, value in given.items() if value is not None} | settings
        if is_only_one(env) and num_envs not in (None, 1):
            raise ConfigError(
                f"num_envs: this {type(env).__name__} has no spec from which others could be built, expected 1, got"
                f" {num_envs}; give a function that makes environments"
            )
        config_type, table = task.settings_type(name), task.algorithm_table(name)
        changes = env_settings(task, env, config_type, by_keyword(config_type, table, keywords), tree)
        changes["run.algo"] = name
        settings_of_run = task.make_settings(changes, preset=chosen, tree=tree, source=source, trust=trust)
        check_options(env, settings_of_run)
        trainer = task.make_trainer(settings_of_run, console_of())
        if settings_of_run.run.init_from is not None:
            # The model acts as that policy before it has learned anything.
            load_weights(trainer, settings_of_run, task, quiet_console())
        self._start(task, settings_of_run, lambda: trainer)

    def _start(
        self,
        task: Task,
        settings: Any,
        make_trainer: Callable[[], Trainer],
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts as a checkpoint says, until the trainer is made; without one it is made at once."""
        self.task, self._settings = task, settings
        # The run directory that the newest checkpoint of the model lies in; None: it lies in none.
        self._directory: Path | None = None
        self._rows: list[dict[str, float]] = []
        self._summary: Summary | None = None
        self._make_trainer, self._saved = make_trainer, saved
        self._trainer = make_trainer() if saved is None else None
        self._policy: Policy | TeamPolicy | None = None
        # Parameters that `network` and `parameters` have given, and how often they had been changed when the policy
        # was made.
        self._given: list[nn.Parameter] = []
        self._versions: list[int] = []

    @property
    def trainer(self) -> Trainer:
        """The trainer, with an environment of its own; its interface may change.

        Raises:
            TrustError: its file would import code that `load` was not allowed.
            CheckpointError, UserError, CollectError: it cannot continue from its file.
        """
        if self._trainer is None:
            self._trainer, self._saved = self._make_trainer(), None
        return self._trainer

    @property
    def policy_checkpoint(self) -> Mapping[str, Any]:
        """The part of its checkpoint that inference needs; weights are not copies."""
        return self.trainer.policy_checkpoint() if self._saved is None else self._saved

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """All settings by table and name, as in the ``config.toml`` of a run directory."""
        return to_tree(self._settings)

    @property
    def stage_settings(self) -> Any:
        """The settings of the stage of the run that the policy is of."""
        stage = self.trainer.stage if self._saved is None else saved_stage(self._saved)
        return stage_of(self._settings, stage).settings

    @property
    def play_settings(self) -> Any:
        """`stage_settings`, where an environment is built of them.

        Raises:
            TrustError, UserError, CollectError: as of `trainer`.
        """
        settings = stage_of(self._settings, self.trainer.stage).settings
        return settings_to_play(settings, self.trainer.header)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Rows of metrics of all calls of `learn`, by name; ``pandas.DataFrame(model.metrics)`` makes a table."""
        return self._rows

    @property
    def steps(self) -> int:
        """Environment steps that it has learned from."""
        steps: int = self.trainer.steps if self._saved is None else self._saved["steps"]
        return steps

    @property
    def env_spec(self) -> EnvSpec:
        """Specification of one environment as `predict` knows it: ``model.env_spec.make()`` gives observations that
        `predict` takes, and takes its actions. Games that show images stack their newest frames, uint8 [h, w, stack],
        the newest last."""
        return self.task.play_spec(self.play_settings)

    @property
    def summary(self) -> Summary | None:
        """Summary of the last call of `learn`: scores and speed; None before the first."""
        return self._summary

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        total_episodes: int | None = None,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
        run_dir: str | Path | None = None,
        progress: bool | None = None,
        ranks: int = 1,
        **others: Never,
    ) -> Self:
        """Trains for so many environment steps, or episodes, more.

        Schedules that end with the run, as of the learning rate, restart over the steps of this call, as by default
        in Stable-Baselines3; ``learn()`` without a number of steps continues them. Optimisers, counters and what has a
        length of its own, as DQN's ``epsilon_steps``, continue in any case.
        Ctrl-C, or the button of a notebook that interrupts, ends it after the present update with a KeyboardInterrupt;
        the model can be used, and another call continues. A second Ctrl-C does not wait for experience or an
        evaluation, only for the update in progress. A third one ends it at once: what this call has learned is lost
        to the model unless its updates had ended, and a run directory has its last checkpoint.

        Args:
            total_timesteps: environment steps; the last update may go beyond.
            total_episodes: episodes, in place of steps. Without either, the goal of the settings.
            callbacks: see `fastrl.callbacks`.
            loggers: beside those that the settings name, see `fastrl.loggers`.
            run_dir: a run directory, new or empty, or that which the model was loaded from or trained in before. It
                gets settings, metrics, checkpoints and a summary, as from the command line; None: nothing is written.
            progress: show how far it is; None: on a terminal and in notebooks.
            ranks: processes that share out environments and gradients: this one, and others that are started for this
                call. With ``run__shards`` any number that divides it learns the same, to the bit. Callbacks and loggers
                of this call are called in this process alone; what callbacks change does not reach the others.

        Raises:
            UserError: one line: it cannot start. The model is as it was.
            LostRankError: another rank has died. The model is as it was; a run directory has its last checkpoint.
            CollectError: environments or workers fail again and again. What was learned until then is kept.
            HookError: a callback or logger has raised. What was learned until then is kept.
            FloatingPointError: the network, or what it was given, is not finite. The model is as it was.
        """
        for name in others:
            hint = other_setting(name, ()) or f"there are {', '.join(_LEARN)}"
            raise ConfigError(f"learn: {name}: unknown argument; {hint}")
        check_hooks("callbacks", callbacks, "of a subclass of fastrl.callbacks.Callback", is_callback)
        check_hooks("loggers", loggers, "with methods log() and close()", is_logger)
        settings = self._with_goal(total_timesteps, total_episodes)
        if ranks != 1:
            settings = self._for_ranks(ranks, settings)
        console = console_of(progress)
        with contextlib.ExitStack() as stack:
            directory = None if run_dir is None else stack.enter_context(self._open(Path(run_dir)))
            task, before = self.task, self.trainer
            if ranks > 1:
                from fastrl.training.rank_processes import started

                state = before.state_dict() if before.steps else None
                task = task.with_ranks(
                    stack.enter_context(started(ranks, task, settings, before.stage, state))
                )
            trainer = self._next_trainer(task, settings, callbacks, console)
            try:
                self._summary = train(
                    task, trainer, settings, directory, console, [_RowList(self._rows), *loggers]
                )
            except (CollectError, HookError):
                if ranks == 1:
                    self._keep(trainer, directory)
                raise
            except KeyboardInterrupt:
                # A third one, which does not wait: it may have come in the middle of an update.
                if ranks == 1 and trainer.has_ended:
                    self._keep(trainer, directory)
                raise
            if ranks > 1:
                from fastrl.training.rank_processes import without_ranks

                trainer = without_ranks(task, trainer, settings, console)
            self._settings = settings if ranks > 1 else self._settings
            self._keep(trainer, directory)
        if self._summary.signal is not None:
            # All is saved: the signal takes its usual effect now.
            signal.raise_signal(signal.Signals[self._summary.signal])
        return self

    def _with_goal(self, total_timesteps: int | None, total_episodes: int | None) -> Any:
        """The settings of the next training."""
        config_type = type(self._settings)
        given = {"total_timesteps": total_timesteps, "total_episodes": total_episodes}
        goals = by_keyword(config_type, "run", {key: goal for key, goal in given.items() if goal is not None})
        if not goals and self.trainer.is_done():
            goal, unit = self.trainer.goal
            raise ConfigError(
                f"learn: the goal of the settings, {goal:,} {unit}, is reached; say how many more: learn(100_000)"
            )
        done = {"run.total_timesteps": self.trainer.steps, "run.total_episodes": self.trainer.episodes}
        settings = self._settings
        if self.trainer.steps:
            # A run that has started has decided the settings that were left open.
            settings = build(config_type, check(config_type, saved_settings(self.trainer.header), "settings"))
        changes: Values = {key: goal + done[key] for key, goal in goals.items()}
        if goals and self.trainer.source.goal is None:
            changes["run.schedule_start"] = self.trainer.steps
        return replaced(settings, with_one_goal(changes))

    def _open(self, path: Path) -> RunDirectory:
        """The run directory: that of this model, or a new one.

        Raises:
            RunDirectoryError: another process trains there, or there is something else in it.
        """
        if path.resolve() != self._directory:
            return new_directory(path, name_of(self.trainer))
        directory = RunDirectory(path)
        directory.check_is_run()
        Checkpoints(directory.checkpoints).drop_after(self.trainer.steps)
        return directory

    def _for_ranks(self, ranks: int, settings: Any) -> Any:
        """The settings of a training of several ranks.

        Raises:
            UserError: it is none that they could do.
        """
        if not isinstance(ranks, int) or ranks < 1:
            raise ConfigError(f"learn: ranks should be a whole number from 1 on, got {ranks!r}")
        from fastrl.sources.transitions import TransitionSource

        source = getattr(self.trainer, "source", None)
        if isinstance(source, TransitionSource) and source.minibatches.replay is not None:
            raise ConfigError(
                f"learn: ranks={ranks} cannot continue with the replay in this process: leave it out"
            )
        settings = Ranks(0, ranks).settle(settings)
        # Mistakes show here, before any process starts.
        self.task.with_ranks(Ranks(0, ranks)).make_trainer(
            settings, quiet_console(), stage=self.trainer.stage
        )
        return settings

    def _next_trainer(
        self, task: Task, settings: Any, callbacks: Sequence[Callback], console: "Console"
    ) -> Trainer:
        """A trainer that continues from the state of this model."""
        before = self.trainer
        trainer = task.make_trainer(settings, console, stage=before.stage)
        trainer.callbacks.extend(callbacks)
        # Weights that were handed out may have been changed.
        if before.steps or self._given:
            trainer.source.take_over(before.source)
            trainer.load_state_dict(before.state_dict())
        elif settings.run.init_from is not None:
            load_weights(trainer, settings, task, console)
        return trainer

    def _keep(self, trainer: Trainer, directory: RunDirectory | None) -> None:
        self._trainer, self._policy, self._given = trainer, None, []
        self._directory = None if directory is None else directory.path.resolve()

    def evaluate(self, episodes: int = 20, *, seed: int = 0, **options: Any) -> tuple[float, float]:
        """Scores the policy without exploration, on episodes that it was not trained on, as ``fastrl eval`` does.

        Args:
            episodes: how many.
            seed: of the episodes.
            options: of the task's own protocol.

        Returns:
            Mean and standard deviation of the returns of episodes.

        Raises:
            UserError, CollectError: as of `learn`.
        """
        if episodes < 1:
            raise ConfigError(f"evaluate: episodes should be at least 1, got {episodes}")
        if foreign := [name for name in options if name not in self.task.evaluation_options]:
            hint = other_setting(foreign[0], ()) or f"does not go with a run of {self.task.name}"
            raise ConfigError(f"evaluate: {foreign[0]} {hint}")
        from fastrl.training.evaluation_options import EvaluationOptions

        scores = self.task.evaluate(
            self.trainer.policy_checkpoint(),
            self.task.resolve_defaults(self.play_settings),
            EvaluationOptions(episodes, seed, **options),
        )
        return scores.mean_return, scores.std_return

    def predict(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        *,
        action_masks: NDArray[np.bool_] | Mapping[Any, NDArray[np.bool_]] | None = None,
    ) -> tuple[Any, Any]:
        """The action for an observation, or the actions for a batch of them.

        Args:
            obs: of the observation space of `env_spec`; a batch is an array with a further first axis, or of Dict and
                Tuple spaces a dict or tuple of such arrays. Of a parallel environment of PettingZoo a dict by agent, as
                the action is then; of other environments of many agents the rows of all agents.
            state: of a policy with memory, what the call before returned; None where an episode starts. Of many agents
                [A, n] or [N, A, n], with zeros where an agent's episode starts.
            deterministic: the likeliest action; otherwise one is drawn, of values of actions (DQN) any allowed one
                with the run's last epsilon, else the best.
            action_masks: bool [N, num_actions], or [num_actions] for one observation: which may be chosen; None: all.
                Those of many agents are a dict by agent, or [A, num_actions] or [N, A, num_actions], as observations.

        Returns:
            The action, of the environment's action space (with a first axis N for a batch), and the state for the next
            call; None without memory.

        Raises:
            PredictError: they do not fit the policy.
        """
        return self.policy.predict(obs, state, deterministic, action_masks)

    def distribution(
        self,
        obs: Any,
        state: Any = None,
        *,
        action_masks: NDArray[np.bool_] | Mapping[Any, NDArray[np.bool_]] | None = None,
    ) -> "ActionDistribution | dict[str, ActionDistribution]":
        """The distribution of actions that ``predict(obs, state, deterministic=False)`` draws from, and values::

            found = model.distribution(obs)
            found.distribution.probs, found.distribution.entropy(), found.values

        Args:
            obs, state, action_masks: as of `predict`.

        Returns:
            ``distribution``, of ``torch.distributions``, with a first axis of N observations, 1 for one; ``values``
            float32 [N], None of behaviour cloning; ``action_values`` float32 [N, num_actions] of DQN, and of SAC and
            IQL with discrete actions; and the ``state`` for the next call. No tensor has a gradient. Of a parallel
            environment of PettingZoo a dict by agent; of other environments of many agents N counts rows of agents.
            See `fastrl.play.distribution.ActionDistribution`.

        Raises:
            PredictError: as of `predict`, actions are not drawn, or the algorithm has an actor of its own.
        """
        algorithm = find(self.stage_settings.run.algo)
        critic = None
        if hasattr(algorithm, "critic_values"):
            learner: Any = self.trainer.algorithm
            critic = learner.critic_values
        found = self.policy.distribution(obs, state, action_masks, critic=critic)
        if algorithm.learns_from == "dataset" and critic is None and not isinstance(found, dict):
            # Nothing has learned what observations are worth.
            found = found._replace(values=None)
        return found

    @property
    def network(self) -> "nn.Module":
        """The network that acts, a ``torch.nn.Module`` with the weights that are learned: policy and value function of
        PPO, AsyncPPO, IMPALA and BC (one of the user's own is its ``own.module``); values of actions of DQN; the policy
        of SAC, TD3 and IQL; of many agents a ``ModuleDict`` of policies by name. `predict` and `learn` follow changes
        of its weights. `learn` makes another module: ask for it again.

        Raises:
            UserError: the algorithm, one of the user's own, does not say what its networks are.
        """
        return self._networks()[0]

    def parameters(self) -> "Iterator[nn.Parameter]":
        """Parameters of all networks that learn: those of `network`, then those of separate critics.

        Raises:
            UserError: as of `network`.
        """
        return itertools.chain.from_iterable(network.parameters() for network in self._networks())

    def _networks(self) -> "Sequence[nn.Module]":
        networks = self.trainer.algorithm.networks()
        if not networks:
            raise ConfigError(
                f"{type(self.trainer.algorithm).__name__} does not say what its networks are: give it a method"
                " networks() that returns a list of modules, the one that acts first"
            )
        self._given = list(networks[0].parameters())
        return networks

    @property
    def policy(self) -> "Policy | TeamPolicy":
        """The policy as it is now, with which `predict` acts."""
        # Weights that were handed out may have been changed in place.
        versions = [parameter._version for parameter in self._given]
        if self._policy is None or versions != self._versions:
            self._policy, self._versions = self._make_policy(), versions
        return self._policy

    def _make_policy(self) -> "Policy | TeamPolicy":
        seed, settings = self._settings.run.seed, self.stage_settings
        state = self.policy_checkpoint
        if find(settings.run.algo).many_agents:
            return self._make_team_policy(state, seed)
        from fastrl.play.policy import saved_spaces

        spaces = saved_spaces(state) or self.task.play_spaces(self.play_settings)
        return self.task.make_policy(state, settings, spaces, seed=seed)

    def _make_team_policy(self, state: Mapping[str, Any], seed: int) -> "TeamPolicy":
        from fastrl.envs.adapters.parallel_copy import ParallelForm
        from fastrl.play.team_policy import TeamPolicy

        form = None
        if "obs_space" not in state or state.get("agents", ()) is None:
            # Of an older version, or of agents that no file can describe.
            form = self.trainer.source.form
        elif "agents" in state:
            form = ParallelForm.from_state(state["environment"], state["agents"])
        return TeamPolicy(state["policy"], form, seed)

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, from which `load` and ``fastrl train --resume`` continue.

        Args:
            path: of the file; its folders are made.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(path, self.trainer.state_dict() if self._saved is None else self._saved)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(f"fastrl.{type(self).__name__}", name)

    def __repr__(self) -> str:
        state = self.policy_checkpoint
        return f"<{state['algorithm']} on {state['environment']}, {self.steps:,} steps>"


# Names of the arguments of `Model.learn`.
_LEARN = list(inspect.signature(Model.learn).parameters)[1:-1]


class _RowList(Logger):
    """Keeps the numbers of rows in a list."""

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self._rows = rows

    def log(self, row: Row) -> None:
        self._rows.append(row.record())

    def close(self) -> None:
        pass


def console_of(progress: bool | None = None) -> "Console":
    """A console; a quiet one where no progress is shown."""
    return plain_console() if (is_watched() if progress is None else progress) else quiet_console()
