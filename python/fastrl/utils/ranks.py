"""Ranks: processes that train one policy together. Shards: the parts of each batch that they share out.

Every rank holds the whole state of the run and the whole of each batch, so that statistics are those of all experience
without further ado. What costs time is divided: each rank steps a part of the environments, and computes the gradients
of a part of the shards. Gradients of shards are gathered and added in the order of the shards on every rank. The sum
thus does not depend, to the bit, on how many ranks there are; that of an all-reduce would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastrl.utils.errors import UserError
from fastrl.utils.heartbeat import Heartbeat, end_without

if TYPE_CHECKING:
    from torch import Tensor

    from fastrl.utils.shared_tables import SharedTables

T = TypeVar("T")

# Hours that a rank waits for another one: rank 0 may evaluate meanwhile. One that has died is noticed at once, one that
# hangs by its silence, see `Ranks.watched`.
_PATIENCE = datetime.timedelta(hours=2)
# Variables that describe a rank to `connected`, as torchrun sets them.
RANK, COUNT, LOCAL_RANK, LOCAL_COUNT = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"


class RanksError(UserError, ValueError):
    """Ranks that cannot train together, for the reason in the message."""


class LostRankError(RuntimeError):
    """Another rank has ended, or cannot be reached any more."""


class Shard(NamedTuple):
    """A part of a batch.

    Attributes:
        number: of the shard.
        rows: of the batch.
    """

    number: int
    rows: slice


@dataclass
class Exchange:
    """Account of what ranks have sent each other.

    Attributes:
        seconds: spent, the wait for slower ranks included.
        nbytes: that this rank has received of gradients.
        tables: where ranks of one machine share them; None: they are sent.
    """

    seconds: float = 0.0
    nbytes: int = 0
    tables: SharedTables | None = None


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: its number, from 0 on. Rank 0 decides and writes.
        count: processes in all.
        local_count: of them, on this machine.
        shards: parts of each batch, a multiple of ``count``; 0: batches are not parted.
        exchange: what it has cost so far.
        end: ends another rank that hangs, by its number, where this process has started it; None: this process ends.
    """

    rank: int = 0
    count: int = 1
    local_count: int = 1
    shards: int = 0
    exchange: Exchange = field(default_factory=Exchange, compare=False)
    end: Callable[[int], None] | None = field(default=None, compare=False)

    def with_shards(self, shards: int | None) -> Ranks:
        """A copy with batches in so many shards; None: as many as ranks, or whole batches of one rank.

        Raises:
            RanksError: they cannot be shared out evenly.
        """
        if shards is None:
            shards = self.count if self.count > 1 else 0
        if shards % self.count:
            raise RanksError(
                f"run.shards {shards} cannot be shared out evenly among {self.count} ranks: choose a number of ranks"
                f" that divides it, {', '.join(str(n) for n in range(1, shards + 1) if shards % n == 0)}"
            )
        return dataclasses.replace(self, shards=shards)

    def settle(self, settings: T) -> T:
        """Settings of a run whose number of shards is decided, so that it may be resumed on other numbers of ranks.

        Raises:
            RanksError: as of `with_shards`.
        """
        run = settings.run  # type: ignore[attr-defined]
        shards = self.with_shards(run.shards).shards or None
        if shards == run.shards:
            return settings
        return dataclasses.replace(settings, run=dataclasses.replace(run, shards=shards))  # type: ignore[type-var]

    @property
    def is_first(self) -> bool:
        """True of the rank that decides and writes."""
        return self.rank == 0

    @property
    def shard_numbers(self) -> range:
        """The shards of this rank."""
        size = self.shards // self.count
        return range(self.rank * size, (self.rank + 1) * size)

    def shard_rows(self, size: int) -> list[slice]:
        """The rows of each shard of a batch of so many: as even in number as possible, perhaps none."""
        ends = [size * i // self.shards for i in range(self.shards + 1)]
        return [slice(first, end) for first, end in itertools.pairwise(ends)]

    def own_shards(self, size: int) -> list[Shard]:
        """This rank's shards of a batch of so many rows; the whole, if batches are not parted."""
        if not self.shards:
            return [Shard(0, slice(0, size))]
        shard_rows = self.shard_rows(size)
        return [Shard(number, shard_rows[number]) for number in self.shard_numbers]

    def reduce(
        self, gradient: Tensor, size: int, num_sums: int, learn: Callable[[Shard], Tensor | None]
    ) -> Tensor:
        """Adds the gradient of a batch to a gradient, and adds up numbers of its shards; the same on all ranks.

        Args:
            gradient: float32 [P], to which ``learn`` adds the gradient of a shard.
            size: of the batch.
            num_sums: K.
            learn: called with each shard of this rank, or, if batches are not parted, with the whole batch; returns
                numbers float32 [K] of the shard. What it adds and returns is weighted by the shard's share of the
                batch. None: there is nothing in the shard. It is called for a shard without rows, too.

        Returns:
            The sums, float32 [K].
        """
        import torch

        shards = self.own_shards(size)
        if not self.shards:
            found = learn(shards[0])
            assert found is not None, "a batch is not empty"
            return found
        flat = gradient.view(-1)
        before = flat.clone()
        table = flat.new_zeros((len(shards), len(flat) + num_sums))
        for row, shard in zip(table, shards, strict=True):
            flat.zero_()
            found = learn(shard)
            if found is not None:
                row[: len(flat)] = flat
                row[len(flat) :] = found
        total = self._sum(table)
        torch.add(before, total[: len(flat)], out=flat)
        return total[len(flat) :]

    def _sum(self, table: Tensor) -> Tensor:
        """The sum of the rows [K] of all ranks' tables, in their order."""
        rows = [table] if self.count == 1 else self.all_gather(table)
        total = rows[0][0].clone()
        for row in [row for part in rows for row in part][1:]:
            total += row
        return total

    def all_gather(self, table: Tensor) -> list[Tensor]:
        import torch
        import torch.distributed as dist

        with self._timed():
            self.exchange.nbytes += table.nbytes * (self.count - 1)
            if self.exchange.tables is not None and not table.is_cuda:
                shared = self.exchange.tables.exchange(table)
                if shared is not None:
                    return shared
            # NCCL serves GPUs of their own; gloo, which two ranks on one GPU need, tensors in main memory.
            sent = table if table.is_cuda and "nccl" in _backends() else table.cpu()
            received = [torch.empty_like(sent) for _ in range(self.count)]
            dist.all_gather(received, sent)
            return [each.to(table.device) for each in received]

    def gather(self, mine: T) -> list[T]:
        """Objects of all ranks, by rank; they are pickled."""
        if self.count == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        with self._timed():
            # Over gloo, also where gradients go from GPU to GPU.
            dist.all_gather_object(found, mine)
        return found

    def lead(self, *decisions: bool) -> list[bool]:
        """The decisions of rank 0, on every rank."""
        if self.count == 1:
            return list(decisions)
        import torch
        import torch.distributed as dist

        flags = torch.tensor(decisions, dtype=torch.uint8)
        with self._timed():
            dist.broadcast(flags, 0)
        return [bool(flag) for flag in flags.tolist()]

    @contextlib.contextmanager
    def watched(self, timeout: float) -> Iterator[None]:
        """A context in which this process ends, with one line, if another rank is silent for too long.

        All ranks must enter it together.

        Args:
            timeout: seconds of silence; 0: any.
        """
        if self.count == 1 or timeout == 0:
            yield
            return
        local_rank = int(os.environ.get(LOCAL_RANK, self.rank))

        def on_lost(lost: int) -> None:
            end_without(lost, self.count, local_rank, self.rank, timeout)

        toward = "127.0.0.1" if self.local_count == self.count else os.environ.get(ADDRESS, "127.0.0.1")
        with Heartbeat(self.rank, timeout, self.end or on_lost, toward) as heartbeat:
            heartbeat.begin(self.gather(heartbeat.contact))
            yield

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """A context in which to send something to the other ranks."""
        start = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise LostRankError(f"another rank has ended, or cannot be reached: {reason[:200]}") from None
        finally:
            self.exchange.seconds += time.perf_counter() - start


ALONE = Ranks()
"""The one process of a run without ranks."""


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """True if this process was started as one of several ranks, by torchrun or by ``fastrl train --ranks``."""
    return RANK in environment and int(environment.get(COUNT, "1")) > 1


def connected() -> Ranks:
    """This process among the ranks that the environment variables of torchrun describe, once all are there.

    Raises:
        RanksError: variables are missing, or the others cannot be reached.
    """
    import torch
    import torch.distributed as dist

    from fastrl.utils.shared_tables import SharedTables

    env = os.environ
    missing = [name for name in (RANK, COUNT, ADDRESS, PORT) if not env.get(name)]
    if missing:
        raise RanksError(
            f"a rank needs the environment variables {', '.join(missing)}, as torchrun sets them"
        )
    count, local_count = int(env[COUNT]), int(env.get(LOCAL_COUNT, env[COUNT]))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(int(env.get(LOCAL_RANK, env[RANK])) % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= local_count else "gloo"
    try:
        dist.init_process_group(backend, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{env[ADDRESS]}:{env[PORT]}"
        raise RanksError(
            f"rank {env[RANK]} of {count} cannot join the others at {where}: {str(error)[:200]}"
        ) from None
    rank = int(env[RANK])
    tables = SharedTables(rank, count) if local_count == count else None
    return Ranks(rank, count, local_count, exchange=Exchange(tables=tables))


def connected_here(rank: int, count: int, port: int, end: Callable[[int], None] | None = None) -> Ranks:
    """This process among so many of this machine, once all of them have called this.

    Args:
        rank: number of this process.
        count: of processes.
        port: of this machine, free until now.
        end: as of `Ranks`.

    Raises:
        RanksError: the others cannot be reached, or this process is connected to others already.
    """
    import torch
    import torch.distributed as dist

    from fastrl.utils.shared_tables import SharedTables

    if dist.is_initialized():
        raise RanksError("this process has a process group of torch.distributed already: end that one first")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= count else "gloo"
    try:
        dist.init_process_group(
            backend, f"tcp://127.0.0.1:{port}", timeout=_PATIENCE, world_size=count, rank=rank
        )
    except (RuntimeError, ValueError) as error:
        raise RanksError(f"rank {rank} of {count} cannot join the others: {str(error)[:200]}") from None
    return Ranks(rank, count, count, exchange=Exchange(tables=SharedTables(rank, count)), end=end)


def disconnect() -> None:
    """Closes the connections of `connected`."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _backends() -> str:
    import torch.distributed as dist

    return str(dist.get_backend_config())
