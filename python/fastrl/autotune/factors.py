"""Settings that are tried one after the other, with their other values."""

from collections.abc import Collection
from operator import attrgetter
from typing import Any

from fastrl.autotune.race import Way, doubling
from fastrl.training.task import Task
from fastrl.utils.config import ConfigError, leaves
from fastrl.utils.names import suggestion

# What may change only if it is named, as it changes what is learnt. {} is the algorithm's table.
_LEARNING = {
    "num-envs": ("env.num_envs",),
    "batch-size": ("{}.minibatch_size", "{}.batch_size"),
    "updates-per-step": ("replay.updates_per_step",),
    "precision": ("{}.precision",),
}
_MULTIPLES = {"num-envs": (2, 4), "batch-size": (2, 4), "updates-per-step": (0.5,)}
MAY_CHANGE = tuple(_LEARNING)

# Threads of PyTorch in the learner.
THREADS = "run.torch_threads"

# Processes or threads of runs that have no collectors; 0 and "auto" mean one a core.
_WORKERS = "env.n_workers"


def check_may_change(names: Collection[str]) -> None:
    """Refuses names of what cannot be given free.

    Raises:
        ConfigError
    """
    for name in names:
        if name not in MAY_CHANGE:
            raise ConfigError(f"--may-change: unknown name {name}; {suggestion(name, MAY_CHANGE)}")


def factors_of(
    task: Task,
    settings: Any,
    *,
    may_change: Collection[str] = (),
    fixed: Collection[str] = (),
    num_cores: int,
    has_gpu: bool,
    has_collectors: bool,
) -> list[list[Way]]:
    """The settings to try, each with its values, the run's own first.

    Args:
        may_change: of `MAY_CHANGE`.
        fixed: dotted keys of settings that keep their values.
        has_gpu: the learner may compute on one.
        has_collectors: they and their workers are chosen elsewhere.
    """
    known, table = leaves(type(settings)), task.algorithm_table(settings.run.algo)
    found: list[tuple[str, list[Any]]] = []
    if has_gpu:
        overlaps = ["on", "off"] if getattr(getattr(settings, "replay", None), "overlap", False) else []
        # Small networks are faster on a CPU.
        found += [("run.device", ["cpu"]), (f"{table}.compile", [True]), ("replay.prefetch", overlaps)]
    for name in MAY_CHANGE:
        for key in (key.format(table) for key in _LEARNING[name] if name in may_change):
            if key not in known or (present := attrgetter(key)(settings)) is None:
                continue
            if name == "precision":
                found.append((key, ["bf16"] if has_gpu else []))
            else:
                found.append((key, [type(present)(present * each) for each in _MULTIPLES[name]]))
    counts = doubling(num_cores)
    if not has_collectors:
        most = min(num_cores, getattr(settings.env, "num_envs", None) or num_cores)
        found.append((_WORKERS, [count for count in counts if count <= most]))
    found.append((THREADS, counts))
    factors = []
    for key, values in found:
        if key not in known or key in fixed:
            continue
        present = attrgetter(key)(settings)
        if others := [value for value in values if value != present]:
            factors.append([_way(key, value, i) for i, value in enumerate([present, *others])])
    return factors


def _way(key: str, value: Any, effort: int) -> Way:
    """A way to run that differs in one setting."""
    return Way(f"{key} {str(value).lower() if isinstance(value, bool) else value}", {key: value}, effort)
