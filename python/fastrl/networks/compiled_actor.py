"""Actors, which choose actions where experience is collected: in workers and beside compiled environments, without
torch.

A call takes a few microseconds, where torch needs fifty, and a worker that has no torch is some 60 MB instead of 600.
An action depends on the observation, the weights, the episode's stream and the step alone, to the last bit.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl._native._rust import Mlp


class Actor(Protocol):
    """Chooses actions for rows of environments."""

    @property
    def weights_nbytes(self) -> int:
        """Size of what `load` reads, bytes; 0 if there is nothing to load."""
        ...

    @property
    def state_size(self) -> int:
        """Length of the memory that it has of each row's episode; 0 without memory."""
        ...

    def load(self, weights: Buffer) -> None:
        """Takes new weights from a contiguous buffer of `weights_nbytes` bytes of float32, which it copies.

        Raises:
            ValueError: another size, or NaN or infinity in it; nothing has changed then.
        """
        ...

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
        """Chooses an action for each of K rows.

        Args:
            obs: float32 or uint8 [K, D], rows of `fastrl.envs.rows.ObsRows`.
            streams: uint64 [K], `fastrl.utils.seeding.act_stream` of each row's episode.
            steps: int64 [K], of each row's episode, from 0 on.
            actions: int64 [K], or int64 or float32 [K, n]; written. See `fastrl.networks.action_space.Actions` for
                what an environment gets of them.
            log_probs: float32 [K]; written.
            masks: bool [K, size], choices that are allowed, side by side for each number of a multi-discrete action;
                None: all.
            states: float32 [K, state_size], the memory of each row's episode, zeros at its start; read, and replaced by
                the memory after this step. None without memory.
            greedy: choose the most probable action (of a normal distribution its mean), as evaluation does.
        """
        ...


class Rows(NamedTuple):
    """Inputs of an actor, see `Actor.act`; ``alive``: of many agents those that act, bool [K]."""

    obs: NDArray[Any]
    streams: NDArray[np.uint64]
    steps: NDArray[np.int64]
    masks: NDArray[np.bool_] | None
    states: NDArray[np.float32] | None
    greedy: bool = False
    alive: NDArray[np.bool_] | None = None

    def of(self, where: slice | NDArray[np.bool_]) -> Rows:
        """Some of the rows; of a slice the states are views."""

        def some(array: Any) -> Any:
            return None if array is None else array[where]

        obs, streams, steps, masks, states, greedy, alive = self
        return Rows(some(obs), some(streams), some(steps), some(masks), some(states), greedy, some(alive))


class RowActor:
    """Base of actors that are written in Python."""

    state_size: int = 0

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
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        """See `Actor.act`; ``alive``: as of `Rows`."""
        actions[...], log_probs[...] = self.choose(Rows(obs, streams, steps, masks, states, greedy, alive))

    def choose(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """Draws [K, ...] and their log-probabilities [K]; replaces the states."""
        raise NotImplementedError


class WrappingActor:
    """Base of actors that ask another one, whose weights come after a number of their own.

    Args:
        make_network: makes the other one.

    Attributes:
        network: the other one.
    """

    network: Any

    def __init__(self, make_network: Callable[[], Any]) -> None:
        self._make_network, self.network = make_network, make_network()
        self._number = np.float32(0)
        self.weights_nbytes: int = 4 + self.network.weights_nbytes
        self.state_size: int = self.network.state_size

    def with_threads(self, num_threads: int) -> Self:
        """Makes an actor whose network has another number of threads, without weights."""
        made, network = copy.copy(self), self.network
        is_compiled = isinstance(network, MlpActor)
        made.network = network.with_threads(num_threads) if is_compiled else self._make_network()
        made._number = np.float32(0)
        return made

    def to(self, device: str) -> None:
        """Computes on a device if PyTorch does."""
        moved(self.network, device)

    def load(self, weights: Buffer) -> None:
        """See `Actor.load`."""
        view = memoryview(weights).cast("B")
        if len(view) != self.weights_nbytes:
            raise ValueError(f"weights: expected {self.weights_nbytes} bytes, got {len(view)}")
        self.network.load(view[4:])
        self._number = np.frombuffer(view[:4], np.float32)[0]


@runtime_checkable
class ValuingActor(Actor, Protocol):
    """An actor whose network gives values of observations beside the actions, at no cost.

    Attributes:
        values: float32 [K], of the observations of the last `act`; valid until the next.
    """

    values: NDArray[np.float32]


def values_of(actor: Actor) -> NDArray[np.float32]:
    """The ``values`` of a `ValuingActor`."""
    return cast("ValuingActor", actor).values


ActorSpec = Callable[[], Actor]
"""Makes an actor; it pickles, so that workers make their own: ``functools.partial(MlpActor, architecture)``."""


def moved(actor: Actor, device: str) -> Actor:
    """The actor, which computes on a device from here on if PyTorch computes it; a compiled one stays on the CPU."""
    if device != "cpu" and (move := getattr(actor, "to", None)) is not None:
        move(device)
    return actor


# The widest observation of a compiled actor.
MAX_OBS_DIM = 2**16
# Most rows of the tables that compiled networks take.
MAX_TABLE_ROWS = 1024


class MlpActor:
    """A multi-layer perceptron, compiled; with a memory, a GRU or an LSTM before its last layer.

    Args:
        architecture: keyword arguments of `fastrl._native._rust.Mlp`, as ``ActorCritic.actor_architecture()`` gives
            them.
        num_threads: how many threads share out large batches; 1 in workers, of which there is one a core.

    Attributes:
        is_compiled: an action does not depend on the rows beside it, as where PyTorch computes it may.
        mlp: what computes.
        act: see `Actor.act`.

    Raises:
        TypeError, ValueError: the architecture has an unknown key, lacks one, or has a value out of range.
    """

    is_compiled = True

    def __init__(self, architecture: Mapping[str, Any], num_threads: int = 1) -> None:
        self._architecture = architecture
        self.mlp = Mlp(**architecture, num_threads=num_threads)
        self.act = self.mlp.act
        self.weights_nbytes = 4 * self.mlp.num_weights
        self.state_size = self.mlp.state_size
        # Weights for a pickle; None: they are published.
        self._fixed: bytes | None = None

    @classmethod
    def with_weights(cls, architecture: Mapping[str, Any], weights: Buffer) -> MlpActor:
        """Makes an actor with weights that stay, as `load` reads them: unlike others it pickles with its weights."""
        made = cls(architecture)
        made.load(weights)
        made._fixed = memoryview(weights).cast("B").tobytes()
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        if self._fixed is None:
            raise TypeError(
                "an actor without fixed weights does not pickle: pickle what makes it, an ActorSpec"
            )
        return MlpActor.with_weights, (dict(self._architecture), self._fixed)

    def with_threads(self, num_threads: int) -> MlpActor:
        """Makes an actor of the same architecture with another number of threads, without weights."""
        return MlpActor(self._architecture, num_threads)

    def load(self, weights: Buffer) -> None:
        self.mlp.load(weights)

    def outputs(self, obs: NDArray[np.float32], states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """The network's outputs, float32 [K, outputs], at rows [K, D]; replaces the states [K, state_size]."""
        out = np.empty((len(obs), self._architecture["outputs"]), np.float32)
        self.mlp.outputs(obs, out, states)
        return out


def with_weights(spec: ActorSpec, weights: NDArray[np.float32]) -> Actor:
    """An actor with weights that stay; it pickles with them."""
    if isinstance(spec, functools.partial) and spec.func is MlpActor:
        [architecture] = spec.args
        return MlpActor.with_weights(architecture, weights.data)
    actor = spec()
    actor.load(weights.data)
    return actor


def masks_by_number(masks: NDArray[Any], nvec: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Masks [..., choices] of each number of an action, whose choices ``nvec`` has, from masks [..., sum of nvec]."""
    return np.split(masks, np.cumsum(nvec)[:-1], axis=-1)


def nth_allowed(masks: NDArray[np.bool_], nth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Finds the allowed choice number nth [K], from 0 on, in each row of masks [K, choices]; 0 where there is none."""
    return (masks.cumsum(1) > nth[:, None]).argmax(1)
