"""Runs: a training with its run directory, checkpoints, loggers and summary, from the start or resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.collectors import threads
from fastrl.networks.own_network import check_own_network, own_path
from fastrl.runs.checkpoint import (
    BEST,
    SNAPSHOTS,
    CheckpointError,
    Checkpoints,
    check_kinds,
    find_checkpoint,
    load_newest,
    unusable,
    using_checkpoint,
)
from fastrl.runs.directory import RunDirectory, is_run, new_directory, run_name
from fastrl.runs.errors import HookError, TrainError
from fastrl.runs.facts import State
from fastrl.runs.logger import LoggedRun, Logger
from fastrl.runs.loggers import EpisodesLogger, JsonlLogger, Loggers, start_loggers
from fastrl.runs.settings import with_one_goal
from fastrl.sources.collecting import options_of_others
from fastrl.training.evaluation import Evaluation, Scores, settings_to_play
from fastrl.training.profiler import with_other
from fastrl.training.stages import saved_settings, saved_stage
from fastrl.training.summary import Summary, peak_gpu_memory_mib, peak_memory_mib
from fastrl.training.task import Task
from fastrl.training.trainer import Trainer
from fastrl.utils.config import ConfigError, Values, build, check, resumable_keys, to_toml, values_of
from fastrl.utils.env_options import parse_options
from fastrl.utils.errors import UserError
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.interrupts import StopSignals
from fastrl.utils.tables import print_lines
from fastrl.utils.trust import refuse_reach, trusted_import

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.training.evaluation_options import EvaluationOptions
    from fastrl.training.facts_file import FactsFile


def start_run(
    task: Task,
    settings: Any,
    path: Path | None,
    console: Console,
    *,
    comments: Mapping[str, str] | None = None,
) -> Summary:
    """Trains from the beginning, in a new run directory.

    Args:
        path: the directory; None: a new one under ``runs``.
        comments: on settings, by dotted key, for ``config.toml``.

    Raises:
        TrainError, RunDirectoryError, ConfigError: it cannot start; nothing has been written then.
        CollectError: environments or workers fail again and again.
    """
    settings = task.ranks.settle(settings)
    # Before there is an environment, which may change the current directory.
    path, root = None if path is None else path.absolute(), Path("runs").absolute()
    trainer = task.make_trainer(settings, console)
    if settings.run.init_from is not None:
        load_weights(trainer, settings, task, console)
    if not task.ranks.is_first:
        return train(task, trainer, settings, None, console)
    with new_directory(path, name_of(trainer), root) as directory:
        return train(task, trainer, settings, directory, console, comments=comments)


def resume_run(
    task: Task, path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> Summary:
    """Resumes exactly where a checkpoint stands, in its own run directory or in a new one.

    Args:
        path: a run directory, of which the newest checkpoint is meant, or a checkpoint file.
        changes: other values for settings that are resumable, by dotted key.
        new_path: a run directory for what follows; needed only for a checkpoint that lies in none.
        trust: the checkpoint may import code, connect to a Ray cluster and write files, as it says.

    Raises:
        CheckpointError, TrainError, TrustError, RunDirectoryError, ConfigError: it cannot resume; nothing has changed.
        CollectError: environments or workers fail again and again.
    """
    # Before there is an environment, which may change the current directory.
    path, new_path = path.absolute(), None if new_path is None else new_path.absolute()
    checkpoints = find_checkpoint(path).parent
    if new_path is None and checkpoints.name != "checkpoints":
        raise TrainError(f"{path} lies in no run directory: name a new one with --run-dir")
    with ExitStack() as stack:
        directory = None
        if new_path is None and task.ranks.is_first:
            # No other process may write to the run between reading its checkpoint and resuming from it.
            directory = stack.enter_context(RunDirectory(checkpoints.parent))
            directory.check_is_run()
        file, state = load_newest(path)
        with using_checkpoint(file, "is no checkpoint of a run that this fastrl can resume"):
            settings = resumed_settings(task, file, saved_settings(state), changes, trust=trust)
            settings = task.ranks.settle(settings)
            trainer = restored(task, settings, file, state, console)
        if not task.ranks.is_first:
            return train(task, trainer, settings, None, console)
        directory = directory or stack.enter_context(new_directory(new_path, name_of(trainer)))
        Checkpoints(directory.checkpoints).drop_after(trainer.steps)
        print_lines(console, f"resuming from {file}")
        if trainer.is_done():
            goal, unit = trainer.goal
            print_lines(
                console, f"the run has reached its goal of {goal:,} {unit}: there is nothing left to train"
            )
        return train(task, trainer, settings, directory, console)


def name_of(trainer: Trainer) -> str:
    """The name of a run's directory, without the time."""
    return run_name(trainer.env_id, trainer.algorithm_name, trainer.run.seed)


def restored(task: Task, settings: Any, file: Path, state: Mapping[str, Any], console: Console) -> Trainer:
    """The training that a checkpoint was saved from, where it stood.

    Args:
        file: of the checkpoint, with this state.

    Raises:
        CheckpointError, TrainError: it cannot resume.
    """
    with using_checkpoint(file, "is no checkpoint of a run that this fastrl can resume"):
        _check_counts(state)
        task.check_state(state, settings)
        trainer = task.make_trainer(settings, console, stage=saved_stage(state))
        if trainer.ranks.count == 1:
            check_kinds(state, trainer.state_dict())
        trainer.source.load_files(file.parent.parent)
        if SNAPSHOTS in state:
            from fastrl.training.snapshots import found_beside

            state = found_beside(state, file)
        trainer.load_state_dict(state)
    return trainer


def resumed_settings(
    task: Task, file: Path, config: Mapping[str, Any], changes: Values, *, trust: bool
) -> Any:
    """The settings that a run is resumed with: its own, changed.

    Args:
        file: its checkpoint.
        config: nested settings in it.
        changes: other values, by dotted key; one that the run has already is no change.
        trust: as of `fastrl.utils.trust.from_file`.

    Raises:
        ConfigError: a setting changes that is not resumable, or they are no settings of this kind of run.
        TrustError: the checkpoint would reach beyond its run.
    """
    algorithm = trusted_import("run.algo", task.algorithm_in(config), file, trust=trust)
    config_type = task.settings_type(algorithm)
    values = check(config_type, config, str(file))
    if "collect.collector" in changes:
        changes = {**options_of_others(changes["collect.collector"]), **changes}
    old = build(config_type, values)
    # The start of a schedule that is given as it is leaves the end as it is.
    changed = {key: value for key, value in with_one_goal(changes).items() if attrgetter(key)(old) != value}
    new = build(config_type, values, changed)
    goals = () if task.can_train_longer else ("run.total_timesteps", "run.total_episodes")
    resumable = [key for key in resumable_keys(config_type) if key not in goals]
    for key in changed:
        if key not in resumable:
            raise ConfigError(
                f"{key} cannot change when a run is resumed, it would be another run: --init {file} starts one"
                f" with its weights; {', '.join(resumable)} can"
            )
    refuse_reach(config_type, values, str(file), trust=trust, named=changes)
    return new


def load_run(
    task: Task, path: Path, *, trust: bool = False, named: Values | None = None, to_act: bool = False
) -> tuple[Any, dict[str, Any]]:
    """The settings of a run and the state in its newest checkpoint, or in a checkpoint file.

    Args:
        trust: the checkpoint may import code, as it says.
        named: settings that the caller has named, such as ``env.id``, which may import code then.
        to_act: for a policy that acts without its environment: only the algorithm and the network are checked for what
            they import, and what the settings leave open stays open.

    Raises:
        CheckpointError: there is none, or none of a run of this task.
        TrustError: the environment would import code.
        ConfigError: its settings are other ones than the caller named.
    """
    file, state = load_newest(path)
    if state.get("kind") != task.name:
        raise CheckpointError(f"{file} is of a run of {state.get('kind')!r}, not of {task.name}")
    named = named or {}
    try:
        algorithm = task.algorithm_in(state["config"])
        is_trusted = trust or named.get("run.algo") == algorithm
        config_type = task.settings_type(trusted_import("run.algo", algorithm, file, trust=is_trusted))
        values = used = check(config_type, state["config"], str(file))
        if to_act:
            table = f"{task.algorithm_table(algorithm)}."
            used = {key: value for key, value in values.items() if key.startswith(table)}
        refuse_reach(config_type, used, str(file), trust=trust, named=named)
        settings = build(config_type, values)
        for key, value in named.items():
            if attrgetter(key)(settings) != value:
                raise ConfigError(
                    f"{file} is of a run with {key} {attrgetter(key)(settings)!r}, not {value!r}"
                )
        if (policy := state.get("policy")) and own_path(policy) is not None:
            # Only the settings' path has been checked against what the caller trusts.
            algo = task.algorithm_settings(settings)
            check_own_network(
                getattr(algo, "network", None), parse_options(getattr(algo, "network_options", ())), policy
            )
        return settings if to_act else task.resolve_defaults(settings_to_play(settings, state, file)), state
    except UserError:
        raise
    except Exception as error:
        raise unusable(file, "has no settings that this fastrl can read", error) from None


def evaluate_run(
    task: Task,
    path: Path,
    options: EvaluationOptions,
    *,
    trust: bool = False,
    named: Values | None = None,
) -> Scores:
    """Scores the newest policy of a run, or the policy of a checkpoint file, without exploration.

    Args:
        options: see `Task.evaluate`.
        trust, named: as of `load_run`.

    Raises:
        CheckpointError, TrustError, ConfigError: as of `load_run`.
        TrainError, CollectError: the environment cannot be built or stepped.
    """
    settings, state = load_run(task, path, trust=trust, named=named)
    with using_checkpoint(path, "holds no policy that this fastrl can use"):
        return task.evaluate(state, settings, options)


def _check_counts(state: Mapping[str, Any]) -> None:
    """Refuses counters and times of a damaged checkpoint: they would fail later, in the middle of a run.

    Raises:
        ValueError
    """
    for name in ("steps", "iteration", "episodes"):
        value = state[name]
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(f"{name} should be a whole number from 0 on, got {value!r}")
    for name, value in ({key: state[key] for key in ("seconds",)} | dict(state["parts"])).items():
        if type(value) not in (int, float):
            raise ValueError(f"{name} should be a number, got {value!r}")


def load_weights(trainer: Trainer, settings: Any, task: Task, console: Console) -> None:
    """Gives a new run the weights of the run that ``run.init_from`` names.

    Raises:
        CheckpointError: there is no checkpoint.
        TrainError: it is of another kind of run, or its weights do not fit.
    """
    path: Path = settings.run.init_from
    file, state = load_newest(path)
    if state.get("kind") != task.name:
        raise TrainError(f"--init {path}: a run of another task, {state.get('kind')}, not of {task.name}")
    try:
        task.check_weights(state, settings)
        remarks = trainer.load_policy(state)
    except ValueError as error:
        raise TrainError(f"--init {path}: {error}") from None
    except Exception as error:
        raise unusable(file, "has no weights that this fastrl can use", error) from None
    print_lines(console, f"starting with the weights of {'; '.join([str(file), *remarks])}")


def train(
    task: Task,
    trainer: Trainer,
    settings: Any,
    directory: RunDirectory | None,
    console: Console,
    loggers: Sequence[Logger] = (),
    *,
    comments: Mapping[str, str] | None = None,
) -> Summary:
    """Trains to the end, or until a signal or a callback; writes everything that a run directory has.

    Args:
        directory: None: nothing is written, and the policy is not evaluated at the end.
        loggers: further ones, beside those that the settings name.
        comments: as of `start_run`.

    Raises:
        HookError: a callback or logger of the user's own has raised; a checkpoint is written.
    """
    trainer.view.directory = None if directory is None else directory.path
    evaluation = trainer.callback(Evaluation)
    if evaluation is not None and directory is not None:
        evaluation.best_file = directory.checkpoints / BEST
    session = _Session(task, trainer, settings, directory, console, comments)
    try:
        session.run(loggers)
        summary = session.summarise()
        try:
            if session.signal is None and evaluation is not None and directory is not None:
                evaluation.at_end(trainer, console)
                summary = session.summarise()
        finally:
            # The report has the scores, if there are any.
            if directory is not None:
                trainer.write_report(directory)
        trainer.notify(lambda callback: callback.on_end(trainer.view))
    except BaseException as error:
        # The first error is the one to report.
        with suppress(Exception):
            trainer.notify(lambda callback: callback.on_end(trainer.view))
        is_asked = isinstance(error, KeyboardInterrupt | SystemExit)
        session.write_facts("interrupted" if is_asked else "failed", " ".join(f"{error!r}".split()))
        raise
    session.write_facts(summary.status, summary.signal or summary.stopped_by)
    session.draw()
    if evaluation is not None:
        evaluation.show(console)
    summary.print(console)
    return summary


class _Session:
    """A session of a run, with its files.

    Attributes:
        signal: the one that has stopped it; None: none has.
    """

    def __init__(
        self,
        task: Task,
        trainer: Trainer,
        settings: Any,
        directory: RunDirectory | None,
        console: Console,
        comments: Mapping[str, str] | None = None,
    ) -> None:
        self._task, self._trainer, self._settings = task, trainer, settings
        self._directory, self._console = directory, console
        self._comments = dict(comments or {})
        self._before = trainer.steps, trainer.episodes, trainer.seconds
        self.signal: signal.Signals | None = None
        self._stopped_by: str | None = None
        self._facts: FactsFile | None = None
        self._checkpoints: Checkpoints | None = None
        if directory is not None:
            # A run that is complete chooses nothing any more: the comments of its file stay.
            if not (trainer.is_done() and is_run(directory.path)):
                self._write_settings()
            from fastrl.training.facts_file import FactsFile

            self._facts = FactsFile(directory.path, task.name, trainer)
            over = ", whose run had no checkpoint yet: it starts over" if directory.starts_over else ""
            print_lines(console, f"training on {trainer.device}, run directory {directory.path}{over}")
            self._checkpoints = Checkpoints(directory.checkpoints, trainer.run.keep_checkpoints)
        for remark in (threads.reason(), *trainer.algorithm.remarks()):
            print_lines(console, remark)

    def _write_settings(self) -> None:
        if self._directory is not None:
            text = to_toml(self._settings, self._comments)
            self._directory.write_settings(f'kind = "{self._task.name}"\n\n{text}')

    def _write_choices(self) -> None:
        """Writes into ``config.toml`` what "auto" has become."""
        trainer = self._trainer
        table = self._task.algorithm_table(self._settings.run.algo)
        chosen = {
            "run.device": trainer.device,
            "run.threads": threads.threads(),
            f"{table}.update_backend": trainer.algorithm.update_backend,
            **trainer.source.choices(),
        }
        values = values_of(self._settings)
        for key, value in chosen.items():
            if values.get(key) == "auto":
                before = self._comments.get(key)
                self._comments[key] = f"{before}; auto is {value}" if before else f"auto is {value}"
        self._write_settings()

    def run(self, further: Sequence[Logger]) -> None:
        """Trains, and logs rows."""
        trainer, directory = self._trainer, self._directory
        total, unit = trainer.goal
        logged = LoggedRun(
            directory,
            trainer.steps,
            trainer.episodes,
            total,
            trainer.done,
            unit,
            self._settings,
            self._console,
            self._task.shown,
        )
        logs: list[Logger] = []
        if directory is not None:
            logs = [JsonlLogger(logged), EpisodesLogger(logged), *start_loggers(trainer.run.loggers, logged)]
        on_console: list[Logger] = []
        if not self._console.quiet:
            from fastrl.runs.console_logger import ConsoleLogger

            on_console.append(ConsoleLogger(logged))
        loggers = Loggers([*logs, *further, *on_console])
        try:
            with StopSignals(finishes=trainer.ranks.count == 1) as stop:
                trainer.should_stop = lambda: stop.received is not None
                with trainer.ranks.watched(trainer.run.rank_timeout):
                    self._loop(loggers, stop)
                if directory is not None:
                    trainer.source.save_files(directory.path)
            self.signal, self._stopped_by = stop.received, trainer.stopped_by
        except HookError:
            # A checkpoint keeps what was learned until then, if anything was. Other ranks know nothing of the error.
            if trainer.steps and trainer.ranks.count == 1:
                self._save()
            raise
        finally:
            loggers.close()
        if directory is not None:
            trainer.profile.save(directory.profile)

    def _loop(self, loggers: Loggers, stop: StopSignals) -> None:
        trainer = self._trainer
        run = trainer.run
        saved_at, saved_episodes, has_choices = time.monotonic(), trainer.episodes, False
        for row in trainer.rows():
            if not has_choices:
                has_choices = True
                self._write_choices()
            loggers.log(row)
            if stop.received is not None and trainer.ranks.count == 1:
                break
            is_due = trainer.ends_stage() or (
                run.save_freq > 0 and trainer.episodes - saved_episodes >= run.save_freq
            )
            if any(trainer.ranks.lead(is_due or time.monotonic() - saved_at >= run.checkpoint_seconds)):
                self._checkpoint(loggers)
                saved_at, saved_episodes = time.monotonic(), trainer.episodes
        trainer.has_ended = True
        self._checkpoint(loggers)

    def _checkpoint(self, loggers: Loggers) -> None:
        # A checkpoint is written after the rows before it are on disk.
        loggers.flush()
        self._save()
        if self._checkpoints is not None:
            self._trainer.notify(lambda callback: callback.on_checkpoint(self._trainer.view))

    def _save(self) -> None:
        trainer = self._trainer
        if self._checkpoints is None and trainer.ranks.count == 1:
            return
        # All ranks have a part of it.
        state = trainer.state_dict()
        if self._checkpoints is not None:
            trainer.view.checkpoint = self._checkpoints.save(trainer.steps, state)
            self.write_facts("running")

    def write_facts(self, state: State, stopped_by: str | None = None) -> None:
        """Writes ``run.json``."""
        if self._facts is not None:
            self._facts.write(state, stopped_by)

    def draw(self) -> None:
        """Draws the learning curve, of training and of evaluations on the way, if one has two points."""
        directory, trainer = self._directory, self._trainer
        if directory is None:
            return
        from fastrl.runs.curves import Curve, draw_curves
        from fastrl.runs.listing import EVALUATION, RETURN, read_curve

        title = f"{trainer.algorithm_name} on {trainer.env_id}, seed {trainer.run.seed}"
        curves = []
        try:
            for label, metric in (("training", RETURN), ("evaluation", EVALUATION)):
                with suppress(ConfigError):  # no row has it
                    curves.append(Curve(title, label, *read_curve(directory.path, metric)))
            # To load matplotlib takes longer than a run of one row.
            if any(len(curve.steps) > 1 for curve in curves):
                draw_curves(curves, "mean return", directory.curve)
        except Exception as error:  # A picture that cannot be drawn spoils no run.
            print_lines(self._console, f"the learning curve was not drawn: {error!r}")

    def summarise(self) -> Summary:
        """Makes the summary, and writes it."""
        trainer, directory = self._trainer, self._directory
        now = trainer.steps, trainer.episodes, trainer.seconds
        steps, episodes, seconds = (after - before for after, before in zip(now, self._before, strict=True))
        evaluation = trainer.callback(Evaluation)
        checkpoint = trainer.view.checkpoint
        summary = Summary(
            status="complete" if self.signal is None else "interrupted",
            signal=None if self.signal is None else self.signal.name,
            stopped_by=self._stopped_by,
            run="" if directory is None else str(directory.path),
            checkpoint="" if checkpoint is None else str(checkpoint),
            kind=self._task.name,
            env=trainer.env_id,
            algorithm=trainer.algorithm_name,
            collector=trainer.collector,
            unit=trainer.goal[1],
            steps=trainer.steps,
            episodes=trainer.episodes,
            iterations=trainer.iteration,
            seconds=trainer.seconds,
            steps_per_second=steps / seconds if seconds else 0.0,
            episodes_per_second=episodes / seconds if seconds else 0.0,
            mean_return=trainer.mean_return,
            device=trainer.device,
            parts=with_other(trainer.activities, trainer.seconds),
            peak_memory_mib=peak_memory_mib(),
            peak_gpu_memory_mib=peak_gpu_memory_mib(trainer.device),
            evaluation=None if evaluation is None else evaluation.scores,
            details=trainer.summary(),
            lines=trainer.lines(),
        )
        if directory is not None:
            write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())
        return summary
