"""``fastrl tune`` and `fastrl.tune`, with trials that train."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tuning_fakes import new_study, quality, search

import fastrl
from fastrl.cli.main import main
from fastrl.runs.directory import is_run
from fastrl.runs.facts import RunFacts
from fastrl.runs.listing import find_runs
from fastrl.tuning.figures import draw, importances
from fastrl.tuning.journal import dump
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, best_first, count_parameters
from fastrl.tuning.worker import do
from fastrl.utils.config import load_toml

SMALL = ["--ppo.activation=relu", "--run.eval-episodes=2", "--total-timesteps=6000", "--num-envs=4"]


def test_the_space_is_printed_without_what_options_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "CartPole-v1", "--algo=dqn", "--gamma=0.98", "--print-space"]) == 0
    out = capsys.readouterr().out
    assert "[dqn.learning_rate]" in out and "[dqn.hidden]" in out and "[dqn.gamma]" not in out
    assert "[replay.updates_per_step]" in out and "[dqn.encoder]" not in out


@pytest.mark.slow
def test_a_search_by_command_ends_with_settings_that_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "tune"
    options = ["--trials=3", "--method=random", "--confirm=1", "--confirm-seeds=2", "--report-episodes=2"]
    assert main(["tune", "CartPole-v1", f"--dir={directory}", *SMALL, *options, "--pruner=none"]) == 0
    out = capsys.readouterr().out
    assert "searching 13 parameters by random" in out and "search 3/3" in out
    assert f"fastrl train CartPole-v1 --config {directory / 'best.toml'}" in out
    # Each trial is an ordinary run.
    runs = list(find_runs(directory / "trials"))
    assert len(runs) == 3 + 2 and all(RunFacts.read(run).state == "complete" for run in runs)
    with Study(directory) as study:
        trial = best_first(study.of_search())[0]
        summary = json.loads((study.run_of(trial) / "summary.json").read_text())
        assert trial.score == summary["evaluation"]["mean"]
        assert [each.point for each in trial.result.evaluations][-1] == 4
        width, depth = trial.point["ppo.hidden.width"], trial.point["ppo.hidden.depth"]
        own = (4 + 1) * width + (depth - 1) * (width + 1) * width
        # Actor and critic, of two actions and one value.
        assert trial.result.parameters == 2 * own + (width + 1) * 3 == count_parameters(study.run_of(trial))
    best = load_toml(directory / "best.toml")
    again = tmp_path / "again"
    assert main(["train", "CartPole-v1", f"--config={directory / 'best.toml'}", f"--run-dir={again}"]) == 0
    assert is_run(again) and load_toml(again / "config.toml")["ppo"] == best["ppo"]
    # A search that has ended says the same again.
    capsys.readouterr()
    assert main(["tune", f"--resume={directory}"]) == 0
    assert "search 3/3" not in capsys.readouterr().out
    assert load_toml(directory / "best.toml") == best


@pytest.mark.slow
def test_a_search_from_python_is_that_of_the_command(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "trials": 2,
        "method": "random",
        "confirm": 0,
        "report_episodes": 0,
        "num_envs": 4,
    }
    found = fastrl.tune(
        "CartPole-v1",
        algo="ppo",
        directory=tmp_path / "tune",
        total_timesteps=2000,
        run__eval_episodes=2,
        gamma=0.98,
        **config,
    )
    assert len(found.trials) == 2 and found.score == found.search_score
    assert "ppo.learning_rate" in found.values and "ppo.gamma" not in found.values
    assert load_toml(tmp_path / "tune" / "best.toml")["ppo"]["gamma"] == 0.98
    assert fastrl.tune(resume=tmp_path / "tune").values == found.values


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["CartPole-v1"], "name a directory for the search: --dir"),
        (["CartPole-v1", "--dir=x", "--trials=0"], "--trials should be greater than or equal to 1"),
        (["CartPole-v1", "--dir=x", "--method=tpee"], "did you mean 'tpe'?"),
        (["CartPole-v1", "--dir=x", "--run.eval-episodes=0"], "give at least 1"),
        (["--resume=nowhere"], "nowhere has no search in it"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 2
    err = capsys.readouterr().err.replace("loading PyTorch ...\n", "")
    assert problem in err and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_figures_are_drawn_and_name_what_matters(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", trials=40, method="random", confirm=0, report_episodes=0) as study:
        search(study, lambda trial, share: quality(trial) * share)
        found = importances(study.space, study.of_search())
        assert found[0].name == "ppo.learning_rate" and found[0].mean > 0.3
        assert all(each.mean < 0.1 for each in found[1:])
        victim = tmp_path / "victim"
        victim.write_text("mine")
        for name in ("history.png", "parallel.png", "importances.png"):
            (study.directory / name).symlink_to(victim)
        files = draw(study, [])
        assert victim.read_text() == "mine"
        assert [file.name for file in files] == ["history.png", "parallel.png", "importances.png"]
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
        assert importances(study.space, study.of_search()[:5]) == []


HOSTILE = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (
            "settings.toml",
            'id = "CartPole-v1"',
            'id = "hostile:make"',
            "env.id would import the module 'hostile'",
        ),
        ("settings.toml", 'algo = "ppo"', 'algo = "hostile:Own"', "run.algo would import the module"),
        ("settings.toml", 'kind = "gym"', 'kind = "hostile:TASK"', "kind would import the module"),
        (
            "tune.toml",
            'ray_address = "none"',
            'ray_address = "host:1"',
            "would connect to the Ray cluster at 'host:1'",
        ),
        (
            "journal.jsonl",
            "",
            '{"event": "started", "trial": "../../x", "number": 0, "seed": 1, "point": {}}',
            "'../../x'",
        ),
    ],
)
def test_a_search_that_is_resumed_runs_nothing_that_only_its_files_name(
    file: str, old: str, new: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    new_study(tmp_path / "s", trials=1, confirm=0, report_episodes=0).close()
    (tmp_path / "hostile.py").write_text(HOSTILE)
    path = tmp_path / "s" / file
    text = path.read_text()
    path.write_bytes(dump(json.loads(new)) if file == "journal.jsonl" else text.replace(old, new).encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["tune", "--resume=s"]) == 2
    err = capsys.readouterr().err.replace("loading PyTorch ...\n", "")
    assert problem in err and err.count("\n") == 1 and str(tmp_path) not in sys.path
    assert not (tmp_path / "hostile.ran").exists() and not list((tmp_path / "s" / "trials").glob("*"))
    if file == "settings.toml":
        assert "give --trust (in Python" in err
    if "env.id" in problem:
        Study(tmp_path / "s", trust=True).close()


def test_a_worker_trusts_what_the_search_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(tmp_path)
    with new_study(tmp_path / "s", trials=1) as study:
        assert study.trust
        trial = Trial("trial-0000", 0, study.space.at([0.5] * len(study.space.parameters)), 1)
        job = {**study.job(trial, study.trial_settings(trial)), "trust": False}
    config = Path(job["config"])
    config.write_text(config.read_text().replace('id = "CartPole-v1"', 'id = "hostile:make"'))
    with Path(job["log"]).open("a") as log:
        assert "would import the module 'hostile'" in do(job, log)["error"]
    assert not (tmp_path / "hostile.ran").exists()
