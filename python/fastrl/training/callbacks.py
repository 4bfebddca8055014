"""Callbacks: objects that watch a run, may change its environments and may stop it."""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.runs.checkpoint import save_checkpoint
from fastrl.runs.directory import RunDirectory
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Number
from fastrl.utils.other_names import no_attribute
from fastrl.utils.progress import Progress

if TYPE_CHECKING:
    from fastrl.training.evaluation import Scores
    from fastrl.training.trainer import Trainer

# Episodes of training whose mean return is compared with a threshold.
WINDOW = 100


class Run:
    """A run, as callbacks see it.

    Attributes:
        training: the run itself, whose interface may change.
        directory: where files of the run go; None: nowhere.
        ended: the episodes that have ended since the last `Callback.on_update`.
        scores: of the newest evaluation; None before.
        checkpoint: the newest checkpoint that this session has written; None before.
    """

    def __init__(self, training: "Trainer") -> None:
        self.training = training
        self.directory: Path | None = None
        self.ended = Episodes()
        self.row: Mapping[str, Number] = {}
        self.scores: Scores | None = None
        self.checkpoint: Path | None = None

    @property
    def env(self) -> str:
        """Id of the environment."""
        return self.training.env_id

    @property
    def algorithm(self) -> str:
        return self.training.algorithm_name

    @property
    def metrics(self) -> Mapping[str, Number]:
        """Metrics by name, see docs/reference/metrics.md: those of the newest row, empty before the first. Of
        algorithms that learn from rollouts, the group ``train`` is of the newest update."""
        algorithm = self.training.algorithm
        if algorithm.learns_from != "rollouts" or not self.iterations:
            return self.row
        return {**self.row, **{f"train/{name}": number for name, number in algorithm.metrics().items()}}

    @property
    def seed(self) -> int:
        return self.training.run.seed

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, nested by table; empty for a trainer that was made without."""
        settings: Mapping[str, Any] = self.training.header.get("config", {})
        return settings

    @property
    def timesteps(self) -> int:
        """Environment steps so far, by earlier sessions too."""
        return self.training.steps

    @property
    def episodes(self) -> int:
        """Episodes that have ended, by earlier sessions too."""
        return self.training.episodes

    @property
    def iterations(self) -> int:
        """Updates so far, by earlier sessions too."""
        return self.training.iteration

    @property
    def goal(self) -> int:
        """Length of the run, in `unit`."""
        return self.training.goal[0]

    @property
    def unit(self) -> str:
        """ "steps" or "episodes"; "samples" of a data set."""
        return self.training.goal[1]

    @property
    def done(self) -> int:
        """Part of the goal that is reached, in `unit`."""
        return self.training.done

    @property
    def has_evaluations(self) -> bool:
        """True if the policy is evaluated on the way, see ``run.eval_freq``."""
        run = self.training.run
        return bool((run.eval_freq or run.eval_points) and run.eval_episodes)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("the run that callbacks see", name)

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, from which the run can be resumed. Its folder is made."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(path, self.training.state_dict())


class Callback:
    """Watches a run; each method may be overridden, and does nothing otherwise.

    A method that returns False stops the run cleanly: with a checkpoint, the final evaluation and a summary. One that
    raises ends it with a checkpoint and the traceback; a `fastrl.utils.errors.UserError` with one line.
    """

    name = ""
    """Key of its state in checkpoints; that of its class by default."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def on_start(self, run: Run) -> bool | None:
        """Called once before the first update of a session, after a checkpoint was loaded."""

    def on_update(self, run: Run) -> bool | None:
        """Called after each update, or after several gradient steps with what a replay has; ``run.ended`` has the
        episodes that have ended since the last call."""

    def on_checkpoint(self, run: Run) -> bool | None:
        """Called after each checkpoint, ``run.checkpoint``."""

    def on_evaluation(self, run: Run) -> bool | None:
        """Called after each evaluation on the way; without these after the one at the end. ``run.scores`` has it."""

    def on_end(self, run: Run) -> bool | None:
        """Called once at the end of a session, after the final evaluation, also if the run has failed."""

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        """Metrics that it adds to a row, named as in ``rollout/ep_success_rate``; called once for each row, with the
        episodes that have ended since the row before."""
        return {}

    def write_report(self, directory: RunDirectory) -> None:
        """Writes files for people once at the end of a session, after the final evaluation, even if that fails."""

    def summary(self) -> Mapping[str, Any]:
        """Entries for a run's summary, JSON values by name."""
        return {}

    def lines(self) -> list[str]:
        """Lines for people with what `summary` has."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """State for `load_state_dict`, kept in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a checkpoint's state; not called where the checkpoint has none of it."""


def by_name(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """The callbacks with keys for their states; several of one name are numbered."""
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        counts[callback.name] += 1
        count = counts[callback.name]
        yield callback.name if count == 1 else f"{callback.name}-{count}", callback


class EarlyStopping(Callback):
    """Stops a run that has reached a return, or that does not get better.

    Args:
        threshold: stop at this mean return: of an evaluation or, in runs without evaluations on the way, of the newest
            100 episodes of training; None: at none.
        patience: stop after so many evaluations in succession without a better one; None: never.
        min_delta: by how much a better evaluation exceeds the best one so far, at least.

    Raises:
        ValueError: it would never stop.
    """

    def __init__(
        self, threshold: float | None = None, *, patience: int | None = None, min_delta: float = 0.0
    ) -> None:
        if threshold is None and patience is None:
            raise ValueError("EarlyStopping: expected a threshold, patience or both, got neither")
        if patience is not None and patience < 1:
            raise ValueError(f"EarlyStopping: patience should be at least 1, got {patience}")
        self.threshold, self.patience, self.min_delta = threshold, patience, min_delta
        self._returns: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._best, self._worse = -math.inf, 0

    def on_start(self, run: Run) -> None:
        if self.patience is not None and not run.has_evaluations:
            raise TrainError(
                "EarlyStopping: patience counts evaluations, and this run has none on the way: set run.eval_freq, the"
                " episodes between them"
            )

    def on_update(self, run: Run) -> bool:
        if self.threshold is None or run.has_evaluations:
            return True
        self._returns.extend(run.ended.returns[-WINDOW:].tolist())
        is_full = len(self._returns) == WINDOW
        return not (is_full and math.fsum(self._returns) / WINDOW >= self.threshold)

    def on_evaluation(self, run: Run) -> bool:
        assert run.scores is not None, "an evaluation has scores"
        score = run.scores.mean_return
        is_better = score > self._best + self.min_delta
        self._best, self._worse = (score, 0) if is_better else (self._best, self._worse + 1)
        is_reached = self.threshold is not None and score >= self.threshold
        return not (is_reached or (self.patience is not None and self._worse >= self.patience))

    def state_dict(self) -> dict[str, Any]:
        return {"returns": list(self._returns), "best": self._best, "worse": self._worse}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._returns = collections.deque(state["returns"], WINDOW)
        self._best, self._worse = state["best"], state["worse"]


class BestCheckpoint(Callback):
    """Keeps the checkpoint of the best evaluation. (Runs with a directory keep it as ``checkpoints/best.safetensors``
    without this callback.)

    Args:
        path: the file, which is replaced.
    """

    def __init__(self, path: str | Path = "best.safetensors") -> None:
        self.path = Path(path)
        self.best = -math.inf

    def on_start(self, run: Run) -> None:
        if not run.has_evaluations:
            raise TrainError(
                "BestCheckpoint: this run has no evaluations on the way: set run.eval_freq, the episodes between them"
            )

    def on_evaluation(self, run: Run) -> None:
        assert run.scores is not None, "an evaluation has scores"
        if run.scores.mean_return > self.best:
            self.best = run.scores.mean_return
            run.save(self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]


class ProgressBar(Callback):
    """A progress bar on stderr, on a terminal and in notebooks; elsewhere a line from time to time. For runs
    from Python that show nothing else."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._done = 0

    def on_start(self, run: Run) -> None:
        self._progress, self._done = Progress(f"{run.algorithm} on {run.env}", run.goal), 0
        self._progress.__enter__()
        self._advance(run)

    def on_update(self, run: Run) -> None:
        self._advance(run)

    def _advance(self, run: Run) -> None:
        assert self._progress is not None, "a run starts before its updates"
        self._progress.advance(run.done - self._done)
        self._done = run.done

    def on_end(self, run: Run) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None
