"""Returns of SAC or TD3 beside Stable-Baselines3's, in paired seeds, after as many steps.

    python benches/compare_sb3.py --env HalfCheetah-v5 --steps 200000 --seeds 3 --jobs 2 --out half-cheetah.json

Both have the same networks, learning rate, batches, replay, first random steps, gradient steps and seeds. The greedy
policy that a run ends with is scored by one loop on the same episodes; no checkpoint is chosen. Each run is a process
of one thread. ``--out`` is written after each run, and runs that it has are not done again. On one core 200,000 steps
take about 40 minutes with fastrl, 70 with Stable-Baselines3.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastrl.cli.arguments import at_least
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from rounds import number_table

CONTENDERS = ("fastrl", "Stable-Baselines3")
HIDDEN, BATCH_SIZE, LEARNING_RATE, GAMMA, TAU = 256, 256, 3e-4, 0.99, 0.005
# Seeds of the episodes that score a policy.
FIRST_EPISODE = 10_000


def trained(name: str, options: argparse.Namespace, seed: int) -> Any:
    """A model after its training, with Stable-Baselines3's ``predict``."""
    if name == "fastrl":
        import fastrl

        own: dict[str, Any] = {"precision": options.precision}
        return fastrl.Model(
            options.env,
            algo=options.algo,
            seed=seed,
            num_envs=1,
            hidden=[HIDDEN, HIDDEN],
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            gamma=GAMMA,
            tau=TAU,
            replay={
                "capacity": options.steps,
                "learning_starts": options.learning_starts,
                "updates_per_step": 1.0,
            },
            collector="sequential",
            device="cpu",
            **own,
        ).learn(options.steps)
    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    env = gymnasium.make(options.env)
    noise = {}
    if options.algo == "td3":
        # fastrl's default; theirs is none.
        size = env.action_space.shape
        noise["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    return getattr(stable_baselines3, options.algo.upper())(
        "MlpPolicy",
        env,
        seed=seed,
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN]},
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        tau=TAU,
        buffer_size=options.steps,
        learning_starts=options.learning_starts,
        train_freq=1,
        gradient_steps=1,
        device="cpu",
        **noise,
    ).learn(options.steps)


def play(model: Any, env_id: str, episodes: int) -> list[float]:
    """Returns of the greedy policy."""
    import gymnasium

    env, returns = gymnasium.make(env_id), []
    for episode in range(episodes):
        obs, _ = env.reset(seed=FIRST_EPISODE + episode)
        total, is_over = 0.0, False
        while not is_over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return returns


def run_one(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """A run in this process: returns, processor time and time, in seconds."""
    start = time.perf_counter()
    model = trained(name, options, seed)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = {"cpu_seconds": used.ru_utime + used.ru_stime, "seconds": time.perf_counter() - start}
    returns = play(model, options.env, options.episodes)
    return {
        "contender": name,
        "seed": seed,
        "mean": statistics.fmean(returns),
        "returns": returns,
        **seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="HalfCheetah-v5", metavar="ID")
    parser.add_argument("--algo", choices=("sac", "td3"), default="sac")
    parser.add_argument("--steps", type=at_least(1), default=200_000, metavar="INT")
    parser.add_argument("--learning-starts", type=at_least(1), default=5_000, metavar="INT")
    parser.add_argument("--seeds", type=at_least(1), default=3, metavar="INT", help="pairs of runs [3]")
    parser.add_argument("--episodes", type=at_least(1), default=20, metavar="INT", help="of a score [20]")
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="INT", help="runs side by side [1]")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of fastrl [fp32]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one[0], options, int(options.one[1]))))
        return
    settings = {
        name: getattr(options, name)
        for name in ("env", "algo", "steps", "learning_starts", "episodes", "precision")
    }
    results: dict[str, Any] = {"settings": settings, "runs": []}
    if options.out.exists():
        results = json.loads(options.out.read_text())
        if results["settings"] != settings:
            parser.error(f"{options.out} has runs with other settings: {results['settings']}")
    done = {(run["contender"], run["seed"]) for run in results["runs"]}
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def start(pair: tuple[str, int]) -> str:
        command = [sys.executable, *sys.argv, "--one", pair[0], str(pair[1])]
        found = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
        return found.stdout.splitlines()[-1]

    pairs = [(name, seed) for seed in range(options.seeds) for name in CONTENDERS]
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(start, [pair for pair in pairs if pair not in done]):
            results["runs"].append(json.loads(line))
            write_atomically(options.out, to_json(results, indent=1).encode())
    table = number_table(
        f"{options.algo} on {options.env}, {options.steps:,} steps, {options.episodes} episodes",
        "seed",
        *(f"{name}{unit}" for name in CONTENDERS for unit in ("", ", CPU s")),
    )
    runs = {(run["contender"], run["seed"]): run for run in results["runs"]}
    for seed in range(options.seeds):
        cells = (runs[name, seed] for name in CONTENDERS)
        table.add_row(str(seed), *(f"{run[key]:,.0f}" for run in cells for key in ("mean", "cpu_seconds")))
    show(plain_console(), table)


if __name__ == "__main__":
    main()
