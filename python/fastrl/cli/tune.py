"""The command ``fastrl tune``: a search for hyper-parameters."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from fastrl.cli.arguments import Arg, command, import_from_here
from fastrl.cli.run_arguments import Command, FirstPass, SettingsOptions, find_command
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, build
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.progress import load_torch
from fastrl.utils.tables import print_lines
from fastrl.utils.trust import trust_option

if TYPE_CHECKING:
    from fastrl.tuning.study import Study


class SearchOptions(SettingsOptions):
    """Options of ``fastrl tune`` that are no settings."""

    dir: Annotated[Path | None, Arg("directory of the search, new or empty", "DIR")] = None
    resume: Annotated[Path | None, Arg("resume the search in a directory", "DIR")] = None
    space: Annotated[
        Path | None,
        Arg("TOML file that says what is searched, in place of what --print-space prints", "FILE"),
    ] = None
    print_space: Annotated[bool, Arg("print what is searched as such a file, and exit")] = False


class SearchCommand(Command):
    """The command line of ``fastrl tune``: that of ``fastrl train``, with options of the search."""

    purpose = "Searches for the hyper-parameters of a run, and trains the best ones again with other seeds."
    required = " --dir runs/tune"
    declared = SearchOptions
    common: ClassVar[Sequence[str]] = (
        "--algo",
        "--preset",
        "--config",
        "--trials",
        "--method",
        "--n-workers",
        "--ray-address",
        "--objective",
        "--confirm",
        "--confirm-seeds",
        "--space",
        "--print-space",
        "--total-timesteps",
        "--total-episodes",
        "--num-envs",
        "--seed",
        "--dir",
        "--resume",
    )

    @staticmethod
    def usage(prog: str, env: str) -> str:
        return f"{prog} {env} --dir DIR [settings]\n       {prog} --resume DIR"

    @classmethod
    def add_own_options(cls, parser: ArgumentParser) -> None:
        from fastrl.tuning.settings import TuneSettings

        super().add_own_options(parser)
        add_options(parser, TuneSettings, "tune")

    def description(self) -> str:
        return (
            f"{self.purpose}\n--print-space prints which settings are searched; those that options give stay as they"
            " are. --n-workers trials run side by side, on the nodes of a Ray cluster with --ray-address; workers and"
            " cluster of each run are --collect.n-workers and --collect.ray-address."
        )


def tune(prog: str, arguments: list[str]) -> int:
    """Searches for hyper-parameters, or resumes a search."""
    if FirstPass(SearchOptions, prog, arguments).options.resume is not None:
        return _resume(prog, arguments)
    study = _start(find_command(prog, arguments, SearchCommand))
    return 0 if study is None else _run(prog, study)


def _start(command: Command) -> "Study | None":
    """Starts the search; None if its space is only printed."""
    from fastrl.tuning.settings import TuneSettings
    from fastrl.tuning.tune import new_study, space_for

    options = command.options
    if options.dir is None and not options.print_space:
        raise ConfigError("name a directory for the search: --dir runs/tune")
    settings = command.settings()
    import_from_here(getattr(settings.env, "id", None))
    config = build(TuneSettings, read_arguments(TuneSettings, options)).tune
    space = space_for(command.task, settings, options.space, list(command.changes), config.method)
    if options.print_space:
        print(space.to_toml(), end="")
        return None
    load_torch()
    return new_study(options.dir, config, command.task, settings, space)


@command(usage="{prog} --resume DIR [--trust]")
def _resume(
    prog: str,
    arguments: list[str],
    *,
    resume: Annotated[Path, Arg("directory of the search", "DIR")],
    ray_address: Annotated[
        str | None, Arg("address of the Ray cluster, if it has another one now", "HOST:PORT")
    ] = None,
    trust: Annotated[
        bool,
        Arg("allow the search to import code, connect to a Ray cluster and write files, as its settings say"),
    ] = False,
) -> int:
    """Resumes a search."""
    load_torch(arguments)
    import_from_here(None, trust=trust)
    from fastrl.tuning.study import Study

    return _run(prog, Study(resume, ray_address, trust=trust))


def _run(prog: str, study: "Study") -> int:
    from fastrl.tuning.runner import SearchInterrupted
    from fastrl.tuning.tune import finish, run_search

    with study, ignoring_write_errors("stdout", f"{prog}: "):
        console, where = plain_console(), shlex.quote(str(study.directory))
        config, trust = study.config, trust_option(study.settings)
        print_lines(
            console,
            f"searching {len(study.space.parameters)} parameters by {config.method}, in {study.directory}",
        )
        try:
            found = run_search(study, console)
        except SearchInterrupted as interrupted:
            print_lines(console, "", f"Interrupted; to resume: {prog} --resume {where}{trust}")
            return 128 + interrupted.signal
        finish(found, console)
        if found.chosen is None:
            return 1
        env = getattr(study.settings.env, "id", study.task.name)
        best = shlex.quote(str(study.directory / "best.toml"))
        print_lines(
            console,
            "",
            f"Report: {study.directory / 'report.md'}",
            f"To train with it: fastrl train {env} --config {best}{trust}",
        )
        return 0
