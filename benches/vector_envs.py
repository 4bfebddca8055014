"""Vector environments: fastrl's compiled ones beside their originals, and processes beside other libraries'.

Actions are drawn beforehand. Resets and observations are part of a step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from fastrl.envs import Cage2GameVectorEnv, Cage2VectorEnv, ProcessVectorEnv
from fastrl.utils.progress import Progress
from results import Benchmark, Case
from rounds import measure_in_turns, rate

CARTS = 8
ACTIONS = 1000
# Contenders that make a few steps a second are measured so much longer.
SLOW = 4

# Calls `step` for some seconds and returns environment steps per second.
Measure = Callable[[float], float]


def stepped(env: Any, num_envs: int, at_once: int = 100) -> Measure:
    """Steps a vector environment by random actions of its own space."""
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(ACTIONS)])
    env.reset(seed=0)

    def some() -> int:
        for row in itertools.islice(actions, at_once):
            env.step(row)
        return at_once * num_envs

    return functools.partial(rate, some)


def played(env: Any, at_once: int = 1) -> Measure:
    """Steps a single environment, and resets it where an episode ends."""
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(ACTIONS)])
    env.reset(seed=0)

    def some() -> int:
        for action in itertools.islice(actions, at_once):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return at_once

    return functools.partial(rate, some)


class Cage2Steps:
    """Steps CAGE 2 in place, with arrays that are allocated once."""

    def __init__(
        self,
        num_envs: int,
        red_agent: str = "bline",
        num_threads: int = 1,
        make: Callable[..., Any] = Cage2VectorEnv,
    ) -> None:
        self._env = make(num_envs, red_agent=red_agent, num_threads=num_threads, autoreset_mode="same_step")
        self._actions = np.random.default_rng(0).integers(145, size=(128, num_envs))
        shape = self._env.single_observation_space.shape
        self._obs, self._final_obs = np.empty((2, num_envs, *shape), np.float32)
        self._rewards = np.empty(num_envs, np.float32)
        self._terminations, self._truncations = np.empty((2, num_envs), np.bool_)
        self._env.reset_into(self._obs, seed=0)

    def measure(self, seconds: float) -> float:
        return rate(self._steps, seconds)

    def _steps(self) -> int:
        for actions in self._actions:
            self._env.step_into(
                actions, self._obs, self._rewards, self._terminations, self._truncations, self._final_obs
            )
        return self._actions.size


class Cage2GameSteps:
    """Steps CAGE 2 with both sides' actions given, as `Cage2Steps`."""

    def __init__(self, num_envs: int) -> None:
        self._env = Cage2GameVectorEnv(num_envs, num_threads=1)
        rng, rows = np.random.default_rng(0), 2 * num_envs
        # Red's actions are drawn among its 56.
        self._actions = rng.integers([145, 56], size=(128, num_envs, 2)).reshape(128, rows)
        self._obs, self._final_obs = np.empty(
            (2, rows, *self._env.single_observation_space.shape), np.float32
        )
        self._rewards = np.empty(rows, np.float32)
        self._terminations, self._truncations, self._alive = np.empty((3, rows), np.bool_)
        self._env.reset_into(self._obs, self._alive, seed=0)

    def measure(self, seconds: float) -> float:
        return rate(self._steps, seconds)

    def _steps(self) -> int:
        for actions in self._actions:
            self._env.step_into(
                actions,
                self._obs,
                self._rewards,
                self._terminations,
                self._truncations,
                self._alive,
                self._final_obs,
            )
        return self._actions.size // 2


def cyborg() -> Measure | None:
    """The real CybORG with its wrapper of the challenge; None where it cannot be imported."""
    try:
        module = importlib.import_module("CybORG")
        agents = importlib.import_module("CybORG.Agents")
        wrappers = importlib.import_module("CybORG.Agents.Wrappers")
    except ImportError:
        return None
    if not hasattr(wrappers, "ChallengeWrapper"):
        return None  # It is the CybORG of another challenge.
    scenario = Path(str(module.__file__)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    game = wrappers.ChallengeWrapper(
        env=module.CybORG(str(scenario), "sim", agents={"Red": agents.B_lineAgent}), agent_name="Blue"
    )
    actions = np.random.default_rng(0).integers(145, size=100).tolist()

    def episode() -> int:
        game.reset()
        for action in actions:
            game.step(action)
        return len(actions)

    return functools.partial(rate, episode)


def cage2_contenders() -> tuple[dict[str, Measure], dict[str, str]]:
    """Contenders, and the reason for each that is left out."""
    contenders: dict[str, Measure] = {
        f"fastrl, {n:,} at a time": Cage2Steps(n).measure for n in (1, 64, 4096)
    }
    theirs = cyborg()
    if theirs is None:
        return contenders, {"CybORG": "not installed: it is a checkout of cage-challenge/cage-challenge-2"}
    return contenders | {"CybORG": theirs}, {}


def highway_contenders(env_id: str) -> tuple[dict[str, Measure], dict[str, str]]:
    """Contenders, as of `cage2_contenders`, of an environment that highway-env has under the same id."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    contenders = {
        "fastrl, gymnasium.make": played(gymnasium.make(f"fastrl/{env_id}"), 100),
        "fastrl, gymnasium.make_vec, 64": stepped(
            gymnasium.make_vec(f"fastrl/{env_id}", 64, num_threads=1), 64
        ),
    }
    try:
        gymnasium.register_envs(importlib.import_module("highway_env"))
    except ImportError:
        return contenders, {"highway-env": "not installed: pip install highway-env==1.12.1"}
    measure = played(gymnasium.make(env_id))
    return contenders | {"highway-env": lambda seconds: measure(SLOW * seconds)}, {}


def make_cart() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


@contextlib.contextmanager
def cart_contenders() -> Iterator[tuple[dict[str, Measure], dict[str, str]]]:
    """Contenders of eight CartPoles, as of `cage2_contenders`, in processes unless the name says otherwise."""
    makers: dict[str, Callable[[], Any]] = {
        f"fastrl ProcessVectorEnv, {workers} worker{'s' if workers > 1 else ''}": functools.partial(
            ProcessVectorEnv, "CartPole-v1", CARTS, workers, start_method="forkserver"
        )
        for workers in (1, 2)
    }
    makers["gymnasium AsyncVectorEnv(shared_memory=True)"] = lambda: AsyncVectorEnv(
        [make_cart] * CARTS, shared_memory=True
    )
    makers["gymnasium SyncVectorEnv, no processes"] = lambda: SyncVectorEnv([make_cart] * CARTS)
    missing = {}
    try:
        from stable_baselines3.common.vec_env import SubprocVecEnv
    except ImportError:
        missing["Stable-Baselines3 SubprocVecEnv"] = "not installed: pip install stable-baselines3"
    else:
        makers["Stable-Baselines3 SubprocVecEnv"] = lambda: SubprocVecEnv([make_cart] * CARTS)
    actions = np.random.default_rng(0).integers(0, 2, (ACTIONS, CARTS))
    with contextlib.ExitStack() as stack:
        measures: dict[str, Measure] = {}
        for name, make in makers.items():
            env = stack.enter_context(contextlib.closing(make()))
            env.reset()
            measures[name] = functools.partial(_stepped_carts, env, itertools.cycle(actions))
        yield measures, missing


def _stepped_carts(env: Any, actions: Iterator[Any], seconds: float) -> float:
    def hundred() -> int:
        for row in itertools.islice(actions, 100):
            env.step(row)
        return 100 * CARTS

    return rate(hundred, seconds)


def measure_case(contenders: dict[str, Measure], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Steps per second in each round, by contender; a first short run is not counted."""
    for measure in contenders.values():
        measure(seconds / 10)
    calls = {name: functools.partial(measure, seconds) for name, measure in contenders.items()}
    return measure_in_turns(calls, rounds)


def measure(rounds: int, seconds: float, progress: Progress) -> list[Benchmark]:
    """Environment steps a second of CAGE 2, a highway, and CartPole in processes."""
    compiled = []
    with contextlib.ExitStack() as stack:
        for name, title, about, make in (
            ("cage2", "CAGE Challenge 2, B_line", "One thread, random actions.", cage2_contenders),
            (
                "highway",
                "highway-fast-v0",
                "One thread, random actions.",
                functools.partial(highway_contenders, "highway-fast-v0"),
            ),
            (
                "processes",
                f"CartPole-v1, {CARTS} environments",
                "Environments in Python, stepped together.",
                lambda: stack.enter_context(cart_contenders()),
            ),
        ):
            progress.describe(f"envs, {title}")
            contenders, missing = make()
            rates = measure_case(contenders, rounds, seconds)
            compiled.append(
                Benchmark(
                    topic="envs",
                    name=name,
                    title=title,
                    unit="steps/s",
                    about=about,
                    cases=(Case(title, rates),),
                    ours=tuple(each for each in rates if each.startswith("fastrl")),
                    left_out=missing,
                )
            )
            progress.advance()
    return compiled
