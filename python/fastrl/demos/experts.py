"""Experts that run in worker processes: trained policies, functions, models of Stable-Baselines3.

This module loads no torch; a policy that PyTorch computes does when it is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
    from fastrl.play.own_agent import OwnAgent


def one_thread_if_loaded() -> contextlib.AbstractContextManager[None]:
    """`one_thread`, if PyTorch is loaded and has several."""
    torch: Any = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None or torch.get_num_threads() == 1 else one_thread()


@dataclass(frozen=True)
class MakePolicy:
    """Makes a `PolicyExpert`.

    Attributes:
        actor: with its weights, pickles. squash: see `Actions`. greedy: it takes its likeliest action.
    """

    actor: Actor
    squash: bool
    greedy: bool

    def __call__(self, rows: ExactRows, action_space: Space[Any]) -> PolicyExpert:
        return PolicyExpert(self, rows, action_space)


class PolicyExpert:
    """A trained policy."""

    def __init__(self, made: MakePolicy, rows: ExactRows, action_space: Space[Any]) -> None:
        self._actor, self._greedy = made.actor, made.greedy
        self.state_size = made.actor.state_size
        self._rows, self._action_rows = rows, ActionRows(action_space)
        self._obs_rows = ObsRows(rows.space)
        self._actions = Actions(self._action_rows.flat_space, made.squash)
        # What PyTorch gives for a row depends on the rows beside it in the last bits.
        self._one_by_one = not getattr(made.actor, "is_compiled", False)

    def act(self, rows: Rows) -> NDArray[Any]:
        count = len(rows.obs)
        if not self._rows.direct:
            obs = np.zeros((count, self._obs_rows.size), self._obs_rows.dtype)
            self._obs_rows.write_batch(self._rows.read(rows.obs), obs)
            rows = rows._replace(obs=obs)
        draws = np.zeros((count, *self._actions.shape), self._actions.dtype)
        log_probs = np.zeros(count, np.float32)
        size = 1 if self._one_by_one else max(count, 1)
        with one_thread_if_loaded() if self._one_by_one else contextlib.nullcontext():
            for start in range(0, count, size):
                own = slice(start, start + size)
                obs, streams, steps, masks, states, *_ = rows.of(own)
                obs = np.ascontiguousarray(obs)
                self._actor.act(
                    obs, streams, steps, draws[own], log_probs[own], masks, states, greedy=self._greedy
                )
        return np.asarray(self._action_rows.to_env(self._actions.to_env(draws)))


@dataclass(frozen=True)
class MakeFunction:
    """Makes a `FunctionExpert`.

    Attributes:
        path: ``"my_module:my_function"``; empty: ``function`` itself.
        function: from an observation to an action.
    """

    path: str
    function: Callable[[Any], Any] | None = None

    def __call__(self, rows: ExactRows, action_space: Space[Any]) -> FunctionExpert:
        return FunctionExpert(self.function or function_at(self.path), rows, action_space)


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


class FunctionExpert:
    """A function from one observation, as the environment gives it, to an action."""

    state_size = 0

    def __init__(self, function: Callable[[Any], Any], rows: ExactRows, action_space: Space[Any]) -> None:
        self._function, self._rows, self._space = function, rows, action_space
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


@dataclass(frozen=True)
class MakeAgent:
    """Makes an `AgentExpert`.

    Attributes:
        path: of a class, see `fastrl.play.own_agent.OwnAgent`.
        view: what it sees and does; None: all of the environment.
    """

    path: str
    view: AgentView | None

    def __call__(self, rows: ExactRows, action_space: Space[Any]) -> AgentExpert:
        from fastrl.play.own_agent import OwnAgent

        space = action_space if self.view is None else len(self.view.actions)
        return AgentExpert(OwnAgent(self.path, space), self.view, rows, action_space)


class AgentExpert:
    """An agent of the user's own, which may remember its episode: it plays one at a time."""

    state_size = 0

    def __init__(
        self, agent: OwnAgent, view: AgentView | None, rows: ExactRows, action_space: Space[Any]
    ) -> None:
        self._agent, self._view, self._rows, self._space = agent, view, rows, action_space
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


# Stable-Baselines3


@dataclass(frozen=True)
class MakeSB3:
    """Makes an expert of a model that Stable-Baselines3 has saved.

    Attributes:
        path: of the zip file. algorithm: class of it, such as ``"stable_baselines3.ppo.ppo:PPO"``.
        greedy: it takes its likeliest action.
    """

    path: str
    algorithm: str

    def __call__(self, rows: ExactRows, action_space: Space[Any]) -> FunctionExpert:
        module, _, name = self.algorithm.partition(":")
        model = getattr(importlib.import_module(module), name).load(self.path, device="cpu")
        for what, own, found in (
            ("observation", rows.space, model.observation_space),
            ("action", action_space, model.action_space),
        ):
            if own != found:
                raise CollectError(
                    f"expert {self.path}: its {what} space is {found}, the environment's is {own}: give the environment"
                    " and the options that it was trained with"
                )
        return FunctionExpert(lambda obs: model.predict(obs, deterministic=True)[0], rows, action_space)
