"""Searches whose processes are killed: nothing that ended is lost, the budget is exact, nothing hangs."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from tuning_fakes import SPACE, meanwhile, new_study, recorded, space_from
from waiting import TIMEOUT, is_running, wait_until

from fastrl.cli.main import main
from fastrl.tasks import find
from fastrl.tuning import worker
from fastrl.tuning.pool import ProcessPool
from fastrl.tuning.settings import TuneConfig
from fastrl.tuning.study import Study
from fastrl.tuning.trial import TuneError
from fastrl.tuning.tune import run_search

STUB = Path(__file__).parent.parent / "support" / "tuning_stub_worker.py"


def stub_pool(study: Study, seconds: float = 0.05, size: int = 2, limit: float | None = None) -> ProcessPool:
    """Workers that train nothing and start at once."""
    command = [sys.executable, "-S", "-E", str(STUB), str(seconds)]
    return ProcessPool(size, study.directory, limit, command)


def search_while_killing(study: Study, kills: int, pool: ProcessPool, draws: random.Random) -> int:
    """Runs a search and kills its workers at random times; returns how many were, fewer if it ended before."""
    count = 0

    def kill(done: threading.Event) -> None:
        nonlocal count
        while not done.is_set() and count < kills:
            time.sleep(draws.uniform(0, 0.04))
            if pids := pool.busy():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draws.choice(pids), signal.SIGKILL)
                    count += 1

    with meanwhile(kill), pool:
        run_search(study, Console(quiet=True), pool)
    return count


def events(study: Study) -> Counter[tuple[str, str]]:
    return Counter((record["event"], record["trial"]) for record in recorded(study.directory))


@pytest.mark.slow
def test_100_kills_lose_nothing_and_the_budget_is_exact(tmp_path: Path) -> None:
    config: dict[str, Any] = {"method": "random", "restarts": 1000, "confirm": 2, "confirm_seeds": 2}
    draws, killed, noticed = random.Random(0), 0, 0
    # One search, unless it ends before all kills.
    while killed < 100:
        with new_study(tmp_path / f"s{killed}", trials=80, report_episodes=1, **config) as study:
            killed += search_while_killing(study, 100 - killed, stub_pool(study), draws)
            found = events(study)
            names = {name for _, name in found}
            assert len([name for name in names if name.startswith("trial-")]) == 80
            assert len(names) == 80 + 4 + 2
            # Each trial was started once and ended once, however often it was killed between.
            assert all(found["started", name] == found["ended", name] == 1 for name in names)
            assert {trial.result.state for trial in study.trials.values()} == {"complete"}
            noticed += sum(trial.kills for trial in study.trials.values())
    # The others hit workers that had no trial: on a busy machine most of the time is theirs.
    assert noticed > 0


@pytest.mark.slow
def test_a_killed_trial_counts_as_failed_where_that_is_set(tmp_path: Path) -> None:
    config: dict[str, Any] = {"method": "random", "restarts": 0, "confirm": 0, "report_episodes": 0}
    draws, failed = random.Random(0), list[Any]()
    # Again, if no kill has hit a worker that had a trial.
    while not failed:
        with new_study(tmp_path / f"s{draws.random()}", trials=40, **config) as study:
            search_while_killing(study, 15, stub_pool(study), draws)
            failed = [trial for trial in study.of_search() if trial.result.state == "failed"]
            assert len(study.of_search()) == 40
            assert len(failed) == sum(trial.kills for trial in study.of_search())
    assert {trial.result.error for trial in failed} == {"its process was killed once"}


def test_a_trial_that_hangs_is_killed_after_its_time(tmp_path: Path) -> None:
    config: dict[str, Any] = {"method": "random", "confirm": 0, "report_episodes": 0}
    with new_study(tmp_path / "s", trials=2, **config) as study, stub_pool(study, 1000, 2, 0.5) as pool:
        run_search(study, Console(quiet=True), pool)
        assert [trial.result.error for trial in study.of_search()] == ["it took more than 0.5 s"] * 2


def test_workers_that_cannot_start_end_the_search(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", trials=2) as study:
        pool = ProcessPool(1, study.directory, command=[sys.executable, "-c", "raise SystemExit(3)"])
        with pool, pytest.raises(TuneError, match="end as soon as they start, see"):
            run_search(study, Console(quiet=True), pool)


def test_a_full_disk_stops_the_search_which_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"method": "random", "confirm": 0, "report_episodes": 0}
    with new_study(tmp_path / "s", trials=6, **config) as study:
        real, calls = study.journal.append, []

        def append(record: Any) -> None:
            calls.append(record)
            if len(calls) > 5:
                raise OSError(28, "No space left on device", str(study.journal.path))
            real(record)

        monkeypatch.setattr(study.journal, "append", append)
        with stub_pool(study) as pool, pytest.raises(OSError, match="No space left"):
            run_search(study, Console(quiet=True), pool)
        ended = {trial.name: trial.result for trial in study.of_search() if trial.result is not None}
        assert 0 < len(ended) < 6
    with Study(tmp_path / "s") as study, stub_pool(study) as pool:
        run_search(study, Console(quiet=True), pool)
        after = {trial.name: trial.result for trial in study.of_search()}
        assert len(after) == 6 and ended.items() <= after.items()


def test_a_worker_says_that_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker, "train", full)
    with (tmp_path / "log").open("w") as log:
        answer = worker.do({"kind": "gym"}, log)
    assert answer["disk_full"] and "No space left" in answer["error"]


# A worker whose trial never ends.
ENDLESS = """
import time
from fastrl.tuning import worker

def train(job, log):
    print("training", file=log, flush=True)
    while True:
        time.sleep(1)

worker.train = train
worker.main()
"""


@pytest.mark.slow
def test_a_trial_is_stopped_in_the_background_too_where_sigint_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"log": str(log)}) + "\n")
        process.stdin.flush()
        wait_until(lambda: log.exists() and log.read_text())
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline()) == {"status": "interrupted"}
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0


@pytest.mark.slow
def test_the_search_itself_and_its_workers_are_killed_while_they_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "s"
    options = "CartPole-v1 --trials=2 --method=random --n-workers=2 --total-timesteps=30000 --confirm=2"
    options += " --confirm-seeds=2 --report-episodes=2 --run.eval-episodes=2 --restarts=100 --ppo.hidden=16"
    arguments, kills = [*options.split(), f"--dir={directory}"], 0
    log, workers = (tmp_path / "log").open("ab"), list[int]()
    for wait in (1.0, 4.0):
        command = [sys.executable, "-m", "fastrl", "tune", *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        if wait_for(directory / "journal.jsonl", process):
            time.sleep(wait)
            wait_until(lambda pid=process.pid: children(pid))
            # First a worker, then the search.
            for pid in children(process.pid)[:1]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            time.sleep(0.5)
            workers += children(process.pid)
            process.kill()
        process.wait()
        arguments = [f"--resume={directory}"]
    before = {trial["trial"] for trial in recorded(directory) if trial["event"] == "ended"}
    assert main(["tune", *arguments]) == 0
    assert "when trained again with 2 other seeds" in capsys.readouterr().out
    with Study(directory) as study:
        found = events(study)
        assert len(study.of_search()) == 2 and kills >= 1
        assert all(count == 1 for (event, _), count in found.items() if event != "killed")
        assert before <= {name for event, name in found if event == "ended"}
        assert {trial.result.state for trial in study.trials.values()} <= {"complete", "pruned"}
    assert json.loads((directory / "tune.json").read_text())["chosen"] is not None
    # No worker has outlived its search for long.
    assert workers
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Waits until a file is there; False if the process ends before."""
    while not (path.exists() and path.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    return process.poll() is None


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_kills_of_workers_that_train_lose_nothing(tmp_path: Path) -> None:
    config: dict[str, Any] = {"method": "random", "restarts": 1000, "confirm": 0, "report_episodes": 0}
    task = find("gym")
    values = {
        "env.id": "CartPole-v1",
        "run.algo": "ppo",
        "run.device": "cpu",
        "run.total_timesteps": 30_000,
        "run.eval_episodes": 2,
        "run.row_seconds": 0.1,
        "run.checkpoint_seconds": 0.5,
    }
    settings = task.make_settings(values)
    space = space_from(SPACE, tmp_path / "s", settings)
    with Study.create(tmp_path / "s", TuneConfig(trials=2, **config), task, settings, space) as study:
        pool, killed = ProcessPool(2, study.directory), list[int]()

        def kill(done: threading.Event) -> None:
            """Kills a worker three times, each time once trials have more rows of metrics."""
            seen = 0
            while not done.wait(0.02) and len(killed) < 3:
                left = [pid for pid in pool.busy() if pid not in killed]
                size = sum(path.stat().st_size for path in study.directory.rglob("metrics.jsonl"))
                if left and size > seen:
                    seen = size
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(left[0], signal.SIGKILL)
                        killed.append(left[0])

        with meanwhile(kill), pool:
            run_search(study, Console(quiet=True), pool)
        found = events(study)
        assert killed and sum(trial.kills for trial in study.trials.values()) >= 1
        assert len({name for _, name in found}) == 2
        assert all(found["started", name] == found["ended", name] == 1 for _, name in found)
        assert {trial.result.state for trial in study.trials.values()} == {"complete"}
        # Each has a policy, and was evaluated.
        for trial in study.trials.values():
            assert trial.score > 0 and list(study.directory.rglob(f"{trial.name}/checkpoints/step-*"))
    assert not [child for child in psutil.Process().children() if child.pid in killed]
