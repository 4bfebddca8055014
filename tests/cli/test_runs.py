"""``fastrl runs`` and ``fastrl plot``, on directories as runs leave them."""

import fcntl
import json
import os
from pathlib import Path

import numpy as np
import pytest
from small_runs import run_cli, train_small

from fastrl.cli.main import main
from fastrl.runs.curves import Curve, interquartile_curve, read_curves
from fastrl.runs.directory import RunDirectory
from fastrl.runs.facts import RunFacts, State
from fastrl.runs.listing import EVALUATION, RETURN, find_runs, read_curve, read_run
from fastrl.runs.statistics import bootstrap, interquartile_mean

STEPS = "time/total_timesteps"


def make_run(
    path: Path,
    seed: int = 0,
    algo: str = "ppo",
    status: State | None = None,
    returns: tuple[float, ...] = (1, 2),
) -> Path:
    """The files of a run with a row every 100 steps."""
    with RunDirectory(path) as directory:
        directory.write_settings(
            f'kind = "gym"\n[run]\nseed = {seed}\nalgo = "{algo}"\ntotal_timesteps = 300\n[env]\nid = "Walk-v0"\n'
        )
        rows = [{STEPS: 100 * (i + 1), RETURN: value} for i, value in enumerate(returns)]
        directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if status is not None:
            facts = RunFacts(status, "gym", "Walk-v0", algo, seed, 150, 6, 1.0, 1.0, None, ())
            facts.write(path)
    return path


def test_the_goal_of_a_clone_is_no_number_of_steps(tmp_path: Path) -> None:
    clone = make_run(tmp_path / "clone", algo="bc")
    assert read_run(clone).total == 300
    with (clone / "config.toml").open("a") as file:
        file.write('[demos]\ndemos = "some"\n[bc]\nepochs = 7\n')
    assert read_run(clone).total is None


def test_runs_are_listed_with_their_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", status="complete")
    make_run(tmp_path / "seeds" / "seed-1", seed=1, algo="impala", status="interrupted", returns=(5,))
    make_run(tmp_path / "killed", returns=())
    make_run(tmp_path / "failed", status="failed")
    busy = make_run(tmp_path / "running", status="running")
    (tmp_path / "something").mkdir()
    lock = os.open(busy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert main(["runs", str(tmp_path), "--json"]) == 0
    finally:
        os.close(lock)
    found = {Path(each["path"]).name: each for each in json.loads(capsys.readouterr().out)}
    assert {name: each["state"] for name, each in found.items()} == {
        "a": "complete",
        "seed-1": "interrupted",
        "killed": "interrupted",
        "failed": "failed",
        "running": "running",
    }
    assert (found["a"]["env"], found["a"]["algo"], found["a"]["steps"], found["a"]["total"]) == (
        *("Walk-v0", "ppo"),
        *(150, 300),
    )
    # Rows after the newest checkpoint are lost where a run does not run.
    assert (found["running"]["steps"], found["killed"]["steps"]) == (200, 0)
    assert (found["seed-1"]["seed"], found["seed-1"]["last_return"]) == (1, 1.0)
    assert main(["runs", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "seeds/seed-1" in table and "Walk-v0" in table and "something" not in table


def test_a_run_that_was_resumed_and_killed_is_interrupted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", status="running")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({STEPS: 300, RETURN: None}) + '\n{"time/to')
    info = read_run(run)
    assert (info.state, info.steps, info.last_return) == ("interrupted", 150, 1.0)


def test_a_real_run_is_read(tmp_path: Path) -> None:
    train_small(tmp_path / "run")
    info = read_run(tmp_path / "run")
    assert (info.env, info.algo, info.state, info.steps) == ("cage2", "ppo", "complete", 240)
    steps, values = read_curve(tmp_path / "run")
    facts = RunFacts.read(tmp_path / "run")
    assert steps[-1] == 240 and len(values) == 2
    assert facts is not None and info.last_return == facts.mean_return


def test_an_empty_directory_has_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_a_line_is_the_interquartile_mean_of_the_runs_that_have_values() -> None:
    curves = [
        Curve("e", "a", np.array([100.0, 300.0]), np.array([1.0, 3.0])),
        Curve("e", "a", np.array([200.0, 500.0]), np.array([4.0, 4.0])),
    ]
    steps, estimates = interquartile_curve(curves)
    value, low, high = estimates.T
    assert (steps[0], steps[-1]) == (100, 500)
    # One run alone at both ends, where there is no interval; both of them in between.
    both = (steps >= 200) & (steps <= 300)
    assert (value[0], value[-1]) == (1, 4)
    np.testing.assert_array_equal(np.isnan(low), ~both)
    np.testing.assert_allclose(value[both], (steps[both] / 100 + 4) / 2)
    np.testing.assert_allclose((low[both], high[both]), (steps[both] / 100, np.full(both.sum(), 4)))
    apart = [curves[0], Curve("e", "a", np.array([900.0]), np.array([7.0]))]
    steps, estimates = interquartile_curve(apart)
    assert not ((steps > 300) & (steps < 900)).any() and estimates[-1, 0] == 7
    steps, estimates = interquartile_curve(curves[:1])
    assert (steps[0], steps[-1], estimates[-1, 0]) == (100, 300, 3)


def test_a_line_of_several_environments_has_runs_on_each_and_a_stratified_interval() -> None:
    ends = {"e": [(0.1, 1.0, 2.0), (0.2, 1.0, 4.0)], "f": [(0.0, 0.9, 8.0), (0.1, 0.9, 16.0)]}
    curves = [
        Curve(env, "a", np.array([first, last]), np.array([0.0, value]))
        for env, runs in ends.items()
        for first, last, value in runs
    ]
    steps, estimates = interquartile_curve(curves)
    assert 0.1 <= steps[0] < 0.11 and 0.89 < steps[-1] <= 0.9
    at = [
        [np.interp(steps[-1], each.steps, each.values) for each in curves if each.env == env] for env in ends
    ]
    assert tuple(estimates[-1]) == bootstrap(interquartile_mean, *at)


def test_bands_stay_within_what_runs_have_reached() -> None:
    """Most runs are at the highest possible return, one is far below."""
    values = [500.0, 500.0, 500.0, 500.0, 20.0]
    curves = [Curve("e", "a", np.array([0.0, 9.0]), np.array([10.0, each])) for each in values]
    _, estimates = interquartile_curve(curves)
    assert estimates.max() == estimates[-1, 0] == 500 and estimates[-1, 1] >= 20


def test_curves_are_of_evaluations_where_runs_have_them(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in "ab"]
    labels = dict.fromkeys(paths, "")
    assert read_curves(labels)[0] == RETURN
    for path in paths:
        with (path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({STEPS: 300, EVALUATION: 9.0}) + "\n")
    metric, curves, errors = read_curves(labels)
    assert (metric, [curve.values.tolist() for curve in curves], errors) == (EVALUATION, [[9.0], [9.0]], [])
    make_run(tmp_path / "c")
    metric, curves, errors = read_curves({**labels, tmp_path / "c": "third"})
    assert (metric, [curve.label for curve in curves], errors) == (RETURN, ["ppo", "ppo", "third"], [])


@pytest.mark.parametrize(("name", "begin"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_curves_are_drawn(
    name: str, begin: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"seed-{seed}", seed, returns=(1, 2 + seed, 5))
    other = make_run(tmp_path / "other", algo="impala", returns=(3,))
    out = tmp_path / name
    assert main(["plot", str(tmp_path / "runs"), str(other), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(begin)
    assert capsys.readouterr().out == f"{out}: 3 runs\n"
    assert len(list(find_runs(tmp_path / "runs"))) == 2


def test_runs_without_values_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "good")
    make_run(tmp_path / "runs" / "empty", returns=())
    out = tmp_path / "c.svg"
    assert main(["plot", str(tmp_path / "runs"), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 1 run\n"
    assert printed.err == f"fastrl plot: left out: {tmp_path}/runs/empty has no values of {RETURN}\n"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--out", "a.pdf"], "--out: expected a name that ends in .png or .svg, got a.pdf"),
        (["--label", "a", "--label", "b"], "--label: expected one for each of the 1 RUN arguments, got 2"),
        (["--metric", "rollout/ep_rew"], f"has no values of rollout/ep_rew; did you mean {RETURN}?"),
        (["nowhere"], "nowhere: no such run directory"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    code, _, err = run_cli(capsys, "plot", run, *options)
    assert code == 2
    assert err.count("\n") == 1 and line in err
