"""Behaviour cloning beside a loop over PyTorch's DataLoader, and compiled gradient steps beside PyTorch's.

Run: ``pytest benches/bench_bc.py -s``. The same network, optimiser, loss, batch and data; one thread; medians over
rounds in turns, of samples or gradient steps per second of processor time. The loop is what users write:
``DataLoader(TensorDataset(...), batch_size, shuffle=True)``.
"""

import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fastrl.algorithms.bc import BC, BCConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.resources import use_cores
from fastrl.networks.action_space import Actions
from fastrl.sources.dataset import Batches
from fastrl.sources.demo_arrays import DemoArrays
from fastrl.utils.timer import Stopwatch
from results import Case
from rounds import measure_in_turns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

ROUNDS = 5
SECONDS = 0.5
STEPS, EPISODES, GRADIENT_STEPS = 500, 40, 300

CASES = {
    "CartPole (4 numbers, 2 actions)": (Box(-5, 5, (4,), np.float32), Discrete(2)),
    "CAGE 2 (52 numbers, 145 actions)": (Box(-1, 1, (52,), np.float32), Discrete(145)),
    "HalfCheetah (17 numbers, 6 in an action)": (
        Box(-5, 5, (17,), np.float32),
        Box(-1, 1, (6,), np.float32),
    ),
}
# Ratio of compiled gradient steps to PyTorch's.
BAR = 4

pytestmark = pytest.mark.usefixtures("one_thread")


def random_arrays(obs_space, action_space):
    from demo_sets import DemoSet, Episode

    rng = np.random.default_rng(0)
    is_box = isinstance(action_space, Box)
    episodes = []
    for _ in range(EPISODES):
        obs = rng.normal(size=(STEPS + 1, *obs_space.shape)).astype(np.float32)
        taken = (
            rng.uniform(-1, 1, (STEPS, *action_space.shape)).astype(np.float32)
            if is_box
            else rng.integers(0, action_space.n, STEPS)
        )
        episodes.append(Episode(obs, taken, np.zeros(STEPS), *np.zeros((2, STEPS), np.bool_)))
    demos = DemoSet(obs_space, action_space, episodes)
    return DemoArrays.of(demos, Actions(action_space))


def learner_of(obs_space, action_space, **settings):
    config = BCConfig(validation=0.0, loss="mse" if isinstance(action_space, Box) else "auto", **settings)
    return BC(config, Problem(obs_space, action_space, 1, 10**12))


def measured(step, draw):
    """Samples per second of steps, and the share of a step that it takes to draw a minibatch. The two are measured one
    after the other: to ask for processor time may take longer than to draw."""
    samples, steps, start = 0, 0, time.process_time()
    while (seconds := time.process_time() - start) < SECONDS:
        for _ in range(20):
            samples += step()
            steps += 1
    start = time.process_time()
    for _ in range(100):
        draw()
    drawing = (time.process_time() - start) / 100
    return SimpleNamespace(speed=samples / seconds, data=drawing / (seconds / steps))


def ours(obs_space, action_space, arrays):
    """A call that learns for a while, and gives what `measured` does."""
    learner = learner_of(obs_space, action_space)
    batches = Batches(arrays, np.arange(EPISODES), learner.dataset_spec(learner.config), seed=0)
    watch = Stopwatch()

    def step():
        batch, _ = batches.sample()
        learner.update(batch, watch)
        return len(batch.actions)

    def run():
        found = measured(step, batches.sample)
        learner.metrics()
        return found

    return run


def loader_loop(obs_space, action_space, arrays):
    """Trains with a DataLoader."""
    policy = learner_of(obs_space, action_space).policy
    adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    steps = arrays.steps_of()
    data_set = TensorDataset(torch.from_numpy(arrays.obs_at(steps)), torch.from_numpy(arrays.actions[steps]))
    loader = DataLoader(data_set, batch_size=256, shuffle=True)
    is_box = isinstance(action_space, Box)

    def batches():
        while True:
            yield from loader

    endless = batches()

    def step():
        obs, actions = next(endless)
        outputs = policy.outputs(obs)
        loss = functional.mse_loss(outputs, actions) if is_box else functional.cross_entropy(outputs, actions)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        adam.step()
        return len(actions)

    return lambda: measured(step, lambda: next(endless))


@pytest.mark.parametrize("case", CASES, ids=("cartpole", "cage2", "half-cheetah"))
def test_samples_per_second(case, record):
    arrays = random_arrays(*CASES[case])
    contenders = {"fastrl": ours(*CASES[case], arrays), "DataLoader": loader_loop(*CASES[case], arrays)}
    for run in contenders.values():
        run()
    found = measure_in_turns(contenders, ROUNDS)
    speeds = {name: [each.speed for each in runs] for name, runs in found.items()}
    about = "One thread; samples per second of processor time."
    result = record("Behaviour cloning", "samples/s", [Case(case, speeds)], ["fastrl"], about=about)
    shares = {name: [100 * each.data for each in runs] for name, runs in found.items()}
    record(
        "Behaviour cloning: drawing a minibatch",
        "% of a step",
        [Case(case, shares)],
        ["fastrl"],
        lower_is_better=True,
        part="data",
    )
    assert result.cases[0].ratio("fastrl", "DataLoader").median >= 1.5
    assert statistics.median(shares["fastrl"]) <= 6


@pytest.fixture
def one_core():
    """Compiled gradient steps have one thread."""
    use_cores(1)
    yield
    use_cores("auto")


def gradient_steps(backend, obs_space, action_space, arrays):
    """A call that measures steps per second of processor time along minibatches of 64."""
    learner = learner_of(obs_space, action_space, hidden=(64, 64), batch_size=64, update_backend=backend)
    batches = Batches(arrays, np.arange(EPISODES), learner.dataset_spec(learner.config), seed=0)
    watch = Stopwatch()

    def measure():
        start = time.process_time()
        for _ in range(GRADIENT_STEPS):
            learner.update(batches.sample()[0], watch)
        return GRADIENT_STEPS / (time.process_time() - start)

    return measure


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("case", CASES, ids=("cartpole", "cage2", "half-cheetah"))
def test_gradient_steps(case, record):
    arrays = random_arrays(*CASES[case])
    ours = {"fastrl, compiled": "compiled", "fastrl, PyTorch": "torch"}
    contenders = {name: gradient_steps(backend, *CASES[case], arrays) for name, backend in ours.items()}
    for measure in contenders.values():
        measure()
    found = Case(f"{case}, 64 x 64, minibatches of 64", measure_in_turns(contenders, ROUNDS))
    about = "One thread; steps per second of processor time, drawing the minibatch included."
    record("Gradient steps of behaviour cloning", "gradient steps/s", [found], list(ours), about=about)
    assert found.ratio("fastrl, compiled", "fastrl, PyTorch").median >= BAR
