"""Passes of a network with a memory along the sequences of a rollout."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.optimizer import Optimizer
from fastrl.rollout.rollout import Rollout
from fastrl.rollout.sequences import Packed, Sequences, obs_at


class SequenceBatch(NamedTuple):
    """Sequences for `fastrl.networks.acting_network.PolicyNet.sequences`, whose arguments are the first three fields.

    Attributes:
        obs: [P, size], packed.
        batch_sizes: int64 [L], on the CPU.
        states: float32 [S, state_size].
        packed: places of the observations in the rollout.
    """

    obs: Tensor
    batch_sizes: Tensor
    states: Tensor
    packed: Packed


class SequencePasses:
    """Runs a network with a memory over rollouts.

    Args:
        sequences: runs the network along the sequences of a batch; gives outputs float [P, size], others float
            [P, ...], such as values, and the states after the last steps.
        autocast: makes a context for passes without gradients.
        device: of the network.
        burn_in: first steps of sequences that continue an episode which only bring the memory up to date.
        chunk: samples at a time of a pass over a whole rollout, as far as rows of fragments can be parted.
        agents: bool [A], of many agents those whose network it is; None: there is one agent.
    """

    def __init__(
        self,
        sequences: Callable[[SequenceBatch], tuple[Tensor, Tensor, Tensor]],
        autocast: Callable[[], AbstractContextManager[None]],
        device: torch.device,
        burn_in: int,
        chunk: int,
        agents: NDArray[np.bool_] | None = None,
    ) -> None:
        self._run, self._autocast, self._device = sequences, autocast, device
        self._burn_in, self._chunk, self._agents = burn_in, chunk, agents

    @classmethod
    def of(
        cls, network: Any, optimizer: Optimizer, device: torch.device, chunk: int, burn_in: int = 0
    ) -> Self:
        """The passes of a network with a memory, which see the steps of episodes in their order.

        Args:
            network: with ``sequences`` as of `fastrl.networks.acting_network.PolicyNet`.
            optimizer: of the network.
        """
        return cls(lambda batch: network.sequences(*batch[:3]), optimizer.autocast, device, burn_in, chunk)

    def over(self, rollout: Rollout) -> Iterator[tuple[SequenceBatch, Tensor, Tensor]]:
        """Runs the network along the sequences of a rollout, of which all else is from now on. Yields them in parts,
        with the observations that follow, outputs and others, float32 on the CPU."""
        self._see(rollout)
        for rows in self._chunks(self._chunk, self._rows):
            batch = self._batch(self._of_rows(rows), nexts=True)
            with torch.inference_mode(), self._autocast():
                outputs, others, _ = self._run(batch)
            yield batch, outputs.float().cpu(), others.float().cpu()

    def _see(self, rollout: Rollout) -> None:
        self._rollout, self._sequences = rollout, Sequences.of(rollout)
        if self._agents is not None:
            is_theirs = self._agents[self._sequences.firsts % len(self._agents)]
            self._sequences = self._sequences.take(np.flatnonzero(is_theirs))
        # Numbers of the rows of fragments that have sequences.
        self._rows = np.unique(self._sequences.rows)

    def learned(self, rollout: Rollout, rows: slice) -> SequenceBatch:
        """The sequences of some rows of fragments without their burn-in, with the observations that follow them."""
        self._see(rollout)
        return self._batch(self._burnt_in(self._of_rows(self._rows[rows])), nexts=True)

    def minibatches(
        self, size: int, generator: torch.Generator, shards: int = 1
    ) -> Iterator[list[Sequences]]:
        """Rows of the rollout's fragments in a new order, of at most ``size`` samples at a time, as far as rows are not
        longer; of each minibatch the sequences of each shard, for `batch`. After `over`."""
        order = self._rows[torch.randperm(len(self._rows), generator=generator).numpy()]
        for rows in self._chunks(size, order):
            yield self._sharded(rows, shards)

    def whole(self, shards: int = 1) -> list[Sequences]:
        """A single minibatch of all sequences."""
        return self._sharded(self._rows, shards)

    def _sharded(self, rows: NDArray[np.int64], shards: int) -> list[Sequences]:
        return [self._of_rows(chunk) for chunk in np.array_split(rows, shards)]

    def chunks(self, sequences: Sequences) -> Iterator[SequenceBatch]:
        """`batch` of some sequences in parts."""
        for rows in self._chunks(self._chunk, np.unique(sequences.rows)):
            yield self.batch(self._of_rows(rows))

    def places(self, sequences: Sequences) -> NDArray[np.int64]:
        """The places of the steps that `batch` of the same sequences has."""
        left = sequences
        if self._burn_in and len(sequences):
            # How many steps are left does not depend on the memory after those that are not.
            left = sequences.burnt_in(self._burn_in, lambda heads: heads.states)
        return left.packed().places if len(left) else np.zeros(0, np.int64)

    def batch(self, sequences: Sequences) -> SequenceBatch:
        """The steps of some sequences without their burn-in."""
        return self._batch(self._burnt_in(sequences), nexts=False)

    def _chunks(self, size: int, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The rows in some order, of at most ``size`` samples at a time if no row is longer."""
        if not len(order):
            return []
        lengths = np.bincount(self._sequences.rows, self._sequences.lengths)[order]
        chunk_of = np.zeros(len(order), np.int64)
        total = 0.0
        for i, length in enumerate(lengths.tolist()):
            total += length
            is_new = total > size and total > length
            chunk_of[i] = chunk_of[i - 1] + is_new
            total = length if is_new else total
        chunks = [order[chunk_of == chunk] for chunk in range(chunk_of[-1] + 1)]
        if (lengths == lengths[0]).all():
            chunks = np.array_split(order, len(chunks))
        return chunks

    def _of_rows(self, rows: NDArray[np.int64]) -> Sequences:
        return self._sequences.take(np.flatnonzero(np.isin(self._sequences.rows, rows)))

    def _burnt_in(self, sequences: Sequences) -> Sequences:
        return sequences.burnt_in(self._burn_in, self._states_after) if self._burn_in else sequences

    def _states_after(self, sequences: Sequences) -> NDArray[np.float32]:
        with torch.inference_mode(), self._autocast():
            _, _, states = self._run(self._batch(sequences, nexts=False))
        return states.float().cpu().numpy()

    def _batch(self, sequences: Sequences, nexts: bool) -> SequenceBatch:
        packed = sequences.packed(nexts)
        return SequenceBatch(
            torch.from_numpy(obs_at(self._rollout, packed.places)).to(self._device),
            torch.from_numpy(packed.batch_sizes),
            torch.from_numpy(sequences.states).to(self._device),
            packed,
        )
