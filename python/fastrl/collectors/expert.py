"""Experts: what chooses actions in the environment's own form, and knows nothing of training.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.collectors.action_noise import Noise, NoiseSource
from fastrl.envs.exact_rows import ExactRows, Sense
from fastrl.networks.compiled_actor import Rows


class Expert(Protocol):
    """Chooses actions of the environment for rows of observations. It is made in each worker.

    Attributes:
        state_size: numbers that it remembers of each episode, zeros at its start.
    """

    state_size: int

    def act(self, rows: Rows) -> NDArray[Any]:
        """Returns actions [K, *shape] in the dtype of the environment's action space.

        Args:
            rows: their ``obs`` are [K, D] of `ExactRows`. Of many agents they are those of all of them, row =
                environment * A + agent: masks and states are read where an agent is ``alive``, and actions are any
                where it is not.

        Raises:
            ExpertError: it failed at a row.
        """
        ...


class ExpertError(Exception):
    """An expert failed at row ``row`` of a call; the text says how. ``cause``: the exception that it raised."""

    def __init__(self, row: int, problem: str, cause: BaseException | None = None) -> None:
        super().__init__(problem)
        self.row, self.cause = row, cause


@dataclass(frozen=True)
class ExpertSpec:
    """An expert.

    Attributes:
        name: for messages.
        make: makes the `Expert` in any process, given the rows (None of many agents) and the action space; pickles.
        facts: what ``meta.json`` says of it, JSON-able. By it a recording that is resumed knows its expert.
        sense: what it reads beside the observation.
        action_masks: it is given the environment's action masks.
        batched: a call for many rows is faster than one for each.
    """

    name: str
    make: Callable[[Any, Space[Any]], Any]
    facts: dict[str, Any] = field(default_factory=dict)
    sense: Sense | None = None
    action_masks: bool = False
    batched: bool = False


class RandomExpert:
    """Uniform actions, of those that are allowed."""

    state_size = 0

    def __init__(self, rows: ExactRows | None, action_space: Space[Any]) -> None:
        self._noise = NoiseSource(Noise("epsilon", 1.0), action_space)
        self._shape, self._dtype = tuple(action_space.shape or ()), action_space.dtype

    def act(self, rows: Rows) -> NDArray[Any]:
        chosen = np.zeros((len(rows.obs), *self._shape), self._dtype)
        if rows.alive is not None:
            chosen[rows.alive] = self.act(rows.of(rows.alive)._replace(alive=None))
            return chosen
        # Other numbers than those of noise, which may be added.
        return self._noise.add(chosen, ~rows.streams, rows.steps, rows.masks)
