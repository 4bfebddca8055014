"""Rows: observations of any space stored as one array each, and actions of any space drawn as one array each.

Collectors, fragments and replays hold one array an observation and one an action. `ObsRows` and `ActionRows` convert
between these and what an environment gives and takes; `RowEnv` wraps an environment so that it speaks rows itself.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from numpy.typing import NDArray

from fastrl.envs.contract import ContractError, describe, env_name

ObsKind = Literal["vector", "image", "mixed"]
"""Kinds of observations: float32 rows; one image, uint8; rows of bytes with images and other parts."""

# Numbers of a text: each of its words sets one of them to 1.
TEXT_SIZE = 64
# Numbers of the largest space that a file may ask for.
_MOST_NUMBERS = 1 << 26


class RowError(ValueError):
    """An observation is not of its space; the message is part of a line: expected ..., got ..."""


@dataclass(frozen=True)
class Part:
    """A leaf of an observation space, and its place in a row.

    Attributes:
        path: keys of Dicts and indices of Tuples that lead to it; empty where the space is the leaf itself.
        kind: "vector": a Box or MultiBinary as float32; "image": a uint8 Box of 2 or 3 dimensions; "onehot": Discrete,
            or MultiDiscrete with the numbers side by side; "text": the words of a text, hashed to `TEXT_SIZE` numbers.
        place: in the row. In rows of uint8 a vector or one-hot part takes 4 bytes a number, of float32.
        shape: of the part: of the Box or MultiBinary, or (width,) of a one-hot one or a text.
        space: the leaf.
    """

    path: tuple[Any, ...]
    kind: Literal["vector", "image", "onehot", "text"]
    place: slice
    shape: tuple[int, ...]
    space: Space[Any]

    @property
    def name(self) -> str:
        """The path as text, such as ``camera/left``."""
        return "/".join(map(str, self.path))

    @property
    def size(self) -> int:
        """Numbers of the part."""
        return math.prod(self.shape)


class ObsRows:
    """Storage of an observation as one row.

    Spaces without images have float32 rows: a Box flattened, Discrete and MultiDiscrete one-hot, MultiBinary as 0 and
    1, Text (also MiniGrid's missions) as its words hashed to `TEXT_SIZE` numbers, and of a Dict or Tuple, also nested,
    all leaves side by side in the order of ``gymnasium.spaces.flatten``. Spaces with an image (a uint8 Box of 2 or 3
    dimensions) have uint8 rows: images as they are, of other leaves the bytes of their float32 numbers.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary or Text, or a Dict or Tuple of such spaces.

    Attributes:
        space: the observation space.
        dtype: of rows, float32 or uint8.
        size: length of a row.
        parts: of a row, in order.
        kind: "vector": float32 rows; "image": the space is one image; "mixed": images and other leaves.
        is_plain: True for a Box: an observation, flattened, is its row.
        row_space: space of the observations that `RowEnv` gives: the space itself if it is plain, else a Box of rows.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: Space[Any]) -> None:
        leaves = list(leaves_of(space))
        images = [_is_image(leaf) for _, leaf in leaves]
        self.space = space
        self.is_plain = isinstance(space, Box)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if any(images) else np.float32)
        self.kind: ObsKind = ("image" if self.is_plain else "mixed") if any(images) else "vector"
        parts: list[Part] = []
        at = 0
        for (path, leaf), is_image in zip(leaves, images, strict=True):
            shape = tuple(leaf.shape or ())
            kind: Literal["vector", "image", "onehot", "text"] = "image" if is_image else "vector"
            if isinstance(leaf, Discrete | MultiDiscrete):
                shape, kind = (int(leaf.n if isinstance(leaf, Discrete) else leaf.nvec.sum()),), "onehot"
            elif _is_text(leaf):
                shape, kind = (TEXT_SIZE,), "text"
            length = math.prod(shape) * (4 if any(images) and not is_image else 1)
            parts.append(Part(path, kind, slice(at, at + length), shape, leaf))
            at += length
        self.parts: tuple[Part, ...] = tuple(parts)
        self.size = at

    @property
    def row_space(self) -> Box:
        if isinstance(self.space, Box):
            return self.space
        if self.dtype == np.uint8:
            return Box(0, 255, (self.size,), np.uint8)
        low, high = np.zeros(self.size, np.float32), np.ones(self.size, np.float32)
        for part in self.parts:
            if isinstance(part.space, Box):
                with np.errstate(over="ignore"):
                    low[part.place] = part.space.low.ravel()
                    high[part.place] = part.space.high.ravel()
        return Box(low, high, dtype=np.float32)

    def write(self, obs: Any, out: NDArray[Any]) -> None:
        """Writes an observation into a row [size].

        Raises:
            RowError: the observation is not of the space; in rows of bytes also if it has a NaN or an infinity, which
                later checks could not find there.
        """
        self._write(obs, out, ())

    def write_batch(self, obs: Any, out: NDArray[Any]) -> None:
        """Writes N observations in the form of Gymnasium's vector environments (arrays with a first axis N, in dicts
        and tuples as of the space) into rows [N, size]. Errors are those of `write`."""
        self._write(obs, out, (len(out),))

    def _write(self, obs: Any, out: NDArray[Any], batch: tuple[int, ...]) -> None:
        is_float = self.dtype == np.float32
        for part, value in zip(self.parts, values_of(self.space, obs), strict=True):
            flat = _numbers(part, value, batch)
            if not is_float and part.kind != "image":
                if not np.isfinite(flat).all():
                    raise RowError(f"{_at(part.path)}expected finite float32 numbers, got NaN or infinity")
                flat = np.ascontiguousarray(flat, np.float32).view(np.uint8)
            out[..., part.place] = flat

    def state(self) -> dict[str, Any]:
        """The space, JSON-able; `from_state` reads it."""
        return space_state(self.space)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(space_of(state))


class ActionRows:
    """Conversion between actions of an environment and flat ones, which a policy draws.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary, or a Box of numbers of any shape.

    Attributes:
        space: the environment's.
        flat_space: Discrete from 0 on; MultiDiscrete of one dimension from 0 on; or a float32 Box of one dimension.
        is_plain: True where both are the same.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.flat_space: Discrete | MultiDiscrete | Box
        self._start: Any = 0
        match space:
            case Discrete():
                self.flat_space, self._start = Discrete(int(space.n)), int(space.start)
                self.is_plain = self._start == 0
                return
            case MultiDiscrete():
                self.flat_space = MultiDiscrete(space.nvec.ravel().astype(np.int64))
                self._start = space.start.ravel()
                self.is_plain = space.nvec.ndim == 1 and not self._start.any() and space.dtype == np.int64
            case MultiBinary():
                self.flat_space = MultiDiscrete(np.full(math.prod(space.shape), 2))
                self.is_plain = False
            case Box() if space.dtype is not None and space.dtype.kind in "fiu":
                with np.errstate(over="ignore"):
                    low, high = (
                        np.where(bounded, bound, infinity).ravel().astype(np.float32)
                        for bounded, bound, infinity in (
                            (space.bounded_below, space.low, -np.inf),
                            (space.bounded_above, space.high, np.inf),
                        )
                    )
                self.is_plain = len(space.shape) == 1 and space.dtype == np.float32
                self.flat_space = space if self.is_plain else Box(low, high, dtype=np.float32)
            case Space():
                raise ValueError(
                    f"actions should be Discrete, MultiDiscrete, MultiBinary or a Box of numbers; the environment's are"
                    f" {space}: wrap it in a gymnasium.ActionWrapper that offers one of those"
                )
            case _:
                raise _no_space("action_space", space)
        if not math.prod(self.flat_space.shape or ()):
            raise ValueError(f"actions should have at least one number; the environment's are {space}")

    @property
    def num_choices(self) -> int:
        """Choices of all numbers of an action together, the width of an action mask; 0 of a Box."""
        space = self.flat_space
        if isinstance(space, Box):
            return 0
        return int(space.n if isinstance(space, Discrete) else space.nvec.sum())

    def to_env(self, flat: Any) -> Any:
        """Actions of the environment from flat ones: one (an int, or [n]), or an array of them with further axes in
        front."""
        if self.is_plain:
            return flat
        if isinstance(self.flat_space, Discrete):
            return flat + self._start
        space = self.space
        shape = (*flat.shape[:-1], *(space.shape or ()))
        if isinstance(space, Box):
            numbers = (np.rint(flat) if space.dtype.kind in "iu" else flat).reshape(shape)
            # Bounds of float32 may lie outside of those of float64.
            return np.clip(numbers.astype(np.float64), space.low, space.high).astype(space.dtype)
        return (flat + self._start).reshape(shape).astype(space.dtype)

    def from_env(self, action: Any) -> Any:
        """The inverse of `to_env`."""
        if isinstance(self.flat_space, Discrete):
            return action if self.is_plain else action - self._start
        array = np.asarray(action)
        front = array.shape[: array.ndim - len(self.space.shape or ())]
        flat = array.reshape(*front, -1)
        if isinstance(self.space, Box):
            return flat.astype(np.float32)
        return flat.astype(np.int64) - self._start


class ConvertedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The base of wrappers that convert observations. Results of another form are left to `fastrl.envs.contract`."""

    def convert(self, method: str, obs: Any, info: Any) -> Any:
        """The observation to give for one that a method of the environment gave."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result: Any = (
            self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        )
        if isinstance(result, tuple) and len(result) == 2:
            return self.convert("reset", *result), result[1]
        return result

    def step(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        if isinstance(result, tuple) and len(result) == 5:
            return (self.convert("step", result[0], result[4]), *result[1:])
        return result


class RowEnv(ConvertedEnv):
    """An environment that gives rows and takes flat actions.

    Args:
        env: the environment.
        name: of it, for errors; by default its id or class.

    Attributes:
        obs_rows, action_rows: conversions of observations and actions.

    Raises:
        ValueError: spaces that have no rows.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str = "") -> None:
        if not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"env: expected a gymnasium.Env, got a {type(env).__name__}: derive it from that class"
            )
        super().__init__(env)
        self.name = name or env_name(env)
        self.obs_rows, self.action_rows = ObsRows(env.observation_space), ActionRows(env.action_space)
        self.observation_space = self.obs_rows.row_space
        self.action_space = self.action_rows.flat_space

    def convert(self, method: str, obs: Any, info: Any) -> Any:
        rows = self.obs_rows
        if rows.is_plain:
            return obs
        row = np.empty(rows.size, rows.dtype)
        try:
            rows.write(obs, row)
        except RowError as error:
            raise ContractError(
                f"{self.name}: {method}() gave an observation that its observation_space does not have: {error}"
            ) from None
        return row

    def step(self, action: Any) -> Any:
        return super().step(self.action_rows.to_env(action))


def in_rows(env: gymnasium.Env[Any, Any], name: str = "") -> gymnasium.Env[Any, Any]:
    """The environment in a `RowEnv`, or as it is where nothing has to be converted.

    Raises:
        ValueError: spaces that have no rows.
    """
    if ObsRows(env.observation_space).is_plain and ActionRows(env.action_space).is_plain:
        return env
    return RowEnv(env, name)


def obs_rows_of(env: gymnasium.Env[Any, Any]) -> ObsRows:
    """The rows of an environment that `in_rows` has made."""
    return env.obs_rows if isinstance(env, RowEnv) else ObsRows(env.observation_space)


def action_rows_of(env: gymnasium.Env[Any, Any]) -> ActionRows:
    """The conversion of actions of an environment that `in_rows` has made."""
    return env.action_rows if isinstance(env, RowEnv) else ActionRows(env.action_space)


def leaves_of(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Space[Any]]]:
    """The leaves of a space with their paths, in the order of ``gymnasium.spaces.flatten``."""
    if isinstance(space, Dict | Tuple):
        children = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        if not space.spaces:
            raise ValueError(
                f"observations should have at least one value; {_at(path)}the environment's are {space}"
            )
        for key, child in children:
            yield from leaves_of(child, (*path, key))
        return
    if not isinstance(space, Space):
        raise _no_space("observation_space", space)
    if _is_text(space):
        yield path, space
        return
    if not isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        raise ValueError(
            "observations should be a Box, Discrete, MultiDiscrete, MultiBinary or Text, or a Dict or Tuple of them;"
            f" {_at(path)}the environment's are {space}: gymnasium.wrappers.TransformObservation makes one of those"
        )
    if not math.prod(space.shape or ()):
        raise ValueError(
            f"observations should have at least one number; {_at(path)}the environment's are {space}"
        )
    yield path, space


def values_of(
    space: Space[Any], obs: Any, path: tuple[Any, ...] = (), found: list[Any] | None = None
) -> list[Any]:
    """The values of an observation at the leaves of its space, in their order, added to `found`.

    Raises:
        RowError: a dict or tuple of another form.
    """
    found = [] if found is None else found
    if isinstance(space, Dict):
        if not isinstance(obs, Mapping) or obs.keys() != space.spaces.keys():
            raise RowError(
                f"{_at(path)}expected a dict with {_keys(space.spaces)}, got"
                f" {f'one with {_keys(obs)}' if isinstance(obs, Mapping) else describe(obs)}"
            )
        for key, child in space.spaces.items():
            values_of(child, obs[key], (*path, key), found)
    elif isinstance(space, Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise RowError(f"{_at(path)}expected a tuple of {len(space.spaces)} values, got {describe(obs)}")
        for index, (child, value) in enumerate(zip(space.spaces, obs, strict=True)):
            values_of(child, value, (*path, index), found)
    else:
        found.append(obs)
    return found


def _is_image(leaf: Space[Any]) -> bool:
    return isinstance(leaf, Box) and leaf.dtype == np.uint8 and len(leaf.shape) in (2, 3)


def _is_text(leaf: Space[Any]) -> bool:
    """True for Text and for spaces like it, such as MiniGrid's missions."""
    return leaf.dtype is not None and leaf.dtype.kind == "U"


def _no_space(name: str, value: Any) -> ValueError:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return ValueError(
        f"{name} should be one of gymnasium.spaces, got a {kind}; of an environment of the old Gym"
        " shimmy.GymV21CompatibilityV0 makes one of Gymnasium's"
    )


def _at(path: tuple[Any, ...]) -> str:
    return f"at {'/'.join(map(str, path))!r}: " if path else ""


def _keys(mapping: Mapping[Any, Any]) -> str:
    return f"the keys {', '.join(map(repr, mapping))}" if mapping else "no keys"


def _numbers(part: Part, obs: Any, batch: tuple[int, ...]) -> NDArray[Any]:
    """The part of one or many observations, [*batch, size]: uint8 of images, else numbers that become float32."""
    if part.kind == "text":
        return _texts(part, obs, batch)
    space, shape = part.space, (*batch, *(part.space.shape or ()))
    assert space.dtype is not None
    kinds = "biuf" if space.dtype.kind == "f" else "biu"
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != shape or array.dtype.kind not in kinds:
        noun = "numbers" if "f" in kinds else "integers"
        expected = (
            f"{noun} of shape {shape}" if shape else noun.removesuffix("s").replace("integer", "an integer")
        )
        raise RowError(f"{_at(part.path)}expected {expected}, got {describe(obs)}")
    flat = array.reshape(*batch, -1)
    if part.kind == "onehot":
        return _one_hot(part, flat)
    if isinstance(space, MultiBinary):
        wrong = (flat != 0) & (flat != 1)
    elif "f" in kinds:
        with np.errstate(over="ignore"):
            return flat.astype(np.float32, copy=False)
    elif array.dtype == space.dtype:
        return flat
    else:
        wrong = flat.astype(space.dtype) != flat
    if wrong.any():
        raise RowError(f"{_at(part.path)}expected values of {space}, got {flat[wrong].flat[0]}")
    return flat.astype(space.dtype)


def _texts(part: Part, obs: Any, batch: tuple[int, ...]) -> NDArray[np.float32]:
    """One text or many, float32 [*batch, TEXT_SIZE]."""
    given: Any = (obs,)
    if batch:
        given = obs if isinstance(obs, Sequence | np.ndarray) and not isinstance(obs, str) else ()
    if len(given) != math.prod(batch) or not all(isinstance(text, str) for text in given):
        raise RowError(f"{_at(part.path)}expected {'texts' if batch else 'a text'}, got {describe(obs)}")
    return np.stack([_hashed_words(text) for text in given]).reshape(*batch, TEXT_SIZE)


@functools.lru_cache(maxsize=4096)
def _hashed_words(text: str) -> NDArray[np.float32]:
    numbers = np.zeros(TEXT_SIZE, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        numbers[zlib.crc32(word.encode()) % TEXT_SIZE] = 1
    return numbers


def _one_hot(part: Part, flat: NDArray[Any]) -> NDArray[np.float32]:
    space = part.space
    if isinstance(space, Discrete):
        sizes, start = np.array([space.n]), np.array([space.start])
    else:
        assert isinstance(space, MultiDiscrete)
        sizes, start = space.nvec.ravel(), space.start.ravel()
    chosen = flat.astype(np.int64) - start
    wrong = (chosen < 0) | (chosen >= sizes)
    if wrong.any():
        raise RowError(f"{_at(part.path)}expected values of {space}, got {flat[wrong].flat[0]}")
    out = np.zeros((*flat.shape[:-1], part.size), np.float32)
    np.put_along_axis(out, chosen + np.concatenate([[0], np.cumsum(sizes)[:-1]]), 1, -1)
    return out


def space_state(space: Space[Any]) -> dict[str, Any]:
    """A space of observations or actions, JSON-able; `space_of` reads it. Spaces with equal states have equal values,
    but of texts the lengths and letters are left out."""
    match space:
        case Dict():
            return {
                "kind": "dict",
                "keys": list(map(str, space.spaces)),
                "spaces": [space_state(child) for child in space.spaces.values()],
            }
        case Tuple():
            return {"kind": "tuple", "spaces": [space_state(child) for child in space.spaces]}
        case Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
        case MultiDiscrete():
            state = {"kind": "multi_discrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return state if space.dtype == np.int64 else {**state, "dtype": str(space.dtype)}
        case MultiBinary():
            return {"kind": "multi_binary", "shape": list(space.shape)}
    if _is_text(space):
        return {"kind": "text"}
    assert isinstance(space, Box)
    return {
        "kind": "box",
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bounds_state(space.low),
        "high": _bounds_state(space.high),
    }


def has_state(space: Space[Any]) -> bool:
    """True if `space_of` gives a space that takes the same observations from the state: not where keys of a Dict are
    others than texts."""
    kept = leaves_of(space_of(space_state(space)))
    return [path for path, _ in leaves_of(space)] == [path for path, _ in kept]


def _bounds_state(bounds: NDArray[Any]) -> list[str]:
    """Bounds as texts, for infinities are no JSON numbers; one text where all are equal."""
    flat = bounds.ravel()
    values = (flat[:1] if (flat == flat[0]).all() else flat).tolist()
    return [str(value if bounds.dtype.kind == "f" else int(value)) for value in values]


def _bounds_of(texts: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    values = [float(text) if dtype.kind == "f" else int(text) for text in texts]
    with np.errstate(over="raise"):
        return np.broadcast_to(np.array(values, dtype).reshape(shape if len(values) > 1 else ()), shape)


def space_of(state: Mapping[str, Any]) -> Space[Any]:
    """The space of a state that `space_state` gave, perhaps one of others.

    Raises:
        ValueError: it is none; one line.
    """
    try:
        return _space_of(state)
    except KeyError as error:
        raise ValueError(f"a space has no {error}") from None
    except (TypeError, AttributeError, IndexError, ArithmeticError, AssertionError, MemoryError) as error:
        raise ValueError(f"no space: {' '.join(str(error).split())[:200] or type(error).__name__}") from None


def _space_of(state: Mapping[str, Any]) -> Space[Any]:
    match state["kind"]:
        case "dict":
            # Pairs keep their order, where a dict would be sorted.
            names = state["keys"]
            if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise ValueError(f"keys should be different texts, got {names}")
            return Dict(list(zip(names, map(_space_of, state["spaces"]), strict=True)))
        case "tuple":
            return Tuple([_space_of(child) for child in state["spaces"]])
        case "discrete":
            return Discrete(state["n"], start=state["start"])
        case "multi_discrete":
            dtype = _number_type(state.get("dtype", "int64"), "iu")
            sizes, start = (np.array(state[name]) for name in ("nvec", "start"))
            if sizes.dtype.kind != "i" or start.dtype.kind != "i":
                raise ValueError("nvec and start should be whole numbers")
            return MultiDiscrete(sizes, dtype.type, start=start)
        case "multi_binary":
            shape = _shape_of(state["shape"])
            return MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "text":
            return Text(1000)
        case "box":
            shape, dtype = _shape_of(state["shape"]), _number_type(state["dtype"], "iufb")
            low, high = (_bounds_of(state[name], shape, dtype) for name in ("low", "high"))
            if not (low <= high).all():
                raise ValueError("low should not exceed high")
            return Box(low, high, shape, dtype.type)
    raise ValueError(f"{state['kind']!r} is no kind of space")


def _shape_of(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"a shape should be a list of sizes, got {str(sizes)[:100]}")
    if math.prod(sizes) > _MOST_NUMBERS:
        raise ValueError(f"a space of more than {_MOST_NUMBERS:,} numbers: {sizes}")
    return tuple(sizes)


def _number_type(name: Any, kinds: str) -> np.dtype[Any]:
    dtype = np.dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in kinds:
        raise ValueError(f"a dtype should be that of numbers, got {str(name)[:100]}")
    return dtype
