"""SAC with hindsight in ``fastrl/parking-v0``: how the share of episodes that park grows.

    python benches/learn_parking.py --seeds 0 1 2

Every ``--every`` steps the policy without exploration plays ``--episodes`` episodes on fixed seeds. Prints a line of
JSON for each score: seed, steps, the score, CPU seconds of the training so far. ``--no-ends`` leaves out
``compute_terminated``: hindsight then ends no episode where a replaced goal is reached, as with highway-env.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fastrl
from fastrl.callbacks import Callback, Run
from fastrl.envs.traffic.parking import ParkingEnv
from parking_scores import Judge


class Curve(Callback):
    """Prints a score every so many steps; their CPU time does not count.

    Args:
        about: what is printed beside each score.
        every: steps.
        judge: plays the episodes.
    """

    def __init__(self, about: dict[str, Any], every: int, judge: Judge) -> None:
        self._about, self._every, self._judge = about, every, judge
        self._next, self._paused, self._start = every, 0.0, time.process_time()

    def on_update(self, run: Run) -> None:
        if run.timesteps < self._next:
            return
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            run.save(Path(folder) / "policy")
            model = fastrl.load(Path(folder) / "policy")
        score = self._judge.score(lambda obs: model.predict(obs)[0])
        row = {"steps": run.timesteps} | score | {"cpu_seconds": round(start - self._start - self._paused, 1)}
        print(json.dumps(self._about | row), flush=True)
        self._next += self._every
        self._paused += time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=5000)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--no-ends", dest="ends", action="store_false")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.ends:
        del ParkingEnv.compute_terminated
    judge = Judge(args.episodes)
    for seed in args.seeds:
        about = {"ends": args.ends, "seed": seed}
        model = fastrl.SAC("fastrl/parking-v0", seed=seed, collector="sequential", device="cpu")
        model.learn(args.steps, callbacks=[Curve(about, args.every, judge)])


if __name__ == "__main__":
    main()
