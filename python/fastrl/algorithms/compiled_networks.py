"""Gradient steps of policies and critics of many agents on the CPU, compiled."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fastrl.algorithms.compiled_update import CompiledSteps
from fastrl.algorithms.flat_adam import FlatAdam
from fastrl.algorithms.multi_agent_settings import TeamNetworkConfig
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.networks.multi_agent import PolicyNetwork

if TYPE_CHECKING:
    from fastrl.algorithms.multi_agent import MultiAgentLearner

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(TeamNetworkConfig)} | (
    {"num_steps", "minibatch_size", "num_epochs", "critic_epochs", "gamma", "gae_lambda", "critic"}
    | {"dropout", "memory", "memory_size", "normalize_rewards", "normalize_advantages"}
    | {"learning_rate", "critic_learning_rate", "max_grad_norm", "precision", "update_backend"}
    | {"lr_schedule", "lr_every", "lr_factor", "lr_final_share", "lr_warmup"}
    | {"clip_range", "target_kl", "entropy_coef", "final_entropy_coef"}
)

Compiled = dict[str, CompiledSteps]


def compiled_networks(
    learner: "MultiAgentLearner", known: type, losses: Sequence[str]
) -> tuple[Compiled, Compiled, str]:
    """The compiled gradient steps of policies and critics that the settings ask for, by name. There are none where
    PyTorch takes them, for the reason in the text.

    Args:
        known: the class whose losses are compiled.
        losses: its methods that are: "critic_loss", and "loss" where policies have compiled steps.

    Raises:
        ValueError: compiled ones are asked for, and there are none for the loss, the networks or their device.
    """
    config = learner.config
    groups = learner.actors if "loss" in losses else {}, learner.critics.optimizers

    def condition() -> str:
        networks = [each.network for group in groups for each in group.values()]
        is_plain = all(network.is_plain for network in networks)
        if not is_plain or config.dropout or config.memory != "none":
            return (
                "perceptrons of vectors or the encoder rows of a table, with tanh or relu, without images, memory or"
                " dropout"
            )
        has_rows = any(network.encoder is not None for network in networks)
        return "precision fp32 with the encoder rows" if has_rows and config.precision != "fp32" else ""

    is_compiled, why = takes_compiled_steps(learner, known, losses, _KNOWN, condition, learner.name)
    if not is_compiled:
        return {}, {}, why
    of_actors, of_critics = (
        {name: _steps(each, has_bf16=config.precision == "bf16") for name, each in group.items()}
        for group in groups
    )
    return of_actors, of_critics, ""


def _steps(optimizer: FlatAdam[Any], *, has_bf16: bool) -> CompiledSteps:
    """The gradient steps of a policy or of a critic, whose hidden layers may multiply bfloat16."""
    network = optimizer.network
    _, *hidden, outputs = network.body.sizes
    options: dict[str, Any] = {"networks": "critic", "critic_outputs": outputs}
    actions = None
    if isinstance(network, PolicyNetwork):
        actions, options = network.actions, {"networks": "actor"}
    return CompiledSteps(
        optimizer.vector,
        actions,
        # Policies and critics learn side by side.
        beside=1,
        obs_dim=network.compiled_inputs,
        hidden=hidden,
        activation=network.body.activation,
        bf16=has_bf16,
        pooling=network.pooling,
        **options,
    )
