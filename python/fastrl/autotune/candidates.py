"""The ways to collect experience that a machine has room for."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from fastrl.autotune.race import Way, doubling
from fastrl.collectors.factory import choose, is_native
from fastrl.collectors.probe import Probe
from fastrl.collectors.protocol import Plan
from fastrl.runs.errors import TrainError
from fastrl.runs.metrics import counted

# Most workers where steps sleep; others have no more than cores.
_MOST_WORKERS = 64
# Collectors with several workers, and the word for a worker.
_WORKERS = {"sync": "worker", "executor": "worker", "native": "thread"}
_KIND, _COUNT = "collect.collector", "collect.n_workers"


def kinds_for(plan: Plan) -> list[str]:
    """The collectors that suit a plan and are worth measuring."""
    if plan.env.is_vector:
        return ["vector"]
    if plan.env.is_local:
        return ["sequential"]
    if is_native(plan.env) and plan.obs_rows.dtype == np.float32:
        return ["native"]
    return ["sequential", "executor", "sync"]


def collector_way(kind: str, workers: int, fixed: Collection[str] = ()) -> Way:
    """A collector with so many workers, if it has several; without the settings that are fixed."""
    values = {_KIND: kind, _COUNT: workers if kind in _WORKERS else "auto"}
    label = f"{kind}, {counted(workers, _WORKERS[kind])}" if kind in _WORKERS else kind
    return Way(label, {key: values[key] for key in values if key not in fixed}, workers * (kind in _WORKERS))


def candidates(
    plan: Plan, collect: Any, probe: Probe, *, fixed: Collection[str], num_cores: int
) -> list[Way]:
    """The ways to collect, the run's own first, then the most promising.

    Args:
        collect: settings, a `fastrl.sources.rollouts.CollectConfig`.
        probe: of the environment.
        fixed: dotted keys of settings that keep their values.

    Raises:
        TrainError: there is nothing that can be measured.
    """
    kinds, kind = kinds_for(plan), collect.collector
    useful = plan.episodes if plan.unit == "episodes" else plan.num_envs
    workers = min(num_cores, useful) if collect.n_workers == "auto" else collect.n_workers
    if kind == "auto":
        kind = choose(plan, n_workers=collect.n_workers, measure=lambda: probe).name
    counts = doubling(min(useful, _MOST_WORKERS if probe.sleeps else num_cores))
    if _COUNT in fixed:
        counts = [workers]
        if collect.n_workers != "auto":
            kinds = [each for each in kinds if each in _WORKERS] or kinds
    if _KIND in fixed:
        if kind == "ray":
            raise TrainError("--collector ray: nothing is measured on a cluster; leave it out")
        if kind == "live":
            raise TrainError("--collector live: nothing is measured of a live simulation; choose another one")
        kinds = [kind]
    found = [
        (kind, count)
        for kind in kinds
        for count in (counts if kind in _WORKERS else [1])
        # `sync` with one worker does the same as `executor` with one, with messages for each step.
        if (kind, count) != ("sync", 1) or len(kinds) == 1
    ]
    target = useful if probe.sleeps else num_cores
    found.sort(key=lambda each: abs(math.log2(each[1] / target)))
    present = (kind, workers if kind in _WORKERS else 1)
    if kind in kinds:
        found = [present, *(each for each in found if each != present)]
    return [collector_way(*each, fixed) for each in found]
