"""Collecting in processes: the same episodes as in one, whatever happens to the processes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from collect_cases import ACTIONS, Broken, Chooser, Unclosed, chooser, plan, rows, take_many, updates
from paths import import_path
from waiting import TIMEOUT, wait_until

from fastrl.collectors import executor_worker, scheduler
from fastrl.collectors.executor import ExecutorCollector
from fastrl.collectors.protocol import ACTIVITIES, CollectError, Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.fragment import Fragment
from fastrl.utils import child_process
from fastrl.utils.seeding import NO_ENV


def shared_memory(*pids: int) -> set[Path]:
    """Files in shared memory that processes have open: weights, and what multiprocessing keeps there."""
    names = set()
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/dev/shm/" in line and "(deleted)" not in line:
                names.add(Path(line.split(maxsplit=5)[5]))
    return names


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("forces", [False, True])
def test_any_number_of_workers_plays_the_same(unit: Any, forces: bool) -> None:
    same = plan(unit, forces=forces)
    with SequentialCollector(same) as sequential:
        expected = updates(sequential)
    for workers, method in ((1, "forkserver"), (3, "spawn" if forces else "forkserver")):
        with ExecutorCollector(same, n_workers=workers, start_method=method) as collector:
            assert updates(collector) == expected


def test_options_for_comparison_change_nothing() -> None:
    with SequentialCollector(plan("episodes")) as sequential:
        expected = updates(sequential)
    options: dict[str, Any] = {"rebuild": True, "pickle_weights": True}
    with ExecutorCollector(plan("episodes"), n_workers=2, **options) as collector:
        assert updates(collector) == expected
        with pytest.raises(ValueError, match="4 bytes"):
            collector.publish(np.zeros(3, np.float32))


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_another_collector_resumes_from_a_state(unit: Any) -> None:
    with SequentialCollector(plan(unit)) as first, SequentialCollector(plan(unit)) as sequential:
        first.publish(chooser(0.0))
        first.collect()
        state = first.state_dict()
        sequential.load_state_dict(state)
        expected = updates(sequential, 2)
    with ExecutorCollector(plan(unit), n_workers=2) as collector:
        collector.load_state_dict(state)
        assert collector.version == 1
        assert updates(collector, 2) == expected
        assert collector.state_dict() == sequential.state_dict()


def test_fragments_of_collect_stay_where_workers_wrote_them_and_taken_ones_are_the_callers() -> None:
    same = plan("steps")
    with ExecutorCollector(same, n_workers=2) as collector:
        collector.publish(chooser(0.0))
        seen = [collector.collect() for _ in range(3)]
        for number in range(2):
            assert any(np.shares_memory(seen[2][number].obs, before[number].obs) for before in seen[:2])
    with SequentialCollector(same) as sequential, ExecutorCollector(same, n_workers=2) as taking:
        sequential.publish(chooser(0.0))
        taking.publish(chooser(0.0))
        expected = rows(sequential.collect())
        taken, firsts = list[Fragment](), dict[int, Fragment]()
        while len(firsts) < 2 or len(taken) < 12:
            fragment = taking.take(TIMEOUT)
            assert fragment is not None
            taken.append(fragment)
            firsts.setdefault(int(fragment.env_indices[0]), fragment)
        assert rows(list(firsts.values())) == expected


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_asynchronous_collection_continues_with_the_newest_weights(unit: Any) -> None:
    with ExecutorCollector(plan(unit), n_workers=2, max_pending=6) as collector:
        collector.publish(chooser(0.0))
        versions = take_many(collector, 60, {NO_ENV} if unit == "episodes" else set(range(5)))
        assert versions[0] == 1
        assert max(versions) >= 5
        with pytest.raises(CollectError, match="of its own"):
            collector.collect()


def test_collects_no_more_than_max_pending_fragments() -> None:
    with ExecutorCollector(plan("episodes"), n_workers=2, max_pending=3) as collector:
        collector.publish(chooser(0.0))
        assert collector.take(TIMEOUT) is not None
        time.sleep(0.3)
        collector.publish(chooser(1.0))
        versions = []
        for _ in range(6):
            fragment = collector.take(TIMEOUT)
            assert fragment is not None
            versions.append(fragment.version)
        assert versions.count(1) <= 3
        assert versions[-1] == 2


@pytest.mark.slow
def test_taking_gives_up_in_time() -> None:
    slow = plan("episodes", sleep=TIMEOUT)
    with ExecutorCollector(slow, n_workers=1) as collector:
        collector.publish(chooser(0.0))
        assert collector.take(0.05) is None
        assert collector.take(0.0) is None


def test_who_has_answered_in_time_is_not_ended_though_the_learner_was_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    for module in (scheduler, executor_worker):
        monkeypatch.setattr(module, "time", clock)
    with ExecutorCollector(
        plan("episodes", sleep=0.005), n_workers=1, task_timeout=TIMEOUT, max_pending=2
    ) as collector:
        collector.publish(chooser(0.0))
        (worker,) = collector.workers
        assert collector.take(TIMEOUT) is not None
        while not worker.tasks:  # both of its tasks were done before the learner looked
            assert collector.take(TIMEOUT) is not None
        wait_until(lambda: collector.replies.qsize() == len(worker.tasks))
        passed = 2 * TIMEOUT
        for _ in range(6):
            assert collector.take(TIMEOUT) is not None
        assert collector.report().failures == ()


@pytest.mark.parametrize(
    "what", ["raise", "exit", "kill", pytest.param("hang", marks=pytest.mark.slow), "build"]
)
@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_what_goes_wrong_costs_its_task_only(
    unit: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "DUMP_GRACE_S", TIMEOUT)
    # Only a test of hanging has a short timeout: on a slow machine it would be mistaken for a hang.
    timeout = 1.0 if what == "hang" else TIMEOUT
    share = 0.03 if unit == "steps" else 0.06
    broken = plan(unit, Broken, share=share, what=what, once=str(tmp_path), episodes=40)
    with ExecutorCollector(
        broken, n_workers=2, task_timeout=timeout, max_failures=20 if what == "hang" else 4
    ) as collector:
        pids = set(collector.pids)
        collector.publish(chooser(0.5))
        fragments = [fragment for _ in range(3) for fragment in collector.collect()]
        report = collector.report()
        assert (set(collector.pids) == pids) == (what in ("raise", "exit", "build"))
    happened = len(list(tmp_path.iterdir()))
    assert len(report.failures) >= happened >= 1
    # On a machine that stalls, others than those that hang may give no answer, too.
    assert len(report.failures) == happened or what == "hang"
    assert report.restarts == (0 if what in ("raise", "exit", "build") else len(report.failures))
    ended = Counter(tuple(episode) for fragment in fragments for episode in fragment.episodes.tolist())
    assert set(ended.values()) == {1}
    for env_index in {env_index for env_index, _ in ended}:
        numbers = sorted(number for mine, number in ended if mine == env_index)
        assert numbers == list(range(len(numbers)))
    if unit == "episodes":
        assert len(ended) == 120
    for failure in report.failures:
        assert {
            "raise": "ValueError: this game is broken",
            "exit": "SystemExit: this game is over",
            "kill": "killed by SIGKILL",
            "hang": "no answer for 1 s",
            "build": "RuntimeError: this one cannot be built",
        }[what] == failure.cause
        assert failure.at > 0
        assert (
            "building" if what == "build" else "episode" if unit == "episodes" else "rows"
        ) in failure.task
        if what not in ("hang", "kill"):
            assert "collect_cases.py" in failure.traceback
    if what == "hang":
        assert sum("this_game_hangs" in failure.traceback for failure in report.failures) == happened


@pytest.mark.parametrize(
    ("unit", "what", "cause"),
    [
        ("episodes", "raise", "ValueError: this game is broken"),
        ("steps", "raise", "ValueError: this game is broken"),
        ("episodes", "kill", "killed by SIGKILL"),
        pytest.param("episodes", "hang", "no answer for 2 s", marks=pytest.mark.slow),
        ("episodes", "build", "RuntimeError: this one cannot be built"),
    ],
)
def test_repeated_failure_stops_the_run(
    unit: Any, what: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "DUMP_GRACE_S", TIMEOUT)
    broken = plan(unit, Broken, share=0.1, what=what)
    timeout = 2.0 if what == "hang" else TIMEOUT
    with ExecutorCollector(broken, n_workers=2, task_timeout=timeout) as collector:
        collector.publish(chooser(0.0))
        with pytest.raises(CollectError, match=f"failed 3 times at .*{cause}") as caught:
            updates(collector, 20)
    if what != "kill":
        assert "collect_cases.py" in caught.value.traceback
        assert caught.value.traceback.strip() in str(caught.value)


def small_steps(seed: int, unit: Any) -> tuple[ExecutorCollector, list[dict[int, Any]]]:
    same = plan(unit, sleep=0.0005, seed=seed, episodes=30)
    with SequentialCollector(same) as sequential:
        expected = updates(sequential, 4)
    return ExecutorCollector(same, n_workers=3, max_failures=100), expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_episodes_arrive_once_though_workers_are_killed_at_random(seed: int) -> None:
    """Killed whenever it pleases chance, while they start too."""
    rng = random.Random(seed)
    collector, expected = small_steps(seed, "episodes")
    kills = 0
    with collector, Killing(collector, rng) as killing:
        deadline = time.monotonic() + TIMEOUT
        update = 0
        while kills < 8 and time.monotonic() < deadline:
            collector.publish(chooser(update % 4))
            found = rows(collector.collect())
            if update < 4:
                assert {number: (update + 1, *values[1:]) for number, values in found.items()} == expected[
                    update
                ]
            assert sorted(found) == list(range(30 * update, 30 * update + 30))
            update += 1
            kills = killing.count
        report = collector.report()
    assert kills >= 8
    assert report.restarts >= 5
    assert {failure.cause for failure in report.failures} == {"killed by SIGKILL"}, report.failures


class Killing:
    """A thread that kills a collector's workers, one after the other, at random moments."""

    def __init__(self, collector: ExecutorCollector, rng: random.Random) -> None:
        self.collector, self.rng = collector, rng
        self.count = 0

    def __enter__(self) -> "Killing":
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._kill)
        self.thread.start()
        return self

    def _kill(self) -> None:
        steps = -1
        while not self.over.wait(self.rng.uniform(0.02, 0.4)):
            # On a busy machine all of them could be killed before any has come up, for ever.
            if self.collector.report().steps == steps:
                continue
            pid = self.rng.choice(self.collector.pids or [0])
            if pid and psutil.pid_exists(pid):
                steps = self.collector.report().steps
                os.kill(pid, signal.SIGKILL)
                self.count += 1

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.thread.join()


@pytest.mark.slow
def test_rows_continue_though_workers_are_killed_at_random() -> None:
    same = plan("steps", sleep=0.0005)
    ended: list[tuple[int, int]] = []
    with (
        ExecutorCollector(same, n_workers=3, max_failures=100) as collector,
        Killing(collector, random.Random(5)) as killing,
    ):
        deadline = time.monotonic() + TIMEOUT
        collector.publish(chooser(0.0))
        while killing.count < 6 and time.monotonic() < deadline:
            for fragment in collector.collect():
                assert fragment.num_steps == 12
                ended += map(tuple, fragment.episodes.tolist())
        assert collector.report().restarts >= 3
    for env_index in range(5):
        numbers = [number for mine, number in ended if mine == env_index]
        assert numbers == list(range(len(numbers)))


def test_a_worker_killed_while_idle_is_replaced() -> None:
    with ExecutorCollector(plan("episodes"), n_workers=2) as collector:
        collector.publish(chooser(0.0))
        collector.collect()
        for pid in collector.pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        fragments = collector.collect()
        assert len(fragments) == 17
        assert collector.report().restarts == 2


def test_the_report_describes_workers() -> None:
    with ExecutorCollector(plan("episodes", sleep=0.001), n_workers=2) as collector:
        collector.publish(chooser(0.0))
        fragments = [*collector.collect(), *collector.collect()]
        report = collector.report()
    assert report.workers == 2
    assert report.steps == sum(map(len, fragments))
    assert report.episodes == 34
    assert report.failures == ()
    assert report.restarts == 0
    assert 0.001 < report.cold_start < TIMEOUT
    assert len(report.memory_mib) == 2
    assert all(1 < mib < 300 for mib in report.memory_mib)
    assert set(report.seconds) == set(ACTIVITIES)
    assert report.seconds["environment"] >= 0.001 * report.steps
    assert all(seconds > 0 for seconds in report.seconds.values())


def test_differing_spaces_stop_the_run_at_once() -> None:
    other = plan(scale=1.0)
    with ExecutorCollector(other, n_workers=2) as collector:
        collector.publish(chooser(0.0))
        with pytest.raises(CollectError, match=r"observation space of .*Noise.* the learner expects"):
            collector.collect()
        assert collector.report().failures == ()


def test_a_module_that_workers_cannot_import_is_named() -> None:
    other = Plan(EnvSpec("nowhere_at_all:make"), Chooser, plan().obs_space, ACTIONS, num_envs=1, num_steps=4)
    with ExecutorCollector(other, n_workers=1) as collector:
        collector.publish(chooser(0.0))
        with pytest.raises(CollectError, match="nowhere_at_all"):
            collector.collect()


@pytest.mark.parametrize(
    ("unit", "options", "message"),
    [
        ("steps", {"n_workers": 0}, "n_workers should be at least 1"),
        ("steps", {"n_workers": -2}, "n_workers should be at least 1"),
        ("steps", {"n_workers": 6}, "n_workers should be at most 5"),
        ("steps", {"n_workers": 2, "rebuild": True}, "episodes"),
        ("steps", {"n_workers": 2, "max_pending": 0}, "max_pending should be at least 1"),
        ("steps", {"n_workers": 2, "task_timeout": 0.0}, "task_timeout should be more than 0"),
        ("steps", {"n_workers": 2, "max_failures": 0}, "max_failures should be at least 1"),
        ("steps", {"n_workers": 2, "start_method": "fork"}, "share the learner's locks"),
    ],
)
def test_bad_arguments_are_refused(unit: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExecutorCollector(plan(unit), **options)


def test_a_plan_that_does_not_pickle_is_refused() -> None:
    local = Plan(plan().env, lambda: Chooser(), plan().obs_space, ACTIONS, num_envs=1, num_steps=4)
    with pytest.raises(TypeError, match="import path"):
        ExecutorCollector(local, n_workers=1)


@pytest.mark.slow
def test_an_environment_that_does_not_close_is_ended_and_named(tmp_path: Path) -> None:
    broken = plan("episodes", Unclosed, share=0.2, what="raise", once=str(tmp_path))
    start = time.monotonic()
    with ExecutorCollector(broken, n_workers=1, task_timeout=None) as collector:
        episodes = updates(collector, 2)
        report = collector.report()
    assert time.monotonic() - start < TIMEOUT
    happened = len(list(tmp_path.iterdir()))
    assert report.restarts == len(report.failures) == happened >= 1
    for failure in report.failures:
        assert failure.cause == "its environment's close() took longer than 10 s"
        # Both tracebacks: the error that made it close, and the place at which close() hangs.
        assert "ValueError: this game is broken" in failure.traceback
        assert "this_game_hangs" in failure.traceback
    with SequentialCollector(plan("episodes")) as sequential:
        assert updates(sequential, 2) == episodes


@pytest.mark.slow
def test_who_is_killed_at_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with ExecutorCollector(plan("episodes", Unclosed, share=0, what=""), n_workers=1) as collector:
        updates(collector, 1)
        assert caplog.messages == []
    assert caplog.messages == [
        "killed at the end of collecting, after 2 s in a step or in an environment's close(): worker 0"
    ]


@pytest.mark.slow
def test_closing_ends_everything() -> None:
    before = shared_memory(os.getpid())
    collector = ExecutorCollector(plan("episodes", sleep=TIMEOUT), n_workers=3)
    collector.publish(chooser(0.0))
    # Until they have come up, and play.
    while collector.report().cold_start == 0:
        assert collector.take(0.05) is None
    pids = collector.pids
    shared = shared_memory(os.getpid(), *pids) - before
    assert any(path.name.startswith("fastrl-") for path in shared)
    start = time.monotonic()
    collector.close()
    collector.close()
    assert time.monotonic() - start < TIMEOUT
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(CollectError, match="closed"):
        collector.collect()
    del collector
    wait_until(lambda: not any(path.exists() for path in shared))


SCRIPT = """
import sys
from collect_cases import chooser, plan
from fastrl.collectors.executor import ExecutorCollector

if __name__ == "__main__":
    options = {"what": sys.argv[2], "share": 0.5} if sys.argv[2] else {"sleep": 0.05}
    from collect_cases import Broken, Noise
    collector = ExecutorCollector(
        plan("episodes", Broken if sys.argv[2] else Noise, **options), n_workers=3, start_method=sys.argv[1]
    )
    collector.publish(chooser(0.0))
    print(*collector.pids, flush=True)
    while True:
        collector.take()
        print("taken", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "what", "start_method"),
    [
        pytest.param("SIGINT", "", "spawn", marks=pytest.mark.slow),
        pytest.param("SIGINT", "hang", "forkserver", marks=pytest.mark.slow),
        pytest.param("SIGKILL", "", "spawn", marks=pytest.mark.slow),
        ("SIGKILL", "hang", "forkserver"),
        pytest.param("SIGTERM", "", "forkserver", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_a_learner_that_ends(
    how: str, what: str, start_method: str, tmp_path: Path
) -> None:
    script = tmp_path / "learner.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": import_path()}
    with subprocess.Popen(
        [sys.executable, str(script), start_method, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as learner:
        assert learner.stdout is not None
        assert learner.stderr is not None
        pids = [int(pid) for pid in learner.stdout.readline().split()]
        assert len(pids) == 3
        learner.stdout.readline()
        time.sleep(random.Random(how + what + start_method).uniform(0, 0.3))
        shared = shared_memory(learner.pid, *pids)
        # Nothing removes semaphores if their tracker is killed, too.
        assert shared and all(path.name.startswith("fastrl-") for path in shared)
        family = psutil.Process(learner.pid).children(recursive=True)
        if how == "SIGINT":
            os.killpg(learner.pid, signal.SIGINT)
        else:
            os.kill(learner.pid, signal.Signals[how])
        assert learner.wait(TIMEOUT) != 0
        wait_until(lambda: not any(process.is_running() for process in family))
        wait_until(lambda: not any(path.exists() for path in shared))
        trace = learner.stderr.read()
        # One traceback: the learner's own.
        assert how != "SIGINT" or trace.count("Traceback") == 1, trace


def test_fragments_stay_what_they_are(tmp_path: Path) -> None:
    """The caller owns what was taken: later tasks use the same slots."""
    with ExecutorCollector(plan("steps"), n_workers=1) as collector:
        collector.publish(chooser(0.0))
        taken: list[tuple[Fragment, Any]] = []
        for _ in range(10):
            fragment = collector.take(TIMEOUT)
            assert fragment is not None
            taken.append((fragment, rows([fragment])))
        for fragment, was in taken:
            assert rows([fragment]) == was


def test_time_of_collection_that_overlaps_learning_is_measured() -> None:
    with ExecutorCollector(plan(sleep=0.001), n_workers=2) as collector:
        updates(collector)
        # It waited for all of it.
        assert collector.report().overlap_seconds == 0.0
    with ExecutorCollector(plan(sleep=0.001), n_workers=2) as collector:
        collector.publish(chooser(0.0))
        began, waited = time.monotonic(), 0.0
        while not collector.report().overlap_seconds:
            now = time.monotonic()
            assert collector.take() is not None
            waited += time.monotonic() - now
            time.sleep(0.05)
        absent = time.monotonic() - began - waited
        assert 0.0 < (collector.report().overlap_seconds or 0.0) <= 2 * absent
