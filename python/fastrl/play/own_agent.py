"""Agents that users have written by hand, found by import path, to be scored beside policies."""

import importlib
import inspect
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastrl.runs.errors import HookError
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError
from fastrl.utils.refusals import brief


def is_agent(name: str) -> bool:
    """True for an import path such as ``my_agent:Agent``."""
    module, _, attribute = name.partition(":")
    parts = [*module.split("."), attribute]
    return all(part.isidentifier() for part in parts) and not Path(name).exists()


class OwnAgent:
    """An agent of a user's own: an `fastrl.play.play.Act`.

    It is a function from an observation to an action, or a class with ``act(obs)`` or, as in CAGE Challenge 2,
    ``get_action(observation, action_space)``. A class is made once, without arguments. If it has
    ``set_initial_values(action_space, observation)``, that is called before its first action, and ``reset()`` or
    ``end_episode()`` at the start of each episode.

    Args:
        path: the import path.
        action_space: what ``get_action`` is given.

    Raises:
        ConfigError: it cannot be imported, or is none of these.
        HookError: it cannot be made.
    """

    def __init__(self, path: str, action_space: Any) -> None:
        self._path, self._space = path, action_space
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"agent {path}: {error}") from None
        agent = self._call(found) if inspect.isclass(found) else found
        self._begin = getattr(agent, "set_initial_values", None)
        self._start = getattr(agent, "reset", None) or getattr(agent, "end_episode", None)
        if callable(getattr(agent, "act", None)):
            self._choose: Callable[[Any], Any] = agent.act
        elif callable(getattr(agent, "get_action", None)):
            self._choose = lambda obs: agent.get_action(obs, self._space)
        elif callable(agent):
            self._choose = agent
        else:
            raise ConfigError(
                f"agent {path}: expected a function from an observation to an action, or a class with act(obs) or"
                f" get_action(observation, action_space), got {type(agent).__name__}"
            )

    def __call__(self, obs: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        if state is None:
            self.start()
        return self.act(obs), True

    def start(self) -> None:
        """Begins an episode."""
        if self._start is not None:
            self._call(self._start)

    def act(self, obs: Any) -> Any:
        """The action for an observation."""
        if self._begin is not None:
            self._call(self._begin, self._space, obs)
            self._begin = None
        return self._call(self._choose, obs)

    def act_index(self, obs: Any) -> int:
        """The action for an observation, where actions are numbered and ``action_space`` is their number.

        Raises:
            ConfigError: it is no such number.
        """
        chosen = self.act(obs)
        try:
            index = operator.index(chosen)
        except TypeError:
            index = -1
        if not 0 <= index < self._space:
            raise ConfigError(
                f"agent {self._path}: expected an action from 0 to {self._space - 1}, got {brief(chosen)}"
            )
        return index

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            raise HookError(f"agent {self._path}", error) from error
