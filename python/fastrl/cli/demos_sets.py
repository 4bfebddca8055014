"""The commands ``fastrl demos show | filter | split | merge | export | import``: data sets as a whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from fastrl.cli.arguments import Arg, Name, Number, Picture, Seed, command
from fastrl.runs.curves import SUFFIXES
from fastrl.utils.config import ConfigError
from fastrl.utils.files import to_json
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from fastrl.utils.tables import print_lines
from fastrl.utils.tables import show as show_table

if TYPE_CHECKING:
    from fastrl.replay.episodes import EpisodeDataset

DataSet = Annotated[Path, Arg("a data set", "DIR")]
NewDataSet = Annotated[Path, Arg("directory of the new data set, new or empty", "DIR")]


@command("{prog} demos/cart --out cart.svg")
def show(
    folder: DataSet,
    *,
    out: Annotated[
        Picture | None, Arg(f"the picture, {' or '.join(SUFFIXES)} [episodes.png in the directory]", "FILE")
    ] = None,
    json: Annotated[
        bool,
        Arg(
            "print meta.json and the moments of returns, lengths and observations as JSON, and nothing else; without"
            " a picture unless --out names one"
        ),
    ] = False,
) -> int:
    """Prints a summary of a data set: episodes, returns, lengths, spaces, environment, expert; and draws returns and
    lengths."""
    from fastrl.demos.summary import describe, draw
    from fastrl.replay.episodes import load

    demos = load(folder)
    if json:
        print(to_json({**demos.meta, **demos.statistics()}, indent=2))
    else:
        table = Table(title=str(folder), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in describe(demos).items():
            table.add_row(name, text)
        show_table(plain_console(), table)
    if out is not None or not json:
        out = out or folder / "episodes.png"
        draw(demos, out)
        if not json:
            print(out)
    return 0


@command("{prog} demos/cart --top 0.1 --out demos/best")
def filter_(
    folder: DataSet,
    *,
    top: Annotated[Number | None, Arg("share of the episodes, such as 0.1 for the best tenth")] = None,
    min_return: Annotated[Number | None, Arg("the least return of an episode that is kept")] = None,
    out: NewDataSet,
) -> int:
    """Writes the episodes with the highest returns as a new data set, in their order."""
    if top is None and min_return is None:
        raise ConfigError("expected --top, --min-return or both")
    from fastrl.replay.episodes import load

    _write(load(folder).filter(top, min_return=min_return), out)
    return 0


@command("{prog} demos/cart 0.9 --out demos/cart-split")
def split(
    folder: DataSet,
    share: Annotated[Number, Arg("share of the episodes in the first set, such as 0.9", "SHARE")],
    *,
    seed: Annotated[Seed, Arg("seed of the draw")] = 0,
    out: Annotated[
        Path, Arg("directory that gets the two data sets, train and validation, new or empty", "DIR")
    ],
) -> int:
    """Draws a share of the episodes at random, and writes them and the others as two data sets."""
    from fastrl.replay.episodes import load

    sets = load(folder).split(share, seed)
    for name, demos in zip(("train", "validation"), sets, strict=True):
        _write(demos, out / name)
    return 0


@command("{prog} demos/a demos/b --out demos/both")
def merge(folders: Annotated[Sequence[Path], Arg("a data set", "DIR")], *, out: NewDataSet) -> int:
    """Writes the episodes of several data sets as one, in their order. Their spaces should be the same."""
    from fastrl.replay.episodes import load
    from fastrl.replay.episodes import merge as merge_sets

    _write(merge_sets([load(each) for each in folders]), out)
    return 0


@command("{prog} demos/cart --minari cartpole/expert-v0")
def export(
    folder: DataSet,
    *,
    minari: Annotated[Name, Arg("id of the new data set, such as cartpole/expert-v0", "ID")],
) -> int:
    """Writes a data set into Minari's directory, for minari.load_dataset(ID). Values, dtypes, infos and seeds stay as
    they are; images are not compressed."""
    from fastrl.demos.minari_sets import export_minari
    from fastrl.replay.episodes import load

    demos = load(folder)
    with Progress("exporting", len(demos)) as progress:
        target = export_minari(demos, minari, advance=progress.advance)
    print(f"{minari}: {len(demos):,} episodes, {demos.num_steps:,} steps, in {target}")
    return 0


@command("{prog} mujoco/halfcheetah/expert-v0 --out demos/cheetah")
def import_(
    source: Annotated[Name, Arg("id of a data set that Minari has here, or its directory", "ID")],
    *,
    no_infos: Annotated[bool, Arg("leave infos out")] = False,
    out: NewDataSet,
) -> int:
    """Writes a data set of Minari as a new data set of fastrl. Values, dtypes, infos and seeds stay as they are."""
    from fastrl.demos.minari_sets import import_minari

    console = plain_console(stderr=True)
    with Progress("importing", None, console) as progress:
        demos = import_minari(
            source,
            out,
            infos=not no_infos,
            advance=progress.advance,
            log=lambda line: print_lines(console, line),
        )
    _print(out, demos)
    return 0


def _write(demos: "EpisodeDataset", out: Path) -> None:
    from fastrl.replay.episode_writer import save

    save(demos, out)
    _print(out, demos)


def _print(out: Path, demos: "EpisodeDataset") -> None:
    print(
        f"{out}: {len(demos):,} episodes, {demos.num_steps:,} steps, mean return {demos.returns.mean():.6g}"
    )
