"""Evaluation: scores of a policy without exploration, at the end of a run and on the way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.checkpoint import SNAPSHOTS, save_checkpoint
from fastrl.runs.episodes import Episodes
from fastrl.runs.metrics import brief, counted
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback, Run
from fastrl.utils.interrupts import Interruptible
from fastrl.utils.progress import Progress
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.training.evaluation_options import Advance
    from fastrl.training.trainer import Trainer


def settings_to_play(settings: Any, state: Mapping[str, Any], file: Path | None = None) -> Any:
    """Settings with which the policy of a checkpoint plays: in place of the run's own past policies its opponents are
    those that there were at the checkpoint.

    Args:
        settings: of the run.
        state: of the checkpoint.
        file: the checkpoint; None: of a training that continues.
    """
    if SNAPSHOTS not in state:
        return settings
    # Most runs do without.
    from fastrl.training.snapshots import against_snapshots, found_beside

    return against_snapshots(settings, state if file is None else found_beside(state, file))


class Scores(Protocol):
    """Results of an evaluation."""

    @property
    def mean_return(self) -> float:
        """Mean return of the episodes, by which evaluations are compared; more is better."""
        ...

    @property
    def std_return(self) -> float:
        """Standard deviation of the episodes' returns; NaN of one episode."""
        ...

    def metrics(self) -> Mapping[str, Number]:
        """Further metrics for a row, in which ``mean_return`` is ``eval/mean_reward``: ``success_rate`` becomes
        ``eval/success_rate``."""
        ...

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        ...

    def show(self, console: Console) -> None:
        """Prints it for people."""
        ...


@dataclasses.dataclass(frozen=True)
class Returns:
    """Undiscounted returns of episodes; of environments whose task has no protocol of its own.

    Attributes:
        returns: one of each episode.
        seeded: each episode had a seed of its own.
    """

    returns: tuple[float, ...]
    seeded: bool = dataclasses.field(default=True, compare=False, repr=False)

    @property
    def mean_return(self) -> float:
        import statistics

        return statistics.fmean(self.returns)

    @property
    def std_return(self) -> float:
        import statistics

        return statistics.stdev(self.returns) if len(self.returns) > 1 else math.nan

    def metrics(self) -> dict[str, Number]:
        return {}

    def episode_returns(self) -> dict[str, NDArray[np.float64]]:
        """See `fastrl.training.comparison.EpisodeScores`; empty if episodes have no seeds of their own."""
        return {"return": np.array(self.returns, np.float64)} if self.seeded else {}

    def to_tree(self) -> dict[str, Any]:
        return {
            "episodes": len(self.returns),
            "mean": self.mean_return,
            "min": min(self.returns),
            "max": max(self.returns),
            "returns": list(self.returns),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Returns:
        return cls(tuple(tree["returns"]))

    def line(self) -> str:
        """Text with all of it."""
        return (
            f"{counted(len(self.returns), 'episode')}: mean return {brief(self.mean_return)},"
            f" from {brief(min(self.returns))} to {brief(max(self.returns))}"
        )

    def show(self, console: Console) -> None:
        show(console, f"without exploration, {self.line()}")


class Evaluate(Protocol):
    """A function that scores the policy in a checkpoint's state."""

    def __call__(self, state: Mapping[str, Any], advance: Advance, *, on_the_way: bool) -> Scores:
        """Episodes on the way, by which the best policy is chosen, start from other seeds than those at the end, so
        that the score at the end is of episodes that nothing was chosen by."""
        ...


class Evaluation(Callback):
    """Evaluates at the end of a run and every ``eval_freq`` episodes or epochs; keeps a checkpoint of the best policy.

    Args:
        evaluate: scores a policy.
        from_tree: the inverse of ``Scores.to_tree``, for runs that are resumed.
        work: for the progress bar: how much ``evaluate`` advances by.
        eval_freq: episodes or epochs between evaluations; 0: only at the end.
        points: number of evaluations, evenly spread over the run, in place of ``eval_freq``; 0: none.

    Attributes:
        scores: those of the last evaluation; None before.
        best: scores of the best evaluation; None without evaluations on the way.
        best_at: episodes or epochs after which it was made.
        best_file: where the checkpoint of the best policy goes; None: nowhere.
    """

    name = "evaluation"

    def __init__(
        self,
        evaluate: Evaluate,
        from_tree: Callable[[Mapping[str, Any]], Scores],
        work: int,
        eval_freq: int,
        points: int = 0,
    ) -> None:
        self.evaluate, self._from_tree, self._work, self._freq = evaluate, from_tree, work, eval_freq
        # Points in all, and those that the run has passed.
        self._points, self._passed = points, 0
        self.scores: Scores | None = None
        self.best: Scores | None = None
        self.best_at = self._evaluated_at = 0
        self._unit = "episodes"
        self.best_file: Path | None = None
        # Since the last row.
        self._new: Scores | None = None

    def on_update(self, run: Run) -> None:
        trainer = run.training
        if not (self._freq or self._points) or trainer.iteration == 0:
            return
        count, self._unit = trainer.rounds
        if self._points:
            passed = min(self._points * trainer.done // trainer.goal[0], self._points)
            is_due, self._passed = passed > self._passed, passed
        else:
            is_due = count - self._evaluated_at >= self._freq or trainer.is_done()
        ranks = trainer.ranks
        # Rank 0 decides, evaluates and saves. Each rank has a part of what is saved.
        [is_due] = ranks.lead(is_due)
        if not is_due:
            return
        with trainer.watch("evaluation"):
            is_best = ranks.is_first and self._is_best(trainer, count)
            self._evaluated_at = count
            if any(ranks.lead(is_best and self.best_file is not None)):
                state = trainer.state_dict()
                if self.best_file is not None:
                    self.best_file.parent.mkdir(exist_ok=True)
                    save_checkpoint(self.best_file, state)
        if ranks.is_first:
            assert self.scores is not None
            trainer.evaluated(self.scores)

    def _is_best(self, trainer: Trainer, count: int) -> bool:
        """Evaluates the policy; returns whether it is the best one so far."""
        with Interruptible():
            self.scores = self._new = self.evaluate(
                trainer.policy_checkpoint(), lambda _: None, on_the_way=True
            )
        if self.best is not None and self.scores.mean_return <= self.best.mean_return:
            return False
        self.best, self.best_at = self.scores, count
        return True

    def at_end(self, trainer: Trainer, console: Console) -> None:
        """Evaluates the final policy. Callbacks see it as an evaluation where there are none on the way, by which
        they choose."""
        console.print("evaluating ...", highlight=False)
        with Progress("evaluating", self._work, console) as progress:
            self.scores = self.evaluate(trainer.policy_checkpoint(), progress.advance, on_the_way=False)
        trainer.view.scores = self.scores
        if not (self._freq or self._points):
            trainer.evaluated(self.scores)

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        scores, self._new = self._new, None
        if scores is None:
            return {}
        metrics = {"mean_reward": scores.mean_return, **scores.metrics()}
        if self._points:
            metrics["point"] = self._passed
        return {f"eval/{name}": value for name, value in metrics.items()}

    def summary(self) -> Mapping[str, Any]:
        if not (self._freq or self._points):
            return {}
        has_file = self.best is not None and self.best_file is not None and self.best_file.exists()
        return {
            "best": None if self.best is None else self.best.to_tree(),
            "best_at": self.best_at,
            "best_checkpoint": str(self.best_file) if has_file else None,
        }

    def show(self, console: Console) -> None:
        """Prints the last scores, and the best ones on the way."""
        if self.scores is not None:
            self.scores.show(console)
        if self.best is not None:
            console.print(
                f"best evaluation on the way, after {self.best_at:,} {self._unit}:", highlight=False
            )
            self.best.show(console)

    def state_dict(self) -> dict[str, Any]:
        return {
            "scores": None if self.scores is None else self.scores.to_tree(),
            "best": None if self.best is None else self.best.to_tree(),
            "best_at": self.best_at,
            "evaluated_at": self._evaluated_at,
            "points": self._passed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scores, self.best = (
            None if state[name] is None else self._from_tree(state[name]) for name in ("scores", "best")
        )
        self.best_at, self._evaluated_at = state["best_at"], state["evaluated_at"]
        # Checkpoints of older versions lack it.
        self._passed = state.get("points", 0)
