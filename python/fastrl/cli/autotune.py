"""The command ``fastrl autotune``, and ``--auto`` of ``fastrl train``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from fastrl.cli.arguments import Arg, import_from_here
from fastrl.cli.run_arguments import Command, MeasuringOptions, find_command
from fastrl.utils.config import ConfigError, to_toml
from fastrl.utils.files import write_atomically
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from fastrl.autotune.tuner import Tuning

# The first line of a file that the command has written, and may replace.
_MARK = "# fastrl autotune: "


class AutotuneOptions(MeasuringOptions):
    """Options of ``fastrl autotune`` that are no settings."""

    out: Annotated[
        Path, Arg("the file that is written, which fastrl train ENV --config FILE takes", "FILE")
    ] = Path("config.toml")


class AutotuneCommand(Command):
    """The command line of ``fastrl autotune``: that of ``fastrl train``, with a file in place of a run."""

    purpose = "Measures how a run is fastest on this machine, and writes its settings."
    declared = AutotuneOptions

    @staticmethod
    def usage(prog: str, env: str) -> str:
        return f"{prog} {env} [settings] [--out FILE]"

    def description(self) -> str:
        return (
            f"{self.purpose}\nWhat the run learns does not change: only who steps environments, and with how many"
            " workers and threads, unless --may-change says otherwise. Settings that options give stay as they are."
        )


def autotune(prog: str, arguments: list[str]) -> int:
    """Measures how a run is fastest on this machine, and writes its settings."""
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        raise ConfigError("--resume: give --config RUN/config.toml to measure with the settings of a run")
    command = find_command(prog, arguments, AutotuneCommand)
    out: Path = command.options.out
    check_replaceable(out)
    console = plain_console()
    settings = command.settings()
    load_torch()
    tuning = tune(command, settings, console)
    text = f'{_MARK}{tuning.label}\nkind = "{command.task.name}"\n\n'
    write_atomically(out, (text + to_toml(tuning.settings, tuning.reasons)).encode())
    env = command.named or command.task.name
    print_lines(console, "", f"Written: {out}", f"To train with it: fastrl train {env} --config {out}")
    return 0


def check_replaceable(file: Path) -> None:
    """Refuses to replace a file that the command has not written.

    Raises:
        ConfigError
    """
    if not file.exists():
        return
    if not file.is_file() or not file.read_bytes().startswith(_MARK.encode()):
        raise ConfigError(f"--out {file} exists and is no file of fastrl autotune: choose another name")


def tune(command: Command, settings: Any, console: Console) -> "Tuning":
    """Measures with progress, and prints a table; settings that options give stay as they are."""
    from fastrl.autotune.tuner import Tuner, show

    import_from_here(getattr(settings.env, "id", None))
    with Progress("measuring", 1.0, interval=5.0) as progress:

        def advance(what: str, share: float) -> None:
            progress.describe(what)
            progress.advance(max(share - progress.done, 0.0))

        tuning = Tuner(
            command.task,
            settings,
            fixed=list(command.changes),
            may_change=command.options.may_change,
            seconds=command.options.tune_seconds,
            advance=advance,
        ).tune()
    show(tuning, console)
    return tuning
