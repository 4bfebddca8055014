"""Settings measured for the machine: how a run collects and computes, not what it learns.

Settings of the learner, and the number of its threads, are tried one after the other (`fastrl.autotune.factors`), then
the ways to collect experience (`fastrl.autotune.candidates`): each time the real training runs in turns, once with each
value, in a race (`fastrl.autotune.race`).
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.autotune.candidates import candidates, kinds_for
from fastrl.autotune.factors import THREADS, check_may_change, factors_of
from fastrl.autotune.race import AS_GOOD, Result, Way, race
from fastrl.autotune.trial import Trial, Turn, trial_settings
from fastrl.collectors.probe import Probe, measure
from fastrl.collectors.protocol import Plan
from fastrl.collectors.resources import cores
from fastrl.runs.errors import TrainError
from fastrl.sources.rollouts import RolloutSource
from fastrl.training.device import use_threads
from fastrl.training.task import Task
from fastrl.training.trainer import Trainer
from fastrl.utils.config import Values, replaced
from fastrl.utils.tables import print_lines
from fastrl.utils.tables import show as show_table

# Most seconds and environment steps of an update of a trial: longer rollouts are cut.
_UPDATE_S = 0.3
_UPDATE_STEPS = 4096
# Another value is chosen if with it the run is faster by this share; other threads, if they save this share of the
# learner's time.
_WORTH_CHANGING, _WORTH_THREADS = 0.05, 0.1
# The race of collectors has as much time as so many of other settings.
_COLLECTING = 3
# Others that a reason names.
_NAMED = 3


@dataclass(frozen=True)
class Tuning:
    """The measurements and the choice.

    Attributes:
        settings: of the run, with the choice.
        reasons: of each value that was chosen, by dotted key.
        results: of all ways to run, in the order of the table.
        facts: lines about the environment.
        seconds: wall-clock time of all measurements.
    """

    settings: Any
    reasons: Mapping[str, str]
    results: Sequence[Result]
    facts: Sequence[str]
    seconds: float

    @property
    def chosen(self) -> list[Result]:
        """The results of what the run will have."""
        return [each for each in self.results if each.is_chosen]

    @property
    def label(self) -> str:
        """Describes the choice in words."""
        return "; ".join(each.way.label for each in self.chosen)


@dataclass
class Tuner:
    """Chooses how a run collects and computes, the fastest way on this machine. What it learns does not change, unless
    something may change it.

    Args:
        settings: of the run.
        fixed: dotted keys of settings that keep their values.
        may_change: of `fastrl.autotune.factors.MAY_CHANGE`: settings that change what is learnt, and are chosen too.
        seconds: for all of it; environments with slow steps take longer.
        advance: called with what is done now, and the share of the time that is over.

    Raises:
        ConfigError: an unknown name in ``may_change``.
    """

    task: Task
    settings: Any
    fixed: Collection[str] = ()
    may_change: Collection[str] = ()
    seconds: float = 15.0
    advance: Callable[[str, float], object] = lambda what, share: None

    def __post_init__(self) -> None:
        check_may_change(self.may_change)
        self._started, self._num_cores = time.perf_counter(), cores()
        # Settings chosen so far; until collectors are compared, those of a likely one too.
        self._values: Values = {}
        # By `_key`.
        self._trials: dict[str, Trial] = {}
        # Steps of a rollout in trials; None: the run's own.
        self._num_steps: int | None = None
        self.results: list[Result] = []
        self.reasons: dict[str, str] = {}

    def tune(self) -> Tuning:
        """Measures and chooses.

        Raises:
            UserError: the run cannot start, or has nothing to choose.
            CollectError: its environment cannot be built or stepped.
        """
        self._report("measuring the environment")
        facts: list[str] = []
        with ExitStack() as stack:
            stack.callback(use_threads, self.settings.run.torch_threads)
            stack.callback(self._keep, ())
            if (plan := self._plan()) is None:
                num_envs = getattr(self.settings.env, "num_envs", None) or 1
                self._num_steps = self.short_steps(Way("as the settings say", {}), num_envs)
                self.vary(has_collectors=False)
            else:
                probe = Probe(0.0, 1.0, memory=0)
                if "executor" in kinds_for(plan):
                    probe = measure(plan)
                    sleeps = ", in which it sleeps" if probe.sleeps else ""
                    facts = [f"a step of the environment: {1e3 * probe.step_seconds:.3g} ms{sleeps}"]
                ways = self._ways(plan, probe)
                if self.vary(has_collectors=True):
                    ways = self._ways(self._plan() or plan, probe)
                self._choose(ways, self._left())
        if not self.results:
            raise TrainError(
                f"{self.task.name} with --algo {self.settings.run.algo} has nothing that could be chosen here"
            )
        return Tuning(self.settings, self.reasons, self.results, facts, self.seconds - self._left())

    def vary(self, *, has_collectors: bool) -> bool:
        """Tries settings one after the other, each with the best values of those before; returns whether one has
        changed."""
        factors = factors_of(
            self.task,
            self.settings,
            may_change=self.may_change,
            fixed=self.fixed,
            num_cores=self._num_cores,
            has_gpu=torch.cuda.is_available() and self.settings.run.device != "cpu",
            has_collectors=has_collectors,
        )
        changed = False
        for i, factor in enumerate(factors):
            races = len(factors) - i + (_COLLECTING if has_collectors else 0)
            worth = _WORTH_THREADS if THREADS in factor[0].values else _WORTH_CHANGING
            changed |= self._choose(factor, self._left() / races, 1 - worth) != factor[0]
        return changed

    def short_steps(self, way: Way, num_envs: int) -> int | None:
        """Steps of a rollout with which an update does not take long; None: the run's own.

        Args:
            way: to run, with which an update is measured.
        """
        algorithm = self.task.algorithm_settings(self.settings)
        num_steps = getattr(algorithm, "num_steps", 0)
        # The largest that may be tried.
        minibatch = getattr(algorithm, "minibatch_size", 1) * (4 if "batch-size" in self.may_change else 1)
        least = max(8, math.ceil(minibatch / num_envs))
        if num_steps <= least:
            return None
        self._num_steps = least
        short = max(least, min(int(self.turn(way).rate * _UPDATE_S), _UPDATE_STEPS) // num_envs)
        return short if short < num_steps else None

    def turn(self, way: Way) -> Turn:
        """A turn of the trial of a way to run, which is started if there is none.

        Raises:
            UserError, CollectError: it cannot run.
        """
        key, threads = self._key(way), way.values.get(THREADS, self.settings.run.torch_threads)
        if key not in self._trials:
            changed = replaced(self.settings, {**self._values, **way.values})
            self._trials[key] = Trial(self.task, changed, self._num_steps)
        return self._trials[key].turn(threads)

    def _left(self) -> float:
        """Seconds that are left."""
        return self._started + self.seconds - time.perf_counter()

    def _report(self, what: str) -> None:
        self.advance(what, min(1 - self._left() / self.seconds, 1.0))

    def _plan(self) -> Plan | None:
        """The plan of the run's collector; None: the run has none."""
        trainer = self.task.make_trainer(trial_settings(self.task, self.settings), Console(quiet=True))
        if isinstance(trainer, Trainer) and isinstance(trainer.source, RolloutSource):
            return trainer.source.plan
        return None

    def _ways(self, plan: Plan, probe: Probe) -> list[Way]:
        """The ways to collect; also chooses the length of the rollouts of trials."""
        ways = candidates(plan, self.settings.collect, probe, fixed=self.fixed, num_cores=self._num_cores)
        # Where steps sleep, the run's own number of workers may be far below what the second candidate has.
        likely = max(ways[:2], key=lambda way: way.effort) if probe.sleeps else ways[0]
        self._values |= likely.values
        if plan.unit == "steps":
            self._num_steps = self.short_steps(likely, plan.num_envs)
        return ways

    def _choose(self, ways: Sequence[Way], seconds: float, as_good: float = AS_GOOD) -> Way:
        """Takes the best of some ways to run, of which the first is the run's own."""
        of_threads = THREADS in ways[0].values

        def rate(way: Way) -> float:
            self._report(f"measuring {way.label}")
            turn = self.turn(way)
            return turn.learner_rate if of_threads else turn.rate

        results = [Result(way) for way in ways]
        results[0].notes.append("default")
        self._keep(ways)
        best = race(results, rate, keep=self._keep, seconds=seconds, as_good=as_good)
        best.is_chosen = True
        results.sort(key=lambda each: -each.measured)
        for each in results if of_threads else ():
            each.notes.append("learner alone")
        others = [each for each in results if each is not best and each.rates][:_NAMED]
        reason = f"{best.measured:,.0f} steps/s{' of the learner' if of_threads else ''}"
        reason += "".join(f"; {each.way.label}: {each.measured:,.0f}" for each in others)
        self.results += results
        self.reasons |= dict.fromkeys(best.way.values, reason)
        self._values |= best.way.values
        self.settings = replaced(self.settings, best.way.values)
        return best.way

    def _keep(self, ways: Sequence[Way]) -> None:
        """Ends all trials but those of some ways to run."""
        keys = {self._key(way) for way in ways}
        for key in self._trials.keys() - keys:
            self._trials.pop(key).close()

    def _key(self, way: Way) -> str:
        """Key of the trial of a way to run. Threads are not in it: they may change between turns of a trial."""
        return f"{self._num_steps} { {**self._values, **way.values, THREADS: None} }"


def show(tuning: Tuning, console: Console) -> None:
    """Prints facts about the environment, and a table of the ways to run."""
    result = Table(
        title=f"measured in {tuning.seconds:.1f} s, environment steps per second",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    result.add_column("candidate", no_wrap=True)
    for name in ("measured", "lowest", "highest"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    for each in tuning.results:
        rates = [each.measured, min(each.rates), max(each.rates)] if each.rates else []
        result.add_row(
            each.way.label,
            *([f"{rate:,.0f}" for rate in rates] or ["-"] * 3),
            ", ".join([*(["chosen"] if each.is_chosen else []), *each.notes]),
            style="bold" if each.is_chosen else None,
        )
    console.print()
    print_lines(console, *tuning.facts, *([""] if tuning.facts else []))
    show_table(console, result)
