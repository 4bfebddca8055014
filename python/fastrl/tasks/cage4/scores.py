"""Scores by the protocol of CAGE Challenge 4, beside published ones."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group
from rich.table import Table

from fastrl.envs.cage4.env import CAUSES
from fastrl.runs.metrics import counted, fixed, plus_minus
from fastrl.training.comparison import Mode
from fastrl.utils.tables import show

_ZONES = ("restricted A", "operational A", "restricted B", "operational B", "headquarters", "contractor")
_PHASES = ("phase 0", "phase 1", "phase 2")

PUBLISHED = {
    "KEEP (fifth of the challenge's leaderboard)": "-193.68",
    "an open heuristic": "-214 ± 74 (standard deviation)",
    "guard": "-342 ± 4",
    "random": "-4994 ± 99",
    "sleep": "-6897 ± 141",
}
"""Scores that others published, and scripts' in a Python model of the game, with standard errors."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a team, see `fastrl.training.evaluation.Scores`.

    Attributes:
        seed: of the first generator of random numbers.
        mean_return, std_return: of the episodes' counted rewards, with the sample's standard deviation.
        parts: means of the rewards, float64 [3, 6, 4] by phase, zone and cause.
        mode: how actions were chosen.
    """

    episodes: int
    seed: int
    mean_return: float
    std_return: float
    parts: NDArray[np.float64] = dataclasses.field(compare=False, repr=False)
    mode: Mode = "deterministic"

    @classmethod
    def from_ledgers(cls, ledgers: NDArray[np.int32], seed: int, mode: Mode) -> "Evaluation":
        """The scores of episodes by their ledgers, [E, 3, 6, 4]."""
        returns = ledgers.sum((1, 2, 3))
        deviation = float(returns.std(ddof=1)) if len(returns) > 1 else math.nan
        return cls(len(returns), seed, float(returns.mean()), deviation, ledgers.mean(0), mode)

    @property
    def standard_error(self) -> float:
        return self.std_return / math.sqrt(self.episodes)

    def metrics(self) -> dict[str, float]:
        """Standard error, and means by cause, for a row of metrics."""
        causes = dict(zip(CAUSES, self.parts.sum((0, 1)).tolist(), strict=True))
        return {"standard_error": self.standard_error, **causes}

    def to_tree(self) -> dict[str, Any]:
        tree = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**tree, "parts": self.parts.tolist(), "standard_error": self.standard_error}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_tree`."""
        values = {field.name: tree[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**values, "parts": np.array(tree["parts"], np.float64)})

    def show(self, console: Console) -> None:
        """Prints the table of scores."""
        show(console, score_table([("the policy", self)]), parts_table("the policy", self))


def score_table(scores: Sequence[tuple[str, Evaluation]]) -> Group:
    """The scores of teams beside published ones."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("team", overflow="fold")
    for column in ("mode", "score", "95% interval", "standard deviation"):
        table.add_column(column, justify="right")
    for name, it in scores:
        half = 1.96 * it.standard_error
        interval = (
            ""
            if math.isnan(half)
            else f"{fixed(it.mean_return - half, 1)} to {fixed(it.mean_return + half, 1)}"
        )
        score = plus_minus(it.mean_return, it.standard_error)
        table.add_row(name, it.mode, score, interval, fixed(it.std_return))
    table.add_section()
    for name, text in PUBLISHED.items():
        table.add_row(name, "", text)
    first = scores[0][1]
    note = (
        f"Means of {counted(first.episodes, 'episode')} ± their standard errors; seed {first.seed}; rewards of all"
        " steps of an episode but its last two."
    )
    return Group(table, note)


def parts_table(name: str, scores: Evaluation) -> Table:
    """The mean rewards of a team by cause, for each zone and phase."""
    table = Table(title=f"{name}: rewards", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("")
    for column in (*(cause.replace("_", " ") for cause in CAUSES), "sum"):
        table.add_column(column, justify="right")
    for names, sums in ((_ZONES, scores.parts.sum(0)), (_PHASES, scores.parts.sum(1))):
        for row, cells in zip(names, sums, strict=True):
            table.add_row(row, *(fixed(cell, 1) for cell in (*cells, cells.sum())))
        table.add_section()
    total = scores.parts.sum((0, 1))
    table.add_row("total", *(fixed(cell, 1) for cell in (*total, total.sum())))
    return table
