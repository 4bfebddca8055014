"""The board of seconds to a score: its runs, their clock, what continues after a stop, and the table."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import score_runs
import seconds_to_score
from score_runs import Clock, Run
from seconds_to_score import Row, entries, planned, read_rows, table, train_missing

PLAN = {
    "seeds": 2,
    "episodes": 3,
    "tasks": [
        {
            "name": "Cart",
            "env": "CartPole-v1",
            "score": 475,
            "every": 10,
            "max_seconds": 60,
            "contenders": {
                "fastrl": {"algo": "ppo", "steps": 100, "settings": {"x": 1}},
                "Stable-Baselines3": {
                    "algo": "PPO",
                    "env": "Other",
                    "steps": 200,
                    "settings": {"y": 2, "z": 3},
                },
                "sbx": {"like": "Stable-Baselines3", "settings": {"z": 4}},
            },
        },
        {
            "name": "Long",
            "env": "Pendulum-v1",
            "needs": "no_such_module",
            "score": -150,
            "every": 5,
            "max_seconds": 600,
            "contenders": {"fastrl": {"algo": "sac", "steps": 50}},
        },
    ],
}
RUNS = planned(PLAN)
ABOUT = {
    "date": "2026-11-28",
    "machine": {"processor": "a processor", "cores": 2},
    "versions": {"python": "3.13"},
}


def row(run: Run, seconds: float, reached: bool = True) -> Row:
    return Row(run, reached, [[seconds / 2, 10, 5.0], [seconds, 20, 480.0 if reached else 4.0]], ABOUT)


def test_runs_come_task_by_task_and_seed_by_seed() -> None:
    names = [(run.task, run.seed, run.contender) for run in RUNS]
    contenders = ("fastrl", "Stable-Baselines3", "sbx")
    cart = [("Cart", seed, name) for seed in range(2) for name in contenders]
    assert names == [*cart, ("Long", 0, "fastrl"), ("Long", 1, "fastrl")]
    ours, theirs, like = RUNS[:3]
    assert (ours.env, ours.steps, ours.settings) == ("CartPole-v1", 100, {"x": 1})
    assert (theirs.env, theirs.steps, theirs.settings) == ("Other", 200, {"y": 2, "z": 3})
    assert (like.env, like.algo, like.settings) == ("Other", "PPO", {"y": 2, "z": 4})


def test_the_plan_has_ten_tasks_and_known_contenders() -> None:
    runs = planned(seconds_to_score.tomllib.loads(seconds_to_score.PLAN.read_text(encoding="utf-8")))
    assert len({run.task for run in runs}) == 10
    assert {run.contender for run in runs} == set(score_runs.CONTENDERS)
    assert {run.seed for run in runs} == set(range(5)) and {run.episodes for run in runs} == {20}
    limits = [run.max_seconds for run in runs]
    assert limits == sorted(limits)
    for run in runs:
        assert Run(**json.loads(json.dumps(vars(run)))) == run


def test_the_clock_evaluates_when_it_is_due_and_stands_still_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def score(number: int) -> float:
        nonlocal now
        now += 1000
        return [1.0, 2.0, 480.0][number]

    monkeypatch.setattr(score_runs.time, "perf_counter", lambda: now)
    clock = Clock(RUNS[0])
    ends = []
    for steps in range(0, 60, 4):
        now += 1
        ends.append(clock.is_over(steps, score))
        if ends[-1]:
            break
    # Every 10 steps, or at the first look after.
    assert clock.evaluations == [(4.0, 12, 1.0), (6.0, 20, 2.0), (9.0, 32, 480.0)]
    assert ends == [False] * 8 + [True] and clock.is_reached


def test_a_run_ends_at_its_limit_and_its_last_steps_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(score_runs.time, "perf_counter", lambda: now)
    late = Clock(RUNS[0])
    now = 60.0
    assert late.is_over(1, lambda number: 3.0)
    assert late.evaluations == [(60.0, 1, 3.0)] and not late.is_reached
    short = Clock(replace(RUNS[0], steps=25))
    assert [short.is_over(steps, lambda number: 3.0) for steps in (10, 20, 24, 25, 25)] == [False] * 5
    assert [steps for _, steps, _ in short.evaluations] == [10, 20, 25]


def test_runs_continue_after_a_stop_and_within_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Run] = []

    def ended(run: Run) -> Row:
        started.append(run)
        if len(started) == 3:
            raise KeyboardInterrupt
        if run == RUNS[4]:
            raise subprocess.CalledProcessError(1, ["python"])
        return row(run, 8.0, reached=run.seed == 0)

    monkeypatch.setattr(seconds_to_score, "in_a_process", ended)
    path = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        train_missing(RUNS, path)
    assert [each.run for each in read_rows(path)] == RUNS[:2]
    started.clear()
    started.extend([RUNS[0]] * 3)
    assert train_missing(RUNS, path, most_seconds=300) == 1
    # The failed run has no row, and those of 600 seconds did not start.
    assert started[3:] == RUNS[2:6]
    assert [each.run for each in read_rows(path)] == [*RUNS[:4], RUNS[5]]
    text = capsys.readouterr().out
    assert "Cart, fastrl, seed 1: not reached, 5.00 at best, in 8.0 s, 20 steps" in text
    assert "Cart, Stable-Baselines3, seed 1 has failed" in text
    assert "2 runs may take longer than the time that is left" in text
    changed = replace(RUNS[0], settings={"x": 9})
    assert train_missing([changed], path) == 0 and read_rows(path)[-1].run == changed


def test_what_is_not_installed_is_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        seconds_to_score, "missing", lambda names: dict.fromkeys({"sbx"} & set(names), "gone")
    )
    assert [run.contender for run in seconds_to_score.installed(RUNS)] == ["fastrl", "Stable-Baselines3"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sbx is left out: gone; the extra bench has it: pip install '.[bench]'"
    assert lines[1].startswith("no_such_module is left out: not installed: Long needs it")


def test_the_table_has_medians_ratios_and_what_was_not_reached() -> None:
    ours, theirs, like = (
        [run for run in RUNS if run.contender == name] for name in ("fastrl", "Stable-Baselines3", "sbx")
    )
    rows = [
        *(row(run, seconds) for run, seconds in zip(ours, (2.0, 4.0), strict=False)),
        *(row(run, seconds) for run, seconds in zip(theirs, (30.0, 60.0), strict=True)),
        row(like[0], 5.0),
        row(like[1], 60.0, reached=False),
        row(replace(ours[0], settings={}), 1.0),  # of another plan
    ]
    lines = table(entries(rows, RUNS)).splitlines()
    assert lines[2:5] == [
        "| Cart 475 | fastrl | PPO | 2 of 2 | 3.00 | 2.00 to 4.00 | 20 | 15.0 |",
        "| Cart 475 | Stable-Baselines3 | PPO | 2 of 2 | 45.0 | 30.0 to 60.0 | 20 | 1.00 |",
        "| Cart 475 | sbx | PPO | 1 of 2 | > 60.0 | 5.00 to 5.00 | 20 |  |",
    ]
    assert lines[-1] == "2026-11-28; a processor, 2 cores; python 3.13."
    failed = [row(run, 60.0, reached=False) for run in theirs]
    found = entries([rows[0], *failed], RUNS)
    assert math.isinf(found[1].median) and found[0].cells(found[1])[-1] == "> 30.0"
    assert table([]).startswith("There are no rows yet")


def test_the_chart_has_a_line_a_contender_and_a_dot_a_seed() -> None:
    chart = pytest.importorskip("draw_seconds_to_score", reason="a source distribution has no documentation")
    found = entries([row(run, 5.0, reached=run.seed == 0) for run in RUNS[:6]], RUNS)
    (axes,) = chart.draw(found).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "Cart, fastrl",
        "Stable-Baselines3",
        "sbx",
    ]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 6 and [dot.get_markerfacecolor() for dot in dots].count("white") == 3


@pytest.mark.slow
@pytest.mark.parametrize("contender", ["fastrl", "Stable-Baselines3"])
def test_a_run_of_a_process_ends_with_its_score(contender: str) -> None:
    settings: dict[str, Any] = {
        "fastrl": {"hidden": [8]},
        "Stable-Baselines3": {"n_steps": 64, "normalize": True, "gamma": 0.9},
    }
    if contender == "Stable-Baselines3":
        pytest.importorskip("stable_baselines3")
    run = Run(
        "Cart", "CartPole-v1", "return", 500.5, 2, 300, 60, contender, "PPO", 700, 0, settings[contender]
    )
    run = replace(run, algo=run.algo.lower() if contender == "fastrl" else run.algo)
    found = seconds_to_score.in_a_process(run)
    assert not found.reached and found.run == run and found.about["versions"]["fastrl"]
    assert found.steps >= 700 and found.best >= 1
    found = seconds_to_score.in_a_process(replace(run, score=1))
    assert found.reached and 300 <= found.steps < 2500
