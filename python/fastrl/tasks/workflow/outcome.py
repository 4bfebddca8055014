"""Measured outcomes of workflows: return and compliance, with their standard errors."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.workflow import Workflow, parse_workflow, workflow_name
from fastrl.runs.metrics import mean_and_error


@dataclass(frozen=True)
class Outcome:
    """Return and compliance of a workflow's policy.

    Attributes:
        workflow: the order.
        episodes: that it was trained on or measured in.
        mean_return: of the game, without rewards for compliance.
        return_stderr: its standard error; NaN of a single episode.
        compliance: mean over episodes.
        compliance_stderr: its standard error; NaN of a single episode.
    """

    workflow: Workflow
    episodes: int
    mean_return: float
    return_stderr: float
    compliance: float
    compliance_stderr: float

    @classmethod
    def measured(
        cls, workflow: Workflow, episodes: int, returns: NDArray[np.float64], compliance: NDArray[np.float64]
    ) -> "Outcome":
        """The outcome of ``episodes``, of which some, float64 [E], were measured."""
        return cls(workflow, episodes, *mean_and_error(returns), *mean_and_error(compliance))

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON and checkpoints, the workflow by name."""
        return dataclasses.asdict(self) | {"workflow": workflow_name(self.workflow)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Outcome":
        """The inverse of `to_tree`."""
        return cls(**{**tree, "workflow": parse_workflow(tree["workflow"])})
