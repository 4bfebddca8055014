"""Policies and critics of algorithms that learn actor and critics from transitions, for observations of any space."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import ActingNetwork
from fastrl.networks.action_space import Actions
from fastrl.networks.bounded_actor import BoundedActor
from fastrl.networks.compiled_actor import MAX_OBS_DIM, ActorSpec
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.ensemble import Ensemble
from fastrl.networks.kinds import EncoderKind
from fastrl.networks.own_network import OwnModule
from fastrl.networks.parameters import SavedNetwork

PolicyHead = Literal["gaussian", "deterministic", "categorical"]
"""Meaning of a policy's outputs: see `fastrl.networks.bounded_actor.Head`; or logits of discrete actions."""


class _Encoded(SavedNetwork):
    """Features of observations, and perceptrons on them.

    Features are those of an encoder, which leaves numbers as they are, or of a module of the user's own; see
    `OwnModule`. The module stays in ``eval()`` mode: without dropout, and with the statistics that it was made with.

    Args:
        obs: `ObsRows.state` of the observations.
        actions: `Actions.state` of the policy's draws.
        encoder: network for images; see `fastrl.networks.encoders.Encoder`.
        path: import path of a class of the user's, which takes the place of the encoder; None: there is none.
        options: further arguments of the class.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        num_features: inputs of the perceptrons that come from observations.
        has_encoder: features have parameters of their own.
    """

    def __init__(
        self,
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        encoder: EncoderKind,
        path: str | None,
        options: Mapping[str, Any],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.obs_rows = ObsRows.from_state(obs)
        self.own: OwnModule | None = None
        if path is not None:
            self.own = OwnModule(path, options, obs, actions, generator=generator).eval()
            self.num_features = self.own.feature_size()
            self.has_encoder = True
        else:
            self.decoder = Decoder(self.obs_rows, flat=encoder == "mlp")
            self.encoder = Encoder(self.decoder, encoder, (), "relu", generator=generator)
            self.num_features = self.encoder.size
            self.has_encoder = any(True for _ in self.encoder.parameters())
        self.body: Ensemble

    def features(self, rows: Tensor) -> Tensor:
        """Inputs of the perceptrons, float32 [B, num_features], from observations [B, size]."""
        features: Tensor
        features = self.encoder(*self.decoder(rows)) if self.own is None else self.own(rows)
        return features


class OffPolicyActor(_Encoded, ActingNetwork):
    """A policy without a value function.

    Args:
        obs, actions, encoder, path, options, generator: see `_Encoded`.
        head: what the outputs mean.
        hidden: widths of the hidden layers; may be empty.
        noise: deviation of the noise that a deterministic policy explores with.
    """

    kind = "off_policy_actor"
    batch_renorm: ClassVar[bool] = False
    log_std = None  # Logits, or a Gaussian whose deviations are outputs.

    def __init__(
        self,
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        head: PolicyHead,
        *,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (256, 256),
        noise: float = 0.0,
        path: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs, actions, encoder, path, options, generator)
        self.head: PolicyHead = head
        self.noise = noise
        self.obs_dim, self.num_actions = self.obs_rows.size, Actions.from_state(actions).size
        outputs = self.num_actions * (2 if head == "gaussian" else 1)
        sizes = [self.num_features, *hidden, outputs]
        self.body = Ensemble(1, sizes, batch_renorm=self.batch_renorm, generator=generator)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs float32 [B, outputs] at observations [B, obs_dim]."""
        outputs: Tensor = self.body(self.features(rows))[0]
        return outputs

    outputs = forward

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.state() == self.obs_rows.state()

    def state(self) -> dict[str, Any]:
        """See `ActingNetwork.state`; with the ``action_space``."""
        return {**super().state(), "action_space": self._architecture["actions"]}

    def actor_architecture(self) -> dict[str, Any] | None:
        if self.has_encoder or self.obs_rows.dtype != np.float32 or self.obs_dim > MAX_OBS_DIM:
            return None
        return {
            "kind": "discrete",
            "obs_dim": self.obs_dim,
            "outputs": self.body.sizes[-1],
            "hidden": self._architecture["hidden"],
            "activation": "relu",
            "obs_clip": None,
        }

    def actor_spec(self, actions: Actions) -> ActorSpec:
        """See `ActingNetwork.actor_spec`; of continuous actions a `BoundedActor`."""
        spec: Any = super().actor_spec(actions)
        if self.head == "categorical":
            return spec
        return functools.partial(BoundedActor, self.head, self.num_actions, spec, self.noise)

    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            tensors = super().actor_tensors()
        else:
            tensors = [tensor for layer in self.body.acting_layers() for tensor in layer]
        # The first number says whether a `BoundedActor` draws uniform actions.
        return tensors if self.head == "categorical" else [tensors[0].new_zeros(1), *tensors]


class RenormalizedActor(OffPolicyActor):
    """A policy with batch renormalisation before each linear layer, which acts by running statistics."""

    kind = "renormalized_actor"
    batch_renorm = True


class Critics(_Encoded):
    """Values of actions, each estimated by several perceptrons, which share an encoder of images.

    Args:
        obs, actions, encoder, path, options, hidden, generator: as of `OffPolicyActor`.
        count: E, number of perceptrons.
        num_inputs: numbers of a continuous action, which are inputs beside the features; 0 where all actions have
            outputs.
        num_outputs: number of discrete actions; 1 where the action is an input.
        layer_norm, batch_renorm: of the perceptrons, see `Ensemble`.
    """

    def __init__(
        self,
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        count: int,
        num_inputs: int,
        num_outputs: int,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        batch_renorm: bool = False,
        path: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs, actions, encoder, path, options, generator)
        self.num_inputs = num_inputs
        sizes = [self.num_features + num_inputs, *hidden, num_outputs]
        self.body = Ensemble(
            count, sizes, layer_norm=layer_norm, batch_renorm=batch_renorm, generator=generator
        )

    def forward(self, rows: Tensor, actions: Tensor | None = None) -> Tensor:
        """Values of actions, float32 [E, B]; without actions those of all discrete ones, [E, B, num_outputs].

        Args:
            rows: observations [B, size].
            actions: float32 [B, num_inputs], or discrete ones int64 [B].
        """
        values: Tensor = self.body(self.inputs(rows, actions))
        return values if actions is None else values_of(values, actions)

    def inputs(self, rows: Tensor, actions: Tensor | None) -> Tensor:
        """Inputs of the perceptrons, float32 [B, num_features + num_inputs]; arguments as of `forward`."""
        features = self.features(rows)
        return torch.cat([features, actions], 1) if self.num_inputs and actions is not None else features


def values_of(values: Tensor, actions: Tensor) -> Tensor:
    """Values [E, B] of actions, see `Critics.forward`, from what the perceptrons give [E, B, num_outputs]."""
    if actions.is_floating_point():
        return values.squeeze(-1)
    return values.gather(-1, actions.expand(len(values), -1).unsqueeze(-1)).squeeze(-1)
