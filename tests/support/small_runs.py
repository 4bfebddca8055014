"""Runs that take less than a second, for tests."""

from pathlib import Path
from typing import Any

import torch

from fastrl.cli.main import main
from fastrl.training.checkpoint import load_newest

OPTIONS = [
    "--env.num_envs=8",
    "--env.num_threads=1",
    "--env.scan_memory=false",
    "--env.episode_length=15",
    "--ppo.num_steps=10",
    "--ppo.minibatch_size=40",
    "--ppo.num_epochs=2",
    "--ppo.hidden=8",
    "--run.torch_threads=1",
    "--run.eval_episodes=0",
    "--device=cpu",
]
# Environment steps of one iteration.
ITERATION = 80


def train_small(run_dir: Path, *options: str, iterations: int = 3) -> None:
    """Trains in this process; options are those of ``fastrl train``."""
    total = f"--total-steps={iterations * ITERATION}"
    assert main(["train", "cage2", *OPTIONS, total, f"--run-dir={run_dir}", *options]) == 0


def learnt(run: Path) -> dict[str, Any]:
    """What the newest checkpoint of a run holds, but for measured times and settings."""
    _, state = load_newest(run)
    return {key: state[key] for key in state.keys() - {"seconds", "parts", "config"}}


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Where two nested values differ, to the bit; empty if nowhere."""
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
