"""Checks of Gymnasium's interface, made wherever an environment is played.

Each step is checked for its form: five values, an observation of the shape that the space has, a number, two flags.
Whoever stores the numbers checks that they are finite: many at a time cost less.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

# Types that need no second look. Whatever else is a number, such as a tensor without dimensions, is made a float.
_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
_FLAGS = frozenset({bool, np.bool_})
_OLD = "change it so, or wrap the environment in shimmy.GymV21CompatibilityV0"
_STEP = "step() should return (obs, reward, terminated, truncated, info)"
_RESET = "reset(seed=..., options=...) should return (obs, info)"


class ContractError(RuntimeError):
    """An environment gave what Gymnasium's interface does not allow; one line, which begins with the environment."""


class Form(NamedTuple):
    """The name of an environment, and the form of its observations: their shape and the kinds of NumPy dtypes that they
    may have. Integers may come where the space has floats, not the other way; where it has integers, those of another
    dtype may come that ``whole``, the space's, can hold."""

    name: str
    shape: tuple[int, ...]
    kinds: str
    whole: np.dtype[Any] | None


def form_of(name: str, shape: tuple[int, ...], dtype: Any) -> Form:
    """Of the shape and dtype of an observation space."""
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
    """Begins an episode.

    Args:
        form: of the environment.
        seed, options: for the environment; options are given to it where there are some.

    Returns:
        The first observation, an array as the form says, and the info.

    Raises:
        ContractError: the environment gives something else.
        Whatever the environment raises.
    """
    name = form.name
    try:
        result = env.reset(seed=seed) if options is None else env.reset(seed=seed, options=options)
    except Exception as error:
        if (wrong := explained(name, error)) is not None:
            raise wrong from None
        raise
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ContractError(f"{name}: {_RESET}, got {_what(result)}, as in the old Gym: {_OLD}")
    obs, info = result
    return _observation(form, "reset", obs), info


def close(env: gymnasium.Env[Any, Any]) -> None:
    """Closes an environment whatever it does then: one that raised may not be able to, and no more is asked of it."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def step(
    env: gymnasium.Env[Any, Any], form: Form, action: Any
) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
    """Takes a step.

    Args and errors: as of `reset`.

    Returns:
        Observation, reward, terminated, truncated, info: the first as of `reset`; infos are as they came.
    """
    name, shape, kinds, whole = form
    try:
        result = env.step(action)
    except Exception as error:
        if (wrong := explained(name, error)) is not None:
            raise wrong from None
        raise
    # The types that the environment promises are what is to be seen.
    obs: Any
    reward: Any
    try:
        obs, reward, terminated, truncated, info = result
    except (TypeError, ValueError):
        old = ", as in the old Gym" if isinstance(result, tuple) and len(result) == 4 else ""
        raise ContractError(f"{name}: {_STEP}, got {_what(result)}{old}: {_OLD}") from None
    if obs.__class__ is not np.ndarray or obs.shape != shape or obs.dtype.kind not in kinds:
        obs = _observation(form, "step", obs)
    elif whole is not None and obs.dtype != whole:
        obs = _whole(form, "step", obs)
    if reward.__class__ not in _NUMBERS:
        reward = _number(name, reward)
    if terminated.__class__ not in _FLAGS:
        terminated = _flag(name, "terminated", terminated)
    if truncated.__class__ not in _FLAGS:
        truncated = _flag(name, "truncated", truncated)
    return obs, reward, terminated, truncated, info


def explained(name: str, error: Exception) -> ContractError | None:
    """The error to raise in place of one of Gymnasium's wrappers, if it came from an environment with the old Gym's
    interface; None for other errors."""
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
    """The module whose code raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _observation(form: Form, method: str, obs: Any) -> NDArray[Any]:
    name, shape, kinds, whole = form
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != shape or array.dtype.kind not in kinds:
        raise ContractError(
            f"{name}: {method}() gave an observation that its observation_space does not have:"
            f" expected {'numbers' if 'f' in kinds else 'integers'} of shape {shape}, got {_what(obs)}"
        )
    return array if whole is None or array.dtype == whole else _whole(form, method, array)


def _whole(form: Form, method: str, obs: NDArray[Any]) -> NDArray[Any]:
    """Integers as the space's dtype."""
    assert form.whole is not None
    array = obs.astype(form.whole)
    wrong = array != obs
    if wrong.any():
        raise ContractError(
            f"{form.name}: {method}() gave an observation that its observation_space does not have: expected"
            f" {form.whole}, got {obs[wrong].flat[0]} in an array of {obs.dtype}"
        )
    return array


def expect_finite(name: str, rewards: NDArray[Any], obs: NDArray[Any]) -> None:
    """Refuses NaN and infinity in what an environment gave.

    Raises:
        ContractError
    """
    for what, values in (("reward", rewards), ("observation", obs)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            first = values[~np.isfinite(values)].flat[0]
            raise ContractError(
                f"{name}: {what}s should be finite {values.dtype} numbers, step() or reset() gave {first}"
            )


def _number(name: str, reward: Any) -> float:
    try:
        if isinstance(reward, np.ndarray) and reward.size == 1:
            reward = reward.item()
        if not isinstance(reward, str | bytes | complex | np.complexfloating):
            return float(reward)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ContractError(f"{name}: step() should give a number as reward, got {_what(reward)}")


def _flag(name: str, which: str, flag: Any) -> bool:
    if isinstance(flag, np.ndarray) and flag.size == 1:
        flag = flag.item()
    if isinstance(flag, bool | int | np.bool_ | np.integer) and flag in (0, 1):
        return bool(flag)
    raise ContractError(f"{name}: step() should give True or False as {which}, got {_what(flag)}")


def _what(value: Any) -> str:
    """A value in a few words, for an error."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a {type(value).__name__}"
