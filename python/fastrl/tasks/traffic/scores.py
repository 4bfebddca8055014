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
    returns: NDArray[np.float64] = dataclasses.field(
        default_factory=lambda: np.empty(0), compare=False, repr=False
    )

    @property
    def std_return(self) -> float:
        return self.standard_error * math.sqrt(self.episodes)

    def metrics(self) -> dict[str, float]:
        others = {name: getattr(self, name) for name in MEANS if name not in ("mean_return", "mean_length")}
        return {"mean_ep_length": self.mean_length, **others, "standard_error": self.standard_error}

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
        returns=records["return_mean"].astype(np.float64),
        **{mean: finite_mean(records[field]) for mean, field in MEANS.items()},
    )


def score_table(scores: Sequence[tuple[str, Scores]], title: str) -> Table:
    """A table with a row for each policy; TTC is the mean of the episodes' shortest times to a collision."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("policy", overflow="fold")
    for column in ("return", "success", "crashed", "m/s", "veh/h", "TTC s", "steps"):
        table.add_column(column, justify="right")
    for name, it in scores:
        table.add_row(
            name,
            plus_minus(it.mean_return, it.standard_error, 2 if abs(it.mean_return) < 100 else 0),
            _text(it.success_rate, "{:.1%}"),
            _text(it.collision_rate, "{:.1%}"),
            _text(it.mean_speed, "{:.1f}"),
            _text(it.throughput, "{:,.0f}"),
            _text(it.min_ttc, "{:.2f}"),
            _text(it.mean_length, "{:,.0f}"),
        )
    return table


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)
