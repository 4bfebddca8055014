"""Settings measured for the machine: how a run collects and computes, not what it learns.

The parts of an update are measured alone: steps of the environment, the choice of actions, the learner's work by
threads. `fastrl.training.speed_model` predicts from them every combination that the machine has room for. The best
three, what the run would do by itself, and the usual formula, a worker for each core but one, then train in turns
beside each other. Settings that have no model (`fastrl.training.factors`) are tried so, one after the other.
"""

import math
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from fastrl.collectors.factory import choose
from fastrl.collectors.probe import Probe
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.resources import cores
from fastrl.training.device import use_threads
from fastrl.training.errors import TrainError
from fastrl.training.factors import check_may_change, factors_of
from fastrl.training.load_meter import kinds_for, measure_parts
from fastrl.training.rollouts import RolloutSource
from fastrl.training.speed_model import Kind, Load, predict_seconds
from fastrl.training.task import Task
from fastrl.training.trainer import Trainer, Training
from fastrl.training.trials import Trial, Turn, trial_settings
from fastrl.training.tuning import (
    WITH_WORKERS,
    Candidate,
    Result,
    Tuning,
    Variant,
    Way,
    beside,
    best_of,
    facts_about,
    reasons_for,
)
from fastrl.utils.config import Values, build, check, leaves, to_tree
from fastrl.utils.errors import UserError

# Most seconds and environment steps of an update of a trial: longer rollouts are cut.
_UPDATE_S = 0.4
_UPDATE_STEPS = 4096
# Trials start again with rollouts that turn out to be shorter than this share of theirs.
_MUCH_SHORTER = 0.5
# Of runs without collectors so many times shorter.
_SHORTER = 4
# Candidates that are checked beside the run's default and the formula; rounds of turns.
_CHECKED = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 9
# Default and formula are not checked if they are predicted to reach less than this share of the best.
_HOPELESS = 0.4
# This process alone is checked, too, if it is predicted to reach this share of the best: it starts at once.
_CHEAP = 0.7
# Workers that are considered: so many for each core if steps compute, and so many in all.
_FOR_EACH_CORE = 2
_MOST_WORKERS = 64
# Share of its time up to which a step computes where more workers than cores are worth trying.
_BUSY = 0.7
# More threads of the learner are tried if they save this share of its time.
_WORTH_THREADS = 0.1
# A setting that has no model is changed if that makes the run faster by this share.
_WORTH_CHANGING = 0.05

# Receives what is done now, and the share of the time that is over.
Advance = Callable[[str, float], object]


def autotune(
    task: Task,
    settings: Any,
    *,
    fixed: Collection[str] = (),
    may_change: Collection[str] = (),
    seconds: float = 15.0,
    advance: Advance = lambda what, share: None,
) -> Tuning:
    """Chooses how a run collects and computes, the fastest way on this machine. What it learns does not change, unless
    something may change it.

    Args:
        settings: of the run.
        fixed: dotted keys of settings that keep their values.
        may_change: of `fastrl.training.factors.MAY_CHANGE`: settings that change what is learnt, and are chosen too.
        seconds: for all of it; environments with slow steps take longer.
        advance: called with what is done now, and the share of the time that is over.

    Raises:
        UserError: the run cannot start, or has nothing to choose.
        CollectError: its environment cannot be built or stepped.
    """
    check_may_change(may_change)
    return Tuner(task, settings, frozenset(fixed), frozenset(may_change), seconds, advance).tune()


class Tuner:
    """See `autotune`."""

    def __init__(
        self,
        task: Task,
        settings: Any,
        fixed: Collection[str],
        may_change: Collection[str],
        seconds: float,
        advance: Advance,
    ) -> None:
        self._task, self.settings, self._fixed = task, settings, fixed
        self._may_change = may_change
        self._started, self._seconds, self._advance = time.perf_counter(), seconds, advance
        self._cores = cores()
        # By what makes them differ: the threads of the learner may change from turn to turn.
        self._trials: dict[Any, Trial] = {}
        # Steps of a rollout in trials; None: the run's own.
        self._num_steps: int | None = None
        # Of the settings that are tried one after the other.
        self.varied: list[Result] = []
        self.reasons: dict[str, str] = {}
        # How experience is collected while they are tried.
        self._common: Values = {}

    def _passed(self) -> float:
        return time.perf_counter() - self._started

    def _report(self, what: str) -> None:
        self._advance(what, min(self._passed() / self._seconds, 1.0))

    def tune(self) -> Tuning:
        self._report("measuring the environment")
        with ExitStack() as stack:
            stack.callback(use_threads, self.settings.run.torch_threads)
            stack.callback(self._close)
            trainer = self._trainer()
            if not (isinstance(trainer, Trainer) and isinstance(trainer.source, RolloutSource)):
                return self._tune_without_collectors()
            plan, load = self._parts(trainer)
            # The learner takes the same time with any collector: the one that is likely to be the fastest measures it.
            first = self._likely(plan, load)
            self._num_steps = self.short_steps(load, first)
            if self.vary(first, has_collectors=True):
                plan, load = self._parts(self._trainer())
                first = self._likely(plan, load)
            load = self._measure_learner(load, first)
            shorter, now = self.short_steps(load, first), self._num_steps or load.num_steps
            if shorter is not None and shorter < _MUCH_SHORTER * now:
                # Now it is known how long the learner takes.
                self._num_steps = shorter
                self._close()
            results = [Result(each, _rate(load, each)) for each in self._candidates(plan, load)]
            results.sort(key=lambda each: -(each.predicted or 0.0))
            finalists = self._finalists(plan, load, results)
            short = load if self._num_steps is None else _shortened(load, self._num_steps)
            # Longer rollouts wait less often for the slowest worker.
            self._race(
                finalists,
                lambda way: _rate(load, way) / _rate(short, way) if isinstance(way, Candidate) else 1.0,
            )
        return self._conclusion(load, results, finalists)

    def _trainer(self) -> Training:
        """A trainer with the present settings, which does not run."""
        own = trial_settings(self._task, self.settings, {})
        return self._task.make_trainer(own, Console(quiet=True))

    def _parts(self, trainer: Training) -> tuple[Plan, Load]:
        """The plan of a trainer's collector, and the costs of its parts without the learner's."""
        assert isinstance(trainer, Trainer) and isinstance(trainer.source, RolloutSource)
        replay = getattr(self.settings, "replay", None)
        overlaps = trainer.algorithm.max_staleness > 0 or bool(getattr(replay, "overlap", False))
        plan = trainer.source.plan
        return plan, measure_parts(plan, trainer.algorithm, self._cores, overlaps=overlaps)

    def _close(self) -> None:
        for trial in self._trials.values():
            trial.close()
        self._trials = {}

    def _with(self, values: Values) -> Any:
        """The present settings with other values."""
        config_type = type(self.settings)
        return build(config_type, check(config_type, to_tree(self.settings), "settings"), values)

    # Settings without a model

    def vary(self, first: Candidate | None, *, has_collectors: bool) -> bool:
        """Tries settings one after the other, each with the best values of those before; returns whether one has
        changed.

        Args:
            first: how experience is collected meanwhile; None: as the settings say.
        """
        factors = factors_of(
            self._task,
            self.settings,
            may_change=self._may_change,
            fixed=self._fixed,
            num_cores=self._cores,
            has_gpu=torch.cuda.is_available() and self.settings.run.device != "cpu",
            has_collectors=has_collectors,
        )
        changed = False
        self._common = {} if first is None else first.values
        for factor in factors:
            results = [Result(each, None, note="default" if each.own else "") for each in factor]
            self._race(results)
            self._close()
            self.varied += results
            running = [each for each in results if each.rates]
            # With other threads PyTorch adds in another order.
            threads = factor[0].key == "run.torch_threads"
            best = best_of(running, 1 - _WORTH_THREADS if threads else 1 - _WORTH_CHANGING)
            best.is_chosen = True
            assert isinstance(best.way, Variant)
            self.reasons[best.way.key] = beside(best, running)
            if not best.way.own:
                self.settings, changed = self._with(best.way.values), True
        return changed

    def _tune_without_collectors(self) -> Tuning:
        """Tries numbers of threads and processes of runs that have no collectors."""
        key = f"{self._task.algorithm_table(self.settings.run.algo)}.num_steps"
        if key in leaves(type(self.settings)):
            self._num_steps = max(self._task.algorithm_settings(self.settings).num_steps // _SHORTER, 1)
        self.vary(None, has_collectors=False)
        if not self.varied:
            raise TrainError(
                f"{self._task.name} with --algo {self.settings.run.algo} has nothing that could be chosen here"
            )
        return Tuning(self.settings, self.reasons, self.varied, [], self._passed())

    # Candidates

    def _likely(self, plan: Plan, load: Load) -> Candidate:
        """The candidate that is predicted to be the fastest."""
        return max(self._candidates(plan, load), key=lambda each: _rate(load, each))

    def _own(self, key: str) -> Any:
        """The value of a setting that is fixed; None if it is not."""
        if key not in self._fixed:
            return None
        table, _, name = key.partition(".")
        return getattr(getattr(self.settings, table), name)

    def _candidates(self, plan: Plan, load: Load) -> list[Candidate]:
        """All ways to run that suit the plan, with the fixed settings as they are."""
        kinds, asked = kinds_for(plan), self._own("collect.collector")
        if asked not in (None, "auto"):
            if asked == "ray":
                raise TrainError("--collector ray: nothing is measured on a cluster; leave it out")
            kinds = [cast("Kind", asked)]
        workers = self._own("collect.n_workers")
        counts = worker_counts(load) if workers in (None, "auto") else [int(workers)]
        return [
            Candidate(kind, count, threads)
            for kind in kinds
            for count in (counts if kind in WITH_WORKERS else [1])
            for threads in load.learn
        ]

    def _thread_counts(self) -> list[int]:
        """Threads of PyTorch that are tried; 1 comes first unless they are fixed."""
        own = self._own("run.torch_threads")
        if own is not None:
            return [own or self._cores]
        return sorted({1, *_doubling(self._cores)})

    def _finalists(self, plan: Plan, load: Load, results: list[Result]) -> list[Result]:
        """The candidates that are checked: the best predictions, the run's default, the formula."""
        finalists = results[:_CHECKED]
        threads = self.settings.run.torch_threads or self._cores
        best = results[0].predicted or 0.0
        alone = Candidate("sequential", 1, threads)
        formula = Candidate("executor", max(1, min(self._cores - 1, load.num_envs)), threads)
        for note, candidate, share in (
            ("", alone, _CHEAP),
            ("default", self._default(plan, load, threads), _HOPELESS),
            ("formula", formula, _HOPELESS),
        ):
            found = next((each for each in results if each.way == candidate), None)
            if found is None:
                continue
            found.note = ", ".join(filter(None, (found.note, note)))
            if found not in finalists and (found.predicted or 0.0) >= share * best:
                finalists.append(found)
        return finalists

    def _default(self, plan: Plan, load: Load, threads: int) -> Candidate:
        """The way that the run would take by itself."""
        collect = self.settings.collect
        kind, workers = collect.collector, collect.n_workers
        if kind == "auto":
            kind = choose(
                plan, n_workers=workers, measure=lambda: Probe(load.step_seconds, 1.0, memory=0)
            ).name
        count = min(self._cores, load.num_envs) if workers == "auto" else workers
        return Candidate(kind, count if kind in WITH_WORKERS else 1, threads)

    # Measurements

    def short_steps(self, load: Load, first: Candidate) -> int | None:
        """Steps of a rollout with which an update does not take long; None: the run's own."""
        key = f"{self._task.algorithm_table(self.settings.run.algo)}.num_steps"
        if load.whole or key not in leaves(type(self.settings)):
            return None
        seconds = predict_seconds(load, first.kind, first.workers, first.threads)
        minibatch = int(getattr(self._task.algorithm_settings(self.settings), "minibatch_size", 1))
        minibatch *= 4 if "batch-size" in self._may_change else 1
        least = max(8, math.ceil(minibatch / load.num_envs))
        short = max(least, min(int(load.num_steps * _UPDATE_S / seconds), _UPDATE_STEPS // load.num_envs))
        return short if short < load.num_steps else None

    def _trial(self, way: Way) -> Trial:
        """The trial of a way to run, which is started if there is none."""
        is_candidate = isinstance(way, Candidate)
        key = (way.kind, way.workers) if isinstance(way, Candidate) else way.label
        if key not in self._trials:
            values = way.values if is_candidate else {**self._common, **way.values}
            self._trials[key] = Trial(self._task, self.settings, values, self._num_steps)
        return self._trials[key]

    def _measure_learner(self, load: Load, first: Candidate) -> Load:
        """Adds the seconds of the learner in an update, by threads."""
        self._report("measuring the learner")
        trial = self._trial(first)
        trial.turn(1)
        counts = self._thread_counts()
        shares: dict[int, list[float]] = {count: [] for count in counts}
        for i in range(2):
            for count in counts if i % 2 == 0 else counts[::-1]:
                turn = trial.turn(count)
                shares[count].append((1 - turn.waiting) / turn.rate)
        learn = {count: min(each) * load.steps for count, each in shares.items()}
        fewest = learn[counts[0]]
        learn = {
            count: each
            for count, each in learn.items()
            if count == counts[0] or each < (1 - _WORTH_THREADS) * fewest
        }
        if first.kind == "native":
            # A step of a compiled environment alone would be measured with what Python adds to it.
            assert isinstance(trial.trainer, Trainer)
            source = trial.trainer.source
            report = source.report()
            durations = np.array([report.seconds["environment"] * first.workers / max(source.steps, 1)])
            load = replace(load, durations=durations)
        return replace(load, learn=learn)

    def _race(self, results: list[Result], factor: Callable[[Way], float] = lambda way: 1.0) -> None:
        """Measures ways to run in rounds, in each of which each has a turn.

        Args:
            factor: what a measured rate is multiplied by.

        Raises:
            TrainError: none of them runs.
        """
        running: list[Result] = []
        a_round = 0.0
        for result in results:
            self._report(f"starting {result.way.label}")
            try:
                a_round += self.turn(result.way).passed
            except (UserError, CollectError) as error:
                result.note = f"cannot run: {str(error).splitlines()[0]}"
            else:
                running.append(result)
        if not running:
            raise TrainError(f"no way to run was found: {results[0].note}")
        for i in range(_MOST_ROUNDS):
            if i >= _LEAST_ROUNDS and self._passed() + a_round > self._seconds:
                break
            for result in running if i % 2 == 0 else running[::-1]:
                self._report(f"checking {result.way.label}")
                result.rates.append(self.turn(result.way).rate * factor(result.way))

    def turn(self, way: Way) -> Turn:
        threads = way.threads if isinstance(way, Candidate) else None
        return self._trial(way).turn(threads)

    def _conclusion(self, load: Load, results: list[Result], finalists: list[Result]) -> Tuning:
        checked = [each for each in finalists if each.rates]
        chosen = best_of(checked)
        chosen.is_chosen = True
        assert isinstance(chosen.way, Candidate)
        values = {key: value for key, value in chosen.way.values.items() if key not in self._fixed}
        reasons = reasons_for(chosen.way, chosen, checked, results, load)
        shown = [*self.varied, *sorted(checked, key=lambda each: -(each.measured or 0.0)), *results]
        return Tuning(
            settings=self._with(values),
            reasons=self.reasons | {key: text for key, text in reasons.items() if key in values},
            results=list({id(each): each for each in shown}.values()),
            facts=facts_about(load),
            seconds=self._passed(),
        )


def _rate(load: Load, candidate: Candidate) -> float:
    """Predicted environment steps per second."""
    return load.steps / predict_seconds(load, candidate.kind, candidate.workers, candidate.threads)


def _shortened(load: Load, num_steps: int) -> Load:
    """The load of an update after shorter rollouts, from which the learner learns as long for each step."""
    share = num_steps / load.num_steps
    return replace(load, num_steps=num_steps, learn={n: share * each for n, each in load.learn.items()})


def worker_counts(load: Load) -> list[int]:
    """Numbers of workers that are worth predicting: around the number of cores, and for steps that sleep up to one
    for each environment."""
    sleeps = load.busy < _BUSY
    most = min(load.num_envs, _MOST_WORKERS if sleeps else _FOR_EACH_CORE * load.cores)
    wanted = {1, load.cores - 1, load.cores, load.num_envs, *_doubling(most)}
    return sorted(count for count in wanted if 1 <= count <= most)


def _doubling(most: int) -> list[int]:
    """1, 2, 4 and so on up to a number, and that number."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
