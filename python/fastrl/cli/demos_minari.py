"""The commands ``fastrl demos export`` and ``fastrl demos import``: data sets of Minari."""

from fastrl.cli.arguments import path, path_text
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from fastrl.utils.tables import print_lines


def export(prog: str, arguments: list[str]) -> int:
    """Writes a data set for Minari."""
    parser = ArgumentParser(
        prog=prog,
        description="Writes a data set into Minari's directory, for minari.load_dataset(ID). Values, dtypes, infos and"
        " seeds stay as they are; images are not compressed.",
        epilog=f"{prog} demos/cart --minari cartpole/expert-v0",
    )
    parser.add_argument("dir", type=path, metavar="DIR", help="a data set")
    parser.add_argument(
        "--minari",
        required=True,
        type=path_text,
        metavar="ID",
        help="id of the new data set, such as cartpole/expert-v0",
    )
    options = parser.parse_args(arguments)
    from fastrl.demos.minari_sets import export_minari
    from fastrl.replay.episodes import load

    demos = load(options.dir)
    with Progress("exporting", len(demos)) as progress:
        target = export_minari(demos, options.minari, advance=progress.advance)
    print(f"{options.minari}: {len(demos):,} episodes, {demos.num_steps:,} steps, in {target}")
    return 0


def import_(prog: str, arguments: list[str]) -> int:
    """Writes a data set of Minari as one of ours."""
    parser = ArgumentParser(
        prog=prog,
        description="Writes a data set of Minari as a new data set of fastrl. Values, dtypes, infos and seeds stay as"
        " they are.",
        epilog=f"{prog} mujoco/halfcheetah/expert-v0 --out demos/cheetah",
    )
    parser.add_argument(
        "source", type=path_text, metavar="ID", help="id of a data set that Minari has here, or its directory"
    )
    parser.add_argument("--no-infos", action="store_true", help="leave infos out")
    parser.add_argument(
        "--out", required=True, type=path, metavar="DIR", help="directory of the new data set, new or empty"
    )
    options = parser.parse_args(arguments)
    from fastrl.demos.minari_sets import import_minari

    console = plain_console(stderr=True)
    with Progress("importing", None, console) as progress:
        demos = import_minari(
            options.source,
            options.out,
            infos=not options.no_infos,
            advance=progress.advance,
            log=lambda line: print_lines(console, line),
        )
    print(
        f"{options.out}: {len(demos):,} episodes, {demos.num_steps:,} steps, mean return {demos.returns.mean():.6g}"
    )
    return 0
