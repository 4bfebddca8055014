"""Defenders against attackers of CAGE Challenge 2: who beats whom, ratings by Nash averaging, whom to train against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import RED_AGENTS
from fastrl.envs.opponents import Opponent
from fastrl.runs.metrics import fixed
from fastrl.tasks.cage2_game.opponents import BLUE, ScriptedRed, blues, frozen_red, play_sides
from fastrl.training.opposed_spec import policy_state
from fastrl.utils.tables import print_lines, show

if TYPE_CHECKING:
    from rich.console import Console

# Rounds of regret matching: each side could then gain about a hundred-thousandth of the largest payoff.
ROUNDS = 5_000


@dataclass(frozen=True)
class League:
    """Mean returns of defenders against attackers.

    Attributes:
        defenders, attackers: their names, B and R.
        returns: means of the defender's, float64 [B, R].
        errors: their standard errors, float64 [B, R].
    """

    defenders: Sequence[str]
    attackers: Sequence[str]
    returns: NDArray[np.float64]
    errors: NDArray[np.float64]

    def nash(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """An equilibrium of the game in which one side picks a defender and the other an attacker: the shares of
        defenders, float64 [B], and of attackers, float64 [R]."""
        return nash(self.returns)

    def ratings(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Nash averages: the return of each defender against the equilibrium's attackers, float64 [B], and that of the
        equilibrium's defenders against each attacker, float64 [R]. Copies of a player change no rating of others."""
        blue, red = self.nash()
        return self.returns @ red, blue @ self.returns

    def priorities(self, defender: int, power: float = 2.0) -> NDArray[np.float64]:
        """Shares of attackers in a training of a defender, float64 [R], by prioritised fictitious self-play (Vinyals et
        al., 2019): (1 - p) ** power, where p goes from 0 for the attacker that costs it most in the table to 1 for
        a return of 0."""
        costs = np.maximum(-self.returns[defender], 0.0)
        shares = (costs / (costs.max() or 1.0)) ** power
        found: NDArray[np.float64] = (
            shares / shares.sum() if shares.any() else np.full(len(costs), 1 / len(costs))
        )
        return found

    def to_tree(self) -> dict[str, Any]:
        """Values of JSON."""
        (blue, red), (blue_ratings, red_ratings) = self.nash(), self.ratings()
        rows = zip(self.defenders, self.returns, self.errors, blue, blue_ratings, strict=True)
        columns = zip(self.attackers, red, red_ratings, strict=True)
        return {
            "defenders": [
                {
                    "name": name,
                    "returns": dict(zip(self.attackers, returns.tolist(), strict=True)),
                    "standard_errors": dict(zip(self.attackers, errors.tolist(), strict=True)),
                    "nash": float(share),
                    "rating": float(rating),
                    "priorities": dict(zip(self.attackers, self.priorities(i).tolist(), strict=True)),
                }
                for i, (name, returns, errors, share, rating) in enumerate(rows)
            ],
            "attackers": [
                {"name": name, "nash": float(share), "rating": float(rating)}
                for name, share, rating in columns
            ],
        }

    def show(self, console: Console) -> None:
        """Prints the table with ratings, and the opponents to train each defender against."""
        from rich.table import Table

        (blue, red), (blue_ratings, red_ratings) = self.nash(), self.ratings()
        table = Table(title="the defender's return: defenders in rows, attackers in columns")
        table.add_column("", overflow="fold")
        for name in (*self.attackers, "worst", "rating", "Nash share"):
            table.add_column(name, justify="right", overflow="fold")
        for i, name in enumerate(self.defenders):
            numbers = (*self.returns[i], self.returns[i].min(), blue_ratings[i])
            table.add_row(name, *(fixed(each, 1) for each in numbers), fixed(blue[i]))
        table.add_section()
        table.add_row(
            "rating",
            *(fixed(each, 1) for each in red_ratings),
            "",
            fixed(float(blue @ self.returns @ red), 1),
        )
        table.add_row("Nash share", *map(fixed, red))
        show(console, table)
        for i, name in enumerate(self.defenders):
            shares = zip(self.attackers, self.priorities(i), strict=True)
            words = ",".join(f"{attacker}:{share:.3g}" for attacker, share in shares if share >= 0.0005)
            print_lines(console, f"priorities against {name}: --opponents {words}")


def nash(payoffs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mixtures of an equilibrium of a zero-sum game, by regret matching+ (Tammelin, 2014) with averages weighted by
    the round.

    Args:
        payoffs: of the player of rows, float64 [B, R].

    Returns:
        Shares of rows float64 [B] and of columns float64 [R].
    """
    rows, columns = np.zeros(len(payoffs)), np.zeros(payoffs.shape[1])
    totals = [np.zeros_like(rows), np.zeros_like(columns)]
    column = _mixture(columns)
    for number in range(1, ROUNDS + 1):
        row = _mixture(rows)
        gains = payoffs @ column
        rows = np.maximum(rows + gains - row @ gains, 0.0)
        # The other side answers to the new mixture: with turns it converges much faster.
        row = _mixture(rows)
        costs = row @ payoffs
        columns = np.maximum(columns + costs @ column - costs, 0.0)
        column = _mixture(columns)
        totals[0] += number * row
        totals[1] += number * column
    return totals[0] / totals[0].sum(), totals[1] / totals[1].sum()


def _mixture(regrets: NDArray[np.float64]) -> NDArray[np.float64]:
    total = regrets.sum()
    return regrets / total if total > 0 else np.full(len(regrets), 1 / len(regrets))


def league(
    defenders: Sequence[str],
    attackers: Sequence[str],
    *,
    episodes: int = 500,
    ruleset: str = "main",
    episode_length: int = 100,
    advance: Callable[[int], object] = lambda pairs: None,
) -> League:
    """Plays each defender, with its most probable actions, against each attacker, which draws its own.

    Args:
        defenders: runs and agents, as `blues` takes them.
        attackers: names of scripts and runs, as `frozen_red` takes them.
        episodes: of each pair, from the same seeds for all.
        advance: called with 1 after each pair.

    Raises:
        CheckpointError: a run has no such side.
    """
    frozen, memory = blues(defenders)
    returns, errors = np.zeros((2, len(defenders), len(attackers)))
    for column, name in enumerate(attackers):
        is_script = name in RED_AGENTS
        red: Opponent = ScriptedRed() if is_script else frozen_red(name, policy_state(name))
        options = {"ruleset": ruleset, "episode_length": episode_length, "memory": memory}
        for row, blue in enumerate(frozen):
            found = np.zeros(episodes)
            script = name if is_script else "bline"
            for _, _, rewards in play_sides((blue, red), episodes, red_agent=script, **options):
                found += rewards[:, BLUE]
            returns[row, column], errors[row, column] = found.mean(), found.std(ddof=1) / episodes**0.5
            advance(1)
    return League(list(defenders), list(attackers), returns, errors)
