"""Gradient steps of SAC per second of processor time, beside Stable-Baselines3's: same network, batch and replay.

Run: ``pytest benches/bench_sac.py -s`` on an otherwise idle machine. Each contender has a process of its own with one
thread, so that none has the other's settings of memory; they take turns, and medians are compared.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from results import Benchmark, Case
from rounds import measure_in_turns

pytest.importorskip("stable_baselines3")

# Sizes of HalfCheetah-v5.
OBS, ACTIONS, BATCH = 17, 6, 256
ROUNDS, STEPS = 9, 40

COMMON = f"""
import resource, sys
import gymnasium, numpy as np, torch
torch.set_num_threads(1)
OBS, ACTIONS, BATCH = {OBS}, {ACTIONS}, {BATCH}

class Noise(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(OBS, np.float32), {{}}
    def step(self, action):
        return self.np_random.normal(size=OBS).astype(np.float32), 0.0, False, False, {{}}

def serve(learn):
    learn({STEPS})
    for _ in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF)
        learn({STEPS})
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        print({STEPS} / used, flush=True)
"""

THEIRS = """
import stable_baselines3
from stable_baselines3.common.logger import Logger
model = stable_baselines3.{name}("MlpPolicy", Noise(), device="cpu", buffer_size=20_000, batch_size=BATCH,
    policy_kwargs={{"net_arch": [256, 256]}}, learning_starts=10_000)
model.learn(5_000)
model.set_logger(Logger(None, []))
serve(lambda steps: model.train(steps, BATCH))
"""

OURS = """
from fastrl.algorithms import find
from fastrl.algorithms.protocol import Problem
from fastrl.replay import Replay
from fastrl.sources.minibatches import make_sampler
from fastrl.utils.timer import Stopwatch
algorithm = find("{name}")
config = algorithm.config_type(hidden=(256, 256), batch_size=BATCH, precision="{precision}")
learner = algorithm(config, Problem(Noise.observation_space, Noise.action_space, 1, 100))
replay = Replay(20_000, (OBS,), np.float32, action_shape=(ACTIONS,), action_dtype=np.float32)
rng = np.random.default_rng(0)
for _ in range(5_000):
    before, after = rng.normal(size=(2, OBS)).astype(np.float32)
    replay.add(before, rng.uniform(-1, 1, ACTIONS).astype(np.float32), 0.0, after, False, False)
sampler, watch = make_sampler(learner.replay_spec(), replay, 0), Stopwatch()

def learn(steps):
    for _ in range(steps):
        learner.update(sampler.sample(), watch)

serve(learn)
"""


@contextmanager
def contender(program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that measures a round for each line that it gets."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMON + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def measured(process: subprocess.Popen[str]) -> float:
    """Gradient steps per second of processor time, in one round."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


@pytest.mark.parametrize(("name", "bars"), [("sac", (1.3, 2.0)), ("td3", (1.3, 2.0))], ids=("sac", "td3"))
def test_gradient_steps(name: str, bars: tuple[float, float], record: Callable[..., Benchmark]) -> None:
    with (
        contender(THEIRS.format(name=name.upper())) as theirs,
        contender(OURS.format(name=name, precision="fp32")) as ours,
        contender(OURS.format(name=name, precision="bf16")) as half,
    ):
        contenders = {"Stable-Baselines3": theirs, "fastrl, fp32": ours, "fastrl, bf16": half}
        rates = measure_in_turns(
            {key: lambda process=process: measured(process) for key, process in contenders.items()}, ROUNDS
        )
    case, ours = Case(name, rates), ("fastrl, fp32", "fastrl, bf16")
    about = "Steps per second of processor time; networks of 256 x 256."
    record("Gradient steps of SAC and TD3", "gradient steps/s", [case], ours, about=about)
    for key, bar in zip(ours, bars, strict=True):
        assert case.ratio(key, "Stable-Baselines3").median >= bar
