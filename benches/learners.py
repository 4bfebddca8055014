"""The contenders of benches of off-policy learning, gradient steps and whole loops.

Each has a process of its own on one core, so that none has the other's threads and settings of memory. They import what
they need: RLtools with MKL refuses a process that has PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

# Takes a number of steps, and returns it.
Advance = Callable[[], int]


@dataclass(frozen=True)
class Sizes:
    """The network and the minibatches of a gradient step."""

    obs: int
    actions: Space[Any]
    width: int
    batch: int
    steps: int  # in a round


HALF_CHEETAH = Sizes(17, Box(-1, 1, (6,), np.float32), 256, 256, 40)
SIZES = {"sac": HALF_CHEETAH, "td3": HALF_CHEETAH, "dqn": Sizes(8, Discrete(4), 64, 64, 400)}
STORED = 5_000  # transitions that minibatches are drawn from
PENDULUM_WIDTH, PENDULUM_BATCH, PENDULUM_STEPS = 64, 100, 300

LIBRARIES = {"Stable-Baselines3": "stable_baselines3", "sbx": "sbx"}
PEERS = {
    "Stable-Baselines3": ("stable-baselines3",),
    "sbx": ("sbx-rl",),
    "RLtools": ("rltools", "mkl", "mkl-include"),
}


def missing(peers: Sequence[str]) -> dict[str, str]:
    """Those of some peers that are not installed, with the reason."""
    installed = {each.name.lower().replace("_", "-") for each in metadata.distributions()}
    return {
        name: f"not installed: pip install {' '.join(PEERS[name])}"
        for name in peers
        if not installed.issuperset(PEERS[name])
    }


def measured(
    contenders: Mapping[str, tuple[str, Mapping[str, Any]]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The rates of contenders in turns, steps per second of processor time; and the peers that were left out, with the
    reason.

    Args:
        contenders: by the name of a result, that of `CONTENDERS` and its arguments.
    """
    from rounds import measure_in_turns

    left_out = missing([name for name in contenders if name in PEERS])
    with contextlib.ExitStack() as stack:
        measures = {
            name: stack.enter_context(contender(function, **options))
            for name, (function, options) in contenders.items()
            if name not in left_out
        }
        return measure_in_turns(measures, rounds), left_out


def gradient_steps(algorithm: str, ours: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Contenders for `measured`: ours, by name and with their settings, and the peers' of an algorithm."""
    own = {name: ("our gradient steps", {"algorithm": algorithm, **each}) for name, each in ours.items()}
    peers = {
        name: ("their gradient steps", {"algorithm": algorithm, "library": library})
        for name, library in LIBRARIES.items()
    }
    return {**own, **peers}


@contextlib.contextmanager
def contender(name: str, **options: Any) -> Iterator[Callable[[], float]]:
    """A function that measures a round: steps per second of processor time.

    Args:
        name: of `CONTENDERS`, and its arguments.

    Raises:
        RuntimeError: by the function: the contender has failed.
    """
    command = [sys.executable, __file__, name, json.dumps(options)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=os.environ | threads
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def measure() -> float:
            with contextlib.suppress(BrokenPipeError):
                requests.write("\n")
                requests.flush()
            if not (answer := answers.readline()):
                log.seek(0)
                raise RuntimeError(f"{name} {options} has failed: {log.read()[-2000:]}")
            return float(answer)

        yield measure


class Noise(gymnasium.Env[Any, Any]):
    """An environment whose observations are noise."""

    def __init__(self, sizes: Sizes) -> None:
        self.observation_space = Box(-np.inf, np.inf, (sizes.obs,), np.float32)
        self.action_space = sizes.actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), np.float32), {}

    def step(self, action: Any) -> Any:
        obs = self.np_random.normal(size=self.observation_space.shape).astype(np.float32)
        return obs, 0.0, False, False, {}


def our_gradient_steps(algorithm: str, **settings: Any) -> Advance:
    from fastrl.algorithms import find
    from fastrl.algorithms.protocol import Problem
    from fastrl.replay import Replay
    from fastrl.sources.minibatches import make_sampler
    from fastrl.utils.timer import Stopwatch

    sizes, kind = SIZES[algorithm], find(algorithm)
    env = Noise(sizes)
    config = kind.config_type(hidden=(sizes.width,) * 2, batch_size=sizes.batch, **settings)
    learner: Any = kind(config, Problem(env.observation_space, env.action_space, 1, 100))
    actions = env.action_space
    shape, dtype = ((), np.int64) if isinstance(actions, Discrete) else (actions.shape or (), np.float32)
    replay = Replay(4 * STORED, (sizes.obs,), np.float32, action_shape=shape, action_dtype=dtype)
    obs, _ = env.reset(seed=0)
    for _ in range(STORED):
        action = actions.sample()
        next_obs, *_ = env.step(action)
        replay.add(obs, action, 0.0, next_obs, False, False)
        obs = next_obs
    sampler, watch = make_sampler(learner.replay_spec(), replay, 0), Stopwatch()
    most = 1 if learner.replay_spec().prioritized else learner.minibatches_at_once
    counts = [min(most, sizes.steps - done) for done in range(0, sizes.steps, most)]

    def advance() -> int:
        for count in counts:
            learner.update(sampler.sample() if count == 1 else sampler.sample_several(count), watch)
        return sizes.steps

    return advance


def their_gradient_steps(library: str, algorithm: str) -> Advance:
    """Those of Stable-Baselines3 or of sbx, which takes the steps of a round in one call of compiled code."""
    from stable_baselines3.common.logger import Logger

    sizes = SIZES[algorithm]
    model = getattr(importlib.import_module(library), algorithm.upper())(
        "MlpPolicy",
        Noise(sizes),
        device="cpu",
        buffer_size=4 * STORED,
        batch_size=sizes.batch,
        policy_kwargs={"net_arch": [sizes.width] * 2},
        learning_starts=2 * STORED,
    )
    model.learn(STORED)
    model.set_logger(Logger(None, []))

    def advance() -> int:
        model.train(sizes.steps, sizes.batch)
        return sizes.steps

    return advance


def our_pendulum(compiled: bool = False) -> Advance:
    """SAC on Gymnasium's environment, or on the compiled one."""
    import fastrl

    own: dict[str, Any] = {"run__row_seconds": 0.5, "run__eval_episodes": 0, "device": "cpu"}
    model = fastrl.SAC(
        "fastrl/Pendulum-v1" if compiled else "Pendulum-v1",
        num_envs=1,
        collector="native" if compiled else "sequential",
        hidden=[PENDULUM_WIDTH] * 2,
        batch_size=PENDULUM_BATCH,
        replay={"capacity": 100_000, "learning_starts": PENDULUM_BATCH, "updates_per_step": 1.0},
        run__total_timesteps=10**7,
        **own,
    )
    trainer = model.trainer
    rows = iter(trainer.rows())

    def advance() -> int:
        before = trainer.steps
        while trainer.steps < before + PENDULUM_STEPS:
            next(rows)
        return int(trainer.steps - before)

    return advance


def their_pendulum(library: str) -> Advance:
    model = importlib.import_module(library).SAC(
        "MlpPolicy",
        "Pendulum-v1",
        device="cpu",
        buffer_size=100_000,
        batch_size=PENDULUM_BATCH,
        policy_kwargs={"net_arch": [PENDULUM_WIDTH] * 2},
        learning_starts=PENDULUM_BATCH,
    )

    def advance() -> int:
        model.learn(PENDULUM_STEPS, reset_num_timesteps=False)
        return PENDULUM_STEPS

    return advance


def rltools_pendulum() -> Advance:
    """SAC in C++, which is compiled when it is first run, on Gymnasium's environment."""
    import rltools  # type: ignore[import-not-found, unused-ignore]
    from gymnasium.wrappers import RescaleAction

    def make_env() -> Any:
        env: Any = RescaleAction(gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(1))
        env.reset(seed=0)
        return env

    sac = rltools.SAC(
        make_env,
        interface_name="fastrl_bench",
        enable_evaluation=False,
        STEP_LIMIT=10**7,
        REPLAY_BUFFER_CAP=100_000,
        ACTOR_BATCH_SIZE=PENDULUM_BATCH,
        CRITIC_BATCH_SIZE=PENDULUM_BATCH,
        # With the layer of outputs.
        ACTOR_NUM_LAYERS=3,
        CRITIC_NUM_LAYERS=3,
        ACTOR_HIDDEN_DIM=PENDULUM_WIDTH,
        CRITIC_HIDDEN_DIM=PENDULUM_WIDTH,
    )
    state = sac.State(0)

    def advance() -> int:
        for _ in range(PENDULUM_STEPS):
            state.step()
        return PENDULUM_STEPS

    return advance


CONTENDERS: dict[str, Callable[..., Advance]] = {
    "our gradient steps": our_gradient_steps,
    "their gradient steps": their_gradient_steps,
    "our pendulum": our_pendulum,
    "their pendulum": their_pendulum,
    "RLtools' pendulum": rltools_pendulum,
}


def main(name: str, options: str) -> None:
    """Answers each line with the speed of a round."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # Libraries print to where answers go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    advance = CONTENDERS[name](**json.loads(options))
    advance()
    for _ in sys.stdin:
        start = time.process_time()
        steps = advance()
        print(steps / (time.process_time() - start), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
