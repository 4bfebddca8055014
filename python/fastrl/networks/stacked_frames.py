"""Stacked frames in two orders: as environments are played, [h, w, k], and as a replay stacks them, [k, h, w]."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl.networks.compiled_actor import Actor, moved


def stacked_last(space: Space[Any]) -> Box:
    """The space of stacked frames [h, w, k], from that of [k, h, w]."""
    stack, *size = space.shape or ()
    return Box(0, 255, (*size, stack), np.uint8)


def stacked_first(space: Space[Any]) -> Box:
    """The space of stacked frames [k, h, w], from that of [h, w, k]."""
    *size, stack = space.shape or ()
    return Box(0, 255, (stack, *size), np.uint8)


class FramesFirst:
    """Acts for rows of stacked frames [h, w, k] by an actor that takes them as [k, h, w].

    Args:
        actor: of a network that has learned from frames which a replay stacks.
        space: of stacked frames [h, w, k].
    """

    def __init__(self, actor: Actor, space: Space[Any]) -> None:
        self._actor, self._shape = actor, space.shape or ()
        self.state_size, self.weights_nbytes = actor.state_size, actor.weights_nbytes

    def to(self, device: str) -> None:
        """Computes on a device if PyTorch does."""
        moved(self._actor, device)

    def load(self, weights: Buffer) -> None:
        """See `Actor.load`."""
        self._actor.load(weights)

    def act(self, obs: NDArray[Any], *arguments: Any, **options: Any) -> None:
        """See `Actor.act`."""
        frames = obs.reshape(-1, *self._shape).transpose(0, 3, 1, 2)
        self._actor.act(np.ascontiguousarray(frames).reshape(obs.shape), *arguments, **options)
