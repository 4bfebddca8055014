"""What chooses actions where experience is collected: in workers, and beside compiled environments. Loads no torch.

A call takes a few microseconds, where torch needs fifty, and a worker that has no torch is some 60 MB instead of 600.
An action depends on the observation, the weights, the episode's stream and the step alone, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl._rust import Mlp
from fastrl.streams import GOLDEN, mix, uniforms


class Actor(Protocol):
    """Chooses actions for rows of environments."""

    @property
    def weights_nbytes(self) -> int:
        """Size of what `load` reads, bytes; 0 if there is nothing to load."""
        ...

    def load(self, weights: Buffer) -> None:
        """Takes new weights from a contiguous buffer of `weights_nbytes` bytes of float32, which it copies.

        Raises:
            ValueError: another size, or NaN or infinity in it; nothing has changed then.
        """
        ...

    def act(
        self,
        obs: NDArray[np.float32],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
    ) -> None:
        """Chooses an action for each of K rows.

        Args:
            obs: float32 [K, D].
            streams: uint64 [K], `fastrl.streams.act_stream` of each row's episode.
            steps: int64 [K], of each row's episode, from 0 on.
            actions: int64 [K], or float32 [K, n]; written. What is drawn from a Gaussian is not bounded: clip it before
                an environment gets it, and learn from it as it is.
            log_probs: float32 [K]; written.
        """
        ...


ActorSpec = Callable[[], Actor]
"""Makes an actor; it pickles, so that workers make their own: ``functools.partial(MlpActor, architecture)``."""


class MlpActor:
    """A multi-layer perceptron, compiled. Its `act` takes ``masks`` and ``greedy`` too.

    Args:
        architecture: keyword arguments of `fastrl._rust.Mlp`, as ``ActorCritic.actor_architecture()`` gives them.
        num_threads: how many threads share out large batches; 1 in workers, of which there is one a core.

    Raises:
        TypeError, ValueError: the architecture has an unknown key, lacks one, or has a value out of range.
    """

    def __init__(self, architecture: Mapping[str, Any], num_threads: int = 1) -> None:
        self._mlp = Mlp(**architecture, num_threads=num_threads)
        self.weights_nbytes = 4 * self._mlp.num_weights

    def load(self, weights: Buffer) -> None:
        self._mlp.load(weights)

    def act(
        self,
        obs: NDArray[np.float32],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        self._mlp.act(obs, streams, steps, actions, log_probs, masks, greedy=greedy)


class RandomActor:
    """Uniform actions, whatever the observation. Nothing to load.

    Raises:
        ValueError: the action space is neither discrete from 0 on nor a bounded Box of one dimension.
    """

    weights_nbytes = 0

    def __init__(self, action_space: Space[Any]) -> None:
        if isinstance(action_space, Discrete) and action_space.start == 0:
            self._num_actions = int(action_space.n)
            self._log_prob = -math.log(self._num_actions)
        elif isinstance(action_space, Box) and len(action_space.shape) == 1 and action_space.is_bounded():
            self._num_actions = 0
            self._low = action_space.low.astype(np.float32)
            self._width = action_space.high.astype(np.float32) - self._low
            with np.errstate(divide="ignore"):
                self._log_prob = -float(np.log(self._width, dtype=np.float64).sum())
        else:
            raise ValueError(
                "RandomActor draws from Discrete actions from 0 on and from bounded one-dimensional Boxes,"
                f" got {action_space}"
            )

    def load(self, weights: Buffer) -> None:
        if memoryview(weights).nbytes:
            raise ValueError(f"weights: expected an empty buffer, got {memoryview(weights).nbytes} bytes")

    def act(
        self,
        obs: NDArray[np.float32],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
    ) -> None:
        if self._num_actions:
            # In float64, where the product cannot round up to the number of actions.
            actions[:] = uniforms(streams, steps).astype(np.float64) * self._num_actions
        else:
            numbers = np.arange(1, len(self._low) + 1, dtype=np.uint64)
            own = mix(streams[:, None] ^ (numbers * GOLDEN))
            actions[:] = self._low + self._width * uniforms(own, steps[:, None])
        log_probs[:] = self._log_prob
