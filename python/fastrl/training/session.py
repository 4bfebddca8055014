"""What every kind of run has in common: a device, signals, the loop with all that consumes its rows, going on."""

import signal
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from rich.console import Console

from fastrl.collectors.protocol import CollectError
from fastrl.training.checkpoint import Checkpoints, find_checkpoint, load_newest, unusable
from fastrl.training.errors import TrainError as TrainError
from fastrl.training.metrics import Row
from fastrl.training.profiler import Profile
from fastrl.training.run_directory import RunDirectory, new_directory
from fastrl.training.sinks import ConsoleSink, JsonlSink, Sink, TensorBoardSink
from fastrl.utils.config import ConfigError, Values, build, check, leaves, resumable_keys, to_toml
from fastrl.utils.errors import UserError
from fastrl.utils.trust import from_file

C = TypeVar("C")
T = TypeVar("T", bound="Training")


class RunSettings(Protocol):
    """The settings in the table ``[run]`` that every kind of run has."""

    @property
    def checkpoint_seconds(self) -> float: ...
    @property
    def keep_checkpoints(self) -> int: ...


class Settings(Protocol):
    @property
    def run(self) -> RunSettings: ...


class Training(Protocol):
    """The parts of a run, and its loop."""

    @property
    def config(self) -> Settings: ...
    @property
    def device(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def profile(self) -> Profile: ...

    def rows(self) -> Iterable[Row]:
        """Trains. Between rows the state may be saved."""
        ...

    def state(self) -> dict[str, Any]: ...


def choose_device(name: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        TrainError: CUDA was asked for and is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu")
    return name


class StopSignals:
    """Notes that the process was asked to stop, by Ctrl-C, SIGTERM, or SIGHUP of a terminal that closes; asked again by
    one of the first two, it stops at once. (A terminal that closes says so twice, through its shell and by itself.)

    Where SIGHUP is ignored, as under nohup, it stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, self._before[asked])

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Goal:
    """How far a run is to go.

    Attributes:
        total: of all sessions together.
        done: in earlier sessions.
        unit: what both count, which is also what ``Row.done`` counts.
    """

    total: int
    done: int
    unit: str = "steps"


def play(
    training: Training,
    directory: RunDirectory,
    console: Console,
    goal: Goal,
    due: Callable[[], bool] = lambda: False,
    show_between: Callable[[Callable[[int], None]], object] = lambda show: None,
) -> tuple[Path, signal.Signals | None]:
    """Trains to the end or until a signal; writes settings, metrics, checkpoints and where the time went.

    Args:
        goal: for the console.
        due: asked after every row whether there is to be a checkpoint, apart from those by time.
        show_between: called once, with a function that shows people how much is done where rows are far apart.

    Returns:
        The last checkpoint, and the signal.
    """
    run = training.config.run
    directory.write_settings(to_toml(training.config))
    over = ", whose run had no checkpoint yet: it starts over" if directory.starts_over else ""
    console.print(
        f"training on {training.device}, run directory {directory.path}{over}",
        highlight=False,
        soft_wrap=True,
    )
    checkpoints = Checkpoints(directory.checkpoints, run.keep_checkpoints)
    shown = ConsoleSink(console, goal.total, goal.done, unit=goal.unit)
    sinks: list[Sink] = [
        JsonlSink(directory.metrics, after=training.steps),
        TensorBoardSink(directory.tensorboard, after=training.steps),
        shown,
    ]
    show_between(shown.show)

    def save() -> Path:
        # The rows up to a checkpoint have to be there when it is.
        for sink in sinks:
            sink.flush()
        return checkpoints.save(training.steps, training.state())

    saved_at = time.monotonic()
    with StopSignals() as stop:
        try:
            for row in training.rows():
                for sink in sinks:
                    sink.write(row)
                if stop.received is not None:
                    break
                if due() or time.monotonic() - saved_at >= run.checkpoint_seconds:
                    save()
                    saved_at = time.monotonic()
            checkpoint = save()
        finally:
            for sink in sinks:
                sink.close()
    training.profile.save(directory.profile)
    return checkpoint, stop.received


def resumed_settings(
    config_type: type[C],
    file: Path,
    state: Mapping[str, Any],
    changes: Values,
    *,
    trust: bool,
) -> C:
    """The settings that a run goes on with: its own, changed.

    Args:
        file, state: its checkpoint.
        changes: other values, by dotted key; one that the run has already is no change.
        trust: as of `fastrl.utils.trust.from_file`.

    Raises:
        ConfigError: another setting changes, or they are no settings of this kind of run.
        TrustError: the checkpoint would reach beyond its run.
    """
    own = check(config_type, state["config"], str(file))
    old, new = build(config_type, own), build(config_type, own, changes)
    resumable = resumable_keys(config_type)
    for key in changes:
        if key not in resumable and attrgetter(key)(old) != attrgetter(key)(new):
            can = ", ".join(resumable)
            begin = (
                f": --init-from {file} begins one with its weights"
                if "run.init_from" in leaves(config_type)
                else ""
            )
            raise ConfigError(
                f"{key} cannot change when a run goes on, it would be another run{begin}; {can} can"
            )
    from_file(config_type, state["config"], str(file), trust=trust, named=changes)
    return new


def saved_settings(config_type: type[C], path: Path, changes: Values) -> C:
    """The settings that a run would go on with: those of its newest checkpoint, changed. Nothing is done with them.

    Raises:
        CheckpointError: there is no checkpoint, or one without settings.
        ConfigError: as of `resumed_settings`.
    """
    file, state = load_newest(path)
    try:
        return resumed_settings(config_type, file, state, changes, trust=True)
    except (KeyError, TypeError, AttributeError) as error:
        raise unusable(file, "has no settings that this fastrl can read", error) from None


def check_games(state: bytes, num_envs: int) -> None:
    """Refuses the saved state of fewer games than the settings claim, before memory is taken for them.

    Raises:
        ValueError: games of which not even a byte is there.
    """
    if num_envs > len(state):
        raise ValueError(f"{num_envs:,} games are claimed, their state is {len(state):,} bytes")


# Of a checkpoint's state, in every kind of run that has them: whole numbers, and what a clock or a mean says.
_COUNTS = ("steps", "iteration", "episodes", "games", "batches", "failures", "restarts", "dropped")
_MEASURES = ("seconds", "search_seconds", "mean_return")


def _check_counts(state: Mapping[str, Any]) -> None:
    """Refuses counters and times that are none: they would be found out later, in the middle of a run.

    Raises:
        ValueError
    """
    for name in _COUNTS:
        value = state.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(f"{name} should be a whole number from 0 on, got {value!r}")
    measures = {name: state.get(name, 0.0) for name in _MEASURES} | dict(state.get("parts", {}))
    for name, value in measures.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name} should be a number, got {value!r}")


def begin_with(
    path: Path | None, kind: str, take: Callable[[dict[str, Any]], object], console: Console
) -> None:
    """Gives a new run the weights of another one.

    Args:
        path: a run directory, of which the newest checkpoint is meant, or a checkpoint file; None: nothing is done.
        kind: of run, as its checkpoint's ``kind`` has it.
        take: takes over the weights in a checkpoint's state.

    Raises:
        CheckpointError: there is no checkpoint.
        TrainError: it is of another kind of run, or its weights do not fit.
    """
    if path is None:
        return
    file, state = load_newest(path)
    if state.get("kind", "cage2") != kind:
        raise TrainError(
            f"--init-from {path}: a run of another kind, {state.get('kind', 'cage2')}, not of {kind}"
        )
    try:
        take(state)
    except ValueError as error:
        raise TrainError(f"--init-from {path}: {error}") from None
    except Exception as error:
        raise unusable(file, "has no weights that this fastrl can use", error) from None
    console.print(f"beginning with the weights of {file}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def going_on(
    path: Path,
    new_path: Path | None,
    name: str,
    restore: Callable[[Path, dict[str, Any]], T],
    console: Console,
) -> Iterator[tuple[T, RunDirectory]]:
    """Opens a run where a checkpoint stands, in its own run directory or in a new one.

    Args:
        path: a run directory, of which the newest checkpoint is meant, or a checkpoint file.
        new_path: a run directory for what follows; needed only for a checkpoint that lies in none.
        name: what a new directory's name begins with.
        restore: makes the training from the checkpoint's file and state.

    Raises:
        CheckpointError, TrainError, RunDirectoryError, ConfigError, CollectError: it cannot go on; nothing has changed.
    """
    own_directory = find_checkpoint(path).parent
    if not own_directory.name:
        own_directory = own_directory.absolute()
    if new_path is None and own_directory.name != "checkpoints":
        raise TrainError(f"{path} lies in no run directory: name a new one with --run-dir")
    with ExitStack() as stack:
        directory = None
        if new_path is None:
            # Nobody else may write to the run between reading its checkpoint and going on from it.
            directory = stack.enter_context(RunDirectory(own_directory.parent))
            directory.check_own()
        file, state = load_newest(path)
        try:
            _check_counts(state)
            training = restore(file, state)
        except Exception as error:
            if isinstance(error, UserError | CollectError | MemoryError | OSError):
                raise
            raise unusable(file, "is no checkpoint of a run that this fastrl can resume", error) from None
        directory = directory or stack.enter_context(new_directory(new_path, name))
        Checkpoints(directory.checkpoints).drop_after(training.steps)
        console.print(f"going on from {file}", highlight=False, soft_wrap=True)
        yield training, directory
