"""The algorithm of a search for the best workflow: PPO that observes the workflow, or has a network for each.

A shared network observes the 52 bits of the game and the order's code. For one workflow it is folded to a policy like
any other of CAGE 2, see `fastrl.tasks.workflow.folding`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.envs.cage2.workflow import WORKFLOWS, Workflow, check_workflow, parse_workflow, workflow_name
from fastrl.tasks.workflow.folding import fold, unfold


class WorkflowPPO(PPO):
    """PPO whose network is shared by all workflows, or that keeps a network for each, of which one learns.

    Args:
        config, problem: as of `PPO`.
        separate: each workflow has a network of its own.
    """

    def __init__(self, config: PPOConfig, problem: Problem, *, separate: bool = False) -> None:
        super().__init__(config, problem)
        self._problem, self._separate = problem, separate
        # With separate networks: the workflow whose network learns, and the states of the other networks.
        self._active: Workflow | None = None
        self._inactive: dict[Workflow, dict[str, Any]] = {}

    def activate(self, workflow: Workflow, warm_start: Workflow | None = None) -> None:
        """Has the workflow's network learn, where each workflow has one.

        Args:
            workflow: the order.
            warm_start: where it has no network yet: start with the network of that one.

        Raises:
            ValueError: an invalid order, or a warm start from a workflow without a network.
        """
        workflow = check_workflow(workflow)
        if not self._separate or workflow == self._active:
            return
        if self._active is not None:
            self._inactive[self._active] = _network_state(self)
        if workflow not in self._inactive:
            (seed,) = seeds_of(self._problem.seed, 1, WORKFLOWS.index(workflow))
            new = _network_state(PPO(self.config, dataclasses.replace(self._problem, seed=seed)))
            if warm_start is not None:
                other = self._inactive_network(check_workflow(warm_start))
                policy = unfold(fold(other["policy"], warm_start))
                new |= {"policy": policy, "return_scale": other["return_scale"]}
            self._inactive[workflow] = new
        super().load_state_dict(super().state_dict() | self._inactive.pop(workflow))
        self._active = workflow

    def policy_of(self, workflow: Workflow) -> dict[str, Any]:
        """The policy of a workflow as a network over the game's observations alone, see `fold`. A copy.

        Raises:
            ValueError: networks are separate and this workflow has none yet.
        """
        workflow = check_workflow(workflow)
        if not self._separate or workflow == self._active:
            return fold(self.policy_state(), workflow)
        return fold(self._inactive_network(workflow)["policy"], workflow)

    def _inactive_network(self, workflow: Workflow) -> dict[str, Any]:
        if workflow not in self._inactive:
            raise ValueError(f"workflow {workflow_name(workflow)} has no network yet: train it first")
        return self._inactive[workflow]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "active": None if self._active is None else workflow_name(self._active),
            "inactive": {workflow_name(workflow): state for workflow, state in self._inactive.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._active = None if state["active"] is None else parse_workflow(state["active"])
        self._inactive = {parse_workflow(name): network for name, network in state["inactive"].items()}


def _network_state(ppo: PPO) -> dict[str, Any]:
    """The part of PPO's state that each network has for itself. A copy."""
    state = ppo.state_dict()
    return {key: _copy(state[key]) for key in ("policy", "optimizer", "return_scale")}


def _copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def seeds_of(seed: int, count: int, *path: int) -> list[int]:
    """Seeds of 64 bits, different for each path."""
    return [int(word) for word in np.random.SeedSequence([seed, *path]).generate_state(count, np.uint64)]
