"""Facts of a run in ``run.json``: task, versions, sessions and progress."""

import contextlib
import dataclasses
import datetime
import functools
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from fastrl._native._rust import __version__
from fastrl.collectors.resources import machine_cores
from fastrl.runs.directory import is_running
from fastrl.utils.files import read_json, to_json, write_atomically
from fastrl.utils.machine import hardware

State = Literal["running", "complete", "interrupted", "failed"]

FILE = "run.json"
_PACKAGES = ("torch", "numpy", "gymnasium")


@dataclasses.dataclass(frozen=True)
class Session:
    """A process that trained in a run directory.

    Attributes:
        started_at, ended_at: ISO 8601, UTC; ended_at None while it runs, or if it was killed.
        command: its command line.
        versions: of fastrl, Python and the packages that results depend on.
        commit: of the git repository that it was started in; None without one. dirty: files that git tracks had
            changed.
        from_timesteps: environment steps that the run had at its start.
        hardware: see `fastrl.utils.machine.hardware`; empty in files of older versions.
    """

    started_at: str
    ended_at: str | None
    command: tuple[str, ...]
    versions: Mapping[str, str]
    commit: str | None
    dirty: bool
    from_timesteps: int
    hardware: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Contents of ``run.json``.

    Attributes:
        state: of the newest session. A session that was killed is "interrupted" when it is read.
        task, env, algorithm, seed: of the run.
        total_timesteps, episodes: so far, at the newest checkpoint.
        mean_return: of the newest episodes of training; None before any has ended.
        seconds: of training, in all sessions.
        stopped_by: the callback or signal that stopped the newest session, or the error that it failed with; None.
        sessions: oldest first.
    """

    state: State
    task: str
    env: str
    algorithm: str
    seed: int
    total_timesteps: int
    episodes: int
    mean_return: float | None
    seconds: float
    stopped_by: str | None
    sessions: tuple[Session, ...]

    @staticmethod
    def read(path: Path) -> "RunFacts | None":
        """The facts of a run directory; None if it has none that can be read."""
        try:
            facts = _checker().validate_python(read_json(path / FILE))
        except (OSError, ValueError):
            return None
        if facts.state == "running" and not is_running(path):
            return dataclasses.replace(facts, state="interrupted", stopped_by="killed")
        return facts

    def write(self, path: Path) -> None:
        """Writes them into a run directory."""
        write_atomically(path / FILE, to_json(dataclasses.asdict(self), indent=2).encode())


@functools.cache
def _checker() -> TypeAdapter[RunFacts]:
    return TypeAdapter(RunFacts)


def new_session(from_timesteps: int, device: str = "cpu") -> Session:
    """The session of this process, which starts now."""
    commit, dirty = _git_commit()
    versions = {"fastrl": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    command = tuple(sys.argv)
    return Session(
        now(), None, command, versions, commit, dirty, from_timesteps, hardware(machine_cores(), device)
    )


def now() -> str:
    """The time as ISO 8601, UTC, in seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _git_commit() -> tuple[str | None, bool]:
    """The commit of the current directory's git repository, and whether files that git tracks have changed."""

    def git(*arguments: str) -> str:
        # The repository may be of others: its settings could name a program to run.
        command = ["git", "-c", "core.fsmonitor=false", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=2).stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        commit = git("rev-parse", "HEAD")
        return commit, bool(git("status", "--porcelain", "--untracked-files=no"))
    return None, False
