"""Scores of a policy in traffic: means over episodes on fixed seeds."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.envs.record_episodes import MEANS, Act, finite_mean, run_episodes
from fastrl.play.play import team_seeds
from fastrl.runs.metrics import counted, mean_and_error, plus_minus, ratio_and_error
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
        mean_speed: m/s; min_ttc: s, of each episode the shortest time to a collision.
        throughput: vehicles/h, background included, past the counter of a cooperative road; elsewhere agents that
            arrive.
        mean_length: steps.
        success_error, collision_error, throughput_error: standard errors over episodes; NaN in older files.
        collisions_per_vehicle_hour: crashes of agents by the hours that they drove, all together; with standard error.
        arrival_time: s from the start of an episode, mean over all agents that arrive; NaN where the road has no end;
            with standard error.
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
    throughput_error: float = math.nan
    collisions_per_vehicle_hour: float = math.nan
    collisions_per_vehicle_hour_error: float = math.nan
    arrival_time: float = math.nan
    arrival_time_error: float = math.nan
    returns: NDArray[np.float64] = dataclasses.field(
        default_factory=lambda: np.empty(0), compare=False, repr=False
    )

    @property
    def std_return(self) -> float:
        return self.standard_error * math.sqrt(self.episodes)

    def metrics(self) -> dict[str, float]:
        """See `fastrl.training.evaluation.Scores`; without what the environment does not know."""
        names = [name for name in MEANS if name not in ("mean_return", "mean_length")]
        others = {
            name: getattr(self, name) for name in (*names, "collisions_per_vehicle_hour", "arrival_time")
        }
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
        show(console, *score_tables([("trained", self)], title))


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
    crashes = records["collision_rate"] * records["num_agents"]
    arrivals = np.where(np.isfinite(records["arrival_time"]), records["success"] * records["num_agents"], 0)
    crash_rate = _ratio(crashes, records["driving_time"] / 3600)
    arrival_time = _ratio(np.nan_to_num(records["arrival_time"]) * arrivals, arrivals)
    return Scores(
        episodes=len(records),
        seed=seed,
        standard_error=error,
        success_error=_error(records["success"]),
        collision_error=_error(records["collision_rate"]),
        throughput_error=_error(records["throughput"]),
        collisions_per_vehicle_hour=crash_rate[0],
        collisions_per_vehicle_hour_error=crash_rate[1],
        arrival_time=arrival_time[0],
        arrival_time_error=arrival_time[1],
        returns=records["return_mean"].astype(np.float64),
        **{mean: finite_mean(records[field]) for mean, field in MEANS.items()},
    )


def score_tables(scores: Sequence[tuple[str, Scores]], title: str) -> list[Table]:
    """Tables with a row for each policy: its scores, then measures of the traffic, with standard errors over episodes.

    TTC is the mean of the episodes' shortest times to a collision. What the environment does not know has no column.
    """
    returns = {
        "return": [
            plus_minus(it.mean_return, it.standard_error, 2 if abs(it.mean_return) < 100 else 0)
            for _, it in scores
        ],
        "success": [_rate(it.success_rate, it.success_error) for _, it in scores],
        "crashed": [_rate(it.collision_rate, it.collision_error) for _, it in scores],
        "m/s": [_text(it.mean_speed, "{:.1f}") for _, it in scores],
        "steps": [_text(it.mean_length, "{:,.0f}") for _, it in scores],
    }
    traffic = {
        "vehicles/h": [plus_minus(it.throughput, it.throughput_error, 0) for _, it in scores],
        "crashes per vehicle-hour": [
            plus_minus(it.collisions_per_vehicle_hour, it.collisions_per_vehicle_hour_error)
            for _, it in scores
        ],
        "s to arrival": [plus_minus(it.arrival_time, it.arrival_time_error, 1) for _, it in scores],
        "TTC s": [_text(it.min_ttc, "{:.2f}") for _, it in scores],
    }
    names = [name for name, _ in scores]
    tables = [_table(names, columns) for columns in (returns, traffic)]
    tables[0].title = title
    return [table for table in tables if len(table.columns) > 1]


def _table(names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    """A row for each policy; without columns in which nothing is known."""
    known = {column: cells for column, cells in columns.items() if set(cells) != {"-"}}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("policy", overflow="fold")
    for column in known:
        table.add_column(column, justify="right")
    for row in zip(names, *known.values(), strict=True):
        table.add_row(*row)
    return table


def _error(values: NDArray[np.float64]) -> float:
    """Standard error of the mean of the values that are known; NaN of fewer than two."""
    known = values[np.isfinite(values)]
    return mean_and_error(known)[1] if len(known) else math.nan


def _ratio(parts: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    """`ratio_and_error` of the episodes in which both are known."""
    known = np.isfinite(parts) & np.isfinite(counts)
    return ratio_and_error(parts[known], counts[known])


def _rate(share: float, error: float) -> str:
    return "-" if math.isnan(share) else f"{plus_minus(100 * share, 100 * error, 1)}%"


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)
