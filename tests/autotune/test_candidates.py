from __future__ import annotations

from typing import Any

import pytest
from collect_cases import plan
from small_runs import settings_of

from fastrl.autotune.candidates import candidates, kinds_for
from fastrl.autotune.way import doubling
from fastrl.collectors.probe import Probe
from fastrl.runs.errors import TrainError
from fastrl.sources.collecting import CollectConfig
from fastrl.tasks import find

# Steps of 10 ms, which make processes worth their costs.
COMPUTING, SLEEPING = (Probe(0.01, 1.0, memory=0, sleeps=sleeps) for sleeps in (False, True))


def labels(own: Any, probe: Probe = COMPUTING, *fixed: str, num_cores: int = 4, **collect: Any) -> list[str]:
    found = candidates(own, CollectConfig(**collect), probe, fixed=fixed, num_cores=num_cores)
    return [way.label for way in found]


def test_counts_double() -> None:
    assert [doubling(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_kinds_are_those_that_suit_the_environment() -> None:
    assert kinds_for(plan()) == ["sequential", "executor", "sync"]
    compiled = find("cage2").make_trainer(settings_of("cage2", "--num-envs=8"))
    own = compiled.source.plan  # type: ignore[attr-defined]
    assert kinds_for(own) == ["native"]
    assert labels(own) == ["native, 4 threads", "native, 2 threads", "native, 1 thread"]


def test_the_runs_own_comes_first_then_as_many_workers_as_cores() -> None:
    expected = ["executor, 4 workers", "sync, 4 workers", "executor, 2 workers", "sync, 2 workers"]
    assert labels(plan(num_envs=8)) == [*expected, "sequential", "executor, 1 worker"]
    own = labels(plan(num_envs=8), collector="sync", n_workers=3)
    assert own == ["sync, 3 workers", *expected, "sequential", "executor, 1 worker"]
    # Steps that cost nothing are not worth processes.
    assert labels(plan(num_envs=8), Probe(1e-6, 1.0, memory=0))[:2] == ["sequential", "executor, 4 workers"]


def test_workers_are_more_than_cores_only_where_steps_sleep() -> None:
    assert labels(plan(num_envs=16), SLEEPING)[:3] == [
        "executor, 4 workers",
        "executor, 16 workers",
        "sync, 16 workers",
    ]
    assert "executor, 64 workers" in labels(plan(num_envs=100), SLEEPING)
    assert "executor, 100 workers" not in labels(plan(num_envs=100), SLEEPING)
    assert set(labels(plan(num_envs=2))) == {
        "sequential",
        "executor, 1 worker",
        "executor, 2 workers",
        "sync, 2 workers",
    }
    # Whole episodes are shared out, not environments.
    assert labels(plan("episodes", num_envs=1, episodes=16), SLEEPING)[1] == "executor, 16 workers"
    assert labels(plan(num_envs=1)) == ["sequential", "executor, 1 worker"]


def test_fixed_settings_stay() -> None:
    own = plan(num_envs=8)
    assert labels(own, COMPUTING, "collect.collector", collector="sync") == [
        "sync, 4 workers",
        "sync, 2 workers",
        "sync, 1 worker",
    ]
    assert labels(own, COMPUTING, "collect.n_workers", n_workers=3) == [
        "executor, 3 workers",
        "sync, 3 workers",
    ]
    assert labels(own, COMPUTING, "collect.n_workers")[0] == "executor, 4 workers"
    fixed = ("collect.collector", "collect.n_workers")
    [way] = candidates(
        own, CollectConfig(collector="executor", n_workers=2), COMPUTING, fixed=fixed, num_cores=4
    )
    assert (way.label, way.values, way.effort) == ("executor, 2 workers", {}, 2)
    with pytest.raises(TrainError, match="--collector ray: nothing is measured on a cluster"):
        labels(own, COMPUTING, "collect.collector", collector="ray")
    with pytest.raises(TrainError, match="--collector live: nothing is measured of a live simulation"):
        labels(own, COMPUTING, "collect.collector", collector="live")
