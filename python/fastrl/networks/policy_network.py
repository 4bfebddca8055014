"""A policy and a value function for observations of any space."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import PolicyNet
from fastrl.networks.compiled_actor import MAX_OBS_DIM
from fastrl.networks.distributions import log_std_parameter
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import Activation, EncoderKind, MemoryKind
from fastrl.networks.memory import Memory
from fastrl.networks.perceptron import Linear, OutputLayer, initialize

# Most rows of images in one pass through the encoders; more are split into chunks. For gradients each chunk is computed
# twice, a third more work: between the passes forward and back only rows and features are kept.
PASS_ROWS = {"cpu": 512, "cuda": 8192}


class EncodedPolicy(PolicyNet):
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
        self.memory: Memory | None = None
        features = self.actor_trunk.size
        if memory != "none":
            self.memory = Memory(memory, features, memory_size, generator)
            features, self.state_size = memory_size, self.memory.state_size
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

    def update_statistics(self, rows: Tensor) -> None:
        self.decoder.update_statistics(rows)

    def actor_architecture(self) -> dict[str, Any] | None:
        built = self._architecture
        is_perceptron = not self.decoder.images and built["encoder"] != "rows"
        if not is_perceptron or built["layer_norm"] or self.obs_rows.size > MAX_OBS_DIM:
            return None
        return {
            "kind": "discrete" if self.log_std is None else "gaussian",
            "obs_dim": self.obs_rows.size,
            "outputs": self.num_actions,
            "hidden": built["hidden"],
            "activation": built["activation"],
            "obs_clip": None if self.decoder.norm is None else self.decoder.norm.clip,
            "memory": built["memory"],
            "memory_size": 0 if self.memory is None else self.memory.size,
        }

    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        norm = self.decoder.norm
        tensors = [] if norm is None else [norm.mean, norm.scale()]
        layers = [layer for layer in self.actor_trunk.modules() if isinstance(layer, Linear)]
        for layer in layers:
            tensors += [layer.weight.t(), layer.bias]
        if self.memory is not None:
            tensors += self.memory.actor_tensors()
        tensors += [self.actor.weight.t(), self.actor.bias]
        return tensors if self.log_std is None else [*tensors, self.log_std]

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.state() == self.obs_rows.state()

    @classmethod
    def without_weights(cls, architecture: Mapping[str, Any], **options: Any) -> Self:
        # Orthogonal weights take a second for images.
        with torch.device("meta"):
            network = cls(**architecture, **options)
        return network.to_empty(device="cpu")
