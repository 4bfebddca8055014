from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastrl.collectors.resources import (
    MIB,
    available_memory,
    check_start_method,
    cores,
    count_workers,
    memory_of,
    use_cores,
)

GIB = 1024 * MIB


def never() -> int:
    raise AssertionError("there is enough memory, whatever a worker takes")


def count(asked: Any, **changes: Any) -> int:
    """On a machine of 4 cores and 10 GiB whose workers take 1 GiB each."""
    settings: dict[str, Any] = {"useful": 64, "measure": lambda: GIB, "available": 10 * GIB, "num_cores": 4}
    return count_workers(asked, **(settings | changes))


def test_auto_is_one_a_core_where_memory_and_work_allow_it() -> None:
    assert count("auto") == 4
    assert count("auto", useful=3) == 3
    assert count("auto", num_cores=32) == 8  # 80% of 10 GiB
    assert count("auto", num_cores=32, measure=lambda: 300 * MIB) == 27


def test_a_number_is_taken_or_refused() -> None:
    assert [count(n) for n in (1, 8)] == [1, 8]
    with pytest.raises(
        ValueError, match=r"9 workers do not fit.*one takes 1\.0 GiB.*10\.0 GiB.*80%.*n_workers=8 or less"
    ):
        count(9)
    with pytest.raises(ValueError, match=r"not even one worker fits.*one takes 30\.0 GiB"):
        count(1000, useful=1000, measure=lambda: 30 * GIB)
    assert count(9, measure=lambda: 100 * MIB) == 9


def test_memory_is_measured_only_where_it_could_be_short() -> None:
    assert count(7, measure=never) == 7
    with pytest.raises(AssertionError, match="whatever"):
        count(9, measure=never)


@pytest.mark.parametrize("asked", [0, -1, -100])
def test_no_workers_are_refused(asked: int) -> None:
    with pytest.raises(ValueError, match=f"n_workers should be at least 1, or 'auto', got {asked}"):
        count(asked)


def test_more_workers_than_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_workers should be at most 4.*got 5.*more environments"):
        count(5, useful=4)


@pytest.mark.parametrize("asked", [True, 2.0, "2", "all", None])
def test_what_is_no_number_is_refused(asked: object) -> None:
    with pytest.raises(TypeError, match="n_workers should be a number from 1 on, or 'auto'"):
        count(asked)


def test_start_methods() -> None:
    assert [check_start_method(name) for name in ("spawn", "forkserver")] == ["spawn", "forkserver"]
    with pytest.raises(ValueError, match="'spawn' or 'forkserver', got 'fork': a forked process"):
        check_start_method("fork")
    with pytest.raises(ValueError, match=r"'spawn' or 'forkserver', got 'Spawn'$"):
        check_start_method("Spawn")


def system(root: Path, groups: str, **files: str) -> Path:
    """A folder that looks like / to who asks for control groups; ``_`` in names stands for /, ``-`` for a dot."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = root.joinpath("sys", "fs", "cgroup", *name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name.replace("-", ".")).write_text(text)
    return root


def test_cores_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    assert cores(tmp_path) == 12  # no control groups
    none = system(tmp_path / "none", "0::/a/b\n", **{"cpu-max": "max 100000\n"})
    assert cores(none) == 12
    # The narrowest of those it is in, and whole cores of it.
    two = system(
        tmp_path / "two", "0::/a/b\n", **{"a__cpu-max": "350000 100000\n", "a__b__cpu-max": "max 100000\n"}
    )
    assert cores(two) == 3
    half = system(tmp_path / "half", "0::/\n", **{"cpu-max": "50000 100000\n"})
    assert cores(half) == 1
    old = system(
        tmp_path / "old",
        "4:cpu,cpuacct:/docker/x\n",
        **{"cpu__cpu-cfs_quota_us": "200000\n", "cpu__cpu-cfs_period_us": "100000\n"},
    )
    assert cores(old) == 2
    unlimited = system(tmp_path / "unlimited", "4:cpu,cpuacct:/\n", **{"cpu__cpu-cfs_quota_us": "-1\n"})
    assert cores(unlimited) == 12
    for most, expected in ((5, 5), (20, 12), ("auto", 12)):
        use_cores(most)
        assert cores(tmp_path) == expected


def test_memory_is_that_of_the_container(tmp_path: Path) -> None:
    whole = psutil.virtual_memory()
    assert 0 < available_memory(tmp_path) <= whole.total
    limited = system(
        tmp_path / "new",
        "0::/job\n",
        **{
            "job__memory-max": f"{100 * MIB}\n",
            "job__memory-current": f"{90 * MIB}\n",
            "job__memory-stat": f"anon 5\ninactive_file {20 * MIB}\n",
            "memory-max": "max\n",
        },
    )
    assert available_memory(limited) == 30 * MIB
    old = system(
        tmp_path / "old",
        "3:memory:/\n",
        **{
            "memory__memory-limit_in_bytes": f"{50 * MIB}\n",
            "memory__memory-usage_in_bytes": f"{60 * MIB}\n",
        },
    )
    assert available_memory(old) == 0


def test_memory_of_processes() -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    code = "kept = bytearray(b'x' * 100 * 2**20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as big:
        assert big.stdout is not None
        big.stdout.readline()
        mine, large, none = memory_of([os.getpid(), big.pid, gone.pid])
        big.kill()
    assert mine > 5
    assert 100 < large < 150
    assert none == 0
