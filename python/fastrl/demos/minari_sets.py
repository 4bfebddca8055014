"""Data sets of Minari: from recorded episodes, and to them. Both ways are exact."""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Text, Tuple
from numpy.typing import NDArray

from fastrl.demos.minari_files import EpisodeFile
from fastrl.envs.rows import space_of
from fastrl.replay.episode_columns import Column, DemosError, info_columns
from fastrl.replay.episode_writer import EpisodeWriter, facts_of
from fastrl.replay.episodes import NO_SEED, Episode, EpisodeDataset, Shard, check_meta, load
from fastrl.utils.files import check_depth, parse_json, write_atomically

try:
    import minari
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.serialization import serialize_space
    from minari.storage.datasets_root_dir import get_dataset_path
except ImportError:
    raise DemosError("data sets of Minari need minari: pip install 'fastrl[demos]'") from None

# The key of Minari's metadata with what Minari has no place for: the content of our ``meta.json``.
FACTS = "fastrl"
# Minari has no place for an expert's actions beside those taken; they stand among the infos.
EXPERT_ACTIONS = "fastrl_expert_actions"
# Entries of Minari's metadata that follow from the episodes.
_OWN = {
    *("total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding"),
    *("observation_space", "action_space", "dataset_id", "minari_version", FACTS),
}

_GROUPS = {
    "observation": ("observations",),
    "action": ("actions",),
    "reward": ("rewards",),
    "terminated": ("terminations",),
    "truncated": ("truncations",),
    "info": ("infos",),
    "expert_action": ("infos", EXPERT_ACTIONS),
}


def export_minari(
    demos: EpisodeDataset, dataset_id: str, *, advance: Callable[[int], object] = lambda episodes: None
) -> Path:
    """Writes a data set that ``minari.load_dataset(dataset_id)`` opens, into Minari's directory.

    Images are stored as they are, not as JPEG. Expert actions are among the infos, as "fastrl_expert_actions".

    Args:
        demos: the episodes.
        dataset_id: such as "cartpole/expert-v0".
        advance: called with numbers of episodes that were written.

    Returns:
        The directory of the data set.

    Raises:
        DemosError: no such id is possible, there is one already, or Minari cannot store a name.
        OSError: the disk is full.
    """
    try:
        namespace = parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):
        raise DemosError(
            f"{dataset_id!r} is no id of Minari: expected a name and a version, such as cartpole/expert-v0"
        ) from None
    target = get_dataset_path(dataset_id)
    if target.exists():
        raise DemosError(
            f"{target} exists already: choose another name or version, or `minari delete {dataset_id}`"
        )
    # Names with a dot are hidden from Minari.
    temporary = get_dataset_path() / f".fastrl-{secrets.token_hex(4)}"
    data = temporary / "data"
    try:
        data.mkdir(parents=True)
        with EpisodeFile(data / "main_data.hdf5") as file:
            for shard, start, steps, seed in _episodes(demos):
                columns = [
                    (_path(each), shard.values(each.name)[start : start + steps + each.has_last])
                    for each in shard.columns.values()
                ]
                file.write(steps, seed, columns)
                advance(1)
        size = sum(each.stat().st_size for each in data.iterdir())
        metadata = {
            **_metadata(demos),
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "dataset_size": round(size / 1e6, 1),
        }
        write_atomically(data / METADATA_FILE_NAME, json.dumps(metadata).encode())
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Path(target)


def _episodes(demos: EpisodeDataset) -> Iterator[tuple[Shard, int, int, int | None]]:
    """Each episode's shard, first row, steps and seed."""
    index = 0
    for shard, starts in demos.parts():
        for start in starts.tolist():
            seed = int(demos.seeds[index])
            yield shard, start, int(demos.lengths[index]), None if seed == NO_SEED else seed
            index += 1


def _path(column: Column) -> tuple[str, ...]:
    """Path of a column in an episode's group."""
    names = [f"_index_{key}" if isinstance(key, int) else str(key) for key in column.path]
    for name in names:
        if "/" in name or name in ("", "."):
            raise DemosError(f"{column.name}: a file of Minari cannot have the key {name!r}: rename it")
    return (*_GROUPS[column.group], *names)


def _metadata(demos: EpisodeDataset) -> dict[str, Any]:
    """Minari's metadata of the episodes and the environment."""
    kept = demos.meta.get("minari") or {}
    metadata = {
        **{name: value for name, value in kept.items() if name not in _OWN},
        "total_episodes": len(demos),
        "total_steps": demos.num_steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(demos.obs_space),
        "action_space": serialize_space(demos.action_space),
        FACTS: {
            **facts_of(demos.meta),
            "obs_space": demos.meta["obs_space"],
            "action_space": demos.meta["action_space"],
        },
    }
    if "env_spec" not in metadata and (spec := _env_spec(demos.meta.get("env") or {})) is not None:
        metadata["env_spec"] = spec
    return metadata


def _env_spec(env: Mapping[str, Any]) -> str | None:
    """The specification of Gymnasium that makes the environment, as JSON; None: it has none."""
    spec = gymnasium.registry.get(str(env.get("id")))
    if spec is None:
        return None
    spec = copy.deepcopy(spec)
    spec.kwargs.update(env.get("options") or {})
    if spec.max_episode_steps is None:
        spec.max_episode_steps = env.get("max_episode_steps")
    try:
        return str(spec.to_json())
    except (TypeError, ValueError):
        # It is made by a function, not by a name.
        return None


def import_minari(
    source: str | Path,
    out: str | Path,
    *,
    infos: bool = True,
    advance: Callable[[int], object] = lambda episodes: None,
    log: Callable[[str], object] = lambda line: None,
) -> EpisodeDataset:
    """Writes a data set of Minari as recorded episodes.

    Args:
        source: its id, such as "mujoco/halfcheetah/expert-v0", or its directory; in any of Minari's formats.
        out: the new directory.
        infos: keep them, too.
        advance: called with numbers of episodes that were read.
        log: called with notes for people.

    Returns:
        The new data set.

    Raises:
        DemosError: there is no such data set, it is damaged, or has spaces or infos that cannot be stored.
        OSError: the disk is full.
    """
    path = _find(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = MinariStorage.read(path)
            metadata = MinariStorage.read_raw_metadata(path)
            count = int(metadata["total_episodes"])
    except Exception as error:
        raise DemosError(f"{path}: Minari cannot read it: {_line(error)}") from None
    if not count:
        raise DemosError(f"{path}: there are no episodes in it")
    if facts := metadata.get(FACTS):
        try:
            check_depth(facts)
            check_meta(facts)
        except (ValueError, TypeError, AttributeError) as error:
            raise DemosError(f"{path}: its metadata are damaged: {_line(error)}") from None
        spaces = space_of(facts["obs_space"]), space_of(facts["action_space"])
        facts = facts_of(facts)
    else:
        spaces = storage.observation_space, storage.action_space
        facts = _facts(metadata)
    reader = _Reader(*spaces, has_infos=infos)
    with EpisodeWriter(Path(out), facts, *spaces) as writer:
        for i in range(count):
            try:
                (data,) = storage.get_episodes([i])
                (own,) = storage.get_episode_metadata([i])
            except Exception as error:
                raise DemosError(f"{path}: episode {i} cannot be read: {_line(error)}") from None
            try:
                writer.write(reader.episode(data, own, i))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise DemosError(f"{path}: episode {i} does not fit its spaces: {_line(error)}") from None
            except DemosError as error:
                raise DemosError(f"{path}: {error}") from None
            advance(1)
    for line in reader.notes:
        log(f"{path}: {line}")
    return load(out)


def _find(source: str | Path) -> Path:
    """The directory of a data set's files.

    Raises:
        DemosError: there is none.
    """
    for folder in (Path(source), get_dataset_path(str(source))):
        for path in (folder, folder / "data"):
            if (path / METADATA_FILE_NAME).is_file():
                return path
    raise DemosError(
        f"{source}: no such directory, and no data set of that id in {get_dataset_path()}: `minari download {source}`"
        " gets one that is public"
    )


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of ``meta.json`` of a data set that was not recorded here."""
    kept = {name: value for name, value in metadata.items() if name not in _OWN}
    env: dict[str, Any] | None = None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        spec = parse_json(metadata["env_spec"])
        options = spec.get("kwargs") or {}
        env = {
            "id": str(spec["id"]),
            "options": options if isinstance(options, dict) else {},
            "max_episode_steps": spec.get("max_episode_steps"),
        }
    name = str(metadata.get("dataset_id", ""))
    return {"env": env, "expert": {"kind": "minari", "name": name}, "noise": None, "minari": kept}


class _Reader:
    """Makes episodes of Minari's.

    Args:
        obs_space, action_space: of the environment.
        has_infos: keep them.

    Attributes:
        notes: lines for people.
    """

    def __init__(
        self, obs_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, has_infos: bool
    ) -> None:
        self._obs_space, self._action_space, self._has_infos = obs_space, action_space, has_infos
        self._columns: list[Column] | None = None
        self.notes: dict[str, None] = {}

    def episode(self, data: Mapping[str, Any], own: Mapping[str, Any], index: int) -> Episode:
        """An episode from its arrays and its metadata."""
        infos = _texts_as_objects(data.get("infos") or {})
        experts = infos.pop(EXPERT_ACTIONS, None)
        steps = len(data["rewards"])
        seed = own.get("seed")
        if own.get("options"):
            self.notes["options of resets are left out"] = None
        return Episode(
            observations=self._read(self._obs_space, data["observations"], "observations"),
            actions=self._read(self._action_space, data["actions"], "actions"),
            rewards=np.asarray(data["rewards"], np.float64).reshape(steps),
            terminated=np.asarray(data["terminations"], np.bool_).reshape(steps),
            truncated=np.asarray(data["truncations"], np.bool_).reshape(steps),
            expert_actions=None if experts is None else self._read(self._action_space, experts, "actions"),
            infos=self._infos(infos, steps, index) if self._has_infos else None,
            seed=None if seed is None else int(seed),
            index=index,
        )

    def _infos(self, infos: dict[str, Any], steps: int, index: int) -> dict[str, Any] | None:
        """The infos, if they can be stored.

        Raises:
            DemosError: they cannot.
        """
        try:
            columns = info_columns(infos, steps, 1)
        except DemosError as error:
            raise DemosError(f"episode {index}: {error}; --no-infos leaves infos out") from None
        if self._columns is None:
            self._columns = columns
        if columns != self._columns:
            differ = next(
                each.name
                for each in (*columns, *self._columns)
                if each not in columns or each not in self._columns
            )
            raise DemosError(
                f"episode {index}: its infos differ from those of the first episode, such as {differ}; --no-infos"
                " leaves infos out"
            )
        return infos or None

    def _read(self, space: gymnasium.Space[Any], values: Any, name: str) -> Any:
        """Values in the form and the dtypes of a space."""
        if isinstance(space, Dict):
            return {key: self._read(child, values[key], name) for key, child in space.spaces.items()}
        if isinstance(space, Tuple):
            if isinstance(values, Mapping):
                values = [values[f"_index_{i}"] for i in range(len(space.spaces))]
            return tuple(self._read(child, values[i], name) for i, child in enumerate(space.spaces))
        if isinstance(space, Text):
            return np.array([_text(each) for each in values], dtype=object)
        array = np.asarray(values)
        shape = (len(array), *(space.shape or ()))
        if array.shape != shape and array.size == np.prod(shape):
            array = array.reshape(shape)
        if array.dtype == space.dtype:
            return array
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(space.dtype)
        if not np.array_equal(cast, array, equal_nan=array.dtype.kind == "f"):
            if cast.dtype.kind != "f":
                raise ValueError(f"{name} of {array.dtype} do not fit {space.dtype}")
            self.notes[
                f"{name} were stored as {array.dtype}, and are rounded to {space.dtype}, as the space says"
            ] = None
        return cast


def _texts_as_objects(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Infos, whose texts HDF5 gives as bytes, in nested dicts."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, Mapping):
            found[key] = _texts_as_objects(value)
            continue
        array: NDArray[Any] = np.asarray(value)
        if array.dtype.kind in "OS" and array.ndim:
            texts = [_text(each) for each in array.ravel().tolist()]
            array = np.array(texts, dtype=object).reshape(array.shape)
        found[key] = array
    return found


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
