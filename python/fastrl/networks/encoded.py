"""Base of networks for observations of any space: an encoder, perhaps a memory, and linear layers."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from fastrl.networks.acting_network import ActingNetwork
from fastrl.networks.compiled_actor import MAX_OBS_DIM, MAX_TABLE_ROWS
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import MemoryKind
from fastrl.networks.memory import Memory
from fastrl.networks.perceptron import Linear


class EncodedNetwork(ActingNetwork):
    """Observations, an encoder, perhaps a memory, and a linear layer that gives the outputs.

    Attributes:
        decoder: takes their rows apart.
        memory: between the encoder and the last layer; None: there is none.
    """

    decoder: Decoder
    memory: Memory | None

    def _make_memory(
        self, kind: MemoryKind, features: int, size: int, generator: torch.Generator | None
    ) -> int:
        """Makes the memory, if there is one; returns how many numbers the last layer gets."""
        self.memory = None
        if kind == "none":
            return features
        self.memory = Memory(kind, features, size, generator)
        self.state_size = self.memory.state_size
        return size

    def acting_layers(self) -> tuple[Encoder, Tensor, Tensor]:
        """The encoder before the outputs, and the weight and bias of the last layer, as a compiled actor has them."""
        raise NotImplementedError

    def update_statistics(self, rows: Tensor) -> None:
        self.decoder.update_statistics(rows)

    def _pooling(self) -> tuple[int, int, int] | None:
        """Number of tables that the encoder pools, their rows and width, as compiled networks take them; None: they do
        not."""
        if self.memory is not None or self._architecture.get("layer_norm") or self.obs_dim > MAX_OBS_DIM:
            return None
        table = self.acting_layers()[0].pooling
        return None if table is None or table[0] > MAX_TABLE_ROWS else (1, *table)

    def actor_architecture(self) -> dict[str, Any] | None:
        built, pooling = self._architecture, self._pooling()
        is_perceptron = not self.decoder.images and built["encoder"] != "rows"
        if not (is_perceptron or pooling) or self.obs_dim > MAX_OBS_DIM:
            return None
        architecture = {
            "kind": "discrete" if self.log_std is None else "gaussian",
            "obs_dim": self.obs_dim,
            "outputs": self.num_actions,
            "hidden": built["hidden"],
            "activation": built.get("activation", "relu"),
            "layer_norm": built.get("layer_norm", False),
            "obs_clip": None if self.decoder.norm is None else self.decoder.norm.clip,
            "memory": built["memory"],
            "memory_size": 0 if self.memory is None else self.memory.size,
        }
        return architecture if pooling is None else {**architecture, "pooling": pooling}

    @torch.no_grad()
    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        norm = self.decoder.norm
        tensors = [] if norm is None else [norm.mean, norm.scale()]
        encoder, weight, bias = self.acting_layers()
        if self._architecture["encoder"] == "rows":
            tensors += [*encoder.parameters(), weight, bias]
            return tensors if self.log_std is None else [*tensors, self.log_std]
        for layer in encoder.modules():
            if isinstance(layer, nn.LayerNorm):
                tensors += [layer.weight, layer.bias]
            elif isinstance(layer, Linear):
                tensors += [layer.weight.t(), layer.bias]
        if self.memory is not None:
            tensors += self.memory.actor_tensors()
        tensors += [weight.t(), bias]
        return tensors if self.log_std is None else [*tensors, self.log_std]

    @classmethod
    def without_weights(cls, architecture: Mapping[str, Any], **options: Any) -> Self:
        # Orthogonal weights take a second for images.
        with torch.device("meta"):
            network = cls(**architecture, **options)
        return network.to_empty(device="cpu")
