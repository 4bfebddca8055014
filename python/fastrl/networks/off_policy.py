"""Policies and critics of algorithms that learn actor and critics from transitions, for observations of any space."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.envs.rows import ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.bounded_actor import BoundedActor
from fastrl.networks.compiled_actor import MAX_OBS_DIM, Actor, ActorSpec, MlpActor, with_weights
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.ensemble import Ensemble
from fastrl.networks.kinds import EncoderKind
from fastrl.networks.own_network import OwnModule, own_path
from fastrl.networks.parameters import SavedNetwork, flat_size, write_flat
from fastrl.networks.policy_network import check_encoded_size
from fastrl.networks.torch_actor import DrawingActor, NetworkActor

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

    @classmethod
    def check_size(cls, state: Mapping[str, Any]) -> None:
        """See `SavedNetwork.check_size`. The size of a module of the user's is decided by code that only trusted files
        name."""
        if own_path(state) is None:
            check_encoded_size(cls, state)


class OffPolicyActor(_Encoded):
    """A policy without a value function.

    Args:
        obs, actions, encoder, path, options, generator: see `_Encoded`.
        head: what the outputs mean.
        hidden: widths of the hidden layers; may be empty.
        noise: deviation of the noise that a deterministic policy explores with.

    Attributes:
        num_actions: numbers of a continuous action, or number of discrete ones.
    """

    kind = "off_policy_actor"
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
        self._architecture = {
            "obs": dict(obs),
            "actions": dict(actions),
            "head": head,
            "encoder": encoder,
            "hidden": list(hidden),
            "noise": noise,
            "path": path,
            "options": dict(options),
        }
        self.head: PolicyHead = head
        self.num_actions = Actions.from_state(actions).size
        outputs = self.num_actions * (2 if head == "gaussian" else 1)
        self.body = Ensemble(1, [self.num_features, *hidden, outputs], generator=generator)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs float32 [B, outputs] at observations [B, size]."""
        outputs: Tensor = self.body(self.features(rows))[0]
        return outputs

    def state(self) -> dict[str, Any]:
        """See `SavedNetwork.state`; with the ``kind`` and the ``action_space``."""
        return {**super().state(), "kind": self.kind, "action_space": self._architecture["actions"]}

    def actor_spec(self) -> ActorSpec:
        """Makes an actor: compiled where it can be, else PyTorch's."""
        built = self._architecture
        make_network: functools.partial[Any] = functools.partial(_TorchOutputs, built)
        is_compiled = not self.has_encoder and self.obs_rows.dtype == np.float32
        if is_compiled and self.obs_rows.size <= MAX_OBS_DIM:
            architecture = {
                "kind": "discrete",
                "obs_dim": self.obs_rows.size,
                "outputs": self.body.sizes[-1],
                "hidden": built["hidden"],
                "activation": "relu",
                "obs_clip": None,
            }
            make_network = functools.partial(MlpActor, architecture)
            if self.head == "categorical":
                return make_network
        if self.head == "categorical":
            return functools.partial(_TorchCategorical, built)
        return functools.partial(BoundedActor, self.head, self.num_actions, make_network, built["noise"])

    @property
    def actor_nbytes(self) -> int:
        """Size of what `actor_weights` writes, bytes."""
        return 4 * ((self.head != "categorical") + flat_size(self))

    def actor_weights(self, out: NDArray[np.float32], *, uniform: bool = False) -> None:
        """Writes what its actor's ``load`` reads.

        Args:
            out: float32 [``actor_nbytes`` / 4].
            uniform: continuous actions are to be uniform.

        Raises:
            ValueError: ``out`` is not such an array.
        """
        first = int(self.head != "categorical")
        write_flat(self, out[first:])
        out[:first] = uniform

    def loaded_actor(self) -> Actor:
        """An actor with the weights as they are now."""
        weights = np.zeros(self.actor_nbytes // 4, np.float32)
        self.actor_weights(weights)
        return with_weights(self.actor_spec(), weights)


class Critics(_Encoded):
    """Values of actions, each estimated by several perceptrons, which share an encoder of images.

    Args:
        obs, actions, encoder, path, options, hidden, generator: as of `OffPolicyActor`.
        count: E, number of perceptrons.
        num_inputs: numbers of a continuous action, which are inputs beside the features; 0 where all actions have
            outputs.
        num_outputs: number of discrete actions; 1 where the action is an input.
        layer_norm: normalise the inputs of the activations of the perceptrons.
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
        path: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs, actions, encoder, path, options, generator)
        self.num_inputs = num_inputs
        sizes = [self.num_features + num_inputs, *hidden, num_outputs]
        self.body = Ensemble(count, sizes, layer_norm=layer_norm, generator=generator)

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


def policy_for(policy: Mapping[str, Any]) -> OffPolicyActor:
    """The network of a policy's saved state.

    Raises:
        ValueError: weights that do not fit the architecture, or are not finite; another kind.
    """
    if policy.get("kind") != OffPolicyActor.kind:
        raise ValueError(f"the policy's network should be {OffPolicyActor.kind}, got {policy.get('kind')!r}")
    return OffPolicyActor.from_state(policy)


class _TorchOutputs(NetworkActor[OffPolicyActor]):
    """Outputs of a policy that PyTorch computes."""

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__(OffPolicyActor(**architecture, generator=torch.Generator()))

    @torch.inference_mode()
    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Outputs float32 [K, outputs] at rows [K, D]."""
        found: NDArray[np.float32] = self._in_chunks(obs).numpy()
        return found


class _TorchCategorical(DrawingActor[OffPolicyActor]):
    """Chooses discrete actions by a policy that PyTorch computes."""

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        network = OffPolicyActor(**architecture, generator=torch.Generator())
        super().__init__(network, architecture["actions"])

    def _outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        return self._in_chunks(obs)
