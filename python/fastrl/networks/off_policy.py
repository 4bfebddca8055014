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
from fastrl.networks.kinds import EncoderKind, MemoryKind, SimbaKind
from fastrl.networks.memory import Memory
from fastrl.networks.own_network import OwnModule
from fastrl.networks.parameters import SavedNetwork
from fastrl.networks.simba import Simba, with_bounded_deviations
from fastrl.networks.simba_v2 import MAX_RETURN, NUM_ATOMS, SimbaV2
from fastrl.replay.recurrent import ObsSequences

PolicyHead = Literal["gaussian", "deterministic", "categorical"]
"""Meaning of a policy's outputs: see `fastrl.networks.bounded_actor.Head`; or logits of discrete actions."""


class _Encoded(SavedNetwork):
    """Features of observations, and perceptrons on them.

    Features are those of an encoder, which leaves numbers as they are, or of a module of the user's own; see
    `OwnModule`. The module stays in ``eval()`` mode: without dropout, and with the statistics that it was made with.

    With the encoders simba and simba_v2 numbers are whitened, and residual networks take the place of perceptrons.

    Args:
        obs: `ObsRows.state` of the observations.
        actions: `Actions.state` of the policy's draws.
        encoder: network for images, see `fastrl.networks.encoders.Encoder`; or of numbers.
        memory: a recurrent layer, whose outputs take the place of the features.
        memory_size: number of its outputs.
        path: import path of a class of the user's, which takes the place of the encoder; None: there is none.
        options: further arguments of the class.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        num_features: inputs of the perceptrons that come from observations.
        simba: the encoder, if it is one of SimBa's; else None.
        is_perceptron: it is perceptrons of numbers as they are, without layer normalisation.
    """

    num_features: int
    body: Ensemble | Simba | SimbaV2

    def __init__(
        self,
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        encoder: EncoderKind | SimbaKind,
        memory: MemoryKind,
        memory_size: int,
        path: str | None,
        options: Mapping[str, Any],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.simba: SimbaKind | None = None
        self.obs_rows = ObsRows.from_state(obs)
        self.own: OwnModule | None = None
        if path is not None:
            self.own = OwnModule(path, options, obs, actions, generator=generator).eval()
            self.num_features = self.own.feature_size()
            self.has_encoder = True
        else:
            if encoder == "simba" or encoder == "simba_v2":
                self.simba, encoder = encoder, "mlp"
            self.decoder = Decoder(self.obs_rows, self.simba is not None, flat=encoder == "mlp")
            self.encoder = Encoder(self.decoder, encoder, (), "relu", generator=generator)
            self.num_features = self.encoder.size
            self.has_encoder = any(True for _ in self.encoder.parameters())
        self.memory: Memory | None = None
        if memory != "none":
            self.memory = Memory(memory, self.num_features, memory_size, generator)
            self.num_features, self.state_size = memory_size, self.memory.state_size
            self.has_encoder = True

    def _make_body(
        self,
        count: int,
        sizes: Sequence[int],
        generator: torch.Generator | None,
        *,
        layer_norm: bool = False,
        batch_renorm: bool = False,
        heads: int = 1,
    ) -> Ensemble | Simba | SimbaV2:
        """Perceptrons, or what the encoder has in their place."""
        self.is_perceptron = not self.has_encoder and not layer_norm and self.simba is None
        if self.simba == "simba":
            return Simba(count, sizes, generator=generator)
        if self.simba == "simba_v2":
            return SimbaV2(count, sizes, heads=heads, generator=generator)
        return Ensemble(count, sizes, layer_norm=layer_norm, batch_renorm=batch_renorm, generator=generator)

    def features(self, rows: Tensor | ObsSequences) -> Tensor:
        """Inputs of the perceptrons, float32 [B, num_features], from observations [B, size]."""
        if isinstance(rows, ObsSequences):
            assert self.memory is not None
            return self.memory.along(self._encode, rows)
        return self._encode(rows)

    def _encode(self, rows: Tensor) -> Tensor:
        features: Tensor
        features = self.encoder(*self.decoder(rows)) if self.own is None else self.own(rows)
        return features

    def feature_parameters(self) -> list[Tensor]:
        """Parameters of the encoder, or of the user's module, and of the memory."""
        return [each for name, each in self.named_parameters() if not name.startswith("body.")]


class OffPolicyActor(_Encoded, ActingNetwork):
    """A policy without a value function.

    Args:
        obs, actions, encoder, memory, memory_size, path, options, generator: see `_Encoded`.
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
        encoder: EncoderKind | SimbaKind = "auto",
        hidden: Sequence[int] = (256, 256),
        noise: float = 0.0,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        path: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs, actions, encoder, memory, memory_size, path, options, generator)
        self.head: PolicyHead = head
        self.noise = noise
        self.obs_dim, self.num_actions = self.obs_rows.size, Actions.from_state(actions).size
        heads = 2 if head == "gaussian" else 1
        sizes = [self.num_features, *hidden, self.num_actions * heads]
        self.body = self._make_body(1, sizes, generator, batch_renorm=self.batch_renorm, heads=heads)

    def forward(self, rows: Tensor | ObsSequences) -> Tensor:
        """Outputs float32 [B, outputs] at observations [B, obs_dim]."""
        outputs: Tensor = self.body(self.features(rows))[0]
        if self.simba is not None and self.head == "gaussian":
            return with_bounded_deviations(outputs)
        return outputs

    outputs = forward

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.memory is None or states is None:
            return super().step(rows, states)
        features, after = self.memory.step(self._encode(rows), states)
        return self.body(features)[0], None, after

    def state(self) -> dict[str, Any]:
        """See `ActingNetwork.state`; with the ``action_space``."""
        return {**super().state(), "action_space": self._architecture["actions"]}

    def actor_architecture(self) -> dict[str, Any] | None:
        if not self.is_perceptron or self.obs_rows.dtype != np.float32 or self.obs_dim > MAX_OBS_DIM:
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
        if self.actor_architecture() is None or not isinstance(self.body, Ensemble):
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

    Those of the encoder simba_v2 are means of categorical distributions over atoms.

    Args:
        obs, actions, encoder, memory, memory_size, path, options, hidden, generator: as of `OffPolicyActor`.
        count: E, number of perceptrons.
        num_inputs: numbers of a continuous action, which are inputs beside the features; 0 where all actions have
            outputs.
        num_outputs: number of discrete actions; 1 where the action is an input.
        layer_norm, batch_renorm: of the perceptrons, see `Ensemble`.

    Attributes:
        atoms: float32 [K], the values that distributions are over; None: there are no distributions.

    Raises:
        ValueError: simba_v2 with discrete actions.
    """

    atoms: Tensor | None

    def __init__(
        self,
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        count: int,
        num_inputs: int,
        num_outputs: int,
        encoder: EncoderKind | SimbaKind = "auto",
        hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        batch_renorm: bool = False,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        path: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs, actions, encoder, memory, memory_size, path, options, generator)
        self.num_inputs = num_inputs
        atoms = None
        if self.simba == "simba_v2":
            if not num_inputs:
                raise ValueError("the encoder simba_v2 is for continuous actions: set encoder to simba")
            atoms, num_outputs = torch.linspace(-MAX_RETURN, MAX_RETURN, NUM_ATOMS), NUM_ATOMS
        self.register_buffer("atoms", atoms, persistent=False)
        sizes = [self.num_features + num_inputs, *hidden, num_outputs]
        self.body = self._make_body(count, sizes, generator, layer_norm=layer_norm, batch_renorm=batch_renorm)

    def forward(self, rows: Tensor | ObsSequences, actions: Tensor | None = None) -> Tensor:
        """Values of actions, float32 [E, B]; without actions those of all discrete ones, [E, B, num_outputs].

        Args:
            rows: observations [B, size].
            actions: float32 [B, num_inputs], or discrete ones int64 [B].
        """
        values: Tensor = self.body(self.inputs(rows, actions))
        if self.atoms is not None:
            return values.softmax(-1) @ self.atoms
        return values if actions is None else values_of(values, actions)

    def log_probs(self, rows: Tensor | ObsSequences, actions: Tensor) -> Tensor:
        """Logarithms of the probabilities of all atoms, float32 [E, B, K]; arguments as of `forward`."""
        return torch.log_softmax(self.body(self.inputs(rows, actions)), -1)

    def inputs(self, rows: Tensor | ObsSequences, actions: Tensor | None) -> Tensor:
        """Inputs of the perceptrons, float32 [B, num_features + num_inputs]; arguments as of `forward`."""
        features = self.features(rows)
        return torch.cat([features, actions], 1) if self.num_inputs and actions is not None else features


def values_of(values: Tensor, actions: Tensor) -> Tensor:
    """Values [E, B] of actions, see `Critics.forward`, from what the perceptrons give [E, B, num_outputs]."""
    if actions.is_floating_point():
        return values.squeeze(-1)
    return values.gather(-1, actions.expand(len(values), -1).unsqueeze(-1)).squeeze(-1)
