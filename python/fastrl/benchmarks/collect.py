"""Comparison of collectors on one environment: speed, scaling with workers, costs.

Each measurement runs in a process of its own, so that none is affected by the processes, modules and memory of another.
Episodes are taken as they end (`Collector.take`) while the collector continues, and new weights are published after
as many episodes as an update has; there is no learning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import signal
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Collector, Plan
from fastrl.collectors.resources import WorkerCount, cores, memory_of
from fastrl.envs.spec import EnvSpec
from fastrl.networks.compiled_actor import MlpActor, RandomActor
from fastrl.training.metrics import counted
from fastrl.utils.errors import UserError
from fastrl.utils.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("sequential", "sync", "executor", "native", "ray")
# Methods without workers.
ALONE = ("sequential",)
# Hidden layers of a network of 1 to 2 MB, to measure the cost of weights.
LARGE = (512, 512)
# Environments of the native collector.
NATIVE_ENVS = 256
# Episodes of an update for each environment.
EPISODES_PER_ENV = 10
MANY = 100_000

# Seconds between measurements of memory, and without an episode after which a burst of episodes is over.
_MEMORY_POLL_S, _BURST_S = 0.5, 0.002
# Seconds that the first episode may take, and an interrupted measurement to exit.
_FIRST_EPISODE_S, _EXIT_S = 120.0, 20.0


class BenchError(UserError):
    """A case that cannot be measured; one line."""


@dataclass(frozen=True)
class Setting:
    """The environment, the policy and the length of measurements.

    Attributes:
        env: the environment.
        hidden: layers of a network with random weights that acts; None: random actions.
        max_steps: steps after which an episode is cut off.
        seconds: of a measurement, after all workers have started.
        envs_per_worker: environments that each worker steps together; only "sync" uses it.
    """

    env: EnvSpec
    hidden: tuple[int, ...] | None = None
    max_steps: int = 1000
    seconds: float = 5.0
    envs_per_worker: int = 1


@dataclass(frozen=True)
class Case:
    """A collector with its options.

    Attributes:
        method: the collector's name.
        workers: number of workers.
        label: name in tables.
        options: further options of the collector.
    """

    method: str
    workers: int
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Speed:
    """A measurement of a case.

    Attributes:
        seconds: duration.
        episodes, steps: collected in that time.
        episodes_per_second, steps_per_second: a step is a transition.
        cores: average number of busy cores, of this process and its children.
        memory_mib: peak memory of all of them, shared memory counted once.
        cold_start: seconds from the construction of the collector to its first episode.
        parts: shares of the workers' time by activity; without workers, of this process's.
        failures: number of failures of workers.
    """

    seconds: float
    episodes: int
    steps: int
    cores: float
    memory_mib: float
    cold_start: float
    parts: Mapping[str, float]
    failures: int

    @property
    def episodes_per_second(self) -> float:
        return self.episodes / self.seconds

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


@dataclass(frozen=True)
class Result:
    """A case and its measurement, medians of all rounds.

    Attributes:
        speed_up: relative to sequential collection; None if that was not measured.
        efficiency: speed-up per worker.
        many_seconds: extrapolated seconds for 100,000 episodes, cold start included.
    """

    case: Case
    speed: Speed
    speed_up: float | None = None

    @property
    def efficiency(self) -> float | None:
        return None if self.speed_up is None else self.speed_up / self.case.workers

    @property
    def many_seconds(self) -> float:
        rate = self.speed.episodes_per_second
        return self.speed.cold_start + MANY / rate if rate else math.inf

    def to_tree(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "method": self.case.method,
            "workers": self.case.workers,
            "label": self.case.label,
            "options": dict(self.case.options),
            "episodes_per_second": self.speed.episodes_per_second,
            "steps_per_second": self.speed.steps_per_second,
            "speed_up": self.speed_up,
            "efficiency": self.efficiency,
            f"seconds_for_{MANY}_episodes_extrapolated": self.many_seconds,
            **dataclasses.asdict(self.speed),
        }


def make_plan(setting: Setting, rows: int) -> Plan:
    """A plan of whole episodes.

    Raises:
        BenchError: the environment is not there, or cannot be collected from.
    """
    try:
        env = setting.env.make()
        obs_space, action_space = env.observation_space, env.action_space
        env.close()
        if setting.hidden is None:
            make_actor: Callable[[], Any] = functools.partial(RandomActor, action_space)
        else:
            numbers = not isinstance(action_space, Discrete)
            architecture = {
                "kind": "gaussian" if numbers else "discrete",
                "obs_dim": math.prod(obs_space.shape or ()),
                "outputs": math.prod(action_space.shape or ()) if numbers else int(action_space.n),  # type: ignore[attr-defined]
                "hidden": list(setting.hidden),
                "activation": "tanh",
            }
            make_actor = functools.partial(MlpActor, architecture)
        plan = Plan(
            env=setting.env,
            make_actor=make_actor,
            obs_space=obs_space,
            action_space=action_space,
            num_envs=rows,
            num_steps=setting.max_steps,
            unit="episodes",
            episodes=EPISODES_PER_ENV * rows,
        )
        make_actor()
    except Exception as error:
        # Whatever an environment raises, its user has asked for it.
        reason = (str(error) or type(error).__name__).removeprefix("env: ").splitlines()[0]
        raise BenchError(f"--env {setting.env.id}: {reason}") from error
    return plan


def measure(setting: Setting, case: Case) -> Speed:
    """Measures a case in this process.

    Raises:
        Whatever the collector raises.
    """
    rows = NATIVE_ENVS if case.method == "native" else case.workers * setting.envs_per_worker
    plan = make_plan(setting, rows)
    weights = random_weights(plan.make_actor().weights_nbytes)
    workers: WorkerCount = "auto" if case.method in ALONE else case.workers
    began = time.perf_counter()
    with (
        make_collector(case.method, plan, n_workers=workers, **case.options) as collector,
        _Memory() as memory,
    ):
        collector.publish(weights)
        first = collector.take(_FIRST_EPISODE_S)
        if first is None:
            raise TimeoutError(f"no episode came within {_FIRST_EPISODE_S:.0f} s")
        cold_start = time.perf_counter() - began
        # Until the slowest has started, too: some were already at work on the first episode.
        _drain(collector, plan, weights, cold_start)
        cpu, parts = _cpu_seconds(), dict(collector.report().seconds)
        start = time.perf_counter()
        episodes, steps = _drain(collector, plan, weights, setting.seconds)
        passed = time.perf_counter() - start
        after = _cpu_seconds()
        report = collector.report()
        spent = {name: max(part - parts.get(name, 0.0), 0.0) for name, part in report.seconds.items()}
        whole = sum(spent.values()) or 1.0
        return Speed(
            seconds=passed,
            episodes=episodes,
            steps=steps,
            cores=sum(after[pid] - cpu.get(pid, 0.0) for pid in after) / passed,
            memory_mib=memory.most(),
            cold_start=cold_start,
            parts={name: part / whole for name, part in spent.items()},
            failures=len(report.failures),
        )


def random_weights(nbytes: int) -> NDArray[np.float32]:
    """Random weights of a network, float32 [nbytes / 4]."""
    return np.random.default_rng(0).normal(0, 0.05, nbytes // 4).astype(np.float32)


def _drain(collector: Collector, plan: Plan, weights: NDArray[np.float32], seconds: float) -> tuple[int, int]:
    """Takes fragments for ``seconds``, then the rest of a burst: environments that are stepped together end episodes
    together, and half a burst would bias the rate. Returns the numbers of episodes and steps."""
    end = time.perf_counter() + seconds
    episodes = steps = since = extra = 0
    while extra <= 2 * plan.num_envs:
        late = time.perf_counter() >= end
        fragment = collector.take(_BURST_S if late else 0.1)
        if fragment is None:
            if late:
                break
            continue
        extra += late
        episodes += len(fragment.episodes)
        steps += len(fragment)
        since += len(fragment.episodes)
        if since >= plan.episodes:
            since = 0
            collector.publish(weights)
    return episodes, steps


def _family() -> list[psutil.Process]:
    mine = psutil.Process()
    return [mine, *mine.children(recursive=True)]


def _cpu_seconds() -> dict[int, float]:
    """Seconds of CPU time by process id."""
    seconds = {}
    for process in _family():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
    return seconds


class _Memory:
    """Peak memory of this process and its children, polled by a thread."""

    def __init__(self) -> None:
        self._most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(_MEMORY_POLL_S):
            self._poll()

    def _poll(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._most = max(self._most, sum(memory_of(process.pid for process in _family())))

    def most(self) -> float:
        """MiB."""
        self._poll()
        return self._most

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def measure_apart(setting: Setting, case: Case) -> Speed:
    """As `measure`, in a process of its own.

    Raises:
        BenchError: it could not be measured; one line that says why.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_and_send, args=(setting, case, sender))
    process.start()
    sender.close()
    try:
        received = receiver.recv()
    except EOFError:
        process.join()
        raise BenchError(f"its process ended with code {process.exitcode}") from None
    except BaseException:
        process.terminate()
        process.join(_EXIT_S)
        process.kill()
        process.join()
        raise
    finally:
        receiver.close()
    process.join()
    if isinstance(received, str):
        raise BenchError(received)
    speed: Speed = received
    return speed


def _measure_and_send(setting: Setting, case: Case, sender: Connection) -> None:
    # Ctrl-C reaches every process of a terminal: the parent process decides when the measurement ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Output of the workers' libraries would disturb the table.
    with Path(os.devnull).open("w") as nowhere, contextlib.suppress(KeyboardInterrupt):
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            sender.send(measure(setting, case))
        except Exception as error:
            sender.send((str(error).strip() or traceback.format_exc()).splitlines()[0])


def cases_for(methods: Sequence[str], workers: Sequence[int]) -> list[Case]:
    """Each method with each number of workers; a method without workers once."""
    return [
        Case(method, size, method)
        for method in methods
        for size in ((1,) if method in ALONE else sorted(set(workers)))
    ]


def price_cases(workers: int) -> list[Case]:
    """The executor, and the executor or sync with each cost that it avoids: see `price_table`."""
    return [
        Case("executor", workers, "executor"),
        Case("sync", workers, "a barrier at each step (sync)"),
        Case("executor", workers, "weights pickled with each task", {"pickle_weights": True}),
        Case("executor", workers, "environments rebuilt for each task", {"rebuild": True}),
    ]


def compare(
    setting: Setting,
    cases: Sequence[Case],
    rounds: int,
    progress: Progress | None = None,
    measure: Callable[[Setting, Case], Speed] = measure_apart,
) -> tuple[list[Result], dict[str, str]]:
    """Measures all cases in turns, ``rounds`` times.

    Args:
        progress: advances by 1 with each measurement; None: no progress is shown.
        measure: the function that measures a case.

    Returns:
        Medians, in the order of the cases; and the reasons why methods could not be measured, by label.
    """
    progress = progress or silent()
    speeds: dict[int, list[Speed]] = {i: [] for i in range(len(cases))}
    missing: dict[str, str] = {}
    for turn in range(rounds):
        for i in speeds if turn % 2 == 0 else reversed(speeds):
            case = cases[i]
            # A method that has failed is not tried again.
            if case.label in missing and not any(speeds[k] for k in speeds if cases[k].label == case.label):
                progress.advance()
                continue
            who = case.label if case.method in ALONE else f"{case.label}, {counted(case.workers, 'worker')}"
            progress.describe(f"measuring {who}")
            try:
                speeds[i].append(measure(setting, case))
            except BenchError as error:
                missing[case.label] = str(error)
            progress.advance()
    results = [Result(cases[i], _median(several)) for i, several in speeds.items() if several]
    base = next((each.speed.steps_per_second for each in results if each.case.method in ALONE), None)
    if base:
        results = [dataclasses.replace(each, speed_up=each.speed.steps_per_second / base) for each in results]
    return results, missing


def _median(several: Sequence[Speed]) -> Speed:
    """The measurement of median speed, with the most memory and the median start of all."""
    middle = sorted(several, key=lambda speed: speed.steps_per_second)[(len(several) - 1) // 2]
    return dataclasses.replace(
        middle,
        memory_mib=max(speed.memory_mib for speed in several),
        cold_start=statistics.median(speed.cold_start for speed in several),
        failures=sum(speed.failures for speed in several),
    )


def title(setting: Setting) -> str:
    """The environment, the policy and the machine in a line."""
    options = ", ".join(f"{name}={value}" for name, value in setting.env.options.items())
    env = f"{setting.env.id}({options})" if options else setting.env.id
    acting = "random actions" if setting.hidden is None else f"a network of {setting.hidden} acting"
    return f"{env}, {acting}, {counted(cores(), 'core')}"


def speed_table(results: Sequence[Result], setting: Setting) -> Table:
    """The results as a table."""
    table = Table(
        title=title(setting),
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    table.add_column("collector", no_wrap=True)
    names = ("workers", "episodes/s", "steps/s", "speed-up", "each", "cores", "MiB", "start", "100,000*")
    for name in names:
        table.add_column(name, justify="right")
    before = ""
    for result in results:
        if before and result.case.method != before:
            table.add_section()
        before = result.case.method
        speed = result.speed
        table.add_row(
            result.case.label,
            "-" if result.case.method in ALONE else str(result.case.workers),
            f"{speed.episodes_per_second:,.1f}",
            f"{speed.steps_per_second:,.0f}",
            "" if result.speed_up is None else f"{result.speed_up:.2f}",
            "" if result.efficiency is None else f"{result.efficiency:.0%}",
            f"{speed.cores:.2f}",
            f"{speed.memory_mib:,.0f}",
            f"{speed.cold_start:.1f}",
            long_time(result.many_seconds),
        )
    table.caption = (
        "speed-up: steps/s relative to sequential; each: speed-up per worker;\n"
        "cores: busy on average; MiB: peak memory of all processes;\n"
        "start: seconds until the first episode; 100,000*: time for 100,000\n"
        "episodes, extrapolated from the measurement, start included"
    )
    return table


def price_table(results: Sequence[Result], setting: Setting) -> Table:
    """The costs that the executor avoids: barriers, pickled weights, rebuilt environments."""
    by_label = {result.case.label: result for result in results}
    base = by_label["executor"]
    table = Table(
        title=f"{counted(base.case.workers, 'worker')}, {title(setting)}",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for name in ("episodes/s", "steps/s", "times", "cores", "weights"):
        table.add_column(name, justify="right")
    for label, result in by_label.items():
        table.add_row(
            label,
            f"{result.speed.episodes_per_second:,.1f}",
            f"{result.speed.steps_per_second:,.0f}",
            f"{base.speed.steps_per_second / result.speed.steps_per_second:.2f}",
            f"{result.speed.cores:.2f}",
            f"{result.speed.parts.get('weights', 0.0):.2%}",
        )
    table.caption = (
        "times: duration relative to the executor; weights: share of the workers' time\nfor reading weights"
    )
    return table


def long_time(seconds: float) -> str:
    """``12 s``, ``3.4 min``, ``5.6 h``."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


_COLOURS = {
    "sequential": "#737373",
    "sync": "#d95f0e",
    "executor": "#2a7fb8",
    "native": "#41ab5d",
    "ray": "#6a51a3",
}


def draw(results: Sequence[Result], setting: Setting, path: Path) -> None:
    """Writes `figure_of` as a PNG."""
    figure_of(results, setting).savefig(path, dpi=110)


def figure_of(results: Sequence[Result], setting: Setting) -> Figure:
    """Steps a second, speed-up, memory and cold start by the number of workers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    panels: list[tuple[str, Callable[[Result], float | None]]] = [
        ("steps/s", lambda result: result.speed.steps_per_second),
        ("speed-up against sequential", lambda result: result.speed_up),
        ("peak memory, MiB", lambda result: result.speed.memory_mib),
        ("cold start, s", lambda result: result.speed.cold_start),
    ]
    sizes = sorted({result.case.workers for result in results})
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (name, value) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        lines = list(_lines(results, value))
        heights = [y for _, _, points in lines for _, y in points]
        for label, colour, points in lines:
            if label in ALONE:
                axes.axhline(points[0][1], color=colour, linestyle="--", label=label)
            else:
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
        if name.startswith("speed-up"):
            axes.plot(sizes, sizes, ":", color="#bdbdbd", label="ideal")
        axes.set(title=name, xlabel="workers", xscale="log", xticks=sizes, xticklabels=sizes)
        if heights and max(heights) > 20 * min(heights) > 0:
            axes.set_yscale("log")
            # Powers of ten alone may be one tick.
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.set_ylim(bottom=0)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(color="#eeeeee")
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(
        *figure.axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False
    )
    figure.suptitle(title(setting))
    return figure


def _lines(
    results: Sequence[Result], value: Callable[[Result], float | None]
) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
    """Label, colour and points of each method that has some."""
    for method in dict.fromkeys(result.case.method for result in results):
        points = [
            (result.case.workers, y)
            for result in results
            if result.case.method == method and (y := value(result)) is not None
        ]
        if points:
            yield method, _COLOURS.get(method, "black"), sorted(points)
