"""Parallel environments of PettingZoo that are small enough to follow by hand."""

import functools
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from space_cases import allows, two_choices


@functools.cache
def box(size: int) -> Box:
    return Box(-1, 1, (size,), np.float32)


@functools.cache
def discrete(n: int, start: int = 0) -> Discrete:
    return Discrete(n, start=start)


@functools.cache
def masked_box(num_actions: int) -> Dict:
    return Dict(observation=box(2), action_mask=Box(0, 1, (num_actions,), np.int8))


class Leavers(ParallelEnv[str, Any, Any]):
    """Each agent is paid for choosing its hidden number. Agent "a" leaves after 3 steps, "late" comes with the second;
    all are truncated after ``length`` steps."""

    metadata = {"name": "leavers"}  # noqa: RUF012

    def __init__(self, length: int = 6, continuous: bool = False, start: int = 0) -> None:
        self.possible_agents = ["a", "b", "late"]
        self.agents: list[str] = []
        self.length, self.continuous, self.start = length, continuous, start
        self.rng = np.random.default_rng(0)
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return box(2)

    def action_space(self, agent: str) -> Space[Any]:
        return box(1) if self.continuous else discrete(2, self.start)

    def _observe(self, agent: str) -> NDArray[np.float32]:
        self.hidden[agent] = int(self.rng.integers(2))
        return np.array([self.hidden[agent] * 2 - 1, self.t / self.length], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.hidden = 0, {}
        self.agents = ["a", "b"]
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert actions.keys() == set(self.agents)
        self.t += 1
        rewards = {agent: self._reward(agent, action) for agent, action in actions.items()}
        over = self.t >= self.length
        terminations = {agent: agent == "a" and self.t >= 3 for agent in actions}
        truncations = {agent: over and not terminations[agent] for agent in actions}
        self.agents = [agent for agent in actions if not (terminations[agent] or truncations[agent])]
        if self.t == 2 and not over:
            self.agents.append("late")
            rewards["late"], terminations["late"], truncations["late"] = 0.0, False, False
        observations = {agent: self._observe(agent) for agent in [*actions, *set(self.agents) - set(actions)]}
        return observations, rewards, terminations, truncations, {agent: {} for agent in observations}

    def _reward(self, agent: str, action: Any) -> float:
        hidden = self.hidden[agent]
        if self.continuous:
            return 1 - abs(float(action[0]) - (hidden * 2 - 1))
        assert self.action_space(agent).contains(action)
        return float(int(action) - self.start == hidden)


class Hints(Leavers):
    """The hidden number of an agent stays the same, and its first observation alone shows it. Episodes have 4 to 6
    steps."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.length = 4 + (seed or 0) % 3
        return super().reset(seed, options)

    def _observe(self, agent: str) -> NDArray[np.float32]:
        is_first = agent not in self.hidden
        if is_first:
            self.hidden[agent] = int(self.rng.integers(2))
        return np.array([is_first * (self.hidden[agent] * 2 - 1), self.t / self.length], np.float32)


class Differing(Leavers):
    """Agent "b" has a longer observation and more actions."""

    def observation_space(self, agent: str) -> Space[Any]:
        return box(5 if agent == "b" else 2)

    def action_space(self, agent: str) -> Space[Any]:
        return discrete(3 if agent == "b" else 2)

    def _observe(self, agent: str) -> NDArray[np.float32]:
        obs = super()._observe(agent)
        return np.concatenate([obs, np.ones(3, np.float32)]) if agent == "b" else obs


class Masked(Leavers):
    """Allows each agent two of its actions, others at each step, one in either half; the hidden number says which of
    the two is right. Any other action raises. "b" has fewer actions than the others. Episodes have 4 to 6 steps.

    Args:
        how: masks are in the "infos", or in the "observations"; or, wrongly, "nowhere", as "short" ones, or "none" of
            the actions is allowed, which does not raise.
    """

    def __init__(self, how: str = "infos", num_actions: int = 50, render_mode: str | None = None) -> None:
        super().__init__()
        self.how, self.num_actions, self.render_mode = how, num_actions, render_mode

    def observation_space(self, agent: str) -> Space[Any]:
        size = int(self.action_space(agent).n)
        return masked_box(size) if self.how == "observations" else box(2)

    def action_space(self, agent: str) -> Any:
        return discrete(self.num_actions - 10 * (agent == "b"))

    def _observe(self, agent: str) -> Any:
        obs, size = super()._observe(agent), int(self.action_space(agent).n)
        mask, half = np.zeros(size, np.int8), size // 2
        self.pairs[agent] = pair = [int(self.rng.integers(half)), half + int(self.rng.integers(half))]
        mask[pair] = self.how != "none"
        self.masks[agent] = mask
        return {"observation": obs, "action_mask": mask} if self.how == "observations" else obs

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.pairs: dict[str, list[int]] = {}
        self.masks: dict[str, NDArray[np.int8]] = {}
        self.length = 4 + (seed or 0) % 3
        obs, _ = super().reset(seed, options)
        return obs, self._infos()

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        return (*results[:4], self._infos())

    def _infos(self) -> dict[str, Any]:
        match self.how:
            case "infos" | "none":
                return {agent: {"action_mask": self.masks[agent]} for agent in self.agents}
            case "short":
                return {agent: {"action_mask": [True]} for agent in self.agents}
        return {agent: {} for agent in self.agents}

    def _reward(self, agent: str, action: Any) -> float:
        assert self.how == "none" or action in self.pairs[agent], f"{agent} may not choose {action}"
        return float(action == self.pairs[agent][self.hidden[agent]])

    def render(self) -> NDArray[np.uint8]:
        return np.full((16, 16, 3), 20 * self.t, np.uint8)


class Mixed(Leavers):
    """Agent "b" has actions of another kind."""

    def action_space(self, agent: str) -> Space[Any]:
        return MultiDiscrete([2, 2]) if agent == "b" else Discrete(2)


SPACES: dict[str, Space[Any]] = {
    "image": Box(0, 255, (10, 8, 3), np.uint8),
    "mixed": Dict({"camera": Box(0, 255, (10, 8), np.uint8), "time": Box(0, 1, (1,), np.float32)}),
    "nested": Dict(
        {"pair": Tuple([Discrete(2, start=3), MultiBinary(2)]), "time": Box(0, 1, (1,), np.float32)}
    ),
    "discrete": Discrete(2),
    "multi_discrete": MultiDiscrete([2, 3]),
    "multi_binary": MultiBinary([2, 2]),
}


class Kinds(Leavers):
    """Observations and actions of other kinds; of an action the first number counts."""

    def __init__(
        self, obs: str = "image", actions: str = "discrete", length: int = 6, render_mode: str | None = None
    ) -> None:
        super().__init__(length)
        self.obs, self.actions, self.render_mode = obs, actions, render_mode

    def observation_space(self, agent: str) -> Space[Any]:
        return SPACES[self.obs]

    def action_space(self, agent: str) -> Space[Any]:
        return SPACES[self.actions]

    def _observe(self, agent: str) -> Any:
        _, time = super()._observe(agent)
        hidden = self.hidden[agent]
        match self.obs:
            case "image":
                return np.full((10, 8, 3), 200 * hidden + 20, np.uint8)
            case "mixed":
                return {"camera": np.full((10, 8), 200 * hidden + 20, np.uint8), "time": np.float32([time])}
            case "nested":
                return {"pair": (hidden + 3, np.int8([hidden, 1])), "time": np.float32([time])}
        return hidden

    def _reward(self, agent: str, action: Any) -> float:
        assert self.action_space(agent).contains(action), action
        return float(int(np.ravel(action)[0]) == self.hidden[agent])

    def render(self) -> NDArray[np.uint8]:
        return np.full((16, 16, 3), 20 * self.t, np.uint8)


class OtherImages(Kinds):
    """Agent "b" observes images of another size."""

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(0, 255, (9, 9, 3), np.uint8) if agent == "b" else SPACES["image"]


class Failing(Leavers):
    """It raises in step ``at`` of its life; 0: in the first reset, -1: while it is built."""

    def __init__(self, at: int = 40, length: int = 6) -> None:
        super().__init__(length)
        self.at, self.taken = at, 0
        self._fail_if(at < 0)

    def _fail_if(self, condition: bool) -> None:
        if condition:
            raise KeyError("lane 3")

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._fail_if(self.at == 0)
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.taken += 1
        self._fail_if(self.taken == self.at)
        return super().step(actions)


class Vanishing(Leavers):
    """Agent "b" disappears without a flag."""

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "b"]
        return result


class AnyTeam(ParallelEnv[str, Any, Any]):
    """Two agents of any spaces, "b" leaving first; what happens follows from the seed and the actions.

    Args:
        masks: infos allow one or two choices of each number of their (flat) actions, others at each step.
    """

    metadata = {"name": "any"}  # noqa: RUF012

    def __init__(self, obs: Space[Any], actions: Space[Any], masks: bool = False) -> None:
        self._masks = masks
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []
        self._obs, self._actions = obs, actions
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Space[Any]:
        return self._obs

    def action_space(self, agent: str) -> Space[Any]:
        return self._actions

    def _observe(self) -> dict[str, Any]:
        # A space draws from a generator of its own.
        self._obs.seed(int(self._rng.integers(2**31)))
        return {agent: self._obs.sample() for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._rng = np.random.default_rng(seed)
        self.agents, self._left = ["a", "b"], {"a": 6, "b": int(self._rng.integers(2, 6))}
        return self._observe(), self._infos()

    def _infos(self) -> dict[str, Any]:
        if not self._masks:
            return {agent: {} for agent in self.agents}
        return {agent: {"action_mask": self._allowed(agent)} for agent in self.agents}

    def _allowed(self, agent: str) -> NDArray[np.bool_]:
        return two_choices(self._actions, self._left[agent], self._left["a"] + 1)

    def step(self, actions: Any) -> Any:
        rewards = {}
        for agent, action in actions.items():
            assert not self._masks or allows(self._actions, self._allowed(agent), action)
        for agent, action in actions.items():
            assert self._actions.contains(action), action
            self._left[agent] -= 1
            rewards[agent] = float(np.sum(action)) + self._rng.normal()
        obs = self._observe()
        over = {agent: self._left[agent] == 0 for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        terminations = {agent: ended and agent == "b" for agent, ended in over.items()}
        truncations = {agent: ended and agent == "a" for agent, ended in over.items()}
        return obs, rewards, terminations, truncations, self._infos()


def not_parallel() -> object:
    return object()
