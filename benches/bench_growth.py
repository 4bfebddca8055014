"""Cost of a step of training by number of environments, width of the network, threads and vehicles.

Run: ``pytest benches/bench_growth.py -s`` on an otherwise idle machine. Each case is a run of PPO or IPPO. Its rounds
are the updates after the first; a number is the time that a step of one environment took there, by activity. The last
contender is what the machine needs at least: the multiplications of the networks at the rate of PyTorch's matrix
product with as many threads, and the observations of a rollout at the rate of a copy, both measured in the same run.
"""

import itertools
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from fastrl.collectors.resources import cores
from results import Case

CAGE2, TRAFFIC = ["cage2"], ["fastrl/coop-merge-v0", "--num-envs=16", "--ippo.num-steps=32"]
# Updates of each run that are measured.
UPDATES = 8
ACTIVITIES = ("environment", "inference", "update")
REST, LEAST = "everything else", "the machine at least"
THREADS = [1 << power for power in range(cores().bit_length()) if 1 << power <= cores()]
# Options of each run, by the number that grows.
AXES = {
    "environments": {count: [*CAGE2, f"--num-envs={count}"] for count in (16, 64, 256, 1024)},
    "units in each of two layers": {
        width: [*CAGE2, f"--ppo.hidden={width},{width}"] for width in (32, 64, 128, 256)
    },
    "threads, two layers of 256": {
        count: [*CAGE2, "--ppo.hidden=256,256", f"--threads={count}", f"--n-workers={count}"]
        for count in THREADS
    },
    "vehicles of IPPO": {count: [*TRAFFIC, f"--vehicles={count}"] for count in (2, 4, 8, 12)},
}
WEIGHTS = re.compile(r"learner/(policy|actors|critics)/(shared/)?weights/\w+\.(\d+)\.weight")


@pytest.fixture(scope="module")
def products() -> dict[int, float]:
    """Multiply-adds per second of PyTorch's product of float32 matrices of 1024 x 1024, by the number of threads."""
    left, right = torch.rand(2, 1024, 1024)
    threads, found = torch.get_num_threads(), {}
    for count in {*THREADS, cores()}:
        torch.set_num_threads(count)
        found[count] = 1024**3 / best_seconds(lambda: left @ right)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module")
def copies() -> float:
    """Bytes per second that numpy reads and writes in a copy of 128 MiB."""
    source = np.ones(2**24)
    target = np.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: np.copyto(target, source))


def best_seconds(call: Callable[[], object]) -> float:
    """The least time of ten calls, after one that is not counted."""
    seconds = []
    for _ in range(11):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


@pytest.mark.parametrize("axis", AXES)
def test_growth(axis: str, tmp_path: Path, products: dict[int, float], copies: float, record: Any) -> None:
    cases = []
    for number, options in AXES[axis].items():
        run = tmp_path / str(number)
        settings = train(options, run)
        rates = microseconds([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
        threads = number if axis.startswith("threads") else cores()
        bound = least(run, settings, products[threads], copies)
        cases.append(Case(f"{number} {axis}", {**rates, LEAST: [bound] * UPDATES}))
    record(
        f"Cost of a step by {axis}",
        "µs/step",
        cases,
        [],
        lower_is_better=True,
        about=f"PyTorch's matrix product makes {products[cores()] / 5e8:.0f} GFLOP/s on {cores()} threads, a copy"
        f" moves {copies / 1e9:.1f} GB/s.",
    )


def train(options: list[str], run: Path) -> dict[str, Any]:
    """Trains for `UPDATES` updates and one more, with a row of metrics each; returns the settings."""
    command = [sys.executable, "-m", "fastrl", "train", *options, f"--run-dir={run}", "--device=cpu"]
    command += ["--run.eval-episodes=0", "--run.row-seconds=0", "--run.loggers="]
    shown = subprocess.run([*command, "--print-config"], check=True, capture_output=True, text=True).stdout
    settings = tomllib.loads(shown)
    steps = algorithm_of(settings)["num_steps"] * settings["env"]["num_envs"] * (UPDATES + 1)
    subprocess.run(
        [*command, "--total-episodes=none", f"--total-timesteps={steps}"], check=True, capture_output=True
    )
    return settings


def algorithm_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the algorithm."""
    return dict(settings[settings["run"]["algo"]])


def microseconds(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Time of a step of an environment by activity, a number for each update after the first."""
    found: dict[str, list[float]] = {name: [] for name in (*ACTIVITIES, REST)}
    for before, row in itertools.pairwise(rows):
        steps = row["time/total_timesteps"] - before["time/total_timesteps"]
        seconds = {name: row[f"time/seconds_{name}"] for name in ACTIVITIES}
        passed = row["time/time_elapsed"] - before["time/time_elapsed"]
        for name, part in {**seconds, REST: max(passed - sum(seconds.values()), 0.0)}.items():
            found[name].append(part / steps * 1e6)
    return found


def least(run: Path, settings: dict[str, Any], product: float, copy: float) -> float:
    """Microseconds that a step of an environment takes where nothing but products and copies costs time.

    A row goes forward once to act, and forward and backward in each epoch; the gradient of the inputs is not needed.
    An observation is written once, and read to be valued and in each epoch.
    """
    layers = [
        (int(match[3]), tensor.shape)
        for name, tensor in safetensors.torch.load_file(max(run.glob("checkpoints/*.safetensors"))).items()
        if (match := WEIGHTS.fullmatch(name))
    ]
    every = sum(rows * columns for _, (rows, columns) in layers)
    first = sum(rows * columns for index, (rows, columns) in layers if index == 0)
    inputs = max(columns for index, (_, columns) in layers if index == 0)
    epochs = algorithm_of(settings)["num_epochs"]
    agents = settings["env"].get("vehicles", 1)
    multiplied = every + epochs * (3 * every - first)
    return float(agents * (multiplied / product + 4 * inputs * (2 + epochs) / copy) * 1e6)
