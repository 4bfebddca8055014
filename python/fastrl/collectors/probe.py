"""Measures an environment: the time of its steps, their unevenness, and the memory of a process with one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from fastrl.collectors.failures import last_line
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.resources import MIB, memory_of
from fastrl.collectors.team_spec import TeamSpec
from fastrl.envs import contract
from fastrl.envs.spec import ElsewhereError, unpickle
from fastrl.networks.compiled_actor import masks_by_number
from fastrl.utils import processes
from fastrl.utils.seeding import NO_ENV, env_seed

# Environments that step in lockstep wait for the slowest; `Probe.unevenness` is for so many of them.
TOGETHER = 8

# Seconds of stepping; building the environment, and one step, may take much longer.
MEASURE_S = 0.5
# As far as it decides whether a short run is worth other processes.
QUICK_S = 0.01
MAX_STEPS = 5000
TIMEOUT_S = 120.0

# Share of the slowest steps that are left out: other programs delayed them.
_DISTURBED = 0.005
# An environment sleeps if it waits so often in a step, and computes for no more than this share of its time.
_WAITS, _BUSY = 0.2, 0.7


class UnbuildableError(CollectError):
    """The environment can be built in this process only; the message says how others could build it."""


@dataclass(frozen=True)
class Probe:
    """Results of a probe.

    Attributes:
        step_seconds: mean time of a step, resets included, each as often as episodes ended.
        unevenness: mean time of the slowest of `TOGETHER` steps over the mean time of a step; at least 1.
        memory: bytes that a process takes with one environment and an actor.
        sleeps: steps wait for something else than a core, such as another machine.
    """

    step_seconds: float
    unevenness: float
    memory: int
    sleeps: bool = False


def probe(plan: Plan, start_method: str = "spawn") -> Probe:
    """Builds the plan's environment in a process of its own, and steps it for half a second, with random actions.

    Raises:
        UnbuildableError: other processes cannot build it, but this one might.
        CollectError: it cannot be built or stepped, it has other spaces than the plan, or takes longer than 2 minutes.
        TypeError: the plan does not pickle.
    """
    from fastrl.utils.child_process import Child

    try:
        payload = pickle.dumps(plan)
    except Exception as error:
        raise TypeError(f"the plan does not pickle, so other processes cannot run it: {error}") from error
    child = Child.worker(multiprocessing.get_context(start_method), _work, payload, name="probe")
    try:
        result = (
            child.pipe.recv() if child.pipe.poll(TIMEOUT_S) else (f"no answer within {TIMEOUT_S:g} s", "")
        )
    except EOFError:
        child.wait()
        result = (child.cause, "")
        if child.code == processes.EXIT_UNGUARDED:
            raise UnbuildableError(child.cause) from None
    finally:
        child.pipe.close()
        child.kill()
    if isinstance(result, Probe):
        return result
    if isinstance(result, ElsewhereError):
        raise UnbuildableError(str(result))
    cause, trace = result
    # An error about its interface or spaces names the environment already.
    said = cause if plan.env.id in cause else f"{plan.env.id} cannot be stepped: {cause}"
    raise CollectError(f"{said}\n\n{trace}".rstrip(), trace)


def summary(
    step_seconds: NDArray[np.float64], reset_seconds: float, memory: int, *, sleeps: bool = False
) -> Probe:
    """Probe of the times of K steps in order, float64 [K], and of all resets together."""
    quiet = step_seconds[step_seconds <= np.quantile(step_seconds, 1 - _DISTURBED)]
    mean = float(quiet.mean())
    groups = quiet[: len(quiet) // TOGETHER * TOGETHER].reshape(-1, TOGETHER)
    slowest = float(groups.max(1).mean()) if len(groups) else mean
    return Probe(mean + reset_seconds / len(step_seconds), slowest / max(mean, 1e-9), memory, sleeps)


def _work(payload: bytes, sender: Connection) -> None:
    """Target of the probing process."""
    processes.init_worker()
    try:
        result: Any = measure(unpickle(payload))
    except (CollectError, contract.ContractError) as error:
        result = (str(error), "")
    except ElsewhereError as error:
        result = error
    except BaseException:  # an environment that calls sys.exit() fails, too
        trace = traceback.format_exc()
        result = (last_line(trace), trace)
    sender.send(result)
    sender.close()


def measure(plan: Plan) -> Probe:
    """Steps the plan's environment in this process."""
    # Checks the spaces, and makes the actor.
    runner = LocalRunner(plan, [plan.first_env])
    runner.build()
    runner.close()
    env: Any = _Team(plan) if isinstance(plan.env, TeamSpec) else _Single(plan)
    waits, cpu, began = _waits(), process_time(), perf_counter()
    times, resets = _timed(env, plan.seed, MEASURE_S)
    # A step that never waits takes longer than it computes only where other programs have its core.
    sleeps = _waits() - waits >= _WAITS * len(times)
    sleeps = sleeps and process_time() - cpu <= _BUSY * (perf_counter() - began)
    [mib] = memory_of([os.getpid()])
    env.close()
    return summary(np.array(times), resets, int(mib * MIB), sleeps=sleeps)


def quick_step_seconds(plan: Plan) -> float:
    """Mean time of a few steps of a single agent's environment, in this process, resets included.

    Raises:
        Exception: what the environment raises.
    """
    env = _Single(plan)
    try:
        times, resets = _timed(env, plan.seed, QUICK_S)
    finally:
        env.close()
    return (sum(times) + resets) / len(times)


def _timed(env: Any, seed: int, seconds: float) -> tuple[list[float], float]:
    """Steps an environment with random actions; returns the seconds of each step, and those of all resets."""
    times: list[float] = []
    resets, number, over = 0.0, 0, True
    end = perf_counter() + seconds
    while len(times) < MAX_STEPS and (perf_counter() < end or len(times) < 2):
        if over:
            start = perf_counter()
            env.reset(env_seed(seed, NO_ENV, number))
            resets += perf_counter() - start
            number += 1
        action = env.sample()
        start = perf_counter()
        over = env.step(action)
        times.append(perf_counter() - start)
    return times, resets


class _Single:
    """A single agent's environment, stepped with random actions; `step` returns whether the episode is over."""

    def __init__(self, plan: Plan) -> None:
        self.env = plan.env.make()
        self.env.action_space.seed(plan.seed % 2**31)
        self.close = self.env.close
        row_space = plan.obs_rows.row_space
        self.form = contract.obs_form(plan.env.id, row_space.shape, row_space.dtype)
        self._plan, self._info = plan, dict[str, Any]()
        self._mask_method = contract.mask_method(self.env) if plan.action_masks else None

    def sample(self) -> Any:
        plan, space = self._plan, self.env.action_space
        if not plan.action_masks:
            return space.sample()
        mask = contract.action_mask(plan.env.id, self._mask_method, self._info, plan.num_masked)
        return _sample_allowed(space, mask, plan.actions.nvec)

    def reset(self, seed: int) -> None:
        _, self._info = contract.reset(self.env, self.form, seed)

    def step(self, action: Any) -> bool:
        _, _, terminated, truncated, self._info = contract.step(self.env, self.form, action)
        return terminated or truncated


class _Team:
    """An environment of many agents, like `_Single`."""

    def __init__(self, plan: Plan) -> None:
        assert isinstance(plan.env, TeamSpec), "it is of many agents"
        self.env = plan.env.make_team(1, workers=1, action_masks=plan.action_masks)
        self.close = self.env.close
        self._plan, self.space, self.size = plan, plan.action_space, self.env.num_agents
        self.space.seed(plan.seed % 2**31)

    def sample(self) -> NDArray[Any]:
        plan, space = self._plan, self.space
        if not plan.action_masks:
            return np.array([[space.sample() for _ in range(self.size)]], space.dtype)
        masks = self.env.action_masks().reshape(self.size, -1)
        return np.array([[_sample_allowed(space, mask, plan.actions.nvec) for mask in masks]], space.dtype)

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)

    def step(self, actions: NDArray[Any]) -> bool:
        return not self.env.step(actions)[4].any()


def _sample_allowed(space: gymnasium.Space[Any], mask: NDArray[np.bool_], nvec: NDArray[np.int64]) -> Any:
    """An action that a mask, bool [sum of ``nvec``], allows."""
    masks = masks_by_number(mask.astype(np.int8), nvec)
    return space.sample(masks[0] if isinstance(space, Discrete) else tuple(masks))


def _waits() -> int:
    """Times that this thread has given up its core to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else 0
