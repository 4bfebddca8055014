"""Collection on Ray actors: a local Ray with two processors, which the tests of this module share."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import ACTIONS, Broken, Chooser, Wrong, chooser, plan, rows, take_many, updates
from waiting import TIMEOUT

from fastrl.collectors import ray_collector
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.ray_cluster import connect, start, try_out
from fastrl.collectors.ray_collector import RayCollector
from fastrl.collectors.sequential import SequentialCollector
from fastrl.utils.seeding import NO_ENV

ray = pytest.importorskip("ray", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def address() -> Iterator[str]:
    path = os.environ.get("PYTHONPATH")
    start(2, 100 * 2**20)
    assert os.environ.get("PYTHONPATH") == path
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_it_plays_what_one_process_plays_and_a_killed_worker_costs_its_task_only(unit: Any) -> None:
    same = plan(unit, forces=unit == "steps")
    found = []
    with SequentialCollector(same) as sequential, RayCollector(same, n_workers=2) as collector:
        expected = updates(sequential)
        for update in range(3):
            assert collector.publish(chooser(update)) == update + 1
            if update == 2:
                # One worker may have run all of the whole episodes before the other was ready; such a one gets no task.
                pids = {index: pid for index, pid in enumerate(collector.pids) if pid is not None}
                assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids.values()} == {
                    os.getpriority(os.PRIO_PROCESS, 0)
                }
                victim = max(pids)
                os.kill(pids[victim], signal.SIGKILL)
            fragments = collector.collect()
            found.append(rows(fragments))
            places = [each.place for each in fragments]
            assert places == sorted(places)
        assert pids[victim] not in collector.pids
        report = collector.report()
        assert unit == "steps" or collector.state_dict() == sequential.state_dict()
        with pytest.raises(ValueError, match="4 bytes, got 12"):
            collector.publish(np.zeros(3, np.float32))
        with pytest.raises(CollectError, match="of its own"):
            collector.take()
    assert found[:2] == expected[:2]
    assert found[2].keys() == expected[2].keys()
    # Running episodes of the dead worker are restarted; whole episodes are the same on any worker.
    kept = expected[2].keys() if unit == "episodes" else range(2) if victim == 1 else range(2, 5)
    assert all(found[2][key] == expected[2][key] for key in kept)
    [failure] = report.failures
    assert (report.workers, report.restarts) == (2, 1)
    assert (failure.worker, failure.cause) == (victim, "its process died")
    assert failure.task.startswith("a fragment of rows" if unit == "steps" else "episode")
    assert report.steps == sum(len(each[6]) for update in found for each in update.values())
    assert report.memory_mib and all(20 < mib < 300 for mib in report.memory_mib)
    assert report.cold_start > 0 and report.seconds["environment"] > 0


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_another_collector_resumes_from_a_state(unit: Any) -> None:
    with SequentialCollector(plan(unit)) as first, SequentialCollector(plan(unit)) as sequential:
        updates(first, 2)
        sequential.load_state_dict(first.state_dict())
        with RayCollector(plan(unit), n_workers=1) as collector:
            collector.load_state_dict(first.state_dict())
            assert collector.version == 2
            assert updates(collector, 1) == updates(sequential, 1)
            assert collector.state_dict() == sequential.state_dict()


@pytest.mark.parametrize("what", ["raise", "hang"])
def test_what_goes_wrong_costs_its_task_only(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_collector, "DUMP_GRACE_S", TIMEOUT)
    broken = plan("episodes", Broken, share=0.1, what=what, once=str(tmp_path), episodes=20)
    # Only a test of hanging has a short timeout: on a slow machine it would be mistaken for a hang.
    timeout = 1.0 if what == "hang" else TIMEOUT
    with RayCollector(broken, n_workers=2, task_timeout=timeout, max_failures=4) as collector:
        ended = [episode for update in updates(collector, 1) for episode in update]
        report = collector.report()
    assert ended == list(range(20))
    happened = len(list(tmp_path.iterdir()))
    assert report.restarts == (len(report.failures) if what == "hang" else 0)
    # On a machine that stalls, others than those that hang may give no answer, too.
    found = ["collect_cases.py" in failure.traceback for failure in report.failures]
    assert sum(found) == happened >= 1
    assert what == "hang" or all(found)
    for failure in report.failures:
        cause = {"raise": "ValueError: this game is broken", "hang": "no answer for "}[what]
        assert failure.cause.startswith(cause)
        assert "episode" in failure.task


@pytest.mark.parametrize(
    ("unit", "what", "cause"),
    [
        ("episodes", "raise", "ValueError: this game is broken"),
        ("steps", "kill", "its process died"),
        ("episodes", "build", "RuntimeError: this one cannot be built"),
    ],
)
def test_repeated_failure_stops_the_run(unit: Any, what: str, cause: str) -> None:
    broken = plan(unit, Broken, share=0.3, what=what)
    with (
        RayCollector(broken, n_workers=1, max_failures=2) as collector,
        pytest.raises(CollectError, match=f"failed 2 times at .*{cause}") as caught,
    ):
        updates(collector, 20)
    if what != "kill":
        assert "collect_cases.py" in caught.value.traceback


def test_asynchronous_collection_continues_with_the_newest_weights() -> None:
    with RayCollector(plan(), n_workers=2, max_pending=6) as collector:
        collector.publish(chooser(0.0))
        versions = take_many(collector, 60, set(range(5)))
    assert versions[0] == 1
    assert versions[-1] >= 5


def test_tasks_that_wait_get_the_weights_that_are_newest_when_they_begin() -> None:
    with RayCollector(plan("episodes", sleep=0.02), n_workers=1, max_pending=20) as collector:
        collector.publish(chooser(0.0))
        assert collector.take(0.0) is None
        assert collector.take(60.0) is not None
        # All of them were scheduled with version 1.
        collector.publish(chooser(1.0))
        fragments = [collector.take(60.0) for _ in range(19)]
        assert fragments[-1] is not None and fragments[-1].version == 2
        assert fragments[-1].episodes.tolist() == [[NO_ENV, 19]]


def test_spaces_that_the_learner_does_not_expect_are_refused() -> None:
    other = gymnasium.spaces.Box(-1, 1, (2, 2), np.float64)
    wrong = Plan(plan().env, Chooser, other, ACTIONS, num_envs=2, num_steps=3)
    with (
        RayCollector(wrong, n_workers=1) as collector,
        pytest.raises(CollectError, match=r"observation space .* learner expects"),
    ):
        updates(collector)


@pytest.mark.parametrize(
    ("what", "said"), [("nan reward", "step() gave the reward nan"), ("4 values", "got 4 values")]
)
def test_what_an_environment_should_not_give_ends_the_run(what: str, said: str) -> None:
    with (
        RayCollector(plan("episodes", Wrong, what=what), n_workers=1) as collector,
        pytest.raises(CollectError, match=re.escape(said)) as caught,
    ):
        updates(collector)
    assert caught.value.traceback == ""
    assert len(collector.report().failures) == 0


def test_a_slow_machine_may_start_workers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has a processor for each worker."""
    monkeypatch.setattr(ray_collector, "START_TIMEOUT_S", 0.001)
    with RayCollector(plan("steps"), n_workers=2) as collector:
        collector.publish(chooser(0))
        assert collector.collect()
    monkeypatch.setattr(ray_collector, "SLOW_START_S", 0.001)
    with RayCollector(plan("steps"), n_workers=2) as collector:
        collector.publish(chooser(0))
        with pytest.raises(
            CollectError, match=r"did not start within 0\.001 s: the Ray cluster should have a free"
        ):
            collector.collect()


def test_a_cluster_has_so_many_processors() -> None:
    with RayCollector(plan(), n_workers="auto") as collector:
        assert len(collector.pids) == 2
    with pytest.raises(CollectError, match=r"3 workers need 3 processors.* has 2.*smaller n_workers"):
        RayCollector(plan(), n_workers=3)
    with pytest.raises(ValueError, match="100 workers do not fit into memory"):
        RayCollector(plan(num_envs=100), n_workers=100, cpus_per_worker=0.02, measure=lambda: 2**32)
    assert ray.is_initialized(), "it was not started by a collector, and none may end it"


def test_arguments_that_make_no_sense_are_refused() -> None:
    for options, message in (
        ({"n_workers": 0}, "n_workers should be at least 1"),
        ({"n_workers": 6}, "n_workers should be at most 5"),
        ({"max_pending": 0}, "max_pending should be at least 1, got 0"),
        ({"task_timeout": 0.0}, "task_timeout should be more than 0 s"),
        ({"cpus_per_worker": -1.0}, "cpus_per_worker should be more than 0"),
        ({"max_failures": 0}, "max_failures should be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            RayCollector(plan(), **options)


def test_a_collector_needs_weights_and_to_be_open() -> None:
    collector = RayCollector(plan(), n_workers=1)
    with pytest.raises(CollectError, match="no weights yet"):
        collector.collect()
    collector.close()
    collector.close()
    with pytest.raises(CollectError, match="closed"):
        collector.collect()


def test_ray_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CollectError, match=r"not installed: pip install 'fastrl\[ray\]'$"):
        RayCollector(plan())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", r"ray_address should be 'host:port' or 'auto', got 'nonsense'"),
        ("127.0.0.1:1", r"no Ray cluster answers at 127\.0\.0\.1:1: .*refused; give the address"),
        ("nowhere.invalid:6379", r"no Ray cluster answers at nowhere\.invalid:6379: "),
    ],
)
def test_an_address_where_nothing_is_gets_one_line(address: str, message: str) -> None:
    with pytest.raises(CollectError, match=message) as caught:
        connect(address, 1.0 if "invalid" in address else TIMEOUT)
    assert "\n" not in str(caught.value)


def test_an_address_that_does_not_answer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CollectError, match=r"no Ray cluster answers.*no answer within 1 s") as caught:
            connect(silent_address, 1.0)
    assert "\n" not in str(caught.value)


def test_a_cluster_that_answers_is_found(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a process that is connected already can check it."""
    tried: list[subprocess.CompletedProcess[str]] = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **options: tried.append(run(*args, **options)) or tried[0]
    )
    try_out(address, TIMEOUT)
    assert [(each.args[-2], each.returncode) for each in tried] == [(address, 0)]
