"""The way from an expert to a trained agent: record its episodes, clone it, improve the clone.

Each stage leaves its result in a directory of its own: ``demos`` (a data set), ``clone`` and ``agent`` (ordinary runs).
A stage whose result is complete is skipped, one that was interrupted is resumed. Clone and agent train in processes of
their own, so that memory is measured by stage.
"""

import dataclasses
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from fastrl.algorithms import find
from fastrl.collectors.resources import WorkerCount
from fastrl.demos.fragment_writing import whole_episodes
from fastrl.demos.recorder import record
from fastrl.replay.episodes import load, shard_files
from fastrl.runs.directory import is_run
from fastrl.runs.listing import read_run, score_in
from fastrl.runs.metrics import brief, duration, percent
from fastrl.utils import child_process
from fastrl.utils.errors import UserError
from fastrl.utils.files import new_file, read_json, save_figure, to_json, write_atomically
from fastrl.utils.progress import Progress
from fastrl.utils.tables import print_lines, show

STAGES = ("demos", "clone", "agent")
REPORT, FIGURE = "report.json", "pipeline.png"

# Activities of a learner (see docs/reference/metrics.md) by what they are spent on; the others are "other".
_KINDS = {
    "simulation": ("environment", "waiting"),
    "network": ("inference", "update", "returns", "publishing", "evaluation"),
    "data": ("buffer", "sampling", "data", "loading"),
}
# The same of recording, where "waiting" is that of workers for the process that writes.
_KINDS_OF_RECORDING = {
    "simulation": ("environment",),
    "network": ("inference",),
    "data": ("buffer", "writing"),
}
_COLORS = {"simulation": "C0", "network": "C1", "data": "C2", "other": "0.8"}
# A slice with one worker has so much of a stage's work.
_SLICE = 0.05


class PipelineError(UserError):
    """A pipeline that cannot run; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a pipeline.

    Attributes:
        env: id of the environment, or a task.
        expert: as of `fastrl.demos.record`.
        episodes: to record.
        epochs: of cloning.
        timesteps: of reinforcement learning.
        algo: that improves the clone.
        out: directory of the results.
        seed: of all stages.
        n_workers: of all stages; "auto".
        skip: stages that are left out.
        record_options: further arguments of `fastrl.demos.record`.
        clone_options, agent_options: further arguments of ``fastrl train``, such as ``--bc.learning-rate=1e-3``.
        compare: measure slices with one worker, too.
    """

    env: str
    expert: str
    episodes: int
    epochs: int
    timesteps: int
    algo: str
    out: Path
    seed: int = 0
    n_workers: WorkerCount = "auto"
    skip: frozenset[str] = frozenset()
    record_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clone_options: Sequence[str] = ()
    agent_options: Sequence[str] = ()
    compare: bool = True


@dataclasses.dataclass
class StageReport:
    """Cost and result of a stage.

    Attributes:
        name: of `STAGES`.
        seconds: of wall-clock time, in all sessions.
        memory_mib: the most main memory of one process, MiB.
        steps: environment steps; of cloning samples.
        steps_per_second: while it worked, without its start.
        one_worker: the same of a slice with one worker; None: not measured.
        same_slice: the same of that slice with the stage's own workers; None: `steps_per_second` stands for it.
        shares: of the learner's time, by "simulation", "network", "data" and "other"; of recording those of the time of
            its workers and of writing; empty where unknown.
        complete: its result is.
        mean_return, deviation: of the recorded episodes, or of the evaluation at the end; NaN: unknown.
    """

    name: str
    seconds: float = 0.0
    memory_mib: float = 0.0
    steps: int = 0
    steps_per_second: float = math.nan
    one_worker: float | None = None
    same_slice: float | None = None
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    mean_return: float = math.nan
    deviation: float = math.nan
    complete: bool = False

    @property
    def ratio(self) -> float:
        """Speed beside one worker's, of the same work."""
        own = self.same_slice or self.steps_per_second
        return own / self.one_worker if self.one_worker else math.nan


@dataclasses.dataclass
class Outcome:
    """The end of a pipeline.

    Attributes:
        reports: of the stages that have a result.
        stopped_by: exit code of the stage that was interrupted or failed; 0: all are complete.
    """

    reports: list[StageReport]
    stopped_by: int = 0


def run_pipeline(settings: Settings, console: Console, progress: Callable[[int], Progress]) -> Outcome:
    """Runs the stages that are not complete.

    Args:
        console: gets a line before each stage.
        progress: shows so many episodes as they are recorded.

    Raises:
        UserError: settings that do not go together; also the errors of `fastrl.demos.record`.
        KeyboardInterrupt: recording was interrupted; whole episodes are kept.
    """
    # An environment may change the current directory.
    settings = dataclasses.replace(settings, out=settings.out.absolute())
    settings.out.mkdir(parents=True, exist_ok=True)
    saved = _saved_reports(settings.out)
    reports: list[StageReport] = []
    for name in STAGES:
        if name in settings.skip:
            continue
        report = saved.setdefault(name, StageReport(name))
        report.complete = False
        code = 0
        try:
            if name == "demos":
                _record(settings, report, console, progress)
            else:
                code = _train(settings, report, console)
            report.complete = not code
        finally:
            # A stage that was interrupted has a report, too: its seconds count.
            _save([saved[each] for each in STAGES if each in saved], settings.out)
        if code:
            return Outcome(reports, code)
        reports.append(report)
    if reports:
        draw(reports, settings.out / FIGURE)
    return Outcome(reports)


def _save(reports: Sequence[StageReport], out: Path) -> None:
    tree = {"stages": [dataclasses.asdict(each) | {"ratio": each.ratio} for each in reports]}
    write_atomically(out / REPORT, to_json(tree, indent=2).encode())


def _record(
    settings: Settings, report: StageReport, console: Console, progress: Callable[[int], Progress]
) -> None:
    path = settings.out / "demos"
    if _recorded(path) < settings.episodes:
        print_lines(console, f"recording {settings.episodes:,} episodes of {settings.expert} in {path}")
        begin = time.monotonic()
        options = {"seed": settings.seed, **settings.record_options}
        parts: dict[str, float] = {}
        try:
            with progress(settings.episodes) as shown:
                clock = _Clock(shown.advance)
                demos = record(
                    settings.env,
                    settings.expert,
                    settings.episodes,
                    path,
                    resume=bool(shard_files(path)),
                    n_workers=settings.n_workers,
                    advance=clock.advance,
                    timed=parts.update,
                    **options,
                )
        finally:
            seconds = time.monotonic() - begin
            report.shares = mixed(
                report.shares, report.seconds, shares_of(parts, _KINDS_OF_RECORDING), seconds
            )
            report.seconds += seconds
            report.memory_mib = max(_peak_memory(), report.memory_mib)
        report.steps_per_second = clock.rate() * demos.num_steps / settings.episodes
        if settings.compare:
            count = max(round(_SLICE * settings.episodes), 2)
            with tempfile.TemporaryDirectory() as folder:
                slow = _Clock(lambda episodes: None)
                part = record(
                    settings.env, settings.expert, count, folder, n_workers=1, advance=slow.advance, **options
                )
                report.one_worker = slow.rate() * part.num_steps / count
    demos = load(path)
    report.steps = demos.num_steps
    report.mean_return, report.deviation = float(demos.returns.mean()), float(demos.returns.std())


def _train(settings: Settings, report: StageReport, console: Console) -> int:
    """Trains the clone or the agent; returns the exit code of a stage that was interrupted or failed."""
    path = settings.out / report.name
    arguments = _arguments(settings, report.name)
    if is_run(path):
        state = read_run(path).state
        own = ["train", "--resume", str(path)] if state != "complete" else []
    else:
        own = [*arguments, f"--run-dir={path}"]
    if own:
        verb = {"clone": "cloning", "agent": "improving the clone"}[report.name]
        print_lines(console, "", f"{verb}, in {path}")
        ended = child_process.run(own)
        report.seconds += ended.seconds
        report.memory_mib = max(ended.memory_mib, report.memory_mib)
        if ended.code:
            return ended.code
    summary = read_json(path / "summary.json")
    try:
        report.steps, report.steps_per_second = int(summary["steps"]), float(summary["steps_per_second"])
        report.shares = shares_of({name: part["seconds"] for name, part in summary["parts"].items()})
        report.mean_return = score_in(summary)
        returns = (summary.get("evaluation") or {}).get("returns") or []
        report.deviation = statistics.pstdev(returns) if len(returns) > 1 else math.nan
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            f"{path / 'summary.json'} is damaged ({error!r}): remove {path} to train again"
        ) from None
    if own and report.name == "agent" and settings.compare and report.one_worker is None:
        if summary["collector"] == "sequential":
            report.one_worker = report.steps_per_second
        else:
            # A run's speed changes on the way, so that a slice is compared with the same slice.
            report.one_worker = _slice_speed(settings, arguments, ["--n-workers=1"])
            report.same_slice = _slice_speed(settings, arguments, []) if report.one_worker else None
    return 0


def _arguments(settings: Settings, name: str) -> list[str]:
    common = ["train", settings.env, f"--seed={settings.seed}"]
    if name == "clone":
        demos = settings.out / "demos"
        if not _recorded(demos):
            raise PipelineError(f"{demos} has no episodes: do not skip demos, or give --skip demos,clone")
        clone = "mabc" if find(settings.algo).many_agents else "bc"
        options = [f"--algo={clone}", f"--demos={demos}", f"--{clone}.epochs={settings.epochs}"]
        return [*common, *options, *settings.clone_options]
    options = [f"--algo={settings.algo}", f"--total-timesteps={settings.timesteps}"]
    if settings.n_workers != "auto":
        options.append(f"--n-workers={settings.n_workers}")
    if is_run(settings.out / "clone") and "clone" not in settings.skip:
        options.append(f"--init={settings.out / 'clone'}")
    return [*common, *options, *settings.agent_options]


def _slice_speed(settings: Settings, arguments: Sequence[str], workers: Sequence[str]) -> float | None:
    """Steps per second of the first part of the same training; None: it cannot have such workers.

    Args:
        workers: arguments that take the place of those about workers; empty: they stay.
    """
    steps = max(round(_SLICE * settings.timesteps), 1)
    replaced = ("--total-timesteps", "--n-workers") if workers else "--total-timesteps"
    slim = [each for each in arguments if not each.startswith(replaced)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slice"
        further = [f"--total-timesteps={steps}", *workers, "--run.eval-episodes=0", f"--run-dir={path}"]
        with new_file(Path(folder) / "log") as log:
            ended = child_process.run([*slim, *further], log)
        if ended.code:
            return None
        return float(read_json(path / "summary.json")["steps_per_second"])


class _Clock:
    """Measures the rate of episodes from the first one on, so that the start of workers does not count."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self._advance = advance
        self._first = self._last = self._count = 0.0

    def advance(self, episodes: int) -> None:
        self._last = time.monotonic()
        if not self._first:
            self._first = self._last
        else:
            self._count += episodes
        self._advance(episodes)

    def rate(self) -> float:
        """Episodes per second; NaN for fewer than two notes."""
        return self._count / (self._last - self._first) if self._count else math.nan


def _recorded(path: Path) -> int:
    """Number of whole episodes of the environment in a directory; 0 if there is no data set."""
    if not (path / "meta.json").exists() or not shard_files(path):
        return 0
    demos = load(path)
    return whole_episodes(demos) if "agents" in demos.meta else len(demos)


def _peak_memory() -> float:
    """The most main memory that this process, or one of its workers that have ended, has held, MiB."""
    users = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(who).ru_maxrss for who in users) / 1024


def _saved_reports(out: Path) -> dict[str, StageReport]:
    """Reports of earlier sessions by stage."""
    try:
        # JSON has no NaN, which is a default.
        trees = [
            {name: value for name, value in each.items() if value is not None}
            for each in read_json(out / REPORT)["stages"]
        ]
        reports = TypeAdapter(list[StageReport]).validate_python(trees)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {each.name: each for each in reports if each.name in STAGES}


def shares_of(parts: Mapping[str, float], kinds: Mapping[str, Sequence[str]] = _KINDS) -> dict[str, float]:
    """Shares of seconds by activity, summed by kind."""
    total = sum(parts.values())
    if not total:
        return {}
    shares = {kind: sum(parts.get(name, 0.0) for name in names) / total for kind, names in kinds.items()}
    return shares | {"other": 1 - sum(shares.values())}


def mixed(
    before: Mapping[str, float], seconds_before: float, shares: Mapping[str, float], seconds: float
) -> dict[str, float]:
    """Shares of two sessions together."""
    if not before or not shares:
        return dict(shares or before)
    total = seconds_before + seconds
    return {kind: (before[kind] * seconds_before + share * seconds) / total for kind, share in shares.items()}


def print_report(reports: Sequence[StageReport], console: Console) -> None:
    """Prints a row for each stage."""
    table = Table()
    for name in ("stage", "time", "memory", "steps", "steps/s", "one worker", "ratio"):
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for name in (*_KINDS, "return"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in reports:
        table.add_row(
            each.name,
            duration(each.seconds),
            f"{each.memory_mib:,.0f} MiB",
            f"{each.steps:,}",
            brief(each.steps_per_second),
            "-" if each.one_worker is None else brief(each.one_worker),
            brief(each.ratio),
            *(percent(each.shares.get(kind, math.nan)) for kind in _KINDS),
            brief(each.mean_return),
        )
    show(console, table)


def draw(reports: Sequence[StageReport], path: Path) -> None:
    """Draws each stage's time, what that was spent on, and the return into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    times, shares, returns = figure.subplots(1, 3)
    names = [each.name for each in reports]
    bars = times.bar(names, [each.seconds for each in reports], width=0.6, color="0.6")
    times.bar_label(bars, [duration(each.seconds) for each in reports], padding=2)
    times.margins(y=0.12)
    times.set_ylabel("seconds")
    times.set_title("time of each stage")
    # Stages without an account are left out of it.
    known = [each for each in reports if each.shares]
    labels, bottom = [each.name for each in known], [0.0] * len(known)
    for kind in (*_KINDS, "other"):
        heights = [100 * each.shares[kind] for each in known]
        shares.bar(labels, heights, 0.6, bottom, label=kind, color=_COLORS[kind])
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    shares.set_ylim(0, 100)
    shares.set_ylabel("%")
    shares.set_title("what it was spent on")
    if known:
        figure.legend(*shares.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    scored = [each for each in reports if math.isfinite(each.mean_return)]
    errors = [0.0 if math.isnan(each.deviation) else each.deviation for each in scored]
    labels = ["expert" if each.name == "demos" else each.name for each in scored]
    returns.errorbar(labels, [each.mean_return for each in scored], errors, fmt="o", capsize=4, color="C0")
    for place, each in enumerate(scored):
        returns.annotate(
            brief(each.mean_return),
            (place, each.mean_return),
            (7, 0),
            textcoords="offset points",
            va="center",
        )
    returns.margins(x=0.4)
    returns.set_ylabel("return: mean, deviation")
    returns.set_title("return after each stage")
    for axes in (times, shares, returns):
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    save_figure(path, figure, dpi=150)
