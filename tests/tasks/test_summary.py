import io
from typing import Any

import pytest
from rich.console import Console

from fastrl.tasks.summary import GymSummary, PixelSummary

PARTS = ("environment", "inference", "buffer", "returns", "update", "publishing", "waiting", "other")
COMMON: dict[str, Any] = {
    "status": "complete",
    "signal": None,
    "run": "runs/a",
    "checkpoint": "runs/a/checkpoints/1",
    "env": "fastrl/Catch-v0",
    "steps": 1000,
    "seconds": 2000.0,
    "mean_return": 1.0,
    "device": "cpu",
    "dropped": 0,
    "restarts": 0,
    "peak_memory_mib": 100.0,
    "peak_gpu_memory_mib": None,
    "evaluation": None,
}


def gym(**changes: Any) -> GymSummary:
    own: dict[str, Any] = {
        "algorithm": "ppo",
        "collector": "sync",
        "episodes": 10,
        "iterations": 5,
        "steps_per_second": 0.5,
        "parts": dict.fromkeys(PARTS, 250.0),
        "workers": {},
        "worker_memory_mib": (),
        "cold_start": 0.0,
        "policy_lag": 0.0,
        "max_policy_lag": 0,
        "failures": 0,
    }
    return GymSummary(**COMMON | own | changes)


def pixels(**changes: Any) -> PixelSummary:
    own: dict[str, Any] = {
        "games": 10,
        "batches": 100,
        "experience_per_second": 5.0,
        "batches_per_second": 1.0,
        "collectors": {"environment": 0.5, "queue": 0.5, "waiting": 0.375},
        "learner": {"waiting": 0.25, "update": 0.75},
    }
    return PixelSummary(**COMMON | own | changes)


def told(summary: GymSummary | PixelSummary, *, times: bool) -> list[str]:
    console = Console(width=80, file=io.StringIO())
    (summary.print_times if times else summary.print)(console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_times_of_a_run_fit_a_terminal() -> None:
    blank, title, names, _, seconds, shares = told(gym(), times=True)
    assert (blank, title) == ("", "where the time went")
    assert names.split() == list(PARTS)
    assert seconds.split() == ["250.0", "s"] * len(PARTS)
    assert shares.split() == ["12.5%"] * len(PARTS)


def test_collectors_that_wait_do_so_while_they_hand_over() -> None:
    assert told(pixels(), times=True) == [
        "",
        "time of the collectors: environment 50.0%, queue 50.0% (37.5% waiting for room)",
        "time of the learner: waiting 25.0%, update 75.0%",
    ]


@pytest.mark.parametrize("summary", [gym(parts={}), pixels(collectors={}, learner={})])
def test_where_nothing_was_done_no_time_went(summary: GymSummary | PixelSummary) -> None:
    assert told(summary, times=True) == []


@pytest.mark.parametrize("summary", [gym(), pixels()])
def test_a_summary_leaves_the_times_to_whoever_asks(summary: GymSummary | PixelSummary) -> None:
    assert not any("time" in line or "%" in line for line in told(summary, times=False))
