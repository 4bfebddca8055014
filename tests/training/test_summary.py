import io
import json
from typing import Any

import pytest
from rich.console import Console

from fastrl.training.evaluation import Returns
from fastrl.training.profiler import LEARNER_ACTIVITIES
from fastrl.training.summary import Summary
from fastrl.utils.files import to_json


def summary_of(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "status": "complete",
        "signal": None,
        "run": "runs/a",
        "checkpoint": "runs/a/checkpoints/1",
        "kind": "gym",
        "env": "CartPole-v1",
        "algorithm": "ppo",
        "collector": "sync",
        "unit": "steps",
        "steps": 1000,
        "episodes": 10,
        "iterations": 5,
        "seconds": 2000.0,
        "steps_per_second": 0.5,
        "episodes_per_second": 0.005,
        "mean_return": 1.0,
        "device": "cpu",
        "parts": dict.fromkeys(LEARNER_ACTIVITIES[:8], 250.0),
        "peak_memory_mib": 100.0,
        "peak_gpu_memory_mib": None,
    }
    return Summary(**values | changes)


def printed(summary: Summary, *, times: bool) -> list[str]:
    console = Console(width=100, file=io.StringIO())
    (summary.print_times if times else summary.print)(console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_times_of_a_run_fit_a_terminal() -> None:
    blank, title, names, _, seconds, shares = printed(summary_of(), times=True)
    assert (blank, title.strip()) == ("", "where the time went")
    assert names.split() == list(LEARNER_ACTIVITIES[:8])
    assert seconds.split() == ["250.0", "s"] * 8
    assert shares.split() == ["12.5%"] * 8


def test_without_parts_no_times_are_printed() -> None:
    assert printed(summary_of(parts={}), times=True) == []


def test_the_summary_leaves_the_times_to_their_own_table() -> None:
    lines = printed(summary_of(lines=["2 workers"]), times=False)
    assert lines[0].startswith(
        "ppo on CartPole-v1 (sync): 1,000 steps, 10 episodes, 5 updates in 33:20 on cpu"
    )
    assert "2 workers" in lines
    assert not any("%" in line for line in lines)


def test_its_tree_is_json_with_details_beside_the_rest() -> None:
    tree = json.loads(to_json(summary_of(evaluation=Returns((1.0, 3.0)), details={"restarts": 2}).to_tree()))
    assert tree["restarts"] == 2
    assert tree["evaluation"]["mean"] == 2.0
    assert tree["parts"]["update"] == {"seconds": 250.0, "share": 0.125}
    assert sum(part["share"] for part in tree["parts"].values()) == pytest.approx(1)
    assert not {"lines", "details"} & tree.keys()
