"""The pipeline from an expert to an agent."""

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from fastrl.cli.main import main
from fastrl.demos.pipeline import (
    FIGURE,
    REPORT,
    Settings,
    StageReport,
    draw,
    mixed,
    run_pipeline,
    shares_of,
)
from fastrl.demos.recorder import record
from fastrl.replay.episodes import load
from fastrl.runs.listing import read_run
from fastrl.utils.progress import Progress

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


@pytest.mark.slow
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
        assert each["complete"]
        assert sum(each["shares"].values()) == pytest.approx(1)
    assert all(stages[0]["shares"][kind] > 0 for kind in ("simulation", "network", "data"))
    assert stages[2]["steps"] >= 3000
    assert 'init_from = "' in (out / "agent" / "config.toml").read_text()
    # The same command again does nothing, and reports the same.
    capsys.readouterr()
    before = (out / "agent" / "metrics.jsonl").read_bytes()
    assert main([*COMMAND, f"--out={out}", "--n-workers=1", "--no-compare"]) == 0
    assert (out / "agent" / "metrics.jsonl").read_bytes() == before
    assert json.loads((out / REPORT).read_text())["stages"] == stages


@pytest.mark.parametrize(("words", "noise"), [([], 0.0), (["--noise", "0.25"], 0.25)])
def test_noise_of_the_command_is_a_number(
    monkeypatch: pytest.MonkeyPatch, words: list[str], noise: float
) -> None:
    given: list[Settings] = []

    def run(settings: Settings, *others: object) -> None:
        given.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("fastrl.demos.pipeline.run_pipeline", run)
    assert main([*COMMAND, *words]) == 130
    assert given[0].record_options["noise"] == noise


def test_the_seconds_of_an_interrupted_stage_count(tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Interrupting(Progress):
        def advance(self, amount: float = 1) -> None:
            if self.count >= 3:
                raise KeyboardInterrupt
            self.count += amount

        count = 0.0

    settings = Settings(
        "CartPole-v1",
        "demo_experts:balance",
        12,
        1,
        100,
        "ppo",
        out,
        n_workers=1,
        skip=frozenset({"clone", "agent"}),
    )
    console = Console(quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(settings, console, lambda episodes: Interrupting("", episodes, console))
    [first] = json.loads((out / REPORT).read_text())["stages"]
    assert first["seconds"] > 0 and not first["complete"]
    [report] = run_pipeline(settings, console, lambda episodes: Progress("", episodes, console)).reports
    assert report.complete and report.seconds > first["seconds"]
    assert len(load(out / "demos")) == 12


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code: int | str | None
    for options, message in (
        (["--skip=demos"], "has no episodes: do not skip demos"),
        (["--skip=demo"], "should be of demos, clone and agent, got demo"),
        (["--train", "gamma"], "'gamma' should be KEY=VALUE"),
        (["--timesteps=1.5"], "should be an integer of at least 1"),
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


def test_shares_of_sessions_weigh_by_their_seconds() -> None:
    first, second = {"simulation": 1.0, "other": 0.0}, {"simulation": 0.5, "other": 0.5}
    assert mixed(first, 1.0, second, 3.0) == pytest.approx({"simulation": 0.625, "other": 0.375})
    assert mixed({}, 0.0, second, 3.0) == second
    assert mixed(first, 1.0, {}, 3.0) == first


def test_a_slice_is_compared_with_the_same_slice() -> None:
    report = StageReport("agent", steps_per_second=100.0, one_worker=20.0, same_slice=50.0)
    assert report.ratio == 2.5
    assert StageReport("demos", steps_per_second=100.0, one_worker=20.0).ratio == 5.0
    assert math.isnan(StageReport("clone", steps_per_second=100.0).ratio)


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["sequential", "sync"])
def test_the_agent_is_compared_with_one_worker(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_expert.py").write_text(EXPERT)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    agent = [f"collect.collector={collector}", "run.eval-episodes=0"]
    train = COMMAND.index("--train")
    assert main([*COMMAND[:train], f"--out={out}", "--skip=demos,clone", "--train", *agent]) == 0
    [report] = json.loads((out / REPORT).read_text())["stages"]
    if collector == "sequential":
        assert report["one_worker"] == report["steps_per_second"] and report["ratio"] == 1
    else:
        assert report["one_worker"] > 0
        assert report["ratio"] == pytest.approx(report["same_slice"] / report["one_worker"])


def test_a_figure_of_stages_without_numbers(tmp_path: Path) -> None:
    draw([StageReport("demos", 3.0), StageReport("agent", 5.0, mean_return=1.0)], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_an_expert_may_draw_its_actions(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    options = ["--total-timesteps=256", "--ppo.num-steps=64", "--run.eval-episodes=0", "--num-envs=1"]
    assert main(["train", "CartPole-v1", "--algo=ppo", *options, f"--run-dir={run}"]) == 0
    command = [
        "pipeline",
        "CartPole-v1",
        f"--expert={run}",
        "--episodes=4",
        "--skip=clone,agent",
        "--no-compare",
    ]
    found = {}
    for name, further in (("drawn", ["--stochastic"]), ("likeliest", [])):
        assert main([*command, "--n-workers=1", f"--out={out / name}", *further]) == 0
        found[name] = load(out / name / "demos")
    drawn = record("CartPole-v1", run, 4, tmp_path / "demos", deterministic=False, n_workers=1)
    assert found["drawn"].lengths.tolist() == drawn.lengths.tolist()
    assert found["drawn"].lengths.tolist() != found["likeliest"].lengths.tolist()


def test_cloning_has_a_run_on_cage2(tmp_path: Path) -> None:
    """The defender chooses Monitor, which is not among the run's actions and does what Sleep does."""
    out = tmp_path / "demos"
    demos = record("cage2", "baseline:react-restore", 3, out, n_workers=1)
    assert len(demos) == 3 and demos.num_steps == 300
    command = ["train", "cage2", "--algo=bc", f"--demos={out}", "--bc.epochs=1", "--run.eval-episodes=0"]
    assert main([*command, f"--run-dir={tmp_path / 'clone'}"]) == 0
    assert read_run(tmp_path / "clone").state == "complete"
