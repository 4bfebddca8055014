"""Runs on environments of Gymnasium: their files, one seed, resumption, users' mistakes, failing environments."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from rich.console import Console
from small_runs import differences, learnt, rows_of, same, trainer_of
from train_process import start_training, wait_for_rows
from waiting import TIMEOUT

import fastrl
from fastrl.algorithms.ppo import PPO
from fastrl.cli.main import main
from fastrl.collectors.protocol import Failure
from fastrl.collectors.running import unpacked
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.traffic.passing import Passing
from fastrl.rollout.fragment import Fragment
from fastrl.runs.checkpoint import find_checkpoint, load_newest, save_checkpoint
from fastrl.sources.rollouts import FailurePrinter
from fastrl.tasks import find
from fastrl.tasks.gym.settings import PRESETS
from fastrl.training.trainer import Trainer

# An update is 4 rows of 16 steps.
UPDATE = 64
OPTIONS = [
    "--collector=sequential",
    "--num-envs=4",
    "--run.row-seconds=0",
    "--run.eval-episodes=0",
    "--device=cpu",
]
ALGORITHMS = ("ppo", "async-ppo", "impala")
# Trains on any environment, also on those that have a task of their own.
TASK_OF_ANY = "fastrl.tasks.gym.task:TASK"


def options_of(*options: str) -> list[str]:
    """Options of a small run with the algorithm that they name, or PPO."""
    named = (option.partition("=")[2] for option in options if option.startswith("--algo="))
    table = next(named, "ppo")
    own = ["num-steps=16", "hidden=8"]
    if table in ("ppo", "async-ppo"):
        own += ["minibatch-size=32", "num-epochs=2"]
    return [
        *OPTIONS,
        *(f"--{table}.{option}" for option in own if table in ("ppo", "async-ppo", "impala")),
        *options,
    ]


class ImagesOnly(PPO):
    name = "images-only"
    obs_kinds = frozenset({"image"})


def training_of(*options: str, console: Console | None = None) -> Trainer:
    # Not the presets of CartPole, whose numbers of environments and epochs are others.
    return trainer_of("gym", *options_of(*options), console=console)


def train_small(run: Path, *options: object, updates: int = 3) -> int:
    total = f"--total-timesteps={updates * UPDATE}"
    return main(["train", TASK_OF_ANY, *options_of(*map(str, options)), total, f"--run-dir={run}"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_rows_tell_what_was_done(algorithm: str, unit: str) -> None:
    options = ["--episodes-per-update=3"] if unit == "episodes" else []
    training = training_of(f"--algo={algorithm}", f"--total-timesteps={3 * UPDATE}", *options)
    rows = list(training.rows())
    records = [row.record() for row in rows]
    assert [record["time/iterations"] for record in records] == list(range(1, len(rows) + 1))
    assert rows[-1].steps == training.steps >= 3 * UPDATE
    if unit == "episodes":
        assert [record["time/episodes"] for record in records] == [
            3 * record["time/iterations"] for record in records
        ]
        lengths = np.diff([0, *(row.steps for row in rows)]) / 3
        np.testing.assert_allclose([record["rollout/ep_len_mean"] for record in records], lengths)
    else:
        assert [row.steps for row in rows] == [UPDATE, 2 * UPDATE, 3 * UPDATE]
        assert records[-1]["time/episodes"] > 0
    # CartPole pays 1 a step.
    returns = [record["rollout/ep_rew_mean"] for record in records]
    assert all(
        r == record["rollout/ep_len_mean"] or math.isnan(r)
        for r, record in zip(returns, records, strict=True)
    )
    assert rows[-1].metrics["train/entropy"] > 0
    prefix = "time/seconds_"
    parts = {name.removeprefix(prefix) for name in rows[-1].metrics if name.startswith(prefix)}
    assert parts == {"environment", "inference", "buffer", "publishing", "waiting", "returns", "update"}
    assert 0 < sum(training.activities.values()) <= training.seconds
    assert [records[-1][f"collect/{name}"] for name in ("staleness", "max_staleness", "dropped")] == [0, 0, 0]


def test_rows_by_time_add_up() -> None:
    trainer = training_of(f"--total-timesteps={5 * UPDATE}", "--run.row-seconds=1000", "--run.min-rows=1")
    [row] = (row.record() for row in trainer.rows())
    assert row["time/iterations"] == 5
    every = [row.record() for row in training_of(f"--total-timesteps={5 * UPDATE}").rows()]
    assert row["time/episodes"] == every[-1]["time/episodes"]
    ended = np.diff([0, *(each["time/episodes"] for each in every)])
    returns = sum(each["rollout/ep_rew_mean"] * n for each, n in zip(every, ended, strict=True) if n)
    assert row["rollout/ep_rew_mean"] == pytest.approx(returns / ended.sum())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_seed_fixes_a_run_whose_collector_waits(tmp_path: Path, algorithm: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert train_small(tmp_path / name, f"--algo={algorithm}", "--seed", seed) == 0
    assert same(learnt(tmp_path / "a"), learnt(tmp_path / "b"))
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    assert not same(learnt(tmp_path / "a")["policy"], learnt(tmp_path / "c")["policy"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--episodes-per-update=6"]], ids=["steps", "episodes"])
def test_it_learns_the_same_whoever_collects(tmp_path: Path, options: list[str]) -> None:
    for name in ("sequential", "executor"):
        workers = ["--n-workers=2"] if name == "executor" else []
        assert train_small(tmp_path / name, f"--collector={name}", *workers, *options) == 0
    ours, theirs = learnt(tmp_path / "sequential"), learnt(tmp_path / "executor")
    assert differences(ours, theirs) == []
    assert rows_of(tmp_path / "sequential") == rows_of(tmp_path / "executor")


def test_it_learns_the_same_however_compiled_environments_are_played(tmp_path: Path) -> None:
    ways = {
        "sequential": [],
        "native": ["--collector=native"],
        "asynchronous": ["--collector=native", "--collect.asynchronous=3"],
    }
    for name, way in ways.items():
        assert train_small(tmp_path / name, "--env=fastrl/Cage2-v0", *way) == 0
    for name in ("native", "asynchronous"):
        assert differences(learnt(tmp_path / "sequential"), learnt(tmp_path / name)) == []
        assert rows_of(tmp_path / "sequential") == rows_of(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_continuous_actions(algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    options = ["--env=Pendulum-v1", "--env-options", "max_episode_steps=7", "--run.eval-episodes=3"]
    options += [f"--algo={algorithm}", *([] if algorithm == "ppo" else ["--max-staleness=0"])]
    assert train_small(run, *options) == 0
    assert train_small(tmp_path / "other", *options, "--collector=executor", "--n-workers=2") == 0
    assert differences(learnt(run), learnt(tmp_path / "other")) == []
    policy = fastrl.load_policy(run)
    assert policy.continuous
    assert (policy.num_actions, policy.actions.tolist()) == (1, [])
    obs = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    likeliest, drawn = policy.act(obs), policy.act(obs, deterministic=False)
    assert likeliest.dtype == drawn.dtype == np.float32
    assert likeliest.shape == drawn.shape == (200, 1)
    # A fresh policy's means are near the middle of [-2, 2], its deviation is half the range.
    assert np.abs(likeliest).max() < 1
    assert np.abs(drawn).max() == 2
    assert 1 < drawn.std() < 2
    with pytest.raises(ValueError, match="action_mask is for discrete actions"):
        policy.act(obs, action_mask=np.ones((200, 1), np.bool_))
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=4"]) == 0
    assert "4 episodes: mean return -" in capsys.readouterr().out
    assert main(["train", "--resume", str(run), f"--total-timesteps={5 * UPDATE}"]) == 0


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@pytest.mark.parametrize("options", [[], ["--episodes-per-update=3"]], ids=["steps", "episodes"])
def test_it_goes_on_where_it_stood(algorithm: str, options: list[str], tmp_path: Path) -> None:
    """The learner to the bit; the collector with the next version and the next episodes."""
    options = [*options, f"--algo={algorithm}", f"--total-timesteps={6 * UPDATE}"]
    first = training_of(*options)
    rows = list(islice(first.rows(), 2))
    state = first.state_dict()
    second = training_of(*options)
    second.load_state_dict(state)
    assert differences(second.state_dict(), state) == []
    assert second.steps == rows[-1].steps
    more = [row.record() for row in second.rows()]
    assert more[0]["time/iterations"] == 3
    assert more[0]["time/episodes"] >= rows[-1].record()["time/episodes"]
    after = second.state_dict()["source"]["collector"]
    assert after["version"] == more[-1]["time/iterations"]
    numbers = unpacked(after)["numbers"]
    assert all(
        numbers[i] >= number for i, number in unpacked(state["source"]["collector"])["numbers"].items()
    )
    if options[0].startswith("--episodes"):
        assert list(numbers.values()) == [3 * more[-1]["time/iterations"]]


@pytest.mark.slow
def test_stopped_with_whole_episodes_it_ends_as_if_never_stopped(tmp_path: Path) -> None:
    """Nothing runs between updates then."""
    options = ["--episodes-per-update=3", "--run.checkpoint-seconds=0"]
    train_small(tmp_path / "whole", *options, updates=8)
    train_small(tmp_path / "parts", *options, updates=3)
    arguments = ["--resume", str(tmp_path / "parts"), f"--total-timesteps={8 * UPDATE}"]
    assert main(["train", *arguments]) == 0
    # Schedules run over what was asked for at first.
    numbers = unpacked(learnt(tmp_path / "parts")["source"]["collector"])["numbers"]
    assert list(numbers.values()) == [3 * learnt(tmp_path / "parts")["iteration"]]
    rows = rows_of(tmp_path / "parts")
    assert [row["time/iterations"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_run_leaves_all_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train_small(run, "--run.eval-episodes=3", "--env-options", "max_episode_steps=7") == 0
    out = capsys.readouterr().out
    assert "collecting with 'sequential'" in out
    assert "ppo on CartPole-v1 (sequential)" in out
    assert "without exploration, 3 episodes: mean return 7" in out
    assert out.splitlines()[-3:] == [
        f"Run directory: {run}",
        f"To score it on new episodes: fastrl eval {run}",
        f"To train it further: fastrl train --resume {run} --total-timesteps {6 * UPDATE}",
    ]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["collector"], summary["steps"]) == (
        "complete",
        "sequential",
        3 * UPDATE,
    )
    assert summary["evaluation"]["returns"] == [7.0, 7.0, 7.0]
    assert sum(part["seconds"] for part in summary["parts"].values()) == pytest.approx(summary["seconds"])
    settings = tomllib.loads((run / "config.toml").read_text())
    assert settings["env"]["options"] == ["max_episode_steps=7"]

    policy = fastrl.load_policy(run)
    obs, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    assert policy.act(obs[None]).tolist() in ([0], [1])
    assert main(["eval", str(run), "--episodes=4", "--json"]) == 0
    [scores] = json.loads(capsys.readouterr().out)["runs"]
    assert (scores["episodes"], scores["mean"]) == (4, 7.0)
    assert main(["eval", str(run), "--episodes=4", "--seed=1"]) == 0
    assert "4 episodes: mean return 7" in capsys.readouterr().out


def test_staleness_is_measured_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(SequentialCollector):
        """Returns the fragments of some calls ago."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.waiting: list[Fragment] = []

        def take(self, timeout: float | None = None) -> Fragment:
            while len(self.waiting) < 3:
                self.waiting.append(super().take())
            return self.waiting.pop(0)

    monkeypatch.setattr("fastrl.sources.rollouts.open_collector", lambda config, plan, *others: Late(plan))
    options = [f"--total-timesteps={8 * UPDATE}", "--algo=impala"]

    def records(*options: str) -> list[dict[str, Any]]:
        return [row.record() for row in training_of(*options).rows()]

    rows = records(*options, "--max-staleness=5")
    assert [row["collect/max_staleness"] for row in rows] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert rows[-1]["collect/staleness"] == 2
    assert rows[-1]["train/mean_ratio"] != 1
    rows = records(*options, "--max-staleness=1")
    assert max(row["collect/max_staleness"] for row in rows) == 1
    assert rows[-1]["collect/dropped"] > 0
    rows = records(*options, "--max-staleness=0")
    assert rows[-1]["collect/max_staleness"] == rows[-1]["collect/dropped"] == 0
    training = training_of(f"--total-timesteps={8 * UPDATE}", "--algo=async-ppo", "--max-staleness=5")
    assert list(training.rows())[-1].record()["collect/max_staleness"] == 2
    assert training.algorithm.log_ratios is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--env=CartPol-v1"],
            "--env CartPol-v1: Gymnasium knows no 'CartPol-v1'; did you mean CartPole-v1?",
        ),
        (
            ["--env=no_such_module:make"],
            "--env no_such_module:make: No module named 'no_such_module'; it should",
        ),
        (
            ["--env-options", "nonsense"],
            "--env-options should be KEY=VALUE such as lanes=3, got ['nonsense']",
        ),
        (["--env-options", "a=1", "a=2"], "--env-options should give a once, got"),
        (["--env=NoSuchWorld-v0"], "--env NoSuchWorld-v0: Gymnasium knows no 'NoSuchWorld-v0'\n"),
        (["--env-options", "gravityy=1"], "--env CartPole-v1 with {'gravityy': 1}:"),
        (["--env=space_cases:Talk"], "observations should be a Box, Discrete,"),
        (["--env=space_cases:Words"], "actions should be Discrete,"),
        (["--env=ALE/Pinball-v5"], "to learn Atari games use fastrl-train ALE/Pinball-v5"),
        (
            ["--env=test_gym_run:Path"],
            "should make a gymnasium.Env, got a PosixPath without observation_space",
        ),
        (
            ["--algo=test_gym_run:ImagesOnly", "--env=FrozenLake-v1"],
            "images-only does not take vector observations such as Discrete(16); these algorithms do: async-ppo,",
        ),
        (["--n-workers=0"], "--n-workers should be greater than or equal to 1 or 'auto', got '0'"),
        (["--collector=exector"], "did you mean 'executor'?"),
        (["--algo=impala", "--impala.c-clip=2"], "c_clip should be at most rho_clip"),
        (
            ["--algo=a3c"],
            "--algo should be one of async-ppo, bc, crossq, dqn, impala, ippo, iql, mabc, mappo, ppo, pqn, reinforce,",
        ),
        (
            ["--preset=nothing"],
            "--preset: unknown preset nothing; there are discrete, continuous, images, classic,",
        ),
        (
            ["--algo=dqn", "--preset=hopper"],
            "--preset hopper is for --algo async-ppo or crossq or ppo or sac or td3, not for dqn: leave it out,",
        ),
        (["--n-workers=1", "extra"], "unrecognized arguments: extra"),
        (["--collector=sequential", "--collect.asynchronous=2"], "'sequential' has no option asynchronous"),
        # These errors show only after the start of the run, which leaves no files either.
        (
            ["--collector=native"],
            "--collector native: collecting natively takes an environment that is compiled",
        ),
        (["--collector=executor", "--n-workers=300", "--num-envs=2"], "n_workers should be at most 2"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    try:
        code = train_small(run, *arguments)
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if "Warn" not in line]
    assert line.startswith("fastrl train: error: ")
    assert message in f"{line}\n"
    assert not run.exists()


def test_masks_that_an_environment_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_small(tmp_path / "run", "--ppo.action-masks") == 1
    expected = "CartPole-v1: action masks were asked for, but it has neither a method action_masks() nor"
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_settings_that_cannot_change_when_a_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_small(run, updates=1)
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--algo=impala"]) == 2
    assert "run.algo cannot change" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--env-options", "a=1"]) == 2
    assert "env.options cannot change" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), f"--total-timesteps={2 * UPDATE}"]) == 0
    assert "restarted" not in capsys.readouterr().out
    assert main(["eval", str(run), "baseline:sleep"]) == 2
    assert "runs of several kinds, cage2, gym, cannot be scored beside each other" in capsys.readouterr().err
    assert main(["eval", str(run), "--mode=stochastic"]) == 2
    assert "--mode does not go with a run of gym" in capsys.readouterr().err


def test_the_kind_of_a_run_is_what_its_checkpoint_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_small(run, updates=1)
    lone = find_checkpoint(run).rename(tmp_path / "lone.safetensors")
    resume = ["train", "--resume", str(lone), f"--total-timesteps={2 * UPDATE}"]
    assert main([*resume, f"--run-dir={tmp_path / 'on'}"]) == 0
    capsys.readouterr()
    assert main(["train", "traffic", *resume[1:3]]) == 2
    assert f"{lone} is a run of gym, not of traffic" in capsys.readouterr().err
    assert main(["train", "fastrl/Catch-v0", "--config", str(run / "config.toml")]) == 2
    expected = f"{run / 'config.toml'} has settings of the task gym, not of pixels"
    assert expected in capsys.readouterr().err
    save_checkpoint(lone, {"kind": ["new"]})
    assert main(resume) == 2
    assert "is of a task that this fastrl does not have: ['new']" in capsys.readouterr().err


def test_a_policy_of_another_environment_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_small(run, updates=1)
    file, state = load_newest(run)
    state["config"]["env"]["id"] = "Acrobot-v1"
    save_checkpoint(file, state)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=1"]) == 2
    expected = "Acrobot-v1: the policy takes 4 numbers for 2 actions, the environment has 6 for"
    assert expected in capsys.readouterr().err
    state["policy"]["action_space"] = {"kind": "discrete", "size": 10**15}
    save_checkpoint(file, state)
    assert main(["eval", str(run), "--episodes=1"]) == 2


def test_an_environment_that_fails_again_and_again_ends_the_run_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--env=collect_cases:Broken", "--env-options", "share=1", "what=raise"]
    assert train_small(tmp_path / "run", *options) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "Traceback (most recent call last):"
    assert "ValueError: this game is broken" in err
    assert err[-1].startswith("fastrl train: error: ")
    assert "this game is broken" in err[-1]
    assert sum("fastrl train: error" in line for line in err) == 1


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_a_failure_costs_its_task_and_is_told(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Tells which episodes have failed: none does so twice.
    (tmp_path / "once").mkdir()
    broken = ["share=0.1", f"what={what}", f"once={tmp_path / 'once'}"]
    options = [
        "--env=collect_cases:Broken",
        "--env-options",
        *broken,
        "--collector=executor",
        "--n-workers=2",
    ]
    assert train_small(tmp_path / "run", *options) == 0
    out = capsys.readouterr().out
    cause = "ValueError: this game is broken" if what == "raise" else "killed by SIGKILL"
    assert f"{cause}; training continues" in out
    assert ("Traceback" in out) == (what == "raise")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failures"] >= 1
    assert (summary["restarts"] > 0) == (what == "kill")
    assert summary["steps"] == 3 * UPDATE
    assert f"{summary['failures']} failures of workers, {summary['restarts']} restarts" in out


def test_failures_are_printed_once_each() -> None:
    out = io.StringIO()
    printer = FailurePrinter(Console(file=out))
    failures: list[Failure] = []
    failures.append(Failure(1, "episode 7", "ValueError: bad", "Traceback ...\nValueError: bad", 0.1))
    printer.print_new(failures)
    failures.append(Failure(0, "episode 9", "ValueError: bad", "Traceback ...\nValueError: bad", 0.2))
    printer.print_new(failures)
    printer.print_new(failures)
    text = out.getvalue()
    assert text.count("Traceback") == 1
    assert text.count("worker 1 failed at episode 7: ValueError: bad") == 1
    assert text.count("worker 0 failed at episode 9: ValueError: bad") == 1


@pytest.mark.slow
def test_a_run_does_not_load_what_only_others_need(tmp_path: Path) -> None:
    """Nor PyTorch's compiler, which ``torch.optim`` loads."""
    code = """
import json, sys
import fastrl.tasks.gym.task, fastrl.tasks.cage2.task
from fastrl.cli.main import main
others = {"sklearn", "ray", "pandas", "torch._dynamo"}
assert not (others | {"matplotlib"}) & set(sys.modules)
for arguments in json.loads(sys.argv[1]):
    assert main(["train", *arguments]) == 0
    assert not others & set(sys.modules), others & set(sys.modules)
"""
    ppo = ["CartPole-v1", *options_of("--total-timesteps=128", f"--run-dir={tmp_path / 'ppo'}")]
    small = ["--num-envs=2", "--replay.learning-starts=32", "--run.eval-episodes=0", "--device=cpu"]
    dqn = ["CartPole-v1", "--algo=dqn", *small, "--total-timesteps=96", f"--run-dir={tmp_path / 'dqn'}"]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([ppo, dqn])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_presets_are_settings() -> None:
    task = find("gym")
    for algorithm in ALGORITHMS:
        for name in PRESETS:
            task.preset_values(task.settings_type(algorithm), name)
    assert PRESETS.presets_for("CartPole-v1") == ("classic",)
    assert PRESETS.presets_for("Pendulum-v1") == ("classic", "pendulum")
    assert PRESETS.presets_for("fastrl/Cage2-v0") == ()
    assert PRESETS.presets_for("BipedalWalkerHardcore-v3") == ("bipedal-walker-hardcore",)
    assert PRESETS.presets_for("make_env") is None
    named = task.make_settings({"env.id": "gymnasium.envs:Pendulum-v1"})
    assert task.default_presets(named) == ("classic", "pendulum")


def test_car_parks_are_learned_by_sac_with_hindsight() -> None:
    task = find("gym")
    settings = task.make_settings({"env.id": "fastrl/parking-v0"})
    assert (settings.run.algo, settings.replay.hindsight, settings.sac.n_step) == ("sac", 0.8, 1)
    assert task.choose_algorithm(None, {"env": {"id": "fastrl/parking-parked-v0"}}, "a file") == "sac"
    assert task.choose_algorithm(None, {}, "none", env_id="CartPole-v1") == "ppo"
    assert task.choose_algorithm("rainbow", {}, "none", env_id="CartPole-v1") == "ppo"
    ppo = task.make_settings({"env.id": "fastrl/parking-v0", "run.algo": "ppo"})
    assert ppo.run.algo == "ppo" and ppo.ppo.normalize_obs


def test_roads_have_presets_of_ppo_and_dqn() -> None:
    task = find("gym")
    for name in ("merge-v0", "merge-generic-v1", "roundabout-v1", "intersection-v2", "racetrack-oval-v0"):
        env_id = f"fastrl/{name}"
        ppo, dqn = (task.make_settings({"env.id": env_id, "run.algo": each}) for each in ("ppo", "dqn"))
        is_crossing = name.startswith("intersection")
        assert ppo.ppo.encoder == ("rows" if is_crossing else "auto")
        assert dqn.dqn.encoder == ("rows" if is_crossing or "roundabout" in name else "auto")
        is_track = name.startswith("racetrack")
        assert ppo.ppo.normalize_obs != (is_crossing or is_track)
        num_envs = 128 if is_crossing else 256 if is_track else 64
        assert (ppo.env.num_envs, dqn.env.num_envs) == (num_envs, 16)
        assert dqn.run.total_timesteps < ppo.run.total_timesteps
        assert task.make_settings({"env.id": env_id}).run.algo == "ppo"
    assert PRESETS.presets_for("fastrl/intersection-multi-agent-v0") is None


def test_lane_keeping_is_trained_in_rows_of_its_dict() -> None:
    task = find("gym")
    settings = task.make_settings({"env.id": "fastrl/lane-keeping-v0"})
    assert (settings.run.algo, settings.ppo.gamma, settings.env.num_envs) == ("ppo", 0.9, 16)
    rows = list(trainer_of("gym", "--env=fastrl/lane-keeping-v0", "--total-timesteps=4096").rows())
    # Episodes end at Gymnasium's limit.
    assert rows[-1].ended.lengths.tolist() == [200] * 16


def test_dqn_steers_on_racetracks_by_angles_and_others_as_they_are() -> None:
    task = find("gym")
    dqn = task.make_settings({"env.id": "fastrl/racetrack-v0", "run.algo": "dqn"})
    assert task.env_spec(dqn).make().action_space == gymnasium.spaces.Discrete(5)
    ppo = task.make_settings({"env.id": "fastrl/racetrack-v0"})
    env = task.env_spec(ppo).make()
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    # Kinematics of two vehicles, and the task's.
    assert env.observation_space.shape == (2 * 2 + Passing.terms,)


def test_ppo_learns_ants_without_forces_of_contacts_and_others_as_they_are() -> None:
    task = find("gym")
    ppo, sac = (task.make_settings({"env.id": "Ant-v5", "run.algo": each}) for each in ("ppo", "sac"))
    assert (ppo.env.num_envs, ppo.ppo.num_steps, ppo.ppo.learning_rate) == (64, 32, 3e-4)
    assert (sac.env.num_envs, sac.env.options) == (1, ())
    humanoid = task.make_settings({"env.id": "Humanoid-v5", "run.algo": "ppo"})
    assert (humanoid.env.options, humanoid.ppo.minibatch_size) == (ppo.env.options, 256)
    # The option is of version 5 alone.
    assert PRESETS.presets_for("Ant-v4") is None and PRESETS.presets_for("Humanoid-v4") == ("humanoid",)
    pytest.importorskip("mujoco", reason="pip install mujoco")
    shapes = [task.env_spec(settings).make().observation_space.shape for settings in (ppo, sac)]
    assert shapes == [(27,), (105,)]


def test_a_preset_gives_dqn_another_budget_and_number_of_environments() -> None:
    task = find("gym")
    ppo, dqn = (
        task.make_settings({"env.id": "MountainCar-v0", "run.algo": algorithm})
        for algorithm in ("ppo", "dqn")
    )
    assert (ppo.run.total_timesteps, ppo.env.num_envs) == (1_000_000, 16)
    assert (dqn.run.total_timesteps, dqn.env.num_envs) == (120_000, 1)
    assert (dqn.replay.train_freq, dqn.dqn.n_step) == (16, 10)


@pytest.mark.parametrize(
    ("env_id", "preset"),
    [
        ("space_envs:Cards", "images"),
        ("space_envs:Dials", "discrete"),
        ("gymnasium.envs.classic_control.pendulum:PendulumEnv", "continuous"),
        ("toys:no_such_env", "discrete"),
    ],
)
def test_an_environment_without_presets_gets_those_of_its_kind(env_id: str, preset: str) -> None:
    task = find("gym")
    assert task.default_presets(task.make_settings({"env.id": env_id})) == (preset,)
    values = task.preset_values(task.settings_type("ppo"), preset)
    assert task.make_settings({"env.id": env_id}).ppo.num_steps == values["ppo.num_steps"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collector", "number"),
    [("executor", signal.SIGHUP), ("ray", signal.SIGTERM)],
)
def test_asked_to_stop_it_saves_ends_its_workers_and_says_how_to_go_on(
    tmp_path: Path, collector: str, number: signal.Signals
) -> None:
    if collector == "ray":
        pytest.importorskip("ray", reason="pip install '.[test-all]'")
    run = tmp_path / "run"
    arguments = ["CartPole-v1", *options_of(f"--collector={collector}", "--n-workers=2", "--algo=async-ppo")]
    process = start_training(*arguments, "--total-timesteps=1e8", f"--run-dir={run}", start_new_session=True)
    wait_for_rows(run, 3, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    # A terminal that closes tells all of its processes.
    os.killpg(process.pid, number) if number == signal.SIGHUP else process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err == ""
    assert f"Interrupted; to resume: fastrl train --resume {run}" in out.replace("\n", " ")
    assert not psutil.wait_procs(workers, timeout=TIMEOUT)[1]
    assert learnt(run)["steps"] == rows_of(run)[-1]["time/total_timesteps"]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", number.name)
    # Of those that have answered so far.
    assert 1 <= len(summary["worker_memory_mib"]) <= 2
