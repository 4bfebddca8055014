"""Results of benchmarks, and the JSON files that hold them.

A file holds one benchmark: cases (such as sizes of records), in each the rates of all contenders, one a round. Rounds
are measured in turns, so contenders are compared round by round: a ratio is the median over the rounds of our rate
divided by the other one's (of seconds: theirs by ours), with its quartiles. ``FORMAT`` names the version of the layout,
which `to_tree` writes:

- ``topic``, ``name``, ``title``, ``unit``, ``about``: identification and meaning of the numbers;
- ``better``: ``higher``, as in files without it, or ``lower``, as of seconds and memory;
- ``command``, ``date`` (UTC), ``machine``, ``versions``, ``note``: how, when, where and with what it was measured;
- ``ours``: names of fastrl's contenders; ``left_out``: those that could not be measured, with the reason;
- ``cases``: for each ``name``, ``contenders`` (by name ``rates``, ``median``, ``quartiles``) and ``ratios`` (``of``,
  ``to``, ``median``, ``quartiles``).
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fastrl.collectors.resources import cores
from fastrl.utils.errors import UserError
from fastrl.utils.files import parse_json, read_file, to_json, write_atomically
from fastrl.utils.machine import hardware

FORMAT = 1

# Distributions whose versions matter to what is measured; those that are not installed are not listed.
_DISTRIBUTIONS = (
    *("fastrl", "numpy", "torch", "gymnasium", "stable-baselines3", "faster-fifo", "cpprb", "torchrl"),
    *("highway-env", "libsumo", "ray", "cyborg", "minari", "sbx-rl", "jax", "rltools", "mkl"),
)


class ResultError(UserError):
    """A file that is no result of a benchmark; one line."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some numbers; with fewer than two numbers the quartiles are the number."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def to_tree(self) -> dict[str, Any]:
        return {"median": self.median, "quartiles": [self.low, self.high]}


@dataclass(frozen=True)
class Case:
    """The rates of contenders in one case, by contender; one a round, as many for each that is compared."""

    name: str
    rates: Mapping[str, Sequence[float]]

    def ratio(self, ours: str, other: str) -> Spread:
        """One contender's rate divided by another's, over the rounds."""
        return Spread.of([a / b for a, b in zip(self.rates[ours], self.rates[other], strict=True)])


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's results.

    Attributes:
        topic: the topic of ``benches/suite.py``, or the name of the file in benches/ without ``bench_``.
        name: name within the topic.
        title: heading of tables.
        unit: of the rates, such as ``records/s``.
        cases: at least one.
        ours: fastrl's contenders, by name. Without any, nothing is compared, and each contender may have its own
            number of rounds.
        about: further conditions in a sentence or two.
        lower_is_better: the numbers are seconds or memory, not rates.
        left_out: reason by contender that was not measured.
        command, date, machine, versions, note: see the module; `stamped` fills them in.
    """

    topic: str
    name: str
    title: str
    unit: str
    cases: tuple[Case, ...]
    ours: tuple[str, ...]
    about: str = ""
    lower_is_better: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def contenders(self) -> list[str]:
        """The names of all contenders, in the order of the cases."""
        return list(dict.fromkeys(name for case in self.cases for name in case.rates))

    def best(self, case: Case) -> str:
        """Our contender with the best median in a case."""
        ours = [name for name in case.rates if name in self.ours]
        choose = min if self.lower_is_better else max
        return choose(ours, key=lambda name: Spread.of(case.rates[name]).median)

    def others(self, case: Case) -> list[str]:
        """Contenders of a case that ours are compared with; none where ours are not measured."""
        others = [name for name in case.rates if name not in self.ours]
        return others if len(others) < len(case.rates) else []

    def ratio(self, case: Case, ours: str, other: str) -> Spread:
        """Ratio of a contender of ours to another one, over the rounds: above 1 ours is better."""
        return case.ratio(other, ours) if self.lower_is_better else case.ratio(ours, other)

    def ratios(self, case: Case) -> Iterator[tuple[str, str, Spread]]:
        """Our contender, the other one and the ratio, for each pair of a case."""
        for ours in self.ours:
            for other in case.rates:
                if ours in case.rates and other not in self.ours:
                    yield ours, other, self.ratio(case, ours, other)

    def stamped(self, command: str, note: str = "") -> Benchmark:
        """A copy with the command, the present date, the machine and the versions of what is installed."""
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        return replace(
            self,
            command=command,
            date=now.isoformat().replace("+00:00", "Z"),
            machine=machine(),
            versions=versions(),
            note=note,
        )

    def to_tree(self) -> dict[str, Any]:
        """The content of the file."""
        plain = ("topic", "name", "title", "unit", "about", "command", "date", "machine", "versions", "note")
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in plain},
            "better": "lower" if self.lower_is_better else "higher",
            "ours": list(self.ours),
            "left_out": dict(self.left_out),
            "cases": [
                {
                    "name": case.name,
                    "contenders": {
                        name: {"rates": list(rates), **Spread.of(rates).to_tree()}
                        for name, rates in case.rates.items()
                    },
                    "ratios": [
                        {"of": ours, "to": other, **ratio.to_tree()}
                        for ours, other, ratio in self.ratios(case)
                    ],
                }
                for case in self.cases
            ],
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Benchmark:
        """Reads what `to_tree` returns; medians and ratios are computed again from the rates.

        Raises:
            ResultError: it is something else.
        """
        try:
            if tree["format"] != FORMAT:
                raise ResultError(
                    f"format {tree['format']} is not {FORMAT}, which this version of fastrl reads"
                )
            plain = ("topic", "name", "title", "unit", "about", "command", "date", "note")
            return cls(
                **{name: str(tree[name]) for name in plain},
                lower_is_better=tree.get("better") == "lower",
                machine=dict(tree["machine"]),
                versions=dict(tree["versions"]),
                ours=tuple(tree["ours"]),
                left_out=dict(tree["left_out"]),
                cases=tuple(
                    Case(
                        case["name"],
                        {
                            name: tuple(float(rate) for rate in each["rates"])
                            for name, each in case["contenders"].items()
                        },
                    )
                    for case in tree["cases"]
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResultError(f"no result of a benchmark: {error!r}") from None

    def write(self, folder: Path) -> Path:
        """Writes ``TOPIC-NAME.json`` into a folder, which is made; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / (re.sub(r"[^a-z0-9]+", "-", f"{self.topic}-{self.name}".lower()).strip("-") + ".json")
        write_atomically(file, (to_json(self.to_tree(), indent=1) + "\n").encode())
        return file


def shown(value: float) -> str:
    """A number with three significant digits: ``15.8 M``, ``106,000``, ``37.2``, ``0.82``."""
    if abs(value) >= 1e6:
        return f"{shown(value / 1e6)} M"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def read_all(folder: Path) -> list[Benchmark]:
    """The results in a folder, sorted by their files' names.

    Raises:
        ResultError: there are none, or a file is something else; names the file.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ResultError(
            f"{folder}: no results (*.json) in this folder; python benches/suite.py --out {folder} writes some"
        )
    return [read(file) for file in files]


def read(file: Path) -> Benchmark:
    """The result in a file.

    Raises:
        ResultError: it is something else; names the file.
        OSError: it cannot be read.
    """
    try:
        return Benchmark.from_tree(parse_json(read_file(file), object))
    except (ResultError, ValueError) as error:
        raise ResultError(f"{file}: {error}") from None


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, system and the load at present."""
    return {**hardware(cores()), "load": [round(load, 2) for load in os.getloadavg()]}


def versions(names: Iterable[str] = _DISTRIBUTIONS) -> dict[str, str]:
    """Versions of Python and of those distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
