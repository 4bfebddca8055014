"""Images of parallel environments of PettingZoo as small grey frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from fastrl._native._pixels import Shrinker
from fastrl.envs.contract import ContractError, describe
from fastrl.envs.spec import EnvSpec


class SmallFrames:
    """A parallel environment whose agents observe small grey frames: each agent its newest ones, zeros before its
    first.

    Args:
        env: whose agents all observe images, uint8 [H, W] or [H, W, 3].
        size: side of the frames.
        stack: frames in an observation, uint8 [size, size, stack], the newest one last.
        name: of the environment, for messages.

    Raises:
        ValueError: an agent observes something else.
    """

    def __init__(self, env: Any, size: int, stack: int, name: str) -> None:
        self.env, self._name = env, name
        self.metadata = getattr(env, "metadata", {})
        self.possible_agents = list(env.possible_agents)
        self._space = Box(0, 255, (size, size, stack), np.uint8)
        self._shrinkers: dict[Any, Shrinker] = {}
        self._frames: dict[Any, NDArray[np.uint8]] = {}
        for agent in self.possible_agents:
            own = env.observation_space(agent)
            shape = tuple(own.shape or ())
            if (
                not isinstance(own, Box)
                or own.dtype != np.uint8
                or shape[2:] not in ((), (3,))
                or len(shape) < 2
            ):
                raise ValueError(
                    f"env: {name}: --env.size is for images, uint8 [H, W] or [H, W, 3]; {agent} observes {own}"
                )
            self._shrinkers[agent] = Shrinker((shape[0], shape[1]), (size, size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def observation_space(self, agent: Any) -> Space[Any]:
        return self._space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        self._frames = {}
        if isinstance(result, tuple) and len(result) == 2:
            return self._small("reset", result[0]), result[1]
        return result

    def step(self, actions: Mapping[Any, Any]) -> Any:
        result = self.env.step(actions)
        if isinstance(result, tuple) and len(result) == 5:
            return (self._small("step", result[0]), *result[1:])
        return result

    def _small(self, method: str, observations: Any) -> Any:
        """Small frames of observations; what is no dict is left to others to refuse."""
        if not isinstance(observations, Mapping):
            return observations
        found = {}
        for agent, frame in observations.items():
            before = self._frames.get(agent)
            frames = np.zeros(self._space.shape, np.uint8)
            if before is not None:
                frames[..., :-1] = before[..., 1:]
            small = np.empty(frames.shape[:2], np.uint8)
            try:
                self._shrinkers[agent].shrink(np.asarray(frame), small)
            except (TypeError, ValueError, KeyError):
                raise ContractError(
                    f"{self._name}: {method}() gave {agent} an observation that its observation_space does not have:"
                    f" {describe(frame)}"
                ) from None
            frames[..., -1] = small
            found[agent] = self._frames[agent] = frames
        return found


def make_parallel(spec: EnvSpec, size: int | None = None, stack: int = 1) -> Any:
    """A parallel environment, with `SmallFrames` if there is a size.

    Raises:
        ValueError: there is no such factory, an agent observes no image, or a stack without a size.
        Any error of the factory.
    """
    if size is None:
        if stack > 1:
            raise ValueError(
                f"env: --env.stack {stack} needs --env.size, such as 84: only grey frames are stacked"
            )
        return spec.build_object()
    return SmallFrames(spec.build_object(), size, stack, spec.id)
