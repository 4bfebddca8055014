"""The command ``fastrl plot``: learning curves of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import Arg, Picture, command, print_note
from fastrl.runs.curves import SUFFIXES, draw_curves, read_curves
from fastrl.runs.listing import runs_in
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
    metric: Annotated[
        str | None,
        Arg(
            "a number of metrics.jsonl [eval/mean_reward where runs are evaluated on the way, otherwise"
            " rollout/ep_rew_mean]",
            "NAME",
        ),
    ] = None,
    out: Annotated[Picture, Arg(f"the picture, {' or '.join(SUFFIXES)}", "FILE")] = Path("curves.png"),
) -> int:
    """Draws learning curves. Runs of one algorithm on one environment are a group: a line is the interquartile mean of
    its runs, the band around it a 95% interval by a bootstrap of the runs. Where some runs are shorter, the others
    count."""
    if label and len(label) != len(runs):
        raise ConfigError(
            f"--label: expected one for each of the {len(runs)} RUN arguments, got {len(label)}"
        )
    labels = {run: label[i] if label else "" for i, folder in enumerate(runs) for run in runs_in(folder)}
    name, curves, missing = read_curves(labels, metric)
    if not curves:
        raise missing[0]
    for reason in missing:
        print_note(prog, f"left out: {reason}")
    draw_curves(curves, name, out)
    print(f"{out}: {len(curves)} runs" if len(curves) > 1 else f"{out}: 1 run")
    return 0
