"""The loop of a search: starts trials, stops those that are not worth it, writes down how they end."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastrl.runs.directory import is_running
from fastrl.tuning.pool import Answer, Pool
from fastrl.tuning.study import Study
from fastrl.tuning.trial import (
    Evaluated,
    Result,
    Trial,
    TuneError,
    count_parameters,
    read_evaluations,
    read_result,
)
from fastrl.utils.config import ConfigError
from fastrl.utils.interrupts import StopSignals

# Seconds between two checks of trials that run, and that a process of an earlier session has to leave a run.
_INTERVAL, _LEAVES = 0.3, 60.0


class SearchInterrupted(Exception):  # noqa: N818 - no error
    """A signal has stopped the search; all is on disk.

    Attributes:
        signal: that.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


class Phase(ABC):
    """A part of a search: some trials, and which of them are stopped early.

    Args:
        study: of the search.

    Attributes:
        title: for people.
        prefix: of its trials' names.
    """

    title: str
    prefix: str

    def __init__(self, study: Study) -> None:
        self.study = study

    @property
    @abstractmethod
    def total(self) -> int:
        """Trials in all."""

    def trials(self) -> Sequence[Trial]:
        """Those that were started, by an earlier process too, by number."""
        return self.study.named(self.prefix)

    @abstractmethod
    def propose(self) -> Trial | None:
        """The next one, which nobody has started; None: none for now."""

    def should_stop(self, trial: Trial, evaluations: Sequence[Evaluated]) -> bool:
        """True if a trial with these evaluations is not worth continuing."""
        return False

    def job(self, trial: Trial) -> Mapping[str, Any]:
        """The job that a worker gets.

        Raises:
            ConfigError: settings that do not go together.
        """
        return self.study.job(trial, self.study.trial_settings(trial))

    def result(self, trial: Trial, answer: Answer) -> Result:
        """The result of a trial that has come to its end."""
        found = read_result(self.study.run_of(trial))
        return Result("failed", error="its run directory is damaged") if found is None else found


class Runner:
    """Runs the phases of a search.

    Args:
        study: of the search.
        pool: trains.
        stop: signals to stop.
        show: called with the phase, often.
    """

    def __init__(
        self, study: Study, pool: Pool, stop: StopSignals, show: Callable[[Phase, Pool], object]
    ) -> None:
        self._study, self._pool, self._stop, self._show = study, pool, stop, show
        # Numbers of evaluations after which trials were given up that have not stopped yet.
        self._given_up: dict[str, int] = {}

    def run(self, phase: Phase) -> None:
        """Runs a phase to its end.

        Raises:
            SearchInterrupted: a signal came.
            TuneError: the search cannot continue, such as on a full disk.
        """
        pool = self._pool
        for trial in phase.trials():
            # It has ended, and this process, or the machine, before it could say so.
            if trial.result is None and read_result(self._study.run_of(trial)) is not None:
                self._take(phase, Answer(trial, "complete"))
        while True:
            while len(pool.running()) < pool.size and self._start_one(phase):
                pass
            self._show(phase, pool)
            if not pool.running():
                return
            for answer in pool.answers(_INTERVAL):
                self._take(phase, answer)
            for trial in pool.running():
                self._look(phase, trial)
            if self._stop.received is not None:
                raise SearchInterrupted(self._stop.received)

    def _start_one(self, phase: Phase) -> bool:
        """Starts a trial; False if none is left to start."""
        running = {trial.name for trial in self._pool.running()}
        waiting = [trial for trial in phase.trials() if trial.result is None and trial.name not in running]
        trial = waiting[0] if waiting else phase.propose()
        if trial is None:
            return False
        if not waiting:
            self._study.started(trial)
        try:
            job = phase.job(trial)
        except ConfigError as error:
            self._study.ended(trial, Result("failed", error=str(error)))
            return True
        self._wait_for_others(trial)
        self._pool.start(trial, job)
        return True

    def _wait_for_others(self, trial: Trial) -> None:
        """Waits until a worker of an earlier session, which ends with it, has left the run directory."""
        deadline, run = time.monotonic() + _LEAVES, self._study.run_of(trial)
        while run.exists() and is_running(run):
            if time.monotonic() > deadline:
                raise TuneError(f"another process has been training in {run} for {_LEAVES:g} s")
            time.sleep(0.1)

    def _look(self, phase: Phase, trial: Trial) -> None:
        """Stops a trial if its evaluations ask for it."""
        if trial.name not in self._given_up and (count := self._worthless(phase, trial)):
            self._given_up[trial.name] = count
            self._pool.stop(trial)

    def _worthless(self, phase: Phase, trial: Trial) -> int:
        """The number of evaluations after which a trial should stop, from 1 on; 0: it should not."""
        found = read_evaluations(self._study.run_of(trial) / "metrics.jsonl")
        return next((n for n in range(1, len(found) + 1) if phase.should_stop(trial, found[:n])), 0)

    def _take(self, phase: Phase, answer: Answer) -> None:
        """Writes down how a trial has ended, or that it continues later."""
        trial = answer.trial
        if answer.disk_full:
            raise TuneError(f"the disk is full: {answer.error}")
        count = self._given_up.pop(trial.name, 0)
        if answer.status == "complete" and not count:
            # It may have ended before anybody looked. The result is the same as if somebody had.
            count = self._worthless(phase, trial)
        if count:
            self._study.ended(trial, self._pruned(trial, count, answer))
        elif answer.status == "complete":
            self._study.ended(trial, phase.result(trial, answer))
        elif answer.status == "failed":
            self._study.ended(trial, Result("failed", error=answer.error, seconds=answer.seconds))
        elif self._stop.received is None:
            # Killed, or interrupted by somebody else.
            self._study.killed(trial)
            if trial.kills > self._study.config.restarts:
                times = "once" if trial.kills == 1 else f"{trial.kills} times"
                self._study.ended(
                    trial, Result("failed", error=f"its process was killed {times}", seconds=answer.seconds)
                )

    def _pruned(self, trial: Trial, count: int, answer: Answer) -> Result:
        run = self._study.run_of(trial)
        found = read_evaluations(run / "metrics.jsonl")[:count]
        last = found[-1]
        return Result("pruned", last.score, tuple(found), answer.seconds, last.steps, count_parameters(run))
