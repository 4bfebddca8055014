"""Samplers of single transitions: uniform and prioritized, with n-step returns.

PyTorch is imported when a sampler is made: storage alone does not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _replay_samplers
from fastrl.replay.storage import Replay
from fastrl.utils.arguments import as_integer

if TYPE_CHECKING:
    from torch import Tensor

BatchT = TypeVar("BatchT")
# Shape and dtype of an array.
Field = tuple[tuple[int, ...], Any]
# Sets of arrays: one batch is in use, one waits, and one is being drawn.
ROTATION = 3


@dataclass(frozen=True)
class Batch:
    """B transitions of up to n steps, as tensors in the memory that the sampler writes.

    Attributes:
        obs: [B, ...], or [B, stack, ...] with stacked frames.
        actions: [B, ...].
        rewards: float32 [B], discounted sum of the k <= n rewards.
        next_obs: as ``obs``, k steps later: the true last observation where the episode ended.
        discounts: float32 [B], factor of the value of ``next_obs``: gamma**k, and 0 where the episode terminated.
        terminated, truncated: bool [B], of the last of the k steps.
        indices: int64 [B], identify the transitions for `PrioritizedSampler.update_priorities`.
        weights: float32 [B], of importance sampling; ones where the sampler is uniform.
        extra: the storage's extra fields of the first step.
        num_second: transitions of a second replay, which are the last ones of the batch, see `MixedSampler`.
        masks: bool [B, num_masked], which actions are allowed at ``obs``; None: the storage has no masks.
        next_masks: the same at ``next_obs``, all False only where ``discounts`` is 0 because nothing follows; None: the
            storage has none of last observations.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    discounts: Tensor
    terminated: Tensor
    truncated: Tensor
    indices: Tensor
    weights: Tensor
    extra: Mapping[str, Tensor]
    num_second: int = 0
    masks: Tensor | None = None
    next_masks: Tensor | None = None


@dataclass(frozen=True)
class Batches(Batch):
    """Batches of the same size, whose transitions lie one after the other.

    Attributes:
        parts: each of them, in the same memory.
    """

    parts: Sequence[Batch] = ()

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.parts)


class BatchSampler(Generic[BatchT]):
    """The base of all samplers: a compiled core, and sets of arrays that it fills in turns.

    A subclass calls `_set_up` and then `_build`, and names its `_batch_class` and `_fields`.
    """

    _batch_class: Callable[..., BatchT]
    _core: Any

    def _set_up(self, replay: Replay, batch_size: int, replacement: bool) -> None:
        if not isinstance(replay, Replay):
            raise TypeError(f"replay: expected a Replay, got {type(replay).__name__}")
        self.replay = replay
        self.batch_size = as_integer("batch_size", batch_size, 1, None)
        self.replacement = replacement

    def _build(self, core: Any, pin_memory: bool | None) -> None:
        """Takes the compiled sampler and allocates the batches."""
        import torch

        self._core = core
        pinned = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._sets = [self._new_batch(pinned) for _ in range(ROTATION)]
        self._next = 0
        # Several batches, and the arrays of each, by how many they are.
        self._several: dict[int, tuple[Batches, list[dict[str, NDArray[Any]]]]] = {}

    def _fields(self) -> dict[str, Field]:
        """Shapes and dtypes of a batch's arrays."""
        raise NotImplementedError

    def _stored_fields(self, steps: tuple[int, ...], states: tuple[int, ...]) -> dict[str, Field]:
        """The fields that every kind of batch has, with these leading axes of steps and of observations."""
        dtype = self.replay.dtype
        stack = (self.replay.stack,) if self.replay.stack > 1 else ()
        return {
            "obs": ((*states, *stack, *dtype["obs"].shape), dtype["obs"].base),
            "actions": ((*steps, *dtype["action"].shape), dtype["action"].base),
            "rewards": (steps, np.float32),
            "terminated": (steps, np.bool_),
            "truncated": (steps, np.bool_),
            "indices": ((self.batch_size,), np.int64),
            **{name: ((*steps, *dtype[name].shape), dtype[name].base) for name in self.replay.extra},
        }

    def _new_batch(self, pinned: bool, count: int = 1) -> tuple[dict[str, NDArray[Any]], BatchT]:
        """Arrays for the compiled sampler, and the same memory as tensors; of so many batches."""
        import torch

        tensors = {}
        for name, ((size, *shape), dtype) in self._fields().items():
            # Uniform samplers do not write the weights.
            tensor = torch.from_numpy(
                (np.ones if name == "weights" else np.zeros)((count * size, *shape), dtype)
            )
            tensors[name] = tensor.pin_memory() if pinned else tensor
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        extra = MappingProxyType({name: tensors.pop(name) for name in self.replay.extra})
        return arrays, self._batch_class(**tensors, extra=extra)

    def sample(self) -> BatchT:
        """Draws a batch. Its tensors do not change until two more have been drawn.

        Raises:
            ValueError: nothing is stored yet, or, without replacement, less than a batch.
        """
        arrays, batch = self._sets[self._next]
        self.fill(arrays, batch)
        self._next = (self._next + 1) % ROTATION
        return batch

    def fill(self, arrays: dict[str, NDArray[Any]], batch: BatchT) -> None:
        """Draws into arrays by field, of which ``batch`` has the memory.

        Raises:
            ValueError: as of `sample`.
        """
        self._core.sample(arrays, self.replacement)

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator; the storage is saved separately."""
        return {"generator": [str(word) for word in self._core.generator_state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state, so that the same batches follow if the storage is the same."""
        self._core.generator_state = [int(word) for word in state["generator"]]


class UniformSampler(BatchSampler[Batch]):
    """Draws transitions with equal probability.

    Args:
        replay: the storage.
        batch_size: B.
        n_step: number of steps whose rewards are summed; fewer where the episode or the stored part of it ends, and the
            value of the last observation is then discounted by its own power of gamma.
        gamma: discount.
        replacement: True: a transition may be drawn twice in a batch.
        seed: of the sampler's own generator.
        pin_memory: batches in page-locked memory, for asynchronous copies to a GPU; None: if there is a GPU.

    Raises:
        ValueError, TypeError: arguments that make no sense.
    """

    _batch_class = Batch

    def __init__(
        self,
        replay: Replay,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        replacement: bool = True,
        seed: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        self._set_up(replay, batch_size, replacement)
        self._build(_replay_samplers.Uniform(replay, batch_size, n_step, gamma, seed_bits(seed)), pin_memory)

    def sample_several(self, count: int) -> Batches:
        """Draws the batches that so many calls of `sample` would. They do not change until as many are drawn again.

        Raises:
            ValueError: as of `sample`. TypeError: the sampler draws one batch at a time, as a `MixedSampler` does.
        """
        if type(self).sample is not BatchSampler.sample:
            raise TypeError(f"{type(self).__name__} draws one batch at a time: call sample()")
        if count not in self._several:
            arrays, batch = self._new_batch(False, count)
            places = [slice(i * self.batch_size, (i + 1) * self.batch_size) for i in range(count)]
            parts = [part_of(arrays, batch, place) for place in places]
            several = Batches(**vars(batch), parts=[each for _, each in parts])
            self._several[count] = several, [arrays for arrays, _ in parts]
        batches, of_parts = self._several[count]
        for arrays, each in zip(of_parts, batches.parts, strict=True):
            self.fill(arrays, each)
        return batches

    def _fields(self) -> dict[str, Field]:
        size = (self.batch_size,)
        fields = self._stored_fields(size, size)
        masks = (*size, self.replay.num_masked), np.bool_
        return fields | {
            "next_obs": fields["obs"],
            "discounts": (size, np.float32),
            "weights": (size, np.float32),
            **({"masks": masks} if self.replay.num_masked else {}),
            **({"next_masks": masks} if self.replay.final_masks else {}),
        }


class PrioritizedSampler(UniformSampler):
    """Transitions in proportion to priority**alpha (Schaul et al., "Prioritized Experience Replay", 2016).

    One draw from each of B equal parts of the sum. New transitions have the highest priority that was ever set. Sums
    are float64. Weights are (N P(i))**-beta, divided by their maximum.

    Args:
        alpha: 0 is uniform.
        beta: 1 corrects the bias in full; the attribute may be set while training.
        normalize: by which maximum: of the ``"batch"``, or of all that is stored (``"buffer"``), priorities of 0 apart.
        bonus: added to all priorities that are set, so that those of small errors are drawn, too.
        others: as `UniformSampler`.
    """

    def __init__(
        self,
        replay: Replay,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.6,
        beta: float = 0.4,
        normalize: Literal["batch", "buffer"] = "batch",
        bonus: float = 0.0,
        seed: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        if normalize not in ("batch", "buffer"):
            raise ValueError(f"normalize must be 'batch' or 'buffer', got {normalize!r}")
        self._bonus = bonus
        self._set_up(replay, batch_size, True)
        by_buffer = normalize == "buffer"
        core = _replay_samplers.Prioritized(
            replay, batch_size, n_step, gamma, seed_bits(seed), alpha, beta, by_buffer
        )
        self._build(core, pin_memory)

    @property
    def beta(self) -> float:
        beta: float = self._core.beta
        return beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._core.beta = beta

    @property
    def stale(self) -> int:
        """Number of updates of transitions that had been overwritten."""
        stale: int = self._core.stale
        return stale

    def update_priorities(
        self, indices: Tensor | NDArray[np.int64], priorities: Tensor | NDArray[Any]
    ) -> None:
        """Sets the priorities [N] of transitions [N] of this sampler's batches, such as absolute TD errors.

        If a transition comes twice, its last priority counts. Transitions that have been overwritten are skipped and
        counted in `stale`.

        Raises:
            ValueError: a priority that is NaN, infinite or negative. IndexError: an index that no batch had.
                TypeError: a wrong dtype. Nothing has changed then.
        """
        values = _flat(priorities, np.float64, "priorities")
        self._core.update(
            _flat(indices, np.int64, "indices"), values + self._bonus if self._bonus else values
        )

    def state_dict(self) -> dict[str, Any]:
        """The states of the generator and of the priorities; the storage is saved separately."""
        import torch

        core = self._core.state()
        return {
            **super().state_dict(),
            "beta": self.beta,
            "highest": core["highest"],
            "stale": core["stale"],
            "priorities": torch.from_numpy(core["priorities"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state of a sampler of the same storage.

        Raises:
            ValueError: the priorities belong to another storage. Nothing has changed then.
        """
        before = super().state_dict()
        super().load_state_dict(state)
        try:
            priorities = np.ascontiguousarray(state["priorities"].numpy(), np.float64)
            self._core.set_state(state["highest"], state["stale"], priorities)
        except BaseException:
            super().load_state_dict(before)
            raise
        self.beta = state["beta"]


def part_of(
    arrays: Mapping[str, NDArray[Any]], batch: Batch, place: slice
) -> tuple[dict[str, NDArray[Any]], Batch]:
    """Some of the transitions of a batch and of its arrays, in the same memory."""
    tensors: dict[str, Any] = {name: value[place] for name, value in vars(batch).items() if is_tensor(value)}
    extra = MappingProxyType({name: value[place] for name, value in batch.extra.items()})
    return {name: array[place] for name, array in arrays.items()}, Batch(**tensors, extra=extra)


def seed_bits(seed: int) -> int:
    """The 64 bits that seed a compiled sampler."""
    return int(np.random.SeedSequence(as_integer("seed", seed, 0, None)).generate_state(1, np.uint64)[0])


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """True for a tensor of PyTorch, which need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _flat(values: Tensor | NDArray[Any], dtype: Any, name: str) -> NDArray[Any]:
    array = values.detach().cpu().numpy() if is_tensor(values) else np.asarray(values)
    wanted = "iu" if dtype is np.int64 else "f"
    if array.dtype.kind not in wanted:
        raise TypeError(f"{name} must be of dtype {np.dtype(dtype)}, got {array.dtype}")
    return np.ascontiguousarray(array, dtype)
