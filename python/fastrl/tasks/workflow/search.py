"""Base of searches for the best workflow: which order to train next, for how many episodes, starting from whose policy.

A search proposes the next training (`ask`) and takes its outcome (`tell`), until its budget of episodes is used up::

    while (proposal := search.ask()) is not None:
        search.tell(train(proposal))

The first part of the budget goes to trials of orders, in which searches differ; the rest trains the best order to the
end, or another one if it ceases to count. Only orders that reach the compliance threshold count. A search is a function
of its settings and of the outcomes, so its state is the outcomes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fastrl.envs.cage2.workflow import Workflow
from fastrl.tasks.workflow.orders import kendall_distances
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.settings import SearchConfig
from fastrl.utils.config import ConfigError


@dataclass(frozen=True)
class Proposal:
    """The next training.

    Attributes:
        workflow: the order.
        episodes: its length.
        warm_start: the order whose policy it starts with, if it has none of its own; None: a new policy.
        final: the order is the best so far, and is trained to the end.
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
        episodes: of all its trainings.
        outcome: of the newest training.
        counts: its compliance reached the threshold in that.
    """

    workflow: Workflow
    episodes: int
    outcome: Outcome
    counts: bool

    @property
    def rank(self) -> tuple[bool, float]:
        """Greater is better: orders that count, by return, come before those that do not, by compliance."""
        return self.counts, self.outcome.mean_return if self.counts else self.outcome.compliance


class Search(ABC):
    """A search; subclasses choose the trials.

    Args:
        config: settings.
        orders: to choose from.
        total_episodes: the budget, which is used to the last episode and never exceeded.
        min_episodes: of a trial.
        min_learning_episodes: shorter trials only measure, so that an order has the same outcome each time.
        seed: of the sequence in which orders are tried.

    Attributes:
        name: for users.
        outcomes: so far, in order.
        finals: of each outcome, whether it is of an order that is trained to the end.
        used: episodes of all outcomes.

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
        min_episodes: int = 2,
        min_learning_episodes: int = 2,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.orders = list(orders)
        self.total_episodes = total_episodes
        self.min_episodes = min_episodes
        self._min_learning_episodes = min_learning_episodes
        self.outcomes: list[Outcome] = []
        self.used = 0
        self.finals: list[bool] = []
        self._for_trials = math.floor(total_episodes * config.trial_share)
        default = min_episodes if min_episodes < min_learning_episodes else self._for_trials // 40
        self._trial_episodes = max(
            min_episodes, default if config.trial_episodes is None else config.trial_episodes
        )
        # Trials that learn: a second trial of an order may have another outcome.
        self._trials_learn = self._trial_episodes >= min_learning_episodes
        self._distances = kendall_distances(self.orders, self.orders)
        self._places = {order: place for place, order in enumerate(self.orders)}
        # The only random part of a search.
        self._shuffled = [self.orders[i] for i in np.random.default_rng(seed).permutation(len(self.orders))]
        if total_episodes < min_episodes:
            raise ConfigError(f"a search needs at least {min_episodes:,} episodes, got {total_episodes:,}")

    def ask(self) -> Proposal | None:
        """The next training; None once the budget is used up."""
        left = self.total_episodes - self.used
        if left == 0:
            return None
        # After the first final training there are no more trials.
        trial = None if self.finalist else self._trial()
        if trial is None:
            workflow, episodes, shortest = (
                self._favourite(),
                self.config.final_episodes,
                self._min_learning_episodes,
            )
        else:
            workflow, episodes, shortest = *trial, self.min_episodes
        episodes = max(episodes, shortest)
        # A remainder too short for a training of its own is added to this one.
        episodes = left if left - episodes < shortest else episodes
        return Proposal(workflow, episodes, self._warm_start(workflow), trial is None)

    def tell(self, outcome: Outcome) -> None:
        """Adds the outcome of the last proposal.

        Raises:
            ValueError: it is of another one.
        """
        proposal = self.ask()
        if proposal is None or (outcome.workflow, outcome.episodes) != (proposal.workflow, proposal.episodes):
            raise ValueError(f"expected an outcome of {proposal}, got {outcome}")
        self.outcomes.append(outcome)
        self.used += outcome.episodes
        self.finals.append(proposal.final)

    @property
    def finalist(self) -> Workflow | None:
        """The order of the last final training; None during trials."""
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
        """The best order that counts: the finalist if it does; None if no order counts."""
        counting = [standing for standing in self.standings() if standing.counts]
        finalist = next((standing for standing in counting if standing.workflow == self.finalist), None)
        return finalist or (self._best_of(counting) if counting else None)

    def _best_of(self, counting: list[Standing]) -> Standing:
        return counting[0]

    def most_compliant(self) -> Standing | None:
        """The order of the greatest compliance, whether it counts or not; None if none was tried."""
        return max(self.standings(), key=lambda standing: standing.outcome.compliance, default=None)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, JSON values."""
        return {"outcomes": [outcome.to_tree() for outcome in self.outcomes], "finals": list(self.finals)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly where the search stood that gave the state; it had the same settings."""
        self.outcomes = [Outcome.from_tree(outcome) for outcome in state["outcomes"]]
        self.used = sum(outcome.episodes for outcome in self.outcomes)
        self.finals = list(state["finals"])

    @abstractmethod
    def _trial(self) -> tuple[Workflow, int] | None:
        """The next order to try and its episodes; None once the best order is to be trained to the end."""

    def _favourite(self) -> Workflow:
        """The order that is trained to the end."""
        best = self.best()
        if best is None and self.finalist is not None:
            return self.finalist
        best = best or self.most_compliant()
        return self._shuffled[0] if best is None else best.workflow

    def _has_room(self) -> bool:
        """True if one more trial fits into the part of the budget that is for trials."""
        return self.used + self._trial_episodes <= self._for_trials or not self.outcomes

    def _warm_start(self, workflow: Workflow) -> Workflow | None:
        if not self.config.warm_start:
            return None
        tried = self.standings()
        if not tried or any(standing.workflow == workflow for standing in tried):
            return None
        place = self._places[workflow]
        # Orders are sorted, so the best of equally near ones is chosen.
        return min(tried, key=lambda other: self._distances[place, self._places[other.workflow]]).workflow
