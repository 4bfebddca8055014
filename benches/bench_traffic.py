"""Traffic beside its peers, on one core: environment steps a second, observations and resets included.

Run: ``pytest benches/bench_traffic.py -s`` on an otherwise idle machine; it takes about two minutes. Each contender
lives in a process of its own that is kept on one core; they are measured in turns, and the table has medians.

- highway-v0 and highway-fast-v0, random actions: highway-env, and the C++ port of it in EnvPool.
- ring-v0, 22 vehicles: the same ring in SUMO through libsumo, which is not reset meanwhile.
- coop-highway-v0, 15 agents: VMAS's road_traffic with as many, vehicles on other roads, which is not reset either.
- Tasks of users: environments beside themselves with their own reward, computed by a `DrivingTask`.

highway-env and libsumo come from the present environment (extras ``test`` and ``sumo``). EnvPool and VMAS want other
versions of other things: name the Python of an environment that has them in FASTRL_ENVPOOL_PYTHON (envpool==1.2.5,
gymnasium) and FASTRL_VMAS_PYTHON (vmas==1.5.2, gymnasium). Without the first the bench makes such an environment by
itself. What cannot be had is left out, with the reason.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from results import Benchmark, Case
from traffic_contenders import NUM_ENVS, NUM_RINGS

ROUNDS = 5
SECONDS = 1.0
# highway-env makes a few steps a second: it is measured so much longer.
SLOW = 4
INSTALL_SECONDS = 90
CONTENDERS = Path(__file__).with_name("traffic_contenders.py")


class Process:
    """A contender in a process of its own."""

    def __init__(self, name: str, python: str = sys.executable) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [python, str(CONTENDERS), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | threads,
        )
        self.speeds: list[float] = []

    def measure(self, seconds: float) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(self._log.read().strip().splitlines()[-1:])
        self.speeds.append(float(json.loads(answer)))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def has(python: str, module: str) -> bool:
    return (
        subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(scope="module")
def envpool_python(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """An interpreter that has EnvPool; None where there is none."""
    named = os.environ.get("FASTRL_ENVPOOL_PYTHON")
    if named or has(sys.executable, "envpool"):
        return named or sys.executable
    folder = tmp_path_factory.mktemp("envpool")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "envpool==1.2.5", "gymnasium"]
    try:
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"\nEnvPool is left out, it does not install: {error}; see FASTRL_ENVPOOL_PYTHON")
        return None
    return python


def compare(
    record: Callable[..., Benchmark],
    title: str,
    unit: str,
    ours: dict[str, str],
    theirs: dict[str, tuple[str, str | None]],
    *,
    heading: str = "Traffic on one core",
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> Case:
    """Measures in turns, records the speeds and returns them.

    Args:
        record: the fixture.
        ours: contenders by the words of the table.
        theirs: the same, with the interpreter that has them; None leaves one out.
        heading: of the results in the documentation.
        rounds: how often each is measured.
        seconds: for how long each time; four times as long for highway-env.
    """
    processes = {label: Process(name) for label, name in ours.items()}
    missing = {}
    for label, (name, python) in theirs.items():
        if python is None:
            missing[label] = "not installed"
        else:
            processes[label] = Process(name, python)
    try:
        for _ in range(rounds):
            for label, process in list(processes.items()):
                try:
                    process.measure(seconds * (SLOW if label.startswith("highway-env") else 1))
                except RuntimeError as error:
                    if label in ours:
                        raise
                    missing[label] = str(error)
                    processes.pop(label).close()
    finally:
        for process in processes.values():
            process.close()
    case = Case(title, {label: process.speeds for label, process in processes.items()})
    result = record(heading, f"{unit}/s", [case], list(ours), left_out=missing)
    assert (
        max(ratio.median for _, _, ratio in result.ratios(case)) > 1 if len(case.rates) > len(ours) else True
    )
    return case


@pytest.mark.parametrize(("name", "env_id"), [("highway", "highway-v0"), ("fast", "highway-fast-v0")])
def test_highways(
    name: str, env_id: str, envpool_python: str | None, record: Callable[..., Benchmark]
) -> None:
    there = importlib.util.find_spec("highway_env") is not None
    compare(
        record,
        env_id,
        "environment steps",
        {
            "fastrl, gymnasium.make": f"{name}, here, gymnasium.make",
            f"fastrl, gymnasium.make_vec, {NUM_ENVS}": f"{name}, here, make_vec",
        },
        {
            "highway-env": (f"{name}, highway-env", sys.executable if there else None),
            f"EnvPool, {NUM_ENVS}": (f"{name}, EnvPool", envpool_python),
        },
    )


def test_rings(record: Callable[..., Benchmark]) -> None:
    there = sys.executable if importlib.util.find_spec("libsumo") else None
    compare(
        record,
        "ring-v0, 22 vehicles",
        "environment steps",
        {f"fastrl, {NUM_RINGS}": "ring, here"},
        {
            "libsumo env, Flow's observation and reward": ("ring, libsumo, env", there),
            "libsumo alone, the simulation": ("ring, libsumo", there),
        },
    )


def test_cooperation(record: Callable[..., Benchmark]) -> None:
    python = os.environ.get("FASTRL_VMAS_PYTHON") or (
        sys.executable if importlib.util.find_spec("vmas") else None
    )
    if python is None:
        print("\nVMAS is left out: it is not installed; see FASTRL_VMAS_PYTHON")
    compare(
        record,
        "coop-highway-v0, 15 agents",
        "environment steps",
        {
            f"fastrl, {NUM_ENVS}, random actions": "coop, here, random",
            f"fastrl, {NUM_ENVS}, idle": "coop, here, idle",
        },
        {f"VMAS, {NUM_ENVS}, road_traffic": ("coop, VMAS", python)},
    )


@pytest.mark.parametrize(
    ("env_id", "plain"),
    [("highway-v0", "make_vec"), ("merge-v0", "make_vec"), ("coop-merge-v0", "make_multi")],
)
def test_tasks_of_users(env_id: str, plain: str, record: Callable[..., Benchmark]) -> None:
    task, compiled = "its reward as a task in Python", "its own reward, compiled"
    ours = {task: f"{env_id}, here, task", compiled: f"{env_id}, here, {plain}"}
    heading = f"Tasks of users, {NUM_ENVS} environments"
    case = compare(record, env_id, "environment steps", ours, {}, heading=heading)
    assert case.ratio(task, compiled).median > 0.5
