"""Recorded episodes on disk: a directory of Arrow IPC files, read by memory map.

::

    meta.json              environment, seed, expert, spaces, totals, versions
    shard-00000.arrow      steps of many whole episodes: T + 1 rows each (see `fastrl.replay.episode_columns`)
    shard-00001.arrow      ...

Each file is written whole and renamed, and its schema's metadata has the index of its episodes: lengths, returns and
seeds. So a directory is a readable set of whole episodes at any moment. Other libraries read the files as they are:
``pyarrow.ipc.open_file``, ``polars.read_ipc``, ``datasets.Dataset.from_file``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import gymnasium
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastrl.envs.rows import space_of, space_state
from fastrl.replay.episode_columns import Column, DemosError, nest, nest_dict
from fastrl.utils.files import DamagedFileError, open_file, parse_json, read_file

META = "meta.json"
SHARD = "shard-{:05d}.arrow"
# Key of a schema's metadata, and the dtype of a row of it: an episode.
INDEX = b"fastrl.episodes"
INDEX_DTYPE = np.dtype([("length", "<i8"), ("return", "<f8"), ("seed", "<u8")])
# A seed that is unknown.
NO_SEED = 2**64 - 1


@dataclass(frozen=True)
class Episode:
    """An episode of T steps.

    Attributes:
        observations: [T + 1, ...] in the dtype of the space; of Dict and Tuple spaces dicts and tuples of arrays.
        actions: [T, ...], as the environment got them, in the same form.
        rewards: float64 [T].
        terminated, truncated: bool [T].
        expert_actions: as ``actions``, those of the expert before noise was added; None: there was no noise.
        infos: nested dict of arrays [T + 1, ...], the first row from the reset, or [T, ...]; None: not recorded.
        seed: of the reset; None: unknown.
        index: its number in the data set.
    """

    observations: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    expert_actions: Any = None
    infos: Mapping[str, Any] | None = None
    seed: int | None = None
    index: int = 0

    def __len__(self) -> int:
        """Number of steps, T."""
        return len(self.rewards)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(np.sum(self.rewards, dtype=np.float64))


class Shard:
    """A file of whole episodes.

    Args:
        path: of the file.

    Attributes:
        path: of the file.
        index: an `INDEX_DTYPE` for each episode.
        starts: int64 [E], first rows of the episodes.

    Raises:
        DemosError: it is damaged, or no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Mapping a pipe would block for ever.
            open_file(path).close()
            # An empty file cannot be mapped.
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
            schema = self._reader.schema
            self.columns = {field.name: Column.from_field(field) for field in schema}
            self.index = np.frombuffer((schema.metadata or {})[INDEX], INDEX_DTYPE)
            rows = [self._reader.get_batch(i).num_rows for i in range(self._reader.num_record_batches)]
        except DamagedFileError as error:
            raise DemosError(f"{error}: remove it, and record again with --resume") from None
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise DemosError(
                f"{path}: the file is damaged or was not written by fastrl ({_line(error)}): restore it, or remove it"
                " and record again with --resume"
            ) from None
        lengths = self.index["length"]
        if len(rows) != 1 or (lengths < 1).any() or rows[0] != lengths.sum() + len(lengths):
            raise DemosError(
                f"{path}: the file is damaged, it has {sum(rows)} rows for {len(lengths)} episodes of {lengths.sum()}"
                " steps: restore it, or remove it and record again with --resume"
            )
        self.starts: NDArray[np.int64] = np.cumsum(lengths + 1) - (lengths + 1)

    @functools.cached_property
    def _batch(self) -> pa.RecordBatch:
        return self._reader.get_batch(0)

    def values(self, name: str) -> Any:
        """All rows of a column, [rows, ...]; a read-only view of the mapped file.

        Raises:
            DemosError: it has no such column, or a damaged one.
        """
        if name not in self._values:
            if name not in self.columns:
                raise DemosError(
                    f"{self.path}: there is no column {name!r}, only {', '.join(self.columns)}: restore the file"
                )
            try:
                self._values[name] = self.columns[name].to_numpy(self._batch.column(name))
            except (pa.ArrowException, ValueError, TypeError, IndexError, AttributeError) as error:
                raise DemosError(
                    f"{self.path}: the column {name!r} is damaged ({_line(error)}): restore the file"
                ) from None
        return self._values[name]

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        return {}

    def group(self, group: str) -> dict[tuple[Any, ...], Column]:
        """Columns of a group by path."""
        return {column.path: column for column in self.columns.values() if column.group == group}


class EpisodeDataset:
    """Recorded episodes, or some of those of a directory. `load` makes it.

    Attributes:
        path: the directory; of merged data sets the first one's.
        meta: the content of ``meta.json``.
        obs_space, action_space: of the environment.
        lengths: int64 [E], steps of each episode.
        returns: float64 [E], undiscounted.
        seeds: uint64 [E], of the resets; 2**64 - 1: unknown.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        shards: Sequence[Shard],
        places: NDArray[np.int64],
    ) -> None:
        self.path, self.meta = path, meta
        self.obs_space: gymnasium.Space[Any] = space_of(meta["obs_space"])
        self.action_space: gymnasium.Space[Any] = space_of(meta["action_space"])
        self._shards = list(shards)
        # Of each episode the number of its shard, and its number there.
        self._places = places
        counts = [len(shard.index) for shard in self._shards]
        index = np.concatenate([shard.index for shard in self._shards])
        index = index[(np.cumsum(counts) - counts)[places[:, 0]] + places[:, 1]]
        self.lengths: NDArray[np.int64] = index["length"].copy()
        self.returns: NDArray[np.float64] = index["return"].copy()
        self.seeds: NDArray[np.uint64] = index["seed"].copy()

    def __len__(self) -> int:
        """Number of episodes, E."""
        return len(self._places)

    @property
    def num_steps(self) -> int:
        """Steps of all episodes."""
        return int(self.lengths.sum())

    @property
    def info_names(self) -> list[str]:
        """Names of the recorded infos, such as ``inner/place``."""
        columns = self._shards[0].group("info").values() if self._shards else ()
        return [column.name.removeprefix("info/") for column in columns]

    def __repr__(self) -> str:
        return f"EpisodeDataset({str(self.path)!r}: {len(self):,} episodes, {self.num_steps:,} steps)"

    def __iter__(self) -> Iterator[Episode]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> EpisodeDataset: ...
    def __getitem__(self, index: Any) -> Any:
        """An episode, whose arrays are read-only views of the files; of a slice or several indices a data set."""
        if isinstance(index, int | np.integer):
            return self._episode(range(len(self))[index])
        return EpisodeDataset(self.path, self.meta, self._shards, self._places[index])

    def _episode(self, index: int) -> Episode:
        place = self._places[index]
        shard = self._shards[place[0]]
        start, length = int(shard.starts[place[1]]), int(self.lengths[index])

        def read(group: str) -> dict[tuple[Any, ...], Any]:
            return {
                path: shard.values(column.name)[start : start + length + column.has_last]
                for path, column in shard.group(group).items()
            }

        def of_space(group: str, space: gymnasium.Space[Any]) -> Any:
            leaves = read(group)
            try:
                return nest(space, leaves)
            except KeyError as error:
                raise DemosError(
                    f"{shard.path}: a column of {group}s is missing, {'/'.join(map(str, error.args[0]))!r}: restore the"
                    " file"
                ) from None

        seed = int(self.seeds[index])
        infos = read("info")
        return Episode(
            of_space("observation", self.obs_space),
            of_space("action", self.action_space),
            shard.values("reward")[start : start + length],
            shard.values("terminated")[start : start + length],
            shard.values("truncated")[start : start + length],
            of_space("expert_action", self.action_space) if shard.group("expert_action") else None,
            nest_dict(infos) if infos else None,
            None if seed == NO_SEED else seed,
            index,
        )

    def first_infos(self, name: str) -> NDArray[Any]:
        """The first value that an info has in each episode, [E, ...]."""
        return np.concatenate([shard.values(f"info/{name}")[starts] for shard, starts in self.parts()])

    def file_of(self, index: int) -> Path:
        """The file that has an episode."""
        return self._shards[self._places[index, 0]].path

    def parts(self) -> Iterator[tuple[Shard, NDArray[np.int64]]]:
        """Shards in order, each with the first rows of this data set's episodes in it, int64 [k]. Episodes that follow
        each other in one shard come together, so that large sets are read from the files without a copy."""
        shards = self._places[:, 0]
        for run in np.split(np.arange(len(self)), np.flatnonzero(np.diff(shards)) + 1):
            if len(run):
                shard = self._shards[shards[run[0]]]
                yield shard, shard.starts[self._places[run, 1]]

    def filter(self, top: float | None = None, *, min_return: float | None = None) -> EpisodeDataset:
        """The episodes with the highest returns, in their order.

        Args:
            top: share of the episodes, over 0 to 1; at least one is kept.
            min_return: the least return of those that are kept.

        Raises:
            DemosError: an argument out of its range, or no episode is left.
        """
        keep = np.ones(len(self), np.bool_)
        if top is not None:
            if not 0 < top <= 1:
                raise DemosError(f"top: expected a share over 0 and up to 1, got {top}")
            best = np.argsort(-self.returns, kind="stable")[: max(round(top * len(self)), 1)]
            keep[:] = False
            keep[best] = True
        if min_return is not None:
            keep &= self.returns >= min_return
        if not keep.any():
            raise DemosError(f"{self.path}: no episode has a return of at least {min_return}")
        return self[np.flatnonzero(keep)]

    def split(self, share: float, seed: int = 0) -> tuple[EpisodeDataset, EpisodeDataset]:
        """Two data sets of whole episodes, drawn at random: the share of the episodes, and the others.

        Raises:
            DemosError: the share is not between 0 and 1, or there are fewer than two episodes.
        """
        if not 0 < share < 1:
            raise DemosError(f"share: expected a number between 0 and 1, got {share}")
        if len(self) < 2:
            raise DemosError(f"{self.path}: a set of {len(self)} episodes cannot be split")
        order = np.random.default_rng(seed).permutation(len(self))
        cut = min(max(round(share * len(self)), 1), len(self) - 1)
        return self[np.sort(order[:cut])], self[np.sort(order[cut:])]

    def check_finite(self) -> None:
        """Looks at all observations, actions and rewards.

        Raises:
            DemosError: one of them is NaN or infinite; it names file, episode and step.
        """
        first = 0
        for shard, starts in self.parts():
            lengths = self.lengths[first : first + len(starts)]
            for column in shard.columns.values():
                if column.dtype.kind != "f" or column.group == "info":
                    continue
                values = shard.values(column.name)
                for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
                    own = values[start : start + length + column.has_last]
                    if not np.isfinite(own).all():
                        step = int(np.flatnonzero(~np.isfinite(own).reshape(len(own), -1).all(1))[0])
                        raise DemosError(
                            f"{shard.path}: episode {first + i}, step {step}: {column.name} is NaN or infinite: leave"
                            " the episode out, or record it again"
                        )
            first += len(starts)

    def statistics(self) -> dict[str, Any]:
        """Episodes, steps, moments of returns and lengths, and of each leaf of numbers of the observations its mean and
        standard deviation, float64 lists. Reads all observations."""
        return {**totals(self.lengths, self.returns), "observations": self._observation_moments()}

    def _observation_moments(self) -> dict[str, Any]:
        sums: dict[str, list[Any]] = {}
        first = 0
        for shard, starts in self.parts():
            lengths = self.lengths[first : first + len(starts)]
            first += len(starts)
            rows = np.concatenate(
                [np.arange(a, a + n + 1) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
            )
            for path, column in shard.group("observation").items():
                if column.is_text:
                    continue
                values = shard.values(column.name)[rows].reshape(len(rows), -1).astype(np.float64)
                name = "/".join(map(str, path))
                count, mean, square = sums.get(name, [0, 0.0, 0.0])
                # Chan et al.: moments of the union of two samples.
                own_mean, total = values.mean(0), count + len(rows)
                delta = own_mean - mean
                mean = mean + delta * (len(rows) / total)
                square = square + ((values - own_mean) ** 2).sum(0) + delta**2 * (count * len(rows) / total)
                sums[name] = [total, mean, square]
        return {
            name: {"mean": mean.tolist(), "deviation": np.sqrt(square / count).tolist()}
            for name, (count, mean, square) in sums.items()
        }


def load(path: str | Path) -> EpisodeDataset:
    """Opens a directory of recorded episodes. Nothing is read into memory yet but the index.

    Raises:
        DemosError: there is none, or a file is damaged.
    """
    path = Path(path)
    meta = read_meta(path)
    shards = [Shard(file) for file in shard_files(path)]
    if not shards:
        raise DemosError(f"{path}: there are no episodes in it yet")
    for shard in shards[1:]:
        if shard.columns != shards[0].columns:
            raise DemosError(f"{shard.path}: it has other columns than {shards[0].path.name}: restore it")
    places = [(number, i) for number, shard in enumerate(shards) for i in range(len(shard.index))]
    return EpisodeDataset(path, meta, shards, np.array(places, np.int64))


def merge(datasets: Sequence[EpisodeDataset]) -> EpisodeDataset:
    """One data set with the episodes of several, one after the other.

    Raises:
        DemosError: none, or they are of different spaces.
    """
    if not datasets:
        raise DemosError("merge: expected at least one data set, got none")
    first = datasets[0]
    for other in datasets[1:]:
        for what in ("obs_space", "action_space"):
            if other.meta[what] != first.meta[what]:
                raise DemosError(
                    f"{other.path} has the {what} {getattr(other, what)}, {first.path} has {getattr(first, what)}:"
                    " merge sets of the same spaces"
                )
    for other in datasets[1:]:
        if other._shards[0].columns != first._shards[0].columns:
            raise DemosError(
                f"{other.path} has other columns than {first.path}: merge sets with the same infos, all of them with"
                " noise or none"
            )
    shards: list[Shard] = []
    places = []
    for each in datasets:
        places.append(each._places + np.array([len(shards), 0]))
        shards += each._shards
    # Facts in which they differ are true of none.
    metas = [each.meta for each in datasets]
    same = {
        name: value for name, value in first.meta.items() if all(meta.get(name) == value for meta in metas)
    }
    return EpisodeDataset(first.path, same, shards, np.concatenate(places))


def check_spaces(
    demos: EpisodeDataset, obs_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], env: str
) -> None:
    """Refuses a data set of other spaces than an environment's.

    Raises:
        DemosError
    """
    for what, own, saved in (
        ("observations", obs_space, demos.obs_space),
        ("actions", action_space, demos.action_space),
    ):
        if space_state(own) != space_state(saved):
            raise DemosError(
                f"{demos.path}: its {what} are {saved}, those of {env} are {own}: give a set recorded in {env} with the"
                " same options"
            )


def totals(lengths: NDArray[np.int64], returns: NDArray[np.float64]) -> dict[str, Any]:
    """Numbers of episodes and steps, and moments of returns and lengths."""

    def moments(values: NDArray[Any]) -> dict[str, float | None]:
        if not len(values):
            return dict.fromkeys(("mean", "deviation", "min", "max"))
        return {
            "mean": float(values.mean()),
            "deviation": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
        }

    return {
        "episodes": len(lengths),
        "steps": int(lengths.sum()),
        "returns": moments(returns),
        "lengths": moments(lengths),
    }


def read_meta(path: Path) -> dict[str, Any]:
    """The content of ``meta.json``.

    Raises:
        DemosError: there is none, or it is damaged.
    """
    file = path / META
    try:
        data = read_file(file)
    except DamagedFileError as error:
        raise DemosError(f"{error}: restore it") from None
    except FileNotFoundError:
        raise DemosError(f"{path}: no recorded episodes, it has no {META}") from None
    except OSError as error:
        raise DemosError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        meta = parse_json(data)
        check_meta(meta)
    except ValueError as error:
        raise DemosError(f"{file}: damaged ({_line(error)}): restore it") from None
    return meta


def check_meta(meta: Mapping[str, Any]) -> None:
    """Refuses entries of ``meta.json`` of other kinds than the recorder writes.

    Raises:
        ValueError
    """
    for name in ("obs_space", "action_space"):
        if name not in meta:
            raise ValueError(f"it has no {name}")
        space_of(meta[name])
    env = meta.get("env")
    tables = {name: meta.get(name) for name in ("env", "expert", "noise", "source", "minari")}
    if isinstance(env, dict):
        tables["env.options"] = env.get("options")
        if not isinstance(env.get("id"), str | None):
            raise ValueError("env.id should be a text")
    agents = meta.get("agents")
    if agents is not None and not (isinstance(agents, list) and all(map(_is_agent, agents))):
        raise ValueError("agents should be a list of objects with texts name and group")
    for name, value in tables.items():
        if not isinstance(value, dict | None):
            raise ValueError(f"{name} should be an object or null")


def _is_agent(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("name", "group"))


def shard_files(path: Path) -> list[Path]:
    """The files of steps, in order.

    Raises:
        DemosError: one is missing.
    """
    files = sorted(path.glob("shard-*.arrow"))
    for number, file in enumerate(files):
        if file.name != SHARD.format(number):
            raise DemosError(f"{path}: {SHARD.format(number)} is missing: restore it")
    return files


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:120] if lines else type(error).__name__
