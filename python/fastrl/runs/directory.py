"""The directory of a run: its settings, metrics, checkpoints and summary."""

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import time
from pathlib import Path
from typing import Self

from fastrl.runs.row import STEPS
from fastrl.utils.errors import UserError
from fastrl.utils.files import DamagedFileError, open_file, write_atomically

# First line of the settings of every run, by which its directory is recognised.
_MARK = b"# The settings of this run of fastrl.\n"
# First bytes of the metrics of every run.
_ROW = f'{{"{STEPS}": '.encode()
# The folder of run directories without a name of their own.
_ROOT = Path("runs")


class RunDirectoryError(UserError, RuntimeError):
    """A directory that cannot be used for a run; one line that says why."""


class RunDirectory:
    """The files of one run. While it is open, no other process can write to the same run.

    As a context it is closed at the end. A run that fails before it has a checkpoint or a row of metrics leaves nothing
    in a directory that was empty before, so that it can be started again there.

    Attributes:
        is_made: whether it was not there before.
        starts_over: whether a run that was killed before its first checkpoint is there; known by `check_unused`.

    Raises:
        RunDirectoryError: another process holds it, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        # An environment may change the current directory.
        path = path.absolute()
        try:
            self.is_made = _make(path)
            # The lock is on the directory itself, so a crash leaves no lock file.
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RunDirectoryError(f"cannot make the run directory {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise RunDirectoryError(f"{path} is in use: another process is training there") from None
            raise RunDirectoryError(f"cannot lock the run directory {path}: {error.strerror}") from None
        self.path = path
        self.config = path / "config.toml"
        self.facts = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.table = path / "metrics.csv"
        self.episodes = path / "episodes.csv"
        self.curve = path / "learning_curve.png"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        # Of Weights & Biases, and of MLflow.
        self.tracking = path / "wandb", path / "mlruns"
        self.profile = path / "profile.json"
        self.checkpoints = path / "checkpoints"
        # Of runs that play against their own past policies.
        self.snapshots = path / "snapshots"
        self.starts_over = False
        # Temporary files of a process that was killed while it wrote the first file do not count.
        self._was_empty = all(file.match(".config.toml.*.tmp") for file in path.iterdir())

    def write_settings(self, toml: str) -> None:
        """Writes the run's settings, by which the directory is known as a run's from then on."""
        write_atomically(self.config, _MARK + toml.encode())

    def check_unused(self) -> None:
        """Refuses a directory with something in it, unless it is a run that was killed before its first checkpoint.

        Raises:
            RunDirectoryError
        """
        self.starts_over = never_saved(self.path)
        if self._was_empty or self.starts_over:
            return
        if _has_checkpoint(self.path) or _begins_with(self.config, _MARK):
            raise RunDirectoryError(
                f"{self.path} has a run in it: resume it with --resume {self.path}, or choose another --run-dir"
            )
        name = min(path.name for path in self.path.iterdir())
        raise RunDirectoryError(
            f"{self.path} is neither empty nor a run (there is {name} in it): choose another --run-dir"
        )

    def check_is_run(self) -> None:
        """Refuses a directory without a run, whose files a resumed run would overwrite.

        Raises:
            RunDirectoryError
        """
        files = {self.config: (_MARK,), self.metrics: (_ROW,)}
        there = [file for file in files if file.exists()]
        if self.metrics.is_symlink():
            # Rows would be written to a file elsewhere; all other files are replaced.
            raise RunDirectoryError(f"{self.metrics} is a link: name a new directory with --run-dir")
        foreign = [file.name for file in there if not (_begins_with(file, *files[file]) or _is_empty(file))]
        if foreign or not there:
            why = f"its {foreign[0]} was written by something else" if foreign else "it has no config.toml"
            raise RunDirectoryError(f"{self.path} is no run, {why}: name a new directory with --run-dir")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and self._was_empty and not self._was_begun():
            # Only files of this run: another program may have added its own.
            for file in (
                self.config,
                self.facts,
                self.metrics,
                self.table,
                self.episodes,
                self.profile,
                self.curve,
            ):
                file.unlink(missing_ok=True)
            for file in self.tensorboard.glob("events.out.tfevents.*"):
                file.unlink()
            for folder in (*self.tracking, self.snapshots):
                shutil.rmtree(folder, ignore_errors=True)
            folders = [self.tensorboard, self.checkpoints, *([self.path] if self.is_made else [])]
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        self.close()

    def _was_begun(self) -> bool:
        rows = self.metrics.exists() and self.metrics.stat().st_size > 0
        return rows or (self.checkpoints.exists() and any(self.checkpoints.iterdir()))

    def close(self) -> None:
        os.close(self._lock)


def is_run(path: Path) -> bool:
    """True for the directory of a run: the settings in it were written by one."""
    return _begins_with(path / "config.toml", _MARK)


def never_saved(path: Path) -> bool:
    """True for the directory of a run that was killed before its first checkpoint: it can only start over."""
    return (
        _begins_with(path / "config.toml", _MARK)
        and not (path / "summary.json").exists()
        and not _has_checkpoint(path)
    )


def _has_checkpoint(path: Path) -> bool:
    return any((path / "checkpoints").glob("*.safetensors"))


def _begins_with(path: Path, *marks: bytes) -> bool:
    try:
        with open_file(path) as file:
            return file.read(max(map(len, marks))).startswith(marks)
    except (OSError, DamagedFileError):
        return False


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def new_directory(path: Path | None, name: str, root: Path = _ROOT) -> RunDirectory:
    """An unused directory for a new run: the given one, or one under ``root``, named by `run_name` and the time.

    Raises:
        RunDirectoryError: the given one has a run or something else in it.
    """
    if path is None:
        return _named(name, root)
    directory = RunDirectory(path)
    try:
        directory.check_unused()
    except BaseException:
        directory.close()
        raise
    return directory


def run_name(env_id: str, algorithm: str, seed: int) -> str:
    """A name for a run directory, such as ``CartPole-v1-ppo-s0``: an id without its namespace, or the function of a
    factory."""
    short = re.split("[/:]", env_id)[-1] or "env"
    return re.sub(r"[^\w.-]", "-", f"{short}-{algorithm}-s{seed}").lstrip(".-")


def is_running(path: Path) -> bool:
    """True if a process trains in a run directory."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _named(name: str, root: Path) -> RunDirectory:
    """A directory under ``root`` that no other process has made."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for i in itertools.count(1):
        path = root / (stem if i == 1 else f"{stem}-{i}")
        if not path.exists():
            try:
                directory = RunDirectory(path)
            except RunDirectoryError:
                if not path.exists():
                    raise
                # Another process has made it.
                continue
            if directory.is_made:
                return directory
            directory.close()
    raise AssertionError


def _make(path: Path) -> bool:
    """Makes a directory; returns False if it is there."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    return True
