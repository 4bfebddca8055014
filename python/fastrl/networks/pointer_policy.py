"""A policy for tables of things, such as hosts, on each of which there are the same kinds of actions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import PolicyNet
from fastrl.networks.compiled_actor import MAX_OBS_DIM, MAX_TABLE_ROWS
from fastrl.networks.encoders import HiddenLayers
from fastrl.networks.kinds import Activation
from fastrl.networks.perceptron import Linear, OutputLayer, initialize

# Features of a row.
_FEATURES = 64


class PointerPolicy(PolicyNet):
    """A policy and a value function for tables whose rows are things: observations [rows, n], a row of zeros is empty.

    The first ``num_actions % rows`` actions are on nothing in particular; after them stand those on the first thing,
    those on the second, and so on. Each row goes through two layers. The maximum and the mean of the features of rows
    that are not empty go through the hidden layers, which gives the context. The logits of the actions on a thing come
    from the features of its row beside the context, by the same weights for all (Vinyals et al., "Pointer Networks",
    2015); those of the other actions from the context. So no weight depends on how many rows there are, nor any
    output on their order but through the place of the actions. The value function has layers of its own.

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: see `ActingNetwork`.
        hidden: widths of the hidden layers; may be empty.
        activation: after each layer.
        generator: where the initial weights come from; None: torch's global generator.

    Raises:
        ValueError: observations that are no table, or too few actions for its rows.
    """

    kind = "pointer"

    def __init__(
        self,
        obs: Mapping[str, Any],
        num_actions: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_rows = ObsRows.from_state(obs)
        self.obs_dim, self.num_actions, self.log_std = self.obs_rows.size, num_actions, None
        shapes = [part.shape for part in self.obs_rows.parts if part.kind != "image"]
        if len(self.obs_rows.parts) != 1 or [len(shape) for shape in shapes] != [2] or shapes[0][0] < 2:
            raise ValueError(
                "the encoder pointer is for one table (numbers of two dimensions, at least two rows), the observations"
                " are another: set encoder to auto"
            )
        self.shape = rows, width = shapes[0]
        on_each, self.on_none = divmod(num_actions, rows)
        if not on_each:
            raise ValueError(
                f"the encoder pointer needs an action for each row, there are {num_actions} for {rows} rows: set"
                " encoder to rows or auto"
            )

        def layers(*sizes: int) -> HiddenLayers:
            return HiddenLayers(sizes, activation, layer_norm=False, dropout=0.0, generator=generator)

        self.actor_rows, self.critic_rows = (layers(width, _FEATURES, _FEATURES) for _ in range(2))
        self.actor_context, self.critic_context = (layers(2 * _FEATURES, *hidden) for _ in range(2))
        context = self.actor_context.size
        # A linear layer of a row's features beside the context, in two parts: that of the context is computed once.
        self.of_row, self.of_context = Linear(_FEATURES, _FEATURES), Linear(context, _FEATURES, bias=False)
        for part in (self.of_row, self.of_context):
            initialize(part, 1.0, generator)
        self.activation = nn.Tanh() if activation == "tanh" else nn.ReLU()
        self.on_row = OutputLayer(_FEATURES, on_each)
        self.on_nothing = OutputLayer(context, self.on_none) if self.on_none else None
        self.critic = OutputLayer(context, 1)
        for layer, gain in ((self.on_row, 0.01), (self.on_nothing, 0.01), (self.critic, 1.0)):
            if layer is not None:
                initialize(layer, gain, generator)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.outputs(rows), self.value(rows)

    def outputs(self, rows: Tensor) -> Tensor:
        features, context = self._encode(rows, self.actor_rows, self.actor_context)
        pointer = self.activation(self.of_row(features) + self.of_context(context).unsqueeze(1))
        on_things = self.on_row(pointer).flatten(1)
        return on_things if self.on_nothing is None else torch.cat([self.on_nothing(context), on_things], 1)

    def value(self, rows: Tensor) -> Tensor:
        values: Tensor = self.critic(self._encode(rows, self.critic_rows, self.critic_context)[1]).squeeze(-1)
        return values

    def _encode(self, rows: Tensor, of_rows: nn.Module, of_context: nn.Module) -> tuple[Tensor, Tensor]:
        """Features [B, rows, n] and the context [B, m] of observations [B, obs_dim]."""
        table = rows.unflatten(1, self.shape)
        is_there = (table != 0).any(2, keepdim=True)
        features = of_rows(table)
        greatest = features.masked_fill(~is_there, -torch.inf).amax(1).masked_fill(~is_there.any(1), 0.0)
        mean = (features * is_there).sum(1) / is_there.sum(1).clamp(min=1)
        return features, of_context(torch.cat([greatest, mean], 1))

    def update_architecture(self) -> dict[str, Any] | None:
        rows, widest = self.shape[0], max(self.obs_dim, self.num_actions)
        if rows > MAX_TABLE_ROWS or widest > MAX_OBS_DIM:
            return None
        architecture = {name: self._architecture[name] for name in ("hidden", "activation")}
        return {"obs_dim": self.obs_dim, "table_rows": rows, **architecture}

    def actor_architecture(self) -> dict[str, Any] | None:
        architecture = self.update_architecture()
        if architecture is None:
            return None
        return {"kind": "discrete", "outputs": self.num_actions, **architecture}

    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        return [tensor for name, tensor in self.state_dict().items() if not name.startswith("critic")]
