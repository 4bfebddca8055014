"""Fixtures and settings of all tests."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from fastrl.collectors.resources import use_cores

if TYPE_CHECKING:
    from rank_runs import RankProcesses

# Threads of PyTorch in several processes would compete for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under ``nohup pytest &`` programs that tests start would ignore these signals, too. They do not inherit handlers: in
# them SIGHUP has its usual effect, and here it still has none.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Examples are the same in each run, so that what passed fails only after a change. Others are sought with
# `pytest --hypothesis-profile=search`. Neither minds a machine that is busy.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", PATIENT, derandomize=True, database=None)
settings.register_profile("search", PATIENT, derandomize=False, max_examples=2000, print_blob=True)
settings.load_profile("repeat")


# Waits for the disk would be a tenth of the time. Only a crash of the machine would tell the difference.
os.fsync = lambda fd: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leaves modules and tests, which stay, out of garbage collections: they find nothing in them, and take time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Processes that share the tests: one a core and one more, since many tests wait for processes that they start, and
    not so many that memory runs out; ``-n 0`` for one."""
    return min((os.cpu_count() or 1) + 1, 5)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With pytest-xdist, files of long tests come first: last, they would leave the other processes idle."""
    if hasattr(config, "workerinput"):
        marks = {
            mark: {item.path for item in items if item.get_closest_marker(mark)}
            for mark in ("learning", "slow")
        }
        items.sort(key=lambda item: (item.path not in marks["learning"], item.path not in marks["slow"]))


@pytest.fixture(scope="session", autouse=True)
def _torch_for_workers(request: pytest.FixtureRequest) -> None:
    """PyTorch in the process that workers are copied from: loading it takes each two seconds, and many slow tests start
    some that need it."""
    if any(item.get_closest_marker("slow") for item in request.session.items):
        multiprocessing.get_context("forkserver").set_forkserver_preload(["torch"])
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def _no_litter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3 makes a folder for its logs in the system's temporary one, unless it is given another."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path_factory.getbasetemp() / "sb3"))


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    """A run limits the cores of its process: the next test has all of them."""
    yield
    use_cores("auto")


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Ray with two workers on this machine, for the tests of a module."""
    ray = pytest.importorskip("ray", reason="pip install '.[test-all]'")
    from fastrl.collectors.ray_cluster import start

    start(2, 100 * 2**20)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def on_ranks() -> Iterator["RankProcesses"]:
    """Runs functions on ranks; their processes end with the tests of a module."""
    from rank_runs import RankProcesses

    processes = RankProcesses()
    yield processes
    processes.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch with one thread: small networks gain nothing from more, and threads that wait for each other suffer on a
    busy machine."""
    from fastrl.utils import torch_threads

    with torch_threads.one_thread():
        yield
