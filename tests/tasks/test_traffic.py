"""A run in traffic as its user sees it, on worlds that take no time."""

import dataclasses
import json
import math
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import differences
from traffic_runs import OPTIONS, lines, small_config, train

import fastrl.tasks.traffic.run
from fastrl.cli.main import main
from fastrl.envs.record_episodes import MEANS
from fastrl.envs.registration import make_multi
from fastrl.tasks.traffic.curriculum import Difficulty
from fastrl.tasks.traffic.run import BEST, Training, evaluate_run
from fastrl.training.checkpoint import load_checkpoint, load_newest, save_checkpoint
from fastrl.training.metrics import TrafficRow
from fastrl.training.session import TrainError

pytestmark = pytest.mark.usefixtures("lines")
__all__ = ["lines"]

CONSOLE = Console(quiet=True)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def unmeasured(row: TrafficRow) -> str:
    """A row without what a clock or the system has measured."""
    changes = {
        "seconds": 0,
        "steps_per_second": 0,
        "episodes_per_minute": 0,
        "memory_mib": 0,
        "parts": {},
        "shares": {},
    }
    return repr(dataclasses.replace(row, **changes))  # type: ignore[arg-type]


def learnt(state: dict[str, Any]) -> dict[str, Any]:
    """What a state holds, but for measured times and settings; the lines' pickle by what is in it."""
    worlds = pickle.loads(state["worlds"]["env"])
    worlds["generators"] = [generator.bit_generator.state for generator in worlds["generators"]]
    everything = state | {"worlds": state["worlds"] | {"env": repr(worlds)}}
    return {key: everything[key] for key in state.keys() - {"seconds", "parts", "config"}}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command is refused with."""
    capsys.readouterr()
    try:
        code: Any = main(["train", "traffic", *map(str, arguments)])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err.strip().removeprefix("fastrl train: error: ")


def test_a_run_leaves_its_settings_metrics_checkpoints_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run, "--episodes=150", "--save-freq=30", "--run.checkpoint_seconds=1000") == 0
    out = capsys.readouterr().out
    rows = rows_of(run)
    last = rows[-1]
    assert last["episodes"] >= 150 > rows[-2]["episodes"]
    assert out.splitlines()[-4:] == [
        f"Run directory: {run}",
        f"To score it on other seeds: fastrl eval {run}",
        f"To film it: fastrl render {run} --out episode.mp4",
        f"To train it further: fastrl train --resume {run} --episodes {2 * last['episodes']}",
    ]
    assert last["episodes"] == sum(row["ended"] for row in rows)
    assert last["steps"] == 16 * 4 * len(rows)
    for name in (
        *MEANS,
        *("vehicles", "density", "level", "learning_rate", "policy_loss", "value_loss", "entropy"),
        *("episodes_per_minute", "steps_per_second", "memory_mib", "seconds_update", "iteration"),
    ):
        assert name in last
    assert last["success_rate"] <= 1
    assert last["vehicles"] == 3
    evaluated = [row for row in rows if "eval_mean_return" in row]
    assert 3 <= len(evaluated) <= len(rows)
    assert evaluated[-1] == last
    # By episodes, rotated; the best one apart.
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(names) == 4
    assert names[0] == BEST
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["episodes"] == last["episodes"]
    assert summary["evaluation"]["mean_return"] == last["eval_mean_return"]
    best = max(row["eval_mean_return"] for row in evaluated)
    assert summary["best"]["mean_return"] == best
    assert load_checkpoint(run / "checkpoints" / BEST)["best"]["mean_return"] == best
    assert summary["best_checkpoint"] == str(run / "checkpoints" / BEST)
    for text in ("episodes/min", "success", "best: after", "where the time went", f"fastrl eval {run}"):
        assert text in out.replace("\n", " ")


def test_the_best_checkpoint_outlives_newer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three evaluations is the best."""
    training = Training(small_config("--episodes=10000"), CONSOLE)
    training.best_file = tmp_path / "checkpoints" / BEST
    returns = iter([1.0, 3.0, 2.0])
    real = training.evaluate
    monkeypatch.setattr(
        training, "evaluate", lambda: dataclasses.replace(real(), mean_return=next(returns, 0.0))
    )
    seen = [training.episodes for row in islice(training.rows(), 40) if row.evaluation]
    assert len(seen) > 3
    assert training.best is not None
    assert training.best.mean_return == 3.0
    assert training.best_at == seen[1]
    assert load_checkpoint(training.best_file)["episodes"] == seen[1]


ALGORITHMS = (
    ("--algorithm=mappo", "--curriculum.mode=auto", "--curriculum.window=10", "--curriculum.up=0.5"),
    ("--algorithm=ippo", "--curriculum.mode=schedule", "--mappo.dropout=0.1", "--mappo.share=false"),
    ("--algorithm=reinforce", "--run.eval_freq=0", "--mappo.normalize_obs"),
)


@pytest.mark.parametrize("options", ALGORITHMS, ids=("mappo", "ippo", "reinforce"))
def test_restored_it_goes_on_as_if_never_stopped(tmp_path: Path, options: Sequence[str]) -> None:
    config = small_config(
        "--episodes=400", "--curriculum.levels=2", "--curriculum.start_density=0.1", *options
    )
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, density=0.2))
    whole, first = Training(config, CONSOLE), Training(config, CONSOLE)
    expected = list(whole.rows())
    if config.curriculum.mode != "off":
        assert len({row.level for row in expected[4:]}) > 1
    list(islice(first.rows(), 5))
    save_checkpoint(tmp_path / "c", first.state())
    second = Training(config, CONSOLE)
    second.restore(load_checkpoint(tmp_path / "c"))
    for row, other in zip(second.rows(), expected[5:], strict=True):
        assert unmeasured(row) == unmeasured(other)
    assert differences(learnt(second.state()), learnt(whole.state())) == []


def test_evaluations_change_nothing_and_are_the_same_again(tmp_path: Path) -> None:
    without, often = (
        Training(small_config("--episodes=200", f"--run.eval_freq={n}"), CONSOLE) for n in (0, 1)
    )
    list(without.rows())
    list(often.rows())
    states = learnt(without.state()), learnt(often.state())
    for part in ("learner", "worlds", "policy"):
        assert differences(states[0][part], states[1][part]) == []
    assert repr(often.evaluate()) == repr(often.evaluate()) == repr(without.evaluate())


def test_one_seed_fixes_a_run() -> None:
    runs = [Training(small_config("--episodes=100", f"--seed={seed}"), CONSOLE) for seed in (1, 1, 2)]
    rows = [[unmeasured(row) for row in training.rows()] for training in runs]
    assert rows[0] == rows[1] != rows[2]


def test_the_curriculum_reaches_the_worlds_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--curriculum.mode=schedule", "--curriculum.start_vehicles=1", "--curriculum.levels=2")
    training = Training(small_config("--episodes=300", "--density=0.4", *options), Console(width=200))
    rows = list(training.rows())
    assert [row.vehicles for row in rows] == sorted(row.vehicles for row in rows)
    assert {(row.level, row.vehicles, round(row.density, 6)) for row in rows} == {
        (0, 1, 0.2),
        (1, 2, 0.3),
        (2, 3, 0.4),
    }
    assert (rows[-1].rises, rows[-1].falls) == (2, 0)
    env: Any = training.worlds.env
    assert env.next_agents.tolist() == [3] * 4
    assert env.next_density.tolist() == [0.4] * 4
    out = capsys.readouterr().out
    assert "curriculum: level 1 of 2" in out
    assert "3 vehicles, density 0.4" in out
    # Evaluations are in full traffic from the start.
    assert training._evaluation_env is not None
    assert training._evaluation_env.agents.tolist() == [3] * 5  # type: ignore[attr-defined]


def test_auto_scaling_goes_down_again_when_too_few_succeed() -> None:
    options = (
        "--curriculum.mode=auto",
        "--curriculum.window=10",
        "--curriculum.down=0.9",
        "--curriculum.up=1",
    )
    training = Training(small_config("--episodes=60", "--density=1", *options), CONSOLE)
    training.curriculum.level = 2
    training._set_difficulty()
    rows = list(training.rows())
    assert rows[-1].level < 2
    assert rows[-1].falls >= 1
    assert training.curriculum.difficulty() == Difficulty(rows[-1].vehicles, rows[-1].density)


def test_resumed_with_more_episodes_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, "--episodes=60") == 0
    before = rows_of(run)
    assert main(["train", "--resume", str(run), "--episodes=120"]) == 0
    rows = rows_of(run)
    assert rows[: len(before)] == before
    assert rows[-1]["episodes"] >= 120
    _, state = load_newest(run)
    assert state["config"]["run"]["episodes"] == 120
    # What worlds there are was decided when it began, and stays.
    assert state["config"]["env"]["num_envs"] == 4
    assert "seed cannot change" in refusal_of_resume(capsys, run, "--seed=3")
    assert "--lr does not go with --resume" in refusal_of_resume(capsys, run, "--lr=3")


def refusal_of_resume(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> str:
    capsys.readouterr()
    assert main(["train", "--resume", str(run), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_eval_scores_runs_on_fixed_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, "--episodes=60") == 0
    summary = json.loads((run / "summary.json").read_text())
    # The run's own seeds give the run's own scores.
    own = evaluate_run(run, episodes=5, seed=0)
    assert {name: value for name, value in own.numbers().items() if value == value} == {
        name: summary["evaluation"][name] for name in own.numbers() if summary["evaluation"][name] is not None
    }
    capsys.readouterr()
    best = run / "checkpoints" / BEST
    assert main(["eval", str(run), str(best), "--episodes=30", "--seed=5", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], second["name"]) == (str(run), str(best))
    assert (first["episodes"], first["seed"]) == (30, 5)
    assert first["mean_return"] == evaluate_run(run, episodes=30, seed=5).mean_return
    assert main(["eval", str(run), "--episodes=3"]) == 0
    out = capsys.readouterr().out
    assert "3 episodes on the seeds of --seed 0" in out
    for arguments in (["--ruleset=main"], ["--stochastic"], ["baseline:sleep"]):
        assert main(["eval", str(run), *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_worlds_are_few_for_few_episodes() -> None:
    for episodes in (100, 200, 300, 500):
        config = small_config(f"--episodes={episodes}", "--num-envs=none", "--mappo.num_steps=64")
        training = Training(config, CONSOLE)
        assert training.learner.total_updates >= 12
        assert training.config.env.num_envs is not None
    assert training.config.env.num_envs > 4


def test_it_learns() -> None:
    training = Training(small_config("--episodes=4000", "--num-envs=32", "--mappo.hidden=32"), CONSOLE)
    before = training.evaluate()
    list(training.rows())
    assert training.best is not None
    assert training.best.success_rate > max(0.9, before.success_rate)


# Cooperative worlds, small ones, in processes of their own.
COOP = [
    *OPTIONS,
    "--env.duration=5",
    "--env-options",
    "background=4",
    "lanes=2",
    "--curriculum.mode=auto",
    "--curriculum.levels=2",
    "--curriculum.window=8",
    "--curriculum.up=0.3",
    "--curriculum.down=0.1",
    "--run.checkpoint_seconds=0",
]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fastrl", "train", *map(str, arguments)]


def wait_for_rows(run: Path, number: int, process: subprocess.Popen[Any]) -> None:
    path = run / "metrics.jsonl"

    def are_there() -> bool:
        return path.exists() and path.read_bytes().count(b"\n") >= number

    while not are_there():
        assert process.poll() is None or are_there(), process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_parameters(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ["traffic", *COOP, "--episodes=1500"]
    subprocess.run(command(*options, f"--run-dir={whole}"), check=True, capture_output=True)
    arguments = command(*options, f"--run-dir={killed}")
    for rows in (20, 50):
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_for_rows(killed, rows, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        arguments = command("--resume", killed)
    subprocess.run(arguments, check=True, capture_output=True)
    states = [load_newest(run)[1] for run in (killed, whole)]
    assert states[1]["curriculum"]["rises"] > 0
    for state in states:
        del state["seconds"], state["parts"], state["config"]
    assert differences(*states) == []
    best = [load_checkpoint(run / "checkpoints" / BEST) for run in (killed, whole)]
    assert differences(best[0]["policy"], best[1]["policy"]) == []
    measured = ("second", "share", "memory", "minute")
    kept = [
        [
            {name: row[name] for name in row if not any(word in name for word in measured)}
            for row in rows_of(run)
        ]
        for run in (killed, whole)
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("traffic", *COOP, "--episodes=1000000", f"--run-dir={run}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_rows(run, 3, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err == ""
    assert f"--resume {run}" in out.replace("\n", " ")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", number.name)
    assert load_newest(run)[1]["steps"] == rows_of(run)[-1]["steps"]


@pytest.mark.slow
def test_it_learns_to_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cars in light traffic."""
    monkeypatch.setattr(fastrl.tasks.traffic.run, "make_multi", make_multi)
    config = small_config(
        "--episodes=3000",
        "--num-envs=32",
        "--env.duration=20",
        "--env-options",
        "lanes=3",
        "background=4",
        "--mappo.num_steps=20",
        "--mappo.hidden=64,32",
        "--mappo.minibatch_size=1024",
        "--run.eval_freq=0",
    )
    rows = list(Training(config, CONSOLE).rows())

    def mean(name: str, some: list[TrafficRow]) -> float:
        return sum(row.played[name] for row in some) / len(some)

    assert mean("mean_return", rows[-10:]) > mean("mean_return", rows[:10]) + 1
    assert mean("collision_rate", rows[-10:]) < mean("collision_rate", rows[:10]) / 2


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--preset", "perfomance"], "--preset: unknown preset perfomance; did you mean performance?"),
        (["--vehicels=3"], "unknown option --vehicels; did you mean --vehicles?"),
        (["--episodes=0"], "--episodes should be greater than or equal to 1, got '0'"),
        (
            ["--algorithm=mapo"],
            ("--algorithm should be 'ippo', 'mappo' or 'reinforce', got 'mapo'; did you mean 'mappo'?"),
        ),
        (["--env.options=lanes"], "--env-options should be KEY=VALUE such as lanes=3, got ['lanes']"),
        (
            [*OPTIONS, "--env.id=fastrl/coop-highwey-v0"],
            (
                "--env: expected one of fastrl/coop-highway-v0, fastrl/coop-merge-v0, fastrl/highway-v0,"
                " fastrl/highway-fast-v0, fastrl/ring-v0, got fastrl/coop-highwey-v0"
            ),
        ),
        (
            ["--curriculum.up=0.3"],
            "--curriculum.up 0.3 should be more than --curriculum.down 0.4",
        ),
        (["--lr=fast"], "--lr should be a valid number, got 'fast'"),
        (
            ["--lr=1", "--mappo.learning_rate=1"],
            "--lr and --mappo.learning_rate say the same thing: give one of them",
        ),
        (
            ["--env=fastrl/ring-v0", "--env.cooperation=1"],
            "--env.cooperation is not an option of fastrl/ring-v0",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *options, "--run-dir", tmp_path / "run") == line
    assert not (tmp_path / "run").exists()


def test_absurd_sizes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "GB of memory" in refusal(capsys, "--num-envs=1e6", "--run-dir", tmp_path / "run")


def test_worlds_of_fixed_difficulty_have_no_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    from team_env import TeamEnv

    def fixed(self: TeamEnv, **_: object) -> None:
        raise NotImplementedError("this world has a fixed number of agents")

    config = small_config("--curriculum.mode=auto")
    training = Training(config, CONSOLE)
    monkeypatch.setattr(TeamEnv, "set_difficulty", fixed)
    with pytest.raises(TrainError, match=r"--curriculum\.mode auto: this world has a fixed number of agents"):
        training._set_difficulty()


def test_nothing_known_is_nan() -> None:
    training = Training(small_config("--episodes=10"), CONSOLE)
    rows = list(training.rows())
    assert math.isnan(rows[-1].played["min_ttc"])  # the line has none
    assert "success" in " ".join(rows[0].highlights())
