"""PPO on CAGE 2 with action masks beside the same without, and equal observations merged beside each by itself.

Run: ``pytest benches/bench_masks.py -s``. Each pair takes turns; what is compared is processor time, of one thread,
which other work on the machine matters less to. Observations repeat, or do not.
"""

import time

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.rollout import Rollout
from fastrl.utils.timer import Stopwatch
from results import Case
from rounds import measure_in_turns

NUM_ENVS = 256
ROUNDS = 8
UPDATES = 10  # in a round
OPTIONS = {"red_agent": "mix", "memory": "scan", "actions": "effective"}


class Training:
    """A run of PPO on CAGE 2, continued from round to round. `parts` has the seconds of processor time of each round's
    collection, of what comes before gradient steps, and of these."""

    def __init__(self, action_masks: bool) -> None:
        env = Cage2VectorEnv(NUM_ENVS, autoreset_mode="same_step", **OPTIONS)
        spaces = env.single_observation_space, env.single_action_space
        config = PPOConfig(action_masks=action_masks)
        self.ppo = PPO(config, Problem(*spaces, NUM_ENVS, total_timesteps=20_000_000))
        plan = Plan(
            EnvSpec("fastrl/Cage2-v0", OPTIONS),
            self.ppo.actor_spec(),
            *spaces,
            NUM_ENVS,
            config.num_steps,
            action_masks=action_masks,
        )
        self.collector = native_collector(plan)
        self.weights = np.zeros(self.ppo.weights_nbytes, np.uint8)
        self.parts = []

    def round(self) -> float:
        """Environment steps per second of processor time of some updates."""
        parts, before = np.zeros(3), self.ppo.steps
        for _ in range(UPDATES):
            times = [time.process_time()]
            self.ppo.write_weights(self.weights)
            self.collector.publish(self.weights)
            fragments = self.collector.collect()
            times.append(time.process_time())
            self.ppo.load_rollout(fragments, Stopwatch())
            times.append(time.process_time())
            self.ppo.learn(Stopwatch())
            times.append(time.process_time())
            parts += np.diff(times)
        self.parts.append(parts / (self.ppo.steps - before))
        return (self.ppo.steps - before) / parts.sum()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_masks(record):
    runs = {name: Training(name == "masks") for name in ("none", "masks")}
    speeds = measure_in_turns({name: run.round for name, run in runs.items()}, ROUNDS)
    case = Case("PPO on CAGE 2", speeds)
    about = f"{NUM_ENVS} environments, one thread; steps per second of processor time."
    record("Action masks", "steps/s", [case], ["masks"], about=about)
    print(f"  µs a step: {'collecting':>12}{'values':>12}{'gradients':>12}")
    for name, run in runs.items():
        print(f"  {name:<10} {''.join(f'{1e6 * part:12.2f}' for part in np.mean(run.parts, axis=0))}")
    assert case.ratio("masks", "none").median > 0.6


class Merging:
    """An update of PPO on one rollout again and again.

    With ``merge`` None equal observations are merged where they repeat, as in training; with False never.
    """

    def __init__(self, backend: str, obs: np.ndarray, merge: bool | None) -> None:
        steps, num_envs, width = obs.shape
        space = Box(-np.inf, np.inf, (width,), np.float32)
        config = PPOConfig(num_steps=steps - 1, update_backend=backend)
        self.ppo = PPO(config, Problem(space, Discrete(80), num_envs, 10**9))
        rng, rollout = np.random.default_rng(0), self.ppo.rollout
        rollout.obs[:] = obs
        rollout.actions[:] = rng.integers(80, size=rollout.actions.shape)
        rollout.log_probs[:] = -4.4
        rollout.rewards[:] = rng.normal(size=rollout.rewards.shape)
        if merge is not None:
            rollout.find_groups = lambda merge, together: Rollout.find_groups(rollout, merge=False)

    def round(self) -> float:
        """Updates per second of processor time."""
        start = time.process_time()
        self.ppo._evaluate(are_known=False)
        self.ppo.learn(Stopwatch())
        return 1 / (time.process_time() - start)


def observations(kind: str) -> np.ndarray:
    """Float32 [101, 256, n]: as many steps as an update of CAGE 2 has."""
    rng, size = np.random.default_rng(0), (101, 256)
    if kind == "repeated, 62 wide":
        return rng.integers(2, size=(1300, 62))[rng.zipf(1.3, size=size) % 1300].astype(np.float32)
    if kind == "counters, 240 wide":
        # Bits that repeat, and counters that do not.
        bits = rng.integers(2, size=(1300, 200))[rng.zipf(1.3, size=size) % 1300]
        return np.concatenate([bits, rng.integers(10, size=(*size, 40))], 2).astype(np.float32)
    return rng.normal(size=(*size, 17)).astype(np.float32)


@pytest.mark.parametrize("backend", ["compiled", "torch"])
@pytest.mark.parametrize("kind", ["repeated, 62 wide", "counters, 240 wide", "floats, 17 wide"])
def test_merging(kind, backend, record):
    obs = observations(kind)
    runs = {
        "merged where they repeat": Merging(backend, obs, None),
        "each by itself": Merging(backend, obs, False),
    }
    speeds = measure_in_turns({name: run.round for name, run in runs.items()}, ROUNDS)
    case = Case(f"{kind}, {backend}", speeds)
    about = "Updates of PPO per second of processor time, with equal observations of a minibatch merged, and without."
    record("Equal observations", "updates/s", [case], ["merged where they repeat"], about=about)
    ratio = case.ratio("merged where they repeat", "each by itself").median
    assert ratio > (1.5 if "repeated" in kind else 0.95)
