"""An environment of any spaces, and an actor that takes all of them."""

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Space, Text, Tuple
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan
from fastrl.envs.rows import ActionRows
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import Rows
from random_actor import RandomActor

OBS_SPACES: dict[str, Space[Any]] = {
    "vector": Box(-1, 1, (3,), np.float32),
    "matrix of float64": Box(-np.inf, np.inf, (2, 3), np.float64),
    "integers": Box(-5, 5, (2,), np.int32),
    "discrete": Discrete(5),
    "discrete from 3": Discrete(5, start=3),
    "multi-discrete": MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-1, 0]]),
    "multi-binary": MultiBinary([2, 2]),
    "dict": Dict(a=Discrete(3, start=3), b=Box(-1, 1, (2, 2)), c=Tuple([MultiBinary(2), Discrete(2)])),
    "image": Box(0, 255, (4, 5, 3), np.uint8),
    "dict with image": Dict(camera=Box(0, 255, (4, 5), np.uint8), speed=Box(-1, 1, (3,)), goal=Discrete(4)),
}
ACTION_SPACES: dict[str, Space[Any]] = {
    "discrete": Discrete(4),
    "discrete from 3": Discrete(3, start=3),
    "multi-discrete": MultiDiscrete([3, 2, 4]),
    "matrix of multi-discrete": MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-1, 0]]),
    "multi-binary": MultiBinary([2, 2]),
    "box": Box(np.float32([-1, 0]), np.float32([1, 10])),
    "matrix of float64": Box(-2, 2, (2, 2), np.float64),
    "integers": Box(-5, 5, (2,), np.int32),
}


def _nvec(space: Any) -> NDArray[Any]:
    if isinstance(space, MultiBinary):
        return np.full(space.shape, 2).ravel()
    return np.array([space.n]) if isinstance(space, Discrete) else space.nvec.ravel()


def two_choices(space: Space[Any], *choices: int) -> NDArray[np.bool_]:
    """The mask that allows these choices, or their remainders, of each number of a (flat) action."""
    return np.concatenate([np.isin(np.arange(n), [each % n for each in choices]) for n in _nvec(space)])


def allows(space: Any, mask: NDArray[np.bool_], action: Any) -> bool:
    """True if a mask allows an action of a space."""
    first = np.cumsum(_nvec(space)) - _nvec(space)
    return bool(mask[first + np.ravel(action - getattr(space, "start", 0))].all())


class AnySpaces(gymnasium.Env[Any, Any]):
    """An episode of 1 to 9 steps, every third truncated: lengths, observations and rewards follow from its seed and the
    actions.

    Args:
        obs, actions: keys of `OBS_SPACES` and `ACTION_SPACES`, or spaces.
        masks: it allows one or two choices of each number of its (flat) actions, others at each step.
    """

    def __init__(
        self, obs: str | Space[Any] = "vector", actions: str | Space[Any] = "discrete", masks: bool = False
    ) -> None:
        self.observation_space = OBS_SPACES[obs] if isinstance(obs, str) else obs
        self.action_space = ACTION_SPACES[actions] if isinstance(actions, str) else actions
        if masks:
            self.action_masks = self.allowed
        self.left = 0

    def _obs(self) -> Any:
        # A space draws from a generator of its own.
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def allowed(self) -> Any:
        return two_choices(self.action_space, self.left, self.offset)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.offset = (int(number) for number in self.np_random.integers(1, 10, size=2))
        self.cut = self.left % 3 == 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if hasattr(self, "action_masks"):
            assert allows(self.action_space, self.allowed(), action)
        self.left -= 1
        over = self.left == 0
        reward = float(np.sum(action)) + self.np_random.normal()
        return self._obs(), reward, over and not self.cut, over and self.cut, {}


class Talk(gymnasium.Env[Any, Any]):
    """Observations of a kind that no collector handles."""

    observation_space: Space[Any] = Graph(Discrete(5), None)
    action_space: Space[Any] = Discrete(2)


class Words(Talk):
    """Actions of a kind that no collector handles."""

    observation_space = Discrete(2)
    action_space = Text(5)


class ObsActor(RandomActor):
    """Draws that depend on the observation, on every byte of it."""

    def choose(self, rows: Rows) -> tuple[Any, Any]:
        obs = np.ascontiguousarray(rows.obs).view(np.uint8).reshape(len(rows.obs), -1).astype(np.uint64)
        weights = np.arange(1, obs.shape[1] + 1, dtype=np.uint64)
        return super().choose(rows._replace(streams=rows.streams ^ (obs * weights).sum(1)))


def plan(
    obs: str = "vector",
    actions: str = "discrete",
    unit: Any = "steps",
    *,
    masks: bool = False,
    squash: bool = False,
    num_steps: int = 12,
) -> Plan:
    space = ACTION_SPACES[actions]
    return Plan(
        as_spec(AnySpaces, obs=obs, actions=actions, **({"masks": True} if masks else {})),
        functools.partial(ObsActor, ActionRows(space).flat_space),
        OBS_SPACES[obs],
        space,
        num_envs=5,
        num_steps=num_steps,
        unit=unit,
        episodes=11 if unit == "episodes" else 0,
        seed=7,
        action_masks=masks,
        squash=squash,
    )
