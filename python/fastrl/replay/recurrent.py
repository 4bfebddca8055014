"""Transitions along sequences, for networks with a memory (Kapturowski et al., "Recurrent Experience Replay in
Distributed Reinforcement Learning", R2D2, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.replay.samplers import Batch, UniformSampler, seed_bits
from fastrl.replay.sequences import SequenceSampler
from fastrl.replay.storage import Replay

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike
    from torch import Tensor
    from torch.nn.utils.rnn import PackedSequence


def state_fields(state_size: int) -> Mapping[str, tuple[DTypeLike, tuple[int, ...]]]:
    """Extra fields of a `Replay` that keeps states of an actor's memory: ``state`` before a step, zeros unless
    ``has_state``."""
    return {"state": (np.float32, (state_size,)), "has_state": (np.bool_, ())}


@dataclass(frozen=True)
class ObsSequences:
    """Observations of S sequences of steps, and B of these that are asked for. It takes the place of rows [B, size]:
    indices, ``to`` and ``flatten`` are those of the B.

    Attributes:
        states: float32 [S, state_size], of the memory before the first steps.
        burn_in: rows of first steps that only bring the memory up to date; None: there are none.
        burnt: int64 [W], the sequences that have such steps, in the order of ``burn_in``.
        steps: rows of the other steps, and of the observation that follows the last one.
        places: int64 [B], the observations that are asked for, in ``steps.data``.
    """

    states: Tensor
    burn_in: PackedSequence | None
    burnt: Tensor
    steps: PackedSequence
    places: Tensor

    @classmethod
    def of_steps(cls, rows: Tensor, states: Tensor) -> ObsSequences:
        """A step [B, size] of each of B sequences, from their states."""
        import torch
        from torch.nn.utils.rnn import PackedSequence

        order = torch.arange(len(rows))
        return cls(
            states, None, order[:0], PackedSequence(rows, torch.tensor([len(rows)]), order, order), order
        )

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> ObsSequences:
        return replace(self, places=self.places[rows])

    def to(self, device: torch.device, non_blocking: bool = False) -> ObsSequences:
        """A copy on a device."""
        burn_in = None if self.burn_in is None else self.burn_in.to(device)  # type: ignore[arg-type]
        others = (
            each.to(device, non_blocking=non_blocking) for each in (self.states, self.burnt, self.places)
        )
        states, burnt, places = others
        return ObsSequences(states, burn_in, burnt, self.steps.to(device), places)  # type: ignore[arg-type]

    def flatten(self, start_dim: int) -> ObsSequences:
        """The same: rows are flat."""
        return self


class RecurrentSampler(UniformSampler):
    """Draws sequences as `SequenceSampler` does, and gives their steps as the transitions of a `Batch`, whose ``obs``
    and ``next_obs`` are `ObsSequences`.

    The step that is drawn is the first, the second, ... of those that are learned from with equal probability; near the
    start of an episode they begin with its first one. The steps before them are the burn-in. A sequence starts with its
    first step that has a stored state; where the replay has none of it any more, the memory starts from zeros.

    Args:
        replay: with the fields of `state_fields`.
        batch_size: transitions; sequences are as many as have so many if none is cut short.
        length: steps of a sequence that are learned from, at most.
        burn_in: steps before them, at most; both together at most 256.
        n_step, gamma, seed: as of `UniformSampler`; rewards are summed within the sequence.

    Raises:
        ValueError, TypeError: arguments that make no sense.
    """

    def __init__(
        self,
        replay: Replay,
        batch_size: int,
        *,
        length: int,
        burn_in: int,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
    ) -> None:
        import torch

        self._set_up(replay, batch_size, True)
        self._length, self._burn_in, self._n_step, self._gamma = length, burn_in, n_step, gamma
        before, size = burn_in + length - 1, -(-batch_size // length)
        self._sequences = SequenceSampler(
            replay, size, length=length, burn_in=before, seed=seed, pin_memory=False
        )
        # Draws how many of the steps that are learned from lie before the one that is drawn.
        self._offsets = torch.Generator().manual_seed(seed_bits(seed))

    def sample(self) -> Batch:
        """Draws a batch of new tensors.

        Raises:
            ValueError: nothing is stored yet.
        """
        import torch

        drawn = self._sequences.sample()
        number, at = (torch.arange(size) for size in drawn.mask.shape)
        offsets = torch.randint(self._length, (len(number),), generator=self._offsets)
        begins = ((drawn.mask & ~drawn.learn).sum(1) - offsets).clamp(min=0)
        first = (begins - self._burn_in).clamp(min=0)
        is_known = drawn.extra["has_state"] & drawn.mask & (at >= first.unsqueeze(1))
        first = torch.where(is_known.any(1), is_known.int().argmax(1), first)
        begins = torch.maximum(first, begins)
        ends = torch.minimum(begins + self._length, drawn.mask.sum(1))
        burnt = (begins > first).nonzero().squeeze(1)
        burn_in = _packed(drawn.obs[burnt], first[burnt], begins[burnt]) if len(burnt) else None
        # The observation after the last step, too.
        steps = _packed(drawn.obs, begins, ends + 1)
        states = drawn.extra["state"][number, first]
        is_learned = (at >= begins.unsqueeze(1)) & (at < ends.unsqueeze(1))
        sequence, step = is_learned.nonzero(as_tuple=True)
        summed = (ends[sequence] - step).clamp(max=self._n_step)
        last = step + summed - 1
        offset, places = step - begins[sequence], _places(steps)

        def obs_at(offset: Tensor) -> Any:
            return ObsSequences(states, burn_in, burnt, steps, places[sequence, offset])

        rewards = torch.zeros(len(step))
        for i in range(self._n_step):
            reward = drawn.rewards[sequence, (step + i).clamp(max=last)]
            rewards += self._gamma**i * reward * (i < summed)
        terminated, masks = drawn.terminated[sequence, last], drawn.action_masks
        return Batch(
            obs=obs_at(offset),
            next_obs=obs_at(offset + summed),
            actions=drawn.actions[sequence, step],
            rewards=rewards,
            discounts=self._gamma**summed * ~terminated,
            terminated=terminated,
            truncated=drawn.truncated[sequence, last],
            indices=drawn.indices[sequence],
            weights=torch.ones(len(step)),
            extra={
                name: values[sequence, step]
                for name, values in drawn.extra.items()
                if name not in state_fields(0)
            },
            masks=None if masks is None else masks[sequence, step],
            next_masks=masks[sequence, step + summed]
            if masks is not None and self.replay.final_masks
            else None,
        )

    def state_dict(self) -> dict[str, Any]:
        return {**self._sequences.state_dict(), "offsets": self._offsets.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sequences.load_state_dict(state)
        self._offsets.set_state(state["offsets"])


def _packed(obs: Tensor, begins: Tensor, ends: Tensor) -> PackedSequence:
    """Rows of the observations from ``begins`` to before ``ends`` of each sequence [B, T, ...]."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    lengths = ends - begins
    at = (begins.unsqueeze(1) + torch.arange(int(lengths.max()))).clamp(max=obs.shape[1] - 1)
    rows = obs.flatten(2)[torch.arange(len(obs)).unsqueeze(1), at]
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def _places(steps: PackedSequence) -> Tensor:
    """The place of each step of each sequence in the packed rows, int64 [S, L]."""
    import torch
    from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

    numbers = PackedSequence(torch.arange(len(steps.data)), *steps[1:])
    return pad_packed_sequence(numbers, batch_first=True)[0]
