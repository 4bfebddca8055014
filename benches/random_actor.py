"""Random actions, for benchmarks and tests of collectors."""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import RowActor, Rows, masks_by_number, nth_allowed
from fastrl.utils.seeding import GOLDEN, mix, uniforms


class RandomActor(RowActor):
    """Uniform actions, whatever the observation: of a Box, draws from -1 to 1. Nothing to load.

    Raises:
        ValueError: an action space that `fastrl.networks.action_space.Actions` refuses.
    """

    weights_nbytes = 0

    def __init__(self, action_space: Space[Any]) -> None:
        self._actions = actions = Actions(action_space)
        count = actions.size * math.log(2) if actions.is_box else float(np.log(actions.nvec).sum())
        self._log_prob = -count

    def load(self, weights: Buffer) -> None:
        if memoryview(weights).nbytes:
            raise ValueError(f"weights: expected an empty buffer, got {memoryview(weights).nbytes} bytes")

    def choose(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """See `RowActor.choose`; greedy or not, all actions are as probable."""
        space, steps = self._actions, rows.steps
        if space.kind == "discrete":
            drawn = uniforms(rows.streams, steps)
        else:
            indices = np.arange(1, space.shape[0] + 1, dtype=np.uint64)
            drawn = uniforms(mix(rows.streams[:, None] ^ (indices * GOLDEN)), steps[:, None])
        if space.is_box:
            return 2 * drawn - 1, self._log_prob
        if rows.masks is not None:
            return _draw_allowed(space.nvec, drawn, rows.masks)
        # In float64, where the product cannot round up to the number of choices.
        return drawn.astype(np.float64) * space.nvec, self._log_prob


def _draw_allowed(
    nvec: NDArray[np.int64], drawn: NDArray[np.float32], masks: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draws each number among its allowed choices, from uniform numbers of the shape of the actions."""
    actions, log_probs = np.zeros(drawn.shape, np.int64), np.zeros(len(drawn))
    columns, uniform = (array.reshape(len(array), -1) for array in (actions, drawn))
    for column, allowed in enumerate(masks_by_number(masks, nvec)):
        num_allowed = allowed.sum(1)
        nth = (uniform[:, column].astype(np.float64) * num_allowed).astype(np.int64)
        columns[:, column] = nth_allowed(allowed, nth)
        log_probs -= np.log(np.maximum(num_allowed, 1))
    return actions, log_probs
