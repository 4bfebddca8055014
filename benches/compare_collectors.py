"""Comparison of collectors on one environment: speed, scaling with workers, costs.

    python benches/compare_collectors.py --env fastrl/Cage2-v0 --network 64,64 --workers 1,2

Each measurement runs in a process of its own, so that none is affected by the processes, modules and memory of another.
Episodes are taken as they end (`Collector.take`) while the collector continues, and new weights are published after
as many episodes as an update has; there is no learning.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import collector_report
from fastrl.cli.arguments import at_least, import_from_here, path
from fastrl.cli.main import run_command
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Collector, Plan
from fastrl.collectors.resources import WorkerCount, memory_of
from fastrl.envs.spec import EnvSpec
from fastrl.runs.metrics import counted
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError, nearest
from fastrl.utils.env_options import read_options
from fastrl.utils.errors import UserError
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from fastrl.utils.tables import show
from plans import make_plan, random_weights
from rounds import add_round_options, turns

METHODS = ("sequential", "sync", "executor", "native", "ray")
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

    @property
    def has_workers(self) -> bool:
        return self.method != "sequential"


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


def plan_for(setting: Setting, num_envs: int) -> Plan:
    """A plan of whole episodes.

    Raises:
        BenchError: the environment is not there, or cannot be collected from.
    """
    try:
        return make_plan(
            setting.env,
            num_envs,
            setting.max_steps,
            setting.hidden,
            unit="episodes",
            episodes=EPISODES_PER_ENV * num_envs,
        )
    except Exception as error:
        # Whatever an environment raises, its user has asked for it.
        reason = (str(error) or type(error).__name__).removeprefix("env: ").splitlines()[0]
        raise BenchError(f"--env {setting.env.id}: {reason}") from error


def measure(setting: Setting, case: Case) -> Speed:
    """Measures a case in this process.

    Raises:
        Whatever the collector raises.
    """
    num_envs = NATIVE_ENVS if case.method == "native" else case.workers * setting.envs_per_worker
    plan = plan_for(setting, num_envs)
    weights = random_weights(plan)
    workers: WorkerCount = case.workers if case.has_workers else "auto"
    start = time.perf_counter()
    with (
        make_collector(case.method, plan, n_workers=workers, **case.options) as collector,
        _Memory() as memory,
    ):
        collector.publish(weights)
        first = collector.take(_FIRST_EPISODE_S)
        if first is None:
            raise TimeoutError(f"no episode came within {_FIRST_EPISODE_S:.0f} s")
        cold_start = time.perf_counter() - start
        # Until the slowest has started, too: some were already at work on the first episode.
        drain(collector, plan, weights, cold_start)
        cpu, parts = _cpu_seconds(), dict(collector.report().seconds)
        start = time.perf_counter()
        episodes, steps = drain(collector, plan, weights, setting.seconds)
        passed = time.perf_counter() - start
        after = _cpu_seconds()
        report = collector.report()
        added = {name: max(part - parts.get(name, 0.0), 0.0) for name, part in report.seconds.items()}
        whole = sum(added.values()) or 1.0
        return Speed(
            seconds=passed,
            episodes=episodes,
            steps=steps,
            cores=sum(after[pid] - cpu.get(pid, 0.0) for pid in after) / passed,
            memory_mib=memory.peak(),
            cold_start=cold_start,
            parts={name: part / whole for name, part in added.items()},
            failures=len(report.failures),
        )


def drain(collector: Collector, plan: Plan, weights: NDArray[np.float32], seconds: float) -> tuple[int, int]:
    """Takes fragments for ``seconds``, then the rest of a burst: environments that are stepped together end episodes
    together, and half a burst would bias the rate. Returns the numbers of episodes and steps."""
    end = time.perf_counter() + seconds
    episodes = steps = unpublished = extra = 0
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
        unpublished += len(fragment.episodes)
        if unpublished >= plan.episodes:
            unpublished = 0
            collector.publish(weights)
    return episodes, steps


def _processes() -> list[psutil.Process]:
    """This process and all of its children."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_seconds() -> dict[int, float]:
    """Seconds of CPU time by process id."""
    seconds = {}
    for process in _processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
    return seconds


class _Memory:
    """Peak memory of this process and its children, polled by a thread."""

    def __init__(self) -> None:
        self._peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(_MEMORY_POLL_S):
            self._poll()

    def _poll(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._peak = max(self._peak, sum(memory_of(process.pid for process in _processes())))

    def peak(self) -> float:
        """MiB."""
        self._poll()
        return self._peak

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def measure_apart(setting: Setting, case: Case) -> Speed:
    """See `measure`; in a process of its own.

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
    sizes = sorted(set(workers))
    return [
        Case(method, size, method)
        for method in methods
        for size in (sizes if Case(method, 1).has_workers else (1,))
    ]


def price_cases(workers: int) -> list[Case]:
    """The executor, and the executor or sync with each cost that it avoids: see `collector_report.price_table`."""
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
    progress: Progress,
    measure: Callable[[Setting, Case], Speed] = measure_apart,
) -> tuple[list[Result], dict[str, str]]:
    """Measures all cases in turns, ``rounds`` times.

    Args:
        progress: advances by 1 with each measurement.
        measure: the function that measures a case.

    Returns:
        Medians, in the order of the cases; and the reasons why methods could not be measured, by label.
    """
    speeds: dict[int, list[Speed]] = {i: [] for i in range(len(cases))}
    missing: dict[str, str] = {}
    for i in turns(speeds, rounds):
        case = cases[i]
        # A method that has failed is not tried again.
        if case.label in missing and not any(speeds[k] for k in speeds if cases[k].label == case.label):
            progress.advance()
            continue
        workers = f", {counted(case.workers, 'worker')}" if case.has_workers else ""
        progress.describe(f"measuring {case.label}{workers}")
        try:
            speeds[i].append(measure(setting, case))
        except BenchError as error:
            missing[case.label] = str(error)
        progress.advance()
    results = [Result(cases[i], _median(several)) for i, several in speeds.items() if several]
    base = next((each.speed.steps_per_second for each in results if not each.case.has_workers), None)
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


def make_parser(prog: str) -> ArgumentParser:
    """The parser of the command line."""
    parser = ArgumentParser(
        prog=prog,
        description="Compares collectors on one environment, each with several numbers of workers, and measures the"
        " costs that the executor avoids: barriers, pickled weights, rebuilt environments. Whole episodes are"
        " collected, without learning.",
        epilog="environments: fastrl/Cage2-v0; fastrl/Uneven-v0, whose steps sleep for uneven times (or compute, with"
        " --env-options busy=true); fastrl/CybORG-v0, where CybORG is installed; any of Gymnasium's;"
        " module:factory",
    )
    parser.add_argument(
        "--env",
        default="fastrl/Uneven-v0",
        metavar="ID",
        help="environment, see below [fastrl/Uneven-v0]",
    )
    parser.add_argument(
        "--env-options",
        metavar="KEY=VALUE",
        nargs="+",
        default=[],
        help="keyword arguments of the environment",
    )
    parser.add_argument(
        "--workers", default="1,2,4,8", metavar="N,N,...", help="numbers of workers [1,2,4,8]"
    )
    parser.add_argument(
        "--methods",
        default=",".join(METHODS),
        metavar="NAME,...",
        help=f"collectors [{','.join(METHODS)}]",
    )
    parser.add_argument(
        "--envs-per-worker",
        type=at_least(1),
        default=1,
        metavar="INT",
        help="sync: environments that each worker steps together [1]",
    )
    parser.add_argument(
        "--network",
        metavar="N,N,...",
        help="hidden layers of a network with random weights that chooses the actions [random actions]",
    )
    add_round_options(parser, rounds=1)
    parser.add_argument(
        "--max-steps",
        type=at_least(1),
        default=1000,
        metavar="INT",
        help="steps after which an episode is cut off [1000]",
    )
    parser.add_argument(
        "--no-prices",
        action="store_true",
        help="do not measure barriers, pickled weights and rebuilt environments",
    )
    parser.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        help="write compare-collectors.json and compare-collectors.png there [none]",
    )
    return parser


def command(prog: str, arguments: list[str]) -> int:
    """Compares collectors on an environment; returns the exit code."""
    options = make_parser(prog).parse_args(arguments)
    workers = _numbers("--workers", options.workers)
    methods = [name.strip() for name in options.methods.split(",")]
    for name in methods:
        if name not in METHODS:
            raise ConfigError(
                f"--methods: unknown collector {name!r}; did you mean {nearest(name, METHODS)}?"
            )
    setting = Setting(
        env=EnvSpec(options.env, read_options(options.env_options)),
        hidden=None if options.network is None else _numbers("--network", options.network),
        max_steps=options.max_steps,
        seconds=options.seconds,
        envs_per_worker=options.envs_per_worker,
    )
    import_from_here(options.env)
    plan_for(setting, max(workers))
    out = options.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)

    console = plain_console(quiet=options.json)
    cases = cases_for(methods, workers)
    prices = [] if options.no_prices else price_cases(max(workers))
    # Small weights cost nothing, so costs are measured with a large network.
    large = setting if setting.hidden is not None else dataclasses.replace(setting, hidden=LARGE)
    with Progress("measuring", options.rounds * (len(cases) + len(prices))) as progress:
        results, missing = compare(setting, cases, options.rounds, progress)
        priced, unpriced = compare(large, prices, options.rounds, progress)
    for name, why in (missing | unpriced).items():
        show(console, f"{name} left out: {why}")
    if not results:
        raise BenchError("; ".join(f"{name}: {why}" for name, why in missing.items()))
    show(console, collector_report.speed_table(results, setting))
    if any(result.case.label == "executor" for result in priced):
        console.print()
        show(console, collector_report.price_table(priced, large))
    tree = {
        "env": options.env,
        "options": dict(setting.env.options),
        "seconds": options.seconds,
        "rounds": options.rounds,
        "network": setting.hidden,
        "results": [result.to_tree() for result in results],
        "prices": {"network": large.hidden, "results": [result.to_tree() for result in priced]},
        "left_out": missing | unpriced,
    }
    text = to_json(tree, indent=2)
    if out is not None:
        write_atomically(out / "compare-collectors.json", text.encode())
        collector_report.draw(results, setting, out / "compare-collectors.png")
        console.print(
            f"\nwritten: {out / 'compare-collectors.json'}, {out / 'compare-collectors.png'}", highlight=False
        )
    if options.json:
        print(text)
    return 0


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(at_least(1)(part) for part in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{option}: {error}") from None


if __name__ == "__main__":
    sys.exit(run_command(command, Path(__file__).name, sys.argv[1:]))
