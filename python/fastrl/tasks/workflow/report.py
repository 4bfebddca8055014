"""What a search for the best workflow came to: tables, a plot, files."""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table

from fastrl.envs.cage2.workflow import workflow_name
from fastrl.tasks.cage2.evaluate import RED_TITLES
from fastrl.tasks.workflow.scores import WorkflowEvaluation
from fastrl.tasks.workflow.search import Search, Standing
from fastrl.tasks.workflow.training import Outcome
from fastrl.training.metrics import counted
from fastrl.utils.files import to_json, write_atomically

# The longest list of orders that a terminal is shown; files have all.
_SHOWN = 15


@dataclass(frozen=True)
class Step:
    """One outcome of a search, and what was known after it.

    Attributes:
        number: 1, 2, 3 ...
        spent: episodes of the run, this outcome's included.
        outcome: of training one order.
        counts: it reached the compliance threshold.
        final: of the order that is trained to the end.
        best: the greatest return of an outcome that counts so far; NaN before the first one.
    """

    number: int
    spent: int
    outcome: Outcome
    counts: bool
    final: bool
    best: float


@dataclass(frozen=True)
class Report:
    """A search, as far as it has come.

    Attributes:
        method: of the search; empty if there was one order, which was given.
        threshold: of compliance.
        steps: outcomes, as they came.
        standings: orders tried, the best first.
        chosen: the best order that counts; None if none does.
        closest: the order that is kept to most.
    """

    method: str
    threshold: float
    steps: tuple[Step, ...]
    standings: tuple[Standing, ...]
    chosen: Standing | None
    closest: Standing | None

    def regrets(self) -> list[float]:
        """How much the best so far lacks to the best return that counted in the whole search, after each step."""
        best = self.steps[-1].best if self.steps else math.nan
        return [best - step.best for step in self.steps]

    def verdict(self) -> str:
        """The choice in a sentence."""
        if self.chosen is not None:
            return f"best workflow: {_describe(self.chosen)}"
        if self.closest is not None:
            return (
                f"no workflow reached compliance {self.threshold:g}; closest: {_describe(self.closest)}."
                " A greater compliance weight, more episodes or a lower --compliance-threshold may help"
            )
        return "no workflow was tried"

    def table(self) -> Group:
        """The orders tried, for people."""
        table = Table(
            title=f"workflows tried ({self.method})" if self.method else "the workflow that was given",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        table.add_column("workflow", overflow="fold")
        for name in ("episodes", "return", "compliance"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("counts")
        for standing in self.standings[:_SHOWN]:
            outcome = standing.outcome
            table.add_row(
                workflow_name(standing.workflow).replace(",", " > "),
                f"{standing.episodes:,}",
                _plus_minus(outcome.mean_return, outcome.return_stderr, 2),
                _plus_minus(outcome.compliance, outcome.compliance_stderr, 3),
                "yes" if standing.counts else "no",
                style="bold" if standing == self.chosen else None,
            )
        counting = sum(standing.counts for standing in self.standings)
        notes = [
            f"{len(self.standings)} of 120 orders tried, {counting} reached compliance {self.threshold:g}.",
            "Return and compliance: of the newest episodes of training, ± standard error.",
        ]
        if len(self.standings) > _SHOWN:
            notes.append(f"The other {len(self.standings) - _SHOWN} are in workflows.csv.")
        return Group(table, *notes)

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "method": self.method,
            "compliance_threshold": self.threshold,
            "chosen": None if self.chosen is None else _standing_tree(self.chosen),
            "closest": None if self.closest is None else _standing_tree(self.closest),
            "workflows": [_standing_tree(standing) for standing in self.standings],
            "steps": self._records(),
        }

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "step": step.number,
                "spent": step.spent,
                **outcome_tree(step.outcome),
                "counts": step.counts,
                "final": step.final,
                "best": step.best,
                "regret": regret,
            }
            for step, regret in zip(self.steps, self.regrets(), strict=True)
        ]

    def write(self, folder: Path, plain: Outcome | None = None) -> Path:
        """Writes ``workflows.json``, ``workflows.csv`` (a line for each order), ``steps.csv`` (one for each outcome)
        and ``workflows.png``.

        Args:
            plain: of PPO without workflows, for the picture.

        Returns:
            The picture's path.
        """
        write_atomically(folder / "workflows.json", to_json(self.to_tree(), indent=2).encode())
        standings = [_standing_tree(standing) for standing in self.standings]
        write_atomically(folder / "workflows.csv", _csv(standings))
        write_atomically(folder / "steps.csv", _csv(self._records()))
        picture, buffer = folder / "workflows.png", io.BytesIO()
        self.figure(plain).savefig(buffer, format="png")
        write_atomically(picture, buffer.getvalue())
        return picture

    def figure(self, plain: Outcome | None = None) -> Figure:
        """Returns, regret and compliance against the episodes spent, drawn.

        Regret is left out of a search in which it never changed or is not known, and without a search.

        Args:
            plain: of PPO without workflows, after as many episodes.
        """
        bests = [step.best for step in self.steps if not math.isnan(step.best)]
        panels = (
            ["returns", "regret", "compliance"]
            if self.method and len(set(bests)) > 1
            else ["returns", "compliance"]
        )
        ratios = {"returns": 3, "regret": 2, "compliance": 2}
        figure = Figure(figsize=(9, 3 * len(panels)), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = dict(
            zip(
                panels,
                figure.subplots(len(panels), 1, sharex=True, height_ratios=[ratios[name] for name in panels]),
                strict=True,
            )
        )
        returns, compliance = axes["returns"], axes["compliance"]
        self._scatter(returns, compliance)
        spent = np.array([step.spent for step in self.steps])
        errors = [step.outcome.return_stderr for step in self.steps]
        means = [step.outcome.mean_return for step in self.steps]
        returns.errorbar(spent, means, errors, fmt="none", ecolor="0.7", zorder=1)
        # A line needs two points.
        if len(bests) > 1:
            best = [step.best for step in self.steps]
            returns.step(spent, best, where="post", color="black", label="best so far")
        if "regret" in axes:
            axes["regret"].step(spent, self.regrets(), where="post", color="black")
            axes["regret"].set_ylabel("regret: below the best\nthat was found in the end")
            axes["regret"].set_ylim(bottom=0)
        if plain is not None:
            style = {"color": "tab:green", "linestyle": "--", "linewidth": 1}
            label = "PPO without workflows, after as many episodes"
            returns.axhline(plain.mean_return, label=label, **style)
            compliance.axhline(plain.compliance, **style)
        compliance.axhline(
            self.threshold, color="tab:red", linewidth=1, label=f"threshold {self.threshold:g}"
        )
        returns.set_ylabel("return of an episode")
        compliance.set_ylabel("compliance")
        compliance.set_xlabel("episodes")
        for panel in (returns, compliance):
            panel.legend(fontsize=8)
        for panel in axes.values():
            panel.grid(alpha=0.3)
        returns.set_title(self._title(), fontsize=10)
        return figure

    def _scatter(self, returns: Axes, compliance: Axes) -> None:
        """Draws a point for each outcome: its return, and its compliance."""
        kinds: Sequence[tuple[bool | None, str, str, str]] = [
            (False, "trial", "o", "tab:blue"),
            (True, "trained to the end", "s", "tab:orange"),
        ]
        if not self.method:
            kinds = [(None, "measured", "o", "tab:blue")]
        for final, what, marker, colour in kinds:
            for counts in (True, False):
                chosen = [
                    step for step in self.steps if step.counts == counts and final in (None, step.final)
                ]
                if not chosen:
                    continue
                label = f"{what}, {'counts' if counts else 'does not count'}"
                faces = colour if counts else "none"
                style: dict[str, Any] = {"marker": marker, "facecolors": faces, "edgecolors": colour}
                style |= {"s": 28, "zorder": 3}
                x = [step.spent for step in chosen]
                returns.scatter(x, [step.outcome.mean_return for step in chosen], label=label, **style)
                compliance.scatter(x, [step.outcome.compliance for step in chosen], **style)

    def _title(self) -> str:
        """The title: what the picture shows, and the order that was chosen."""
        title = f"search for the best workflow: {self.method}" if self.method else "training of one workflow"
        shown = self.chosen or (None if self.method else self.closest)
        return title if shown is None else f"{title}\n{workflow_name(shown.workflow).replace(',', ' > ')}"


def report_of(search: Search, before: int = 0) -> Report:
    """How far a search has come.

    Args:
        search: as it is.
        before: episodes that were spent before it began.
    """
    steps: list[Step] = []
    best, spent = math.nan, before
    for number, (outcome, final) in enumerate(zip(search.outcomes, search.finals, strict=True), 1):
        counts = search.counts(outcome)
        spent += outcome.episodes
        if counts and not best >= outcome.mean_return:
            best = outcome.mean_return
        steps.append(Step(number, spent, outcome, counts, final, best))
    return Report(
        method=search.name if len(search.orders) > 1 else "",
        threshold=search.config.compliance_threshold,
        steps=tuple(steps),
        standings=tuple(search.standings()),
        chosen=search.best(),
        closest=search.closest(),
    )


def protocol_table(evaluations: Sequence[WorkflowEvaluation]) -> Group:
    """Scores of several policies beside each other, a column for each of them on each ruleset."""
    table = Table(
        title="by the challenge's protocol",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("red agent")
    table.add_column("steps", justify="right")
    for each in evaluations:
        table.add_column(f"{each.evaluation.contender}\n{each.evaluation.ruleset}", justify="right")
    for i, score in enumerate(evaluations[0].evaluation.scores):
        cells = (
            f"{each.evaluation.scores[i].mean + 0.0:.2f} ({each.compliance[i].mean:.2f})"
            for each in evaluations
        )
        table.add_row(RED_TITLES[score.red_agent], str(score.horizon), *cells)
    table.add_section()
    scored = [each.evaluation for each in evaluations]
    table.add_row("total", "", *(f"{each.total + 0.0:.2f}" for each in scored))
    table.add_row("", "", *(f"± {each.total_standard_error:.2f}" for each in scored))
    episodes = scored[0].scores[0].episodes
    notes = (
        f"Means of {counted(episodes, 'episode')} each;"
        " in brackets the compliance with the workflow, 0.5 without any fix."
    )
    return Group(table, notes)


def _describe(standing: Standing) -> str:
    outcome = standing.outcome
    return (
        f"{workflow_name(standing.workflow)}, return {_plus_minus(outcome.mean_return, outcome.return_stderr, 2)},"
        f" compliance {outcome.compliance:.3f} after {standing.episodes:,} episodes"
    )


def outcome_tree(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON, its workflow by name."""
    return dataclasses.asdict(outcome) | {"workflow": workflow_name(outcome.workflow)}


def _standing_tree(standing: Standing) -> dict[str, Any]:
    return outcome_tree(standing.outcome) | {"episodes": standing.episodes, "counts": standing.counts}


def _csv(records: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [])
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def _plus_minus(mean: float, error: float, digits: int) -> str:
    number = f"{mean + 0.0:.{digits}f}"
    return number if math.isnan(error) else f"{number} ± {error:.{digits}f}"
