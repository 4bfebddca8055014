"""The command ``fastrl plot``: learning curves of runs."""

from pathlib import Path

from fastrl.cli.arguments import path, print_note
from fastrl.runs.curves import SUFFIXES, Curve, draw_curves
from fastrl.runs.listing import RETURN, find_runs, read_curve, read_run
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError


def plot(prog: str, arguments: list[str]) -> int:
    """Draws learning curves: a line for each group of runs, with the mean and the spread over its runs."""
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} RUN [RUN ...] [--label NAME ...] [--metric NAME] [--out FILE]",
        description="Draws learning curves. Runs of one algorithm on one environment are a group: a line is the mean"
        " of its runs, the band around it a standard deviation wide to either side.",
        epilog=f"{prog} runs/cart-* --out curves.svg\n"
        f"{prog} runs/a runs/b --label 'small network' --label 'large network'",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=path,
        metavar="RUN",
        help="run directory, or a directory of runs, such as those of several seeds",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME",
        help="name of the group of a RUN, once for each RUN, in their order; equal names are one group",
    )
    parser.add_argument(
        "--metric", default=RETURN, metavar="NAME", help=f"a number of metrics.jsonl [{RETURN}]"
    )
    parser.add_argument(
        "--out",
        type=path,
        default=Path("curves.png"),
        metavar="FILE",
        help=f"the picture, {' or '.join(SUFFIXES)} [curves.png]",
    )
    options = parser.parse_args(arguments)
    if options.label and len(options.label) != len(options.runs):
        raise ConfigError(
            f"--label: expected one for each of the {len(options.runs)} RUN arguments, got {len(options.label)}"
        )
    if options.out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out: expected a name that ends in {' or '.join(SUFFIXES)}, got {options.out}")
    curves: list[Curve] = []
    missing: list[ConfigError] = []
    for i, folder in enumerate(options.runs):
        found = list(find_runs(folder))
        if not found:
            there = "is no run directory, and has none in it" if folder.exists() else "no such run directory"
            raise ConfigError(f"{folder}: {there}")
        for run in found:
            try:
                info = read_run(run)
                label = options.label[i] if options.label else info.algo
                curve = read_curve(run, options.metric)
            except ConfigError as error:
                missing.append(error)
            else:
                curves.append(Curve(info.env, label, *curve))
    if not curves:
        raise missing[0]
    for reason in missing:
        print_note(prog, f"left out: {reason}")
    draw_curves(curves, options.metric, options.out)
    print(f"{options.out}: {len(curves)} runs" if len(curves) > 1 else f"{options.out}: 1 run")
    return 0
