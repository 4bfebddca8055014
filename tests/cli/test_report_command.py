"""``fastrl report``, on directories as runs leave them."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from small_runs import run_cli

from fastrl.runs.directory import RunDirectory
from fastrl.runs.facts import RunFacts, Session
from fastrl.runs.statistics import bootstrap, mean


def make_run(path: Path, seed: int, scores: list[float], *, gamma: float = 0.9, algo: str = "ppo") -> Path:
    """The files of a complete run whose evaluation at the end had these returns."""
    with RunDirectory(path) as directory:
        directory.write_settings(
            f'kind = "gym"\n[run]\nseed = {seed}\nalgo = "{algo}"\n[env]\nid = "Walk|v0"\n[{algo}]\ngamma = {gamma}\n'
        )
        versions = {"fastrl": "1.2"}
        session = Session("2026-01-01T00:00:00+00:00", None, ("x",), versions, None, False, 0)
        RunFacts("complete", "gym", "Walk|v0", algo, seed, 100 + seed, 6, 1.0, 90.0, None, (session,)).write(
            path
        )
        if scores:
            evaluation = {"mean": sum(scores) / len(scores), "returns": scores}
            (path / "summary.json").write_text(json.dumps({"evaluation": evaluation}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds, one run with another setting, one of another algorithm that was not evaluated."""
    runs = tmp_path / "runs"
    runs.mkdir()
    make_run(runs / "a", 0, [1.0, 2.0])
    make_run(runs / "b", 1, [4.0, 6.0])
    make_run(runs / "c", 0, [7.0, 9.0, 8.0], gamma=0.5)
    make_run(runs / "d", 2, [], algo="dqn")
    return runs


def test_groups_have_scores_with_intervals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run_cli(capsys, "report", folder, "--out", folder / "t.json")
    assert code == 0
    seeds, other, dqn = json.loads((folder / "t.json").read_text())
    assert (seeds["seeds"], seeds["steps"], seeds["settings"]) == ([0, 1], 100.5, {"ppo.gamma": 0.9})
    # Over the seeds, whose scores are 1.5 and 5.
    assert (seeds["score"], seeds["low"], seeds["high"]) == (3.25, 1.5, 5.0)
    assert (other["score"], other["low"], other["high"]) == bootstrap(mean, [7.0, 9.0, 8.0])
    assert other["settings"] == {"ppo.gamma": 0.5}
    assert (dqn["algo"], dqn["settings"], dqn["score"]) == ("dqn", {}, None)


def test_the_table_is_markdown_or_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run_cli(capsys, "report", folder / "a", folder / "b", folder / "d")
    lines = text.splitlines()
    assert lines[2] == "| Walk\\|v0 | ppo | - | 0, 1 | complete | 100 | 1:30 | 3.25 (1.50 to 5.00) |"
    assert lines[3] == "| Walk\\|v0 | dqn | - | 2 | complete | 102 | 1:30 | - |"
    assert lines[-1] == "Versions: fastrl 1.2."
    run_cli(capsys, "report", folder, "--out", folder / "t.csv")
    rows = list(csv.DictReader(io.StringIO((folder / "t.csv").read_text())))
    assert [row["ppo.gamma"] for row in rows] == ["0.9", "0.5", ""]
    assert (rows[0]["seeds"], rows[2]["score"]) == ("0 1", "")
    assert math.isclose(float(rows[1]["score"]), 8.0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--out", "t.txt"], "--out: expected a name that ends in .md, .csv, .json, got t.txt"),
        (["nowhere"], "nowhere: no such run directory"),
    ],
)
def test_mistakes_of_reports_are_one_line(
    options: list[str], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_cli(capsys, "report", folder, *options)
    assert code == 2
    assert err.count("\n") == 1 and line in err


def test_damaged_runs_are_left_out_of_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b" / "config.toml").write_text("# The settings of this run of fastrl.\n[run\n")
    code, text, err = run_cli(capsys, "report", folder)
    assert code == 0 and text.count("complete") == 3
    assert err.startswith("fastrl report: left out: ") and err.count("\n") == 1
