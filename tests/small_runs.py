"""Runs that take less than a second, for tests."""

from pathlib import Path
from typing import Any

import torch

from fastrl.checkpoint import load_newest
from fastrl.cli import main

OPTIONS = [
    "--env.num_envs=8",
    "--env.num_threads=1",
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


def same(a: Any, b: Any) -> bool:
    """Equal to the bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))
