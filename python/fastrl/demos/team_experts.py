"""Experts for all agents of an environment: trained policies, functions, uniform actions.

This module runs in worker processes and loads no torch; a policy that PyTorch computes does when it is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.collectors.expert import RandomExpert
from fastrl.demos.experts import called, checked, function_at, one_thread_if_loaded
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Rows
from fastrl.networks.team_actor import TeamActor


class TeamExpert(Protocol):
    """Chooses actions for rows of agents, row = environment * A + agent."""

    state_size: int

    def act(self, rows: Rows) -> NDArray[Any]:
        """Returns flat actions [K * A, *shape], any where an agent is not alive.

        Args:
            rows: as of `fastrl.collectors.expert.Expert`; masks and states are read where an agent is ``alive``.

        Raises:
            ExpertError: it failed at a row.
        """
        ...


@dataclass(frozen=True)
class MakeTeamPolicy:
    """Makes a `TeamPolicyExpert`.

    Attributes:
        make_actor: makes the actor with its weights; pickles. num_agents: A.
        greedy: it takes its likeliest actions.
    """

    make_actor: Callable[[], TeamActor]
    num_agents: int
    greedy: bool

    def __call__(self, rows: Any, action_space: Space[Any]) -> TeamPolicyExpert:
        return TeamPolicyExpert(self, action_space)


class TeamPolicyExpert:
    """Trained policies of all agents."""

    def __init__(self, made: MakeTeamPolicy, action_space: Space[Any]) -> None:
        self._actor, self._greedy = made.make_actor(), made.greedy
        self.state_size = self._actor.state_size
        self._actions = Actions(action_space)
        # Outputs of PyTorch for a row depend on the rows beside it in the last bits.
        self._together = None if self._actor.is_compiled else made.num_agents

    def act(self, rows: Rows) -> NDArray[Any]:
        count = len(rows.obs)
        draws = np.zeros((count, *self._actions.shape), self._actions.dtype)
        log_probs = np.zeros(count, np.float32)
        size, how = self._together or count, self._greedy
        with one_thread_if_loaded():
            for start in range(0, count, size):
                env = slice(start, start + size)
                obs, streams, steps, masks, states, _, alive = rows.of(env)
                assert alive is not None, "rows of agents"
                out = draws[env], log_probs[env]
                self._actor.act(obs, streams, steps, *out, masks, states, greedy=how, alive=alive)
        return self._actions.to_env(draws)


@dataclass(frozen=True)
class MakeTeamFunction:
    """Makes a `TeamFunctionExpert`.

    Attributes:
        path: ``"my_module:my_function"``; empty: ``function`` itself.
        agents: their names, and the shapes of their observations.
        function: from an observation and the name of its agent to an action.
    """

    path: str
    agents: Sequence[tuple[Any, tuple[int, ...]]]
    function: Callable[[Any, Any], Any] | None = None

    def __call__(self, rows: Any, action_space: Space[Any]) -> TeamFunctionExpert:
        return TeamFunctionExpert(self, action_space)


class TeamFunctionExpert:
    """A function that chooses for one agent at a time."""

    state_size = 0

    def __init__(self, made: MakeTeamFunction, action_space: Space[Any]) -> None:
        self._function = made.function or function_at(made.path)
        self._agents, self._space = made.agents, action_space

    def act(self, rows: Rows) -> NDArray[Any]:
        assert rows.alive is not None, "rows of agents"
        chosen = np.zeros((len(rows.obs), *(self._space.shape or ())), self._space.dtype)
        for i in np.flatnonzero(rows.alive).tolist():
            name, shape = self._agents[i % len(self._agents)]
            obs = rows.obs[i, : int(np.prod(shape))].reshape(shape).copy()
            chosen[i] = checked(self._space, called(self._function, i, obs, name), i)
        return chosen


class RandomTeam:
    """Uniform actions of each agent, of those that are allowed."""

    state_size = 0

    def __init__(self, rows: Any, action_space: Space[Any]) -> None:
        self._each = RandomExpert(rows, action_space)
        self._space = action_space

    def act(self, rows: Rows) -> NDArray[Any]:
        assert rows.alive is not None, "rows of agents"
        chosen = np.zeros((len(rows.obs), *(self._space.shape or ())), self._space.dtype)
        chosen[rows.alive] = self._each.act(rows.of(rows.alive))
        return chosen
