"""Actors of continuous actions within bounds, for every collector; they need no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl._native._rust import choose_bounded
from fastrl.networks.compiled_actor import WrappingActor
from fastrl.utils.seeding import uniforms_of_parts

Head = Literal["gaussian", "deterministic"]
"""Meaning of a network's outputs: means and logarithms of deviations of a Gaussian, or the actions; before tanh."""

# The deviation of the Gaussian stays between exp(-20) and exp(2) (Haarnoja et al., 2018).
LOG_STD_RANGE = (-20.0, 2.0)


class OutputNetwork(Protocol):
    """A network that gives the outputs of rows."""

    weights_nbytes: int
    state_size: int

    def load(self, weights: Buffer) -> None: ...

    def outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> NDArray[np.float32]: ...


class BoundedActor(WrappingActor):
    """Chooses actions from -1 to 1, which are the bounds: tanh of a Gaussian's draw, or of an output with noise added.

    The first number of the weights says whether actions are uniform instead, as before learning has started. Random
    numbers are those of the rows' streams and steps: an episode is the same with every collector.

    Args:
        head: what the outputs mean.
        size: numbers of an action, n.
        make_network: makes the network, which has 2 n outputs of a Gaussian, else n.
        noise: deviation of the Gaussian noise that is added to deterministic actions.
    """

    def __init__(
        self, head: Head, size: int, make_network: Callable[[], OutputNetwork], noise: float = 0.0
    ) -> None:
        super().__init__(make_network)
        self._head, self._size, self._noise = head, size, noise

    def act(
        self,
        obs: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        """See `fastrl.networks.compiled_actor.Actor.act`. Greedy is tanh of the mean. Log-densities are those of the
        actions from -1 to 1; of deterministic actions 0."""
        is_uniform = bool(self._number) and not greedy
        # A memory sees every observation.
        if self.state_size or not is_uniform:
            outputs = self.network.outputs(obs, states)
        if is_uniform:
            actions[...] = 2 * uniforms_of_parts(streams, steps, self._size) - 1
            log_probs[...] = -self._size * math.log(2)
            return
        noise = None if self._head == "gaussian" else self._noise
        choose_bounded(outputs, streams, steps, actions, log_probs, noise=noise, greedy=greedy)
