"""Replay: `fastrl.replay` beside numpy, Stable-Baselines3, cpprb and TorchRL, on one thread.

The random part of a draw is measured too, and batches are torch tensors at the end. A contender whose library is
missing is left out.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.replay.samplers import ROTATION
from fastrl.utils.progress import Progress
from fastrl.utils.torch_threads import one_thread
from results import Benchmark, Case
from rounds import measure_in_turns, rate

BATCH = 256
MILLION = 1_000_000
ADDED = 64

Kind = tuple[tuple[int, ...], Any]
CARTPOLE: Kind = (4,), np.float32
CAGE2: Kind = (52,), np.float32
FRAME: Kind = (84, 84), np.uint8

OURS = ("fastrl", "fastrl, n_step 3")
SB3, CPPRB, TORCHRL = "Stable-Baselines3", "cpprb", "TorchRL"
COPY = "copying these blocks alone"
_MODULES = {SB3: "stable_baselines3.common.buffers", CPPRB: "cpprb", TORCHRL: "torchrl.data"}

# A call, and the number of batches or transitions that it draws or adds.
Contender = tuple[Callable[[], object], int]


def installed(*names: str) -> dict[str, Any]:
    """The modules of these libraries, without those that cannot be imported."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.import_module(_MODULES[name])
        except ImportError:
            continue
    return found


def columns(count: int, kind: Kind, seed: int = 0) -> dict[str, NDArray[Any]]:
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


def filled(replay: Replay, count: int, kind: Kind) -> Replay:
    """The replay with ``count`` random transitions, up to 10,000 or a multiple of that."""
    size = min(count, 10_000)
    chunk = columns(size, kind)
    names = {"action": "actions", "reward": "rewards"}
    arrays: dict[str, Any] = {names.get(name, name): array for name, array in chunk.items()}
    envs = np.zeros(size, np.int64)
    for _ in range(count // size):
        replay.add_many(**arrays, envs=envs)
    return replay


def as_tensors(batch: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def numpy_sample(count: int, kind: Kind) -> Callable[[], None]:
    """Gathers into the same arrays each time: numpy cannot do it with a copy less."""
    kinds = {name: (array.shape[1:], array.dtype) for name, array in columns(1, kind).items()}
    stored = {name: np.ones((count, *shape), dtype) for name, (shape, dtype) in kinds.items()}
    out = {name: torch.from_numpy(np.zeros((BATCH, *shape), dtype)) for name, (shape, dtype) in kinds.items()}
    views = {name: tensor.numpy() for name, tensor in out.items()}
    rng = np.random.default_rng(0)

    def sample() -> None:
        at = rng.integers(0, count, BATCH)
        for name, array in stored.items():
            array.take(at, axis=0, out=views[name], mode="clip")

    return sample


def sb3_buffer(buffers: Any, count: int, kind: Kind) -> Any:
    shape, dtype = kind
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    space = gymnasium.spaces.Box(low, high, shape, dtype)
    buffer = buffers.ReplayBuffer(count, space, gymnasium.spaces.Discrete(100), "cpu")
    buffer.observations[:], buffer.next_observations[:] = 1, 1
    buffer.pos, buffer.full = 0, True
    return buffer


def cpprb_buffer(cpprb: Any, count: int, kind: Kind, prioritized: bool = False, **options: Any) -> Any:
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


def torchrl_buffer(data: Any, count: int, kind: Kind, prioritized: bool = False) -> Any:
    tensordict = importlib.import_module("tensordict")
    storage = data.LazyTensorStorage(count)
    if prioritized:
        buffer = data.TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH, priority_key="priority"
        )
    else:
        buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    size = min(count, 10_000)
    chunk = {name: torch.from_numpy(array.copy()) for name, array in columns(size, kind).items()}
    for _ in range(count // size):
        buffer.extend(tensordict.TensorDict(chunk, [size]))
    return buffer


def sampling(count: int = MILLION) -> dict[str, Contender]:
    """Drawing a batch of CAGE2-like transitions with equal probabilities, ``count`` stored."""
    replay = filled(Replay(count, *CAGE2), count, CAGE2)
    found = installed(SB3, CPPRB, TORCHRL)
    calls: dict[str, Callable[[], object]] = {
        "fastrl": UniformSampler(replay, BATCH).sample,
        "fastrl, n_step 3": UniformSampler(replay, BATCH, n_step=3).sample,
        "numpy take(out=)": numpy_sample(count, CAGE2),
    }
    if SB3 in found:
        calls[SB3] = functools.partial(sb3_buffer(found[SB3], count, CAGE2).sample, BATCH)
    if CPPRB in found:
        cpprb = cpprb_buffer(found[CPPRB], count, CAGE2)
        calls[CPPRB] = lambda: as_tensors(cpprb.sample(BATCH))
    if TORCHRL in found:
        calls[TORCHRL] = torchrl_buffer(found[TORCHRL], count, CAGE2).sample
    return {name: (call, 1) for name, call in calls.items()}


def prioritized(count: int = MILLION) -> dict[str, Contender]:
    """Drawing a batch by priorities, and updating the priorities of all its transitions."""
    replay = filled(Replay(count, *CAGE2), count, CAGE2)
    sampler = PrioritizedSampler(replay, BATCH)
    found = installed(CPPRB, TORCHRL)
    rng = np.random.default_rng(0)
    errors = [rng.random(BATCH) for _ in range(100)]
    tensors = itertools.cycle([torch.from_numpy(error).float() for error in errors])
    arrays = itertools.cycle(errors)

    def own() -> None:
        batch = sampler.sample()
        sampler.update_priorities(batch.indices, next(tensors))

    calls: dict[str, Callable[[], object]] = {"fastrl": own}
    if CPPRB in found:
        cpprb = cpprb_buffer(found[CPPRB], count, CAGE2, prioritized=True)

        def of_cpprb() -> None:
            batch = cpprb.sample(BATCH, beta=0.4)
            as_tensors(batch)
            cpprb.update_priorities(batch["indexes"], next(arrays))

        calls[CPPRB] = of_cpprb
    if TORCHRL in found:
        torchrl = torchrl_buffer(found[TORCHRL], count, CAGE2, prioritized=True)

        def of_torchrl() -> None:
            batch = torchrl.sample()
            torchrl.update_priority(batch["index"], next(tensors))

        calls[TORCHRL] = of_torchrl
    return {name: (call, 1) for name, call in calls.items()}


def stacked(count: int = 20_000) -> dict[str, Contender]:
    """Drawing a batch of 4 stacked frames of 84x84; Stable-Baselines3, which stores stacks, has a quarter of them."""
    replay = filled(Replay(count, *FRAME, stack=4), count, FRAME)
    found = installed(SB3, CPPRB)
    # The frames that a batch needs, from memory as large, into memory as large and as often used again.
    frames = np.ones((count, 7056), np.uint8)
    outs = itertools.cycle(np.zeros((ROTATION, BATCH * 8, 7056), np.uint8))
    around = np.array([-3, -2, -1, 0, -2, -1, 0, 1])
    rng = np.random.default_rng(0)

    def copy() -> None:
        at = (rng.integers(4, count - 1, BATCH)[:, None] + around).reshape(-1)
        frames.take(at, axis=0, out=next(outs), mode="clip")

    calls: dict[str, Callable[[], object]] = {"fastrl": UniformSampler(replay, BATCH).sample}
    if SB3 in found:
        buffer = sb3_buffer(found[SB3], count // 4, ((4, 84, 84), np.uint8))
        calls[SB3] = functools.partial(buffer.sample, BATCH)
    if CPPRB in found:
        # It stacks along the last axis.
        cpprb = cpprb_buffer(
            found[CPPRB], count, ((84, 84, 4), np.uint8), next_of="obs", stack_compress="obs"
        )
        calls[CPPRB] = lambda: as_tensors(cpprb.sample(BATCH))
    calls[COPY] = copy
    return {name: (call, 1) for name, call in calls.items()}


def adding_one(kind: Kind, count: int = 100_000) -> dict[str, Contender]:
    """Adding transitions one by one."""
    inner = 1000
    replay = Replay(count, *kind)
    chunk = columns(inner, kind)
    obs, after = list(chunk["obs"]), list(chunk["next_obs"])
    rest = list(zip(chunk["action"].tolist(), chunk["reward"].tolist(), strict=True))
    steps = [(obs[i], *rest[i], after[i], False, i % 100 == 99) for i in range(inner)]
    found = installed(SB3, CPPRB)

    def own() -> None:
        add = replay.add
        for step in steps:
            add(*step)

    contenders: dict[str, Contender] = {"fastrl": (own, inner)}
    if SB3 in found:
        sb3 = sb3_buffer(found[SB3], count, kind)

        def of_sb3() -> None:
            for o, a, r, n, terminated, truncated in steps[:100]:
                ended = np.array([terminated or truncated])
                sb3.add(o[None], n[None], np.array([a]), np.array([r]), ended, [{}])

        contenders[SB3] = (of_sb3, 100)
    if CPPRB in found:
        cpprb = cpprb_buffer(found[CPPRB], count, kind)

        def of_cpprb() -> None:
            for o, a, r, n, terminated, truncated in steps[:100]:
                cpprb.add(obs=o, action=a, reward=r, next_obs=n, terminated=terminated, truncated=truncated)

        contenders[CPPRB] = (of_cpprb, 100)
    return contenders


def adding_many(kind: Kind, count: int = 100_000) -> dict[str, Contender]:
    """Adding 64 transitions a call, one of each environment."""
    replay = Replay(count, *kind, num_envs=ADDED)
    rng = np.random.default_rng(0)
    obs = [rng.random((ADDED, *kind[0]), np.float32) for _ in range(8)]
    rest = np.zeros(ADDED, np.int64), np.zeros(ADDED, np.float32)
    ends = np.zeros(ADDED, bool), np.zeros(ADDED, bool)
    stored = {key: np.ones((count, *value.shape[1:]), value.dtype) for key, value in columns(1, kind).items()}
    turn = 0

    def own() -> None:
        for i in range(8):
            replay.add_many(obs[i], *rest, obs[i - 7], *ends)

    def of_numpy() -> None:
        nonlocal turn
        for i in range(8):
            at = slice(turn, turn + ADDED)
            for array, new in zip(stored.values(), (obs[i], *rest, obs[i - 7], *ends), strict=True):
                array[at] = new
            turn = (turn + ADDED) % (count - ADDED)

    contenders: dict[str, Contender] = {
        "fastrl": (own, 8 * ADDED),
        "numpy, slices": (of_numpy, 8 * ADDED),
    }
    found = installed(CPPRB)
    if CPPRB in found:
        cpprb = cpprb_buffer(found[CPPRB], count, kind)

        def of_cpprb() -> None:
            for i in range(8):
                cpprb.add(
                    obs=obs[i],
                    action=rest[0],
                    reward=rest[1],
                    next_obs=obs[i - 7],
                    terminated=ends[0],
                    truncated=ends[1],
                )

        contenders[CPPRB] = (of_cpprb, 8 * ADDED)
    return contenders


SAMPLING: dict[str, Callable[[], dict[str, Contender]]] = {
    "uniform, 1,000,000 stored": sampling,
    "prioritized with updates, 1,000,000 stored": prioritized,
    "stacked frames, 20,000 stored": stacked,
}
ADDING: dict[str, Callable[[], dict[str, Contender]]] = {
    "one by one, CartPole-like": functools.partial(adding_one, CARTPOLE),
    "one by one, CAGE2-like": functools.partial(adding_one, CAGE2),
    "64 at a time, CartPole-like": functools.partial(adding_many, CARTPOLE),
    "64 at a time, CAGE2-like": functools.partial(adding_many, CAGE2),
}


def measure_case(contenders: Mapping[str, Contender], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Units a second in each round, by contender."""

    def measured(call: Callable[[], object], units: int) -> Callable[[], float]:
        def once() -> int:
            call()
            return units

        return lambda: rate(once, seconds)

    for call, _ in contenders.values():
        call()
    return measure_in_turns({name: measured(*each) for name, each in contenders.items()}, rounds)


def measure(rounds: int, seconds: float, progress: Progress) -> list[Benchmark]:
    """Batches drawn and transitions added a second, in all cases."""
    found = installed(*_MODULES)
    missing = {name: "not installed: pip install 'fastrl[bench]'" for name in _MODULES if name not in found}
    benchmarks = []
    with one_thread():
        for name, title, unit, makers in (
            ("sampling", f"Minibatches of {BATCH} from a replay", "batches/s", SAMPLING),
            ("adding", "Transitions added to a replay", "transitions/s", ADDING),
        ):
            cases = []
            for case, make in makers.items():
                progress.describe(f"replay, {case}")
                cases.append(Case(case, measure_case(make(), rounds, seconds)))
                progress.advance()
            benchmarks.append(
                Benchmark(
                    topic="replay",
                    name=name,
                    title=title,
                    unit=unit,
                    about="One thread. CartPole-like: 4 float32 observations; CAGE2-like: 52; frames: 4x84x84 uint8."
                    if name == "sampling"
                    else "One thread. CartPole-like: 4 float32 observations; CAGE2-like: 52.",
                    cases=tuple(cases),
                    ours=OURS,
                    left_out=missing,
                )
            )
    return benchmarks
