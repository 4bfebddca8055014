"""Collectors by name, and the choice of the one that suits an environment.

``auto`` chooses, in this order:

1. ``vector``, if the environment is a vector environment of the user's own;
2. ``ray``, if an address of a cluster is given;
3. ``sequential``, if no other process can build the environment, such as a function of a notebook;
4. ``native``, if the environment is one of fastrl's compiled ones; of others of many agents ``executor``, if there is
   to be more than one worker, else ``sequential``;
5. ``sequential``, if there is one worker, or the whole run has at most `SHORT_STEPS` steps and takes less than
   `SHORT_SECONDS`, before processes have started, or an update's worth of steps takes less than `WORTH_SECONDS`, as
   processes then cost as much time as they save; and if no other process finds the environment, such as one that is
   registered in a notebook;
6. ``executor`` otherwise.

For the last two the environment is stepped for half a second in a process of its own (`fastrl.collectors.probe`), for a
short run first for some milliseconds in this process. ``sync`` is not chosen: the executor was faster even with steps
as cheap and even as CartPole's, and its lead grows with their unevenness. Nor is ``live``, which never waits for the
learner.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastrl.collectors.probe import TOGETHER, Probe, UnbuildableError, probe, quick_step_seconds
from fastrl.collectors.protocol import CollectError, Collector, Plan
from fastrl.collectors.resources import WorkerCount, check_count, check_start_method, cores
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.vector_backends import compiled_spec, native_spec
from fastrl.envs.spec import EnvSpec

# Import paths of the collectors, each imported when it is first made.
_MAKERS = {
    "sequential": "fastrl.collectors.sequential:sequential_collector",
    "sync": "fastrl.collectors.synchronous:sync_collector",
    "executor": "fastrl.collectors.executor:ExecutorCollector",
    "native": "fastrl.collectors.synchronous:native_collector",
    "ray": "fastrl.collectors.ray_collector:RayCollector",
    "vector": "fastrl.collectors.synchronous:vector_collector",
    "live": "fastrl.collectors.live:LiveCollector",
}
COLLECTORS = tuple(_MAKERS)

# Time of an update's worth of steps in one process from which workers are worth it.
WORTH_SECONDS = 0.01

# Steps of a run that may be over before processes have started, and the seconds that these need.
SHORT_STEPS, SHORT_SECONDS = 20_000, 2.0


class Choice(NamedTuple):
    """A collector's name, and why in a sentence."""

    name: str
    reason: str


def choose(
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    ray_address: str | None = None,
    total_steps: int | None = None,
    measure: Callable[[], Probe] | None = None,
) -> Choice:
    """Chooses the collector that suits the plan's environment on this machine.

    Args:
        total_steps: environment steps that the run still has; None: not known.
        measure: `fastrl.collectors.probe.probe` of the plan, if none is given.

    Raises:
        CollectError: the environment cannot be stepped.
    """
    if plan.env.is_vector:
        return Choice("vector", f"{plan.env.id} is a vector environment, which this process steps")
    if ray_address is not None:
        return Choice("ray", f"an address of Ray was given, {ray_address}")
    if plan.env.is_local:
        return Choice("sequential", f"{plan.env.id} can be built by this process alone")
    if isinstance(plan.env, TeamSpec):
        return _choose_for_team(plan.env, n_workers)
    # Compiled environments write float32, not images.
    if is_native(plan.env) and plan.obs_rows.dtype == np.float32:
        return Choice("native", f"{plan.env.id} is compiled, threads step it without any processes")
    useful = plan.episodes if plan.unit == "episodes" else plan.num_envs
    workers = min(cores(), useful) if n_workers == "auto" else n_workers
    if workers <= 1:
        return Choice("sequential", "there is work or a core for one worker only")
    if total_steps is not None and _is_short(plan, total_steps):
        return Choice("sequential", f"{total_steps:,} steps are over before other processes have started")
    try:
        found = (measure or functools.partial(probe, plan))()
    except UnbuildableError as error:
        return Choice("sequential", str(error))
    steps = plan.num_steps * (plan.episodes if plan.unit == "episodes" else plan.num_envs)
    step = _duration(found.step_seconds)
    if steps * found.step_seconds < WORTH_SECONDS:
        return Choice(
            "sequential",
            f"a step takes {step}, so the {steps} of an update are over before processes could share them",
        )
    return Choice(
        "executor",
        f"a step takes {step}, the slowest of {TOGETHER} {found.unevenness:.1f} times as long, and each of"
        f" {workers} workers runs at its own pace",
    )


def _is_short(plan: Plan, total_steps: int) -> bool:
    """True if the run is over before processes have started, as far as a few steps in this process tell."""
    if total_steps > SHORT_STEPS:
        return False
    try:
        return total_steps * quick_step_seconds(plan) < SHORT_SECONDS
    except (Exception, SystemExit):  # a process of its own steps it next, and explains what is wrong
        return False


def _choose_for_team(spec: TeamSpec, n_workers: WorkerCount) -> Choice:
    if spec.is_compiled:
        return Choice("native", f"{spec.id} is compiled, threads step it without any processes")
    if n_workers in ("auto", 1):
        return Choice(
            "sequential", "this process steps environments of many agents, unless n_workers says otherwise"
        )
    return Choice("executor", f"each of {n_workers} workers runs at its own pace")


def is_native(env: EnvSpec) -> bool:
    """True if an environment is compiled: registered both as a single one and as a compiled vector environment, or of
    many agents."""
    if isinstance(env, TeamSpec):
        return env.is_compiled
    known = native_spec(env.id)
    return known is not None and known.entry_point is not None


def make_collector(
    name: str,
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    task_timeout: float | None = 300.0,
    max_failures: int = 3,
    start_method: str = "forkserver",
    max_pending: int | None = None,
    ray_address: str | None = None,
    total_steps: int | None = None,
    log: Callable[[str], object] | None = None,
    **special: Any,
) -> Collector:
    """Makes a collector.

    Args:
        name: of `COLLECTORS`, or "auto", see `choose`.
        n_workers: processes or actors, or threads of "native"; "auto": one a core, if memory allows them.
        task_timeout: seconds that a task may take in a worker; None: no limit.
        max_failures: failures of workers at the same episode that stop the run.
        start_method: of processes, "spawn" or "forkserver".
        max_pending: for ``take``, fragments that may be running or wait to be taken.
        ray_address: of a Ray cluster.
        total_steps: see `choose`.
        log: called with a sentence that says what "auto" has chosen, and why.
        special: options of the named collector alone.

    Raises:
        ValueError: an unknown name, or an option that this collector does not have or that is out of its range.
        TypeError: the plan does not pickle, or ``n_workers`` is no number.
        CollectError: it cannot start; the message says why.
    """
    check_count(n_workers)
    check_start_method(start_method)
    shared = {
        "n_workers": n_workers,
        "task_timeout": task_timeout,
        "max_failures": max_failures,
        "start_method": start_method,
        "max_pending": max_pending,
        "ray_address": ray_address,
    }
    measure = functools.cache(functools.partial(probe, plan, start_method))
    chosen = name
    if name == "auto":
        chosen, reason = choose(
            plan, n_workers=n_workers, ray_address=ray_address, total_steps=total_steps, measure=measure
        )
        if log is not None:
            log(f"collecting with {chosen!r}: {reason}")
    check_suits(chosen, plan)
    make, known = _maker(chosen), options_of(chosen)
    _check_options(chosen, known, shared, special, auto=name == "auto")
    options: dict[str, Any] = {option: value for option, value in shared.items() if option in known}
    if "measure" in known:
        options["measure"] = lambda: measure().memory
    return make(plan, **options, **special)


def check_suits(name: str, plan: Plan) -> None:
    """Refuses a plan that a collector cannot carry out, without starting anything.

    Raises:
        ValueError: there is no such collector, or it does not step environments of that kind.
        CollectError: "native", and the environment is not compiled.
    """
    if name not in COLLECTORS:
        names = ", ".join(map(repr, COLLECTORS))
        raise ValueError(f"the collector should be {names} or 'auto', got {name!r}")
    if plan.env.is_vector != (name == "vector"):
        raise ValueError(
            f"{plan.env.id} makes a vector environment, which the collector 'vector' steps, not {name!r}"
            if plan.env.is_vector
            else f"the collector 'vector' steps a gymnasium.vector.VectorEnv, {plan.env.id} makes single environments:"
            " choose another collector"
        )
    if name == "vector" and plan.unit == "episodes":
        raise ValueError(
            "a vector environment starts its episodes itself, so that whole episodes cannot be assigned to it: collect"
            " steps"
        )
    if name == "live" and plan.unit == "episodes":
        raise ValueError(
            "a live simulation continues its episodes from one fragment to the next: collect steps, not whole episodes"
        )
    if name == "native" and isinstance(plan.env, TeamSpec):
        if not plan.env.is_compiled:
            raise CollectError(
                f"collecting natively takes an environment that is compiled, such as fastrl/coop-merge-v0, and"
                f" {plan.env.id} is none: choose 'sequential' or 'executor'"
            )
    elif name == "native":
        compiled_spec(plan)
    elif name in ("sync", "executor", "ray", "live") and plan.env.is_local:
        raise ValueError(
            f"{plan.env.id} can be built by this process alone: choose 'sequential', or give the import path of a"
            " function at the top of a module, 'my_module:make_env'"
        )


def _maker(name: str) -> Callable[..., Collector]:
    module, _, attribute = _MAKERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def options_of(name: str) -> set[str]:
    """Names of the options that a collector has."""
    return set(inspect.signature(_maker(name)).parameters) - {"plan"}


def _check_options(
    name: str, known: set[str], shared: Mapping[str, Any], special: Mapping[str, Any], *, auto: bool
) -> None:
    """Refuses options that a collector does not have."""
    defaults = {
        option: parameter.default
        for option, parameter in inspect.signature(make_collector).parameters.items()
    }
    # The collector that "auto" chooses need not have all shared options.
    given = set() if auto else {option for option, value in shared.items() if value != defaults[option]}
    for option in sorted((given | set(special)) - known):
        raise ValueError(
            f"the collector {name!r} has no option {option}, its options are: {', '.join(sorted(known - {'measure'}))}"
        )


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
