"""``fastrl train --seeds``: several runs side by side."""

import json
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from small_runs import OPTIONS, learnt
from train_process import start_training
from waiting import TIMEOUT

from fastrl.cli import train
from fastrl.cli.main import main
from fastrl.cli.seeds import parse_seeds, without
from fastrl.collectors import resources
from fastrl.runs.listing import read_run
from fastrl.runs.seeds import SeedRun
from fastrl.utils.config import ConfigError

SMALL = ["cage2", *OPTIONS, "--run.eval-episodes=2"]


def test_seeds_are_different_integers() -> None:
    assert parse_seeds("0, 1,22") == [0, 1, 22]
    assert parse_seeds("0-2, 7,5 - 5") == [0, 1, 2, 7, 5]
    for text in ("", "a", "1,1", "-1", "1,,2", "1-3,2", "3-1", "2-", "1-2-3", "0-1e9"):
        with pytest.raises(ConfigError, match="different integers from 0 on"):
            parse_seeds(text)


def test_options_are_taken_out_with_their_values() -> None:
    arguments = ["cage2", "--seeds", "0,1", "--run_dir=a", "--out", "b", "--ppo.gamma", "1"]
    assert without(arguments, "--seeds", "--run-dir", "--out") == ["cage2", "--ppo.gamma", "1"]


def lasting(run: Path) -> list[list[object]]:
    """The settings, metrics and episodes of a run without its times."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    settings = (run / "config.toml").read_text().splitlines()
    return [
        [line for line in settings if not line.startswith("#")],
        [{key: row[key] for key in row if not key.startswith("time/")} for row in rows],
        [line.rpartition(",")[0] for line in (run / "episodes.csv").read_text().splitlines()],
    ]


@pytest.mark.slow
def test_each_seed_is_an_ordinary_run_with_the_bits_that_it_has_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent, small = tmp_path / "runs", [*SMALL, "--total-timesteps=160"]
    command = ["train", *small, "--seeds=3-4", f"--run-dir={parent}"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "mean ± deviation" in out and f"fastrl plot {parent}" in out
    assert "seed 4: complete (" in out and "2 complete" in out
    infos = [read_run(parent / f"seed-{seed}") for seed in (3, 4)]
    assert [(info.seed, info.state, info.steps) for info in infos] == [
        (3, "complete", 160),
        (4, "complete", 160),
    ]
    assert main(["train", *small, "--seed=4", f"--run-dir={tmp_path / 'alone'}"]) == 0
    assert lasting(tmp_path / "alone") == lasting(parent / "seed-4") != lasting(parent / "seed-3")
    assert repr(learnt(tmp_path / "alone")) == repr(learnt(parent / "seed-4"))
    assert main(["plot", str(parent), f"--out={tmp_path / 'curves.svg'}"]) == 0
    session = json.loads((parent / "seed-4" / "run.json").read_text())["sessions"][0]
    assert session["command"][:3] == ["fastrl", "train", "cage2"] and "--seed=4" in session["command"]
    tree = json.loads((parent / "seeds.json").read_text())
    assert [each["seed"] for each in tree["runs"]] == [3, 4]
    last = [each["last_return"] for each in tree["runs"]]
    assert tree["last_return"]["mean"] == pytest.approx(sum(last) / 2)
    # Again: both are complete, nothing runs.
    before = (parent / "seed-3" / "metrics.jsonl").stat().st_mtime_ns
    assert main(command) == 0
    assert (parent / "seed-3" / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "busy"), [([], 2), (["--n-workers=3"], 3), (["--run.torch-threads=0"], 4)]
)
def test_as_many_at_a_time_as_there_are_cores_for_workers_and_threads(
    options: list[str], busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(resources, "cores", lambda: 4)
    monkeypatch.setattr(train, "train_all", lambda *arguments: given.append(arguments) or 0)
    assert main(["train", "cage2", "--collector=executor", "--n-workers=2", *options, "--seeds=0,1"]) == 0
    assert given[0][-1] == busy


@pytest.mark.parametrize("given", ["", "file", "option"])
def test_they_share_the_cores_and_keep_their_settings(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Sequence[SeedRun], int, object, partial[None], Sequence[str]]] = []
    monkeypatch.setattr(resources, "cores", lambda: 4)
    monkeypatch.setattr("fastrl.runs.seeds.train_seeds", lambda *arguments: started.append(arguments))
    monkeypatch.setattr("fastrl.runs.seeds.summarise", lambda *_: None)
    file = tmp_path / "config.toml"
    file.write_text("[run]\nthreads = 3\n")
    options = {"": [], "file": [f"--config={file}"], "option": ["--threads=3"]}[given]
    main(["train", "cage2", *options, "--seeds=0,1", f"--run-dir={tmp_path / 'runs'}"])
    ((runs, jobs, _, work, preload),) = started
    assert jobs == 2 and work.args == ("fastrl train", 2) and "torch" in preload
    for run in runs:
        assert run.arguments is not None and run.arguments[1:-2] == options


@pytest.mark.slow
def test_one_signal_stops_all_and_the_same_command_resumes_them(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    options = [*SMALL, "--seeds=0,1", f"--run-dir={parent}"]
    process = start_training(*options, "--total-timesteps=1e8", stderr=None)
    metrics = parent / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGINT
    assert "Interrupted; to resume: fastrl train cage2" in out and f"--run-dir={parent}" in out
    info = read_run(parent / "seed-0")
    assert info.state == "interrupted" and info.steps > 0
    total = f"--total-timesteps={info.steps + 80}"
    assert main(["train", *options, total, "--run.eval-episodes=0"]) == 0
    assert read_run(parent / "seed-0").state == read_run(parent / "seed-1").state == "complete"
    assert read_run(parent / "seed-0").steps == info.steps + 80


@pytest.mark.slow
def test_a_run_that_fails_is_named_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "runs"
    (parent / "seed-1").mkdir(parents=True)
    (parent / "seed-1" / "mine.txt").touch()
    assert main(["train", *SMALL, "--total-timesteps=80", "--seeds=0,1", f"--run-dir={parent}"]) == 1
    out = capsys.readouterr().out
    assert "seed 1 failed: fastrl train: error: " in out and "is neither empty nor a run" in out
    assert read_run(parent / "seed-0").state == "complete"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--seeds=0,0"], "--seeds should be different integers from 0 on, such as 0,1,2 or 0-9, got '0,0'"),
        (["--seeds=0,1", "--seed=3"], "--seed does not go with --seeds"),
        (["--seeds=0,1", "--ppo.gamma=2"], "--ppo.gamma should be less than or equal to 1"),
    ],
)
def test_mistakes_show_before_any_run_starts(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = tmp_path / "runs"
    try:
        code = main(["train", *SMALL, *options, f"--run-dir={parent}"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    assert line in capsys.readouterr().err
    assert not parent.exists()


def prints_and_ends(arguments: Sequence[str], log: Path, pipe: object) -> None:
    """Work of a process in place of a training."""
    log.write_text("gone\n")
    raise SystemExit(int(arguments[0]))


@pytest.mark.slow
def test_a_process_ends_with_its_run(tmp_path: Path) -> None:
    # Exit code 0 without a run: something else has run in place of a training.
    for code in ("3", "0"):
        run = SeedRun(0, tmp_path / f"seed-{code}", [code])
        run.start(prints_and_ends, [])
        assert run.process is not None and run.process.wait() and run.process.code == int(code)
        assert run.look() and run.state == "failed" and not run.look()
        assert run.last_words() == "gone"
