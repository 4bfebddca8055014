"""Gradient steps of policies and critics of many agents on the CPU, compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from fastrl.algorithms.compiled_update import CompiledSteps, Samples, StepMeans
from fastrl.algorithms.flat_adam import FlatAdam
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.networks.multi_agent import CentralCritic, Critic, PolicyNetwork

Optimizer = FlatAdam[PolicyNetwork] | FlatAdam[Critic] | FlatAdam[CentralCritic]

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(MultiAgentConfig)} | {
    "num_epochs",
    "clip_range",
    "target_kl",
    "critic",
}


class CompiledNetwork:
    """Compiled gradient steps of a policy or of a critic, see `CompiledSteps`.

    Args:
        optimizer: of the network.
        has_bf16: hidden layers multiply bfloat16.

    Attributes:
        values: of a critic, see `CompiledSteps.values`.
    """

    def __init__(self, optimizer: Optimizer, *, has_bf16: bool) -> None:
        self._optimizer, network = optimizer, optimizer.network
        inputs, *hidden, outputs = network.body.sizes
        options: dict[str, Any] = {
            "obs_dim": inputs,
            "hidden": hidden,
            "activation": network.body.activation,
            "bf16": has_bf16,
        }
        actions = None
        if isinstance(network, PolicyNetwork):
            actions, options["networks"] = network.actions, "actor"
        else:
            options |= {"networks": "critic", "critic_outputs": outputs}
        # Policies and critics learn side by side.
        self._steps = CompiledSteps(optimizer.vector, actions, beside=1, **options)
        self.values = self._steps.values

    def prepare(
        self, samples: Samples, generator: torch.Generator, **settings: Any
    ) -> Callable[[], StepMeans]:
        """See `CompiledSteps.prepare`."""
        optimizer = self._optimizer
        moments = optimizer.mean, optimizer.square, optimizer.steps
        take = self._steps.prepare(samples, *moments, generator, **settings)

        def count() -> StepMeans:
            means = take()
            optimizer.steps += means.gradient_steps
            return means

        return count


Compiled = dict[str, CompiledNetwork]


def compiled_networks(
    config: MultiAgentConfig,
    actors: Mapping[str, FlatAdam[PolicyNetwork]],
    critics: Mapping[str, FlatAdam[Critic] | FlatAdam[CentralCritic]],
    *,
    overrides: Sequence[str],
    shards: int,
    owner: str,
) -> tuple[Compiled, Compiled, str]:
    """The compiled gradient steps of policies and critics that the settings ask for, by name. There are none where
    PyTorch takes them, for the reason in the text.

    Args:
        actors: those with PPO's loss.
        overrides, shards, owner: as of `takes_compiled_steps`.

    Raises:
        ValueError: compiled ones are asked for, and there are none for the loss, the networks or their device.
    """
    optimizers: list[Optimizer] = [*actors.values(), *critics.values()]
    [device] = {optimizer.vector.device for optimizer in optimizers}

    def condition() -> str:
        has_others = config.dropout or config.memory != "none"
        is_plain = not has_others and all(each.network.is_plain for each in optimizers)
        return (
            "" if is_plain else "perceptrons of vectors with tanh or relu, without images, memory or dropout"
        )

    is_compiled, why = takes_compiled_steps(
        config, _KNOWN, device, condition, overrides=overrides, shards=shards, owner=owner
    )
    if not is_compiled:
        return {}, {}, why
    of_actors, of_critics = (
        {name: CompiledNetwork(each, has_bf16=config.precision == "bf16") for name, each in group.items()}
        for group in (actors, critics)
    )
    return of_actors, of_critics, ""
