"""Scores by the protocol of CAGE Challenge 2, beside published ones."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group
from rich.table import Table

from fastrl.envs.cage2.memory import Observe, Ruleset
from fastrl.runs.metrics import counted, fixed, plus_minus
from fastrl.tasks.cage2.defence import Defence
from fastrl.training.comparison import Comparison, Estimate, Mode
from fastrl.utils.tables import show

HORIZONS = (30, 50, 100)
RED_TITLES = {"bline": "B_line", "meander": "Meander", "sleep": "Sleep"}


@dataclass(frozen=True)
class Score:
    """Returns of episodes against one red agent over one horizon.

    Attributes:
        defence: measures of the defender beside them; None where they were not taken.
    """

    red_agent: str
    horizon: int
    episodes: int
    mean: float
    standard_error: float
    defence: Defence | None = field(default=None, kw_only=True)

    @property
    def part(self) -> str:
        """Name of the score, such as ``bline_30``."""
        return f"{self.red_agent}_{self.horizon}"


@dataclass(frozen=True)
class Evaluation:
    """The scores of one contender on one ruleset.

    Attributes:
        mode: how it chose its actions.
        observe: "truth": it observed the true state of the game. No defender can: its scores are a bound.
        scenario: name of the file whose network it defended; empty: the challenge's own.
        returns: of each score the returns of its episodes, float64 [E]; empty where they were not kept, as in files.
    """

    contender: str
    ruleset: Ruleset
    seed: int
    scores: tuple[Score, ...]
    mode: Mode = "deterministic"
    observe: Observe = "blue"
    scenario: str = ""
    returns: tuple[NDArray[np.float64], ...] = field(default=(), compare=False, repr=False)

    @property
    def total(self) -> float:
        """Sum of the means, the challenge's final score where all nine are there and the network is its own."""
        return sum(score.mean for score in self.scores)

    @property
    def total_standard_error(self) -> float:
        return math.sqrt(sum(score.standard_error**2 for score in self.scores))

    @property
    def title(self) -> str:
        """The ruleset and, if it is not the challenge's, the network."""
        where = f" in {self.scenario}" if self.scenario else ""
        return f"ruleset {self.ruleset!r}{where}"

    @property
    def published(self) -> Sequence["Published"]:
        """The published results on the same games."""
        return [other for other in PUBLISHED if other.ruleset == self.ruleset and not self.scenario]

    @property
    def mean_return(self) -> float:
        """The total, by which evaluations are compared."""
        return self.total

    @property
    def std_return(self) -> float:
        """Standard deviation of the total of one episode of each score."""
        return math.hypot(*(score.standard_error * math.sqrt(score.episodes) for score in self.scores))

    def metrics(self) -> dict[str, float]:
        """Scores by red agent and horizon, for a row of metrics."""
        return {score.part: score.mean for score in self.scores}

    def episode_returns(self) -> dict[str, NDArray[np.float64]]:
        """See `fastrl.training.comparison.EpisodeScores`."""
        return {score.part: returns for score, returns in zip(self.scores, self.returns, strict=False)}

    def to_tree(self) -> dict[str, Any]:
        """All of it but single episodes, for JSON."""
        tree = asdict(replace(self, returns=()))
        del tree["returns"]
        return tree | {"total": self.total, "total_standard_error": self.total_standard_error}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_tree`."""
        measured = ({**score, "defence": Defence.from_tree(score.get("defence"))} for score in tree["scores"])
        scores = tuple(Score(**score) for score in measured)
        contender, ruleset, seed = tree["contender"], tree["ruleset"], tree["seed"]
        mode, observe, scenario = tree["mode"], tree["observe"], tree.get("scenario", "")
        return cls(contender, ruleset, seed, scores, mode, observe, scenario)

    def show(self, console: Console) -> None:
        """Prints the table of scores."""
        show(console, score_table([self]))
        console.print()


@dataclass(frozen=True)
class Published:
    """A result that others published. Scores by red agent and horizon, as far as they are known."""

    name: str
    ruleset: Ruleset
    scores: dict[tuple[str, int], float]
    total: float | None


def _published(name: str, ruleset: Ruleset, total: float | None, **scores: Sequence[float]) -> Published:
    cells = {
        (red, horizon): s for red, row in scores.items() for horizon, s in zip(HORIZONS, row, strict=True)
    }
    return Published(name, ruleset, cells, total)


# The challenge's final leaderboard, and the results on today's repository that we found published.
PUBLISHED = (
    _published(
        "CardiffUni (winner)",
        "leaderboard",
        -54.57,
        bline=(-3.47, -6.41, -13.76),
        meander=(-5.64, -8.69, -16.6),
        sleep=(0.0, 0.0, 0.0),
    ),
    _published("second place", "leaderboard", -56.9),
    _published("third place", "leaderboard", -57.05),
    _published("CardiffUni (winner)", "main", None, bline=(-5.05, -12.1, -36.0)),
    _published("best found published, a graph network", "main", -58.2),
)


def score_table(evaluations: Sequence[Evaluation]) -> Group:
    """The scores of one contender on one ruleset beside the winner's, and the other published totals.

    Args:
        evaluations: in different modes.
    """
    first = evaluations[0]
    others = first.published
    beside = [other for other in others if other.scores]
    table = Table(title=f"{first.contender} on {first.title}")
    table.add_column("red agent")
    table.add_column("steps", justify="right")
    for each in evaluations:
        table.add_column(each.mode, justify="right")
    for other in beside:
        table.add_column(other.name, justify="right")
    for i, score in enumerate(first.scores):
        cells = (other.scores.get((score.red_agent, score.horizon)) for other in beside)
        table.add_row(
            RED_TITLES[score.red_agent],
            str(score.horizon),
            *(plus_minus(each.scores[i].mean, each.scores[i].standard_error) for each in evaluations),
            *("" if cell is None else f"{cell:.2f}" for cell in cells),
            end_section=score.horizon == HORIZONS[-1],
        )
    table.add_row(
        "total",
        "",
        *(plus_minus(each.total, each.total_standard_error) for each in evaluations),
        *("" if other.total is None else f"{other.total:.2f}" for other in beside),
    )
    totals = [f"{other.name} {other.total:.2f}" for other in others if not other.scores]
    published = [f"Published totals: {', '.join(totals)}."] if totals else []
    return Group(table, _notes(first), *bounds(evaluations), *published)


def comparison_table(evaluations: Sequence[Evaluation], comparison: Comparison) -> Group:
    """The scores of several contenders on one ruleset, two rows for each; then means over seeds of training, paired
    differences and published scores.

    Args:
        comparison: with spreads and differences on this ruleset and perhaps on others.
    """
    first = evaluations[0]
    table = Table(title=first.title, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", overflow="fold")
    for red_agent, scores in itertools.groupby(first.scores, lambda score: score.red_agent):
        for i, score in enumerate(scores):
            table.add_column(f"{'' if i else RED_TITLES[red_agent]}\n{score.horizon}", justify="right")
    table.add_column("\ntotal", justify="right")

    def add(name: str, below: str, cells: Sequence[tuple[float, float]]) -> None:
        table.add_row(name, *(fixed(mean) for mean, _ in cells))
        table.add_row(f"  {below}", *("" if math.isnan(it) else f"±{it:.2f}" for _, it in cells))

    for each in evaluations:
        cells = [(score.mean, score.standard_error) for score in each.scores]
        add(each.contender, each.mode, (*cells, (each.total, each.total_standard_error)))
    table.add_section()
    notes = [_notes(first)]
    for spread in comparison.spreads:
        if spread.variant["ruleset"] == first.ruleset:
            moments = (*spread.parts.values(), spread.total)
            add(spread.name, spread.variant["mode"], [(it["mean"], it["deviation"]) for it in moments])
    if comparison.spreads:
        notes.append("Of several seeds: the mean over runs ± their standard deviation.")
    table.add_section()
    for difference in comparison.differences:
        if difference.variant["ruleset"] == first.ruleset:
            estimates = (*difference.parts.values(), difference.total)
            mode = difference.variant.get("mode", "scripted")
            name = f"{difference.name} - {difference.to}"
            add(name, mode, [(it.mean, it.standard_error) for it in estimates])
    if comparison.differences:
        notes.append("A - B: the mean of the differences in the same episodes ± its standard error.")
    table.add_section()
    for other in first.published:
        known = (other.scores.get((score.red_agent, score.horizon)) for score in first.scores)
        table.add_row(other.name, *("" if it is None else fixed(it) for it in (*known, other.total)))
    return Group(table, *notes, *bounds(evaluations))


def defence_tables(evaluations: Sequence[Evaluation]) -> Group:
    """Tables of the measures beside scores, of contenders on one ruleset, in the longest episodes of each red agent."""
    first = evaluations[0]
    measures = _defence_table(f"what red held and lost, {first.title}", _MEASURES)
    found_by_all = [found for each in evaluations for _, found in longest(each)]
    lost, own = contested_hosts(found_by_all), found_by_all[0].start
    shown = most_held(found_by_all, lost)
    which = "each host" if len(shown) == len(lost) else f"each of the {len(shown)} hosts that it has most"
    hosts = _defence_table(f"% of the steps that red has {which}", [_in_two_lines(host) for host in shown])
    for each in evaluations:
        for score, found in longest(each):
            name = f"{each.contender}\n  {each.mode}, {RED_TITLES[score.red_agent]}"
            measures.add_row(
                name,
                _two_lines(found.steps_to_removal),
                _two_lines(found.removed, 100, 1),
                _two_lines(found.needless_restores),
                _two_lines(found.server_reached, 100, 1),
                _two_lines(found.first_step_at_server, digits=1),
            )
            if found.removed.mean == found.removed.mean:
                hosts.add_row(name, *(_two_lines(found.held[host], 100, 1) for host in shown))
    lines = (
        f"Episodes of {first.scores[-1].horizon} steps, ± standard errors. Removal: from red's first session on a host"
        " to the end of its last one there. Needless: a Restore where red has no session, unless it starts"
        f" Op_Server0's service. {own} is always red's."
    )
    return Group(measures, "", hosts, lines)


# Columns of the table of measures.
_MEASURES = (
    "steps to\nremoval",
    "removed\n%",
    "needless\nrestores",
    "reached\nserver %",
    "first at\nstep",
)
# So many columns of hosts fit beside each other.
_MOST_HOSTS = 11


def contested_hosts(measures: Sequence[Defence]) -> list[str]:
    """Hosts of a network but the one that is always red's, and Defender where it never is."""
    entered = {host for found in measures for host, share in found.held.items() if share.mean}
    others = (host for host in measures[0].held if host != measures[0].start)
    return [host for host in others if host != "Defender" or host in entered]


def most_held(measures: Sequence[Defence], hosts: Sequence[str]) -> list[str]:
    """The hosts that red has for the longest, as many as a table has room for, in their order."""
    shares = {host: -sum(found.held[host].mean for found in measures) for host in hosts}
    chosen = sorted(hosts, key=lambda host: shares[host])[:_MOST_HOSTS]
    return [host for host in hosts if host in chosen]


def longest(evaluation: Evaluation) -> Iterator[tuple[Score, Defence]]:
    """The scores over the longest horizon that were measured, with their measures."""
    for score in evaluation.scores:
        if score.defence is not None and score.horizon == evaluation.scores[-1].horizon:
            yield score, score.defence


def _defence_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _in_two_lines(host: str) -> str:
    """``Enter-, prise0``: a name of a host for a narrow column."""
    for start in ("Op_", "User", "Enter"):
        if host.startswith(start):
            return f"{start}{'-' if start == 'Enter' else ''}\n{host.removeprefix(start)}"
    return host


def _two_lines(estimate: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    mean, error = fixed(scale * estimate.mean, digits), scale * estimate.standard_error
    return mean if math.isnan(error) else f"{mean}\n±{error:.{digits}f}"


def bounds(evaluations: Sequence[Evaluation]) -> list[str]:
    """A line for each contender that observes the true state."""
    names = dict.fromkeys(each.contender for each in evaluations if each.observe == "truth")
    return [f"{name} observes the true state (not blue-legal): a bound, no defender." for name in names]


def _notes(evaluation: Evaluation) -> str:
    episodes = evaluation.scores[0].episodes
    note = f"Means of {counted(episodes, 'episode')} each ± their standard errors; seed {evaluation.seed}."
    if not evaluation.scenario:
        return note
    played = {score.red_agent for score in evaluation.scores}
    left_out = "".join(
        f" {title} cannot play there." for red, title in RED_TITLES.items() if red not in played
    )
    return f"{note} The network is that of {evaluation.scenario}: no scores of the challenge.{left_out}"
