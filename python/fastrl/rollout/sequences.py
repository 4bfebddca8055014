"""Sequences of a rollout: the parts of episodes in it, along which a network's memory is carried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.rollout.rollout import Rollout


class Packed(NamedTuple):
    """Steps of S sequences in the order of PyTorch's ``PackedSequence``: all first ones, all second ones, and so on.

    Attributes:
        places: int64 [P], of each step, as of `Sequences`.
        batch_sizes: int64 [L], sequences that have a first, a second, ... step.
        is_step: bool [P]; false: an observation that follows a sequence, on which no action was taken.
    """

    places: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]
    is_step: NDArray[np.bool_]


@dataclass(frozen=True)
class Sequences:
    """S sequences of a rollout of T steps of N rows, the longest first.

    A place is an index into `Rollout.obs` [(T + 1) * N], followed by `Rollout.final_obs` [T * N].

    Attributes:
        firsts: int64 [S], places of the first steps.
        lengths: int64 [S], numbers of steps.
        nexts: int64 [S], places of the observations that follow, whose values are bootstrapped from; -1: the episode
            terminated.
        rows: int64 [S], to which row of a fragment it belongs.
        states: float32 [S, state_size], of the memory before the first steps.
        continues: bool [S], the state is not zero: the episode began in an earlier fragment.
        num_rows: N.
    """

    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    nexts: NDArray[np.int64]
    rows: NDArray[np.int64]
    states: NDArray[np.float32]
    continues: NDArray[np.bool_]
    num_rows: int

    def __len__(self) -> int:
        return len(self.firsts)

    @classmethod
    def of(cls, rollout: Rollout) -> Sequences:
        """Sequences of a rollout whose fragments have states; of many agents, of those that live."""
        assert rollout.states is not None, "the rollout is of a network with a memory"
        steps, width = rollout.num_steps, rollout.num_rows
        ended = rollout.terminations | rollout.truncations
        # Rows after one another.
        begins = np.zeros((width, steps), np.bool_)
        begins[:, 0] = True
        begins[:, 1:] = ended[:-1].T
        alive = None if rollout.alive is None else rollout.alive[:-1].T
        if alive is not None:
            begins[:, 1:] |= alive[:, 1:] != alive[:, :-1]
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=steps * width)
        row, step = starts // steps, starts % steps
        last = step + lengths - 1
        cut_off = rollout.cut_off()[last, row]
        nexts = np.where(cut_off, (steps + 1) * width + last * width + row, (last + 1) * width + row)
        nexts[rollout.terminations[last, row]] = -1
        # First steps of the rows of fragments, numbered as `starts` are.
        first_row, first_step = rollout.state_places[:, 1], rollout.state_places[:, 0]
        of_fragments = first_row * steps + first_step
        order = np.argsort(of_fragments)
        rows = order[np.searchsorted(of_fragments[order], starts, "right") - 1]
        begins_row = of_fragments[rows] == starts
        states = np.where(begins_row[:, None], rollout.states[rows], np.float32(0))
        found = cls(step * width + row, lengths, nexts, rows, states, (states != 0).any(axis=1), width)
        return found.take(np.arange(len(starts)) if alive is None else np.flatnonzero(alive.flat[starts]))

    def take(self, chosen: NDArray[np.int64]) -> Sequences:
        """Some of the sequences."""
        # Also with the observations that follow the longest is the first.
        sizes = 2 * self.lengths[chosen] + (self.nexts[chosen] >= 0)
        order = chosen[np.argsort(-sizes, kind="stable")]
        arrays = {name: array[order] for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return Sequences(**arrays, num_rows=self.num_rows)

    def burnt_in(self, num_steps: int, run: Callable[[Sequences], NDArray[np.float32]]) -> Sequences:
        """The sequences without the first steps of those that continue, and with the states that these steps lead to
        from the stored ones (Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning",
        2019). Of sequences of at most ``num_steps`` steps nothing is left over.

        Args:
            run: the memory's states float32 [S, state_size] after some sequences.
        """
        first = np.where(self.continues, np.minimum(self.lengths, num_steps), 0)
        order = np.argsort(-first, kind="stable")[: np.count_nonzero(first)]
        states = self.states.copy()
        if order.size:
            heads = dataclasses.replace(self, lengths=first, nexts=np.full(len(self), -1))
            states[order] = run(heads.take(order))
        firsts, lengths = self.firsts + first * self.num_rows, self.lengths - first
        left = dataclasses.replace(self, firsts=firsts, lengths=lengths, states=states)
        return left.take(np.flatnonzero(lengths))

    def packed(self, nexts: bool = False) -> Packed:
        """The steps of the sequences.

        Args:
            nexts: also the observations that follow.
        """
        lengths = self.lengths + (self.nexts >= 0) if nexts else self.lengths
        steps = np.arange(lengths[0])[:, None]
        there = steps < lengths
        is_step = steps < self.lengths
        places = np.where(is_step, self.firsts + steps * self.num_rows, self.nexts)
        return Packed(places[there], there.sum(1), is_step[there])


def obs_at(rollout: Rollout, places: NDArray[np.int64]) -> NDArray[Any]:
    """Observations [P, D] at some places of `Sequences`."""
    obs, final_obs = (array.reshape(-1, array.shape[-1]) for array in (rollout.obs, rollout.final_obs))
    is_final = places >= len(obs)
    if not is_final.any():
        return obs[places]
    found = np.empty((len(places), obs.shape[-1]), obs.dtype)
    found[~is_final] = obs[places[~is_final]]
    found[is_final] = final_obs[places[is_final] - len(obs)]
    return found


def write_at(
    of_obs: NDArray[np.float32],
    of_final: NDArray[np.float32],
    places: NDArray[np.int64],
    found: NDArray[np.float32],
) -> None:
    """Writes numbers [P, ...] of some places of `Sequences` into arrays [T + 1, N, ...] and [T, N, ...]."""
    of_obs, of_final = (array.reshape(-1, *array.shape[2:]) for array in (of_obs, of_final))
    is_final = places >= len(of_obs)
    of_obs[places[~is_final]] = found[~is_final]
    of_final[places[is_final] - len(of_obs)] = found[is_final]
