"""``fastrl train ... --seeds 0,1,2``: a run for each seed."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastrl.cli.arguments import seed
from fastrl.utils.config import ConfigError
from fastrl.utils.import_path import module_command
from fastrl.utils.names import folder_name
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from fastrl.cli.train import Command

# Options of a new run that a run to resume does not take: it has its settings.
_OF_NEW_RUNS = ("--preset", "--config")


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list such as ``0,1,2``.

    Raises:
        ConfigError: it is no such list, or names a seed twice.
    """
    import argparse

    try:
        seeds = [seed(word.strip()) for word in text.split(",")]
    except argparse.ArgumentTypeError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds should be different integers from 0 on such as 0,1,2, got {text!r}")
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
    if jobs > 1 and command.settings().run.threads == "auto":
        rest.append(f"--threads={cores() // jobs}")
    runs = []
    for number in seeds:
        run_dir = parent / f"seed-{number}"
        start = module_command("fastrl", "train")
        if not is_run(run_dir):
            start += [*rest, f"--seed={number}", f"--run-dir={run_dir}"]
        elif read_run(run_dir).state == "complete":
            start = []
        else:
            start += [*without(rest, *_OF_NEW_RUNS), f"--resume={run_dir}"]
        runs.append(SeedRun(number, run_dir, start))
    parent.mkdir(parents=True, exist_ok=True)
    with ignoring_write_errors("stdout", f"{prog}: "):
        console = plain_console()
        print_lines(console, f"training {len(seeds)} seeds, {jobs} at a time, in {parent}")
        stopped_by = train_seeds(runs, jobs, console)
        summarise(runs, parent, console)
        if stopped_by is not None:
            again = shlex.join([*without(arguments, "--run-dir", "--out"), f"--run-dir={parent}"])
            print_lines(console, "", f"Interrupted; to resume: {prog} {again}")
            return 128 + stopped_by
        print_lines(console, "", f"Runs: {parent}", f"To draw them: fastrl plot {shlex.quote(str(parent))}")
    return int(any(run.state != "complete" for run in runs))


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
