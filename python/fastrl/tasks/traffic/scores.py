"""Scores of a policy in traffic: means over episodes on fixed seeds."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.envs.record_episodes import MEANS, Act, finite_mean, run_episodes
from fastrl.play.play import team_seeds
from fastrl.runs.metrics import counted, mean_and_error, plus_minus
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv

# Environments that are stepped at a time: enough to be fast, few enough to stay in caches.
_BATCH = 128


@dataclass(frozen=True)
class Scores:
    """Means over episodes, see `fastrl.training.evaluation.Scores`; NaN of what the environment does not know.

    Attributes:
        episodes, seed: their number, on the seeds that follow from this one.
        mean_return: of the agents' sums of rewards; standard_error: of that mean over episodes.
        success_rate, collision_rate: shares of the agents that ended well, and that crashed.
        mean_speed: m/s; throughput: vehicles/h; min_ttc: s, of each episode the shortest time to a collision.
        mean_length: steps.
        success_error, collision_error: standard errors of the shares over episodes; NaN in older files.
        returns: of the episodes, float64 [E]; empty in scores from files.
    """

    episodes: int
    seed: int
    mean_return: float
    standard_error: float
    success_rate: float
    collision_rate: float
    mean_speed: float
    throughput: float
    min_ttc: float
    mean_length: float
    success_error: float = math.nan
    collision_error: float = math.nan
    returns: NDArray[np.float64] = dataclasses.field(
        default_factory=lambda: np.empty(0), compare=False, repr=False
    )

    @property
    def std_return(self) -> float:
        return self.standard_error * math.sqrt(self.episodes)

    def metrics(self) -> dict[str, float]:
        """See `fastrl.training.evaluation.Scores`; without what the environment does not know."""
        others = {name: getattr(self, name) for name in MEANS if name not in ("mean_return", "mean_length")}
        known = {name: value for name, value in others.items() if not math.isnan(value)}
        return {"mean_ep_length": self.mean_length, **known, "standard_error": self.standard_error}

    def episode_returns(self) -> dict[str, NDArray[np.float64]]:
        """See `fastrl.training.comparison.EpisodeScores`."""
        return {"return": self.returns} if len(self.returns) else {}

    def to_tree(self) -> dict[str, Any]:
        """All of it but single episodes, for JSON."""
        tree = dataclasses.asdict(self)
        del tree["returns"]
        return tree

    def show(self, console: Console) -> None:
        title = f"{counted(self.episodes, 'episode')} on fixed seeds, without exploration"
        show(console, score_table([("trained", self)], title))


def score(
    make: Callable[[int], "MultiAgentVectorEnv"],
    act_in: Callable[["MultiAgentVectorEnv"], Act],
    *,
    episodes: int,
    seed: int,
    advance: Callable[[int], object] = lambda episodes: None,
) -> Scores:
    """Evaluates a policy on fixed seeds.

    Args:
        make: makes a vector environment of a size.
        act_in: gives the policy for an environment.
        advance: called again and again with the number of episodes that have ended since the last call.
    """
    seeds = team_seeds(seed, episodes)
    records = []
    for start in range(0, episodes, _BATCH):
        batch = seeds[start : start + _BATCH]
        env = make(len(batch))
        records.append(run_episodes(env, act_in(env), batch, advance))
        env.close()
    return scores_of(np.concatenate(records), seed)


def scores_of(records: NDArray[np.void], seed: int) -> Scores:
    """The scores of episodes, from their records `fastrl.envs.record_episodes.EPISODE` [E]."""
    _, error = mean_and_error(records["return_mean"])
    return Scores(
        episodes=len(records),
        seed=seed,
        standard_error=error,
        success_error=_error(records["success"]),
        collision_error=_error(records["collision_rate"]),
        returns=records["return_mean"].astype(np.float64),
        **{mean: finite_mean(records[field]) for mean, field in MEANS.items()},
    )


def score_table(scores: Sequence[tuple[str, Scores]], title: str) -> Table:
    """A table with a row for each policy, with standard errors over episodes; TTC is the mean of the episodes' shortest
    times to a collision. What the environment does not know has no column."""
    columns: dict[str, list[str]] = {
        "return": [
            plus_minus(it.mean_return, it.standard_error, 2 if abs(it.mean_return) < 100 else 0)
            for _, it in scores
        ],
        "success": [_rate(it.success_rate, it.success_error) for _, it in scores],
        "crashed": [_rate(it.collision_rate, it.collision_error) for _, it in scores],
        "m/s": [_text(it.mean_speed, "{:.1f}") for _, it in scores],
        "veh/h": [_text(it.throughput, "{:,.0f}") for _, it in scores],
        "TTC s": [_text(it.min_ttc, "{:.2f}") for _, it in scores],
        "steps": [_text(it.mean_length, "{:,.0f}") for _, it in scores],
    }
    known = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("policy", overflow="fold")
    for column in known:
        table.add_column(column, justify="right")
    for (name, _), *cells in zip(scores, *known.values(), strict=True):
        table.add_row(name, *cells)
    return table


def _error(values: NDArray[np.float64]) -> float:
    """Standard error of the mean of the values that are known; NaN of fewer than two."""
    known = values[np.isfinite(values)]
    return mean_and_error(known)[1] if len(known) else math.nan


def _rate(share: float, error: float) -> str:
    return "-" if math.isnan(share) else f"{plus_minus(100 * share, 100 * error, 1)}%"


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)
