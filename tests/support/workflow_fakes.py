"""A fake learner of workflows: returns fall with the distance from a hidden best order."""

import math
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from fastrl.tasks.workflow.orders import kendall_distances
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.search import Search

Workflow = tuple[int, ...]
ORDERS: list[Workflow] = list(permutations(range(5)))


@dataclass
class Hidden:
    """Returns of -20 at the best order, and 4 less for each discordant pair; compliance likewise from
    ``obeyed``."""

    best: Workflow = (3, 1, 4, 0, 2)
    obeyed: Workflow | None = None
    most: float = 1.0
    spread: float = 20.0
    seed: int = 0
    started: dict[Workflow, Workflow | None] = field(default_factory=dict)

    def returns(self, workflow: Workflow) -> float:
        return float(-20 - 4 * kendall_distances([workflow], [self.best])[0, 0])

    def compliance(self, workflow: Workflow) -> float:
        if self.obeyed is None:
            return self.most
        return float(self.most - 0.03 * kendall_distances([workflow], [self.obeyed])[0, 0])

    def train_one(self, workflow: Workflow, episodes: int, warm_start: Workflow | None = None) -> Outcome:
        self.started.setdefault(workflow, warm_start)
        # The noise depends on the arguments only, not on earlier calls.
        rng = np.random.default_rng([self.seed, episodes, *workflow])
        error = self.spread / math.sqrt(episodes)
        return Outcome(
            workflow=workflow,
            episodes=episodes,
            mean_return=self.returns(workflow) + error * float(rng.standard_normal()),
            return_stderr=error,
            compliance=self.compliance(workflow) + error / 1000 * float(rng.standard_normal()),
            compliance_stderr=error / 1000,
        )

    def run(self, search: Search) -> Search:
        while (proposal := search.ask()) is not None:
            search.tell(self.train_one(proposal.workflow, proposal.episodes, proposal.warm_start))
        return search
