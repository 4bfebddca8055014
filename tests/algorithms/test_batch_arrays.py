from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastrl.algorithms.batch_arrays import BatchArrays

FIELDS = ("obs", "rewards", "masks")


def batch_of(obs: Tensor) -> Any:
    return SimpleNamespace(obs=obs, rewards=torch.arange(float(len(obs))), masks=None)


def plain(rows: Tensor) -> Tensor:
    return rows


def doubled(rows: Tensor) -> Tensor:
    return rows * 2


def strided(rows: int) -> Tensor:
    return torch.zeros(rows, 6)[:, ::2]


@pytest.mark.parametrize("convert", [plain, doubled])
@pytest.mark.parametrize("obs", [torch.zeros(4, 3), torch.zeros(4, 2, 3), strided(4)])
def test_arrays_are_those_of_a_batch_that_was_filled_again(convert: Any, obs: Tensor) -> None:
    arrays_of, batch = BatchArrays(FIELDS, convert), batch_of(obs)
    for value in range(1, 4):
        batch.obs.fill_(value)
        batch.rewards.add_(1)
        found = arrays_of(batch)
        assert np.array_equal(found["obs"], convert(obs.flatten(1)).numpy())
        assert np.array_equal(found["rewards"], batch.rewards.numpy())
        assert found["masks"] is None


def test_many_batches_keep_their_own_arrays() -> None:
    arrays_of = BatchArrays(FIELDS, plain)
    batches = [batch_of(torch.full((2, 3), float(i))) for i in range(20)]
    for _ in range(2):
        for i, batch in enumerate(batches):
            assert (arrays_of(batch)["obs"] == i).all()
    # A batch that is no longer used gives its identity to none that follows.
    for i in range(100):
        assert (arrays_of(batch_of(torch.full((2, 3), float(i))))["obs"] == i).all()


def test_the_memory_is_that_of_the_batch() -> None:
    batch = batch_of(torch.zeros(2, 3))
    arrays_of = BatchArrays(FIELDS, plain)
    assert arrays_of(batch) is arrays_of(batch)
    arrays_of(batch)["obs"][1, 2] = 5
    assert batch.obs[1, 2] == 5
