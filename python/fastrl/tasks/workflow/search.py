"""Searches for the best workflow: which order to train next, for how many episodes, starting from whose policy.

A search is asked, and told what came of it, until its budget of episodes is spent::

    while (proposal := search.ask()) is not None:
        search.tell(trainer.play(proposal.workflow, proposal.episodes, proposal.warm_start))

The first part of the budget goes to trying orders, which is where searches differ; the rest goes to the order that is
the best by then, and to another one if it ceases to count. Only orders that reach the compliance threshold count. What
a search does follows from its settings and from what it was told, so its state is what it was told.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fastrl.tasks.workflow.gaussian_process import PermutationGP, kendall_distances
from fastrl.tasks.workflow.training import Outcome
from fastrl.utils.config import ConfigError, Setting, section

Workflow = tuple[int, ...]


@section
class SearchConfig:
    """How to look for the best order among all."""

    method: Annotated[
        Literal["bayes", "random", "halving", "exhaustive"],
        Field(
            description="bayes: Gaussian process over orders, upper confidence bound; random: orders at random;"
            " halving: all a little, the best ones longer and longer; exhaustive: all equally long"
        ),
        Setting(option="--search", common=True),
    ] = "bayes"
    compliance_threshold: Annotated[
        float,
        Field(ge=0, le=1, description="least compliance with which an order counts"),
        Setting(option="--compliance-threshold", common=True),
    ] = 0.9
    trial_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="greatest share of the search's episodes for trials of orders; the rest trains the best one"
            " to the end; exhaustive takes what it needs",
        ),
    ] = 0.15
    trial_episodes: Annotated[
        int | None,
        Field(
            ge=2,
            description="bayes and random: episodes of a trial; none: a measurement with a shared network, else a"
            " fortieth of the episodes for trials",
        ),
    ] = None
    final_episodes: Annotated[
        int,
        Field(
            ge=2,
            description="episodes between two measurements of the best order while it is trained to the end",
        ),
    ] = 2500
    initial: Annotated[
        int,
        Field(ge=1, le=120, description="bayes: orders, far apart, that are tried before its model chooses"),
    ] = 10
    beta: Annotated[
        float,
        Field(ge=0, description="bayes: standard deviations added to the mean; more explores more"),
    ] = 1.5
    eta: Annotated[int, Field(ge=2, description="halving: one of so many orders is kept in each round")] = 3
    warm_start: Annotated[
        bool, Field(description="separate networks: begin with that of the nearest order trained before")
    ] = True


@dataclass(frozen=True)
class Proposal:
    """What is to be trained next.

    Attributes:
        workflow: the order.
        episodes: for how many.
        warm_start: whose policy it begins with, if it has none of its own; None: a new one.
        final: it is the best so far that is trained to the end.
    """

    workflow: Workflow
    episodes: int
    warm_start: Workflow | None
    final: bool


@dataclass(frozen=True)
class Standing:
    """An order that was tried.

    Attributes:
        workflow: the order.
        episodes: for which it was trained in all.
        outcome: the newest.
        counts: whether it reached the compliance threshold then.
    """

    workflow: Workflow
    episodes: int
    outcome: Outcome
    counts: bool

    @property
    def rank(self) -> tuple[bool, float]:
        """The greater the better: what counts by its return, before what does not by its compliance."""
        return self.counts, self.outcome.mean_return if self.counts else self.outcome.compliance


class Search(ABC):
    """What all searches have in common.

    Args:
        config: settings.
        orders: all that there are.
        total_episodes: the budget, which is spent to the last episode and never exceeded.
        least: the fewest episodes of a trial that make sense.
        learns: the fewest of which something is learnt: shorter trials of an order have the same outcome each time.
        seed: fixes all that is random.

    Attributes:
        name: what it is called.
        outcomes: what it was told, in order.
        finals: of each outcome, whether it is of the best order that is trained to the end.
        spent: episodes of these.

    Raises:
        ConfigError: too small a budget.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: SearchConfig,
        orders: Sequence[Workflow],
        total_episodes: int,
        *,
        least: int = 2,
        learns: int = 2,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.orders = list(orders)
        self.total_episodes = total_episodes
        self.least = least
        self._learns = learns
        self.outcomes: list[Outcome] = []
        self.spent = 0
        self.finals: list[bool] = []
        self._for_trials = math.floor(total_episodes * config.trial_share)
        usual = least if least < learns else self._for_trials // 40
        self._trial_episodes = max(least, usual if config.trial_episodes is None else config.trial_episodes)
        self._again = self._trial_episodes >= learns
        self._distances = kendall_distances(self.orders, self.orders)
        self._places = {order: place for place, order in enumerate(self.orders)}
        # Everything that is random about a search is in which order it takes the orders.
        self._shuffled = [self.orders[i] for i in np.random.default_rng(seed).permutation(len(self.orders))]
        if total_episodes < least:
            raise ConfigError(f"a search needs at least {least:,} episodes, got {total_episodes:,}")

    def ask(self) -> Proposal | None:
        """What to train next; None once the budget is spent."""
        left = self.total_episodes - self.spent
        if left == 0:
            return None
        # Who is trained to the end is so from then on.
        trial = None if self.finalist else self._trial()
        if trial is None:
            workflow, episodes, least = self._favourite(), self.config.final_episodes, self._learns
        else:
            workflow, episodes, least = *trial, self.least
        episodes = max(episodes, least)
        # A rest that is too small to make sense goes to the last one.
        episodes = left if left - episodes < least else episodes
        return Proposal(workflow, episodes, self._warm_start(workflow), trial is None)

    def tell(self, outcome: Outcome) -> None:
        """Takes in what came of the last proposal.

        Raises:
            ValueError: it is of another one.
        """
        proposal = self.ask()
        if proposal is None or (outcome.workflow, outcome.episodes) != (proposal.workflow, proposal.episodes):
            raise ValueError(f"expected an outcome of {proposal}, got {outcome}")
        self.outcomes.append(outcome)
        self.spent += outcome.episodes
        self.finals.append(proposal.final)

    @property
    def finalist(self) -> Workflow | None:
        """The order that was last trained to the end; None while orders are tried."""
        return self.outcomes[-1].workflow if self.finals and self.finals[-1] else None

    def standings(self) -> list[Standing]:
        """The orders tried so far, the best first."""
        newest = {outcome.workflow: outcome for outcome in self.outcomes}
        episodes = dict.fromkeys(newest, 0)
        for outcome in self.outcomes:
            episodes[outcome.workflow] += outcome.episodes
        standings = [
            Standing(workflow, episodes[workflow], outcome, self.counts(outcome))
            for workflow, outcome in newest.items()
        ]
        return sorted(standings, key=lambda standing: standing.rank, reverse=True)

    def counts(self, outcome: Outcome) -> bool:
        return outcome.compliance >= self.config.compliance_threshold

    def best(self) -> Standing | None:
        """The best order that counts, which is the one trained to the end if that does; None if none counts."""
        counting = [standing for standing in self.standings() if standing.counts]
        finalist = next((standing for standing in counting if standing.workflow == self.finalist), None)
        return finalist or (self._best_of(counting) if counting else None)

    def _best_of(self, counting: list[Standing]) -> Standing:
        return counting[0]

    def closest(self) -> Standing | None:
        """The order that is kept to most, whether that is enough or not; None if none was tried."""
        return max(self.standings(), key=lambda standing: standing.outcome.compliance, default=None)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if never stopped."""
        return {
            "outcomes": [dataclasses.asdict(outcome) for outcome in self.outcomes],
            "finals": list(self.finals),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the search that saved the state stood; it has to have the same settings."""
        self.outcomes = [outcome_from(outcome) for outcome in state["outcomes"]]
        self.spent = sum(outcome.episodes for outcome in self.outcomes)
        self.finals = list(state["finals"])

    @abstractmethod
    def _trial(self) -> tuple[Workflow, int] | None:
        """The next order to try and for how many episodes; None once it is time to train the best to the end."""

    def _favourite(self) -> Workflow:
        """What is trained to the end."""
        best = self.best()
        if best is None and self.finalist is not None:
            return self.finalist
        best = best or self.closest()
        return self._shuffled[0] if best is None else best.workflow

    def _has_room(self) -> bool:
        """Whether one more trial fits into the part of the budget that is for trials."""
        return self.spent + self._trial_episodes <= self._for_trials or not self.outcomes

    def _warm_start(self, workflow: Workflow) -> Workflow | None:
        if not self.config.warm_start:
            return None
        tried = self.standings()
        if not tried or any(standing.workflow == workflow for standing in tried):
            return None
        place = self._places[workflow]
        # Of those that are equally near, the best.
        return min(tried, key=lambda other: self._distances[place, self._places[other.workflow]]).workflow


class RandomSearch(Search):
    """Orders at random, none twice before all were tried."""

    name = "random"

    def _trial(self) -> tuple[Workflow, int] | None:
        tried, there = len(self.outcomes), len(self._shuffled)
        if not self._has_room() or (tried >= there and not self._again):
            return None
        return self._shuffled[tried % there], self._trial_episodes


class ExhaustiveSearch(Search):
    """All orders, equally long: what is for trials is divided among them, and more is taken if that is too little."""

    name = "exhaustive"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._episodes = max(self._for_trials // len(self.orders), self.least)
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
    Jamieson and Talwalkar, AISTATS 2016): as many episodes for each round, which the best of the round before share.

    Where the budget does not suffice for all orders, some of them take part.
    """

    name = "halving"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entrants = len(self.orders)
        while self._entrants > 1 and len(self._sizes()) * self._entrants * self.least > self._for_trials:
            self._entrants -= 1

    def _sizes(self) -> list[int]:
        """How many orders take part in each round."""
        sizes = [self._entrants]
        while sizes[-1] > self.config.eta:
            sizes.append(math.ceil(sizes[-1] / self.config.eta))
        return sizes

    def _trial(self) -> tuple[Workflow, int] | None:
        sizes = self._sizes()
        entrants, done = self._shuffled, 0
        for size in sizes:
            entrants = entrants[:size]
            played = self.outcomes[done : done + size]
            if len(played) < size:
                return entrants[len(played)], self._for_trials // len(sizes) // size
            ranked = sorted(played, key=self._rank, reverse=True)
            entrants, done = [outcome.workflow for outcome in ranked], done + size
        return None

    def _rank(self, outcome: Outcome) -> tuple[bool, float]:
        return Standing(outcome.workflow, outcome.episodes, outcome, self.counts(outcome)).rank


class BayesSearch(Search):
    """A Gaussian process for the return of all orders, one for their compliance, and an upper confidence bound.

    The next order is, among those that may reach the threshold as far as is known (the mean of their compliance and
    ``beta`` deviations), that of the greatest mean and ``beta`` deviations of return (Srinivas et al., "Gaussian
    process optimization in the bandit setting", ICML 2010; with such optimism about the constraint too: Xu et al.,
    "Constrained efficient global optimization of expensive black-box functions", ICML 2023). If none may reach it,
    the one whose compliance may be the greatest.
    """

    name = "bayes"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first = self._far_apart(min(self.config.initial, len(self.orders)))
        self._fitted: tuple[int, PermutationGP, PermutationGP] | None = None

    def _far_apart(self, count: int) -> list[Workflow]:
        """Orders of which each is as far as can be from those before it."""
        places = [self._places[order] for order in self._shuffled]
        chosen = [places[0]]
        while len(chosen) < count:
            chosen.append(max(places, key=lambda place: self._distances[place, chosen].min()))
        return [self.orders[place] for place in chosen]

    def models(self) -> tuple[PermutationGP, PermutationGP]:
        """What is known of return and of compliance, from the newest outcome of each order."""
        if self._fitted is None or self._fitted[0] != len(self.outcomes):
            newest = [standing.outcome for standing in self.standings()]
            orders = [outcome.workflow for outcome in newest]
            self._fitted = (
                len(self.outcomes),
                PermutationGP().fit(
                    orders, [o.mean_return for o in newest], [o.return_stderr for o in newest]
                ),
                PermutationGP().fit(
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
        may = reach >= self.config.compliance_threshold
        value = np.where(may, bound, -np.inf) if may.any() else reach
        if not self._again:
            # Tried again, an order would tell nothing new; and when no other may be better, enough is known.
            tried = [self._places[outcome.workflow] for outcome in self.outcomes]
            value[tried] = -np.inf
            best = self.best()
            enough = -np.inf if best is None else returns[0][self._places[best.workflow]]
            if value.max() <= enough:
                return None
        return self.orders[np.argmax(value)], self._trial_episodes

    def _best_of(self, counting: list[Standing]) -> Standing:
        # By what its neighbours say too.
        mean, _ = self.models()[0].predict([standing.workflow for standing in counting])
        return counting[int(np.argmax(mean))]


def outcome_from(tree: dict[str, Any]) -> Outcome:
    """The outcome whose attributes a checkpoint has."""
    return Outcome(**(tree | {"workflow": tuple(tree["workflow"])}))


SEARCHES: dict[str, type[Search]] = {
    search.name: search for search in (BayesSearch, RandomSearch, HalvingSearch, ExhaustiveSearch)
}


def make_search(
    config: SearchConfig,
    orders: Sequence[Workflow],
    total_episodes: int,
    *,
    least: int = 2,
    learns: int = 2,
    seed: int = 0,
) -> Search:
    """The search that the settings name; arguments and errors as of `Search`."""
    # Among one there is nothing to look for.
    method = SEARCHES[config.method] if len(orders) > 1 else RandomSearch
    return method(config, orders, total_episodes, least=least, learns=learns, seed=seed)
