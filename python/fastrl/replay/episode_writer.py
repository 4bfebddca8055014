"""Writes recorded episodes to disk, see `fastrl.replay.episodes`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from fastrl.utils.files import to_json, write_atomically

# A shard is complete once it has so many bytes.
SHARD_BYTES = 32 * 2**20
FORMAT = 1
# Entries of ``meta.json`` that are no facts of the recording.
_OWN = ("format", "obs_space", "action_space", "versions", "episodes", "steps", "returns", "lengths")


class EpisodeWriter:
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
        self.path = Path(path)
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
        # All columns, once an episode has been written.
        self._all: list[Column] | None = None
        self._infos: tuple[Column, ...] = ()
        # Episodes of the present shard, which starts with this number; what of it is on disk.
        self._episodes: list[Episode] = []
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
        demos = load(self.path)
        self._index = [Shard(file).index for file in files]
        self.next_index = len(demos)
        last = len(files) - 1
        own = demos[len(demos) - len(self._index[-1]) :]
        self._adopt(own[0])
        nbytes = sum(self._nbytes(len(episode)) for episode in own)
        if nbytes >= self._shard_bytes:
            self._shard = len(files)
            return
        # The last shard is not complete: it is written again.
        self._shard, self._bytes = last, nbytes
        # Their arrays stay valid: a file that is replaced lives on while it is mapped.
        self._episodes = list(own)
        self._on_disk = len(self._episodes)
        self._index.pop()

    def _adopt(self, episode: Episode) -> list[Column]:
        """The columns of all episodes: those of the first one."""
        if self._all is None:
            experts = [
                Column("expert_action", each.path, each.dtype, each.shape, False)
                for each in self._columns
                if each.group == "action"
            ]
            self._infos = tuple(info_columns(episode.infos or {}, len(episode)))
            self._all = [
                *self._columns,
                *(experts if episode.expert_actions is not None else []),
                *self._infos,
            ]
        return self._all

    def _nbytes(self, steps: int) -> int:
        assert self._all is not None
        return (steps + 1) * sum(column.nbytes for column in self._all)

    def write(self, episode: Episode) -> None:
        """Appends an episode. It is on disk once its file is complete, or after `flush` or `close`.

        Raises:
            DemosError: an episode without steps, or of other shapes, dtypes or infos than the spaces and the first
                episode have.
            OSError: the disk is full.
        """
        steps = len(episode)
        if steps < 1:
            raise DemosError(f"episode {self.next_index}: expected at least one step, got none")
        if episode.seed is not None and not 0 <= episode.seed < NO_SEED:
            raise DemosError(
                f"episode {self.next_index}: expected a seed from 0 to 2**64 - 2, got {episode.seed}"
            )
        columns = self._adopt(episode)
        if (episode.infos or self._infos) and tuple(info_columns(episode.infos or {}, steps)) != self._infos:
            raise DemosError(
                f"episode {self.next_index}: its infos {_names(info_columns(episode.infos or {}, steps))} differ from"
                f" those of the first episode, {_names(self._infos)}"
            )
        for column in columns:
            self._check(column, episode, steps)
        self._episodes.append(episode)
        self.next_index += 1
        self._bytes += self._nbytes(steps)
        if self._bytes >= self._shard_bytes:
            self.flush()
            self._index.append(_index_of(self._episodes))
            self._episodes = []
            self._shard, self._bytes, self._on_disk = self._shard + 1, 0, 0

    def write_all(self, episodes: Iterable[Episode]) -> None:
        """Appends several."""
        for episode in episodes:
            self.write(episode)

    def _check(self, column: Column, episode: Episode, steps: int) -> None:
        expected = (steps + column.has_last, *column.shape)
        try:
            array = np.asarray(_values(episode, column))
        except (KeyError, IndexError, TypeError):
            raise DemosError(f"episode {self.next_index}: {column.name} is missing") from None
        fits = array.dtype.kind in "UO" if column.is_text else array.dtype == column.dtype
        if array.shape != expected or not fits:
            kind = "texts" if column.is_text else str(column.dtype)
            raise DemosError(
                f"episode {self.next_index}: {column.name}: expected {kind} {list(expected)}, got {array.dtype}"
                f" {list(array.shape)}"
            )

    def flush(self) -> None:
        """Writes all episodes to disk.

        Raises:
            OSError: the disk is full.
        """
        if len(self._episodes) == self._on_disk:
            return
        assert self._all is not None
        episodes = self._episodes
        lengths = [len(episode) for episode in episodes]
        last = np.zeros(sum(lengths) + len(lengths), np.bool_)
        last[np.cumsum(np.array(lengths) + 1) - 1] = True
        schema = pa.schema(
            [column.field() for column in self._all], metadata={INDEX: _index_of(episodes).tobytes()}
        )
        arrays = [
            column.to_arrow([_values(episode, column) for episode in episodes], last) for column in self._all
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as file:
            file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        write_atomically(self.path / SHARD.format(self._shard), memoryview(sink.getvalue()))
        self._on_disk = len(episodes)

    def close(self) -> None:
        """Writes what is left, and the totals of all episodes into ``meta.json``. May be called again.

        Raises:
            OSError: the disk is full.
        """
        self.flush()
        index = np.concatenate([np.zeros(0, INDEX_DTYPE), *self._index, _index_of(self._episodes)])
        self._write_meta(totals(index["length"], index["return"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _index_of(episodes: list[Episode]) -> NDArray[Any]:
    index = np.zeros(len(episodes), INDEX_DTYPE)
    for row, episode in zip(index, episodes, strict=True):
        seed = NO_SEED if episode.seed is None else episode.seed
        row["length"], row["return"], row["seed"] = len(episode), episode.total_reward, seed
    return index


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(f"{each.name} {each.dtype}{list(each.shape)}" for each in columns) or "none"
