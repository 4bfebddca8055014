"""Account of a run's time: collection against training, in a table, a picture and JSON.

There are two timelines. The learner's is the wall clock of the process that trains; its remainder is ``other``, so its
shares add up to 1. The workers' is the sum of their times, N seconds for each second, and adds up to 1 as well.

The wall clock is divided once more: ``collecting``, while the learner waited for experience or collected it itself;
``both``, while workers collected and the learner did something else; ``learning``, while only the learner was busy;
``neither``, while the learner waited and workers did not collect.

The executor measures ``both``. For other collectors it is estimated: a learner waits only while no experience is ready,
so workers are assumed to be busy first while it waits. ``both`` is then the busy time of the mean worker less the time
that the learner waited, without the workers' start. Where workers idle while the learner waits (at a barrier, or for
the slowest one), this estimate of ``both`` is too small, never too large.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.collectors.protocol import Report
from fastrl.utils.files import read_json, save_figure, to_json, write_atomically
from fastrl.utils.tables import print_lines
from fastrl.utils.tables import show as show_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Activities, in order: steps and resets of environments; choice of actions; rewards, statistics and storage (of
# a replay also drawing minibatches); publishing or reading weights; waiting of learner and workers for each other; the
# start of workers; advantages and returns; gradients; evaluations during the run; the remainder.
LEARNER_ACTIVITIES = (
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
# Other names that sources and collectors use for these activities.
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


class GpuMeter:
    """Meter of a GPU's use, by NVIDIA's management library, which comes with the driver.

    Args:
        device: "cpu" or "cuda".
    """

    def __init__(self, device: str) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if device == "cpu":
            return
        import torch

        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            # By its unique id: CUDA_VISIBLE_DEVICES renumbers devices for PyTorch, not for the driver.
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
            if library.nvmlInit_v2() == 0 and not library.nvmlDeviceGetHandleByUUID(
                uuid, ctypes.byref(self._handle)
            ):
                self._library = library

    def use(self) -> float | None:
        """The share of the last sixth of a second to second in which the GPU computed; None without one."""
        if self._library is None:
            return None
        rates = (ctypes.c_uint * 2)()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)) != 0:
            return None
        return rates[0] / 100


@dataclass(frozen=True)
class Timeline:
    """The time of the learner, or of all workers together.

    Attributes:
        name: "learner" or "workers".
        count: number of processes or threads.
        seconds: their time, summed.
        activities: seconds by name, in the order of `LEARNER_ACTIVITIES`; they add up to ``seconds``.
    """

    name: str
    count: int
    seconds: float
    activities: Mapping[str, float]

    def share(self, part: str) -> float:
        return self.activities.get(part, 0.0) / self.seconds if self.seconds else 0.0


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
        """Tree for JSON: seconds, share, seconds per step and per episode of each part (null without any)."""

        def entry(seconds: float, whole: float) -> dict[str, float | None]:
            return {
                "seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "per_step": seconds / self.steps if self.steps else None,
                "per_episode": seconds / self.episodes if self.episodes else None,
            }

        tree = asdict(self)
        tree["timelines"] = [
            {"name": line.name, "count": line.count, "seconds": line.seconds}
            | {"parts": {name: entry(part, line.seconds) for name, part in line.activities.items()}}
            for line in self.timelines
        ]
        tree["overlap"] = {name: entry(part, self.seconds) for name, part in self.overlap.items()}
        return tree

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Breakdown:
        """Inverse of `to_tree`."""

        def seconds(activities: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
            return {name: part["seconds"] for name, part in activities.items()}

        lines = (
            Timeline(line["name"], line["count"], line["seconds"], seconds(line["parts"]))
            for line in tree["timelines"]
        )
        return cls(**{**tree, "timelines": tuple(lines), "overlap": seconds(tree["overlap"])})


@dataclass(frozen=True)
class Lap:
    """Account of the time between two rows.

    Attributes:
        learner: seconds of the learner, by activity.
        workers: seconds of the workers, summed over them, by activity; empty without any.
        shares: of the learner's time by activity, of the workers' as ``workers_environment`` and so on; ``gpu`` where
            there is one.
    """

    learner: Mapping[str, float]
    workers: Mapping[str, float]
    shares: Mapping[str, float]


def with_other(activities: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Seconds by activity in the order of `LEARNER_ACTIVITIES`, and the rest of ``seconds`` as "other"."""
    if not activities:
        return {}
    ordered = {name: activities[name] for name in LEARNER_ACTIVITIES if name in activities}
    return ordered | {"other": max(seconds - sum(ordered.values()), 0.0)}


@dataclass
class Profile:
    """Adds up a run's laps, the times between two rows of metrics.

    ::

        profile = Profile(GpuMeter(device).use)
        while ...:
            ...  # collect() or take() inside watch("waiting"), publish() inside watch("publishing")
            lap = profile.lap(passed, watch.seconds, steps, episodes, collector.report())

    Args:
        gpu: returns the utilisation of the GPU, asked at each lap; None without one.
    """

    gpu: Callable[[], float | None] = lambda: None
    seconds: float = field(default=0.0, init=False)
    steps: int = field(default=0, init=False)
    episodes: int = field(default=0, init=False)
    # Of the last lap: utilisation of the GPU, and the collector's report.
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
        activities: Mapping[str, float],
        steps: int,
        episodes: int,
        report: Report | None = None,
    ) -> Lap:
        """Adds a lap to the sums.

        Args:
            seconds: of wall-clock time.
            activities: the learner's seconds, by activity.
            steps, episodes: of environments, in this lap.
            report: of the collector, cumulative: its difference to that of the last lap counts. Without workers
                (``workers`` 0) its seconds are the learner's own, measured inside ``activities["waiting"]``, and for
                weights inside ``activities["publishing"]`` if that is measured.
        """
        learner = _named(activities)
        workers: dict[str, float] = {}
        if report is not None:
            now = _named(report.seconds)
            before = _named(self._last.seconds)
            workers = {name: part - before.get(name, 0.0) for name, part in now.items()}
            if report.overlap_seconds is None or self._overlap_seconds is None:
                self._overlap_seconds = None
            else:
                self._overlap_seconds += report.overlap_seconds - (self._last.overlap_seconds or 0.0)
            self._last = report
            if report.workers == 0:
                # The learner collected itself: the remainder of that time is "other".
                learner.pop("waiting", None)
                if "publishing" in learner:
                    workers.pop("publishing", None)
                learner = add_seconds(learner, workers)
                workers = {}
        self.seconds += seconds
        self.steps += steps
        self.episodes += episodes
        self._learner = add_seconds(self._learner, learner)
        self._workers = add_seconds(self._workers, workers)
        if report is not None and report.workers and self._starting is None and any(self._workers.values()):
            # The learner waited for the workers' start, too, until the first experience came.
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
        """Prepares for reports of another collector, which start at zero."""
        self._last = Report()

    def breakdown(self) -> Breakdown:
        """The account of all laps together."""
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
        # With workers, the learner's own handling of experience counts as learning: they collect at the same time.
        handling = 0.0 if count else min(_collecting(learner), self.seconds - waiting)
        learning = self.seconds - waiting - handling
        busy = min(_collecting(self._workers) / count, self.seconds) if count else 0.0
        if count and self._overlap_seconds is not None:
            both = self._overlap_seconds / count
        else:
            both = busy - (waiting - (self._starting or 0.0))
        both = min(max(both, 0.0), busy, learning)
        collecting = handling + min(busy - both, waiting)
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
    return Breakdown.from_tree(read_json(path))


def show(directory: Path, console: Console) -> bool:
    """Prints the account of a run's time, and draws it into ``profile.png`` beside its ``profile.json``. Returns False
    for a run without one, which had nothing left to do."""
    if not (directory / "profile.json").exists():
        return False
    breakdown = load(directory / "profile.json")
    console.print()
    show_table(console, table(breakdown))
    draw(breakdown, directory / "profile.png")
    print_lines(console, f"where the time went, as a picture: {directory / 'profile.png'}")
    return True


def table(breakdown: Breakdown) -> Table:
    """The account as a table with bars, for people."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

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

    def section(title: str, activities: Mapping[str, float], whole: float, labels: Mapping[str, str]) -> None:
        result.add_section()
        result.add_row(Text(title, style="bold"))
        for name, seconds in activities.items():
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
        section(title, line.activities, line.seconds, {})
    section("wall clock", breakdown.overlap, breakdown.seconds, OVERLAP)
    if breakdown.gpu_use is not None:
        result.add_section()
        result.add_row("GPU in use", Text(_bar(breakdown.gpu_use)), f"{breakdown.gpu_use:.1%}")
    return result


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def draw(breakdown: Breakdown, path: Path) -> None:
    """Writes a PNG: a bar for each timeline and one for the wall clock, each from 0 to 100%."""
    # Takes half a second to load, and is rarely needed.
    from matplotlib.figure import Figure

    bars: list[tuple[str, Mapping[str, float], float, Mapping[str, str]]] = [
        (line.name if line.count == 1 else f"{line.count} {line.name}", line.activities, line.seconds, {})
        for line in breakdown.timelines
    ]
    bars.append(("wall clock", breakdown.overlap, breakdown.seconds, OVERLAP))
    figure = Figure(figsize=(10, 1.1 + 1.35 * len(bars)), layout="constrained")
    # Each bar has its own legend, because bars have different parts.
    for axes, (title, activities, whole, labels) in zip(
        figure.subplots(len(bars), squeeze=False)[:, 0], bars, strict=True
    ):
        left = 0.0
        for name, seconds in activities.items():
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
    save_figure(path, figure, dpi=110)


def _named(activities: Mapping[str, float]) -> dict[str, float]:
    """Seconds by the names of `LEARNER_ACTIVITIES`."""
    result: dict[str, float] = {}
    for name, seconds in activities.items():
        activity = _ALSO.get(name, name)
        result[activity] = result.get(activity, 0.0) + seconds
    return result


def add_seconds(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Sums of seconds by name; names of ``a`` come first."""
    return {
        name: a.get(name, 0.0) + b.get(name, 0.0) for name in (*a, *(name for name in b if name not in a))
    }


def _collecting(activities: Mapping[str, float]) -> float:
    return sum(activities.get(name, 0.0) for name in _COLLECTING)


def _shares(activities: Mapping[str, float], seconds: float) -> dict[str, float]:
    line = _timeline("", 1, seconds, activities)
    return {name: line.share(name) for name in line.activities}


def _timeline(name: str, count: int, seconds: float, activities: Mapping[str, float]) -> Timeline:
    """A timeline with its remainder as "other". Workers report a task when it ends, perhaps one that started in an
    earlier lap: if the parts exceed the time, their sum replaces it."""
    covered = sum(activities.values())
    whole = max(count * seconds, covered)
    order = [*LEARNER_ACTIVITIES[:-1], *(part for part in activities if part not in LEARNER_ACTIVITIES)]
    ordered = {part: activities[part] for part in order if part in activities}
    return Timeline(name, count, whole, ordered | {"other": whole - covered})
