"""Passes of a network with a memory along the sequences of a rollout."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.networks.policy_network import TorchPolicy
from fastrl.rollout.rollout import Rollout
from fastrl.rollout.sequences import Packed, Sequences, obs_at


class SequenceBatch(NamedTuple):
    """Sequences for `TorchPolicy.sequences`, whose arguments are the first three fields.

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
        policy: the network.
        autocast: makes a context for passes without gradients.
        device: of the network.
        burn_in: first steps of sequences that continue an episode which only bring the memory up to date.
        chunk: samples at a time of a pass over a whole rollout, as far as rows of fragments can be parted.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        autocast: Callable[[], AbstractContextManager[None]],
        device: torch.device,
        burn_in: int,
        chunk: int,
    ) -> None:
        self._policy, self._autocast, self._device = policy, autocast, device
        self._burn_in, self._chunk = burn_in, chunk

    def evaluate(self, rollout: Rollout) -> Tensor:
        """Fills the rollout's ``values`` and ``final_values``. Returns the policy's outputs, float32 [T * N, size]."""
        self._rollout, self._sequences = rollout, Sequences.of(rollout)
        found = torch.zeros((len(rollout), self._policy.num_actions))
        for rows in self._chunks(self._chunk, np.arange(self._num_rows)):
            batch = self._batch(self._of_rows(rows), nexts=True)
            with torch.inference_mode(), self._autocast():
                outputs, values, _ = self._policy.sequences(*batch[:3])
            self.write_values(batch, values)
            steps = batch.packed.is_step
            found[batch.packed.places[steps]] = outputs.float().cpu()[steps]
        return found

    def learned(self, rollout: Rollout, rows: slice) -> SequenceBatch:
        """The sequences of some rows of fragments without their burn-in, with the observations that follow them."""
        self._rollout, self._sequences = rollout, Sequences.of(rollout)
        return self._batch(self._burnt_in(self._of_rows(np.arange(self._num_rows)[rows])), nexts=True)

    def write_values(self, batch: SequenceBatch, values: Tensor) -> None:
        """Stores the values of a batch, float [P], in the rollout's ``values`` and ``final_values``."""
        found, places = values.detach().float().cpu().numpy(), batch.packed.places
        of_obs, of_final = self._rollout.values.reshape(-1), self._rollout.final_values.reshape(-1)
        is_final = places >= len(of_obs)
        of_obs[places[~is_final]] = found[~is_final]
        of_final[places[is_final] - len(of_obs)] = found[is_final]

    def minibatches(
        self, size: int, generator: torch.Generator, shards: int = 1
    ) -> Iterator[list[Sequences]]:
        """Rows of the rollout's fragments in a new order, of at most ``size`` samples at a time, as far as rows are not
        longer; of each minibatch the sequences of each shard, for `batch`. After `evaluate`."""
        order = torch.randperm(self._num_rows, generator=generator).numpy()
        for rows in self._chunks(size, order):
            yield [self._of_rows(chunk) for chunk in np.array_split(rows, shards)]

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

    @property
    def _num_rows(self) -> int:
        return len(self._rollout.state_places)

    def _chunks(self, size: int, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The rows in some order, of at most ``size`` samples at a time if no row is longer."""
        sequences = self._sequences
        lengths = np.bincount(sequences.rows, sequences.lengths, self._num_rows)[order]
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
            _, _, states = self._policy.sequences(*self._batch(sequences, nexts=False)[:3])
        return states.float().cpu().numpy()

    def _batch(self, sequences: Sequences, nexts: bool) -> SequenceBatch:
        packed = sequences.packed(nexts)
        return SequenceBatch(
            torch.from_numpy(obs_at(self._rollout, packed.places)).to(self._device),
            torch.from_numpy(packed.batch_sizes),
            torch.from_numpy(sequences.states).to(self._device),
            packed,
        )
