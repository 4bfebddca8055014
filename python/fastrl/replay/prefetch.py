"""The next batch is drawn, and copied to the GPU, while the learner is busy with the last one."""

from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)

# Indices, their priorities on the CPU, and the event after which these are there.
Priorities = tuple[Tensor, Tensor, torch.cuda.Event | None]
# What of a batch goes to the GPU: all but the indices, which are the sampler's.
_LEARNT = ("obs", "actions", "rewards", "next_obs", "discounts", "terminated", "truncated", "weights")


class Sampler(Protocol[BatchT_co]):
    """What draws batches; those of ``fastrl.replay`` do."""

    def sample(self) -> BatchT_co: ...


class Prefetcher(Generic[BatchT]):
    """Stands for a sampler, one batch ahead of it, on a thread of its own.

    ::

        with Prefetcher(sampler, device) as ahead:
            while ...:
                batch = ahead.sample()
                td_errors = dqn.update(batch)
                ahead.update_priorities(batch.indices, td_errors)

    While nothing else touches the sampler or its replay, the batches are those that the sampler would have
    given, in the same order. What is different:

    - A batch is drawn when the one before it is handed out: transitions added since are not in it.
    - Priorities of a batch count in the batch after next, one later than without prefetching. That is always
      so, whatever the threads do: priorities are handed to the sampler between two draws, by the thread.
    - The sampler stands one batch further than the learner. `close` drops that batch, so a run that is saved
      and resumed goes on with other batches than one that was never stopped.

    Only the thread touches the sampler until `close`. The sampler must leave its last batch alone while it
    fills the next one, as those of ``fastrl.replay`` do.

    On a GPU the batch is a copy on the device: a namespace of the same names, whose ``indices`` stay in main
    memory. There are two, in turns. From pinned memory the copy runs beside the learner, on a stream of its
    own.

    Args:
        sampler: with ``sample()``, and ``update_priorities(indices, priorities)`` if that is to be used.
        device: of the learner.

    Attributes:
        beta: if not None, what the sampler's ``beta`` is set to before the next draw that begins.
    """

    def __init__(self, sampler: Sampler[BatchT], device: str | torch.device = "cpu") -> None:
        self._sampler = sampler
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fastrl-prefetch")
        self._ahead: Future[BatchT] | None = None
        self._priorities: list[Priorities] = []
        self._copies = _Copies(torch.device(device)) if torch.device(device).type == "cuda" else None
        self.beta: float | None = None
        self._closed = False

    def sample(self) -> BatchT:
        """The next batch; until the next call it stays as it is.

        Raises:
            RuntimeError: `close` has been called.
            Exception: what drawing the batch raised. The next call tries again.
        """
        self._check_open()
        ready, self._ahead = self._ahead or self._submit(), None
        batch = ready.result()
        self._ahead = self._submit()
        return batch

    def update_priorities(self, indices: Tensor, priorities: Tensor) -> None:
        """Hands priorities on to the sampler, before its next draw but not now: see above. Does not wait for
        a GPU. An error that they cause is raised by the `sample` after next.

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

    def close(self) -> None:
        """Ends the thread, drops the batch that it has drawn, and hands on the last priorities. The sampler
        may be used by others then. Closing twice does no harm."""
        if self._closed:
            return
        self._closed = True
        # A draw that waits its turn is not called off: it carries priorities.
        self._pool.shutdown()
        self._ahead = None
        self._hand_on(self._priorities)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the prefetcher is closed: use its sampler itself, or make a new one")

    def _submit(self) -> Future[BatchT]:
        priorities, self._priorities = self._priorities, []
        # Whoever asks for a batch has given the GPU all that it is to do with the one before the last.
        if self._copies is not None:
            self._copies.release()
        return self._pool.submit(self._draw, priorities, self.beta)

    def _draw(self, priorities: list[Priorities], beta: float | None) -> Any:
        self._hand_on(priorities)
        if beta is not None:
            self._sampler.beta = beta  # type: ignore[attr-defined]
        batch = self._sampler.sample()
        return batch if self._copies is None else self._copies.copy(batch)

    def _hand_on(self, priorities: list[Priorities]) -> None:
        while priorities:
            indices, values, copied = priorities.pop(0)
            if copied is not None:
                copied.synchronize()
            self._sampler.update_priorities(indices, values)  # type: ignore[attr-defined]


class _Copies:
    """Two batches on a GPU, filled in turns by a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copies: list[SimpleNamespace] = []
        self._turn = 0
        self._free = torch.cuda.Event()

    def release(self) -> None:
        """Called by the learner: what it has asked the GPU for so far comes before the next `copy`."""
        self._free.record(torch.cuda.current_stream(self._device))

    def copy(self, batch: Any) -> SimpleNamespace:
        """The batch on the GPU. Returns when it is there, for the sampler may then fill its own again."""
        if len(self._copies) < 2:
            tensors = {name: torch.empty_like(getattr(batch, name), device=self._device) for name in _LEARNT}
            self._copies.append(SimpleNamespace(**tensors))
            # Their memory may have had other users, on the stream that allocates.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        copy = self._copies[self._turn % 2]
        self._turn += 1
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free)
            for name in _LEARNT:
                getattr(copy, name).copy_(getattr(batch, name), non_blocking=True)
        copy.indices = batch.indices
        self._stream.synchronize()
        return copy
