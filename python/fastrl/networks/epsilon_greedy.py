"""The actor of algorithms that learn values of actions, for every collector; it needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.networks.compiled_actor import (
    ActorSpec,
    MlpActor,
    RowActor,
    Rows,
    WrappingActor,
    nth_allowed,
    with_weights,
)
from fastrl.utils.seeding import uniforms, uniforms_of_parts


class EpsilonGreedyActor(WrappingActor, RowActor):
    """Chooses the best action, or with probability epsilon any allowed one.

    Epsilon is the first number of the weights, so it is newest where they are. Random numbers are those of the rows'
    streams and steps: an episode is the same with every collector.

    Args:
        make_greedy: makes the actor that chooses the best action.
        num_actions: A.
        spread: exploration differs between episodes: each has epsilon to the power of 1 + spread * u, with u from 0 to
            1 drawn for the episode. The actors of Horgan et al., "Distributed Prioritized Experience Replay", 2018,
            section 4.1, differ so.

    Attributes:
        network: the actor that chooses the best action.
    """

    def __init__(self, make_greedy: ActorSpec, num_actions: int, spread: float = 0.0) -> None:
        super().__init__(make_greedy)
        self._num_actions, self._spread = num_actions, spread

    @classmethod
    def with_weights(
        cls, make_greedy: ActorSpec, num_actions: int, weights: NDArray[np.float32], epsilon: float
    ) -> EpsilonGreedyActor:
        """Makes an actor with weights and an epsilon that stay; it pickles with them.

        Args:
            weights: of the greedy actor.

        Raises:
            ValueError: as of `load`, or epsilon is no share.
        """
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon: expected a share from 0 to 1, got {epsilon}")
        made = cls(make_greedy, num_actions)
        made.network, made._number = with_weights(make_greedy, weights), np.float32(epsilon)
        return made

    @property
    def is_compiled(self) -> bool:
        """See `MlpActor`."""
        return isinstance(self.network, MlpActor)

    def choose(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """See `RowActor.choose`."""
        obs, streams, steps, masks, states, greedy, _ = rows
        best, log_probs = np.zeros(len(obs), np.int64), np.zeros(len(obs), np.float32)
        self.network.act(obs, streams, steps, best, log_probs, masks, states, greedy=True)
        if greedy or self._number == 0:
            return best, 0.0
        epsilon: Any = self._number
        if self._spread:
            # The number before those of the first step.
            epsilon = epsilon ** (1 + self._spread * uniforms(streams, np.full_like(steps, -1)))
        drawn = uniforms_of_parts(streams, steps, 2)
        allowed: Any = self._num_actions if masks is None else masks.sum(1)
        # In float64, where the product cannot round up to the number of actions.
        nth = (drawn[:, 1].astype(np.float64) * allowed).astype(np.int64)
        others = nth if masks is None else nth_allowed(masks, nth)
        actions = np.where(drawn[:, 0] < epsilon, others, best)
        return actions, np.log(epsilon / np.maximum(allowed, 1) + (1 - epsilon) * (actions == best))
