"""Searches on a Ray cluster: a local Ray with two processors, which most tests share, and one of two nodes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from tuning_fakes import SPACE, meanwhile, new_study, recorded
from waiting import wait_until

from fastrl.collectors.ray_cluster import start
from fastrl.tuning.population import parent_of
from fastrl.tuning.ray_pool import RayPool, cpus_of_trials
from fastrl.tuning.study import Study
from fastrl.tuning.trial import TuneError
from fastrl.tuning.tune import run_search

ray = pytest.importorskip("ray", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow

STUB = Path(__file__).parent.parent / "support" / "tuning_stub_worker.py"
RATES = SPACE.partition("[ppo.hidden]")[0]
QUIET = Console(quiet=True)
RANDOM: dict[str, Any] = {"method": "random", "confirm": 0, "report_episodes": 0}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    start(2, 100 * 2**20)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def pool_of(study: Study, address: str, seconds: float = 0.05, size: int = 2, **options: Any) -> RayPool:
    """Actors whose workers train nothing."""
    command = [sys.executable, "-S", "-E", str(STUB), str(seconds)]
    return RayPool(size, study.directory, address, command=command, **options)


def workers() -> list[psutil.Process]:
    """The stub workers that Ray's actors have started; other tests start some at the same time."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(STUB) in (process.info["cmdline"] or []):
            # It may have ended, or its parent.
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if parent is not None and "".join(parent.cmdline()).startswith("ray::"):
                    found.append(process)
    return found


def test_a_population_trains_on_actors_and_its_parts_are_told_their_parents(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config: dict[str, Any] = {
        "method": "pbt",
        "trials": 4,
        "generations": 3,
        "confirm": 1,
        "confirm_seeds": 2,
    }
    jobs = []
    # A relative directory: the actors have another current one.
    with new_study(Path("s"), RATES, report_episodes=1, **config) as study:
        pool = pool_of(study, address)
        given = pool.start

        def noting(trial: Any, job: Any) -> None:
            jobs.append((trial, job))
            given(trial, job)

        monkeypatch.setattr(pool, "start", noting)
        with pool:
            run_search(study, QUIET, pool)
        names = Counter(name.rpartition("-")[0] for name in study.trials)
        assert [names[f"member-{generation:03d}"] for generation in range(3)] == [4, 4, 4]
        assert {trial.result.state for trial in study.trials.values()} == {"complete"}
        forks = {trial.name: job["fork"] for trial, job in jobs if "fork" in job}
        assert len(forks) == 8
        parent = parent_of(study, 2, 1)
        assert forks["member-002-001"] == str(Path("s/trials", f"member-001-{parent:03d}").absolute())
    assert ray.is_initialized()  # it was there before
    wait_until(lambda: not workers())


def test_killed_workers_and_actors_lose_nothing(tmp_path: Path, address: str) -> None:
    with new_study(tmp_path / "s", trials=12, restarts=1000, **RANDOM) as study:
        pool, killed = pool_of(study, address, 0.3), list[int]()

        def kill(done: threading.Event) -> None:
            """A worker, then an actor, in turns."""
            while not done.wait(0.4) and len(killed) < 4:
                if busy := workers():
                    victim = busy[0] if len(killed) % 2 == 0 else busy[0].parent()
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.append(victim.pid)

        with pool, meanwhile(kill):
            run_search(study, QUIET, pool)
        events = Counter((each["event"], each["trial"]) for each in recorded(study.directory))
        assert killed and len(study.of_search()) == 12
        assert all(events["started", name] == events["ended", name] == 1 for name in study.trials)
        assert {trial.result.state for trial in study.trials.values()} == {"complete"}
        assert sum(trial.kills for trial in study.trials.values()) >= 1
    wait_until(lambda: not workers())


def test_a_trial_that_takes_too_long_fails(tmp_path: Path, address: str) -> None:
    with new_study(tmp_path / "s", trials=1, **RANDOM) as study:
        pool = pool_of(study, address, 1000, 1, trial_seconds=0.5)
        with pool:
            run_search(study, QUIET, pool)
        assert [trial.result.error for trial in study.of_search()] == ["it took more than 0.5 s"]


def test_what_cannot_work_is_said_in_a_line(tmp_path: Path, address: str) -> None:
    with new_study(tmp_path / "s", trials=1, **RANDOM) as study:
        with pytest.raises(
            TuneError, match="--n-workers 3: each trial needs a processor, the Ray cluster has 2"
        ):
            pool_of(study, address, size=3)
        pool = RayPool(1, tmp_path / "elsewhere", address)
        with (
            pool,
            pytest.raises(TuneError, match=r"has no .*elsewhere: give --dir on a file system that all nodes"),
        ):
            run_search(study, QUIET, pool)
        pool = RayPool(1, study.directory, address, command=[sys.executable, "-c", "raise SystemExit(3)"])
        with (
            pool,
            pytest.raises(TuneError, match=r"actor has failed: .*processes end as soon as they start, see"),
        ):
            run_search(study, QUIET, pool)


@pytest.mark.parametrize(
    ("nodes", "size", "expected"), [([2], 2, 1), ([8], 2, 4), ([3, 3], 3, 1), ([4, 2], 3, 2), ([4, 0], 1, 4)]
)
def test_trials_share_out_the_processors_of_nodes(nodes: list[int], size: int, expected: int) -> None:
    assert cpus_of_trials(nodes, size) == expected


def test_no_cluster_is_said_in_a_line(tmp_path: Path) -> None:
    # In another process, which is connected to none.
    directory = tmp_path / "s"
    options = ["CartPole-v1", "--method=pbt", f"--dir={directory}", "--ray-address=nonsense"]
    done = subprocess.run([sys.executable, "-m", "fastrl", "tune", *options], capture_output=True, text=True)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line == "fastrl tune: error: ray_address should be 'host:port' or 'auto', got 'nonsense'"
    # The search is there, and goes on where a cluster is.
    with Study(directory, "host:1") as study:
        assert study.config.ray_address == "host:1" and not study.trials
