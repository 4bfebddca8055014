"""Comparison of transports of experience from the actors of ``fastrl train pixels`` to their learner.

    python benches/compare_transports.py --env ALE/Pong-v5

`fastrl.queue` is compared with `peer_transports`; actors, replay and learner are the same in all measurements.
"""

import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fastrl.algorithms.dqn import DQN
from fastrl.cli.arguments import import_from_here
from fastrl.cli.main import run_command
from fastrl.collectors.counters import Times
from fastrl.collectors.transport import QueueTransport, Transport
from fastrl.tasks.pixels.task import TASK
from fastrl.training.device import use_threads
from fastrl.training.metrics import counted
from fastrl.training.replay_actors import ActorProcesses
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, build, check
from fastrl.utils.files import to_json
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, silent
from fastrl.utils.tables import show
from fastrl.utils.timer import Stopwatch
from peer_transports import LockedTransport, NoTransport, PicklingTransport
from rounds import add_round_options, number_table, turns

CONFIG_TYPE = TASK.settings_type("dqn")
# Default settings, so that mostly the transport is measured: frames of Atari's size from a game that costs next to
# nothing, random actions and a small learner.
SETTINGS: dict[str, dict[str, Any]] = {
    "env": {"id": "fastrl/Catch-v0", "size": 84, "frame_skip": 1, "noop_max": 0, "clip_reward": False},
    "replay": {"capacity": 50_000, "learning_starts": 2_000},
    "dqn": {"conv": ["8x8/8"], "hidden": [32], "batch_size": 32, "epsilon": 1.0, "final_epsilon": 1.0},
}


@dataclass(frozen=True)
class Flow:
    """Results of one transport; rates per second, medians over the rounds.

    Attributes:
        transport: its name.
        experience: environment steps that the actors made.
        taken: environment steps that the replay took in.
        batches: minibatches that were learned from.
        transport_share: share of the actors' time, waiting for room included.
        wait_share: share of the actors' time that they waited for room or a lock.
        dropped: number of lost rows.
    """

    transport: str
    experience: float
    taken: float
    batches: float
    transport_share: float
    wait_share: float
    dropped: int


OURS = "fastrl.queue"


def make_transport(name: str, fragment: int, row: np.dtype[Any], capacity: int, senders: int) -> Transport:
    """One of `TRANSPORTS`; see `fastrl.training.replay_actors.TransportFactory`."""
    if name == OURS:
        return QueueTransport(row, capacity, senders)
    if name == "multiprocessing.Queue":
        return PicklingTransport(row, capacity, senders, fragment)
    return LockedTransport(row, capacity, senders) if name == "lock and buffer" else NoTransport()


TRANSPORTS = (OURS, "multiprocessing.Queue", "lock and buffer", "nothing")


def measure(name: str, settings: Any, seconds: float) -> Flow:
    """Measures a transport for ``seconds``, after all actors and the learner have started.

    Raises:
        RuntimeError: an actor died.
    """
    use_threads(settings.run.torch_threads)
    source = TASK.make_source(settings, DQN, Console(quiet=True))
    source.make_transport = functools.partial(make_transport, name, settings.collect.fragment)
    dqn, watch = DQN(settings.dqn, source.problem(total_timesteps=1, seed=0, device="cpu")), Stopwatch()
    source.attach(dqn)
    batches = 0
    with source:
        actors, replay = source.actors, source.minibatches.replay
        assert isinstance(actors, ActorProcesses) and replay is not None

        def learn(actors: ActorProcesses) -> None:
            nonlocal batches
            if isinstance(actors.transport, NoTransport):
                actors.ingest.steps = actors.counters.collected()
            batch = source.next(watch)
            if batch is not None:
                source.feedback(dqn.update(batch, watch))
                batches += 1
            if actors.restarts:
                raise RuntimeError("an actor died")

        def totals(actors: ActorProcesses) -> tuple[int, int, int, Times, float]:
            return (
                actors.counters.collected(),
                actors.steps,
                batches,
                actors.counters.times(),
                actors.transport.waited(),
            )

        if isinstance(actors.transport, NoTransport):
            # Transitions to learn from, which no transport brings.
            rows = settings.replay.learning_starts + settings.env.num_envs
            replay.append(np.zeros(rows, replay.dtype))
        while batches == 0 or not all(actors.counters.steps_of(i) for i in range(actors.counters.collectors)):
            learn(actors)

        before = totals(actors)
        start = time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            learn(actors)
        after = totals(actors)
        times = after[3].since(before[3])
        return Flow(
            transport=name,
            experience=(after[0] - before[0]) / passed,
            taken=(after[1] - before[1]) / passed,
            batches=(after[2] - before[2]) / passed,
            transport_share=times.shares()["queue"],
            wait_share=(after[4] - before[4]) / max(times.seconds, 1e-9),
            dropped=actors.dropped,
        )


def compare(
    settings: Any, seconds: float, rounds: int, progress: Progress | None = None
) -> dict[str, list[Flow]]:
    """All `TRANSPORTS` in turns, ``rounds`` times. Each measurement adds 1 to the progress."""
    progress = progress or silent()
    flows: dict[str, list[Flow]] = {name: [] for name in TRANSPORTS}
    for name in turns(TRANSPORTS, rounds):
        progress.describe(f"measuring {name}, round {len(flows[name]) + 1} of {rounds}")
        flows[name].append(measure(name, settings, seconds))
        progress.advance()
    return flows


def medians(flows: Mapping[str, list[Flow]]) -> list[Flow]:
    """Medians over the rounds, and the sums of what was dropped, by transport."""
    rates = ("experience", "taken", "batches", "transport_share", "wait_share")
    return [
        Flow(
            transport=name,
            dropped=sum(flow.dropped for flow in several),
            **{rate: statistics.median(getattr(flow, rate) for flow in several) for rate in rates},
        )
        for name, several in flows.items()
    ]


def flow_table(flows: list[Flow], settings: Any) -> Table:
    """The measurements as a table."""
    ours = next(flow for flow in flows if flow.transport == OURS)
    table = number_table(
        f"{settings.env.id}, {counted(settings.collect.n_workers, 'actor')} with"
        f" {counted(settings.env.num_envs, 'game')}, fragments of {settings.collect.fragment}",
        "transport",
        *("steps/s", "ours is", "sending", "waiting", "dropped", "batches/s"),
    )
    for flow in flows:
        table.add_row(
            flow.transport,
            f"{flow.experience:,.0f}",
            f"{ours.experience / flow.experience:.2f} x" if flow.experience else "",
            f"{flow.transport_share:.2%}",
            f"{flow.wait_share:.2%}",
            f"{flow.dropped:,}",
            f"{flow.batches:,.1f}",
        )
    return table


def make_parser(prog: str) -> ArgumentParser:
    """The parser of the command line."""
    parser = ArgumentParser(
        prog=prog,
        usage="%(prog)s [options]",
        description="Compares four transports of experience from actors to a learner, in turns: fastrl.queue,"
        " multiprocessing.Queue, one buffer with a lock, and none.",
        epilog="Every setting of fastrl train pixels can be given. The defaults are those [in brackets], except for\n"
        f"{_settings_of(SETTINGS)}\n"
        "That is a cheap game, random actions and a small learner, so that mostly the transport is"
        " measured. With another --env, replay and learner keep this size, and all other settings are those of"
        " that environment's preset.",
    )
    add_round_options(parser, rounds=3)
    add_options(parser, CONFIG_TYPE)
    return parser


def command(prog: str, arguments: list[str]) -> int:
    """Compares transports of experience from actors to a learner; returns the exit code."""
    options = make_parser(prog).parse_args(arguments)
    layers = [check(CONFIG_TYPE, SETTINGS, "defaults"), read_arguments(CONFIG_TYPE, options)]
    settings = build(CONFIG_TYPE, *layers)
    env_id = settings.env.id
    import_from_here(env_id)
    if env_id != SETTINGS["env"]["id"]:
        layers[0] = {key: value for key, value in layers[0].items() if not key.startswith("env.")}
        layers = [TASK.preset_values(CONFIG_TYPE, name) for name in TASK.default_presets(settings)] + layers
    settings = build(CONFIG_TYPE, *layers)
    try:
        with Progress("measuring", options.rounds * len(TRANSPORTS)) as progress:
            flows = medians(compare(settings, options.seconds, options.rounds, progress))
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(str(error)) from error
    if options.json:
        print(to_json([dataclasses.asdict(flow) for flow in flows], indent=2))
    else:
        show(plain_console(), flow_table(flows, settings))
    return 0


def _settings_of(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """The options that give these settings."""
    return " ".join(
        _option(f"{table}.{name}".replace("_", "-"), value)
        for table, own in tree.items()
        for name, value in own.items()
    )


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value)


if __name__ == "__main__":
    sys.exit(run_command(command, Path(__file__).name, sys.argv[1:]))
