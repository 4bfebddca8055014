"""Candidates compared when settings are measured for the machine, their results, and the reasons for the choice."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.training.metrics import counted
from fastrl.training.speed_model import Kind, Load
from fastrl.utils.config import Values
from fastrl.utils.tables import print_lines
from fastrl.utils.tables import show as show_parts

# A way to run is as good as another one if it reaches this share of its speed: the simpler one is chosen.
_AS_GOOD = 0.98
# Rows of the table.
_SHOWN = 14

# Collectors that have several workers, processes or threads.
WITH_WORKERS = ("sync", "executor", "native")


class Way(Protocol):
    """A way to run."""

    @property
    def label(self) -> str:
        """Describes it in words."""
        ...

    @property
    def values(self) -> Values:
        """Its settings, by dotted key."""
        ...

    @property
    def effort(self) -> int:
        """Workers and threads that it takes: of two that are equally fast, the one that takes less is chosen."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A way to run.

    Attributes:
        kind: the collector.
        workers: processes or threads that step environments.
        threads: of PyTorch in the learner.
    """

    kind: Kind
    workers: int
    threads: int

    @property
    def values(self) -> Values:
        """Its settings, by dotted key."""
        has_workers = self.kind in WITH_WORKERS
        return {
            "collect.collector": self.kind,
            "collect.n_workers": self.workers if has_workers else "auto",
            "run.torch_threads": self.threads,
        }

    @property
    def effort(self) -> int:
        """Processes and threads."""
        return self.workers * (self.kind in WITH_WORKERS) + self.threads

    @property
    def label(self) -> str:
        """Describes it in words."""
        parts: list[str] = [self.kind]
        if self.kind in ("sync", "executor"):
            parts.append(counted(self.workers, "worker"))
        elif self.kind == "native":
            parts.append(counted(self.workers, "thread"))
        return ", ".join([*parts, f"learner {counted(self.threads, 'thread')}"])


@dataclass(frozen=True)
class Variant:
    """A way to run that differs in one setting.

    Attributes:
        key: dotted, of the setting.
        value: of it.
        own: the run has it anyway.
        effort: 0 for the run's own value.
    """

    key: str
    value: Any
    own: bool
    effort: int

    @property
    def values(self) -> Values:
        """The setting, by its key."""
        return {self.key: self.value}

    @property
    def label(self) -> str:
        """Describes it in words."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.key} {value}"


@dataclass
class Result:
    """The speed of a way to run, in environment steps per second.

    Attributes:
        way: of which it is the speed.
        predicted: by the model; None where it makes no prediction.
        rates: measured, one for each round; empty: it was not checked.
        note: remarks, such as "formula".
        is_chosen: the run will have its settings.
    """

    way: Way
    predicted: float | None
    rates: list[float] = field(default_factory=list)
    note: str = ""
    is_chosen: bool = False

    @property
    def measured(self) -> float | None:
        """The median of the rounds; None without any."""
        return statistics.median(self.rates) if self.rates else None


@dataclass(frozen=True)
class Tuning:
    """The measurements and the choice.

    Attributes:
        settings: of the run, with the choice.
        reasons: of each value that was chosen, by dotted key.
        results: of all ways to run, in the order of the table.
        facts: lines about the parts of an update.
        seconds: that all took.
    """

    settings: Any
    reasons: Mapping[str, str]
    results: Sequence[Result]
    facts: Sequence[str]
    seconds: float

    @property
    def chosen(self) -> list[Result]:
        """The results of what the run will have."""
        return [each for each in self.results if each.is_chosen]

    @property
    def label(self) -> str:
        """Describes the choice in words."""
        return "; ".join(each.way.label for each in self.chosen)


def best_of(results: Sequence[Result], as_good: float = _AS_GOOD) -> Result:
    """The fastest one, by the median over rounds of its rate relative to the others' in the same round; of those that
    reach the share ``as_good`` of its speed, the simplest."""
    count = min(len(each.rates) for each in results)
    means = [statistics.mean(each.rates[i] for each in results) for i in range(count)]
    scores = {id(each): statistics.median(each.rates[i] / means[i] for i in range(count)) for each in results}
    best = max(scores.values())

    good = (each for each in results if scores[id(each)] >= as_good * best)
    return min(good, key=lambda each: (each.way.effort, -scores[id(each)]))


def beside(chosen: Result, checked: Sequence[Result], most: int = 2) -> str:
    """The measured speed of a choice, and those of the best others."""
    others = sorted(
        (each for each in checked if each is not chosen), key=lambda each: -(each.measured or 0.0)
    )
    return f"{chosen.measured:,.0f} steps/s" + "".join(
        f"; {each.way.label}: {each.measured:,.0f}" for each in others[:most]
    )


def reasons_for(
    candidate: Candidate, chosen: Result, checked: Sequence[Result], results: Sequence[Result], load: Load
) -> dict[str, str]:
    """The reason for each value of the chosen candidate, by dotted key.

    Args:
        chosen: its result.
        checked, results: of the candidates that were measured, and of all.
    """
    predictions = {
        each.way.workers: each.predicted
        for each in results
        if isinstance(each.way, Candidate)
        and (each.way.kind, each.way.threads) == (candidate.kind, candidate.threads)
    }
    listed = ", ".join(f"{count}: {predictions[count]:,.0f}" for count in sorted(predictions))
    workers = (
        f"of {counted(load.cores, 'core')} and {counted(load.num_envs, 'environment')}; predicted steps/s by number:"
        f" {listed}"
        if candidate.kind in WITH_WORKERS
        else "this process steps the environments"
    )
    learner = ", ".join(
        f"{counted(count, 'thread')} {duration(seconds / load.steps)}"
        for count, seconds in load.learn.items()
    )
    return {
        "collect.collector": beside(chosen, checked),
        "collect.n_workers": workers,
        "run.torch_threads": f"the learner's time for each step of an environment: {learner}",
    }


def facts_about(load: Load) -> list[str]:
    """Lines about the parts of an update."""
    lines = []
    if len(load.durations) > 1:
        lines.append(
            f"a step of the environment: {duration(load.step_seconds)}, {load.busy:.0%} of it computing,"
            f" the slowest of a hundred {duration(float(np.quantile(load.durations, 0.99)))}"
        )
    lines.append(f"actions for {counted(load.num_envs, 'environment')}: {duration(load.act(load.num_envs))}")
    for count, seconds in load.learn.items():
        lines.append(
            f"learner on {counted(count, 'thread')}: {duration(seconds / load.steps)} for each step of an environment"
        )
    return lines


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show(tuning: Tuning, console: Console) -> None:
    """Prints what was measured, and a table of the candidates that were checked and of the best others."""
    result = Table(
        title=f"measured in {tuning.seconds:.1f} s, environment steps per second",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    result.add_column("candidate", no_wrap=True)
    for name in ("predicted", "measured", "lowest", "highest"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    shown = [each for each in tuning.results if each.rates or each.note]
    shown += [each for each in tuning.results if each not in shown][: max(_SHOWN - len(shown), 0)]
    for each in shown:
        notes = [*(["chosen"] if each.is_chosen else []), *([each.note] if each.note else [])]
        rates = [each.measured, min(each.rates), max(each.rates)] if each.rates else [None] * 3
        result.add_row(
            each.way.label,
            *("-" if rate is None else f"{rate:,.0f}" for rate in (each.predicted, *rates)),
            ", ".join(notes),
            style="bold" if each.is_chosen else None,
        )
    console.print()
    print_lines(console, *tuning.facts, *([""] if tuning.facts else []))
    show_parts(console, result)
    if (rest := len(tuning.results) - len(shown)) > 0:
        print_lines(console, f"and {counted(rest, 'candidate')} with lower predictions")
