"""The directory of a run: its settings, metrics, checkpoints and summary."""

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Self

from fastrl.config import UserError


class RunDirectoryError(UserError, RuntimeError):
    """A directory that cannot be used for a run; one line that says why."""


class RunDirectory:
    """The files of one run. While it is open, no other process can write to the same run.

    As a context it is closed at the end; a run that fails before it has a checkpoint or a row of metrics leaves no
    files behind, so that it can be begun again in the same directory.

    Raises:
        RunDirectoryError: another process holds it, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Locking the directory itself leaves no lock file behind, whatever happens.
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RunDirectoryError(f"cannot make the run directory {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RunDirectoryError(f"{path} is in use: another process is training there") from None
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile.json"
        self.checkpoints = path / "checkpoints"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and not self._was_begun():
            for file in (self.config, self.metrics, self.profile):
                file.unlink(missing_ok=True)
            for folder in (self.tensorboard, self.checkpoints):
                shutil.rmtree(folder, ignore_errors=True)
            # What else is there is not of this run.
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self.close()

    def _was_begun(self) -> bool:
        rows = self.metrics.exists() and self.metrics.stat().st_size > 0
        return rows or (self.checkpoints.exists() and any(self.checkpoints.iterdir()))

    def close(self) -> None:
        os.close(self._lock)


def new_directory(path: Path | None, name: str) -> RunDirectory:
    """An unused directory for a new run: the given one, or one under ``runs``, named ``name`` and the time.

    Raises:
        RunDirectoryError: the given one has a run in it.
    """
    if path is None:
        stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (stem if i == 1 else f"{stem}-{i}" for i in itertools.count(1))
        path = next(path for name in names if not (path := Path("runs", name)).exists())
    elif (path / "config.toml").exists() or (path / "checkpoints").exists():
        raise RunDirectoryError(
            f"{path} has a run in it: go on with --resume {path}, or choose another --run-dir"
        )
    return RunDirectory(path)
