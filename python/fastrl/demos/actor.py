"""The actor of a recording: an expert, and noise on its actions.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.demos.rows import ExactRows
from fastrl.envs.rows import ActionRows
from fastrl.networks.compiled_actor import nth_allowed
from fastrl.utils.seeding import NO_ENV, act_streams, env_seed, mix, normals, uniforms_of_parts

# Tells the random numbers of noise from those of a policy in the same episode.
_NOISE = np.uint64(0x6E6F697365)

# Steps of an episode whose random numbers are drawn together.
BLOCK = 256

NoiseKind = Literal["epsilon", "gaussian"]


class Expert(Protocol):
    """Chooses actions of the environment for rows of observations. It is made in each worker.

    Attributes:
        state_size: numbers that it remembers of each episode, zeros at its start.
    """

    state_size: int

    def act(
        self,
        rows: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        masks: NDArray[np.bool_] | None,
        states: NDArray[np.float32] | None,
    ) -> NDArray[Any]:
        """Returns actions [K, *shape] in the dtype of the environment's action space.

        Args:
            rows: [K, D] of `ExactRows`.
            streams, steps, masks, states: as of `fastrl.networks.compiled_actor.Actor.act`.

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
class Noise:
    """Noise on an expert's actions.

    Attributes:
        kind: "epsilon": with probability ``scale`` any action, uniformly; "gaussian": normal noise of a standard
            deviation of ``scale`` times half the range of each number (``scale`` itself where it is unbounded),
            clipped to the bounds.
        scale: 0: no noise.
    """

    kind: NoiseKind
    scale: float

    def check(self, space: Space[Any]) -> None:
        """Refuses noise that the action space does not take.

        Raises:
            ValueError
        """
        is_float = isinstance(space, Box) and np.dtype(space.dtype).kind == "f"
        if not 0 <= self.scale < np.inf or (self.kind == "epsilon" and self.scale > 1):
            raise ValueError(f"noise: expected a number from 0 on, of epsilon at most 1, got {self.scale}")
        if self.kind == "gaussian" and not is_float:
            raise ValueError(f"noise: Gaussian noise is for a Box of floats, the actions are {space}")
        if self.kind == "epsilon" and isinstance(space, Box) and not space.is_bounded():
            raise ValueError(f"noise: random actions of epsilon need bounds, the actions are {space}")


class NoiseSource:
    """Random numbers of a noise, functions of an episode's stream and its step alone.

    Args:
        space: of actions.
    """

    def __init__(self, noise: Noise, space: Space[Any]) -> None:
        noise.check(space)
        self._kind, self._scale, self._space = noise.kind, noise.scale, space
        self._count = int(np.prod(space.shape or ()))
        # Of one stream, which a call for one row has: numbers of the next steps, computed together.
        self._stream, self._first = np.uint64(0), -BLOCK
        self._block: tuple[NDArray[Any], NDArray[Any]] = (np.zeros(0), np.zeros(0))

    def add(
        self,
        actions: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        masks: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """Actions [K, *shape] with noise."""
        if len(streams) > 1 or masks is not None:
            explores, numbers = self._draw(streams, steps)
            return self._apply(actions, explores, numbers, masks)
        step, stream = int(steps[0]), streams[0]
        at = step - self._first
        if not (0 <= at < BLOCK and stream == self._stream):
            self._stream, self._first, at = stream, step, 0
            self._block = self._draw(np.full(BLOCK, stream), np.arange(step, step + BLOCK))
        explores, numbers = self._block
        if self._kind == "epsilon" and not explores[at]:
            return actions
        return self._apply(actions, explores[at : at + 1], numbers[at : at + 1], None)

    def _draw(
        self, streams: NDArray[np.uint64], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Of each row: whether it takes a random action, and numbers [K, count] for it."""
        own = mix(streams ^ _NOISE)
        if self._kind == "gaussian":
            return np.ones(len(steps), np.bool_), normals(own, steps, self._count).astype(np.float64)
        drawn = uniforms_of_parts(own, steps, 1 + self._count).astype(np.float64)
        return drawn[:, 0] < self._scale, drawn[:, 1:]

    def _apply(
        self,
        actions: NDArray[Any],
        explores: NDArray[np.bool_],
        numbers: NDArray[np.float64],
        masks: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        if self._kind == "gaussian":
            assert isinstance(self._space, Box)
            return _with_normals(self._space, self._scale, actions, numbers)
        if not explores.any():
            return actions
        others = actions.copy()
        drawn = _any_action(self._space, numbers[explores], None if masks is None else masks[explores])
        others[explores] = drawn.reshape(-1, *actions.shape[1:])
        return others


def _with_normals(
    space: Box, scale: float, actions: NDArray[Any], numbers: NDArray[np.float64]
) -> NDArray[Any]:
    bounded = space.bounded_below & space.bounded_above
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.where(bounded, (space.high.astype(np.float64) - space.low) / 2, 1.0)
        noisy = actions + scale * half * numbers.reshape(actions.shape)
        return np.clip(noisy.astype(space.dtype), space.low, space.high)


def _any_action(
    space: Space[Any], numbers: NDArray[np.float64], masks: NDArray[np.bool_] | None
) -> NDArray[Any]:
    """Uniform actions from uniform numbers [K, n]; where there are masks, of those that they allow."""
    # In float64 products cannot round up.
    if isinstance(space, Box):
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        if np.dtype(space.dtype).kind != "f":
            return (low + np.floor(numbers * (high - low + 1))).astype(space.dtype)
        return np.clip(
            (low + numbers * (high - low)).astype(space.dtype), space.low.ravel(), space.high.ravel()
        )
    flat = ActionRows(space).flat_space
    nvec = np.array([flat.n]) if isinstance(flat, Discrete) else np.asarray(getattr(flat, "nvec", ()))
    if masks is None:
        chosen = (numbers * nvec).astype(np.int64)
    else:
        parts = np.split(masks, np.cumsum(nvec)[:-1], axis=1)
        columns = [
            nth_allowed(own, (numbers[:, i] * own.sum(1)).astype(np.int64)) for i, own in enumerate(parts)
        ]
        chosen = np.stack(columns, axis=1)
    start = space.start if isinstance(space, Discrete | MultiDiscrete) else 0
    assert isinstance(space, Discrete | MultiDiscrete | MultiBinary)
    return (chosen + np.ravel(start)).astype(space.dtype)


class RecordingActor:
    """Acts as an expert does, with noise; see `fastrl.networks.compiled_actor.Actor`. There is nothing to load.

    Args:
        make_expert: makes the expert, given the rows and the action space.
        name: of the expert, for errors.
        rows: of observations.
        action_space: of the environment.
        noise: None: there is none.
        seed: of the plan; episodes: how many there are. By them an error names its episode.
    """

    weights_nbytes = 0

    def __init__(
        self,
        make_expert: Callable[[ExactRows, Space[Any]], Expert],
        name: str,
        rows: ExactRows,
        action_space: Space[Any],
        noise: Noise | None,
        seed: int,
        episodes: int,
    ) -> None:
        self._name = name
        self._noise = None if noise is None else NoiseSource(noise, action_space)
        self._seed, self._episodes = seed, episodes
        try:
            self._expert = make_expert(rows, action_space)
        except CollectError:
            raise
        except Exception as error:
            trace = own_traceback(error)
            raise CollectError(f"expert {name}: {last_line(trace) if trace else error}", trace) from error
        self.state_size = self._expert.state_size

    def load(self, weights: Buffer) -> None:
        raise ValueError("weights: this actor has none to load")

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
        """Writes pairs of actions [K, 2, *shape], see `fastrl.demos.plan.RecordedActions`."""
        try:
            chosen = self._expert.act(obs, streams, steps, masks, states)
        except ExpertError as error:
            row, cause = error.row, error.cause
            trace = "" if cause is None else own_traceback(cause)
            raise CollectError(
                f"expert {self._name} {error} at step {int(steps[row])} of {self._episode(streams[row])}:"
                " correct the expert, then --resume records from there",
                trace,
            ) from cause
        actions[:, 1] = chosen
        if self._noise is not None:
            chosen = self._noise.add(chosen, streams, steps, masks)
        actions[:, 0] = chosen

    def _episode(self, stream: np.uint64) -> str:
        numbers = np.arange(self._episodes)
        streams = act_streams(self._seed, np.full(self._episodes, NO_ENV), numbers)
        found = np.flatnonzero(streams == stream)
        if not len(found):
            return "an episode"
        number = int(found[0])
        return f"episode {number} (reset with seed {env_seed(self._seed, NO_ENV, number)})"
