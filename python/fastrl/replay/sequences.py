"""Sequences of steps, for recurrent learners (Kapturowski et al., "Recurrent experience replay", R2D2, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastrl._native import _replay_samplers
from fastrl.replay.samplers import BatchSampler, Field, seed_bits
from fastrl.replay.storage import Replay

if TYPE_CHECKING:
    from torch import Tensor


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
        action_masks: bool [B, T, num_masked], which actions are allowed at ``obs``, all False after the last one;
            [B, T + 1, num_masked] if the storage has masks of last observations; None: it has no masks.
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
    action_masks: Tensor | None = None


class SequenceSampler(BatchSampler[SequenceBatch]):
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

    _batch_class = SequenceBatch

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
        self._set_up(replay, batch_size, replacement)
        self.length, self.burn_in = length, burn_in
        core = _replay_samplers.Sequences(replay, batch_size, 1, 1.0, seed_bits(seed), length, burn_in)
        self._build(core, pin_memory)

    def _fields(self) -> dict[str, Field]:
        steps = (self.batch_size, self.burn_in + self.length)
        fields = self._stored_fields(steps, (steps[0], steps[1] + 1))
        fields |= {"mask": (steps, np.bool_), "learn": (steps, np.bool_)}
        if self.replay.num_masked:
            masks = (steps[0], steps[1] + self.replay.final_masks, self.replay.num_masked)
            fields["action_masks"] = masks, np.bool_
        return fields
