"""Fragments of few steps, one after the other in memory that is used again."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.fragment_arrays import (
    Arrays,
    FragmentMeta,
    Step,
    allocate_steps,
    clear_ends,
    fragment_of,
    step_of,
)
from fastrl.collectors.protocol import Plan
from fastrl.rollout.fragment import OBS_ARRAYS, STATE_ARRAYS, Fragment

# The most fragments of a block, and about the most bytes of one.
_FRAGMENTS, _BYTES = 64, 1 << 20

_NO_ENDS = FragmentMeta(0, [], [], [], [])


class Part(NamedTuple):
    """The arrays of a fragment, views of its steps, and the fragment itself where no episode ends in it."""

    arrays: Arrays
    steps: list[Step]
    fragment: Fragment


class FragmentBlock:
    """Consecutive fragments of T steps of a plan's environments. What is made of one is made once, and what is done
    with each may be done with several together.

    Args:
        env_indices: int64 [R].
    """

    def __init__(self, plan: Plan, env_indices: NDArray[np.int64]) -> None:
        self._plan, self._env_indices = plan, env_indices
        bytes_of_one = sum(
            array.nbytes for array in allocate_steps(plan, plan.num_steps, len(env_indices)).values()
        )
        # Each has the memory of its episodes in arrays of its own.
        count = 1 if plan.state_size else min(max(_BYTES // bytes_of_one, 1), _FRAGMENTS)
        self._arrays = allocate_steps(plan, count * plan.num_steps, len(env_indices))
        self._parts = [self._part(i) for i in range(count)]
        # Of the next fragment, and of the first since `take`.
        self._next = self._first = 0
        # Of the last fragment.
        self._ends = _NO_ENDS
        # Flags and last observations are not zero, or may be after a failure.
        self._is_written = False

    def _part(self, i: int) -> Part:
        arrays = self._steps(i, i + 1)
        steps = [step_of(arrays, t) for t in range(self._plan.num_steps)]
        return Part(arrays, steps, self._fragment(arrays, _NO_ENDS._replace(num_steps=len(steps))))

    def _steps(self, first: int, end: int) -> Arrays:
        """The arrays of some fragments."""
        start, stop = first * self._plan.num_steps, end * self._plan.num_steps
        return {
            name: array if name in STATE_ARRAYS else array[start : stop + (name in OBS_ARRAYS)]
            for name, array in self._arrays.items()
        }

    def _fragment(self, arrays: Arrays, meta: FragmentMeta, version: int = 0) -> Fragment:
        return fragment_of(self._plan, arrays, meta, version, self._env_indices)

    @property
    def is_full(self) -> bool:
        return self._next == len(self._parts)

    def next(self) -> Part:
        """The next fragment's arrays, ready to be written. Where the block is full, they are the first ones again."""
        if self.is_full:
            self._next = self._first = 0
        if self._is_written:
            clear_ends(self._arrays)
        self._is_written = True
        return self._parts[self._next]

    def written(self, part: Part, meta: FragmentMeta, version: int) -> Fragment:
        """The fragment of arrays that have been written; valid until they are written again."""
        self._next += 1
        self._ends = meta
        self._is_written = bool(meta.episodes)
        if meta.episodes:
            return self._fragment(part.arrays, meta, version)
        part.fragment.version = version
        return part.fragment

    def take(self) -> Fragment | None:
        """The fragments since the last call as one, in which only the last may have ends; None without any. Call it
        after each fragment that has some, and where the block is full."""
        if self._first == self._next:
            return None
        arrays = self._steps(self._first, self._next)
        self._first = self._next
        return self._fragment(arrays, self._ends._replace(num_steps=len(arrays["rewards"])))
