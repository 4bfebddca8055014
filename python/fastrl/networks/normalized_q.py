"""Values of actions with layer normalisation, and with a memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastrl.envs.rows import ObsRows
from fastrl.networks.encoded import EncodedNetwork
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import Activation, EncoderKind, MemoryKind
from fastrl.networks.perceptron import OutputLayer, initialize
from fastrl.networks.q_network import ActionValues


class NormalizedQ(EncodedNetwork, ActionValues):
    """Values of all actions: an encoder, perhaps a memory, and a linear layer.

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: A.
        encoder: network for images; see `fastrl.networks.encoders.Encoder`.
        hidden: widths of the hidden layers; may be empty.
        activation: after each hidden layer.
        layer_norm: normalise the inputs of the activations of linear layers.
        normalize_obs: whiten numbers that are not of images by running statistics.
        memory: a recurrent layer between the encoder and the last layer.
        memory_size: number of its outputs.
        generator: where the initial weights come from; None: torch's global generator.
    """

    kind = "normalized_q"

    def __init__(
        self,
        obs: Mapping[str, Any],
        num_actions: int,
        *,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        layer_norm: bool = True,
        normalize_obs: bool = False,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_rows, self.num_actions = ObsRows.from_state(obs), num_actions
        self.obs_dim = self.obs_rows.size
        self.decoder = Decoder(self.obs_rows, normalize_obs, flat=encoder == "mlp")
        self.encoder = Encoder(
            self.decoder, encoder, hidden, activation, layer_norm=layer_norm, generator=generator
        )
        features = self._make_memory(memory, self.encoder.size, memory_size, generator)
        self.last = OutputLayer(features, num_actions)
        initialize(self.last, 1.0, generator)

    def estimates(self, obs: Tensor) -> Tensor:
        values: Tensor = self.last(self.encoder(*self.decoder(obs)))
        return values

    def sequences(self, rows: Tensor, batch_sizes: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [P, A] along sequences of steps, the highest of each step [P], and the states after the last steps;
        arguments as of `fastrl.networks.memory.Memory.forward`."""
        assert self.memory is not None, "a network with a memory"
        features, after = self.memory(self.encoder(*self.decoder(rows)), batch_sizes, states)
        values: Tensor = self.last(features)
        return values, values.amax(1), after

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.memory is None or states is None:
            return super().step(rows, states)
        features, after = self.memory.step(self.encoder(*self.decoder(rows)), states)
        return self.last(features), None, after

    def acting_layers(self) -> tuple[Encoder, Tensor, Tensor]:
        return self.encoder, self.last.weight, self.last.bias
