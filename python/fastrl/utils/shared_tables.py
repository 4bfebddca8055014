"""Shared memory through which ranks of one machine exchange gradients, in place of sending them."""

import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fastrl.utils.processes import SHARED_MEMORY


class SharedTables:
    """One table of each rank, which all ranks read, on the CPU.

    There are two buffers, used in turns: a rank writes its table into one and waits until all have written. The next
    exchange uses the other buffer, and begins where all have read the first, so one wait for each exchange is enough.

    All ranks must make the calls in the same order, with tables of one size and dtype.

    Args:
        rank: number of this rank.
        count: of ranks, all on this machine.
    """

    def __init__(self, rank: int, count: int) -> None:
        self._rank = rank
        self._count = count
        self._memory: mmap.mmap | None = None
        self._capacity = 0
        self._turn = 0
        self._available = True
        self._flags = [torch.zeros(1, dtype=torch.uint8) for _ in range(count)]

    def exchange(self, table: Tensor) -> list[Tensor] | None:
        """The tables of all ranks, by rank. They are views that hold until the next call.

        Args:
            table: contiguous, not empty, on the CPU.

        Returns:
            None: the ranks cannot share memory, which holds from then on.

        Raises:
            RuntimeError: another rank has ended.
        """
        if self._available and table.nbytes > self._capacity:
            self._grow(table.nbytes)
        if self._memory is None:
            return None
        first = self._turn * self._count
        self._turn = 1 - self._turn
        tables = [self._view(table, first + rank) for rank in range(self._count)]
        tables[self._rank].copy_(table)
        # The messages of this wait order the writes before the others' reads.
        dist.all_gather(self._flags, self._flags[self._rank].clone())
        return tables

    def _view(self, table: Tensor, place: int) -> Tensor:
        assert self._memory is not None
        flat = torch.frombuffer(
            self._memory, dtype=table.dtype, count=table.numel(), offset=place * self._capacity
        )
        return flat.view(table.shape)

    def _grow(self, nbytes: int) -> None:
        """Replaces the memory, on all ranks or on none."""
        capacity = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = 2 * self._count * capacity
        path = self._create(size) if self._rank == 0 else None
        message: list[Any] = [path]
        dist.broadcast_object_list(message, 0)
        memory = _mapped(message[0], size)
        found: list[Any] = [None] * self._count
        dist.all_gather_object(found, memory is not None)
        if path is not None:
            # The memory lives as long as it is mapped.
            Path(path).unlink()
        self._available = all(found)
        self._memory = memory if self._available else None
        self._capacity = capacity if self._available else 0

    @staticmethod
    def _create(size: int) -> str | None:
        """A file of so many bytes that only this user can open; None without enough room."""
        folder, prefix = os.path.split(SHARED_MEMORY)
        try:
            number, path = tempfile.mkstemp(prefix=f"{prefix}ranks-{os.getpid()}-", dir=folder)
        except OSError:
            return None
        try:
            os.posix_fallocate(number, 0, size)
        except OSError:
            Path(path).unlink()
            return None
        finally:
            os.close(number)
        return path


def _mapped(path: str | None, size: int) -> mmap.mmap | None:
    """The memory of a file; None if this rank cannot open it, as in another container."""
    if path is None:
        return None
    with contextlib.suppress(OSError, ValueError), Path(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), size)
    return None
