"""Returns against opponents, and their priorities in the draw (prioritised fictitious self-play).

As in Vinyals et al. (2019), "Grandmaster level in StarCraft II using multi-agent reinforcement learning": an opponent
that is beaten with probability x has the weight (1 - x)^2. Where there are only returns, x is the place of the return
against it between the worst and the best one.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.team_backend import OPPONENT
from fastrl.collectors.team_spec import SELF
from fastrl.runs.checkpoint import SNAPSHOTS
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback, Run
from fastrl.training.opposed_spec import pool_shares
from fastrl.training.snapshots import against_snapshots, continue_in, save

if TYPE_CHECKING:
    from fastrl.play.film import Films

# Episodes against an opponent that its mean return is of, as much as an exponential mean has a length.
_WINDOW = 50
# The weight of an opponent that is beaten like no other, so that its return is known.
_LEAST = 0.1


class OpponentsCallback(Callback):
    """Measures returns against the opponents of a source, and draws those more often against which they are low.

    If the policy is an opponent of its own, a snapshot of it joins the pool of opponents at the start and then every
    ``snapshot_every`` environment steps; the oldest one leaves when the pool is full.

    Args:
        source: a `fastrl.sources.team_rollouts.MultiAgentSource`.
        settings: of the run. With ``opponent_priority`` "hard" weights are multiplied by priorities.
        policy: state of the policy at first, as of `fastrl.training.trainer.Trainer.policy_checkpoint`.
        films: makes films of a run with some settings, see `fastrl.training.task.Task.films`.

    Raises:
        TrainError: "hard" or a pool in a live simulation, whose draws do not change.
        CheckpointError: the policy cannot play the agents that do not learn.
    """

    name = "opponents"

    def __init__(
        self,
        source: Any,
        settings: Any,
        policy: Mapping[str, Any],
        films: Callable[[Any], Films],
    ) -> None:
        self._source, self._settings, self._films = source, settings, films
        self._is_hard = settings.env.opponent_priority == "hard"
        opponents = dict(source.opponents)
        self._own = opponents.pop(SELF, 0.0)
        self._size = self._every = 0
        if self._own:
            self._size, self._every = settings.env.pool_size, settings.env.snapshot_every
        if source.collect.is_live and (self._is_hard or self._size):
            asked = (
                "--env.opponent-priority: a live simulation draws by given weights, got hard"
                if self._is_hard
                else f"--opponents: a live simulation draws by given weights, got the opponent {SELF}"
            )
            raise TrainError(asked)
        if self._size:
            source.spec.check_self(policy)
        # The places of the pool come after the other opponents, the newest snapshot first.
        self._names = [*labels([*opponents]), *(f"{SELF}-{age + 1}" for age in range(self._size))]
        self._given = [*opponents.values()]
        self._counts = np.zeros(len(self._names), np.int64)
        self._means = np.zeros(len(self._names))
        # Snapshots so far, the environment steps at the newest one, and their folder.
        self._snapshots, self._taken = 0, 0
        self._directory: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._give()

    def weights(self) -> list[float]:
        """The weights of the next draws, whose sum is 1."""
        own = pool_shares(self._own, self._snapshots, self._size) if self._size else []
        weights, known = np.array([*self._given, *own]), self._counts > 0
        if self._is_hard and known.any():
            low, high = self._means[known].min(), self._means[known].max()
            # One that has not played yet is as good as the best.
            lost = np.where(known, (high - self._means) / ((high - low) or math.inf), 1.0)
            weights = weights * (_LEAST + (1 - _LEAST) * lost**2)
        shares: list[float] = (weights / weights.sum()).tolist()
        return shares

    def _give(self) -> None:
        if self._snapshots:
            self._source.set_weights(self.weights(), self._snapshots)
        elif self._is_hard and not self._size:
            self._source.set_weights(self.weights())

    def on_start(self, run: Run) -> None:
        if not self._size:
            return
        ranks, header = run.training.ranks, run.training.header
        folder = run.directory
        if folder is None and ranks.is_first:
            # It lasts as long as this object, and so as the trainer.
            self._temporary = tempfile.TemporaryDirectory(prefix="fastrl-")
            folder = Path(self._temporary.name)
        directory = ranks.gather(Path() if folder is None else folder / SNAPSHOTS)[0]
        if ranks.is_first:
            before = Path(header[SNAPSHOTS]["directory"]) if SNAPSHOTS in header else directory
            continue_in(directory, before, self._snapshots)
        self._directory = directory
        self._source.use_snapshots(directory)
        if self._snapshots:
            self._describe(run)
        else:
            self._add(run)
        self._give()

    def _add(self, run: Run) -> None:
        """Adds the present policy to the pool."""
        assert self._directory is not None, "the run has started"
        if run.training.ranks.is_first:
            save(self._directory, self._snapshots, run.training.policy_checkpoint())
        # No rank plays against it before it is there.
        run.training.ranks.gather(None)
        self._snapshots, self._taken = self._snapshots + 1, run.timesteps
        newest = len(self._given)
        for each in (self._counts, self._means):
            each[newest + 1 :] = each[newest:-1].copy()
            each[newest] = 0
        self._describe(run)

    def _describe(self, run: Run) -> None:
        """Has the checkpoints, evaluations and films that follow know what the policy plays against."""
        training = run.training
        training.header[SNAPSHOTS] = {"directory": str(self._directory), "count": self._snapshots}
        settings = against_snapshots(self._settings, training.header)
        training.open_films = functools.partial(self._films, settings)

    def _place(self, opponent: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of opponents of these indices; those that have left the pool have places after its end."""
        given = len(self._given)
        return np.where(opponent < given, opponent, 2 * given + self._snapshots - 1 - opponent)

    def on_update(self, run: Run) -> None:
        places = self._place(run.ended.info[OPPONENT])
        for place, value in zip(places.tolist(), run.ended.returns.tolist(), strict=True):
            if place < len(self._names):
                self._counts[place] += 1
                self._means[place] += (value - self._means[place]) / min(self._counts[place], _WINDOW)
        is_due = bool(self._size) and run.timesteps // self._every > self._taken // self._every
        if is_due:
            self._add(run)
        if is_due or len(run.ended):
            self._give()

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        found: dict[str, Number] = {}
        for name, share, mean, count in zip(
            self._names, self.weights(), self._means.tolist(), self._counts.tolist(), strict=True
        ):
            found[f"opponents/{name}/share"] = share
            found[f"opponents/{name}/return"] = mean if count else math.nan
        return found

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"counts": self._counts.tolist(), "means": self._means.tolist()}
        if self._size:
            state |= {"snapshots": self._snapshots, "taken": self._taken}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts[:], self._means[:] = state["counts"], state["means"]
        if self._size:
            self._snapshots, self._taken = state["snapshots"], state["taken"]
        self._give()


def labels(opponents: Sequence[str]) -> list[str]:
    """Names of opponents for metrics: of paths the last parts, numbered where they are equal."""
    names = [Path(each).name for each in opponents]
    return [
        name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]
