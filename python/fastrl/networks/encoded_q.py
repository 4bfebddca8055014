"""Networks that estimate the value of each action from rows of any observations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.encoders import Decoder, Encoder, HiddenLayers
from fastrl.networks.kinds import EncoderKind
from fastrl.networks.own_network import OwnModule
from fastrl.networks.perceptron import Linear, initialize
from fastrl.networks.q_network import ActionValues, NoisyLinear


class EncodedQ(ActionValues):
    """Values of all actions from an encoder's features, plain or dueling (see `QNetwork`).

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: A.
        encoder: network for images; see `fastrl.networks.encoders.Encoder`.
        hidden: widths of the hidden layers after it; may be empty. A dueling network has the last one twice.
        dueling, noisy, noisy_sigma, quantiles: as of `QNetwork`; the layers after the encoder are noisy.
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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_rows, self.num_actions = ObsRows.from_state(obs), num_actions
        self.num_quantiles = quantiles
        self.obs_dim = self.obs_rows.size
        self.decoder = Decoder(self.obs_rows, flat=encoder == "mlp")
        shared, head_widths = (hidden[:-1], hidden[-1:]) if dueling or noisy else (hidden, ())
        self.encoder = Encoder(self.decoder, encoder, shared, "relu", generator=generator)

        def branch(outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            size = self.encoder.size
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

    def estimates(self, obs: Tensor) -> Tensor:
        features = self.encoder(*self.decoder(obs))
        return self._combined(self.advantage(features), None if self.value is None else self.value(features))

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.state() == self.obs_rows.state()


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
        self.obs_dim, self.num_actions = self.own.obs_rows.size, self.own.actions.size
        self.own.check_outputs(q_values=(self.num_actions,))

    def estimates(self, obs: Tensor) -> Tensor:
        values: Tensor = self.own(obs)
        return values

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.state() == self.own.obs_rows.state()
