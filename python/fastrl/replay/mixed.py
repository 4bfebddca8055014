"""Minibatches of which an exact part comes from a second replay, such as one of demonstrations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastrl.replay.samplers import Batch, PrioritizedSampler, UniformSampler, part_of

if TYPE_CHECKING:
    from torch import Tensor


class MixedSampler(UniformSampler):
    """Draws each batch from two replays: first the transitions of one sampler, then those of the other.

    Both write into the same arrays. Importance weights are those of each part.

    Args:
        first, second: samplers of single transitions with the same fields.
        pin_memory: as of `UniformSampler`.

    Attributes:
        samplers: both of them.

    Raises:
        ValueError: their replays have other rows.
    """

    def __init__(
        self, first: UniformSampler, second: UniformSampler, *, pin_memory: bool | None = None
    ) -> None:
        rows = [(each.replay.dtype, each.replay.stack, each.replay.final_masks) for each in (first, second)]
        if rows[0] != rows[1]:
            raise ValueError(f"both replays must have the same rows, got {rows[0]} and {rows[1]}")
        self.samplers = (first, second)
        self._set_up(first.replay, first.batch_size + second.batch_size, True)
        self._build(None, pin_memory)
        count = second.batch_size
        self._sets = [(arrays, replace(batch, num_second=count)) for arrays, batch in self._sets]
        places = (slice(0, first.batch_size), slice(first.batch_size, self.batch_size))
        self._slices = [[part_of(arrays, batch, place) for place in places] for arrays, batch in self._sets]

    def sample(self) -> Batch:
        for sampler, (arrays, batch) in zip(self.samplers, self._slices[self._next], strict=True):
            sampler.fill(arrays, batch)
        _, batch = self._sets[self._next]
        self._next = (self._next + 1) % len(self._sets)
        return batch

    @property
    def second(self) -> UniformSampler:
        """The sampler of the last transitions of a batch."""
        return self.samplers[1]

    @property
    def beta(self) -> float:
        """Exponent of the weights of importance, of the parts that are prioritized."""
        return next(sampler.beta for sampler in self.samplers if isinstance(sampler, PrioritizedSampler))

    @beta.setter
    def beta(self, beta: float) -> None:
        for sampler in self.samplers:
            if isinstance(sampler, PrioritizedSampler):
                sampler.beta = beta

    def update_priorities(self, indices: Tensor, priorities: Tensor) -> None:
        """Sets the priorities of a whole batch, in its order; see `PrioritizedSampler.update_priorities`.

        Raises:
            ValueError: not as many as a batch has.
        """
        if len(indices) != self.batch_size:
            raise ValueError(f"expected the priorities of a batch of {self.batch_size}, got {len(indices)}")
        start = 0
        for sampler in self.samplers:
            end = start + sampler.batch_size
            if isinstance(sampler, PrioritizedSampler):
                sampler.update_priorities(indices[start:end], priorities[start:end])
            start = end

    def state_dict(self) -> dict[str, Any]:
        """The states of both samplers; the replays are saved separately."""
        first, second = self.samplers
        return {"first": first.state_dict(), "second": second.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for sampler, name in zip(self.samplers, ("first", "second"), strict=True):
            sampler.load_state_dict(state[name])
