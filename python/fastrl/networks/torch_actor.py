"""Actors that PyTorch computes, for networks that have no compiled form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import RowActor, Rows
from fastrl.networks.distributions import choices_of, gaussian_log_probs, mask_logits, sample_actions
from fastrl.networks.parameters import flat_size, read_flat
from fastrl.utils.seeding import normals, uniforms, uniforms_of_parts

if TYPE_CHECKING:
    from fastrl.networks.acting_network import ActingNetwork

# Rows of a forward pass: more would not fit into caches, and images as float32 would take memory without need.
CHUNK = 256
GPU_CHUNK = 4096


class TorchActor(RowActor):
    """Acts for a network, for all rows of a call at once, in ``eval()`` mode.

    Random numbers are those of the rows' streams, as of the compiled actor. Outputs of PyTorch depend on the batch in
    their last bits, so unlike the compiled actor's a row's action may depend on the rows beside it where two actions
    are as good as equally probable.

    Args:
        make_network: makes the network, whose weights are to be loaded.
        actions: `Actions.state` of its draws.

    Attributes:
        network: as made.
        state_size: of its memory.
        values: of a network that ``gives_values`` alone, see `fastrl.networks.compiled_actor.ValuingActor`.

    Raises:
        ValueError: the network cannot be made.
    """

    values: NDArray[np.float32]

    def __init__(self, make_network: Callable[[], ActingNetwork], actions: Mapping[str, Any]) -> None:
        self.network = make_network().eval().requires_grad_(False)
        self._device = torch.device("cpu")
        self.weights_nbytes = 4 * flat_size(self.network)
        self._actions = Actions.from_state(actions)
        self._choices = choices_of(self._actions)
        self.state_size = self.network.state_size
        if self.network.gives_values:
            self.values = np.zeros(0, np.float32)

    def to(self, device: str) -> None:
        """Computes on a device from here on; random numbers and draws stay on the CPU."""
        self._device = torch.device(device)
        self.network.to(self._device)

    def load(self, weights: Buffer) -> None:
        """See `fastrl.networks.compiled_actor.Actor.load`."""
        read_flat(self.network, np.frombuffer(memoryview(weights).cast("B"), np.float32))

    @torch.inference_mode()
    def choose(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """See `RowActor.choose`."""
        outputs = self._step(rows.obs, rows.states)
        if rows.masks is not None:
            outputs = mask_logits(outputs, torch.from_numpy(rows.masks))
        drawn, log_probs = self.draw(outputs, rows.streams, rows.steps, rows.greedy)
        return drawn.numpy(), log_probs.numpy()

    @torch.inference_mode()
    def outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """The network's outputs, float32 [K, outputs], at rows [K, D]; replaces the states [K, state_size]."""
        found: NDArray[np.float32] = self._step(obs, states).numpy()
        return found

    def _step(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        """Outputs for a step of each row, float32 on the CPU; replaces the rows' states, and the values."""
        chunk = CHUNK if self._device.type == "cpu" else GPU_CHUNK
        outputs, values = [], []
        rows = torch.from_numpy(obs if obs.flags.writeable else obs.copy())
        memory = None if states is None else torch.from_numpy(states)
        for first in range(0, max(len(rows), 1), chunk):
            place = slice(first, first + chunk)
            before = None if memory is None else memory[place].to(self._device)
            found, value, after = self.network.step(rows[place].to(self._device), before)
            outputs.append(found.float().cpu())
            if value is not None:
                values.append(value.float().cpu())
            if memory is not None and after is not None:
                memory[place] = after
        if values:
            self.values = torch.cat(values).numpy()
        return torch.cat(outputs)

    def draw(
        self, outputs: Tensor, streams: NDArray[np.uint64], steps: NDArray[np.int64], greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Draws and their log-probabilities."""
        if self.network.log_std is not None:
            log_std = self.network.log_std.cpu()
            draws = outputs
            if not greedy:
                noise = torch.from_numpy(normals(streams, steps, self._actions.size))
                draws = outputs + log_std.exp() * noise
            return draws, gaussian_log_probs(outputs, log_std, draws)
        if self._choices is not None:
            if greedy:
                chosen = self._choices.split(outputs).argmax(-1)
                return chosen, self._choices.log_probs(outputs, chosen)
            uniform = torch.from_numpy(uniforms_of_parts(streams, steps, self._choices.num_choices))
            return self._choices.sample(outputs, uniform)
        if greedy:
            chosen = outputs.argmax(-1, keepdim=True)
            return chosen.squeeze(-1), torch.log_softmax(outputs, -1).gather(-1, chosen).squeeze(-1)
        return sample_actions(outputs, torch.from_numpy(uniforms(streams, steps)[:, None]))
