"""Runs in traffic that take a second, on worlds in which agents walk on a line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from team_env import TeamEnv

import fastrl.tasks.traffic.run
from fastrl.cli.main import main
from fastrl.tasks.traffic.settings import EnvConfig, TrafficConfig, environment_options
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import build

OPTIONS = [
    "--vehicles=3",
    "--num-envs=4",
    "--env.num_threads=1",
    "--mappo.num_steps=16",
    "--mappo.hidden=8",
    "--mappo.minibatch_size=64",
    "--reinforce.num_steps=16",
    "--reinforce.hidden=8",
    "--run.eval_episodes=5",
    "--run.eval_freq=20",
    "--device=cpu",
]


def line_worlds(
    id: str,  # noqa: A002
    num_envs: int,
    *,
    max_agents: int = 1,
    num_agents: int = 1,
    density: float = 0.0,
    num_threads: int = 0,
) -> TeamEnv:
    """Instead of ``make_multi``: density is the chance that a move is blocked."""
    if id != "fastrl/coop-highway-v0":
        raise ValueError(f"id: expected 'fastrl/coop-highway-v0', got {id!r}")
    env = TeamEnv(num_envs, max_agents)
    env.set_difficulty(num_agents=num_agents, density=density)
    return env


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastrl.tasks.traffic.run, "make_multi", line_worlds)


def small_config(*options: str) -> TrafficConfig:
    parser = ArgumentParser()
    add_options(parser, TrafficConfig)
    given = read_arguments(TrafficConfig, parser.parse_args([*OPTIONS, *options]))
    return build(TrafficConfig, given)


def train(run: Path, *options: Any) -> int:
    """``fastrl train traffic`` in this process; the exit code."""
    return main(["train", "traffic", *OPTIONS, f"--run-dir={run}", *map(str, options)])


def line_worlds_of(config: EnvConfig, num_envs: int) -> Any:
    """Instead of ``fastrl.tasks.traffic.run.make_worlds``, for another process too."""
    return line_worlds(config.id, num_envs, **environment_options(config))


def command_line() -> None:
    """``fastrl train`` on the lines, for a process of its own."""
    fastrl.tasks.traffic.run.make_worlds = line_worlds_of  # type: ignore[assignment]
    sys.exit(main(["train", *sys.argv[1:]]))
