"""Counts workers by cores and memory, and checks how they may be started."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

WorkerCount = int | Literal["auto"]

# Forked processes would share locks, threads and a GPU with the learner.
START_METHODS = ("spawn", "forkserver")

MIB = 2**20

# Memory for each worker above which its use is not measured.
AMPLE_WORKER_BYTES = 1024 * MIB

# Share of the free memory that workers may take: the rest is for the learner's experience, and for what grows.
USABLE_SHARE = 0.8


def check_start_method(name: str) -> str:
    """The name, if processes can be started so.

    Raises:
        ValueError
    """
    if name not in START_METHODS:
        names = " or ".join(map(repr, START_METHODS))
        why = ": a forked process would share the learner's locks, threads and GPU" if name == "fork" else ""
        raise ValueError(f"start_method should be {names}, got {name!r}{why}")
    return name


def check_timeout(task_timeout: float | None) -> float:
    """The seconds that a task may take; infinite for None.

    Raises:
        ValueError: not more than 0.
    """
    if task_timeout is not None and not task_timeout > 0:
        raise ValueError(f"task_timeout should be more than 0 s, got {task_timeout}")
    return math.inf if task_timeout is None else task_timeout


# Cores that this process was told to use at most, and its share of them where it is not told.
_most_cores = _share = math.inf


def use_cores(count: WorkerCount) -> None:
    """Limits `cores` of this process to so many; "auto": to its share, see `share_cores`."""
    global _most_cores
    _most_cores = _share if count == "auto" else count


def share_cores(share: float) -> None:
    """Says how many cores are this process's share, of those that it uses together with others; infinite: all."""
    global _share
    _share = share
    use_cores("auto")


def machine_cores(root: Path = Path("/")) -> int:
    """Cores that this process is pinned to, or fewer if its container has less of their time.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(max(1, min(pinned, _cpu_quota(root))))


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: `machine_cores`, or fewer if `use_cores` says so."""
    return int(max(1, min(machine_cores(root), _most_cores)))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that processes could take now without swapping: what the machine has left, or less if this process's
    container has less.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    # It is imported where it is used: many runs do not need it.
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_memory_left(root)]))


def memory_of(pids: Iterable[int]) -> tuple[float, ...]:
    """MiB that each process takes: its own memory and its share of what it has in common with others (proportional set
    size), or its resident memory where the system does not have that. 0 for one that is gone."""
    return tuple(_memory_of(pid) / MIB for pid in pids)


def check_count(asked: WorkerCount) -> WorkerCount:
    """The number of workers, if it is one, or "auto".

    Raises:
        TypeError: neither an integer nor "auto".
        ValueError: below 1.
    """
    if isinstance(asked, bool) or not (isinstance(asked, int) or asked == "auto"):
        raise TypeError(f"n_workers should be a number from 1 on, or 'auto', got {asked!r}")
    if asked != "auto" and asked < 1:
        raise ValueError(f"n_workers should be at least 1, or 'auto', got {asked}")
    return asked


def count_workers(
    asked: WorkerCount,
    *,
    useful: int,
    measure: Callable[[], int] | None = None,
    available: int | None = None,
    num_cores: int | None = None,
) -> int:
    """Counts the workers to start.

    Args:
        asked: a number, which is used or refused, never changed; or "auto": one a core, if memory allows them.
        useful: more than this would have nothing to do: rows, or episodes of an update.
        measure: returns the bytes that one worker takes. It is called only where memory could be short. None: memory is
            not checked.
        available: bytes that are free; by default, those of this machine now.
        num_cores: by default, those of this machine.

    Raises:
        TypeError: neither an integer nor "auto".
        ValueError: below 1, more than there is work for, or more than memory allows; the message has the numbers.
    """
    check_count(asked)
    if asked != "auto" and asked > useful:
        raise ValueError(
            f"n_workers should be at most {useful}, for there is no work for more: got {asked};"
            " collect from more environments, or use fewer workers"
        )
    wanted = min(cores() if num_cores is None else num_cores, useful) if asked == "auto" else asked
    free = available_memory() if available is None else available
    if measure is None or wanted * AMPLE_WORKER_BYTES <= USABLE_SHARE * free:
        return wanted
    each = max(1, measure())
    fit = int(USABLE_SHARE * free / each)
    if fit >= wanted:
        return wanted
    sizes = f"one takes {_size(each)}, and of {_size(free)} that are free {USABLE_SHARE:.0%} may be used"
    if fit < 1:
        raise ValueError(
            f"not even one worker fits into memory: {sizes}; end other programs, or collect with 'sequential'"
        )
    if asked == "auto":
        return fit
    raise ValueError(
        f"{asked} workers do not fit into memory: {sizes}; give n_workers={fit} or less, or 'auto'"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / MIB:.0f} MiB" if nbytes < 1024 * MIB else f"{nbytes / MIB / 1024:.1f} GiB"


def _memory_of(pid: int) -> int:
    import psutil

    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().pss)
        except (AttributeError, psutil.AccessDenied):
            return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _cgroups(root: Path) -> Iterator[Path]:
    """The folders of the control groups that this process is in, from its own up; both versions of them."""
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = controllers.split(",") if controllers else [""]
        for mount in mounts:
            folder = root / "sys" / "fs" / "cgroup" / mount
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield folder.joinpath(*parts[:depth])


@functools.cache
def _cpu_quota(root: Path) -> float:
    """Cores' worth of time that the control groups grant, read once: it takes longer than a short gradient step."""
    return min(_cpu_quotas(root), default=math.inf)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that each control group grants, where it limits it."""
    for folder in _cgroups(root):
        quota, period = (_read(folder / "cpu.max").split() or ["max", "1"])[:2]
        if quota == "max":
            quota = _read(folder / "cpu.cfs_quota_us").strip() or "-1"
            period = _read(folder / "cpu.cfs_period_us").strip() or "1"
        if int(quota) > 0:
            yield int(quota) / int(period)


def _memory_left(root: Path) -> Iterator[int]:
    """Bytes that each control group has left, where it limits them."""
    for folder in _cgroups(root):
        for most, used, idle in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read(folder / most).strip(), _read(folder / used).strip()
            if limit.isdigit() and usage.isdigit():
                # The cache of files that were not read lately is freed when memory is needed.
                statistics = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
                yield int(limit) - int(usage) + int(statistics.get(idle, 0))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
