"""Experts that run in worker processes: trained policies, functions, models of Stable-Baselines3. Those of many agents
choose for rows of all of them, row = environment * A + agent; their actions are any where an agent is not alive.

Recordings send a ``functools.partial`` of an expert, which lacks the rows and the action space, to the workers. This
module loads no torch; a policy that PyTorch computes does when it is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from fastrl.collectors.expert import ExpertError
from fastrl.collectors.protocol import CollectError
from fastrl.demos.plan import exact_action
from fastrl.envs.exact_rows import ExactRows
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.envs.single import AgentView
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, Rows
from fastrl.utils.torch_threads import one_thread

if TYPE_CHECKING:
    from fastrl.networks.team_actor import TeamActor


def one_thread_if_loaded() -> contextlib.AbstractContextManager[None]:
    """`one_thread`, if PyTorch is loaded and has several."""
    torch: Any = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None or torch.get_num_threads() == 1 else one_thread()


class PolicyExpert:
    """A trained policy, which may be that of all agents of an environment.

    Args:
        actor: with its weights, pickles.
        squash: see `Actions`.
        greedy: it takes its likeliest action.
        rows: of observations; None: they are the actor's own.
        action_space: of the environment.
        num_agents: whose rows the actor takes together.
    """

    def __init__(
        self,
        actor: Actor | TeamActor,
        squash: bool,
        greedy: bool,
        rows: ExactRows | None,
        action_space: Space[Any],
        num_agents: int = 1,
    ) -> None:
        self._actor, self._greedy = actor, greedy
        self.state_size = actor.state_size
        # Both forms of observations that the actor takes in another one.
        self._rows = None if rows is None or rows.direct else (rows, ObsRows(rows.space))
        self._action_rows = ActionRows(action_space)
        self._actions = Actions(self._action_rows.flat_space, squash)
        # What PyTorch gives for a row depends on the rows beside it in the last bits.
        self._together = None if getattr(actor, "is_compiled", False) else num_agents

    def act(self, rows: Rows) -> NDArray[Any]:
        count = len(rows.obs)
        if self._rows is not None:
            exact, own_rows = self._rows
            obs = np.zeros((count, own_rows.size), own_rows.dtype)
            own_rows.write_batch(exact.read(rows.obs), obs)
            rows = rows._replace(obs=obs)
        draws = np.zeros((count, *self._actions.shape), self._actions.dtype)
        log_probs = np.zeros(count, np.float32)
        size = self._together or max(count, 1)
        with contextlib.nullcontext() if self._together is None else one_thread_if_loaded():
            for start in range(0, count, size):
                own = slice(start, start + size)
                obs, streams, steps, masks, states, _, alive = rows.of(own)
                of_team: dict[str, Any] = {} if alive is None else {"alive": alive}
                inputs = np.ascontiguousarray(obs), streams, steps, draws[own], log_probs[own], masks, states
                self._actor.act(*inputs, greedy=self._greedy, **of_team)
        return np.asarray(self._action_rows.to_env(self._actions.to_env(draws)))


def team_policy_expert(
    make_actor: Callable[[], TeamActor], num_agents: int, greedy: bool, rows: None, action_space: Space[Any]
) -> PolicyExpert:
    """Trained policies of all agents, whose actor, with its weights, is made in the worker."""
    return PolicyExpert(make_actor(), False, greedy, rows, action_space, num_agents)


def function_at(path: str) -> Callable[[Any], Any]:
    """The function that an import path names.

    Raises:
        CollectError: there is none.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CollectError(f"expert {path}: {error}; it should be importable in every process") from None
    found = getattr(module, name, None)
    if not callable(found):
        what = "is no function" if hasattr(module, name) else "does not exist"
        raise CollectError(
            f"expert {path}: {name} {what} in {module_name}; it should take an observation and return an action"
        )
    function: Callable[[Any], Any] = found
    return function


def _function(given: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, of an import path."""
    return function_at(given) if isinstance(given, str) else given


class FunctionExpert:
    """A function from one observation, as the environment gives it, to an action; or its import path."""

    state_size = 0

    def __init__(
        self, function: str | Callable[[Any], Any], rows: ExactRows, action_space: Space[Any]
    ) -> None:
        self._function, self._rows, self._space = _function(function), rows, action_space
        self._shape, self._dtype = tuple(action_space.shape or ()), action_space.dtype
        # Discrete actions that are taken without a closer look.
        self._numbers = (
            range(int(action_space.start), int(action_space.start + action_space.n))
            if isinstance(action_space, Discrete)
            else range(0)
        )

    def act(self, rows: Rows) -> NDArray[Any]:
        chosen = np.empty((len(rows.obs), *self._shape), self._dtype)
        for i, obs in enumerate(rows.obs):
            given = called(self._function, i, self._rows.read_one(obs))
            is_number = given.__class__ is int and given in self._numbers
            chosen[i] = given if is_number else checked(self._space, given, i)
        return chosen


class TeamFunctionExpert:
    """A function that chooses for one agent at a time.

    Args:
        function: from an observation and the name of its agent to an action; or its import path.
        agents: their names, and the shapes of their observations.
    """

    state_size = 0

    def __init__(
        self,
        function: str | Callable[[Any, Any], Any],
        agents: Sequence[tuple[Any, tuple[int, ...]]],
        rows: None,
        action_space: Space[Any],
    ) -> None:
        self._function, self._agents, self._space = _function(function), agents, action_space

    def act(self, rows: Rows) -> NDArray[Any]:
        assert rows.alive is not None, "rows of agents"
        chosen = np.zeros((len(rows.obs), *(self._space.shape or ())), self._space.dtype)
        for i in np.flatnonzero(rows.alive).tolist():
            name, shape = self._agents[i % len(self._agents)]
            obs = rows.obs[i, : int(np.prod(shape))].reshape(shape).copy()
            chosen[i] = checked(self._space, called(self._function, i, obs, name), i)
        return chosen


class AgentExpert:
    """An agent of the user's own, which may remember its episode: it plays one at a time.

    Args:
        path: of a class, see `fastrl.play.own_agent.OwnAgent`.
        view: what it sees and does; None: all of the environment.
    """

    state_size = 0

    def __init__(self, path: str, view: AgentView | None, rows: ExactRows, action_space: Space[Any]) -> None:
        from fastrl.play.own_agent import OwnAgent

        self._agent = OwnAgent(path, action_space if view is None else len(view.actions))
        self._view, self._rows, self._space = view, rows, action_space
        self._episode: int | None = None

    def act(self, rows: Rows) -> NDArray[Any]:
        chosen = np.empty((len(rows.obs), *(self._space.shape or ())), self._space.dtype)
        for i, (obs, stream, step) in enumerate(zip(rows.obs, rows.streams, rows.steps, strict=True)):
            if step == 0:
                self._episode = int(stream)
                called(self._agent.start, i)
            elif self._episode != stream:
                raise ExpertError(
                    i, "plays one episode at a time, --collector sequential or executor; got another one"
                )
            chosen[i] = self._choose(self._rows.read_one(obs), i)
        return chosen

    def _choose(self, obs: Any, row: int) -> Any:
        view = self._view
        if view is None:
            return checked(self._space, called(self._agent.act, row, obs), row)
        action = int(checked(Discrete(len(view.actions)), called(self._agent.act, row, obs[: view.obs]), row))
        if view.actions[action] < 0:
            raise ExpertError(row, f"chose action {action}, which is not among the environment's,")
        return view.actions[action]


def called(function: Callable[..., Any], row: int, *arguments: Any) -> Any:
    """Return value of a function for the observation of a row.

    Raises:
        ExpertError: it raised.
    """
    try:
        # A context costs as much as a small function, and is rarely needed.
        torch: Any = sys.modules.get("torch")
        if torch is None or torch.get_num_threads() == 1:
            return function(*arguments)
        with one_thread():
            return function(*arguments)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise ExpertError(row, f"raised {type(error).__name__}{': ' * bool(said)}{said}", error) from error


def checked(space: Space[Any], given: Any, row: int) -> NDArray[Any] | int:
    """The action that a function returned for the observation of a row.

    Raises:
        ExpertError: it is none of the space.
    """
    try:
        return exact_action(space, given)
    except ValueError as error:
        raise ExpertError(row, f"returned something else: {error},") from None


def sb3_expert(path: str, algorithm: str, rows: ExactRows, action_space: Space[Any]) -> FunctionExpert:
    """The expert of a model that Stable-Baselines3 has saved, which takes its likeliest action.

    Args:
        path: of the zip file.
        algorithm: class of it, such as ``"stable_baselines3.ppo.ppo:PPO"``.
    """
    module, _, name = algorithm.partition(":")
    model = getattr(importlib.import_module(module), name).load(path, device="cpu")
    for what, own, found in (
        ("observation", rows.space, model.observation_space),
        ("action", action_space, model.action_space),
    ):
        if own != found:
            raise CollectError(
                f"expert {path}: its {what} space is {found}, the environment's is {own}: give the environment and the"
                " options that it was trained with"
            )
    return FunctionExpert(lambda obs: model.predict(obs, deterministic=True)[0], rows, action_space)
