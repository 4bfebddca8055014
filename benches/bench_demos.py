"""Recording of demonstrations: what writing adds to collecting, beside Minari's collector, speeds and scaling.

Run: ``pytest benches/bench_demos.py -s`` on an otherwise idle machine. Contenders take turns in one process; rates are
of environment steps that are on disk at the end, memory is of each worker.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from demo_expert import lean
from fastrl.demos import recorder
from fastrl.demos.find_expert import find_expert
from fastrl.demos.recorder import Recording, make_plan
from fastrl.envs.spec import EnvSpec
from recording import Record
from results import Case
from rounds import measure_in_turns

ROUNDS = 5

# Of test_more_workers: mean time of a step, episodes of 100 steps.
UNEVEN_SECONDS, UNEVEN_EPISODES = 0.002, 160


def collected(env: str, expert: Any, episodes: int, collector: str, workers: int, **options: Any) -> float:
    """Steps a second of a recording that is not written."""
    spec = EnvSpec(env, options)
    one = spec.make()
    found = find_expert(expert, one)
    plan = make_plan(spec, found, one, episodes, seed=0, noise=None, max_episode_steps=0)
    steps = 0
    start = time.perf_counter()
    with Recording(plan, 0, collector, workers, found) as recording:
        while not recording.is_done:
            steps += sum(map(len, recording.take(0.25)))
        return steps / (time.perf_counter() - start)


def recorded(
    out: Path, env: str, expert: Any, episodes: int, collector: str, workers: int, **options: Any
) -> float:
    """Steps a second of a recording, with everything from the first environment to the last byte."""
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    demos = recorder.record(
        env,
        expert,
        episodes,
        out,
        env_options=options,
        collector=collector,
        **({} if collector == "sequential" else {"n_workers": workers}),
    )
    return demos.num_steps / (time.perf_counter() - start)


@pytest.fixture(scope="module", autouse=True)
def warmed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports what the first recording of a process imports."""
    recorded(tmp_path_factory.mktemp("warm") / "demos", "CartPole-v1", lean, 5, "sequential", 1)


TITLE = "Recording of demonstrations"


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("CartPole, one process", ("CartPole-v1", lean, 300, "sequential", 1)),
        ("CartPole, two workers", ("CartPole-v1", "demo_expert:lean", 2000, "executor", 2)),
        ("CAGE 2, two threads", ("fastrl/Cage2-v0", "baseline:react-restore", 8192, "native", 2)),
    ],
)
def test_writing_beside_collecting_alone(
    name: str, case: tuple[Any, ...], tmp_path: Path, record: Record
) -> None:
    rates = measure_in_turns(
        {
            "collecting alone": lambda: collected(*case),
            "fastrl, recording": lambda: recorded(tmp_path / "demos", *case),
        },
        ROUNDS,
    )
    found = Case(name, rates)
    record(f"{TITLE} beside collecting alone", "steps/s", [found], ["fastrl, recording"])
    assert found.ratio("collecting alone", "fastrl, recording").median < 1.1


def test_cartpole_beside_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("jax", reason="Minari's collector needs it: pip install 'minari[create]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = 300
    numbers = iter(range(1000))

    def with_minari() -> float:
        env = minari.DataCollector(gymnasium.make("CartPole-v1"))
        steps, start = 0, time.perf_counter()
        for i in range(episodes):
            obs, _ = env.reset(seed=i)
            over = False
            while not over:
                obs, _, terminated, truncated, _ = env.step(lean(obs))
                steps += 1
                over = terminated or truncated
        env.create_dataset(dataset_id=f"bench/cartpole-v{next(numbers)}", author="bench")
        return steps / (time.perf_counter() - start)

    contenders: dict[str, Callable[[], float]] = {"Minari's DataCollector": with_minari}
    for workers in (1, 2):
        contenders[f"fastrl, {workers} worker{'s' * (workers > 1)}"] = lambda workers=workers: recorded(
            tmp_path / "demos",
            "CartPole-v1",
            "demo_expert:lean",
            episodes if workers == 1 else 20 * episodes,
            "sequential" if workers == 1 else "executor",
            workers,
        )
    ours = [name for name in contenders if name.startswith("fastrl")]
    case = Case("CartPole-v1", measure_in_turns(contenders, ROUNDS))
    record(f"{TITLE} beside Minari", "steps/s", [case], ours)


def test_cage2(tmp_path: Path, record: Record) -> None:
    case = ("fastrl/Cage2-v0", "baseline:react-restore", 16384, "native", 2)
    rates = [recorded(tmp_path / "demos", *case, red_agent="bline") for _ in range(ROUNDS)]
    of = Case("CAGE 2, react-restore, two threads", {"fastrl": rates})
    record(f"{TITLE} of CAGE 2", "steps/s", [of], ["fastrl"])
    assert statistics.median(rates) > 500_000


def test_more_workers_on_uneven_steps(tmp_path: Path, record: Record) -> None:
    def rate(workers: int) -> float:
        episodes = UNEVEN_EPISODES * workers // 8
        return recorded(
            tmp_path / f"{workers}",
            "fastrl/Uneven-v0",
            "random",
            episodes,
            "executor",
            workers,
            step_seconds=UNEVEN_SECONDS,
        )

    one, four, eight = "1 worker", "4 workers", "8 workers"
    rates = measure_in_turns({name: lambda n=int(name[0]): rate(n) for name in (one, four, eight)}, 3)
    case = Case("fastrl/Uneven-v0, steps that sleep", rates)
    record(f"{TITLE} by more workers", "steps/s", [case], [four, eight])
    assert case.ratio(four, one).median >= 3.3 and case.ratio(eight, one).median >= 5


def test_memory_of_workers(record: Record) -> None:
    spec = EnvSpec("CartPole-v1")
    env = spec.make()
    found = find_expert("demo_expert:lean", env)
    plan = make_plan(spec, found, env, 2000, seed=0, noise=None, max_episode_steps=0)
    with Recording(plan, 0, "executor", 2, found) as recording:
        while not recording.is_done:
            recording.take(0.25)
        mib = recording.collector.report().memory_mib
    case = Case("CartPole-v1", {"fastrl": [float(each) for each in mib]})
    title = "Memory of a worker that records demonstrations"
    record(title, "MiB", [case], ["fastrl"], lower_is_better=True)
    assert max(mib) <= 60 and np.isfinite(mib).all()
