"""Tables in shared memory are those that gloo would send."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_runs import RankProcesses

from fastrl.utils import shared_tables
from fastrl.utils.ranks import Ranks

# Growing, shrinking, and tables of one number.
SHAPES = [(1, 3), (2, 5_000), (1, 1), (3, 40_000), (2, 9)]


def _table(rank: int, turn: int, dtype: torch.dtype) -> torch.Tensor:
    shape = SHAPES[turn % len(SHAPES)]
    numbers = np.random.default_rng([rank, turn]).normal(size=shape)
    return torch.from_numpy(numbers).to(dtype)


def _exchanges(ranks: Ranks, dtype: torch.dtype, prefix: str) -> int:
    """The number of tables that were wrong."""
    shared_tables.SHARED_MEMORY = prefix
    tables = ranks.exchange.tables
    assert tables is not None
    wrong = 0
    for turn in range(60):
        found = tables.exchange(_table(ranks.rank, turn, dtype))
        assert found is not None
        # Ranks that read at different speeds.
        time.sleep(0.002 * (ranks.rank == turn % ranks.count))
        for rank, table in enumerate(found):
            wrong += not torch.equal(table, _table(rank, turn, dtype))
    return wrong


def _without_room(ranks: Ranks, folder: str) -> tuple[bool, Any]:
    # On one rank is enough, if it is the first.
    if ranks.rank == 0:
        shared_tables.SHARED_MEMORY = folder + "/fastrl-"
    table = _table(ranks.rank, 1, torch.float32)
    assert ranks.exchange.tables is not None
    shared = ranks.exchange.tables.exchange(table)
    sent = ranks.with_shards(ranks.count).all_gather(table)
    return shared is None, [each.numpy() for each in sent]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_tables_are_those_of_all_ranks(on_ranks: RankProcesses, count: int, dtype: torch.dtype) -> None:
    prefix = f"{shared_tables.SHARED_MEMORY}test-{os.getpid()}-"
    assert on_ranks(count, _exchanges, dtype, prefix) == [0] * count
    assert not list(Path(prefix).parent.glob(f"{Path(prefix).name}*"))


@pytest.mark.slow
def test_ranks_without_room_in_memory_send_their_tables(on_ranks: RankProcesses, tmp_path: Path) -> None:
    for is_without, tables in on_ranks(2, _without_room, str(tmp_path / "missing")):
        assert is_without
        for rank, table in enumerate(tables):
            assert np.array_equal(table, _table(rank, 1, torch.float32).numpy())
