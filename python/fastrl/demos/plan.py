"""The plan of a recording: whole episodes, with observations, actions and rewards as the environment has them.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan
from fastrl.envs.contract import ACTION_MASK, describe
from fastrl.envs.exact_rows import ExactRows, RecordedEnv, recorded_space
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions


class RecordedActions(Actions):
    """Pairs of actions in the environment's own form: the one that it gets, and the expert's before noise.

    A draw is an array [2, *shape] of the space's dtype.

    Args:
        space: of the environment's actions: Discrete, MultiDiscrete, MultiBinary or a Box of numbers.

    Attributes:
        size: width of an action mask.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: Space[Any]) -> None:
        flat = ActionRows(space).flat_space
        self.space, self.squash = space, False
        self.is_box = isinstance(space, Box)
        self.kind = "box" if self.is_box else "discrete" if isinstance(space, Discrete) else "multi_discrete"
        self._own_shape = tuple(space.shape or ())
        self.shape = (2, *self._own_shape)
        self.dtype = np.dtype(space.dtype)
        self._start: Any = 0
        self.nvec = np.zeros(0, np.int64)
        if isinstance(flat, Discrete):
            self.nvec = np.array([flat.n], np.int64)
        elif isinstance(flat, MultiDiscrete):
            self.nvec = flat.nvec.astype(np.int64)
        if isinstance(space, Discrete | MultiDiscrete):
            self._start = space.start
        self.size = int(self.nvec.sum())

    @property
    def scaling(self) -> None:
        """None: draws are actions in the environment's own form."""

    def to_env(self, draws: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(draws[:, 0])

    def to_envs(self, draws: NDArray[Any]) -> Sequence[Any]:
        taken = draws[:, 0]
        # An int, or arrays that are not written to later.
        return taken.tolist() if self.kind == "discrete" else taken.copy()  # type: ignore[return-value]

    def choices(self, draws: NDArray[Any]) -> NDArray[Any]:
        taken: NDArray[Any] = draws.take(0, axis=draws.ndim - len(self.shape))
        return taken.astype(np.int64) - self._start


@dataclass(frozen=True)
class RecordedSpec(EnvSpec):
    """A spec whose environments give rows of `ExactRows` and take actions in their own form.

    Attributes:
        base: builds the environment.
        exact: rows of its observations.
    """

    base: EnvSpec | None = None
    exact: ExactRows | None = None

    @classmethod
    def of(cls, base: EnvSpec, exact: ExactRows) -> Self:
        return cls(base.id, base.options, is_vector=base.is_vector, base=base, exact=exact)

    @property
    def is_local(self) -> bool:
        assert self.base is not None
        return self.base.is_local

    def as_rows(self) -> Self:
        return self

    def build(self, num_envs: int | None = None) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]:
        assert self.base is not None and self.exact is not None
        env = self.base.build(num_envs)
        if isinstance(env, VectorEnv) or self.exact.direct:
            return env
        return RecordedEnv(env, self.exact, self.id)


@dataclass(frozen=True)
class RecordingPlan(Plan):
    """A plan of whole episodes whose fragments hold everything exactly.

    ``obs_space`` and ``action_space`` are those of the environment, or of an agent of many; ``env`` is a
    `RecordedSpec`, or a `fastrl.collectors.team_spec.TeamSpec`, whose observations are recorded as rows.

    Attributes:
        actor_state: length of the actor's state in each environment.
    """

    actor_state: int = 0
    reward_dtype = np.float64

    def __post_init__(self) -> None:
        self._check_numbers()
        rows = self.env.exact if isinstance(self.env, RecordedSpec) else ObsRows(self.obs_space)
        self._derive(obs_rows=rows, actions=RecordedActions(self.action_space))
        self._check_masks()

    @property
    def infos(self) -> list[str]:
        """Keys of infos that are recorded."""
        if isinstance(self.obs_rows, ExactRows):
            return [each.key for each in self.obs_rows.infos]
        return [ACTION_MASK] if self.action_masks else []

    @functools.cached_property
    def recorded_space(self) -> Space[Any]:
        """Space of the observations in the data set: of many agents their rows."""
        return self.obs_space if isinstance(self.obs_rows, ExactRows) else recorded_space(self.obs_space)

    @property
    def state_size(self) -> int:  # type: ignore[override]
        return self.actor_state

    @property
    def has_values(self) -> bool:  # type: ignore[override]
        return False


# Types of discrete actions that are used as they are.
_INTEGERS = frozenset({int, np.int64, np.int32})


def exact_action(space: Space[Any], given: Any) -> NDArray[Any] | int:
    """An action in the form of its space, an array of its dtype or a number.

    Raises:
        ValueError: it is not in the space; the message ends a sentence: "expected ..., got ...".
    """
    if isinstance(space, Discrete) and given.__class__ in _INTEGERS:
        number: int = given  # type: ignore[assignment]
        if space.start <= number < space.start + space.n:
            return number
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        array = np.empty(0, object)
    shape = tuple(space.shape or ())
    if array.size == 1 and array.size == int(np.prod(shape)):
        array = array.reshape(shape)
    kinds = "biuf" if isinstance(space, Box) and np.dtype(space.dtype).kind == "f" else "biu"
    if array.shape != shape or array.dtype.kind not in kinds:
        raise ValueError(f"expected an action of {space}, got {describe(given)}")
    cast = array.astype(space.dtype)
    if isinstance(space, Box):
        is_inside = bool(((cast >= space.low) & (cast <= space.high)).all())
    elif isinstance(space, MultiBinary):
        is_inside = bool(((array == 0) | (array == 1)).all())
    elif isinstance(space, Discrete):
        is_inside = bool(space.start <= array < space.start + space.n)
    else:
        assert isinstance(space, MultiDiscrete)
        is_inside = bool(((array >= space.start) & (array < space.start + space.nvec)).all())
    if not is_inside:
        text = str(array.tolist())
        text = text if len(text) <= 60 else f"{text[:57]}..."
        advice = "; np.clip keeps it there" if isinstance(space, Box) and np.isfinite(cast).all() else ""
        raise ValueError(f"expected an action of {space}, got {text}{advice}")
    return cast


def recorded_pair(actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Executed and expert's actions [T, *shape] of pairs [T, 2, *shape]."""
    return actions[:, 0], actions[:, 1]
