"""The command ``fastrl plot``: learning curves of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import Arg, Picture, command, print_note
from fastrl.runs.curves import SUFFIXES, Curve, draw_curves
from fastrl.runs.listing import RETURN, read_curve, read_run, runs_in
from fastrl.utils.config import ConfigError


@command(
    "{prog} runs/cart-* --out curves.svg\n{prog} runs/a runs/b --label 'small network' --label 'large network'",
    usage="{prog} RUN [RUN ...] [--label NAME ...] [--metric NAME] [--out FILE]",
)
def plot(
    prog: str,
    runs: Annotated[
        Sequence[Path], Arg("run directory, or a directory of runs, such as those of several seeds", "RUN")
    ],
    *,
    label: Annotated[
        Sequence[str],
        Arg(
            "name of the group of a RUN, once for each RUN, in their order; equal names are one group",
            "NAME",
            repeats=True,
        ),
    ] = (),
    metric: Annotated[str, Arg("a number of metrics.jsonl", "NAME")] = RETURN,
    out: Annotated[Picture, Arg(f"the picture, {' or '.join(SUFFIXES)}", "FILE")] = Path("curves.png"),
) -> int:
    """Draws learning curves. Runs of one algorithm on one environment are a group: a line is the mean of its runs, the
    band around it a standard deviation wide to either side. Where some runs are shorter, the others count."""
    if label and len(label) != len(runs):
        raise ConfigError(
            f"--label: expected one for each of the {len(runs)} RUN arguments, got {len(label)}"
        )
    curves: list[Curve] = []
    missing: list[ConfigError] = []
    for i, folder in enumerate(runs):
        for run in runs_in(folder):
            try:
                info = read_run(run)
                name = label[i] if label else info.algo
                curve = read_curve(run, metric)
            except ConfigError as error:
                missing.append(error)
            else:
                curves.append(Curve(info.env, name, *curve))
    if not curves:
        raise missing[0]
    for reason in missing:
        print_note(prog, f"left out: {reason}")
    draw_curves(curves, metric, out)
    print(f"{out}: {len(curves)} runs" if len(curves) > 1 else f"{out}: 1 run")
    return 0
