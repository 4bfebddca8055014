"""Weights of a network for one that has more inputs.

The inputs of the old network are the first ones of the new network, in the same order. The first layers get columns of
zeros for the others, so that the new network computes what the old one does until it learns. Statistics that whiten
observations start with mean 0 and variance 1 for the new inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.parameters import check_architecture

# Entries of a saved architecture that depend on the observations.
_ABOUT_INPUTS = ("obs_dim", "actor_inputs", "obs_shape", "obs")


@dataclass(frozen=True)
class Widening:
    """Places of a network's old inputs among the inputs of its first layers.

    Attributes:
        old, new: numbers of an observation.
        agents: whose observations lie side by side in an input.
        others: inputs after the observations, such as the index of an agent.
        actor: the same as ``old`` and ``new`` of a policy that sees less than the value function.
    """

    old: int
    new: int
    agents: int = 1
    others: int = 0
    actor: tuple[int, int] | None = None

    @property
    def extra(self) -> int:
        """New inputs."""
        return self.new - self.old

    def remark(self) -> list[str]:
        """Remark for people, see `fastrl.algorithms.protocol.Algorithm.load_policy`."""
        if not self.extra:
            return []
        return [f"its {self.old} inputs are the first, {self.extra} new ones start with weights of zero"]

    def tensor(self, tensor: Tensor, shape: torch.Size, name: str = "") -> Tensor:
        """A parameter or buffer of the old network with the shape that it has in the new one.

        Args:
            name: its variance's ends in ``var``.
        """
        if tensor.shape == shape or not self.extra:
            return tensor
        if tensor.shape == (self.old,) and shape == (self.new,):
            fill = tensor.new_ones if name.endswith("var") else tensor.new_zeros
            return torch.cat([tensor, fill(self.extra)])
        if tensor.dim() == 2 and (tensor.shape[1], shape[-1]) == self.actor and len(tensor) == shape[0]:
            return torch.cat([tensor, tensor.new_zeros(len(tensor), shape[1] - tensor.shape[1])], 1)
        width, before = (self.agents * size + self.others for size in (self.new, self.old))
        if shape != (len(tensor), width) or tensor.shape != (len(tensor), before):
            return tensor
        wider = tensor.new_zeros(shape)
        for agent in range(self.agents):
            place = slice(agent * self.old, (agent + 1) * self.old)
            wider[:, agent * self.new :][:, : self.old] = tensor[:, place]
        if self.others:
            wider[:, -self.others :] = tensor[:, -self.others :]
        return wider

    def weights(self, weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
        """The weights of an old network for a new one."""
        wider = network.state_dict()
        return {
            name: self.tensor(tensor, wider[name].shape, name) if name in wider else tensor
            for name, tensor in weights.items()
        }

    def vector(self, vector: Tensor, weights: Mapping[str, Tensor], network: nn.Module) -> Tensor:
        """A vector with a number for each parameter of the old network, such as a moment of its optimiser, for the new
        one: zeros for the new parameters.

        Args:
            weights: of the old network.
        """
        if not self.extra:
            return vector
        parameters = list(network.named_parameters())
        vectors = vector.split([weights[name].numel() for name, _ in parameters])
        each = zip(parameters, vectors, strict=True)
        return torch.cat(
            [self.tensor(values.view_as(weights[name]), now.shape).flatten() for (name, now), values in each]
        )


def widening(saved: Mapping[str, Any], now: Mapping[str, Any], obs_rows: ObsRows | None = None) -> Widening:
    """The widening that turns a saved network into one with the same inputs or more of them.

    Args:
        saved, now: architectures, equal but for their inputs.
        obs_rows: observations of the new network, where its architecture does not have them.

    Raises:
        ValueError: they differ in something else, the new network has fewer inputs, or observations are no vectors.
    """
    if saved == now:
        return Widening(0, 0)
    kinds = [name for name in _ABOUT_INPUTS if name in now]
    check_architecture(
        {name: value for name, value in saved.items() if name not in kinds},
        {name: value for name, value in now.items() if name not in kinds},
    )
    old, new = _inputs(saved), _inputs(now)
    if old is not None and old == new:
        check_architecture(saved, now)
    if old is None or new is None or "path" in now or (obs_rows is not None and len(obs_rows.parts) > 1):
        raise ValueError(
            "it has other inputs, and only networks of fastrl for observations that are one vector can get more"
        )
    if old > new:
        raise ValueError(f"its network has {old} inputs, not {new}: there may be more than in it, not fewer")
    seen = saved.get("actor_inputs") or old, now.get("actor_inputs") or new
    if seen[0] > seen[1] or (seen[0] < old and seen[0] != seen[1]):
        raise ValueError(f"its policy sees {seen[0]} of {old} inputs, not {seen[1]} of {new}")
    return Widening(old, new, actor=seen)


def _inputs(architecture: Mapping[str, Any]) -> int | None:
    """The length of a vector that a network takes; None: it takes other observations."""
    if (space := architecture.get("obs")) is not None:
        shape = list(space["shape"]) if space["kind"] == "box" else []
    elif "obs_dim" in architecture:
        shape = [architecture["obs_dim"]]
    else:
        shape = list(architecture.get("obs_shape", ()))
    return int(shape[0]) if len(shape) == 1 else None
