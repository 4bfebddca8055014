"""Baselines of fastrl/v2x-resource-v0 that do not learn."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.v2x import POWERS


def random_actions(
    rng: np.random.Generator, rows: int, num_links: int = 4, powers: int = len(POWERS)
) -> NDArray[np.int64]:
    """The random baseline: any block and any power, int64 [rows]."""
    return rng.integers(num_links * powers, size=rows)


def greedy_actions(
    obs: NDArray[np.float32], num_links: int = 4, powers: Sequence[float] = POWERS
) -> NDArray[np.int64]:
    """The greedy baseline: the greatest power in the block where an agent's channel to its receiver is best compared
    with the interference of the last step. `obs` float32 [rows, D]; returns int64 [rows]."""
    n = num_links
    fading = obs[:, n : 2 * n] * 35.0 - 10.0
    disturbance = -(obs[:, n + n * n : 2 * n + n * n] * 60.0 + 60.0)
    block = np.argmin(fading + disturbance, axis=1)
    return np.asarray(block + n * int(np.argmax(powers)), np.int64)
