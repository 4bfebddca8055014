"""Gradient steps of policies and critics of many agents on the CPU, compiled."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fastrl.algorithms.compiled_update import (
    CompiledSteps,
    StepMeans,
    samples_of,
    what_steps_are_for,
    why_torch,
)
from fastrl.algorithms.flat_adam import FlatAdam
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import Critic, PolicyNetwork
from fastrl.rollout.rollout import Rollout

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(MultiAgentConfig)} | {
    "num_epochs",
    "clip_range",
    "target_kl",
    "update_backend",
}


class CompiledNetwork:
    """All gradient steps of a policy, or of a critic of one agent's observations, see `CompiledSteps`.

    Args:
        optimizer: of the network.
        actions: of an agent.
        num_agents: of an environment.
    """

    def __init__(
        self, optimizer: FlatAdam[PolicyNetwork] | FlatAdam[Critic], actions: Actions, num_agents: int
    ) -> None:
        network = optimizer.network
        self._optimizer, self._num_agents = optimizer, num_agents
        self._steps = CompiledSteps(
            optimizer.vector,
            actions,
            obs_dim=network.obs_dim + network.num_ids,
            hidden=list(network.body.hidden),
            activation=network.body.activation,
            networks="actor" if isinstance(network, PolicyNetwork) else "critic",
        )

    def __call__(
        self, rollout: Rollout, rows: Tensor, generator: torch.Generator, **settings: Any
    ) -> StepMeans:
        """Learns from rows int64 [B] of [T * N].

        Args:
            settings: as of `CompiledSteps`.
        """
        optimizer = self._optimizer
        with torch.no_grad():
            obs = optimizer.network.inputs(rollout.flat("obs")[rows], rows % self._num_agents)
        samples = samples_of(rollout, obs, torch.arange(len(rows)), rows)
        means = self._steps(samples, optimizer.mean, optimizer.square, optimizer.steps, generator, **settings)
        optimizer.steps += means.gradient_steps
        return means


Compiled = dict[str, CompiledNetwork]


def compiled_networks(
    config: Any,
    actors: Mapping[str, FlatAdam[PolicyNetwork]],
    critics: Mapping[str, FlatAdam[Critic]],
    actions: Actions,
    num_agents: int,
    *,
    has_own_loss: bool,
    shards: int,
) -> tuple[Compiled, Compiled, str]:
    """The compiled gradient steps of policies and critics that the settings ask for, by name. There are none where
    PyTorch takes them, for the reason in the text.

    Args:
        config: of `MAPPO`, or of a subclass.
        critics: of one agent's observations.
        has_own_loss: a subclass has a loss of its own.
        shards: of each minibatch; 0: it is whole.

    Raises:
        ValueError: compiled ones are asked for, and there are none for the loss, the networks or their device.
    """
    if config.update_backend == "torch":
        return {}, {}, ""
    [device] = {optimizer.vector.device for optimizer in actors.values()}
    own_methods = ["loss"] if has_own_loss else []
    takes = what_steps_are_for(config, _KNOWN, device, own_methods=own_methods, shards=shards)
    are_plain = all(actor.network.is_plain for actor in actors.values())
    if not takes and (config.dropout or not are_plain):
        takes = "perceptrons of vectors with tanh or relu, without images or dropout"
    if takes:
        return {}, {}, why_torch(config.update_backend, takes)
    return (
        {name: CompiledNetwork(each, actions, num_agents) for name, each in actors.items()},
        {name: CompiledNetwork(each, actions, num_agents) for name, each in critics.items()},
        "",
    )
