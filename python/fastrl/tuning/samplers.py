"""Samplers: what the next trial of a search tries, from the results of those before it.

A proposal is a function of the seed, the trial's number and what is known of the other trials, so that a search that is
resumed proposes what it would have proposed.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastrl.tuning.settings import TuneConfig
from fastrl.tuning.space import Parameter, Point, Space
from fastrl.tuning.trial import SAMPLING, Trial, TuneError, seed_of

# Trials that are drawn at random before a model takes over, and their largest share of the search.
_FIRST, _FIRST_SHARE = 10, 0.25


# Proposes the point of a trial, from its number and the others that were started, by number.
Sampler = Callable[[int, Sequence[Trial]], Point]


class OptunaSampler:
    """A `Sampler` that proposes what one of Optuna does, whose study is made anew from the trials each time.

    Args:
        space, seed: of the search.
        method: "tpe" or "gp".
        both: trials are better by score and by seconds, not by score alone.
        first: trials that are drawn at random.

    Raises:
        TuneError: Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int, method: str, first: int, *, both: bool = False) -> None:
        self.space, self.seed = space, seed
        try:
            import optuna
        except ImportError:
            raise TuneError(
                f"--method {method} needs Optuna: pip install 'fastrl[tune]', or take --method random"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._method, self._first, self._both = optuna, method, first, both
        self._distributions = {each.name: _distribution(optuna, each) for each in space.parameters}

    def __call__(self, number: int, trials: Sequence[Trial]) -> Point:
        optuna, seed = self._optuna, seed_of(self.seed, SAMPLING, number)
        if self._method == "tpe":
            sampler = optuna.samplers.TPESampler(n_startup_trials=self._first, seed=seed)
        else:
            sampler = optuna.samplers.GPSampler(n_startup_trials=self._first, seed=seed)
        directions = ["maximize", "minimize"] if self._both else ["maximize"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(directions=directions, sampler=sampler)
            study.add_trials([self._frozen(trial) for trial in trials])
            params = study.ask(self._distributions).params
        return {each.name: _value(each, params[each.name]) for each in self.space.parameters}

    def _frozen(self, trial: Trial) -> Any:
        """A trial as Optuna keeps it."""
        states = self._optuna.trial.TrialState
        params = {each.name: _param(each, trial.point[each.name]) for each in self.space.parameters}
        common: dict[str, Any] = {"params": params, "distributions": self._distributions}
        result = trial.result
        if result is None:
            return self._optuna.trial.create_trial(state=states.RUNNING, **common)
        if math.isnan(result.score) or result.state == "failed":
            return self._optuna.trial.create_trial(state=states.FAIL, **common)
        if result.state == "pruned" and self._method == "tpe":
            steps = {each.point: each.score for each in result.evaluations if not math.isnan(each.score)}
            return self._optuna.trial.create_trial(state=states.PRUNED, intermediate_values=steps, **common)
        # The Gaussian process would not see what was stopped early, and would propose it again.
        values = [result.score, result.seconds] if self._both else [result.score]
        return self._optuna.trial.create_trial(values=values, **common)


def make_sampler(config: TuneConfig, space: Space, seed: int) -> Sampler:
    """The sampler of a search.

    Raises:
        TuneError: it needs Optuna, which is not installed.
    """
    if config.method in ("tpe", "gp"):
        first = max(min(_FIRST, math.ceil(_FIRST_SHARE * config.trials)), 1)
        return OptunaSampler(space, seed, config.method, first, both=config.objective != "score")
    return lambda number, _: space.draw(np.random.default_rng(seed_of(seed, SAMPLING, number)))


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    if parameter.choices:
        # Of choices their index is drawn, because Optuna takes no lists.
        last = len(parameter.choices) - 1
        if parameter.ordered:
            return optuna.distributions.IntDistribution(0, last)
        return optuna.distributions.CategoricalDistribution(range(last + 1))
    low, high = parameter.drawn_range
    if parameter.integer:
        return optuna.distributions.IntDistribution(round(low), round(high), log=parameter.log)
    return optuna.distributions.FloatDistribution(low, high, log=parameter.log)


def _param(parameter: Parameter, value: Any) -> Any:
    drawn = parameter.to_drawn(value)
    if parameter.choices or parameter.integer:
        return round(drawn)
    low, high = parameter.drawn_range
    return min(max(drawn, low), high)


def _value(parameter: Parameter, param: Any) -> Any:
    return parameter.choices[param] if parameter.choices else parameter.from_drawn(param)
