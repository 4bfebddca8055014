"""Drawing the next batch, and copying it to the GPU, while the learner uses the last one."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fastrl.utils.closing import Closing

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)

# Indices, their priorities on the CPU, and the event after which the copy of these is complete.
Priorities = tuple[Tensor, Tensor, torch.cuda.Event | None]


class Sampler(Protocol[BatchT_co]):
    """A sampler of batches, such as those of ``fastrl.replay``."""

    def sample(self) -> BatchT_co: ...


class Prefetcher(Closing, Generic[BatchT]):
    """Draws batches from a sampler one ahead of the learner, on its own thread.

    ::

        with Prefetcher(sampler, device) as ahead:
            while ...:
                batch = ahead.sample()
                td_errors = dqn.update(batch)
                ahead.update_priorities(batch.indices, td_errors)

    As long as nothing else uses the sampler or its replay, the batches are those that the sampler would return, in the
    same order, with these differences:

    - A batch is drawn when `sample` returns the one before it: transitions added after that are not in it.
    - Priorities of a batch affect the batch after next, one later than without prefetching. This does not depend on
      timing: the thread passes priorities to the sampler between two draws.
    - The sampler is one batch ahead of the learner. `close` drops that batch, so a run that is saved and resumed has
      other batches than one that was never stopped.

    Only the thread uses the sampler until `close`. The sampler must not change its last batch while it fills the next
    one; those of ``fastrl.replay`` do not.

    On a GPU the batch is a copy on the device: a namespace with the same names, whose ``indices`` stay in main memory.
    Two copies are used in turns. From pinned memory the copy runs beside the learner, on its own CUDA stream.

    Args:
        sampler: has ``sample()``, and ``update_priorities(indices, priorities)`` if that is used.
        device: device of the learner.

    Attributes:
        beta: if not None, the sampler's ``beta`` from the next draw on.
    """

    def __init__(self, sampler: Sampler[BatchT], device: str | torch.device = "cpu") -> None:
        self._sampler = sampler
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fastrl-prefetch")
        self.ahead: Future[BatchT] | None = None
        self._priorities: list[Priorities] = []
        self._copies = _Copies(torch.device(device)) if torch.device(device).type == "cuda" else None
        self.beta: float | None = None
        self._closed = False

    def sample(self) -> BatchT:
        """Returns the next batch, which does not change until the next call.

        Raises:
            RuntimeError: `close` has been called.
            Exception: an error of the sampler. The next call draws again.
        """
        self._check_open()
        ready, self.ahead = self.ahead or self._submit(), None
        batch = ready.result()
        self.ahead = self._submit()
        return batch

    def update_priorities(self, indices: Tensor, priorities: Tensor) -> None:
        """Passes priorities to the sampler before its next draw, without waiting for a GPU. The `sample` after next
        raises an error that they cause.

        Raises:
            RuntimeError: `close` has been called.
        """
        self._check_open()
        if priorities.device.type != "cuda":
            self._priorities.append((indices, priorities, None))
            return
        priorities = priorities.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._priorities.append((indices, priorities, copied))

    def wait(self) -> None:
        """Waits for the batch that is being drawn: the sampler then does not change until the next `sample`."""
        if self.ahead is not None:
            wait([self.ahead])

    def close(self) -> None:
        """Ends the thread, drops the batch that it has drawn and passes the last priorities to the sampler, which may
        then be used directly. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        # A queued draw is not cancelled: it has priorities to pass on.
        self._pool.shutdown()
        self.ahead = None
        self._pass_priorities(self._priorities)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the prefetcher is closed: use its sampler, or make a new one")

    def _submit(self) -> Future[BatchT]:
        priorities, self._priorities = self._priorities, []
        # The learner has submitted all its GPU work on the batch before the last one.
        if self._copies is not None:
            self._copies.release()
        return self._pool.submit(self._draw, priorities, self.beta)

    def _draw(self, priorities: list[Priorities], beta: float | None) -> Any:
        self._pass_priorities(priorities)
        if beta is not None:
            self._sampler.beta = beta  # type: ignore[attr-defined]
        batch = self._sampler.sample()
        return batch if self._copies is None else self._copies.copy(batch)

    def _pass_priorities(self, priorities: list[Priorities]) -> None:
        while priorities:
            indices, values, copied = priorities.pop(0)
            if copied is not None:
                copied.synchronize()
            self._sampler.update_priorities(indices, values)  # type: ignore[attr-defined]


class _Copies:
    """Two batches on a GPU, filled in turns on their own CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copies: list[SimpleNamespace] = []
        self._turn = 0
        self._free = torch.cuda.Event()

    def release(self) -> None:
        """Makes the next `copy` wait for the work that the learner has submitted to the GPU so far."""
        self._free.record(torch.cuda.current_stream(self._device))

    def copy(self, batch: Any) -> SimpleNamespace:
        """Copies a batch to the GPU. Returns once the copy is complete, so that the sampler may reuse its memory."""
        # Only the sampler uses the indices. Not every batch has masks.
        tensors = {
            name: tensor
            for name, tensor in vars(batch).items()
            if isinstance(tensor, Tensor) and name != "indices"
        }
        if len(self._copies) < 2:
            empty = {name: torch.empty_like(tensor, device=self._device) for name, tensor in tensors.items()}
            self._copies.append(SimpleNamespace(**({"masks": None, "next_masks": None} | empty)))
            # Earlier work on the allocating stream may still use their memory.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        copy = self._copies[self._turn % 2]
        self._turn += 1
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free)
            for name, tensor in tensors.items():
                getattr(copy, name).copy_(tensor, non_blocking=True)
        copy.indices, copy.num_second = batch.indices, batch.num_second
        self._stream.synchronize()
        return copy
