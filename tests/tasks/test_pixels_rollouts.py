"""Games that show images, learnt from rollouts, from the command line and from Python."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_runs import differences, untimed_state

import fastrl
from fastrl.algorithms import algorithms
from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_newest
from fastrl.runs.settings import table_of
from fastrl.tasks import find, task_for
from fastrl.tasks.pixels.settings import PRESETS
from fastrl.tasks.pixels.task import TASK
from fastrl.utils.config import ConfigError, sections

UPDATE = 2 * 16
STACKED = "fastrl.envs.pixels:make_stacked_pixels"
SMALL = {"num_envs": 2, "collector": "sequential", "num_steps": 16, "minibatch_size": 16, "hidden": (8,)}
# Without schedules a run that is resumed with a further goal is the longer run.
CONSTANT = {"learning_rate": 1e-3, "final_learning_rate": 1e-3, "final_entropy_coef": 0.01}


def train(run: Path, steps: int, *options: str) -> Any:
    """The state of a run of PPO from the command line."""
    values = {key: "8" if key == "hidden" else value for key, value in (SMALL | CONSTANT).items()}
    given = [
        f"--{'' if key in ('num_envs', 'collector') else 'ppo.'}{key.replace('_', '-')}={value}"
        for key, value in values.items()
    ]
    given += ["fastrl/Catch-v0", "--algo=ppo", "--device=cpu", "--run.eval-episodes=2", f"--run-dir={run}"]
    assert main(["train", *given, f"--total-timesteps={steps}", *options]) == 0
    return load_newest(run)[1]


@pytest.mark.parametrize("algorithm", ["ppo", "async-ppo", "impala"])
@pytest.mark.parametrize("env_id", ["fastrl/Catch-v0", "ALE/Pong-v5", "SuperMarioBros-v0"])
def test_games_are_found_and_their_presets_fit(algorithm: str, env_id: str) -> None:
    assert task_for(env_id, algorithm) == "pixels"
    settings = TASK.make_settings({"env.id": env_id, "run.algo": algorithm})
    assert TASK.env_spec(settings).options["stack"] == settings.env.stack
    for name, preset in PRESETS.items():
        tables = {*preset.values, *preset.with_table} & {table_of(each) for each in algorithms()}
        fits = not tables or preset.for_any_algorithm or table_of(algorithm) in tables
        refused = pytest.raises(ConfigError, match=f"--preset {name} is for --algo .*, not for {algorithm}")
        with nullcontext() if fits else refused:
            TASK.make_settings({"env.id": env_id, "run.algo": algorithm}, preset=name)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "threads"),
    [
        ("ppo", "ALE/Pong-v5", 0),
        ("ppo", STACKED, 0),
        ("dqn", "ALE/Pong-v5", 1),
        ("ppo", "CartPole-v1", 1),
    ],
)
def test_ppo_from_images_takes_a_thread_for_each_core(algorithm: str, env_id: str, threads: int) -> None:
    name = task_for(env_id, algorithm)
    assert name is not None
    options = {"env.options": ("env_id=fastrl/Catch-v0",)} if env_id == STACKED else {}
    settings = find(name).make_settings({"run.algo": algorithm, "env.id": env_id, **options})
    assert settings.run.torch_threads == threads


def test_atari_has_cleanrls_numbers() -> None:
    settings = TASK.make_settings({"env.id": "ALE/Pong-v5", "run.algo": "ppo"})
    ppo = settings.ppo
    assert (settings.env.num_envs, ppo.num_steps, ppo.num_epochs, ppo.minibatch_size) == (8, 128, 4, 256)
    assert (ppo.learning_rate, ppo.final_learning_rate, ppo.clip_range) == (2.5e-4, 0, 0.1)
    assert (ppo.entropy_coef, ppo.final_entropy_coef, ppo.hidden) == (0.01, 0.01, ())


@pytest.mark.slow
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path / "whole", 6 * UPDATE)
    # In the middle of games, which take 99 steps.
    train(tmp_path / "parts", 4 * UPDATE)
    assert main(["train", "--resume", str(tmp_path / "parts"), f"--total-timesteps={6 * UPDATE}"]) == 0
    _, resumed = load_newest(tmp_path / "parts")
    for part in ("learner", "source", "policy"):
        assert not differences(untimed_state(whole[part]), untimed_state(resumed[part]))
    evaluation = json.loads((tmp_path / "parts" / "summary.json").read_text())["evaluation"]
    assert (
        evaluation["returns"]
        == json.loads((tmp_path / "whole" / "summary.json").read_text())["evaluation"]["returns"]
    )
    assert len(evaluation["returns"]) == 2 and -10 <= evaluation["mean"] <= 10
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "parts"), "--episodes=2"]) == 0
    assert "2 episodes: mean return" in capsys.readouterr().out


@pytest.mark.slow
def test_python_trains_and_evaluates_as_the_command_line(tmp_path: Path) -> None:
    whole = train(tmp_path / "run", 4 * UPDATE)
    model = fastrl.PPO("fastrl/Catch-v0", device="cpu", **SMALL, **CONSTANT)
    model.learn(4 * UPDATE, run_dir=tmp_path / "model")
    _, state = load_newest(tmp_path / "model")
    assert state["kind"] == "pixels"
    assert not differences(untimed_state(whole["learner"]), untimed_state(state["learner"]))
    mean, _ = model.evaluate(episodes=2)
    assert -10 <= mean <= 10


def test_every_table_of_a_preset_is_one_of_some_algorithm() -> None:
    known = {
        table
        for algorithm in ("dqn", "pqn", "ppo", "async-ppo", "impala")
        for table in sections(TASK.settings_type(algorithm))
    }
    assert all(preset.values.keys() <= known for preset in PRESETS.values())
