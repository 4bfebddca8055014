"""A trial: a training that runs in turns beside others, to compare their speed."""

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from fastrl.runs.errors import TrainError
from fastrl.training.callbacks import Callback, Run
from fastrl.training.device import use_threads
from fastrl.training.profiler import add_seconds
from fastrl.training.task import Task
from fastrl.utils.config import Values, leaves, replaced

# Seconds of a turn; an update that takes longer makes a longer turn.
TURN_S = 0.2
# Least share of a turn in which a learner learns, as far as is known.
_LEAST_LEARNING = 0.01
# Seconds of a turn without an update after which a trial is given up.
_HANGS_S = 120.0
# Environment steps that no trial reaches.
_ENDLESS = 2**60
# Settings of every trial, if the run has them: it never ends, writes nothing and is not evaluated.
_VALUES: Values = {
    "run.init_from": None,
    "run.stages": (),
    "run.total_timesteps": _ENDLESS,
    "run.total_episodes": None,
    "run.stop_at_return": None,
    "run.row_seconds": TURN_S / 4,
    "run.loggers": (),
    "run.eval_freq": 0,
    "run.eval_points": 0,
    "run.eval_episodes": 0,
    "replay.path": None,
    "replay.save": False,
}


@dataclass(frozen=True)
class Turn:
    """Account of a turn.

    Attributes:
        steps: of environments.
        seconds: of wall-clock time in which they were taken and learnt from.
        waiting: share of the learner's time in which it waited for experience.
    """

    steps: int
    seconds: float
    waiting: float = 0.0

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        return self.steps / self.seconds

    @property
    def learner_rate(self) -> float:
        """Environment steps per second if there were always experience to learn from."""
        return self.rate / max(1 - self.waiting, _LEAST_LEARNING)


class _Marks(Callback):
    """Notes when the number of environment steps changes: a replay's steps count once all their minibatches have been
    learnt from.

    Attributes:
        marks: seconds of the clock and steps, the oldest first.
    """

    name = "marks"

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []
        self._steps = 0
        # Nothing has been done since the last mark.
        self._is_fresh = False

    def restart(self) -> None:
        """Removes all marks; if the last one is fresh, its steps count from now on."""
        self.marks = [(time.perf_counter(), self._steps)] if self._is_fresh else []

    def on_update(self, run: Run) -> None:
        self._is_fresh = run.timesteps != self._steps
        if self._is_fresh:
            self._steps = run.timesteps
            self.marks.append((time.perf_counter(), self._steps))


class Trial:
    """A training that runs in turns. Between them its workers sleep; those of an asynchronous algorithm first fill
    their queue.

    Args:
        task, settings: of the run that it is a trial of.
        num_steps: of a rollout; None: the run's own.

    Attributes:
        trainer: of the trial.

    Raises:
        UserError, CollectError: it cannot start.
    """

    def __init__(self, task: Task, settings: Any, num_steps: int | None = None) -> None:
        self._threads = int(settings.run.torch_threads)
        self.trainer = task.make_trainer(trial_settings(task, settings, num_steps), Console(quiet=True))
        self._marks = _Marks()
        self.trainer.callbacks.append(self._marks)
        self._rows = self.trainer.rows()
        self._is_warm = False

    def turn(self, threads: int | None = None) -> Turn:
        """Trains for `TURN_S` seconds, at least an update; the first turn ends after the first update.

        Args:
            threads: of PyTorch; None: as the settings say.

        Raises:
            UserError, CollectError: it cannot.
        """
        use_threads(self._threads if threads is None else threads)
        start, passed = time.perf_counter(), 0.0
        self._marks.restart()
        marks = self._marks.marks
        seconds: dict[str, float] = {}
        # The first row after a pause is due at once.
        while passed < TURN_S or len(marks) < 2 or not self._is_warm:
            next(self._rows)
            seconds = add_seconds(seconds, self.trainer.watch.seconds)
            passed = time.perf_counter() - start
            self._is_warm = self._is_warm or self.trainer.iteration > 0
            if passed > _HANGS_S:
                raise TrainError(f"no update within {_HANGS_S:g} s")
        (first, before), (last, after) = marks[0], marks[-1]
        return Turn(after - before, last - first, seconds.get("waiting", 0.0) / passed)

    def close(self) -> None:
        """Ends its workers."""
        # The iterators of all trainers are generators; a user's own need not be.
        if (close := getattr(self._rows, "close", None)) is not None:
            close()


def trial_settings(task: Task, settings: Any, num_steps: int | None = None) -> Any:
    """The settings of a trial; arguments are those of `Trial`. It learns soon after its start."""
    known, changes = leaves(type(settings)), dict(_VALUES)
    if num_steps is not None:
        changes[f"{task.algorithm_table(settings.run.algo)}.num_steps"] = num_steps
    if "replay.learning_starts" in known:
        batch = int(getattr(task.algorithm_settings(settings), "batch_size", 64))
        changes["replay.learning_starts"] = min(settings.replay.learning_starts, 2 * batch)
    return replaced(settings, {key: value for key, value in changes.items() if key in known})
