"""Account of a run's time: collection against training, in a table, a picture and JSON.

There are timelines. The learner's is the wall clock of the process that trains; what none of its parts covers is
``other``, so its shares add up to 1. The workers' is their time summed, N seconds a second, and adds up to 1 as well.
Time that passes on both at once is counted once on each, and the wall clock is divided once more: while the learner
waited or collected by itself (``collecting``), while workers collected and it did something else (``both``), while it
alone was at work (``learning``), and while it waited and workers did not collect (``neither``).

How much workers collected while the learner did something else, the collector measures where it can: the executor
does. Elsewhere a worker is taken to be busy, as far as it was busy at all, first while the learner waited: a learner
waits only while no experience is ready, and then workers are at work on it. So ``both`` is the mean worker's busy time
less the time in which the learner waited for more than the workers' start. Where a worker idles while the learner waits
(at a barrier, or for the slowest), ``both`` is too small then, never too large.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastrl.collectors.protocol import Report
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.tables import show as show_parts

# What time is spent on, in this order: stepping and resetting environments; choosing actions; rewards, statistics and
# storing (for a replay, drawing from it too); giving or reading weights; waiting for each other; until workers have
# started; advantages and returns; gradients; scoring the policy meanwhile.
PARTS = (
    "environment",
    "inference",
    "buffer",
    "publishing",
    "waiting",
    "starting",
    "returns",
    "update",
    "evaluation",
    "other",
)
# Names that some of those who measure have for the same.
_ALSO = {
    "sampling": "buffer",
    "queue": "buffer",
    "weights": "publishing",
}
_COLLECTING = ("environment", "inference", "buffer", "publishing")
OVERLAP = {
    "collecting": "only collecting",
    "both": "both at once",
    "learning": "only learning",
    "neither": "neither",
}
_COLOURS = {
    "environment": "#2a7fb8",
    "inference": "#41ab5d",
    "buffer": "#c2a5cf",
    "publishing": "#d95f0e",
    "waiting": "#bdbdbd",
    "starting": "#e5e5e5",
    "returns": "#fec44f",
    "update": "#cb181d",
    "evaluation": "#807dba",
    "other": "#737373",
    "collecting": "#2a7fb8",
    "both": "#6a51a3",
    "learning": "#cb181d",
    "neither": "#bdbdbd",
}
_BAR = 14


@dataclass(frozen=True)
class Timeline:
    """The time of somebody, or of several together.

    Attributes:
        name: "learner" or "workers".
        count: how many they are.
        seconds: all of their time.
        parts: seconds by name, in the order of `PARTS`; they add up to ``seconds``.
    """

    name: str
    count: int
    seconds: float
    parts: Mapping[str, float]

    def share(self, part: str) -> float:
        return self.parts.get(part, 0.0) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Breakdown:
    """Account of the time of a session.

    Attributes:
        seconds: of wall-clock time in the loop.
        steps, episodes: of environments, in that time.
        timelines: the learner's, and the workers' where there are any.
        overlap: seconds of the wall clock by the keys of `OVERLAP`; they add up to ``seconds``.
        gpu_use: share of the time in which the GPU computed; None without one.
    """

    seconds: float
    steps: int
    episodes: int
    timelines: tuple[Timeline, ...]
    overlap: Mapping[str, float]
    gpu_use: float | None

    def to_tree(self) -> dict[str, Any]:
        """For JSON: of each part its seconds, share, seconds per step and per episode (null without any)."""

        def tell(seconds: float, whole: float) -> dict[str, float | None]:
            return {
                "seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "per_step": seconds / self.steps if self.steps else None,
                "per_episode": seconds / self.episodes if self.episodes else None,
            }

        tree = asdict(self)
        tree["timelines"] = [
            asdict(line) | {"parts": {name: tell(part, line.seconds) for name, part in line.parts.items()}}
            for line in self.timelines
        ]
        tree["overlap"] = {name: tell(part, self.seconds) for name, part in self.overlap.items()}
        return tree

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Breakdown":
        """Inverse of `to_tree`."""

        def seconds(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
            return {name: part["seconds"] for name, part in parts.items()}

        lines = (Timeline(**line | {"parts": seconds(line["parts"])}) for line in tree["timelines"])
        return cls(**{**tree, "timelines": tuple(lines), "overlap": seconds(tree["overlap"])})


@dataclass(frozen=True)
class Lap:
    """Account of the time between two rows.

    Attributes:
        learner: seconds of the learner, by part.
        workers: seconds of the workers, summed over them, by part; empty without any.
        shares: of the learner's time by part, of the workers' as ``workers_environment`` and so on; ``gpu`` where there
            is one.
    """

    learner: Mapping[str, float]
    workers: Mapping[str, float]
    shares: Mapping[str, float]


def with_other(parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Parts in the order of `PARTS`, and the rest of ``seconds`` as "other"."""
    if not parts:
        return {}
    ordered = {name: parts[name] for name in PARTS if name in parts}
    return ordered | {"other": max(seconds - sum(ordered.values()), 0.0)}


@dataclass
class Profile:
    """Adds up a run's laps, a lap being what lies between two rows of its metrics.

    ::

        profile = Profile(GpuMeter(device).use)
        while ...:
            ...  # collect() or take() inside watch("waiting"), publish() inside watch("publishing")
            lap = profile.lap(passed, watch.seconds, steps, episodes, collector.report())

    Args:
        gpu: asked at each lap how busy the GPU is; None: there is none.
    """

    gpu: Callable[[], float | None] = lambda: None
    seconds: float = field(default=0.0, init=False)
    steps: int = field(default=0, init=False)
    episodes: int = field(default=0, init=False)
    # Of the lap before: what the GPU said, and the collector's report.
    gpu_use: float | None = field(default=None, init=False)
    _last: Report = field(default_factory=Report, init=False)
    _learner: dict[str, float] = field(default_factory=dict, init=False)
    _workers: dict[str, float] = field(default_factory=dict, init=False)
    _starting: float | None = field(default=None, init=False)
    # Of all laps, summed over workers; None: a collector has not measured it.
    _overlap_seconds: float | None = field(default=0.0, init=False)
    _gpu: list[float] = field(default_factory=lambda: [0.0, 0.0], init=False)

    def lap(
        self,
        seconds: float,
        parts: Mapping[str, float],
        steps: int,
        episodes: int,
        report: Report | None = None,
    ) -> "Lap":
        """Adds a lap to the sums.

        Args:
            seconds: of wall-clock time.
            parts: of them, by what the learner spent them on.
            steps, episodes: of environments, in this lap.
            report: of who collected, so far: its differences from one lap to the next count. Without workers
                (``workers`` 0) its seconds are the learner's own, measured inside ``parts["waiting"]``; those for
                weights inside ``parts["publishing"]`` where there is such a part.
        """
        learner = _named(parts)
        workers: dict[str, float] = {}
        if report is not None:
            spent = _named(report.seconds)
            before = _named(self._last.seconds)
            workers = {name: part - before.get(name, 0.0) for name, part in spent.items()}
            if report.overlap_seconds is None or self._overlap_seconds is None:
                self._overlap_seconds = None
            else:
                self._overlap_seconds += report.overlap_seconds - (self._last.overlap_seconds or 0.0)
            self._last = report
            if report.workers == 0:
                # Nobody was waited for: what collecting took besides its parts is "other".
                learner.pop("waiting", None)
                if "publishing" in learner:
                    workers.pop("publishing", None)
                learner = add_parts(learner, workers)
                workers = {}
        self.seconds += seconds
        self.steps += steps
        self.episodes += episodes
        self._learner = add_parts(self._learner, learner)
        self._workers = add_parts(self._workers, workers)
        if report is not None and report.workers and self._starting is None and any(self._workers.values()):
            # Until something came, the learner waited for workers that were not at work yet.
            waited = self._learner.get("waiting", 0.0) - _collecting(self._workers) / report.workers
            self._starting = max(min(waited, report.cold_start or waited), 0.0)
        shares = dict(_shares(learner, seconds))
        if report is not None and report.workers:
            count = report.workers
            shares |= {f"workers_{name}": share for name, share in _shares(workers, count * seconds).items()}
        self.gpu_use = self.gpu()
        if self.gpu_use is not None:
            self._gpu[0] += self.gpu_use * seconds
            self._gpu[1] += seconds
            shares["gpu"] = self.gpu_use
        return Lap(learner, workers, shares)

    def change_collector(self) -> None:
        """Tells that the next lap's report is of another collector, which has just started."""
        self._last = Report()

    def breakdown(self) -> Breakdown:
        """Of all laps together."""
        count, learner, workers = self._last.workers, dict(self._learner), dict(self._workers)
        if self._starting:
            learner["waiting"] -= self._starting
            learner["starting"] = self._starting
            idle = count * self.seconds - sum(workers.values())
            workers["starting"] = min(count * self._starting, max(idle, 0.0))
        timelines = [_timeline("learner", 1, self.seconds, learner)]
        if count:
            timelines.append(_timeline("workers", count, self.seconds, workers))
        return Breakdown(
            seconds=self.seconds,
            steps=self.steps,
            episodes=self.episodes,
            timelines=tuple(timelines),
            overlap=self._overlap(),
            gpu_use=self._gpu[0] / self._gpu[1] if self._gpu[1] else None,
        )

    def _overlap(self) -> dict[str, float]:
        learner, count = self._learner, self._last.workers
        waiting = min(learner.get("waiting", 0.0), self.seconds)
        # With workers, what the learner does to experience is part of learning: they collect meanwhile.
        own = 0.0 if count else min(_collecting(learner), self.seconds - waiting)
        learning = self.seconds - waiting - own
        busy = min(_collecting(self._workers) / count, self.seconds) if count else 0.0
        if count and self._overlap_seconds is not None:
            both = self._overlap_seconds / count
        else:
            both = busy - (waiting - (self._starting or 0.0))
        both = min(max(both, 0.0), busy, learning)
        collecting = own + min(busy - both, waiting)
        return {
            "collecting": collecting,
            "both": both,
            "learning": learning - both,
            "neither": max(self.seconds - collecting - learning, 0.0),
        }

    def save(self, path: Path) -> None:
        """Writes the breakdown as JSON, if there was a lap."""
        if self.seconds:
            write_atomically(path, to_json(self.breakdown().to_tree(), indent=2).encode())


def load(path: Path) -> Breakdown:
    """Reads what `Profile.save` wrote."""
    return Breakdown.from_tree(json.loads(path.read_text(encoding="utf-8")))


def show(directory: Path, console: Console) -> bool:
    """Prints where the time of a run went, and draws it into ``profile.png`` beside its ``profile.json``. A run that
    had nothing left to do has neither: then it returns False."""
    if not (directory / "profile.json").exists():
        return False
    breakdown = load(directory / "profile.json")
    console.print()
    show_parts(console, table(breakdown))
    draw(breakdown, directory / "profile.png")
    console.print(
        f"where the time went, as a picture: {directory / 'profile.png'}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    return True


def table(breakdown: Breakdown) -> Table:
    """For people, with bars."""
    steps, episodes = breakdown.steps, breakdown.episodes
    result = Table(
        title=f"where the time went: {breakdown.seconds:,.1f} s, {steps:,} steps, {episodes:,} episodes",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    result.add_column("", no_wrap=True)
    result.add_column("", min_width=_BAR, no_wrap=True)
    for name in ("share", "seconds", "µs/step", "ms/ep."):
        result.add_column(name, justify="right", no_wrap=True)

    def section(title: str, parts: Mapping[str, float], whole: float, labels: Mapping[str, str]) -> None:
        result.add_section()
        result.add_row(Text(title, style="bold"))
        for name, seconds in parts.items():
            share = seconds / whole if whole else 0.0
            result.add_row(
                f"  {labels.get(name, name)}",
                Text(_bar(share), style=_COLOURS.get(name, "")),
                f"{share:.1%}",
                f"{seconds:,.2f}",
                f"{seconds / steps * 1e6:,.2f}" if steps else "-",
                f"{seconds / episodes * 1e3:,.2f}" if episodes else "-",
            )

    for line in breakdown.timelines:
        title = line.name if line.count == 1 else f"{line.count} {line.name}, summed"
        section(title, line.parts, line.seconds, {})
    section("wall clock", breakdown.overlap, breakdown.seconds, OVERLAP)
    if breakdown.gpu_use is not None:
        result.add_section()
        result.add_row("GPU in use", Text(_bar(breakdown.gpu_use)), f"{breakdown.gpu_use:.1%}")
    return result


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def draw(breakdown: Breakdown, path: Path) -> None:
    """A picture, PNG: a bar for each timeline and one for the wall clock, each from 0 to 100%."""
    # Takes half a second to load, and few ask for it.
    from matplotlib.figure import Figure

    bars: list[tuple[str, Mapping[str, float], float, Mapping[str, str]]] = [
        (line.name if line.count == 1 else f"{line.count} {line.name}", line.parts, line.seconds, {})
        for line in breakdown.timelines
    ]
    bars.append(("wall clock", breakdown.overlap, breakdown.seconds, OVERLAP))
    figure = Figure(figsize=(10, 1.1 + 1.35 * len(bars)), layout="constrained")
    # Each bar has a legend of its own: what is in one is not in the others.
    for axes, (title, parts, whole, labels) in zip(
        figure.subplots(len(bars), squeeze=False)[:, 0], bars, strict=True
    ):
        left = 0.0
        for name, seconds in parts.items():
            share = 100 * seconds / whole if whole else 0.0
            if share < 0.05:
                continue
            label = f"{labels.get(name, name)} {share:.1f}%"
            axes.barh([0], [share], 0.6, left=[left], color=_COLOURS.get(name), label=label)
            left += share
        axes.set(xlim=(0, 100), ylim=(-0.4, 0.4), yticks=[0], yticklabels=[title])
        axes.xaxis.set_major_formatter("{x:.0f}%")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(left=False)
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.25), ncols=4, frameon=False, fontsize=9, borderaxespad=0
        )
    gpu = "" if breakdown.gpu_use is None else f", GPU in use {breakdown.gpu_use:.0%} of the time"
    figure.suptitle(
        f"{breakdown.seconds:,.1f} s, {breakdown.steps:,} steps, {breakdown.episodes:,} episodes{gpu}",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _named(parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds by the names of `PARTS`."""
    result: dict[str, float] = {}
    for name, seconds in parts.items():
        own = _ALSO.get(name, name)
        result[own] = result.get(own, 0.0) + seconds
    return result


def add_parts(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Sums of seconds by name; names of ``a`` come first."""
    return {
        name: a.get(name, 0.0) + b.get(name, 0.0) for name in (*a, *(name for name in b if name not in a))
    }


def _collecting(parts: Mapping[str, float]) -> float:
    return sum(parts.get(name, 0.0) for name in _COLLECTING)


def _shares(parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    line = _timeline("", 1, seconds, parts)
    return {name: line.share(name) for name in line.parts}


def _timeline(name: str, count: int, seconds: float, parts: Mapping[str, float]) -> Timeline:
    """Completed by what no part covers. Workers tell of a task when it ends, begun in an earlier lap perhaps: where
    parts are more than the time, they are all of it."""
    covered = sum(parts.values())
    whole = max(count * seconds, covered)
    order = [*PARTS[:-1], *(part for part in parts if part not in PARTS)]
    ordered = {part: parts[part] for part in order if part in parts}
    return Timeline(name, count, whole, ordered | {"other": whole - covered})
