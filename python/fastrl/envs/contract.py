"""Checks that an environment keeps to Gymnasium's interface, made wherever one is stepped.

Each step is checked for its form: five values, an observation of the space's shape, a number, two flags. Stored
numbers are checked to be finite many at a time (`expect_finite`, `fastrl.rollout.fragment.all_finite`): it costs less.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fastrl.utils.forks import end_copy, ending_copies

# Types that are used as they are. Other numbers, such as a tensor without dimensions, are converted to float.
_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
_FLAGS = frozenset({bool, np.bool_})
# Key of an info: 1 at the end of an episode that the next one continues, as the lives of a game do.
CONTINUES = "continues"
# Keys of return and length of a game that is over, which may have had several episodes, as Gymnasium's
# RecordEpisodeStatistics names them; see `info_values`.
GAME_RETURN, GAME_LENGTH = "episode.r", "episode.l"
# Key of an info: the choices that are allowed now, where there is no method ``action_masks()``.
ACTION_MASK = "action_mask"

# Infos of a recorded episode of one agent of many: the agent's number, that of the environment's episode, and the
# latter's steps.
AGENT, ENV_EPISODE, ENV_STEP = "agent", "episode", "step"

_OLD = "change it, or wrap the environment in shimmy.GymV21CompatibilityV0"
_STEP = "step() should return (obs, reward, terminated, truncated, info)"
_RESET = "reset(seed=..., options=...) should return (obs, info)"


class ContractError(RuntimeError):
    """An environment broke Gymnasium's interface; the message is one line that begins with the environment."""


class Form(NamedTuple):
    """The expected form of an environment's observations.

    Attributes:
        name: of the environment, for messages.
        shape: of an observation.
        kinds: allowed kinds of NumPy dtypes: integers are accepted for a space of floats, not the other way round.
        integer_dtype: the dtype of a space of integers, into which integers of other dtypes must fit; else None.
    """

    name: str
    shape: tuple[int, ...]
    kinds: str
    integer_dtype: np.dtype[Any] | None


def obs_form(name: str, shape: tuple[int, ...], dtype: Any) -> Form:
    """The form for the shape and dtype of an observation space."""
    expected: np.dtype[Any] = np.dtype(dtype)
    if expected.kind == "f":
        return Form(name, tuple(shape), "biuf", None)
    return Form(name, tuple(shape), "biu", expected)


def reset(
    env: gymnasium.Env[Any, Any],
    form: Form,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Starts an episode.

    Args:
        form: of the environment's observations.
        seed: passed to the environment.
        options: passed to the environment unless None.

    Returns:
        The first observation, an array of the given form, and the info.

    Raises:
        ContractError: the environment returns something else.
        Any error of the environment.
    """
    name = form.name
    try:
        with ending_copies():
            result = env.reset(seed=seed) if options is None else env.reset(seed=seed, options=options)
    except Exception as error:
        if (wrong := explain_error(name, error)) is not None:
            raise wrong from None
        raise
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ContractError(f"{name}: {_RESET}, got {describe(result)}, as in the old Gym: {_OLD}")
    obs, info = result
    return _observation(form, "reset", obs), info


def close(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Closes an environment and ignores its errors: after an error it may be unable to close."""
    with contextlib.suppress(Exception, SystemExit), ending_copies():
        env.close()


def step(
    env: gymnasium.Env[Any, Any], form: Form, action: Any
) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
    """Takes a step. Arguments and errors are those of `reset`.

    Returns:
        Observation as of `reset`, reward, terminated, truncated, and the environment's info.
    """
    name, shape, kinds, integer_dtype = form
    # As `ending_copies`, which would cost a microsecond.
    owner = os.getpid()
    try:
        result = env.step(action)
    except BaseException as error:
        end_copy(owner, error)
        if isinstance(error, Exception) and (wrong := explain_error(name, error)) is not None:
            raise wrong from None
        raise
    if os.getpid() != owner:
        end_copy(owner)
    # Not the types that the environment declares: these checks find out.
    obs: Any
    reward: Any
    try:
        obs, reward, terminated, truncated, info = result
    except (TypeError, ValueError):
        old = ", as in the old Gym" if isinstance(result, tuple) and len(result) == 4 else ""
        raise ContractError(f"{name}: {_STEP}, got {describe(result)}{old}: {_OLD}") from None
    if obs.__class__ is not np.ndarray or obs.shape != shape or obs.dtype.kind not in kinds:
        obs = _observation(form, "step", obs)
    elif integer_dtype is not None and obs.dtype != integer_dtype:
        obs = _as_integers(form, "step", obs)
    if reward.__class__ not in _NUMBERS:
        reward = _number(name, reward)
    if terminated.__class__ not in _FLAGS:
        terminated = _flag(name, "terminated", terminated)
    if truncated.__class__ not in _FLAGS:
        truncated = _flag(name, "truncated", truncated)
    return obs, reward, terminated, truncated, info


def explain_error(name: str, error: Exception) -> ContractError | None:
    """The error to raise instead of an error of Gymnasium's wrappers that an environment with the old Gym's interface
    caused; None for other errors."""
    text = str(error)
    if _innermost(error.__traceback__).startswith(("gymnasium.", "fastrl.")):
        if isinstance(error, ValueError) and "values to unpack (expected 5" in text:
            return ContractError(f"{name}: {_STEP}, got another number of values ({text}): {_OLD}")
        if isinstance(error, ValueError) and "values to unpack (expected 2" in text:
            return ContractError(f"{name}: {_RESET}, got another number of values ({text}): {_OLD}")
        if isinstance(error, TypeError) and "unexpected keyword argument" in text:
            return ContractError(f"{name}: {_RESET}, but it raised {text!r}, as in the old Gym: {_OLD}")
    return None


def _innermost(trace: TracebackType | None) -> str:
    """The name of the module whose code raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _observation(form: Form, method: str, obs: Any) -> NDArray[Any]:
    name, shape, kinds, integer_dtype = form
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != shape or array.dtype.kind not in kinds:
        raise ContractError(
            f"{name}: {method}() gave an observation that its observation_space does not have:"
            f" expected {'numbers' if 'f' in kinds else 'integers'} of shape {shape}, got {describe(obs)}"
        )
    if integer_dtype is None or array.dtype == integer_dtype:
        return array
    return _as_integers(form, method, array)


def _as_integers(form: Form, method: str, obs: NDArray[Any]) -> NDArray[Any]:
    """Integers in the space's dtype."""
    assert form.integer_dtype is not None
    array = obs.astype(form.integer_dtype)
    wrong = array != obs
    if wrong.any():
        raise ContractError(
            f"{form.name}: {method}() gave an observation that its observation_space does not have: expected"
            f" {form.integer_dtype}, got {obs[wrong].flat[0]} in an array of {obs.dtype}"
        )
    return array


def mask_method(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """The method ``action_masks()`` of an environment or of one of its wrappers; None if there is none."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None


def with_action_mask(info: Mapping[str, Any], method: Callable[[], Any] | None) -> Mapping[str, Any]:
    """An info that has the action mask too, if a method gives it and not the info itself."""
    return info if method is None else {ACTION_MASK: method(), **info}


def action_mask(
    name: str, method: Callable[[], Any] | None, info: Mapping[str, Any], num_choices: int
) -> NDArray[np.bool_]:
    """The choices that an environment allows now, bool [num_choices].

    Args:
        name: of the environment.
        method: the result of `mask_method`.
        info: of the last step or reset; its ``action_mask`` is used if there is no such method.

    Raises:
        ContractError: there is neither, or the mask has another form.
    """
    given = info.get(ACTION_MASK) if method is None else method()
    if given is None:
        raise ContractError(
            f"{name}: action masks were asked for, but it has neither a method action_masks() nor info['action_mask']"
        )
    return as_mask(name, given, num_choices)


def as_mask(name: str, given: Any, num_choices: int) -> NDArray[np.bool_]:
    """An action mask as an environment gave it, bool [num_choices].

    Raises:
        ContractError: it has another form.
    """
    mask = np.asarray(given)
    if mask.shape != (num_choices,) or mask.dtype.kind not in "bui":
        raise ContractError(
            f"{name}: an action mask should be an array of {num_choices} bools, got {describe(given)}"
        )
    return mask.astype(np.bool_, copy=False)


def info_values(
    name: str, keys: tuple[str, ...], info: Mapping[str, Any], otherwise: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """The numbers of an info under some keys; for missing keys those of ``otherwise``, by default NaN.

    The key "episode.r" is that of ``info["episode"]["r"]``.

    Raises:
        ContractError: a value is no number.
    """
    otherwise = otherwise or (math.nan,) * len(keys)
    values = []
    for key, before in zip(keys, otherwise, strict=True):
        group, _, entry = key.rpartition(".")
        value = info.get(group, {}).get(entry) if group else info.get(key)
        try:
            values.append(before if value is None else float(value))
        except (TypeError, ValueError):
            raise ContractError(f"{name}: info[{key!r}] should be a number, got {describe(value)}") from None
    return tuple(values)


def expect_finite(name: str, rewards: NDArray[Any], obs: NDArray[Any]) -> None:
    """Checks that rewards and observations are finite.

    Raises:
        ContractError: there is a NaN or an infinity.
    """
    for noun, values in (("reward", rewards), ("observation", obs)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            first = values[~np.isfinite(values)].flat[0]
            raise ContractError(
                f"{name}: {noun}s should be finite {values.dtype} numbers, step() or reset() gave {as_given(first)}"
            )


def as_given(value: np.floating[Any]) -> str:
    """A stored number that is not finite, as the environment may have given it, for messages."""
    if np.isnan(value) or value.dtype == np.float64:
        return str(value)
    return f"{value}, or a number beyond {np.finfo(value.dtype).max:.1e} that {value.dtype} cannot hold,"


def _number(name: str, reward: Any) -> float:
    try:
        if isinstance(reward, np.ndarray) and reward.size == 1:
            reward = reward.item()
        if not isinstance(reward, str | bytes | complex | np.complexfloating):
            return float(reward)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ContractError(f"{name}: step() should give a number as reward, got {describe(reward)}")


def _flag(name: str, which: str, flag: Any) -> bool:
    if isinstance(flag, np.ndarray) and flag.size == 1:
        flag = flag.item()
    if isinstance(flag, bool | int | np.bool_ | np.integer) and flag in (0, 1):
        return bool(flag)
    raise ContractError(f"{name}: step() should give True or False as {which}, got {describe(flag)}")


def env_name(env: gymnasium.Env[Any, Any]) -> str:
    """The id of an environment, for messages; of one that has none its class."""
    return type(env.unwrapped).__name__ if env.spec is None else env.spec.id


def describe(value: Any) -> str:
    """A short description of a value, for an error message."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a {type(value).__name__}"
