"""Learning by DQN: CartPole-v1 to 475, and Catch from pixels to its known optimum. Three seeds each, on one thread.
And gradient steps beside Stable-Baselines3 and sbx (JAX), where they are installed, on one core.

Run: ``pytest benches/bench_dqn.py -s`` on an otherwise idle machine. A run ends when its policy passes: every few
thousand steps the greedy policy is scored on 20 episodes; if their mean is good enough, on 100 more with other seeds,
whose mean counts and is shown. If that falls short, training continues. Seconds are CPU seconds of the process, with
all evaluations; on an idle machine they equal those of the wall clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.envs.toys.catch import CatchEnv
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.replay import Replay
from fastrl.sources.minibatches import make_sampler
from fastrl.utils.timer import Stopwatch
from learners import gradient_steps, measured
from results import Case

SEEDS = (0, 1, 2)
SCREEN_EPISODES, EPISODES = 20, 100
ROUNDS = 9


@dataclass(frozen=True)
class Task:
    """A problem and its settings: a run steps ``num_envs`` environments, one step of each in turn."""

    name: str
    make: Callable[[], gymnasium.Env]
    config: DQNConfig
    pass_mark: float
    max_seconds: float
    stack: int = 1  # newest frames that make up an observation, of images
    num_envs: int = 1
    starts: int = 1_000  # steps before the first update
    steps_per_update: int = 2
    eval_every: int = 2_500
    max_steps: int = 100_000


CARTPOLE = Task(
    name="CartPole-v1",
    make=lambda: gymnasium.make("CartPole-v1"),
    config=DQNConfig(
        n_step=10,
        prioritized=True,
        alpha=0.5,
        beta_steps=50_000,
        hidden=(256, 256),
        learning_rate=3e-4,
        batch_size=64,
        target_every=250,
        huber=10.0,
        epsilon_steps=8_000,
        final_epsilon=0.04,
    ),
    pass_mark=475,
    max_seconds=180,
)
# 10 balls, caught is 1 and missed -1: the optimum is 10, and 9 is within 10% of it. Random play returns about -8.
CATCH = Task(
    name="Catch, pixels",
    make=CatchEnv,
    config=DQNConfig(
        gamma=0.97,
        n_step=3,
        conv=("16x3/1",),
        hidden=(64,),
        learning_rate=1e-3,
        batch_size=32,
        target_every=200,
        epsilon_steps=8_000,
        final_epsilon=0.02,
    ),
    pass_mark=9,
    max_seconds=180,
    stack=2,
    num_envs=4,
    steps_per_update=4,
)


class FrameStacks:
    """Several environments and their newest frames, stacked as the replay does: zeros before the first."""

    def __init__(self, task: Task, count: int, seed: int) -> None:
        self.envs = [task.make() for _ in range(count)]
        self.shape, self.dtype = self.envs[0].observation_space.shape, self.envs[0].observation_space.dtype
        self.stacked = task.stack > 1
        self.obs = np.zeros((count, task.stack, *self.shape), self.dtype)
        for i in range(count):
            self.reset(i, seed + i)

    def reset(self, i: int, seed: int | None = None) -> None:
        self.obs[i] = 0
        self.obs[i, -1] = self.envs[i].reset(seed=seed)[0]

    def inputs(self) -> np.ndarray:
        """Observations as the network gets them, [count, ...]."""
        return self.obs if self.stacked else self.obs[:, 0]

    def step(self, i: int, action: int) -> tuple[np.ndarray, float, bool, bool]:
        obs, reward, terminated, truncated, _ = self.envs[i].step(action)
        self.obs[i, :-1] = self.obs[i, 1:].copy()
        self.obs[i, -1] = obs
        return obs, float(reward), terminated, truncated


def act(actor: Actor, obs: np.ndarray, step: int = 0) -> np.ndarray:
    """Actions in environments that each have a stream of random numbers."""
    actions, log_probs = np.zeros(len(obs), np.int64), np.zeros(len(obs), np.float32)
    streams, steps = np.arange(len(obs), dtype=np.uint64), np.full(len(obs), step)
    actor.act(obs.reshape(len(obs), -1), streams, steps, actions, log_probs)
    return actions


def evaluate(task: Task, dqn: DQN, episodes: int, seed: int) -> float:
    """Mean return of the greedy policy."""
    stacks = FrameStacks(task, episodes, seed)
    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    actor = dqn.network.loaded_actor(Actions(gymnasium.spaces.Discrete(dqn.network.num_actions)))
    while playing.any():
        actions = act(actor, stacks.inputs()[playing])
        for i, action in zip(np.flatnonzero(playing), actions, strict=True):
            _, reward, terminated, truncated = stacks.step(i, int(action))
            returns[i] += reward
            playing[i] = not (terminated or truncated)
    return float(returns.mean())


def train(task: Task, config: DQNConfig, seed: int) -> dict[str, float]:
    """Trains until the policy passes, or time or steps run out."""
    start, start_cpu = time.perf_counter(), time.process_time()
    stacks = FrameStacks(task, task.num_envs, seed=1_000_000 * (seed + 1))
    space = stacks.envs[0].observation_space
    if task.stack > 1:
        space = Box(space.low.min(), space.high.max(), (task.stack, *stacks.shape), stacks.dtype)
    problem = Problem(
        space, stacks.envs[0].action_space, task.num_envs, total_timesteps=task.max_steps, seed=seed
    )
    dqn, watch = DQN(config, problem), Stopwatch()
    actor, weights = dqn.actor_spec()(), bytearray(dqn.weights_nbytes)
    replay = Replay(50_000, stacks.shape, stacks.dtype, num_envs=task.num_envs, stack=task.stack)
    spec = dqn.replay_spec()
    sampler = make_sampler(spec, replay, seed)
    steps, screened, mean = 0, 0, float("nan")
    while steps < task.max_steps and time.process_time() - start_cpu < task.max_seconds:
        dqn.steps = steps
        dqn.write_weights(weights)
        actor.load(weights)
        for i, action in enumerate(act(actor, stacks.inputs(), steps)):
            before = stacks.obs[i, -1].copy()
            after, reward, terminated, truncated = stacks.step(i, int(action))
            replay.add(before, action, reward, after, terminated, truncated, env=i)
            if terminated or truncated:
                stacks.reset(i)
        steps += task.num_envs
        if steps >= task.starts and steps % task.steps_per_update < task.num_envs:
            if spec.prioritized is not None:
                sampler.beta = spec.prioritized.beta(steps)
            batch = sampler.sample()
            td_errors = dqn.update(batch, watch)
            if spec.prioritized is not None:
                sampler.update_priorities(batch.indices, td_errors)
        if steps // task.eval_every > screened:
            screened = steps // task.eval_every
            dqn.metrics()  # raises if anything is not finite
            mean = evaluate(task, dqn, SCREEN_EPISODES, 500_000_000 + 1_000 * screened)
            if mean >= task.pass_mark:
                mean = evaluate(task, dqn, EPISODES, 700_000_000 + 1_000 * screened)
                if mean >= task.pass_mark:
                    break
    return {
        "mean": mean,
        "steps": steps,
        "updates": dqn.updates,
        "seconds": time.process_time() - start_cpu,
        "wall": time.perf_counter() - start,
    }


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("task", [CARTPOLE, CATCH], ids=lambda task: task.name)
def test_learns(task, record):
    print(f"\n{task.name}: mean of {EPISODES} episodes, to pass: {task.pass_mark}")
    print(f"  {'seed':>4} {'mean':>8} {'steps':>9} {'updates':>9} {'seconds':>9} {'by the wall':>12}")
    rows = []
    for seed in SEEDS:
        row = train(task, task.config, seed)
        rows.append(row)
        print(
            f"  {seed:4} {row['mean']:8.1f} {row['steps']:9,} {row['updates']:9,} {row['seconds']:9.1f}"
            f" {row['wall']:12.1f}",
            flush=True,
        )
    for unit, words in (("steps", "steps"), ("seconds", "CPU seconds")):
        record(
            f"DQN until its greedy policy passes, {words}",
            words,
            [Case(f"{task.name} to {task.pass_mark}", {"fastrl": [row[unit] for row in rows]})],
            ["fastrl"],
            about=f"A number a seed, {len(SEEDS)} seeds, one thread.",
            lower_is_better=True,
            part=unit,
        )
    assert all(row["mean"] >= task.pass_mark for row in rows)
    assert all(row["seconds"] <= task.max_seconds for row in rows)


def test_gradient_steps(record):
    ours = {
        "fastrl, compiled": {"update_backend": "compiled"},
        "fastrl, PyTorch": {"update_backend": "torch"},
    }
    rates, left_out = measured(gradient_steps("dqn", ours), ROUNDS)
    case = Case("64 x 64, minibatches of 64", rates)
    about = (
        "One core; steps per second of processor time. sbx takes the 400 steps of a round in one call of compiled"
        " code."
    )
    record("Gradient steps of DQN", "gradient steps/s", [case], list(ours), about=about, left_out=left_out)
    assert case.ratio("fastrl, compiled", "fastrl, PyTorch").median >= 4
