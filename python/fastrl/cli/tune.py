"""The command ``fastrl tune``: a search for hyper-parameters."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fastrl.cli.arguments import import_from_here, path, path_of
from fastrl.cli.train import Command, find_command
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, build
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.progress import load_torch
from fastrl.utils.tables import print_lines
from fastrl.utils.trust import trust_option

if TYPE_CHECKING:
    from fastrl.tuning.study import Study


class SearchCommand(Command):
    """The command line of ``fastrl tune``: that of ``fastrl train``, with options of the search."""

    purpose = "Searches for the hyper-parameters of a run, and trains the best ones again with other seeds."
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

    @staticmethod
    def add_own_options(parser: ArgumentParser, where: str) -> None:
        from fastrl.tuning.settings import TuneSettings

        parser.add_argument(
            "env", nargs="?", metavar="ENV", help="what to train on, a task or an environment"
        )
        parser.add_argument("--preset", metavar="NAME", help=f"named set of settings, listed {where}")
        parser.add_argument("--dir", type=path, metavar="DIR", help="directory of the search, new or empty")
        parser.add_argument("--resume", type=path, metavar="DIR", help="resume the search in a directory")
        parser.add_argument(
            "--space",
            type=path,
            metavar="FILE",
            help="TOML file that says what is searched, in place of what --print-space prints",
        )
        parser.add_argument(
            "--print-space", action="store_true", help="print what is searched as such a file, and exit"
        )
        parser.add_argument(
            "--config", type=path, metavar="FILE", help="TOML file of settings, such as a run's config.toml"
        )
        parser.add_argument(
            "--trust",
            action="store_true",
            help="allow the given file to import code, connect to a Ray cluster and write files",
        )
        add_options(parser, TuneSettings, "tune")

    def description(self) -> str:
        return (
            f"{self.purpose}\nSettings that options give stay as they are; of the others those are searched that"
            " --print-space prints. --n-workers are trials that run side by side, on the nodes of"
            " a Ray cluster with --ray-address (those of a run: --collect.n-workers, --collect.ray-address)."
        )


def tune(prog: str, arguments: list[str]) -> int:
    """Searches for hyper-parameters, or resumes a search."""
    resume = path_of("--resume", arguments)
    if resume is None:
        command = find_command(prog, arguments, SearchCommand)
        if command.options.print_space:
            print(_space(command), end="")
            return 0
        study = _start(command)
    else:
        study = _resume(prog, resume, arguments)
    env = getattr(study.settings.env, "id", study.task.name)
    with study, ignoring_write_errors("stdout", f"{prog}: "):
        return _run(prog, study, env)


def _space(command: Command) -> str:
    from fastrl.tuning.settings import TuneSettings
    from fastrl.tuning.tune import space_for

    settings = command.settings()
    import_from_here(getattr(settings.env, "id", None))
    method = read_arguments(TuneSettings, command.options).get("tune.method", "")
    return space_for(command.task, settings, command.options.space, list(command.changes), method).to_toml()


def _start(command: Command) -> "Study":
    from fastrl.tuning.settings import TuneSettings
    from fastrl.tuning.tune import new_study, space_for

    options = command.options
    if options.dir is None:
        raise ConfigError("name a directory for the search: --dir runs/tune")
    settings = command.settings()
    import_from_here(getattr(settings.env, "id", None))
    config = build(TuneSettings, read_arguments(TuneSettings, options)).tune
    space = space_for(command.task, settings, options.space, list(command.changes), config.method)
    return new_study(options.dir, config, command.task, settings, space)


def _resume(prog: str, directory: Path, arguments: list[str]) -> "Study":
    parser = ArgumentParser(
        prog=prog, usage=f"{prog} --resume DIR [--trust]", description="Resumes a search."
    )
    parser.add_argument("--resume", type=path, metavar="DIR", help="directory of the search")
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help="address of the Ray cluster, if it has another one now"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="allow the search to import code, connect to a Ray cluster and write files, as its settings say",
    )
    options = parser.parse_args(arguments)
    load_torch(arguments)
    import_from_here(None, trust=options.trust)
    from fastrl.tuning.study import Study

    return Study(directory, options.ray_address, trust=options.trust)


def _run(prog: str, study: "Study", env: str) -> int:
    from fastrl.tuning.runner import SearchInterrupted
    from fastrl.tuning.tune import finish, run_search

    console, where = plain_console(), shlex.quote(str(study.directory))
    config, trust = study.config, trust_option(study.settings)
    print_lines(
        console,
        f"searching {len(study.space.parameters)} parameters by {config.method}, in {study.directory}",
    )
    try:
        findings = run_search(study, console)
    except SearchInterrupted as interrupted:
        print_lines(console, "", f"Interrupted; to resume: {prog} --resume {where}{trust}")
        return 128 + interrupted.signal
    finish(findings, console)
    if findings.chosen is None:
        return 1
    best = shlex.quote(str(study.directory / "best.toml"))
    print_lines(
        console,
        "",
        f"Report: {study.directory / 'report.md'}",
        f"To train with it: fastrl train {env} --config {best}{trust}",
    )
    return 0
