"""The command line: ``fastrl train | eval | render | replay | bench``, and ``fastrl-train`` for the first.

Each command imports what it needs when it runs: PyTorch takes seconds, ``fastrl --help`` should not.
"""

import errno
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastrl.cli.arguments import at_least, import_from_here, positive, print_error
from fastrl.cli.bench import bench_collect
from fastrl.cli.eval import evaluate
from fastrl.cli.render import render
from fastrl.cli.replay import replay
from fastrl.cli.train import train
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import (
    ConfigError,
    build,
    check,
    nearest,
)
from fastrl.utils.errors import UserError
from fastrl.utils.output import ignoring_write_errors, plain_console, redirect_to_null, repair_streams
from fastrl.utils.processes import require_main_guard
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import show


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl``.

    Args:
        argv: what follows the command's name; None for that of this process.

    Returns:
        The exit code: 0; 1 for a failure; 2 for a user's mistake; 128 + n where signal n ended it. It is that of the
        run itself where training outlives its stdout; other commands fail with it.
    """
    arguments = [str(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    if arguments and arguments[0] in COMMANDS:
        return _run(COMMANDS[arguments[0]][0], f"fastrl {arguments[0]}", arguments[1:])
    return _run(_umbrella, "fastrl", arguments)


def main_train(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl-train``, which is ``fastrl train``."""
    return _run(train, "fastrl-train", [str(a) for a in (sys.argv[1:] if argv is None else argv)])


def _run(command: Callable[[str, list[str]], int], prog: str, arguments: list[str]) -> int:
    """Runs a command; what a user can do something about ends in one line, not in a traceback."""
    require_main_guard()
    repair_streams()
    with ignoring_write_errors("stderr"):
        try:
            return _code_of(command, prog, arguments)
        finally:
            # Python would fail when it flushes at the end.
            try:
                sys.stdout.flush()
            except OSError:
                redirect_to_null(sys.stdout.fileno())


def _code_of(command: Callable[[str, list[str]], int], prog: str, arguments: list[str]) -> int:
    try:
        code = command(prog, arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(prog, error, 2)
    except KeyboardInterrupt:
        return _fail(prog, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read the output has had enough.
        return 128 + signal.SIGPIPE
    except MemoryError as error:
        return _fail(
            prog, f"not enough memory: {error}; a smaller --num-envs or --replay.capacity needs less", 1
        )
    except FloatingPointError as error:
        return _fail(prog, error, 1)
    except RuntimeError as error:
        from fastrl.collectors.protocol import CollectError

        if not isinstance(error, CollectError):
            raise
        # First the traceback of the environment's code, then one line.
        if error.traceback:
            print(error.traceback.rstrip(), file=sys.stderr)
        return _fail(prog, str(error).splitlines()[0], 1)
    except OSError as error:
        if error.errno is None:
            raise
        where = "on a disk, or in /dev/shm, which processes share" if error.errno == errno.ENOSPC else ""
        name = error.filename or where
        return _fail(prog, f"{error.strerror}{f': {name}' if name else ''}", 1)


def _fail(prog: str, message: object, code: int) -> int:
    print_error(prog, message)
    return code


def _umbrella(prog: str, arguments: list[str]) -> int:
    parser = ArgumentParser(
        prog=prog,
        usage="fastrl [-h] [--version] COMMAND ...",
        description="\n".join(
            [
                "Trains reinforcement-learning agents in compiled simulators.",
                "",
                "commands:",
                *(f"  {name:<8}{description}" for name, (_, description) in COMMANDS.items()),
            ]
        ),
        epilog="fastrl COMMAND --help tells more.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    if arguments and not arguments[0].startswith("-"):
        parser.error(f"unknown command {arguments[0]}; did you mean {nearest(arguments[0], COMMANDS)}?")
    if parser.parse_args(arguments).version:
        from fastrl._native._rust import __version__

        print(f"fastrl {__version__}")
    else:
        parser.print_help()
    return 0


def bench(prog: str, arguments: list[str]) -> int:
    """Measures on this machine: the simulator's speed, the pixel pipeline beside others, or ways of collecting."""
    if arguments and arguments[0] == "collect":
        return bench_collect(f"{prog} collect", arguments[1:])
    if arguments and arguments[0] == "pixels":
        return _bench_pixels(f"{prog} pixels", arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        if arguments[0] != "cage2":
            names = ("cage2", "pixels", "collect")
            raise ConfigError(f"cannot measure {arguments[0]}; did you mean {nearest(arguments[0], names)}?")
        arguments = arguments[1:]
    from dataclasses import asdict

    from fastrl.benchmarks.cage2 import SIZES, measure, speed_table
    from fastrl.utils.files import to_json

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [cage2] [options]\n       {prog} pixels [options], see {prog} pixels --help"
        f"\n       {prog} collect [options], see {prog} collect --help",
        description="Measures how many steps a second the simulator of CAGE Challenge 2 makes, on one thread and on"
        " all cores; pixels: the way from games to a learner; collect: ways to collect experience.",
    )
    parser.add_argument(
        "--seconds", type=positive, default=1.0, metavar="FLOAT", help="seconds of each measurement [1]"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    # One game cannot be shared out.
    cases = [(num_envs, threads) for num_envs in SIZES for threads in ((1, 0) if num_envs > 1 else (1,))]
    speeds = []
    with Progress("measuring", len(cases)) as progress:
        for num_envs, threads in cases:
            progress.describe(f"measuring {num_envs:,} games, {'all cores' if threads == 0 else '1 thread'}")
            speeds.append(measure(num_envs, threads, options.seconds))
            progress.advance()
    if options.json:
        print(to_json([asdict(speed) for speed in speeds], indent=2))
    else:
        show(plain_console(), speed_table(speeds))
    return 0


def _bench_pixels(prog: str, arguments: list[str]) -> int:
    from dataclasses import asdict

    load_torch(arguments)
    from fastrl.benchmarks.pixels import WAYS, compare, flow_table
    from fastrl.tasks.pixels.settings import BENCH
    from fastrl.tasks.pixels.task import TASK
    from fastrl.utils.files import to_json

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [options]",
        description="Compares four ways from actors to a learner, in turns: fastrl.queue, multiprocessing.Queue,"
        " one buffer with a lock, and nothing handed over.",
        epilog="Every setting of fastrl train pixels can be given. The defaults are those [in brackets], except for\n"
        f"{_settings_of(BENCH)}\n"
        "That is a cheap game, random actions and a small learner, so that the way between them is what is"
        " measured. With another --env, replay and learner keep this size, and all other settings are those of"
        " that environment's preset.",
    )
    parser.add_argument(
        "--seconds", type=positive, default=5.0, metavar="FLOAT", help="seconds of each measurement [5]"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        metavar="INT",
        help="how often each of the four is measured [3]",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    config_type = TASK.settings_type(TASK.run.algorithm)
    add_options(parser, config_type)
    options = parser.parse_args(arguments)
    layers = [check(config_type, BENCH, "bench"), read_arguments(config_type, options)]
    env_id = build(config_type, *layers).env.id
    import_from_here(env_id)
    if env_id != BENCH["env"]["id"]:
        layers[0] = {key: value for key, value in layers[0].items() if not key.startswith("env.")}
        layers = [TASK.preset_values(config_type, name) for name in TASK.default_presets(env_id)] + layers
    settings = build(config_type, *layers)
    try:
        with Progress("measuring", options.rounds * len(WAYS)) as progress:
            flows = compare(settings, options.seconds, options.rounds, progress)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(str(error)) from error
    if options.json:
        print(to_json([asdict(flow) for flow in flows], indent=2))
    else:
        show(plain_console(), flow_table(flows, settings))
    return 0


def _settings_of(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Options that say the same."""
    pairs = (f"--{table}.{name}={_text(value)}" for table, own in tree.items() for name, value in own.items())
    return " ".join(pairs)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


COMMANDS: dict[str, tuple[Callable[[str, list[str]], int], str]] = {
    "train": (train, "train on CAGE Challenge 2, any Gymnasium environment, from pixels or in traffic"),
    "eval": (evaluate, "score runs, checkpoints or baselines"),
    "render": (render, "show episodes in traffic: a film, a log of trajectories, a diagram"),
    "replay": (replay, "check the simulator against traces of the real CybORG"),
    "bench": (
        bench,
        "measure on this machine: the simulator, the pixel pipeline, ways to collect experience",
    ),
}
