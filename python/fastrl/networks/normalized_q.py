"""Values of actions with layer normalisation, and with a memory."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from fastrl.envs.rows import ObsRows
from fastrl.networks.compiled_actor import MAX_OBS_DIM
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import Activation, EncoderKind, MemoryKind
from fastrl.networks.memory import Memory
from fastrl.networks.perceptron import Linear, OutputLayer, initialize
from fastrl.networks.q_network import ActionValues


class NormalizedQ(ActionValues):
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
        features = self.encoder.size
        self.memory: Memory | None = None
        if memory != "none":
            self.memory = Memory(memory, features, memory_size, generator)
            features, self.state_size = memory_size, self.memory.state_size
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

    def update_statistics(self, rows: Tensor) -> None:
        self.decoder.update_statistics(rows)

    def actor_architecture(self) -> dict[str, Any] | None:
        built = self._architecture
        is_perceptron = not self.decoder.images and built["encoder"] != "rows"
        if not is_perceptron or built["layer_norm"] or self.obs_dim > MAX_OBS_DIM:
            return None
        return {
            "kind": "discrete",
            "obs_dim": self.obs_dim,
            "outputs": self.num_actions,
            "hidden": built["hidden"],
            "activation": built["activation"],
            "obs_clip": None if self.decoder.norm is None else self.decoder.norm.clip,
            "memory": built["memory"],
            "memory_size": 0 if self.memory is None else self.memory.size,
        }

    @torch.no_grad()
    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        norm = self.decoder.norm
        tensors = [] if norm is None else [norm.mean, norm.scale()]
        for layer in self.encoder.modules():
            if isinstance(layer, Linear):
                tensors += [layer.weight.t(), layer.bias]
        if self.memory is not None:
            tensors += self.memory.actor_tensors()
        return [*tensors, self.last.weight.t(), self.last.bias]

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.state() == self.obs_rows.state()

    @classmethod
    def without_weights(cls, architecture: Mapping[str, Any], **options: Any) -> Self:
        # Orthogonal weights take a second for images.
        with torch.device("meta"):
            network = cls(**architecture, **options)
        return network.to_empty(device="cpu")
