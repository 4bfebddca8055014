"""``fastrl train ... --seeds 0-9``: a run for each seed."""

import functools
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import connection, forkserver, parent_process
from pathlib import Path
from typing import TYPE_CHECKING

from fastrl.cli.arguments import seed
from fastrl.utils.config import ConfigError
from fastrl.utils.files import append_file
from fastrl.utils.names import folder_name
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from fastrl.cli.run_arguments import Command

# Options of a new run that a run to resume does not take: it has its settings.
_OF_NEW_RUNS = ("--preset", "--config")
# Seeds of a range.
_MOST = 10_000
# Modules that every run needs, which take seconds to load: once for all seeds. Users' code is not among them, since it
# may start threads, which a copied process must not have.
_PRELOAD = (
    "torch",
    "fastrl.cli.seeds",
    "fastrl.cli.main",
    "fastrl.training.run",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
)


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list of numbers and ranges such as ``0-4,7``.

    Raises:
        ConfigError: it is no such list, or names a seed twice.
    """
    import argparse

    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            start = seed(first.strip())
            end = seed(last.strip()) if dash else start
            if not start <= end < start + _MOST:
                raise argparse.ArgumentTypeError
            seeds += range(start, end + 1)
    except argparse.ArgumentTypeError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"--seeds should be different integers from 0 on, such as 0,1,2 or 0-9, got {text!r}"
        )
    return seeds


def train_all(command: "Command", arguments: Sequence[str], workers: int) -> int:
    """Trains a run for each seed, in ``seed-N`` of one directory, as many at a time as there are cores for.

    Args:
        command: with ``--seeds``.
        arguments: of it.
        workers: processes or threads that a run keeps busy.

    Returns:
        The exit code.
    """
    from fastrl.collectors.resources import cores
    from fastrl.runs.directory import is_run
    from fastrl.runs.listing import read_run
    from fastrl.runs.seeds import SeedRun, summarise, train_seeds

    options, prog, name = command.options, command.prog, command.named or command.task.name
    seeds = parse_seeds(options.seeds)
    for option, given in (
        ("--seed", "run.seed" in command.changes),
        ("--resume", options.resume is not None),
    ):
        if given:
            raise ConfigError(
                f"{option} does not go with --seeds; to resume, give the same command with the same --run-dir"
            )
    parent = options.run_dir
    if parent is None:
        parent = Path("runs", f"{folder_name(name)}-seeds-{time.strftime('%Y%m%d-%H%M%S')}")
    if is_run(parent):
        raise ConfigError(f"{parent} has a run in it: choose another --run-dir for the runs of several seeds")
    rest = without(arguments, "--seeds", "--run-dir", "--out")
    jobs = max(1, min(len(seeds), cores() // max(workers, 1)))
    runs = []
    for number in seeds:
        run_dir = parent / f"seed-{number}"
        start: list[str] | None = [*rest, f"--seed={number}", f"--run-dir={run_dir}"]
        if is_run(run_dir):
            is_complete = read_run(run_dir).state == "complete"
            start = None if is_complete else [*without(rest, *_OF_NEW_RUNS), f"--resume={run_dir}"]
        runs.append(SeedRun(number, run_dir, start))
    parent.mkdir(parents=True, exist_ok=True)
    with ignoring_write_errors("stdout", f"{prog}: "):
        console = plain_console()
        print_lines(console, f"training {len(seeds)} seeds, {jobs} at a time, in {parent}")
        work = functools.partial(train_seed, prog, cores() // jobs)
        stopped_by = train_seeds(runs, jobs, console, work, _PRELOAD)
        summarise(runs, parent, console)
        if stopped_by is not None:
            again = shlex.join([*without(arguments, "--run-dir", "--out"), f"--run-dir={parent}"])
            print_lines(console, "", f"Interrupted; to resume: {prog} {again}")
            return 128 + stopped_by
        print_lines(console, "", f"Runs: {parent}", f"To draw them: fastrl plot {shlex.quote(str(parent))}")
    return int(any(run.state != "complete" for run in runs))


def train_seed(
    prog: str, cores: int, arguments: Sequence[str], log: Path, pipe: connection.Connection
) -> None:
    """Trains the run of a seed in this process, which does nothing else.

    Args:
        prog: name of the command.
        cores: that it may use, unless its settings say how many.
        arguments: of the command.
        log: gets what it prints.
        pipe: to the process that has started it.
    """
    from fastrl.cli.main import main
    from fastrl.collectors.resources import share_cores

    # Ctrl-C reaches the process of the command alone, which passes it on.
    os.setsid()
    with append_file(log) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGHUP))
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    # Workers of the run are no copies of a process with PyTorch: it starts a fork server of its own.
    forkserver._forkserver.__init__()  # type: ignore[misc]
    share_cores(cores)
    sys.argv = [*prog.split(), *arguments]
    sys.exit(main(["train", *arguments]))


def _stop_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "it was started by another process"
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """The arguments but some options and their values."""
    left: list[str] = []
    skip = False
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        if skip:
            skip = False
        elif name in options:
            skip = "=" not in word
        else:
            left.append(word)
    return left
