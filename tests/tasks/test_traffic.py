"""Runs in traffic as a user sees them, on environments that take no time."""

import dataclasses
import json
import signal
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import traffic_runs
from rich.console import Console
from small_runs import differences, train_refusal, untimed_state
from traffic_runs import line_envs, lines, small, small_settings, small_trainer, train
from train_process import start_training, wait_for_rows

import fastrl.tasks.traffic.task
from fastrl.cli.main import main
from fastrl.collectors.protocol import Difficulty
from fastrl.collectors.team_spec import CompiledTeamSpec
from fastrl.envs.record_episodes import MEANS
from fastrl.runs.checkpoint import BEST, load_checkpoint, load_newest, save_checkpoint
from fastrl.runs.console_logger import Highlights
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Row
from fastrl.sources.team_rollouts import MultiAgentSource
from fastrl.tasks.traffic.curriculum import CurriculumCallback
from fastrl.tasks.traffic.scores import Scores
from fastrl.tasks.traffic.task import TASK
from fastrl.training.evaluation import Evaluation
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.run import evaluate_run
from fastrl.training.trainer import Trainer
from fastrl.utils.files import to_json

pytestmark = pytest.mark.usefixtures("lines")
__all__ = ["lines"]

# In names of numbers that clocks measure.
MEASURED = ("second", "share", "fps", "elapsed")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def unmeasured(row: Row) -> str:
    """A row without what a clock has measured."""
    return repr({k: v for k, v in row.record().items() if not any(word in k for word in MEASURED)})


def learnt(trainer: Trainer) -> dict[str, Any]:
    """The state of a trainer without measured times and settings."""
    return untimed_state(trainer.state_dict())


def curriculum_of(trainer: Trainer) -> CurriculumCallback:
    callback = trainer.callback(CurriculumCallback)
    assert callback is not None
    return callback


def evaluation_of(trainer: Trainer) -> Evaluation:
    callback = trainer.callback(Evaluation)
    assert callback is not None
    return callback


def evaluate(trainer: Trainer) -> Scores:
    """Scores of a small run's policy as it is."""
    return TASK.evaluate(trainer.policy_checkpoint(), small_settings(), EvaluationOptions(5))


@pytest.mark.slow
def test_a_run_leaves_its_settings_metrics_checkpoints_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run, "--total-episodes=150", "--save-freq=30", "--run.checkpoint-seconds=1000") == 0
    out = capsys.readouterr().out
    rows = rows_of(run)
    last = rows[-1]
    assert last["time/episodes"] >= 150 > rows[-2]["time/episodes"]
    assert out.splitlines()[-4:] == [
        f"Run directory: {run}",
        f"To score it on new episodes: fastrl eval {run}",
        f"To film it: fastrl render {run} --out episode.mp4",
        f"To train it further: fastrl train --resume {run} --total-episodes {2 * last['time/episodes']}",
    ]
    assert last["time/episodes"] == sum(row["rollout/episodes"] for row in rows)
    assert last["time/total_timesteps"] == 16 * 4 * len(rows)
    for name in (
        *(f"rollout/ep_{name}" for name in MEANS if name not in ("mean_return", "mean_length", "min_ttc")),
        *("curriculum/vehicles", "curriculum/density", "curriculum/level"),
        *("train/learning_rate", "train/policy_loss", "train/value_loss", "train/entropy"),
        *("time/episodes_per_second", "time/fps", "time/seconds_update", "time/iterations"),
    ):
        assert name in last
    assert last["rollout/ep_success_rate"] <= 1
    assert last["curriculum/vehicles"] == 3
    evaluated = [row for row in rows if "eval/mean_reward" in row]
    assert 3 <= len(evaluated) <= len(rows)
    assert evaluated[-1] == last
    # By episodes, rotated; the best one apart.
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(names) == 4
    assert names[0] == BEST
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["episodes"] == last["time/episodes"]
    # Of other episodes than those on the way.
    assert summary["evaluation"]["mean_return"] != last["eval/mean_reward"]
    best = max(row["eval/mean_reward"] for row in evaluated)
    assert summary["best"]["mean_return"] == best
    saved = load_checkpoint(run / "checkpoints" / BEST)["callbacks"]["evaluation"]
    assert saved["best"]["mean_return"] == best
    assert summary["best_checkpoint"] == str(run / "checkpoints" / BEST)
    for text in (
        "episodes/s",
        "success",
        "best evaluation on the way, after",
        "where the time went",
        f"fastrl eval {run}",
    ):
        assert text in out.replace("\n", " ")


def test_the_best_checkpoint_outlives_newer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three evaluations is the best."""
    trainer = small_trainer("--total-episodes=10000")
    evaluation = evaluation_of(trainer)
    evaluation.best_file = tmp_path / "checkpoints" / BEST
    returns = iter([1.0, 3.0, 2.0])
    real: Any = evaluation.evaluate

    def evaluate(*arguments: Any, **options: Any) -> Any:
        return dataclasses.replace(real(*arguments, **options), mean_return=next(returns, 0.0))

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    seen = [trainer.episodes for row in islice(trainer.rows(), 40) if "eval/mean_reward" in row.metrics]
    assert len(seen) > 3
    assert evaluation.best is not None
    assert evaluation.best.mean_return == 3.0
    assert evaluation.best_at == seen[1]
    assert load_checkpoint(evaluation.best_file)["episodes"] == seen[1]


ALGORITHMS = (
    ("--algo=mappo", "--curriculum.mode=auto", "--curriculum.window=10", "--curriculum.up=0.5"),
    pytest.param(
        ("--algo=ippo", "--curriculum.mode=schedule", "--ippo.dropout=0.1", "--no-ippo.share"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--algo=reinforce", "--run.eval-freq=0", "--reinforce.normalize-obs"), marks=pytest.mark.slow
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("options", ALGORITHMS, ids=("mappo", "ippo", "reinforce"))
def test_a_restored_trainer_continues_as_if_it_had_not_stopped(
    tmp_path: Path, options: Sequence[str]
) -> None:
    options = (
        "--total-episodes=400",
        "--curriculum.levels=2",
        "--curriculum.start-density=0.1",
        "--density=0.2",
        *options,
    )
    whole, first, second = (small_trainer(*options) for _ in range(3))
    expected = list(whole.rows())
    if curriculum_of(whole).curriculum.config.mode != "off":
        assert len({row.record()["curriculum/level"] for row in expected[4:]}) > 1
    list(islice(first.rows(), 5))
    save_checkpoint(tmp_path / "c", first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path / "c"))
    for row, other in zip(second.rows(), expected[5:], strict=True):
        assert unmeasured(row) == unmeasured(other)
    assert differences(learnt(second), learnt(whole)) == []


@pytest.mark.slow
def test_evaluations_change_nothing_and_are_the_same_again(tmp_path: Path) -> None:
    without, often = (small_trainer("--total-episodes=200", f"--run.eval-freq={n}") for n in (0, 1))
    list(without.rows())
    list(often.rows())
    states = learnt(without), learnt(often)
    for part in ("learner", "source", "policy"):
        assert differences(states[0][part], states[1][part]) == []
    assert repr(evaluate(often)) == repr(evaluate(often)) == repr(evaluate(without))


def test_one_seed_fixes_a_run() -> None:
    trainers = [small_trainer("--total-episodes=100", f"--seed={seed}") for seed in (1, 1, 2)]
    rows = [[unmeasured(row) for row in trainer.rows()] for trainer in trainers]
    assert rows[0] == rows[1] != rows[2]


def test_the_curriculum_reaches_the_environments_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(line_envs(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(traffic_runs, "line_envs", make)
    options = ("--curriculum.mode=schedule", "--curriculum.start-vehicles=1", "--curriculum.levels=2")
    trainer = small_trainer("--total-episodes=300", "--density=0.4", *options, console=Console(width=200))
    rows = [row.record() for row in trainer.rows()]
    assert [row["curriculum/vehicles"] for row in rows] == sorted(row["curriculum/vehicles"] for row in rows)
    assert {
        (row["curriculum/level"], row["curriculum/vehicles"], round(row["curriculum/density"], 6))
        for row in rows
    } == {
        (0, 1, 0.2),
        (1, 2, 0.3),
        (2, 3, 0.4),
    }
    assert (rows[-1]["curriculum/rises"], rows[-1]["curriculum/falls"]) == (2, 0)
    [training] = [env for env in made if env.num_envs == 4]
    evaluations = [env for env in made if env.num_envs == 5]
    assert training.next_agents.tolist() == [3] * 4
    assert training.next_density.tolist() == [0.4] * 4
    out = capsys.readouterr().out
    assert "curriculum: level 1 of 2" in out
    assert "3 vehicles, density 0.4" in out
    # Evaluations are in full traffic from the start.
    assert evaluations
    for env in evaluations:
        assert env.agents.tolist() == [3] * 5


@pytest.mark.slow
def test_a_curriculum_is_the_same_with_workers() -> None:
    """They succeed in the same episodes, so the level changes at the same time."""
    options = ("--total-episodes=150", "--curriculum.mode=auto", "--curriculum.window=10")
    options = (*options, "--curriculum.up=0.5", "--curriculum.start-density=0.1", "--density=0.2")
    found = []
    for collector in (("sequential",), ("executor", "--n-workers=2")):
        trainer = small_trainer(*options, f"--collector={collector[0]}", *collector[1:])
        levels = [row.record()["curriculum/level"] for row in trainer.rows()]
        found.append((levels, trainer.algorithm.policy_state()["actors"]))
    assert len(set(found[0][0])) > 1
    assert found[0][0] == found[1][0]
    assert differences(found[0][1], found[1][1]) == []


def test_auto_mode_lowers_the_level_when_too_few_succeed() -> None:
    options = (
        "--curriculum.mode=auto",
        "--curriculum.window=10",
        "--curriculum.down=0.9",
        "--curriculum.up=1",
    )
    trainer = small_trainer("--total-episodes=60", "--density=1", *options)
    callback = curriculum_of(trainer)
    callback.curriculum.level = 2
    callback.set_difficulty()
    last = [row.record() for row in trainer.rows()][-1]
    assert last["curriculum/level"] < 2
    assert last["curriculum/falls"] >= 1
    assert callback.curriculum.difficulty() == Difficulty(
        int(last["curriculum/vehicles"]), last["curriculum/density"]
    )


@pytest.mark.slow
def test_a_run_is_resumed_with_more_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, "--total-episodes=60") == 0
    before = rows_of(run)
    assert main(["train", "--resume", str(run), "--total-episodes=120"]) == 0
    rows = rows_of(run)
    assert rows[: len(before)] == before
    assert rows[-1]["time/episodes"] >= 120
    _, state = load_newest(run)
    assert state["config"]["run"]["total_episodes"] == 120
    # The number of environments was chosen when it started, and stays.
    assert state["config"]["env"]["num_envs"] == 4
    assert "seed cannot change" in refusal_of_resume(capsys, run, "--seed=3")
    assert "learning_rate cannot change" in refusal_of_resume(capsys, run, "--lr=3")


def refusal_of_resume(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> str:
    capsys.readouterr()
    assert main(["train", "--resume", str(run), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_eval_scores_runs_on_fixed_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, "--total-episodes=60") == 0
    summary = json.loads((run / "summary.json").read_text())
    # The run's own seeds give the run's own scores.
    own = evaluate_run(TASK, run, EvaluationOptions(5))
    assert json.loads(to_json(own.to_tree())) == summary["evaluation"]
    assert {"success_rate", "mean_ep_length"} <= own.metrics().keys()
    capsys.readouterr()
    best = run / "checkpoints" / BEST
    assert main(["eval", str(run), str(best), "--episodes=30", "--seed=5", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["run"], second["run"]) == (str(run), str(best))
    assert (first["episodes"], first["seed"]) == (30, 5)
    assert first["mean_return"] == evaluate_run(TASK, run, EvaluationOptions(30, seed=5)).mean_return
    assert main(["eval", str(run), "--episodes=3"]) == 0
    out = capsys.readouterr().out
    assert "3 episodes on the seeds of --seed 0" in out
    for arguments in (["--ruleset=main"], ["--mode=both"], ["baseline:sleep"]):
        assert main(["eval", str(run), *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_few_episodes_are_many_updates() -> None:
    for episodes in (100, 200, 300, 500, 2000):
        trainer = small_trainer(f"--total-episodes={episodes}", "--num-envs=none", "--ippo.num-steps=64")
        assert trainer.algorithm.total_updates >= 30  # type: ignore[attr-defined]
    assert isinstance(trainer.source, MultiAgentSource)
    assert trainer.source.num_envs > 4


@pytest.mark.slow
def test_it_learns() -> None:
    trainer = small_trainer("--total-episodes=4000", "--num-envs=32", "--ippo.hidden=32")
    before = evaluate(trainer)
    list(trainer.rows())
    best = evaluation_of(trainer).best
    assert isinstance(best, Scores)
    assert best.success_rate > max(0.9, before.success_rate)


# Small cooperative environments, in processes of their own.
COOP = [
    *small(),
    "--env.duration=5",
    "--env-options",
    "background=4",
    "lanes=2",
    "--curriculum.mode=auto",
    "--curriculum.levels=2",
    "--curriculum.window=8",
    "--curriculum.up=0.3",
    "--curriculum.down=0.1",
    "--run.checkpoint-seconds=0",
]


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other process has the environments as they are.
    monkeypatch.undo()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ["traffic", *COOP, "--total-episodes=600"]
    assert main(["train", *options, f"--run-dir={whole}"]) == 0
    process = start_training(*options, f"--run-dir={killed}")
    wait_for_rows(killed, 10, process)
    process.kill()
    process.communicate()
    assert main(["train", f"--resume={killed}"]) == 0
    states = [load_newest(run)[1] for run in (killed, whole)]
    assert states[1]["callbacks"]["curriculum"]["rises"] > 0
    for state in states:
        del state["seconds"], state["parts"], state["config"]
    assert differences(*states) == []
    best = [load_checkpoint(run / "checkpoints" / BEST) for run in (killed, whole)]
    assert differences(best[0]["policy"], best[1]["policy"]) == []
    kept = [
        [
            {name: row[name] for name in row if not any(word in name for word in MEASURED)}
            for row in rows_of(run)
        ]
        for run in (killed, whole)
    ]
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_prints_how_to_resume_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_training("traffic", *COOP, "--total-episodes=1000000", f"--run-dir={run}")
    wait_for_rows(run, 3, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert err == ""
    assert f"--resume {run}" in out.replace("\n", " ")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", "SIGINT")
    assert load_newest(run)[1]["steps"] == rows_of(run)[-1]["time/total_timesteps"]


@pytest.mark.learning
def test_it_learns_to_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cars in light traffic."""
    monkeypatch.setattr(fastrl.tasks.traffic.task, "CompiledTeamSpec", CompiledTeamSpec)
    first, last = [], []
    # Some seeds stay where every second car crashes.
    for seed in (1, 2, 3):
        trainer = small_trainer(
            "--total-episodes=3000",
            "--num-envs=32",
            "--env.duration=20",
            "--env-options",
            "lanes=3",
            "background=4",
            "--ippo.num-steps=20",
            "--ippo.hidden=64,32",
            "--ippo.minibatch-size=1024",
            "--run.eval-freq=0",
            f"--seed={seed}",
        )
        rows = [row.record() for row in trainer.rows()]
        first, last = first + rows[:10], last + rows[-10:]

    def mean(name: str, some: list[dict[str, float | int]]) -> float:
        return sum(row[name] for row in some) / len(some)

    assert mean("rollout/ep_rew_mean", last) > mean("rollout/ep_rew_mean", first) + 1
    assert mean("rollout/ep_collision_rate", last) < mean("rollout/ep_collision_rate", first) / 2


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--preset", "perfomance"], "--preset: unknown preset perfomance; did you mean performance?"),
        (["--vehicels=3"], "unknown option --vehicels; did you mean --vehicles?"),
        (["--total-episodes=0"], "--total-episodes should be greater than or equal to 1, got '0'"),
        (
            ["--algo=mapo"],
            (
                "--algo should be one of async-ppo, bc, crossq, dqn, impala, ippo, iql, mabc, mappo, ppo, pqn,"
                " reinforce, sac, td3, or module:Class of your own; got 'mapo'; did you mean mappo?"
            ),
        ),
        (
            ["--algo=dqn"],
            "--algo dqn is for one agent, traffic has many; ippo, mabc, mappo, reinforce learn in it",
        ),
        (["--env.options=lanes"], "--env-options should be KEY=VALUE such as lanes=3, got ['lanes']"),
        (
            [*small(), "--env.id=fastrl/coop-highwey-v0"],
            "--env: unknown environment fastrl/coop-highwey-v0; did you mean fastrl/coop-highway-v0?",
        ),
        (
            ["--curriculum.up=0.3"],
            "--curriculum.up 0.3 should be more than --curriculum.down 0.4",
        ),
        (
            ["--lr=fast"],
            (
                "--lr should be a valid number, or a schedule such as linear:3e-4, cosine:3e-4:1e-5,"
                " exponential:3e-4:1e-6 or points:0=1e-3,0.5=1e-3,1=0, got 'fast'"
            ),
        ),
        (
            ["--lr=1", "--ippo.learning-rate=1"],
            "--lr and --ippo.learning-rate say the same thing: give one of them",
        ),
        (
            ["--env=fastrl/ring-v0", "--env.cooperation=1"],
            "--env.cooperation is not an option of fastrl/ring-v0",
        ),
        (
            ["--env=fastrl/ring-v0", "--preset=fast"],
            "--preset fast is for other environments than --env fastrl/ring-v0, which has few-episodes, ring",
        ),
        (
            ["--env=fastrl/highway-v0", "--preset=fast"],
            "--preset fast is for other environments than --env fastrl/highway-v0, which has few-episodes",
        ),
        (
            ["--env=fastrl/coop-merge-v0", "--preset=ring"],
            (
                "--preset ring is for other environments than --env fastrl/coop-merge-v0, which has fast, stable,"
                " performance, large-scale, mega-scale, few-episodes"
            ),
        ),
    ],
)
def test_mistakes_end_in_one_line(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_refusal(capsys, "traffic", *options, "--run-dir", tmp_path / "run") == line
    assert not (tmp_path / "run").exists()


def test_absurd_sizes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "GB of memory" in train_refusal(capsys, "traffic", "--num-envs=1e6", "--run-dir", tmp_path / "run")


def test_environments_of_fixed_difficulty_have_no_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    from team_env import TeamEnv

    def fixed(self: TeamEnv, **_: object) -> None:
        raise NotImplementedError("this environment has a fixed number of agents")

    source = small_trainer().source
    assert isinstance(source, MultiAgentSource)
    monkeypatch.setattr(TeamEnv, "set_difficulty", fixed)
    settings = small_settings("--curriculum.mode=auto")
    line = r"--curriculum\.mode auto: this environment has a fixed number of agents"
    with pytest.raises(TrainError, match=line):
        TASK.callbacks(settings, source, Console(quiet=True))
    TASK.callbacks(small_settings(), source, Console(quiet=True))


def test_unknown_numbers_are_left_out() -> None:
    trainer = small_trainer("--total-episodes=10")
    rows = list(trainer.rows())
    row = rows[-1].record()
    assert "rollout/ep_success_rate" in row and "rollout/ep_min_ttc" not in row  # the line has none
    assert "success" in " ".join(Highlights(TASK.shown).of(rows[-1].metrics))
