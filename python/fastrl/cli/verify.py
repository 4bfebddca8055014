"""The command ``fastrl verify``: checks the simulators of CAGE 2 and CAGE 4 against recorded traces."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from fastrl.cli.arguments import Arg, Name, command, print_error
from fastrl.utils.output import plain_console, printable
from fastrl.utils.progress import Progress
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from fastrl.envs.trace_files import ReplayReport, Trace


@command("Exit code: 0 if nothing differs, 1 if something does, 2 if a file could not be replayed.")
def verify(prog: str, files: Annotated[Sequence[Name], Arg("a trace, .npz", "FILE")]) -> int:
    """Replays traces of the real CybORG, of CAGE Challenge 2 or 4, once from the recorded decisions and once from the
    seed alone, and counts the steps in which the simulator differs."""
    from fastrl.envs.trace_files import replay_file

    reports = []
    with Progress("replaying", len(files)) as progress:
        for file in files:
            reports.append(replay_file(file, _load))
            progress.advance()
    good = [report for report in reports if report.error is None]
    if good:
        show(plain_console(), _table(good))
    for report in good:
        if report.first_difference is not None:
            print(printable(f"{report.file}: {report.first_difference}"))
    for report in reports:
        if report.error is not None:
            print_error(prog, f"{report.file}: {report.error}")
    return 2 if len(good) < len(reports) else int(not all(report.ok for report in good))


def _load(path: str | Path) -> "Trace":
    """A trace of the challenge whose arrays a file holds."""
    from fastrl.envs.cage2.traces import Cage2Trace
    from fastrl.envs.cage4.traces import Cage4Trace
    from fastrl.envs.trace_files import read_arrays

    meta, arrays = read_arrays(path)
    return (Cage4Trace if "tape" in arrays else Cage2Trace).from_arrays(meta, arrays)


def _table(reports: Sequence["ReplayReport"]) -> Table:
    """Steps and differences of each trace, and their sums."""
    folder = os.path.commonpath([Path(report.file).parent for report in reports]) or "."
    columns = [
        ("steps", [report.steps for report in reports]),
        ("differ", [report.mismatches for report in reports]),
        ("from seed", [report.seed_steps for report in reports]),
        ("differ", [report.seed_mismatches for report in reports]),
    ]
    table = Table(title=f"traces in {folder}", show_footer=True)
    table.add_column("trace", "total", overflow="fold")
    for name, counts in columns:
        table.add_column(name, f"{sum(counts):,}", justify="right", no_wrap=True)
    for report, *row in zip(reports, *(counts for _, counts in columns), strict=True):
        name = os.path.relpath(report.file, folder)
        table.add_row(name, *(f"{count:,}" for count in row), style=None if report.ok else "red")
    return table
