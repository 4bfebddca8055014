"""A short measurement of the simulator on this machine."""

import time
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from fastrl.envs.cage2.env import Cage2VectorEnv

SIZES = (1, 64, 1024, 4096)


@dataclass(frozen=True)
class Speed:
    """Steps per second of one vector environment, resets included."""

    num_envs: int
    num_threads: int
    steps_per_second: float
    microseconds_per_call: float


def measure(num_envs: int, num_threads: int, seconds: float) -> Speed:
    """Steps environments with random actions against B_line and Meander for about ``seconds``.

    Observations are written as float32 into one array; the actions are drawn in advance.
    """
    env = Cage2VectorEnv(num_envs, red_agent="mix", num_threads=num_threads, autoreset_mode="same_step")
    obs, _ = env.reset(seed=0)
    final_obs, rewards = np.empty_like(obs), np.empty(num_envs, np.float32)
    terminations, truncations = np.empty(num_envs, np.bool_), np.empty(num_envs, np.bool_)
    actions = np.random.default_rng(0).integers(len(env.actions), size=(64, num_envs))
    calls, start = 0, time.perf_counter()
    # The batch of calls doubles until it takes long enough: reading a clock is slow beside one environment's step.
    batch = 1
    while (passed := time.perf_counter() - start) < seconds:
        for i in range(batch):
            env.step_into(actions[i % 64], obs, rewards, terminations, truncations, final_obs)
        calls += batch
        batch = calls if passed < seconds / 4 else batch
    env.close()
    return Speed(num_envs, num_threads, calls * num_envs / passed, passed / calls * 1e6)


def speed_table(speeds: list[Speed]) -> Table:
    """The measurements as a table."""
    table = Table(
        title="CAGE 2, random actions, B_line and Meander, resets included",
    )
    for name in ("environments", "threads", "steps/s", "µs per call"):
        table.add_column(name, justify="right")
    for speed in speeds:
        table.add_row(
            f"{speed.num_envs:,}",
            str(speed.num_threads or "all"),
            f"{speed.steps_per_second:,.0f}",
            f"{speed.microseconds_per_call:.2f}",
        )
    return table
