"""The command ``fastrl train``: starts or resumes a run of any task."""

import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.cli.arguments import import_from_here
from fastrl.cli.ranks import is_launched, launch
from fastrl.cli.run_arguments import Command, FirstPass, TrainOptions, find_command
from fastrl.cli.seeds import train_all
from fastrl.utils.config import ConfigError, to_toml
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.progress import load_torch
from fastrl.utils.tables import print_lines
from fastrl.utils.trust import trust_option

if TYPE_CHECKING:
    from fastrl.training.summary import Summary
    from fastrl.training.task import Task
    from fastrl.utils.ranks import Ranks


def train(prog: str, arguments: list[str]) -> int:
    """Trains agents, or resumes a run."""
    first = FirstPass(TrainOptions, prog, arguments)
    if (first.options.ranks or 1) > 1 and not first.wants_help and not first.options.print_config:
        _check_ranks(first.options)
        return launch(prog, arguments, first.options.ranks)
    command = find_command(prog, arguments, Command)
    if command.options.seeds is not None and not command.options.print_config:
        if command.options.auto:
            raise ConfigError(
                "--auto measures for one run at a time: leave out --seeds, or give --config with a file of fastrl"
                " autotune"
            )
        # Mistakes show here, before any run starts.
        from fastrl.collectors.resources import cores

        settings = command.settings()
        workers = getattr(getattr(settings, "collect", None), "n_workers", 1)
        # Workers wait while the learner computes, or compute while it waits.
        busy = max(workers if isinstance(workers, int) else 1, settings.run.torch_threads or cores())
        return train_all(command, arguments, busy)
    return _train(command)


def _check_ranks(options: Any) -> None:
    """Refuses options that do not go with ``--ranks``.

    Raises:
        ConfigError
    """
    for option, given in (("--seeds", options.seeds is not None), ("--auto", options.auto)):
        if given:
            raise ConfigError(f"{option} does not go with --ranks {options.ranks}: leave one of them out")
    if "RANK" in os.environ:
        raise ConfigError("--ranks starts the ranks that torchrun has started already: leave it out")


def _train(command: Command) -> int:
    """Starts a run, resumes one, or prints the settings; returns the exit code."""
    options, task = command.options, command.task
    # Options of environments are texts "name=value".
    changes = command.changes
    several = (*(changes.get("env.options") or ()), *(changes.get("env.opponents") or ()))
    for text in (changes.get("env.id"), changes.get("env.reward"), *several):
        import_from_here(text, trust=options.trust)
    if options.print_config:
        print(f'kind = "{task.name}"\n\n{to_toml(command.settings())}', end="")
        return 0
    load_torch()
    # A run of hours does not end because its output cannot be written.
    with ignoring_write_errors("stdout", f"{command.prog}: "):
        return _run(command)


def _run(command: Command) -> int:
    from fastrl.utils.heartbeat import EXIT_TRAINED
    from fastrl.utils.ranks import ALONE, connected, disconnect, is_rank

    if not is_rank():
        return _run_on(command, ALONE)
    code = _run_on(command, connected())
    disconnect()
    return EXIT_TRAINED if code == 0 and is_launched() else code


def _run_on(command: Command, ranks: "Ranks") -> int:
    from rich.console import Console

    from fastrl.training.profiler import show as show_profile
    from fastrl.training.run import resume_run, start_run

    options, task, prog = command.options, command.task.with_ranks(ranks), command.prog
    console = plain_console() if ranks.is_first else Console(quiet=True)
    if ranks.count > 1 and options.auto:
        raise ConfigError("--auto measures one process: leave it out of a run of several ranks")
    reasons: Mapping[str, str] = {}
    if options.may_change and not options.auto:
        raise ConfigError("--may-change says what measuring may choose: add --auto")
    if options.auto and command.checkpoint is not None:
        raise ConfigError("--auto is for new runs: leave it out, or give --collector and --n-workers")
    if command.checkpoint is not None:
        trust = " --trust" if options.trust or "env.id" in command.changes else ""
        summary = resume_run(
            task, command.checkpoint, command.changes, options.run_dir, console, trust=options.trust
        )
    else:
        settings = command.settings()
        trust = trust_option(settings)
        import_from_here(getattr(settings.env, "id", None))
        if None not in (options.resume, options.run_dir):
            line = f"{options.resume} has no checkpoint yet: its run starts over in {options.run_dir}"
            print_lines(console, "", line)
        if options.auto:
            from fastrl.cli.autotune import tune

            tuning = tune(command, settings, console)
            settings, reasons = tuning.settings, tuning.reasons
            print_lines(console, "")
        summary = start_run(task, settings, options.run_dir or options.resume, console, comments=reasons)
    if ":" in task.name:
        trust = " --trust"
    together = f" --ranks {ranks.count}" if ranks.count > 1 and is_launched() else ""
    # With --profile the whole account of time, otherwise its summary.
    if ranks.is_first and not (options.profile and show_profile(Path(summary.run), console)):
        summary.print_times(console)
    if summary.signal is not None:
        line = f"Interrupted; to resume: {prog} --resume {shlex.quote(summary.run)}{together}{trust}"
        print_lines(console, "", line)
        return 128 + signal.Signals[summary.signal]
    print_lines(console, *_next_commands(task, summary, prog, trust, together))
    return 0


def _next_commands(task: "Task", summary: "Summary", prog: str, trust: str, together: str) -> list[str]:
    """Lines that name the directory of a complete run, and commands for it."""
    where = shlex.quote(summary.run)
    lines = ["", f"Run directory: {summary.run}"]
    if task.score_hint:
        lines.append(f"To {task.score_hint}: fastrl eval {where}{trust}")
    if task.film:
        lines.append(f"To film it: fastrl render {where} --out episode.mp4")
    if task.can_train_longer:
        goal = {
            "episodes": f"--total-episodes {2 * summary.episodes}",
            "samples": f"--epochs {2 * summary.details.get('epochs', 0)}",
        }.get(summary.unit, f"--total-timesteps {2 * summary.steps}")
        lines.append(f"To train it further: {prog} --resume {where} {goal}{together}{trust}")
    return lines
