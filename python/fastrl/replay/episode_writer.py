"""Writes recorded episodes to disk, see `fastrl.replay.episodes`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastrl._native._rust import __version__
from fastrl.envs.rows import space_state
from fastrl.replay.episode_columns import (
    Column,
    DemosError,
    columns_of,
    flat_items,
    info_columns,
    leaf_at,
)
from fastrl.replay.episodes import (
    INDEX,
    INDEX_DTYPE,
    META,
    NO_SEED,
    SHARD,
    Episode,
    EpisodeDataset,
    Shard,
    load,
    read_meta,
    shard_files,
    totals,
)
from fastrl.utils.closing import Closing
from fastrl.utils.files import atomic_file, to_json, write_atomically

# A shard is complete once it has so many bytes.
SHARD_BYTES = 32 * 2**20
FORMAT = 1
# Entries of ``meta.json`` that are no facts of the recording.
_OWN = ("format", "obs_space", "action_space", "versions", "episodes", "steps", "returns", "lengths")


class _Block(NamedTuple):
    """Whole episodes one after the other: an `INDEX_DTYPE` for each, and the values of all columns. Those of columns
    with ``has_last`` have T + 1 rows for each episode, others T."""

    episodes: NDArray[Any]
    values: tuple[NDArray[Any], ...]


class EpisodeWriter(Closing):
    """Writes episodes one after the other.

    The files depend on the episodes and ``facts`` alone: not on how often `flush` was called, nor on whether the
    recording was stopped and resumed.

    Args:
        path: the directory, which is made.
        facts: entries of ``meta.json`` (environment, seed, expert, ...), JSON values.
        obs_space, action_space: of the environment.
        resume: continue after the last whole episode in the directory; otherwise it must have none.
        shard_bytes: at which a file is complete.

    Attributes:
        next_index: number of the next episode.

    Raises:
        DemosError: the directory has episodes, or others than these ``facts`` give; spaces that cannot be recorded.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        resume: bool = False,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(path).absolute()
        self.facts = json.loads(to_json(dict(facts)))
        self._shard_bytes = shard_bytes
        self._spaces = {"obs_space": space_state(obs_space), "action_space": space_state(action_space)}
        self._columns = [
            *columns_of(obs_space, "observation", has_last=True),
            *columns_of(action_space, "action", has_last=False),
            Column("reward", (), np.dtype(np.float64), (), False),
            Column("terminated", (), np.dtype(np.bool_), (), False),
            Column("truncated", (), np.dtype(np.bool_), (), False),
        ]
        # All columns, once an episode has been written, and bytes of a row of them.
        self._all: list[Column] = []
        self._infos: tuple[Column, ...] = ()
        self._row_bytes = 0
        # Episodes of the present shard, which starts with this number; how many of them are on disk.
        self._blocks: list[_Block] = []
        self._bytes = self._shard = self._on_disk = 0
        self._index: list[NDArray[Any]] = []
        self.next_index = 0
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / META).exists():
            self._continue(resume)
        elif shard_files(self.path):
            raise DemosError(f"{self.path}: it has episodes but no {META}: choose another directory")
        else:
            self._write_meta({})

    def _continue(self, resume: bool) -> None:
        meta, files = read_meta(self.path), shard_files(self.path)
        if files and not resume:
            raise DemosError(
                f"{self.path}: it has episodes already: choose another directory, or continue them with --resume"
            )
        if resume:
            given = {**self.facts, **self._spaces}
            # A part of a recording, or several, have a source that a recording has not.
            for name in (*given, *(name for name in meta if name not in (*given, *_OWN))):
                value = given.get(name)
                if meta.get(name) != value:
                    raise DemosError(
                        f"{self.path}: it was recorded with {name} {json.dumps(meta.get(name))[:200]}, not with"
                        f" {json.dumps(value)[:200]}: resume with the same settings, or choose another directory"
                    )
        if not files:
            self._write_meta({})
            return
        # All files are looked at.
        self.next_index = len(load(self.path))
        shards = [Shard(file) for file in files]
        self._index = [shard.index for shard in shards]
        last = shards[-1]
        self._adopt(list(last.columns.values()))
        nbytes = int(self._nbytes(last.index["length"]).sum())
        if nbytes >= self._shard_bytes:
            self._shard = len(files)
            return
        # The last shard is not complete: it is written again.
        self._shard, self._bytes = len(files) - 1, nbytes
        has_next = ~_last_rows(last.index["length"])
        # Their arrays stay valid: a file that is replaced lives on while it is mapped.
        rows = ((column, last.values(column.name)) for column in self._all)
        values = tuple(each if column.has_last else each[has_next] for column, each in rows)
        self._blocks = [_Block(self._index.pop(), values)]
        self._on_disk = len(last.index)

    def _adopt(self, columns: list[Column]) -> None:
        """Takes the columns of all episodes."""
        self._all = columns
        self._infos = tuple(column for column in columns if column.group == "info")
        self._row_bytes = sum(column.nbytes for column in columns)

    def _nbytes(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of episodes."""
        return (lengths + 1) * self._row_bytes

    def write(self, episode: Episode) -> None:
        """Appends an episode. It is on disk once its file is complete, or after `flush` or `close`.

        Raises:
            DemosError: an episode without steps, or of other shapes, dtypes or infos than the spaces and the first
                episode have.
            OSError: the disk is full.
        """
        self.write_many(episode, [len(episode)], [episode.seed])

    def write_all(self, episodes: Iterable[Episode]) -> None:
        """Appends several."""
        for episode in episodes:
            self.write(episode)

    def write_many(self, steps: Episode, lengths: Sequence[int], seeds: Sequence[int | None]) -> None:
        """Appends several episodes at once, which is faster than one by one; the files are the same.

        Args:
            steps: the episodes one after the other in its arrays: of E episodes with N steps together, N + E
                observations and N actions, rewards and flags.
            lengths: of each episode.
            seeds: of each episode.

        Raises:
            DemosError, OSError: as of `write`; the error names the first of them.
        """
        where = f"episode {self.next_index}"
        if min(lengths) < 1:
            raise DemosError(f"{where}: expected at least one step, got none")
        for seed in seeds:
            if seed is not None and not 0 <= seed < NO_SEED:
                raise DemosError(f"{where}: expected a seed from 0 to 2**64 - 2, got {seed}")
        index = np.zeros(len(lengths), INDEX_DTYPE)
        index["length"] = lengths
        index["seed"] = np.array([NO_SEED if seed is None else seed for seed in seeds], np.uint64)
        num_steps = int(index["length"].sum())
        infos = tuple(info_columns(steps.infos or {}, num_steps, len(index)))
        if not self._all:
            experts = [
                Column("expert_action", each.path, each.dtype, each.shape, False)
                for each in self._columns
                if each.group == "action"
            ]
            self._adopt([*self._columns, *(experts if steps.expert_actions is not None else []), *infos])
        elif infos != self._infos:
            raise DemosError(
                f"{where}: its infos {_names(infos)} differ from those of the first episode, {_names(self._infos)}"
            )
        values = tuple(
            _checked(column, steps, num_steps + len(index) * column.has_last, where) for column in self._all
        )
        start = 0
        for i, length in enumerate(lengths):
            # A sum of all rewards of a segment at once would be rounded otherwise than `Episode.total_reward`.
            index[i]["return"] = np.add.reduce(steps.rewards[start : start + length], dtype=np.float64)
            start += length
        self._append(_Block(index, values))

    def _append(self, block: _Block) -> None:
        """Appends episodes that are checked; writes shards that become complete."""
        self.next_index += len(block.episodes)
        while len(block.episodes):
            filled = self._bytes + np.cumsum(self._nbytes(block.episodes["length"]))
            count = int(np.searchsorted(filled, self._shard_bytes)) + 1
            own, block = self._cut(block, count)
            self._blocks.append(own)
            self._bytes = int(filled[len(own.episodes) - 1])
            if self._bytes >= self._shard_bytes:
                self.flush()
                self._index += [each.episodes for each in self._blocks]
                self._blocks = []
                self._shard, self._bytes, self._on_disk = self._shard + 1, 0, 0

    def _cut(self, block: _Block, count: int) -> tuple[_Block, _Block]:
        """The first episodes of a block, and the others."""
        steps = int(block.episodes["length"][:count].sum())
        ends = [steps + min(count, len(block.episodes)) * column.has_last for column in self._all]
        return (
            _Block(block.episodes[:count], tuple(v[:end] for v, end in zip(block.values, ends, strict=True))),
            _Block(block.episodes[count:], tuple(v[end:] for v, end in zip(block.values, ends, strict=True))),
        )

    def flush(self) -> None:
        """Writes all episodes to disk.

        Raises:
            OSError: the disk is full.
        """
        if sum(len(block.episodes) for block in self._blocks) == self._on_disk:
            return
        index = np.concatenate([block.episodes for block in self._blocks])
        last = _last_rows(index["length"])
        schema = pa.schema([column.field() for column in self._all], metadata={INDEX: index.tobytes()})
        arrays = [
            column.to_arrow([block.values[i] for block in self._blocks], last)
            for i, column in enumerate(self._all)
        ]
        with atomic_file(self.path / SHARD.format(self._shard)) as file, pa.ipc.new_file(file, schema) as out:
            out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._on_disk = len(index)

    def close(self) -> None:
        """Writes what is left, and the totals of all episodes into ``meta.json``. May be called again.

        Raises:
            OSError: the disk is full.
        """
        self.flush()
        blocks = (block.episodes for block in self._blocks)
        index = np.concatenate([np.zeros(0, INDEX_DTYPE), *self._index, *blocks])
        self._write_meta(totals(index["length"], index["return"]))

    def _write_meta(self, numbers: Mapping[str, Any]) -> None:
        versions = {"fastrl": __version__}
        for package in ("gymnasium", "numpy", "pyarrow"):
            versions[package] = metadata.version(package)
        tree = {"format": FORMAT, **self.facts, **self._spaces, **numbers, "versions": versions}
        write_atomically(self.path / META, to_json(tree, indent=2).encode())


def save(demos: EpisodeDataset, path: str | Path) -> None:
    """Writes a data set, such as a part of another one, into a new directory.

    Raises:
        DemosError: the directory has episodes already.
        OSError: the disk is full.
    """
    facts = facts_of(demos.meta)
    facts["source"] = {"name": demos.path.name, "episodes": demos.meta.get("episodes")}
    with EpisodeWriter(Path(path), facts, demos.obs_space, demos.action_space) as writer:
        writer.write_all(demos)


def facts_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``meta.json`` that the recording gave."""
    return {name: value for name, value in meta.items() if name not in _OWN}


def _values(episode: Episode, column: Column) -> Any:
    """The values of an episode for a column."""
    match column.group:
        case "observation":
            return leaf_at(episode.observations, column.path)
        case "action":
            return leaf_at(episode.actions, column.path)
        case "expert_action":
            return leaf_at(episode.expert_actions, column.path)
        case "reward":
            return np.asarray(episode.rewards, np.float64)
        case "info":
            return np.asarray(dict(flat_items(episode.infos or {}))[column.path])
    return np.asarray(getattr(episode, column.group))


def _checked(column: Column, steps: Episode, rows: int, where: str) -> NDArray[Any]:
    """The values of episodes for a column.

    Raises:
        DemosError: they have another form than the column.
    """
    expected = (rows, *column.shape)
    try:
        array = np.asarray(_values(steps, column))
    except (KeyError, IndexError, TypeError):
        raise DemosError(f"{where}: {column.name} is missing") from None
    fits = array.dtype.kind in "UO" if column.is_text else array.dtype == column.dtype
    if array.shape != expected or not fits:
        kind = "texts" if column.is_text else str(column.dtype)
        raise DemosError(
            f"{where}: {column.name}: expected {kind} {list(expected)}, got {array.dtype} {list(array.shape)}"
        )
    return array


def _last_rows(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the rows of a table that end its episodes, bool [rows]."""
    ends = np.cumsum(lengths + 1)
    last = np.zeros(int(ends[-1]), np.bool_)
    last[ends - 1] = True
    return last


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(f"{each.name} {each.dtype}{list(each.shape)}" for each in columns) or "none"
