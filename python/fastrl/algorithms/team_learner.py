"""Base of algorithms that learn policies of many agents: networks, optimisers, actors, loading, saving."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from fastrl.algorithms.flat_adam import FlatAdam, networks_of
from fastrl.algorithms.multi_agent_settings import TeamNetworkConfig
from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.networks.action_space import Actions
from fastrl.networks.encoders import check_encoder
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork, fixed_policies
from fastrl.networks.parameters import check_layers, write_tensors
from fastrl.networks.team_actor import Scripted, TeamActor
from fastrl.networks.wider import Widening, widening

E = TypeVar("E")

Partners = Mapping[str, Mapping[str, Any] | Scripted]
"""Policies that do not learn, by name: a policy state of a learner with a single policy, or a rule."""


class TeamLearner(Algorithm[E], Generic[E]):
    """Has the policies of all agents, and an optimiser for each that learns.

    Args:
        config: a `TeamNetworkConfig`.
        problem: observations of an agent are of any space, its actions of a flat one.
        generator: where the initial weights come from.
        partners: policies of ``config.policies`` that do not learn, by name: a policy state (of a learner with a single
            policy, as `policy_state` gives it), which is frozen, or a rule (`Scripted`).
        memory: options of `PolicyNetwork` that say what memory policies have.

    Attributes:
        policy: of all agents, as it is now.
        actors: the networks that learn, with their optimisers.
        device: where networks live.

    Raises:
        ValueError: spaces that it does not take, or policies and partners that do not fit.
    """

    many_agents = True
    policy: MultiAgentPolicy
    device: torch.device

    def __init__(
        self,
        config: TeamNetworkConfig,
        problem: Problem,
        generator: torch.Generator,
        partners: Partners | None = None,
        **memory: Any,
    ) -> None:
        actions = Actions(problem.action_space)
        if config.action_masks and actions.is_box:
            raise ValueError("action masks are for discrete actions: set action_masks to false")
        self.config, self.ranks = config, problem.ranks
        self.num_agents, self.steps = problem.num_agents, 0
        self.device = torch.device(problem.device)
        self._obs_rows = problem.obs_rows
        has_images = problem.obs_rows.dtype == np.uint8
        check_encoder(config.encoder, has_images)
        # Options of all networks.
        self._shape: dict[str, Any] = {
            "obs": problem.obs_rows.state() if has_images or config.encoder == "rows" else None,
            "encoder": config.encoder,
            "hidden": config.hidden,
            "activation": config.activation,
            "init": config.init,
            "normalize_obs": config.normalize_obs,
            "generator": generator,
        }
        names = config.policy_names(self.num_agents)
        fixed = fixed_policies(partners or {}, names)
        learning = [name for name in dict.fromkeys(names) if name not in fixed]
        if not learning:
            raise ValueError(f"no policy is left to learn: policies are {list(names)}, all of them partners")
        actors = {
            name: PolicyNetwork(
                problem.obs_dim,
                actions,
                num_ids=self.num_agents if config.agent_ids else 0,
                initial_log_std=config.initial_log_std,
                **memory,
                **self._shape,
            ).to(self.device)
            for name in learning
        }
        for policy in fixed.values():
            if isinstance(policy, PolicyNetwork):
                policy.to(self.device).requires_grad_(False)
        self.policy = MultiAgentPolicy(names, {**fixed, **actors}, actions)
        self.actors = {name: FlatAdam(actor) for name, actor in actors.items()}

    @property
    def action_masks(self) -> bool:
        masks: bool = self.config.action_masks
        return masks

    def actor_spec(self) -> Callable[[], TeamActor]:
        return self.policy.actor_spec(self.actors)

    @property
    def weights_nbytes(self) -> int:
        return sum(optimizer.network.actor_nbytes for optimizer in self.actors.values())

    @torch.no_grad()
    def write_weights(self, out: Any) -> None:
        tensors = [self.actors[name].network.actor_tensors() for name in sorted(self.actors)]
        write_tensors([each for of_actor in tensors for each in of_actor], np.frombuffer(out, np.float32))

    def networks(self) -> list[nn.Module]:
        return [networks_of(self.actors)]

    def policy_state(self) -> dict[str, Any]:
        """Weights and architecture, see `MultiAgentPolicy.from_state`. Not a copy."""
        return self.policy.state()

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        for actor in state["policy"]["actors"].values():
            check_layers(actor, hidden=config.hidden)
            PolicyNetwork.check_size(actor)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """There may be other numbers of agents."""
        return self._load_actors(state).remark()

    def _load_actors(self, state: Mapping[str, Any]) -> Widening:
        """Takes the policies of a state. Returns their widening: all have the same observations."""
        policy = state["policy"]
        theirs, ours = shape_of(policy), shape_of(self.policy.state())
        if theirs["actors"].keys() != ours["actors"].keys():
            raise ValueError(f"its actors are {sorted(theirs['actors'])}, not {sorted(ours['actors'])}")
        if theirs["actions"] != ours["actions"]:
            raise ValueError(f"its actions are {theirs['actions']}, not {ours['actions']}")
        actors = dict[str, Any]()
        for name, architecture in ours["actors"].items():
            network, saved = self.policy.policies[name], policy["actors"][name]
            assert isinstance(network, PolicyNetwork)
            memories = [each.get("memory", "none") for each in (theirs["actors"][name], architecture)]
            if memories[0] != memories[1]:
                raise ValueError(
                    f"its policy {name!r} has memory {memories[0]}, not {memories[1]}: set memory to {memories[0]};"
                    " clones of many agents have none"
                )
            wider = widening(theirs["actors"][name], architecture, self._obs_rows)
            inputs = replace(wider, others=network.num_ids)
            actors[name] = {**saved, "weights": inputs.weights(saved["weights"], network)}
        self.policy.load_state({**policy, "actors": actors})
        return wider

    def check_same_policies(self, state: Mapping[str, Any]) -> None:
        """Refuses a saved state of other policies.

        Raises:
            ValueError
        """
        theirs, ours = shape_of(state["policy"]), shape_of(self.policy.state())
        if theirs != ours:
            raise ValueError(f"the saved policies are {theirs}, this run's are {ours}")

    def _check_finite(self, kind: str, group: Mapping[str, FlatAdam[Any]]) -> None:
        for name, optimizer in group.items():
            vector = optimizer.vector.detach()
            # A finite sum of squares has no NaN and no infinity, and is found sooner.
            if not (math.isfinite(vector.dot(vector)) or vector.isfinite().all()):
                raise FloatingPointError(
                    f"the {kind} {name!r} is not finite (NaN or infinity) after {self.steps} steps;"
                    " go back to a checkpoint, and lower the learning rate or check the rewards"
                )


def shape_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A policy state without its weights."""
    actors = {name: actor["architecture"] for name, actor in state["actors"].items()}
    return {"policies": list(state["policies"]), "actions": state["actions"], "actors": actors}
