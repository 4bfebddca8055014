"""Searches by name: random, exhaustive, successive halving, Bayesian optimisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.envs.cage2.workflow import Workflow
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.search import Search, Standing
from fastrl.tasks.workflow.settings import SearchConfig
from fastrl.utils.config import ConfigError

if TYPE_CHECKING:
    from fastrl.tasks.workflow.gaussian_process import PermutationGP


class RandomSearch(Search):
    """Orders at random, none twice before all were tried."""

    name = "random"

    def _trial(self) -> tuple[Workflow, int] | None:
        tried, there = len(self.outcomes), len(self._shuffled)
        if not self._has_room() or (tried >= there and not self._trials_learn):
            return None
        return self._shuffled[tried % there], self._trial_episodes


class ExhaustiveSearch(Search):
    """All orders for equally many episodes: those for trials are divided among them, and more are used if these are too
    few."""

    name = "exhaustive"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._episodes = max(self._for_trials // len(self.orders), self.min_episodes)
        needed = len(self.orders) * self._episodes
        if needed > self.total_episodes:
            raise ConfigError(
                f"exhaustive search of {len(self.orders)} orders needs at least {needed:,} episodes,"
                f" got {self.total_episodes:,}"
            )

    def _trial(self) -> tuple[Workflow, int] | None:
        tried = len(self.outcomes)
        return (self._shuffled[tried], self._episodes) if tried < len(self._shuffled) else None


class HalvingSearch(Search):
    """Successive halving (Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013;
    Jamieson and Talwalkar, AISTATS 2016): rounds of equally many episodes, each divided among the best orders of the
    round before.

    Where the budget does not suffice for all orders, a random part of them enters.
    """

    name = "halving"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entrants = len(self.orders)
        while (
            self._entrants > 1 and len(self._sizes()) * self._entrants * self.min_episodes > self._for_trials
        ):
            self._entrants -= 1

    def _sizes(self) -> list[int]:
        """Number of orders in each round."""
        sizes = [self._entrants]
        while sizes[-1] > self.config.eta:
            sizes.append(math.ceil(sizes[-1] / self.config.eta))
        return sizes

    def _trial(self) -> tuple[Workflow, int] | None:
        sizes = self._sizes()
        entrants, done = self._shuffled, 0
        for size in sizes:
            entrants = entrants[:size]
            outcomes = self.outcomes[done : done + size]
            if len(outcomes) < size:
                return entrants[len(outcomes)], self._for_trials // len(sizes) // size
            ranked = sorted(outcomes, key=self._rank, reverse=True)
            entrants, done = [outcome.workflow for outcome in ranked], done + size
        return None

    def _rank(self, outcome: Outcome) -> tuple[bool, float]:
        return Standing(outcome.workflow, outcome.episodes, outcome, self.counts(outcome)).rank


class BayesSearch(Search):
    """A Gaussian process for the return of all orders, one for their compliance, and an upper confidence bound.

    The upper bound of an order's return or compliance is the mean plus ``beta`` deviations. The next order is the one
    with the greatest bound of return (Srinivas et al., "Gaussian process optimization in the bandit setting", ICML
    2010) among those whose bound of compliance reaches the threshold (Xu et al., "Constrained efficient global
    optimization of expensive black-box functions", ICML 2023). If no bound reaches it, it is the order with the
    greatest bound of compliance.
    """

    name = "bayes"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            from fastrl.tasks.workflow.gaussian_process import PermutationGP
        except ImportError as error:
            raise ConfigError(
                f"--search bayes needs scikit-learn ({error.name} is not installed): pip install"
                " 'fastrl[workflow]', or take --search halving"
            ) from None
        self._model = PermutationGP
        self._first = self._far_apart(min(self.config.initial, len(self.orders)))
        self._fitted: tuple[int, PermutationGP, PermutationGP] | None = None

    def _far_apart(self, count: int) -> list[Workflow]:
        """Orders each of which is as far as possible from those before it."""
        places = [self._places[order] for order in self._shuffled]
        chosen = [places[0]]
        while len(chosen) < count:
            chosen.append(max(places, key=lambda place: self._distances[place, chosen].min()))
        return [self.orders[place] for place in chosen]

    def models(self) -> tuple[PermutationGP, PermutationGP]:
        """Models of return and of compliance, fitted to the newest outcome of each order."""
        if self._fitted is None or self._fitted[0] != len(self.outcomes):
            newest = [standing.outcome for standing in self.standings()]
            orders = [outcome.workflow for outcome in newest]
            self._fitted = (
                len(self.outcomes),
                self._model().fit(orders, [o.mean_return for o in newest], [o.return_stderr for o in newest]),
                self._model().fit(
                    orders, [o.compliance for o in newest], [o.compliance_stderr for o in newest]
                ),
            )
        return self._fitted[1:]

    def _trial(self) -> tuple[Workflow, int] | None:
        if not self._has_room():
            return None
        if len(self.outcomes) < len(self._first):
            return self._first[len(self.outcomes)], self._trial_episodes
        returns, compliance = (model.predict(self.orders) for model in self.models())
        beta = self.config.beta
        reach = compliance[0] + beta * compliance[1]
        bound = returns[0] + beta * returns[1]
        feasible = reach >= self.config.compliance_threshold
        value = np.where(feasible, bound, -np.inf) if feasible.any() else reach
        if not self._trials_learn:
            # A second trial of an order would have the same outcome; if no other order may be better, trials end.
            tried = [self._places[outcome.workflow] for outcome in self.outcomes]
            value[tried] = -np.inf
            best = self.best()
            best_mean = -np.inf if best is None else returns[0][self._places[best.workflow]]
            if value.max() <= best_mean:
                return None
        return self.orders[np.argmax(value)], self._trial_episodes

    def _best_of(self, counting: list[Standing]) -> Standing:
        # The model's means take outcomes of similar orders into account.
        mean, _ = self.models()[0].predict([standing.workflow for standing in counting])
        return counting[int(np.argmax(mean))]


SEARCHES: dict[str, type[Search]] = {
    search.name: search for search in (BayesSearch, RandomSearch, HalvingSearch, ExhaustiveSearch)
}


def make_search(
    config: SearchConfig,
    orders: Sequence[Workflow],
    total_episodes: int,
    **options: int,
) -> Search:
    """The search that the settings name; arguments, options and errors as of `Search`."""
    # One order leaves nothing to search for.
    method = SEARCHES[config.method] if len(orders) > 1 else RandomSearch
    return method(config, orders, total_episodes, **options)
