"""The commands ``fastrl demos show | filter | split | merge``: data sets as a whole."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from fastrl.cli.arguments import path, seed
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError
from fastrl.utils.files import to_json
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show as show_table

if TYPE_CHECKING:
    from fastrl.replay.episodes import EpisodeDataset


def show(prog: str, arguments: list[str]) -> int:
    """Prints a summary of a data set and draws a figure."""
    from fastrl.runs.curves import SUFFIXES

    parser = ArgumentParser(
        prog=prog,
        description="Prints a summary of a data set: episodes, returns, lengths, spaces, environment, expert; and draws"
        " returns and lengths.",
        epilog=f"{prog} demos/cart --out cart.svg",
    )
    _add_dir(parser)
    parser.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help=f"the picture, {' or '.join(SUFFIXES)} [episodes.png in the directory]",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print meta.json and the moments of returns, lengths and observations as JSON, and nothing else; without"
        " a picture unless --out names one",
    )
    options = parser.parse_args(arguments)
    if options.out is not None and options.out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out: expected a name that ends in {' or '.join(SUFFIXES)}, got {options.out}")
    from fastrl.demos.summary import describe, draw
    from fastrl.replay.episodes import load

    demos = load(options.dir)
    if options.json:
        print(to_json({**demos.meta, **demos.statistics()}, indent=2))
    else:
        table = Table(title=str(options.dir), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in describe(demos).items():
            table.add_row(name, text)
        show_table(plain_console(), table)
    if options.out is not None or not options.json:
        out = options.out or options.dir / "episodes.png"
        draw(demos, out)
        if not options.json:
            print(out)
    return 0


def filter_(prog: str, arguments: list[str]) -> int:
    """Writes the episodes with the highest returns as a data set."""
    parser = ArgumentParser(
        prog=prog,
        description="Writes the episodes with the highest returns as a new data set, in their order.",
        epilog=f"{prog} demos/cart --top 0.1 --out demos/best",
    )
    _add_dir(parser)
    parser.add_argument(
        "--top", type=_number, metavar="FLOAT", help="share of the episodes, such as 0.1 for the best tenth"
    )
    parser.add_argument(
        "--min-return", type=_number, metavar="FLOAT", help="the least return of an episode that is kept"
    )
    _add_out(parser, "directory of the new data set")
    options = parser.parse_args(arguments)
    if options.top is None and options.min_return is None:
        raise ConfigError("expected --top, --min-return or both")
    from fastrl.replay.episodes import load

    _write(load(options.dir).filter(options.top, min_return=options.min_return), options.out)
    return 0


def split(prog: str, arguments: list[str]) -> int:
    """Writes two data sets of the episodes of one."""
    parser = ArgumentParser(
        prog=prog,
        description="Draws a share of the episodes at random, and writes them and the others as two data sets.",
        epilog=f"{prog} demos/cart 0.9 --out demos/cart-split",
    )
    _add_dir(parser)
    parser.add_argument(
        "share", type=_number, metavar="SHARE", help="of the episodes in the first set, such as 0.9"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="INT", help="of the draw [0]")
    _add_out(parser, "directory that gets the two data sets, train and validation")
    options = parser.parse_args(arguments)
    from fastrl.replay.episodes import load

    parts = load(options.dir).split(options.share, options.seed)
    for name, part in zip(("train", "validation"), parts, strict=True):
        _write(part, options.out / name)
    return 0


def merge(prog: str, arguments: list[str]) -> int:
    """Writes the episodes of several data sets as one."""
    parser = ArgumentParser(
        prog=prog,
        description="Writes the episodes of several data sets as one, in their order. Their spaces should be the same.",
        epilog=f"{prog} demos/a demos/b --out demos/both",
    )
    parser.add_argument("dirs", nargs="+", type=path, metavar="DIR", help="a data set")
    _add_out(parser, "directory of the new data set")
    options = parser.parse_args(arguments)
    from fastrl.replay.episodes import load
    from fastrl.replay.episodes import merge as merge_sets

    _write(merge_sets([load(each) for each in options.dirs]), options.out)
    return 0


def _add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=path, metavar="DIR", help="a data set")


def _add_out(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--out", required=True, type=path, metavar="DIR", help=f"{help_text}, new or empty")


def _write(demos: EpisodeDataset, out: Path) -> None:
    from fastrl.replay.episode_writer import save

    save(demos, out)
    print(
        f"{out}: {len(demos):,} episodes, {demos.num_steps:,} steps, mean return {demos.returns.mean():.6g}"
    )


def _number(text: str) -> float:
    """Converts an argument to a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"should be a number, got {text!r}")
    return number
