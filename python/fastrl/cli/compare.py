"""The command ``fastrl compare``: statistics of groups of runs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import Arg, Picture, command, print_note
from fastrl.runs.compare import compare as compare_runs
from fastrl.runs.curves import SUFFIXES
from fastrl.utils.config import ConfigError
from fastrl.utils.files import to_json


@command(
    "{prog} runs --by algo\n{prog} runs --by algo --reference CartPole-v1=22:500 --reference Acrobot-v1=-500:-75",
    usage="{prog} RUN [RUN ...] [--by SETTING ...] [--reference ENV=LOW:HIGH ...] [--out FILE]",
)
def compare(
    prog: str,
    runs: Annotated[
        Sequence[Path],
        Arg("run directory, or a directory of runs; others are compared with the group of the first", "RUN"),
    ],
    *,
    by: Annotated[
        Sequence[str],
        Arg(
            "a setting by which runs are grouped, such as algo or ppo.gamma [all but the seed]",
            "SETTING",
            repeats=True,
        ),
    ] = (),
    reference: Annotated[
        Sequence[str],
        Arg(
            "returns that count as 0 and 1, such as of random actions and of an expert, once for each environment:"
            " scores are normalised, and joined over environments",
            "ENV=LOW:HIGH",
            repeats=True,
        ),
    ] = (),
    metric: Annotated[
        str | None, Arg("a number of metrics.jsonl, for the curves [as of fastrl plot]", "NAME")
    ] = None,
    out: Annotated[Picture, Arg(f"the figure, {' or '.join(SUFFIXES)}", "FILE")] = Path("comparison.png"),
    json: Annotated[bool, Arg("print the table as JSON and nothing else")] = False,
) -> int:
    """Compares groups of runs by their evaluations at the end: interquartile mean with its 95% interval, mean, median,
    and the probability of improvement over the first group. The figure has the means, performance profiles and learning
    curves."""
    found = compare_runs(runs, by, references=dict(map(_reference, reference)), metric=metric)
    for line in found.left_out:
        print_note(prog, f"left out: {line}")
    found.draw(out)
    print(to_json(found.to_tree(), indent=2) if json else f"{found.to_markdown()}\nFigure: {out}")
    return 0


def _reference(text: str) -> tuple[str, tuple[float, float]]:
    env, _, returns = text.rpartition("=")
    try:
        low, high = map(float, returns.split(":"))
    except ValueError:
        low = high = math.nan
    if not env or not math.isfinite(high - low):
        raise ConfigError(f"--reference: expected ENV=LOW:HIGH such as CartPole-v1=22:500, got {text}")
    return env, (low, high)
