"""Runs that take less than a second, for tests."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastrl.cli.main import main
from fastrl.cli.run_arguments import Command
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks import find
from fastrl.training.trainer import Trainer

OPTIONS = [
    "--env.num-envs=8",
    "--env.memory=none",
    "--env.episode-length=15",
    "--ppo.num-steps=10",
    "--ppo.minibatch-size=40",
    "--ppo.num-epochs=2",
    "--ppo.hidden=8",
    "--run.torch-threads=1",
    "--run.eval-episodes=0",
    "--device=cpu",
]
# Environment steps of one iteration.
ITERATION = 80


def settings_of(task: str, *options: object) -> Any:
    """The settings that a command line gives, without starting a run."""
    return Command(find(task), "fastrl train", [task, *map(str, options)]).settings()


def gym_settings(env: str, *options: object) -> Any:
    """The settings that a command line gives for an environment of Gymnasium's registry."""
    return Command(find("gym"), "fastrl train", [env, *map(str, options)]).settings()


def trainer_of(task: str, *options: object, console: Console | None = None) -> Trainer:
    """The trainer of a command line."""
    return find(task).make_trainer(settings_of(task, *options), console)


def train_small(run_dir: Path, *options: str, iterations: int = 3) -> None:
    """Trains on CAGE 2 in this process; options are those of ``fastrl train``."""
    total = f"--total-timesteps={iterations * ITERATION}"
    assert main(["train", "cage2", *OPTIONS, total, f"--run-dir={run_dir}", *options]) == 0


def learnt(run: Path) -> dict[str, Any]:
    """Contents of the newest checkpoint of a run, but for measured times and settings."""
    return untimed_state(load_newest(run)[1])


def untimed_state(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's state but for measured times and settings."""
    return {key: state[key] for key in state.keys() - {"seconds", "parts", "config"}}


def learnt_by(trainer: Trainer) -> dict[str, Any]:
    """State of a run without the report of its collector."""
    state = untimed_state(trainer.state_dict())
    return {name: state[name] for name in ("steps", "iteration", "episodes", "learner")}


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics but for what was measured by a clock, or depends on the collector's workers."""
    timed = ("second", "share", "memory", "fps", "elapsed")
    return {key: value for key, value in record.items() if not any(word in key for word in timed)}


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, untimed."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [untimed(json.loads(line)) for line in lines]


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Names of the parts in which two nested values differ, to the bit."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [each for key in a for each in differences(a[key], b[key], f"{name}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [each for i, item in enumerate(a) for each in differences(item, b[i], f"{name}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        equal = a.dtype == b.dtype and torch.equal(a, b)
    else:
        equal = type(a) is type(b) and bool(a == b or (a != a and b != b))
    return [] if equal else [name]


def same(a: Any, b: Any) -> bool:
    """Equal to the bit."""
    return differences(a, b) == []


def assert_same_state(a: Any, b: Any) -> None:
    """Nested states are equal to the bit."""
    assert differences(a, b) == []


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that ends with exit code 2 and prints nothing else."""
    code, out, err = run_cli(capsys, *arguments)
    # Printed if PyTorch takes long to load.
    err = err.replace("loading PyTorch ...\n", "")
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err.rstrip("\n")


def train_refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line of error that ``fastrl train`` ends with, without the name of the command."""
    line, start = refusal(capsys, "train", *arguments), "fastrl train: error: "
    assert line.startswith(start)
    return line.removeprefix(start)


def stir(model: Any) -> Any:
    """The model with statistics and weights as after learning, without the minutes."""
    generator = torch.Generator().manual_seed(3)
    algorithm = model.trainer.algorithm
    network = getattr(algorithm, "policy", None) or algorithm.network
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("norm.mean"):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            elif name.endswith("norm.var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
            elif tensor.is_floating_point() and not name.endswith("count"):
                fan_in = max(tensor[0].numel(), 1) if tensor.dim() > 1 else 100
                tensor.add_(torch.randn(tensor.shape, generator=generator) / fan_in**0.5)
    return model
