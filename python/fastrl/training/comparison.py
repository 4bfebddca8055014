"""Comparisons of evaluations: differences in the same episodes, and the spread over seeds of training."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.metrics import counted, fixed, mean_and_error, moments, plus_minus
from fastrl.utils.config import ConfigError
from fastrl.utils.names import suggestion

if TYPE_CHECKING:
    from fastrl.training.evaluation import Scores

Mode = Literal["deterministic", "stochastic", "scripted"]
"""Choice of actions: the most probable one, one drawn from the policy, or a script's."""


def modes(options: Mapping[str, Any], *, default: str) -> list[Mode]:
    """The modes that the options of ``fastrl eval`` ask for."""
    mode = options.get("mode", default)
    return ["deterministic", "stochastic"] if mode == "both" else [mode]


def check_baseline(name: str, baselines: Sequence[str]) -> None:
    """Raises ConfigError if a name is none of a task's scripted policies."""
    if name not in baselines:
        raise ConfigError(f"unknown baseline {name}; {suggestion(name, baselines)}")


@runtime_checkable
class EpisodeScores(Protocol):
    """Scores that keep the returns of single episodes."""

    def episode_returns(self) -> Mapping[str, NDArray[np.float64]]:
        """Returns by part of the score, float64 [E] each. The score is the sum of the parts' means. Episodes of the
        same number start from the same seed for every policy, those of different parts from different ones."""
        ...


@dataclass(frozen=True)
class Scored:
    """An evaluation as ``fastrl eval`` makes it.

    Attributes:
        name: of the run or baseline.
        variant: options by which it differs from other evaluations of the same run.
        settings: nested settings of the run; None of a baseline.
    """

    name: str
    variant: Mapping[str, str]
    scores: "Scores"
    settings: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """Name and variant."""
        return _label(self.name, self.variant)


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Difference:
    """The score of a contender less that of the first one, from the differences of single episodes.

    Attributes:
        name, to: the contender, and the first one.
        variant: of their evaluations.
        parts: of each part of the score the mean difference, and its standard error.
        total: their sum.
    """

    name: str
    to: str
    variant: Mapping[str, str]
    episodes: int
    parts: Mapping[str, Estimate]
    total: Estimate

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        parts = {name: asdict(part) for name, part in self.parts.items()}
        head = {"run": self.name, "to": self.to, **self.variant, "episodes": self.episodes}
        return {**head, "parts": parts, "total": asdict(self.total)}

    def line(self) -> str:
        """The total in words."""
        total = plus_minus(self.total.mean, self.total.standard_error)
        each = " of each part" if len(self.parts) > 1 else ""
        return (
            f"{_label(f'{self.name} - {self.to}', self.variant)}: {total},"
            f" from the differences of {counted(self.episodes, 'episode')}{each}"
        )


@dataclass(frozen=True)
class Spread:
    """Scores of runs that differ in their seed alone.

    Attributes:
        runs, seeds: their names and seeds.
        variant: of their evaluations.
        parts: of each part of the score the `fastrl.runs.metrics.moments` over runs.
        total: the same of the score.
    """

    runs: Sequence[str]
    seeds: Sequence[int]
    variant: Mapping[str, str]
    parts: Mapping[str, Mapping[str, float]]
    total: Mapping[str, float]

    @property
    def name(self) -> str:
        """The number of seeds and what the names of the runs start with."""
        letters = itertools.takewhile(lambda at: len(set(at)) == 1, zip(*self.runs, strict=False))
        return f"{len(self.seeds)} seeds of {''.join(at[0] for at in letters)}*"

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        head = {"runs": list(self.runs), "seeds": list(self.seeds), **self.variant}
        return {**head, "parts": dict(self.parts), "total": dict(self.total)}

    def line(self) -> str:
        """The total in words."""
        mean, deviation, error, least, most = (
            fixed(self.total[name]) for name in ("mean", "deviation", "standard_error", "min", "max")
        )
        return (
            f"{_label(self.name, self.variant)}: mean {mean}, standard deviation {deviation},"
            f" standard error {error}, from {least} to {most}"
        )


@dataclass(frozen=True)
class Comparison:
    """Evaluations beside each other."""

    scored: Sequence[Scored]
    spreads: Sequence[Spread]
    differences: Sequence[Difference]

    def lines(self) -> list[str]:
        """Spreads and differences in words."""
        return [each.line() for each in self.spreads] + [each.line() for each in self.differences]


def compare(scored: Sequence[Scored], *, paired: bool = False, own_env: bool = True) -> Comparison:
    """Finds runs that differ in their seed alone, and pairs episodes.

    Args:
        scored: on as many episodes each, with one seed.
        paired: adds the difference of every contender to the first one, in evaluations of the same variant.
        own_env: runs were evaluated in the environments that they were trained on, not in those of a protocol.

    Raises:
        ConfigError: their episodes cannot be paired.
    """
    return Comparison(scored, list(_spreads(scored)), list(_differences(scored, own_env)) if paired else [])


def _spreads(scored: Sequence[Scored]) -> Iterator[Spread]:
    groups: dict[str, list[Scored]] = {}
    for each in scored:
        if each.settings is not None:
            settings = dict(each.settings)
            settings["run"] = {key: value for key, value in settings["run"].items() if key != "seed"}
            groups.setdefault(json.dumps([settings, dict(each.variant)], sort_keys=True), []).append(each)
    for group in groups.values():
        seeds = [each.settings["run"]["seed"] for each in group if each.settings is not None]
        # Several checkpoints of one run are no sample over seeds.
        if len(seeds) < 2 or len(set(seeds)) < len(seeds):
            continue
        parts = [_parts(each) or {} for each in group]
        yield Spread(
            [each.name for each in group],
            seeds,
            group[0].variant,
            {name: moments([float(part[name].mean()) for part in parts]) for name in parts[0]},
            moments([each.scores.mean_return for each in group]),
        )


def _differences(scored: Sequence[Scored], own_env: bool) -> Iterator[Difference]:
    if len({each.name for each in scored}) < 2:
        raise ConfigError("--paired compares others with the first RUN: name at least two")
    first = scored[0].name
    for other in scored:
        if other.name == first:
            continue
        for base in scored:
            # A baseline has no mode: it is compared with all of them.
            common = base.variant.keys() & other.variant.keys()
            if base.name == first and all(base.variant[key] == other.variant[key] for key in common):
                yield _difference(base, other, own_env)


def _difference(first: Scored, other: Scored, own_env: bool) -> Difference:
    before, after = (_parts(each) for each in (first, other))
    for each, parts in ((first, before), (other, after)):
        if not parts:
            raise ConfigError(
                f"--paired: the evaluation of {each.name} keeps no returns of episodes with seeds of their own"
            )
    assert before and after
    if own_env and first.settings is not None and other.settings is not None:
        a, b = (each.settings["env"] for each in (first, other) if each.settings is not None)
        different = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
        if names := [f"env.{key}" for key in different if key != "num_envs"]:
            raise ConfigError(
                f"--paired: {other.name} has other episodes than {first.name}, they differ in {', '.join(names)}"
            )
    if any(len(before[name]) != len(after[name]) for name in before):
        raise ConfigError(f"--paired: {other.name} has other episodes than {first.name}")
    means = {name: Estimate(*mean_and_error(after[name] - before[name])) for name in before}
    total = Estimate(
        sum(part.mean for part in means.values()),
        math.hypot(*(part.standard_error for part in means.values())),
    )
    episodes = len(next(iter(before.values())))
    return Difference(other.name, first.name, {**first.variant, **other.variant}, episodes, means, total)


def _parts(scored: Scored) -> Mapping[str, NDArray[np.float64]] | None:
    return scored.scores.episode_returns() if isinstance(scored.scores, EpisodeScores) else None


def _label(name: str, variant: Mapping[str, str]) -> str:
    return ", ".join((name, *variant.values()))
