"""Stable-Baselines3's SAC with hindsight in highway-env's car park, and in ours: the same learning curve, in less time.

    python benches/compare_parking.py --steps 20000 --seeds 0 1 2

Both environments get the same seeds from the same script. Hyper-parameters are those of highway-env's own script, with
smaller layers and minibatches (``--batch-size``, ``--hidden``). Every ``--every`` steps the policy plays ``--episodes``
episodes of ours on fixed seeds, 100 steps at most, so that scores compare; their time does not count. Prints a line of
JSON for each score: environment, seed, steps, the score, CPU seconds of the run and of steps and resets alone.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import highway_env
import torch
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from parking_scores import Judge

ENVS = ("fastrl/parking-v0", "parking-v0")


class Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds up the CPU seconds of steps and resets."""

    seconds = 0.0

    def step(self, action: Any) -> Any:
        start = time.process_time()
        result = self.env.step(action)
        self.seconds += time.process_time() - start
        return result

    def reset(self, **options: Any) -> Any:
        start = time.process_time()
        result = self.env.reset(**options)
        self.seconds += time.process_time() - start
        return result


class Score(BaseCallback):
    """Plays episodes every so many steps and prints how they went."""

    def __init__(self, env: Timed, name: str, seed: int, every: int, episodes: int) -> None:
        super().__init__()
        self._env, self._about, self._every = env, {"env": name, "seed": seed}, every
        self._judge = Judge(episodes)
        self._paused, self._start = 0.0, time.process_time()

    def _on_step(self) -> bool:
        if self.num_timesteps % self._every:
            return True
        start = time.process_time()
        row = {
            "steps": self.num_timesteps,
            **self._judge.score(lambda obs: self.model.predict(obs, deterministic=True)[0]),
            "cpu_seconds": round(start - self._start - self._paused, 1),
            "env_seconds": round(self._env.seconds, 1),
        }
        print(json.dumps(self._about | row), flush=True)
        self._paused += time.process_time() - start
        return True


def train(name: str, seed: int, args: argparse.Namespace) -> None:
    env = Timed(gymnasium.make(name))
    model = SAC(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        learning_rate=1e-3,
        learning_starts=1000,
        buffer_size=100_000,
        batch_size=args.batch_size,
        gamma=0.95,
        tau=0.05,
        policy_kwargs={"net_arch": args.hidden},
        seed=seed,
        device="cpu",
    )
    model.learn(args.steps, callback=Score(env, name, seed, args.every, args.episodes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="*", default=ENVS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--hidden", nargs="*", type=int, default=[256, 256])
    args = parser.parse_args()
    gymnasium.register_envs(highway_env)
    torch.set_num_threads(1)
    for seed in args.seeds:
        for name in args.envs:
            train(name, seed, args)


if __name__ == "__main__":
    main()
