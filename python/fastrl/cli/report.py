"""The command ``fastrl report``: results of runs as one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import Arg, command, print_note
from fastrl.runs.listing import runs_in
from fastrl.runs.report import groups_of, read_runs, to_csv, to_json_text, to_markdown
from fastrl.utils.config import ConfigError
from fastrl.utils.files import write_atomically

_FORMATS = {".md": to_markdown, ".csv": to_csv, ".json": to_json_text}


@command("{prog} runs/cart-* --out results.md", usage="{prog} RUN [RUN ...] [--out FILE]")
def report(
    prog: str,
    runs: Annotated[
        Sequence[Path], Arg("run directory, or a directory of runs, such as those of several seeds", "RUN")
    ],
    *,
    out: Annotated[
        Path | None,
        Arg("the table as .md (Markdown), .csv or .json; without it, Markdown is printed", "FILE"),
    ] = None,
) -> int:
    """Makes a table of results: a row for each group of runs that differ in their seed alone, with the settings in
    which groups differ, steps, time, the score with its interval, and the versions."""
    write = to_markdown if out is None else _FORMATS.get(out.suffix)
    if write is None:
        raise ConfigError(f"--out: expected a name that ends in {', '.join(_FORMATS)}, got {out}")
    paths = dict.fromkeys(path for folder in runs for path in runs_in(folder))
    finished, errors = read_runs(list(paths))
    if not finished:
        raise ConfigError(errors[0])
    for line in errors:
        print_note(prog, f"left out: {line}")
    text = write(groups_of(finished))
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())
        print(f"{out}: {len(finished)} runs" if len(finished) > 1 else f"{out}: 1 run")
    return 0
