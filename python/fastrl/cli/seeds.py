"""``fastrl train ... --seeds 0,1,2``: a run for each seed."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from fastrl.cli.arguments import path_of, seed, value_of
from fastrl.utils.config import ConfigError
from fastrl.utils.import_path import module_command
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.tables import print_lines

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


def train_all(prog: str, arguments: Sequence[str], name: str, workers: int) -> int:
    """Trains a run for each seed, in ``seed-N`` of one directory, as many at a time as there are cores for.

    Args:
        arguments: of the command, with ``--seeds``.
        name: for the directory, if the arguments name none.
        workers: processes or threads that a run keeps busy.

    Returns:
        The exit code.
    """
    from fastrl.collectors.resources import cores
    from fastrl.runs.directory import is_run
    from fastrl.runs.listing import read_run
    from fastrl.runs.seeds import SeedRun, summarise, train_seeds

    seeds = parse_seeds(value_of("--seeds", arguments) or "")
    for option in ("--seed", "--resume"):
        if value_of(option, arguments) is not None:
            raise ConfigError(
                f"{option} does not go with --seeds; to resume, give the same command with the same --run-dir"
            )
    parent = path_of("--run-dir", arguments) or path_of("--out", arguments)
    if parent is None:
        parent = Path(
            "runs", f"{name.replace('/', '-').replace(':', '-')}-seeds-{time.strftime('%Y%m%d-%H%M%S')}"
        )
    if is_run(parent):
        raise ConfigError(f"{parent} has a run in it: choose another --run-dir for the runs of several seeds")
    rest = without(arguments, "--seeds", "--run-dir", "--out")
    runs = []
    for number in seeds:
        own = parent / f"seed-{number}"
        command = module_command("fastrl", "train")
        if not is_run(own):
            command += [*rest, f"--seed={number}", f"--run-dir={own}"]
        elif read_run(own).state == "complete":
            command = []
        else:
            command += [*without(rest, *_OF_NEW_RUNS), f"--resume={own}"]
        runs.append(SeedRun(number, own, command))
    parent.mkdir(parents=True, exist_ok=True)
    jobs = max(1, min(len(seeds), cores() // max(workers, 1)))
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
