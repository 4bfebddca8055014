"""The command ``fastrl runs``: a table of run directories."""

import math
from pathlib import Path

from rich.table import Table

from fastrl.cli.arguments import path, print_note
from fastrl.runs.listing import RunInfo, list_runs
from fastrl.runs.metrics import brief
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError
from fastrl.utils.files import to_json
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show

_STYLES = {"running": "green", "complete": None, "interrupted": "yellow", "failed": "red", "damaged": "red"}


def runs(prog: str, arguments: list[str]) -> int:
    """Lists run directories."""
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [DIR] [--json]",
        description="Lists the runs in a directory: what they train on, how far they are, their last mean return.",
    )
    parser.add_argument(
        "folder", nargs="?", type=path, default=Path("runs"), metavar="DIR", help="directory of runs [runs]"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON and nothing else")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise ConfigError(f"{options.folder}: there is no such directory; {prog} DIR names another")
    found = list_runs(options.folder)
    if options.json:
        print(to_json([info.to_tree() for info in found], indent=2))
    elif found:
        show(plain_console(), _table(found, options.folder))
    else:
        print(f"no runs in {options.folder}")
    for info in found:
        if info.error:
            print_note(prog, info.error)
    return 0


def _table(found: list[RunInfo], folder: Path) -> Table:
    table = Table(title=f"runs in {folder}")
    for name in ("run", "environment", "algorithm"):
        table.add_column(name, overflow="fold")
    for name in ("seed", "steps", "of", "last return"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for info in found:
        where = info.path.relative_to(folder) if info.path != folder else info.path
        last = "-" if math.isnan(info.last_return) else brief(info.last_return)
        total = "-" if info.total is None else f"{info.total:,}"
        cells = (str(where), info.env, info.algo, str(info.seed), f"{info.steps:,}", total, last, info.state)
        table.add_row(*cells, style=_STYLES[info.state])
    return table
