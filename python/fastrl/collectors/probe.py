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

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.env_runner import EnvRunner
from fastrl.collectors.failures import last_line
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.resources import MIB, memory_of
from fastrl.envs import contract
from fastrl.envs.spec import ElsewhereError, unpickle
from fastrl.utils import processes
from fastrl.utils.seeding import NO_ENV, env_seed

# Environments that step in lockstep wait for the slowest; `Probe.unevenness` is for so many of them.
TOGETHER = 8

# Seconds of stepping; building the environment, and one step, may take much longer.
MEASURE_S = 0.5
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
    context: Any = multiprocessing.get_context(start_method)
    try:
        payload = pickle.dumps(plan)
    except Exception as error:
        raise TypeError(f"the plan does not pickle, so other processes cannot run it: {error}") from error
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(payload, sender), name="probe")
    with processes.starting_workers():
        process.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(TIMEOUT_S) else (f"no answer within {TIMEOUT_S:g} s", "")
    except EOFError:
        process.join()
        result = (processes.exit_cause(process.exitcode), "")
        if process.exitcode == processes.EXIT_UNGUARDED:
            raise UnbuildableError(result[0]) from None
    finally:
        receiver.close()
        process.kill()
        process.join()
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
    """From the times of K steps in order, float64 [K], and of all resets together."""
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
    runner = EnvRunner(plan, [0])
    runner.build()
    runner.close()
    env, form = plan.env.make(), runner.form
    env.action_space.seed(plan.seed % 2**31)
    times: list[float] = []
    resets, number, over = 0.0, 0, True
    waits, cpu, began = _waits(), process_time(), perf_counter()
    end = began + MEASURE_S
    while len(times) < MAX_STEPS and (perf_counter() < end or len(times) < 2):
        if over:
            start = perf_counter()
            contract.reset(env, form, env_seed(plan.seed, NO_ENV, number))
            resets += perf_counter() - start
            number += 1
        action = env.action_space.sample()
        start = perf_counter()
        _, _, terminated, truncated, _ = contract.step(env, form, action)
        times.append(perf_counter() - start)
        over = terminated or truncated
    # A step that never waits takes longer than it computes only where other programs have its core.
    sleeps = _waits() - waits >= _WAITS * len(times)
    sleeps = sleeps and process_time() - cpu <= _BUSY * (perf_counter() - began)
    [mib] = memory_of([os.getpid()])
    env.close()
    return summary(np.array(times), resets, int(mib * MIB), sleeps=sleeps)


def _waits() -> int:
    """Times that this thread has given up its core to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else 0
