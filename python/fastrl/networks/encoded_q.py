"""Networks that estimate the value of each action from rows of any observations."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.encoded import EncodedNetwork
from fastrl.networks.encoders import Decoder, Encoder, HiddenLayers
from fastrl.networks.kinds import EncoderKind, MemoryKind
from fastrl.networks.own_network import OwnModule
from fastrl.networks.perceptron import Linear, initialize
from fastrl.networks.q_network import ActionValues, NoisyLinear, mean_values
from fastrl.replay.recurrent import ObsSequences


class EncodedQ(EncodedNetwork, ActionValues):
    """Values of all actions from an encoder's features, plain or dueling (see `QNetwork`).

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: A.
        encoder: network for images; see `fastrl.networks.encoders.Encoder`.
        hidden: widths of the hidden layers after it; may be empty. A dueling network has the last one twice.
        dueling, noisy, noisy_sigma, quantiles: as of `QNetwork`; the layers after the encoder are noisy.
        memory: a recurrent layer after all hidden ones; dueling networks have the last linear layer alone twice then.
        memory_size: number of its outputs.
        generator: where the initial weights come from; None: torch's global generator.
    """

    kind = "encoded_q"

    def __init__(
        self,
        obs: Mapping[str, Any],
        num_actions: int,
        *,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (512,),
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        quantiles: int = 0,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_rows, self.num_actions = ObsRows.from_state(obs), num_actions
        self.num_quantiles = quantiles
        self.obs_dim = self.obs_rows.size
        self.decoder = Decoder(self.obs_rows, flat=encoder == "mlp")
        has_heads = (dueling or noisy) and memory == "none"
        shared, head_widths = (hidden[:-1], hidden[-1:]) if has_heads else (hidden, ())
        self.encoder = Encoder(self.decoder, encoder, shared, "relu", generator=generator)
        features = self._make_memory(memory, self.encoder.size, memory_size, generator)

        def branch(outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            size = features
            for width in head_widths:
                if noisy:
                    layers += [
                        NoisyLinear(size, width, sigma=noisy_sigma, generator=generator),
                        nn.ReLU(),
                    ]
                else:
                    layers.append(
                        HiddenLayers(
                            [size, width], "relu", layer_norm=False, dropout=0.0, generator=generator
                        )
                    )
                size = width
            if noisy:
                return nn.Sequential(
                    *layers, NoisyLinear(size, outputs, sigma=noisy_sigma, generator=generator)
                )
            last = Linear(size, outputs)
            initialize(last, 1.0, generator)
            return nn.Sequential(*layers, last)

        self.advantage = branch(num_actions * max(quantiles, 1))
        self.value = branch(max(quantiles, 1)) if dueling else None
        self._noisy = [module for module in self.modules() if isinstance(module, NoisyLinear)]

    def estimates(self, obs: Tensor | ObsSequences) -> Tensor:
        if isinstance(obs, ObsSequences):
            assert self.memory is not None
            return self._of_features(self.memory.along(self._encode, obs))
        return self._of_features(self._encode(obs))

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.memory is None or states is None:
            return super().step(rows, states)
        features, after = self.memory.step(self._encode(rows), states)
        return mean_values(self._of_features(features)), None, after

    def _encode(self, rows: Tensor) -> Tensor:
        features: Tensor = self.encoder(*self.decoder(rows))
        return features

    def _of_features(self, features: Tensor) -> Tensor:
        return self._combined(self.advantage(features), None if self.value is None else self.value(features))

    def actor_architecture(self) -> dict[str, Any] | None:
        """See `ActingNetwork.actor_architecture`; of networks with a memory, whose last layer is the only one after
        it."""
        return None if self.memory is None else super().actor_architecture()

    def acting_layers(self) -> tuple[Encoder, Tensor, Tensor]:
        return self.encoder, *self._drawn(self.advantage[-1], is_last=True)

    @classmethod
    def without_weights(cls, architecture: Mapping[str, Any], **options: Any) -> Self:
        network = super().without_weights(architecture, **options)
        # No weights have it.
        for layer in network._noisy:
            layer.noise_in.zero_()
            layer.noise_out.zero_()
        return network


class OwnQ(ActionValues):
    """Values of actions that a module of the user's computes; see `fastrl.networks.own_network.OwnModule`.

    Its ``forward`` returns them, float32 [B, A].

    Args:
        path, options, obs, actions, generator: see `fastrl.networks.own_network.OwnModule`.

    Raises:
        ValueError: the module cannot be made, or gives something else; the message says what was expected.
    """

    kind = "own_q"

    def __init__(
        self,
        path: str,
        options: Mapping[str, Any],
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.own = OwnModule(path, options, obs, actions, generator=generator)
        self.obs_rows, self.num_actions = self.own.obs_rows, self.own.actions.size
        self.obs_dim = self.obs_rows.size
        self.own.check_outputs(q_values=(self.num_actions,))

    def estimates(self, obs: Tensor) -> Tensor:
        values: Tensor = self.own(obs)
        return values
