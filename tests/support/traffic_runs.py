"""Runs in traffic that take a second, on environments in which agents walk on a line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode
from rich.console import Console
from team_env import TeamEnv

import fastrl.tasks.traffic.task
from fastrl.cli.main import main
from fastrl.collectors.team_spec import CompiledTeamSpec
from fastrl.tasks.traffic.task import TASK
from fastrl.training.trainer import Trainer
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import build

_LEARNING = {"num-steps": "16", "hidden": "8", "minibatch-size": "64"}


def _algorithm(options: tuple[Any, ...]) -> str:
    given = [str(option) for option in options]
    return next((text.partition("=")[2] for text in given if text.startswith("--algo=")), "ippo")


def small(*options: Any) -> list[str]:
    """Options of a small run, with those that are given."""
    algorithm = _algorithm(options)
    return [
        "--vehicles=3",
        "--num-envs=4",
        "--env.num-threads=1",
        *(f"--{algorithm}.{name}={value}" for name, value in _LEARNING.items()),
        "--run.eval-episodes=5",
        "--run.eval-freq=20",
        "--device=cpu",
        *map(str, options),
    ]


def line_envs(
    id: str,  # noqa: A002
    num_envs: int,
    *,
    max_agents: int = 1,
    num_agents: int = 1,
    density: float = 0.0,
    num_threads: int = 0,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
) -> TeamEnv:
    """Replaces ``make_multi``: density is the chance that a move is blocked."""
    if id != "fastrl/coop-highway-v0":
        raise ValueError(f"id: expected 'fastrl/coop-highway-v0', got {id!r}")
    env = TeamEnv(num_envs, max_agents)
    env.autoreset_mode = autoreset_mode
    env.set_difficulty(num_agents=num_agents, density=density)
    return env


class LineSpec(CompiledTeamSpec):
    """Replaces ``fastrl.tasks.traffic.task.CompiledTeamSpec``, for other processes too."""

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
    ) -> Any:
        return line_envs(self.id, num_envs, **self.options, autoreset_mode=autoreset_mode)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastrl.tasks.traffic.task, "CompiledTeamSpec", LineSpec)


def small_settings(*options: Any) -> Any:
    """The settings of a small run."""
    config_type = TASK.settings_type(_algorithm(options))
    parser = ArgumentParser()
    add_options(parser, config_type)
    return build(config_type, read_arguments(config_type, parser.parse_args(small(*options))))


def small_trainer(*options: Any, console: Console | None = None) -> Trainer:
    """The trainer of a small run."""
    return TASK.make_trainer(small_settings(*options), console)


def train(run: Path, *options: Any) -> int:
    """``fastrl train traffic`` in this process; returns the exit code."""
    return main(["train", "traffic", *small(*options), f"--run-dir={run}"])


def command_line() -> None:
    """``fastrl train`` on the lines, for a process of its own."""
    task: Any = fastrl.tasks.traffic.task
    task.CompiledTeamSpec = LineSpec
    sys.exit(main(["train", *sys.argv[1:]]))
