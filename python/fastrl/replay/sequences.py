"""Sequences of steps, for recurrent learners (Kapturowski et al., "Recurrent experience replay", R2D2, 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native import _replay_samplers
from fastrl.replay.samplers import ROTATION, new_tensors, seed_bits
from fastrl.replay.storage import Replay


@dataclass(frozen=True)
class SequenceBatch:
    """B sequences of up to T = burn_in + length steps, each within one episode, in memory that the sampler reuses.

    Attributes:
        obs: [B, T + 1, ...] (or [B, T + 1, stack, ...]), with the observation after the last step, which is the true
            last one where the episode ended; zeros after it.
        actions: [B, T, ...], zeros after the last step.
        rewards: float32 [B, T], zeros after the last step.
        terminated, truncated: bool [B, T]; only the last step of a sequence can be either.
        mask: bool [B, T], True for steps; they come first.
        learn: bool [B, T], True for the steps to learn from; those before them warm up the network's memory.
        indices: int64 [B], identify the first step to learn from.
        extra: the storage's extra fields, [B, T, ...].
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor
    learn: Tensor
    indices: Tensor
    extra: Mapping[str, Tensor]


class SequenceSampler:
    """Draws the first step to learn from with equal probability, and takes the sequence around it.

    The sequence has up to ``burn_in`` steps before it, as many as its episode and the storage have, and up to
    ``length`` steps from it on, fewer where the episode or the stored part of it ends.

    Args:
        replay, batch_size, replacement, seed, pin_memory: as `UniformSampler`.
        length: steps to learn from.
        burn_in: steps before them, 0 to 255.

    Raises:
        ValueError, TypeError: arguments that make no sense.
    """

    def __init__(
        self,
        replay: Replay,
        batch_size: int,
        *,
        length: int,
        burn_in: int = 0,
        replacement: bool = True,
        seed: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        if not isinstance(replay, Replay):
            raise TypeError(f"replay must be a Replay, got {type(replay).__name__}")
        self._core = _replay_samplers.Sequences(replay, batch_size, 1, 1.0, seed_bits(seed), length, burn_in)
        self.replay, self.batch_size, self.replacement = replay, batch_size, replacement
        self.length, self.burn_in = length, burn_in
        pinned = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._sets = [_new_batch(replay, batch_size, burn_in + length, pinned) for _ in range(ROTATION)]
        self._next = 0

    def sample(self) -> SequenceBatch:
        """Draws a batch. Its tensors do not change until two more have been drawn.

        Raises:
            ValueError: nothing is stored yet, or, without replacement, less than a batch.
        """
        arrays, batch = self._sets[self._next]
        self._core.sample(arrays, self.replacement)
        self._next = (self._next + 1) % ROTATION
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator; the storage is saved separately."""
        return {"generator": [str(word) for word in self._core.generator_state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state, so that the same batches follow if the storage is the same."""
        self._core.generator_state = [int(word) for word in state["generator"]]


def _new_batch(
    replay: Replay, size: int, steps: int, pinned: bool
) -> tuple[dict[str, NDArray[Any]], SequenceBatch]:
    dtype = replay.dtype
    stack = (replay.stack,) if replay.stack > 1 else ()
    kinds: dict[str, tuple[tuple[int, ...], Any]] = {
        "obs": ((size, steps + 1, *stack, *dtype["obs"].shape), dtype["obs"].base),
        "actions": ((size, steps, *dtype["action"].shape), dtype["action"].base),
        "rewards": ((size, steps), np.float32),
        **dict.fromkeys(("terminated", "truncated", "mask", "learn"), ((size, steps), np.bool_)),
        "indices": ((size,), np.int64),
        **{name: ((size, steps, *dtype[name].shape), dtype[name].base) for name in replay.extra},
    }
    tensors = new_tensors(kinds, pinned)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    extra = MappingProxyType({name: tensors.pop(name) for name in replay.extra})
    return arrays, SequenceBatch(**tensors, extra=extra)
