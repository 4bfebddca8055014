"""Rows that hold observations of any space exactly, each leaf in its own dtype, and what an expert needs beside them.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from numpy.typing import NDArray

from fastrl.envs.contract import ACTION_MASK, ContractError, describe, mask_method, with_action_mask
from fastrl.envs.rows import ConvertedEnv, ObsRows, RowError, leaves_of, values_of

# Bytes of a text, at most: UTF-8, after four bytes with its length.
TEXT_BYTES = 1020


class Sense(Protocol):
    """Numbers of an environment that an expert reads and its observation lacks, such as the alerts of CAGE 2; it
    pickles.

    Attributes:
        name: of the numbers. size: how many, float32.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...

    def read(self, env: gymnasium.Env[Any, Any]) -> NDArray[Any]:
        """The numbers of one environment now, [size]."""
        ...

    def read_vector(self, env: Any) -> NDArray[Any]:
        """Rows of a compiled vector environment, [N, size]."""
        ...


@dataclass(frozen=True)
class InfoKey:
    """A key of the environment's info whose values are recorded.

    Attributes:
        key: of the info. dtype, shape: of its values.
    """

    key: str
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Column:
    """Part of a row.

    Attributes:
        path: keys of Dicts and indices of Tuples that lead to a leaf of the observation; (name,) of other columns.
        dtype, shape: of its values.
        start: its first number in the row.
        space: the leaf; None of other columns.
    """

    path: tuple[Any, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    space: Space[Any] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ExactRows(ObsRows):
    """Storage of observations as rows, without any rounding.

    A float32 Box alone is its own row, as is an image; with senses their numbers follow the observation, float32. Rows
    of other observations are bytes: each leaf in its own dtype, aligned, then senses, then infos.

    Args:
        space: of observations: Box, Discrete, MultiDiscrete, MultiBinary or Text, or a Dict or Tuple of such spaces.
        sense: further numbers for the expert; None: there are none.
        infos: keys of infos that are recorded.

    Attributes:
        direct: rows are the environment's own observations: nothing has to be converted.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: Space[Any], sense: Sense | None = None, infos: Sequence[InfoKey] = ()) -> None:
        self.space, self.sense, self.infos = space, sense, tuple(infos)
        is_box = isinstance(space, Box)
        is_float = is_box and space.dtype == np.float32
        is_image = is_box and space.dtype == np.uint8 and len(space.shape or ()) in (2, 3)
        self.direct = (is_float or is_image) and sense is None and not self.infos
        self._box_shape = tuple(space.shape or ()) if is_box else ()
        in_bytes = not (self.direct or (is_float and not self.infos))
        self.dtype = np.dtype(np.uint8 if in_bytes or is_image else np.float32)
        self.columns: list[Column] = []
        self.info_columns: list[Column] = []
        self._at, self._in_bytes = 0, in_bytes
        for path, leaf in leaves_of(space):
            self.columns.append(self._column(path, *_form(leaf), leaf))
        self.sense_column = (
            None if sense is None else self._column((sense.name,), np.dtype(np.float32), (sense.size,))
        )
        for each in self.infos:
            self.info_columns.append(self._column((each.key,), np.dtype(each.dtype), each.shape))
        # Rows of an array start at multiples of 8 bytes, so that all columns are aligned.
        self.size = -(-self._at // 8) * 8 if in_bytes else self._at
        self.is_plain, self.kind = True, "image" if self.dtype == np.uint8 else "vector"
        self.parts = ()

    def _column(
        self, path: tuple[Any, ...], dtype: np.dtype[Any], shape: tuple[int, ...], leaf: Any = None
    ) -> Column:
        each = dtype.itemsize if self._in_bytes else 1
        start = -(-self._at // each) * each
        self._at = start + math.prod(shape) * each
        return Column(path, dtype, shape, start, leaf)

    @property
    def row_space(self) -> Box:
        """Space of the observations of a `RecordedEnv`: the own space if it is `direct`."""
        if self.direct:
            assert isinstance(self.space, Box)
            return self.space
        if self._in_bytes:
            return row_image(self.size)
        return Box(-np.inf, np.inf, (self.size,), np.float32)

    # Writing, one observation at a time

    def write(self, obs: Any, out: NDArray[Any]) -> None:
        """Writes an observation into a row [size].

        Raises:
            RowError: the observation is not of the space.
        """
        for column, leaf in zip(self.columns, values_of(self.space, obs), strict=True):
            self._view(out, column)[...] = _checked(column, leaf)

    def write_sense(self, numbers: NDArray[Any], out: NDArray[Any]) -> None:
        """Writes numbers [..., size of the sense] into rows [..., size]."""
        assert self.sense_column is not None
        self._view(out, self.sense_column)[...] = numbers

    def write_info(self, info: Mapping[str, Any], out: NDArray[Any]) -> None:
        """Writes the recorded values of an info into a row [size].

        Raises:
            RowError: a value has another form than before.
        """
        for column in self.info_columns:
            [key] = column.path
            if key not in info:
                if column.dtype.kind != "f":
                    raise RowError(
                        f"info[{key!r}] is missing, which was there before: leave it out of --infos"
                    )
                self._view(out, column)[...] = np.nan
                continue
            given = np.asarray(info[key])
            if given.shape != column.shape or not _fits(given, column.dtype):
                expected = f"{column.dtype} {list(column.shape)}" if column.shape else str(column.dtype)
                raise RowError(f"info[{key!r}]: expected {expected} as before, got {describe(info[key])}")
            self._view(out, column)[...] = given

    def _view(self, rows: NDArray[Any], column: Column) -> NDArray[Any]:
        """A column of rows [..., size], [..., *shape]; a view."""
        if not self._in_bytes:
            part = rows[..., column.start : column.start + column.size]
        else:
            end = column.start + column.size * column.dtype.itemsize
            part = rows[..., column.start : end].view(column.dtype)
        return part.reshape((*rows.shape[:-1], *column.shape))

    # Reading, many rows at a time

    def read(self, rows: NDArray[Any]) -> Any:
        """Observations of rows [..., size] in the form of the space: an array [..., *shape] of its dtype, or nested
        dicts and tuples of such; texts are arrays of objects. Views of the rows where that is possible."""
        return _nested(self.space, (), {column.path: self._values(rows, column) for column in self.columns})

    def _values(self, rows: NDArray[Any], column: Column) -> NDArray[Any]:
        values = self._view(rows, column)
        if isinstance(column.space, Text):
            flat = [_text_of(each) for each in values.reshape(-1, values.shape[-1])]
            texts = np.empty(len(flat), object)
            texts[:] = flat
            return texts.reshape(values.shape[:-1])
        return values

    def read_one(self, row: NDArray[Any]) -> Any:
        """The observation of a row [size] as the environment gave it, a copy."""
        if self.direct:
            # Boxes alone: the general way takes as long as a step of a cheap environment.
            return row.reshape(self._box_shape).copy()
        return _nested(
            self.space,
            (),
            {column.path: _single(column, self._values(row, column)) for column in self.columns},
        )

    def read_sense(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The numbers of the sense in rows [..., size], float32 [..., size of the sense]."""
        assert self.sense_column is not None
        return self._view(rows, self.sense_column)

    def read_infos(self, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Values [..., *shape] of each recorded key in rows [..., size]; NaN where it was missing."""
        return {column.path[0]: self._view(rows, column) for column in self.info_columns}

    def not_finite(self, rows: NDArray[Any]) -> tuple[int, str] | None:
        """The first row [K, size] with a NaN or an infinity in an observation, and the value; None if there is none."""
        for column in self.columns:
            if column.dtype.kind == "f":
                values = self._view(rows, column).reshape(len(rows), -1)
                finite = np.isfinite(values)
                if not finite.all():
                    at = int(np.argmin(finite.all(1)))
                    return at, str(values[at][~finite[at]][0])
        return None


def recorded_space(space: Space[Any]) -> Space[Any]:
    """Space of the observations of an agent of many in a data set, whose rows are recorded: that of the agent, or of
    rows of bytes."""
    rows = ObsRows(space)
    return space if rows.is_plain else row_image(rows.size)


def row_image(size: int) -> Box:
    """Space of rows of bytes. It has two dimensions, which make it an image: rows stay bytes."""
    return Box(0, 255, (1, size), np.uint8)


class RecordedEnv(ConvertedEnv):
    """An environment that gives rows of `ExactRows`.

    Args:
        env: the environment.
        rows: of its observations.
        name: of it, for errors.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], rows: ExactRows, name: str) -> None:
        super().__init__(env)
        if env.observation_space != rows.space:
            raise ContractError(
                f"{name}: its observation space is {env.observation_space}, expected {rows.space}; is it built with the"
                " same options everywhere?"
            )
        self.observation_space = rows.row_space
        self.rows, self.name = rows, name
        masks = any(each.key == ACTION_MASK for each in rows.infos)
        self._mask_method = mask_method(env) if masks else None

    def convert(self, method: str, obs: Any, info: Any) -> NDArray[Any]:
        rows = self.rows
        row = np.zeros(rows.size, rows.dtype)
        try:
            rows.write(obs, row)
            if rows.infos:
                rows.write_info(with_action_mask(info, self._mask_method), row)
        except RowError as error:
            raise ContractError(
                f"{self.name}: {method}() gave an observation or info of another form: {error}"
            ) from None
        if rows.sense is not None:
            rows.write_sense(rows.sense.read(self.env), row)
        return row.reshape(self.observation_space.shape or ())


class RecordedVectorEnv:
    """A compiled vector environment that gives rows of `ExactRows` with a sense; for the collector "native". Everything
    else is passed on.

    Args:
        env: in autoreset mode "disabled".
        rows: float32.
    """

    # Compiled passes know nothing of the numbers that are read beside the observations.
    compiled_rollout = None

    def __init__(self, env: Any, rows: ExactRows) -> None:
        assert rows.sense is not None
        self._env, self._sense = env, rows.sense
        self.single_observation_space = rows.row_space
        [column] = rows.columns
        self._obs = np.zeros((env.num_envs, column.size), np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def _write(self, obs: NDArray[np.float32], where: Any = ...) -> None:
        width = self._obs.shape[1]
        obs[where, :width] = self._obs[where]
        obs[where, width:] = self._sense.read_vector(self._env)[where]

    def reset_into(self, obs: NDArray[np.float32], *, seed: Any, reset_mask: NDArray[np.bool_]) -> None:
        self._env.reset_into(self._obs, seed=seed, reset_mask=reset_mask)
        self._write(obs, reset_mask)

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
    ) -> None:
        self._env.step_into(actions, self._obs, rewards, terminations, truncations)
        self._write(obs)


def _form(leaf: Space[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of a leaf's values in a row."""
    match leaf:
        case Box() | MultiDiscrete() | MultiBinary():
            return np.dtype(leaf.dtype), tuple(leaf.shape or ())
        case Discrete():
            return np.dtype(leaf.dtype), ()
        case Text():
            return np.dtype(np.uint8), (4 + TEXT_BYTES,)
    raise ValueError(
        "observations should be of Box, Discrete, MultiDiscrete, MultiBinary or Text, or of a Dict or Tuple of such"
        f" spaces; the environment's are {leaf}"
    )


def _checked(column: Column, leaf: Any) -> Any:
    """The value of a leaf as an array of the column's form."""
    name = "".join(f"[{key!r}]" for key in column.path)
    if isinstance(column.space, Text):
        if not isinstance(leaf, str):
            raise RowError(f"{name}: expected a text, got {describe(leaf)}")
        return _text_row(leaf, name)
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.dtype == column.dtype and array.shape == column.shape:
        return array
    if array.shape != column.shape or not _fits(array, column.dtype):
        shape = f" of shape {column.shape}" if column.shape else ""
        raise RowError(f"{name}: expected {column.dtype}{shape}, got {describe(leaf)}".lstrip(": "))
    return array


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """True if numbers can be stored in a dtype: integers as floats, too, and integers that lie in its range."""
    kinds = {"f": "biuf", "b": "b"}.get(dtype.kind, "biu")
    if array.dtype.kind not in kinds:
        return False
    return dtype.kind == "f" or bool((array.astype(dtype) == array).all())


def _text_row(text: str, name: str) -> NDArray[np.uint8]:
    data = text.encode()
    if len(data) > TEXT_BYTES:
        raise RowError(f"{name}: expected a text of at most {TEXT_BYTES} bytes, got {len(data)}")
    row = np.zeros(4 + TEXT_BYTES, np.uint8)
    row[:4] = np.frombuffer(len(data).to_bytes(4, "little"), np.uint8)
    row[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
    return row


def _text_of(row: NDArray[np.uint8]) -> str:
    data = row.tobytes()
    return data[4 : 4 + int.from_bytes(data[:4], "little")].decode()


def _single(column: Column, value: NDArray[Any]) -> Any:
    if isinstance(column.space, Text):
        return value[()]
    if isinstance(column.space, Discrete):
        # As Gymnasium's spaces sample them.
        return column.dtype.type(value)
    return value.copy()


def _nested(space: Any, path: tuple[Any, ...], leaves: Mapping[tuple[Any, ...], Any]) -> Any:
    if isinstance(space, Dict):
        return {key: _nested(child, (*path, key), leaves) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_nested(child, (*path, i), leaves) for i, child in enumerate(space.spaces))
    return leaves[path]
