"""Networks that observe a workflow's code, and the plain networks that they are for one workflow.

For one workflow the code is constant, so its weights can be folded into the biases of the first layers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastrl.envs.cage2.workflow import WORKFLOW_LEN, Workflow, encode

# Changes weight and bias of a first layer.
_Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def fold(policy_state: dict[str, Any], workflow: Workflow) -> dict[str, Any]:
    """The network of `fastrl.networks.actor_critic.ActorCritic.state` for one workflow, without inputs for its code.
    A copy.

    The code's weights, where it is 1, are added to the first layers' biases.
    """
    code = torch.from_numpy(encode([workflow])[0])

    def first(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        game, order = weight.cpu().split([weight.shape[1] - WORKFLOW_LEN, WORKFLOW_LEN], dim=1)
        return game.clone(), bias.cpu() + order @ code

    return _with_inputs(policy_state, -WORKFLOW_LEN, first)


def unfold(policy_state: dict[str, Any]) -> dict[str, Any]:
    """A network with inputs for a workflow's code whose outputs are those of this one, for any code. A copy."""

    def first(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([weight, weight.new_zeros(len(weight), WORKFLOW_LEN)], dim=1), bias.clone()

    return _with_inputs(policy_state, WORKFLOW_LEN, first)


def _with_inputs(policy_state: dict[str, Any], more: int, first: _Change) -> dict[str, Any]:
    """A copy of the network with ``more`` inputs, its first layers changed by ``first``."""
    architecture, weights = policy_state["architecture"], policy_state["weights"]
    out = {name: tensor.cpu().clone() for name, tensor in weights.items()}
    for part in ("actor", "critic"):
        names = f"{part}.0.weight", f"{part}.0.bias"
        out[names[0]], out[names[1]] = first(out[names[0]], out[names[1]])
    return {"architecture": architecture | {"obs_dim": architecture["obs_dim"] + more}, "weights": out}
