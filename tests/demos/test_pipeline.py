"""The pipeline from an expert to an agent."""

import json
import math
from pathlib import Path

import pytest

from fastrl.cli.main import main
from fastrl.demos.pipeline import FIGURE, REPORT, StageReport, draw, score_of, shares_of
from fastrl.demos.recorder import record
from fastrl.replay.episodes import load
from fastrl.training.run_list import read_run

# Pushes towards where the pole falls.
EXPERT = """
def act(obs):
    return int(obs[2] + 0.3 * obs[3] + 0.05 * obs[1] > 0)
"""

COMMAND = [
    "pipeline",
    "CartPole-v1",
    "--expert=my_expert:act",
    "--episodes=12",
    "--epochs=4",
    "--timesteps=3000",
    "--clone",
    "bc.hidden=32,32",
    "run.eval-episodes=5",
    "--train",
    "ppo.hidden=32,32",
    "run.eval-episodes=5",
    "collect.collector=sync",
]


def test_three_stages_and_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_expert.py").write_text(EXPERT)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert main([*COMMAND, f"--out={out}", "--n-workers=1", "--no-compare"]) == 0
    demos = load(out / "demos")
    assert len(demos) == 12
    assert [read_run(out / name).state for name in ("clone", "agent")] == ["complete", "complete"]
    assert (out / FIGURE).stat().st_size > 5000
    stages = json.loads((out / REPORT).read_text())["stages"]
    assert [each["name"] for each in stages] == ["demos", "clone", "agent"]
    assert stages[0]["mean_return"] == pytest.approx(demos.returns.mean())
    for each in stages:
        assert each["seconds"] > 0 and each["memory_mib"] > 10 and each["steps"] > 0
    assert stages[2]["steps"] >= 3000
    assert 'init_from = "' in (out / "agent" / "config.toml").read_text()
    # The same command again does nothing, and reports the same.
    capsys.readouterr()
    before = (out / "agent" / "metrics.jsonl").read_bytes()
    assert main([*COMMAND, f"--out={out}", "--n-workers=1", "--no-compare"]) == 0
    assert (out / "agent" / "metrics.jsonl").read_bytes() == before
    assert json.loads((out / REPORT).read_text())["stages"] == stages


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--skip=demos"], "has no episodes: do not skip demos"),
        (["--skip=demo"], "should be of demos, clone and agent, got demo"),
        (["--train", "gamma"], "'gamma' should be KEY=VALUE"),
        (["--timesteps=1.5"], "should be an integer from 1 on"),
    ):
        try:
            code = main([*COMMAND, f"--out={tmp_path / 'out'}", *options])
        except SystemExit as error:
            code = error.code
        assert code == 2
        text = capsys.readouterr().err
        assert message in text and "Traceback" not in text


def test_shares_add_up() -> None:
    shares = shares_of({"environment": 3.0, "waiting": 1.0, "update": 4.0, "buffer": 1.0, "unknown": 1.0})
    assert shares == pytest.approx({"simulation": 0.4, "network": 0.4, "data": 0.1, "other": 0.1})
    assert shares_of({}) == {}


def test_scores_of_any_evaluation() -> None:
    assert score_of({"mean": 3, "returns": [2.5, 3.5]}) == (3.0, 0.5)
    assert score_of({"total": -50.0})[0] == -50.0
    assert all(map(math.isnan, score_of(None)))


def test_a_figure_of_stages_without_numbers(tmp_path: Path) -> None:
    draw([StageReport("demos", 3.0), StageReport("agent", 5.0, mean_return=1.0)], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_cloning_has_a_run_on_cage2(tmp_path: Path) -> None:
    """The defender chooses Monitor, which is not among the run's actions and does what Sleep does."""
    out = tmp_path / "demos"
    demos = record("cage2", "baseline:react-restore", 3, out, n_workers=1)
    assert len(demos) == 3 and demos.num_steps == 300
    command = ["train", "cage2", "--algo=bc", f"--demos={out}", "--bc.epochs=1", "--run.eval-episodes=0"]
    assert main([*command, f"--run-dir={tmp_path / 'clone'}"]) == 0
    assert read_run(tmp_path / "clone").state == "complete"
