"""Actors of continuous actions within bounds, for every collector; they need no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl.networks.compiled_actor import MlpActor, RowActor, Rows, moved
from fastrl.utils.seeding import normals, uniforms_of_parts

Head = Literal["gaussian", "deterministic"]
"""Meaning of a network's outputs: means and logarithms of deviations of a Gaussian, or the actions; before tanh."""

# The deviation of the Gaussian stays between exp(-20) and exp(2) (Haarnoja et al., 2018).
LOG_STD_RANGE = (-20.0, 2.0)

# Arrays: numpy takes twice as long with numbers of Python's where rows are few.
_LOWEST, _HIGHEST, _LOG_2, _HALF_LOG_2_PI, _HALF, _TWO = np.array(
    (*LOG_STD_RANGE, math.log(2), 0.5 * math.log(2 * math.pi), 0.5, 2), np.float32
).reshape(6, 1, 1)
_NOTHING = np.zeros((1, 1), np.float32)


class OutputNetwork(Protocol):
    """A network that gives the outputs of rows."""

    weights_nbytes: int
    state_size: int

    def load(self, weights: Buffer) -> None: ...

    def outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> NDArray[np.float32]: ...


class BoundedActor(RowActor):
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
        self._head, self._size, self._make_network, self._noise = head, size, make_network, noise
        self._network = make_network()
        self._is_uniform = False
        self.weights_nbytes = 4 + self._network.weights_nbytes
        self.state_size = self._network.state_size

    def with_threads(self, num_threads: int) -> BoundedActor:
        """Makes an actor whose network has another number of threads, without weights."""
        made = BoundedActor(self._head, self._size, self._make_network, self._noise)
        if isinstance(made._network, MlpActor):
            made._network = made._network.with_threads(num_threads)
        return made

    def to(self, device: str) -> None:
        """Computes on a device if PyTorch does."""
        moved(self._network, device)  # type: ignore[arg-type]

    def load(self, weights: Buffer) -> None:
        """See `fastrl.networks.compiled_actor.Actor.load`."""
        view = memoryview(weights).cast("B")
        if len(view) != self.weights_nbytes:
            raise ValueError(f"weights: expected {self.weights_nbytes} bytes, got {len(view)}")
        self._network.load(view[4:])
        self._is_uniform = bool(np.frombuffer(view[:4], np.float32)[0])

    def choose(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """See `RowActor.choose`. Greedy is tanh of the mean. Log-densities are those of the actions from -1 to 1; of
        deterministic actions 0."""
        size, is_uniform = self._size, self._is_uniform and not rows.greedy
        # A memory sees every observation.
        if self.state_size or not is_uniform:
            outputs = self._network.outputs(rows.obs, rows.states)
        if is_uniform:
            return 2 * uniforms_of_parts(rows.streams, rows.steps, size) - 1, -size * math.log(2)
        if self._head == "deterministic":
            best = np.tanh(outputs)
            if not rows.greedy and self._noise:
                best += np.float32(self._noise) * normals(rows.streams, rows.steps, size)
                best = np.minimum(np.maximum(best, -1), 1)
            return best, 0.0
        # np.clip takes five times as long where rows are few.
        log_stds = np.minimum(np.maximum(outputs[:, size:], _LOWEST), _HIGHEST)
        noise = _NOTHING if rows.greedy else normals(rows.streams, rows.steps, size)
        draws = outputs[:, :size] + np.exp(log_stds) * noise
        # log(1 - tanh(u)^2), finite for every u.
        slopes = _TWO * (_LOG_2 - draws - np.logaddexp(_NOTHING, -_TWO * draws))
        log_probs = (-log_stds - _HALF_LOG_2_PI - _HALF * noise * noise - slopes).sum(1)
        return np.tanh(draws), log_probs
