"""Goals of an environment, and what it says about goals that were achieved: for hindsight."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from numpy.typing import NDArray
from torch import Tensor

from fastrl.envs import contract
from fastrl.envs.rows import ObsRows, Part
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import build_env
from fastrl.runs.errors import TrainError

_KEYS = ("achieved_goal", "desired_goal")


class Goals:
    """The goals in rows of observations, and the rewards of an environment for others.

    The environment's observations are a Dict with ``achieved_goal`` and ``desired_goal``. Its
    ``compute_reward(achieved_goal, desired_goal, info)`` gives the reward of a step. A ``compute_terminated`` with the
    same arguments, if it has one, says whether the step ends the episode, which otherwise stays as it was. Both are
    called with arrays of goals [G, ...] and an empty info; where they do not give G values, with one goal at a time.

    Args:
        spec: of the environment.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self.env: gymnasium.Env[Any, Any] | None = None
        self._has_terminated = False

    def arguments(self, obs_rows: ObsRows) -> dict[str, Any]:
        """Arguments of a `fastrl.replay.HindsightSampler`.

        Args:
            obs_rows: of the replay.

        Raises:
            TrainError: the environment has no goals, or none in vectors.
        """
        space, name = obs_rows.space, f"--replay.hindsight on {self._spec.id}"
        if self._spec.is_vector or not isinstance(space, Dict) or not {*_KEYS} <= space.spaces.keys():
            what = "a vector environment" if self._spec.is_vector else f"{space}"
            raise TrainError(
                f"{name}: expected single environments with observations of a Dict with achieved_goal and desired_goal,"
                f" got {what}; leave hindsight out"
            )
        parts = {part.path[0]: part for part in obs_rows.parts if len(part.path) == 1}
        found = [parts.get(key) for key in _KEYS]
        self._parts: list[Part] = [part for part in found if part is not None and part.kind == "vector"]
        if (
            obs_rows.dtype != np.float32
            or len(self._parts) < 2
            or space[_KEYS[0]].shape != space[_KEYS[1]].shape
        ):
            raise TrainError(
                f"{name}: expected achieved_goal and desired_goal as Boxes of one shape, and no images,"
                f" got {space}; leave hindsight out"
            )
        self.open()
        assert self.env is not None
        inner = self.env.unwrapped
        self.close()
        if not callable(getattr(inner, "compute_reward", None)):
            raise TrainError(
                f"{name}: the environment has no compute_reward(achieved_goal, desired_goal, info); add it, or leave"
                " hindsight out"
            )
        self._has_terminated = callable(getattr(inner, "compute_terminated", None))
        achieved, desired = (part.place for part in self._parts)
        return {
            "achieved": achieved,
            "desired": desired,
            "reward_fn": self.rewards,
            "terminated_fn": self.terminated if self._has_terminated else None,
        }

    def open(self) -> None:
        """Builds the environment, unless it is there."""
        if self.env is None:
            self.env = build_env(self._spec.as_rows())

    def close(self) -> None:
        """Closes the environment."""
        if self.env is not None:
            contract.close(self.env)
            self.env = None

    def rewards(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Rewards float32 [G] of rows of goals [G, g]."""
        return torch.from_numpy(self._ask("compute_reward", achieved, desired).astype(np.float32))

    def terminated(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Steps that end the episode, bool [G], of rows of goals [G, g]."""
        return torch.from_numpy(self._ask("compute_terminated", achieved, desired).astype(np.bool_))

    def _ask(self, method: str, achieved: Tensor, desired: Tensor) -> NDArray[Any]:
        assert self.env is not None, "open() comes first"
        ask: Callable[..., Any] = getattr(self.env.unwrapped, method)
        first, second = (
            goals.numpy().reshape(len(goals), *part.shape).astype(part.space.dtype)
            for goals, part in zip((achieved, desired), self._parts, strict=True)
        )
        try:
            values = np.asarray(ask(first, second, {}))
            if values.shape != (len(first),):
                values = np.array([ask(a, b, {}) for a, b in zip(first, second, strict=True)])
            if values.shape != (len(first),) or values.dtype.kind not in "fiub":
                raise ValueError(
                    f"expected a number for each goal, got {values.dtype} of shape {list(values.shape)}"
                )
            if not np.isfinite(values).all():
                raise ValueError("expected finite numbers, got NaN or infinity")
        except Exception as error:
            line = " ".join(str(error).split())
            raise TrainError(f"{self._spec.id}: {method}(): {type(error).__name__}: {line}") from error
        return values
