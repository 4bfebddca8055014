"""A policy and a value function for observations of any space."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import PolicyNet
from fastrl.networks.distributions import log_std_parameter
from fastrl.networks.encoded import EncodedNetwork
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import Activation, EncoderKind, MemoryKind
from fastrl.networks.perceptron import OutputLayer, initialize

# Most rows of images in one pass through the encoders; more are split into chunks. For gradients each chunk is computed
# twice, a third more work: between the passes forward and back only rows and features are kept.
PASS_ROWS = {"cpu": 512, "cuda": 8192}


class EncodedPolicy(EncodedNetwork, PolicyNet):
    """A policy and a value function: encoders, and a linear layer each.

    The last layers' weights are orthogonal with gain 0.01 (policy) and 1 (value), their biases zero (Huang et al., "The
    37 Implementation Details of Proximal Policy Optimization", 2022, detail 2).

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: see `ActingNetwork`.
        encoder: network for images; see `Encoder`.
        hidden: widths of the hidden layers; may be empty.
        activation: after each hidden layer.
        shared_trunk: policy and value share the encoder, and differ in their last layers alone.
        layer_norm: normalise the inputs of the activations of linear layers.
        dropout: share of linear layers' outputs that are set to zero while learning.
        normalize_obs: whiten numbers that are not of images by the running statistics in ``obs_norm``.
        memory: a recurrent layer between the shared encoder and the last layers.
        memory_size: number of its outputs.
        continuous: actions are draws from a Gaussian.
        initial_log_std: of the Gaussian.
        generator: where the initial weights come from; None: torch's global generator.
    """

    kind = "encoded"

    def __init__(
        self,
        obs: Mapping[str, Any],
        num_actions: int,
        *,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        shared_trunk: bool = True,
        layer_norm: bool = False,
        dropout: float = 0.0,
        normalize_obs: bool = False,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        continuous: bool = False,
        initial_log_std: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if memory != "none" and not shared_trunk:
            raise ValueError(
                "policy and value of a network with a memory share it: shared_trunk cannot be false"
            )
        self.obs_rows = ObsRows.from_state(obs)
        self.obs_dim, self.num_actions = self.obs_rows.size, num_actions
        self.has_noise = dropout > 0
        self.gives_values = shared_trunk and memory == "none"
        self.decoder = Decoder(self.obs_rows, normalize_obs, flat=encoder == "mlp")

        def trunk() -> Encoder:
            return Encoder(
                self.decoder,
                encoder,
                hidden,
                activation,
                layer_norm=layer_norm,
                dropout=dropout,
                generator=generator,
            )

        self.actor_trunk = trunk()
        self.critic_trunk = None if shared_trunk else trunk()
        features = self._make_memory(memory, self.actor_trunk.size, memory_size, generator)
        self.actor = OutputLayer(features, num_actions)
        self.critic = OutputLayer(features, 1)
        initialize(self.actor, 0.01, generator)
        initialize(self.critic, 1.0, generator)
        self.log_std = log_std_parameter(num_actions, initial_log_std) if continuous else None

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        features, of_value = self._encoded(rows)
        return self.actor(features), self.critic(of_value).squeeze(-1)

    def outputs(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.actor(self.actor_trunk(*self.decoder(rows)))
        return outputs

    def value(self, rows: Tensor) -> Tensor:
        trunk = self.actor_trunk if self.critic_trunk is None else self.critic_trunk
        values: Tensor = self.critic(trunk(*self.decoder(rows))).squeeze(-1)
        return values

    def sequences(self, rows: Tensor, batch_sizes: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.memory is None:
            return super().sequences(rows, batch_sizes, states)
        features, after = self.memory(self._encoded(rows)[0], batch_sizes, states)
        return self.actor(features), self.critic(features).squeeze(-1), after

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.memory is None or states is None:
            return super().step(rows, states)
        features, after = self.memory.step(self.actor_trunk(*self.decoder(rows)), states)
        return self.actor(features), None, after

    def _encoded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the policy and of the value at observations [B, size], the same tensor where they are shared."""
        most = PASS_ROWS.get(rows.device.type, len(rows))
        if not self.decoder.images or len(rows) <= most:
            return self._encode(rows)
        # Halves, so that a few rows too many do not become a pass of their own.
        chunks = rows.split(most // 2)
        if torch.is_grad_enabled():
            keeps_noise = self.training and self.has_noise
            encode = functools.partial(self._encode_in, self.training)
            found = [
                checkpoint(encode, chunk, use_reentrant=False, preserve_rng_state=keeps_noise)
                for chunk in chunks
            ]
        else:
            found = [self._encode(chunk) for chunk in chunks]
        features, of_value = (torch.cat(each) for each in zip(*found, strict=True))
        return features, features if self.critic_trunk is None else of_value

    def _encode_in(self, training: bool, rows: Tensor) -> tuple[Tensor, Tensor]:
        """`_encode` in the mode of the pass, also where it is computed again after the network has left that mode."""
        now = self.training
        self.train(training)
        try:
            return self._encode(rows)
        finally:
            self.train(now)

    def _encode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        decoded = self.decoder(rows)
        features = self.actor_trunk(*decoded)
        return features, features if self.critic_trunk is None else self.critic_trunk(*decoded)

    def update_architecture(self) -> dict[str, Any] | None:
        pooling = self._pooling()
        if pooling is None or self.has_noise:
            return None
        names = ("hidden", "activation", "shared_trunk")
        architecture = {name: self._architecture[name] for name in names}
        return {"obs_dim": self.obs_dim, "pooling": pooling, **architecture}

    def acting_layers(self) -> tuple[Encoder, Tensor, Tensor]:
        return self.actor_trunk, self.actor.weight, self.actor.bias
