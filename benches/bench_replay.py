"""Replay beside numpy, Stable-Baselines3, cpprb and TorchRL. Run: ``pytest benches/bench_replay.py -s``.

One thread; medians over rounds in turns. The random part of a draw is measured too, and batches are torch tensors at
the end. Reference points, for one machine with 2 shared cores: adding one 3 million/s, adding 64 20 million/s, sampling
twice and prioritized sampling three times the best peer, stacked frames at 80% of the copy bandwidth.
"""

import itertools
import statistics

import gymnasium
import numpy as np
import pytest
import torch

from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.replay.samplers import ROTATION
from rounds import measure_in_turns, rate

ROUNDS = 7
SECONDS = 0.25  # of each turn
BATCH = 256
MILLION = 1_000_000

CARTPOLE = (4,), np.float32
CAGE2 = (52,), np.float32
FRAME = (84, 84), np.uint8


pytestmark = pytest.mark.usefixtures("one_thread")


def rates(contenders):
    """Calls a second, name -> median over rounds in turns."""

    def calls_per_second(call):
        def once():
            call()
            return 1

        return lambda: rate(once, SECONDS)

    for call in contenders.values():
        call()
    found = measure_in_turns({name: calls_per_second(call) for name, call in contenders.items()}, ROUNDS)
    return {name: statistics.median(values) for name, values in found.items()}


def print_rates(title, found, unit, scale=1.0):
    peers = {name: value for name, value in found.items() if not name.startswith("fastrl")}
    best = max(peers.values(), default=None)
    print(f"\n{title}")
    for name, value in found.items():
        ratio = f"{value / best:8.2f} x the best peer" if best and name not in peers else ""
        print(f"  {name:<34}{value * scale:>16,.0f} {unit} {ratio}")


def columns(count, kind, seed=0):
    """Random transitions, as the peers store them."""
    shape, dtype = kind
    rng = np.random.default_rng(seed)
    obs = (rng.random((count + 1, *shape), np.float32) * 255).astype(dtype)
    return {
        "obs": obs[:-1],
        "action": rng.integers(0, 100, count),
        "reward": rng.random(count, np.float32),
        "next_obs": obs[1:],
        "terminated": np.zeros(count, bool),
        "truncated": np.arange(count) % 100 == 99,
    }


def add_all(replay, count, kind):
    chunk = columns(10_000, kind)
    envs = np.zeros(10_000, np.int64)
    for _ in range(count // 10_000):
        replay.add_many(*chunk.values(), envs)
    return replay


def numpy_sample(count, kind):
    """Gathers into the same arrays each time: no copy less is possible with numpy."""
    kinds = {name: (array.shape[1:], array.dtype) for name, array in columns(1, kind).items()}
    stored = {name: np.ones((count, *shape), dtype) for name, (shape, dtype) in kinds.items()}
    out = {name: torch.from_numpy(np.zeros((BATCH, *shape), dtype)) for name, (shape, dtype) in kinds.items()}
    views = {name: tensor.numpy() for name, tensor in out.items()}
    rng = np.random.default_rng(0)

    def sample():
        at = rng.integers(0, count, BATCH)
        for name, array in stored.items():
            array.take(at, axis=0, out=views[name], mode="clip")

    return sample


def sb3_buffer(count, kind):
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    shape, dtype = kind
    high = 255 if dtype == np.uint8 else np.inf
    space = gymnasium.spaces.Box(0 if dtype == np.uint8 else -np.inf, high, shape, dtype)
    buffer = buffers.ReplayBuffer(count, space, gymnasium.spaces.Discrete(100), "cpu")
    buffer.observations[:], buffer.next_observations[:] = 1, 1
    buffer.pos, buffer.full = 0, True
    return buffer


def cpprb_buffer(count, kind, prioritized=False, **options):
    cpprb = pytest.importorskip("cpprb")
    shape, dtype = kind
    fields = {
        "obs": {"shape": shape, "dtype": dtype},
        "action": {"shape": 1, "dtype": np.int64},
        "reward": {"shape": 1, "dtype": np.float32},
        "next_obs": {"shape": shape, "dtype": dtype},
        "terminated": {"shape": 1, "dtype": np.bool_},
        "truncated": {"shape": 1, "dtype": np.bool_},
    }
    if options:
        del fields["next_obs"]
    make = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
    buffer = make(count, fields, **({"alpha": 0.6} if prioritized else {}), **options)
    chunk = columns(min(count, 2000), kind)
    for _ in range(count // len(chunk["action"])):
        buffer.add(**chunk)
    return buffer


def torchrl_buffer(count, kind, prioritized=False):
    data = pytest.importorskip("torchrl.data")
    tensordict = pytest.importorskip("tensordict")
    storage = data.LazyTensorStorage(count)
    if prioritized:
        buffer = data.TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH, priority_key="priority"
        )
    else:
        buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    chunk = {name: torch.from_numpy(array.copy()) for name, array in columns(10_000, kind).items()}
    for _ in range(count // 10_000):
        buffer.extend(tensordict.TensorDict(chunk, [10_000]))
    return buffer


def as_tensors(batch):
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def test_sample_a_million():
    replay = add_all(Replay(MILLION, *CAGE2), MILLION, CAGE2)
    uniform, three = UniformSampler(replay, BATCH), UniformSampler(replay, BATCH, n_step=3)
    sb3, cpprb = sb3_buffer(MILLION, CAGE2), cpprb_buffer(MILLION, CAGE2)
    torchrl = torchrl_buffer(MILLION, CAGE2)
    found = rates(
        {
            "fastrl": uniform.sample,
            "fastrl, n_step 3": three.sample,
            "numpy take(out=)": numpy_sample(MILLION, CAGE2),
            "Stable-Baselines3": lambda: sb3.sample(BATCH),
            "cpprb": lambda: as_tensors(cpprb.sample(BATCH)),
            "TorchRL": torchrl.sample,
        }
    )
    print_rates("Sample 256 of CAGE2-like transitions, 1e6 stored", found, "batches/s")


def test_prioritized_a_million():
    replay = add_all(Replay(MILLION, *CAGE2), MILLION, CAGE2)
    sampler = PrioritizedSampler(replay, BATCH)
    cpprb = cpprb_buffer(MILLION, CAGE2, prioritized=True)
    torchrl = torchrl_buffer(MILLION, CAGE2, prioritized=True)
    rng = np.random.default_rng(0)
    errors = [rng.random(BATCH) for _ in range(100)]
    tensors = [torch.from_numpy(error).float() for error in errors]
    turn = iter(range(1 << 62))

    def own():
        batch = sampler.sample()
        sampler.update_priorities(batch.indices, tensors[next(turn) % 100])

    def of_cpprb():
        batch = cpprb.sample(BATCH, beta=0.4)
        as_tensors(batch)
        cpprb.update_priorities(batch["indexes"], errors[next(turn) % 100])

    def of_torchrl():
        batch = torchrl.sample()
        torchrl.update_priority(batch["index"], tensors[next(turn) % 100])

    found = rates({"fastrl": own, "cpprb": of_cpprb, "TorchRL": of_torchrl})
    print_rates("Prioritized: sample 256 and update, 1e6 stored", found, "batches/s")


def test_stacked_frames():
    count = 20_000
    replay = add_all(Replay(count, *FRAME, stack=4), count, FRAME)
    print(f"\nfastrl stores {replay.nbytes / count:,.0f} bytes for each transition of 4x84x84")
    sampler = UniformSampler(replay, BATCH)
    # The frames that a batch needs, from memory as large, into memory as large and as often used again: what copying
    # costs, no more.
    frames = np.ones((count, 7056), np.uint8)
    outs = itertools.cycle(np.zeros((ROTATION, BATCH * 8, 7056), np.uint8))
    around = np.array([-3, -2, -1, 0, -2, -1, 0, 1])
    rng = np.random.default_rng(0)

    def copy():
        at = (rng.integers(4, count - 1, BATCH)[:, None] + around).reshape(-1)
        frames.take(at, axis=0, out=next(outs), mode="clip")

    stacked = (4, 84, 84), np.uint8
    sb3 = sb3_buffer(count // 4, stacked)
    # It stacks along the last axis.
    cpprb = cpprb_buffer(count, ((84, 84, 4), np.uint8), next_of="obs", stack_compress="obs")
    found = rates(
        {
            "fastrl": sampler.sample,
            "Stable-Baselines3 (5,000 stored)": lambda: sb3.sample(BATCH),
            "cpprb, frames shared": lambda: as_tensors(cpprb.sample(BATCH)),
            "copy of these blocks": copy,
        }
    )
    copying = found.pop("copy of these blocks")
    print_rates("Sample 256 of stacked frames, 2e4 stored", found, "batches/s")
    bandwidth = copying * BATCH * 8 * 7056 / 1e9
    share = found["fastrl"] / copying
    print(
        f"  copying the same blocks alone: {copying:,.0f} /s, {bandwidth:.1f} GB/s; fastrl {share:.0%} of that"
    )


@pytest.mark.parametrize("name", ["CartPole-like", "CAGE2-like"])
def test_add(name):
    kind = CARTPOLE if name == "CartPole-like" else CAGE2
    count, inner = 100_000, 1000
    replay = Replay(count, *kind)
    chunk = columns(inner, kind)
    obs, after = list(chunk["obs"]), list(chunk["next_obs"])
    rest = list(zip(chunk["action"].tolist(), chunk["reward"].tolist(), strict=True))
    steps = [(obs[i], *rest[i], after[i], False, i % 100 == 99) for i in range(inner)]
    sb3 = sb3_buffer(count, kind)
    cpprb = cpprb_buffer(count, kind)
    infos = [{}]

    def own():
        add = replay.add
        for step in steps:
            add(*step)

    def of_sb3():
        for o, a, r, n, terminated, truncated in steps[:100]:
            sb3.add(
                o[None], n[None], np.array([a]), np.array([r]), np.array([terminated or truncated]), infos
            )

    def of_cpprb():
        for o, a, r, n, terminated, truncated in steps[:100]:
            cpprb.add(obs=o, action=a, reward=r, next_obs=n, terminated=terminated, truncated=truncated)

    found = rates({"fastrl": own, "Stable-Baselines3": of_sb3, "cpprb": of_cpprb})
    found = {each: value * (inner if each == "fastrl" else 100) for each, value in found.items()}
    print_rates(f"Add one, {name}", found, "transitions/s")


@pytest.mark.parametrize("name", ["CartPole-like", "CAGE2-like"])
def test_add_64(name):
    kind = CARTPOLE if name == "CartPole-like" else CAGE2
    count, many = 100_000, 64
    replay = Replay(count, *kind, num_envs=many)
    rng = np.random.default_rng(0)
    obs = [rng.random((many, *kind[0]), np.float32) for _ in range(8)]
    rest = np.zeros(many, np.int64), np.zeros(many, np.float32)
    ends = np.zeros(many, bool), np.zeros(many, bool)
    stored = {key: np.ones((count, *value.shape[1:]), value.dtype) for key, value in columns(1, kind).items()}
    cpprb = cpprb_buffer(count, kind)
    turn = 0

    def own():
        for i in range(8):
            replay.add_many(obs[i], *rest, obs[i - 7], *ends)

    def of_numpy():
        nonlocal turn
        for i in range(8):
            at = slice(turn, turn + many)
            for array, new in zip(stored.values(), (obs[i], *rest, obs[i - 7], *ends), strict=True):
                array[at] = new
            turn = (turn + many) % (count - many)

    def of_cpprb():
        for i in range(8):
            cpprb.add(
                obs=obs[i],
                action=rest[0],
                reward=rest[1],
                next_obs=obs[i - 7],
                terminated=ends[0],
                truncated=ends[1],
            )

    found = rates({"fastrl": own, "numpy, slices": of_numpy, "cpprb": of_cpprb})
    print_rates(f"Add 64 at a time, {name}", found, "transitions/s", scale=8 * many)
