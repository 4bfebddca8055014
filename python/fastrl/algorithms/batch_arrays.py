"""Minibatches as arrays, for compiled gradient steps."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fastrl.algorithms.protocol import Transitions

# The most minibatches that one call of compiled gradient steps takes, and the most numbers of their observations: more
# would leave the cache before they are learned from.
AT_ONCE, _NUMBERS = 8, 1 << 17

# The most minibatches whose arrays are kept. Samplers fill the same few ones in turns.
_KEPT = 8

# Arrays by field; None where a minibatch has none.
Arrays = dict[str, Any]


def minibatches_at_once(batch_size: int, obs_dim: int) -> int:
    """The most minibatches of so many observations of so many numbers that compiled gradient steps take in one call."""
    return max(1, min(AT_ONCE, _NUMBERS // (batch_size * obs_dim)))


class BatchArrays:
    """Arrays of the fields of minibatches, in the memory of their tensors where that is contiguous.

    Args:
        fields: of `Transitions`; those that may be None are None then.
        convert: makes rows [B, D] of observations what a network takes.
    """

    def __init__(self, fields: Sequence[str], convert: Callable[[Tensor], Tensor]) -> None:
        self._fields, self._convert = fields, convert
        # By the identity of the minibatch, which is kept so that no other one gets it.
        self._known: dict[int, tuple[Transitions, Arrays]] = {}

    def __call__(self, batch: Transitions) -> Arrays:
        """The arrays by field; observations have rows."""
        known = self._known.get(id(batch))
        if known is not None:
            return known[1]
        arrays: Arrays = {}
        are_views = True
        for name in self._fields:
            tensor: Tensor | None = getattr(batch, name)
            if tensor is None:
                arrays[name] = None
                continue
            # The frames of a stack become one row.
            given = self._convert(tensor.flatten(1)) if "obs" in name else tensor
            given = given.contiguous()
            arrays[name] = given.numpy()
            are_views &= given.data_ptr() == tensor.data_ptr()
        if are_views:
            if len(self._known) == _KEPT:
                self._known.clear()
            self._known[id(batch)] = batch, arrays
        return arrays
