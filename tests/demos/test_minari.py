"""Data sets of Minari: what is exported is opened by Minari, and comes back with the same bytes."""

import dataclasses
import json
import random
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from mutations import mutated, refuses
from recorded_episodes import SPACES, assert_same, episode_of
from small_runs import refusal

import fastrl
from fastrl.cli.main import main
from fastrl.demos import DemosError, Episode, EpisodeDataset, EpisodeWriter, load

minari: Any = pytest.importorskip("minari")

ID = "toy/expert-v0"
LARGE_IMAGE = Box(0, 255, (40, 36, 3), np.uint8)


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of Minari's own."""
    folder = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


def write(path: Path, episodes: list[Episode], spaces: tuple[Space[Any], Space[Any]]) -> EpisodeDataset:
    facts = {
        "env": {"id": "CartPole-v1", "options": {}, "max_episode_steps": 70},
        "seed": 3,
        "expert": {"kind": "x"},
    }
    with EpisodeWriter(path, facts, *spaces) as writer:
        writer.write_all(episodes)
    return load(path)


def assert_same_files(first: Path, second: Path) -> None:
    for name in [file.name for file in sorted(first.glob("shard-*"))]:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def as_minari(values: Any) -> Any:
    """Values as Minari gives them: texts in lists."""
    if isinstance(values, dict):
        return {key: as_minari(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(map(as_minari, values))
    return values.tolist() if values.dtype == object else values


def by_key(values: Any) -> Any:
    """Dicts in the order of their keys, which Minari's spaces have."""
    if isinstance(values, dict):
        return {key: by_key(values[key]) for key in sorted(values)}
    return tuple(map(by_key, values)) if isinstance(values, tuple) else values


@pytest.mark.parametrize("more", [False, True], ids=["plain", "infos and noise"])
@pytest.mark.parametrize("space", [*SPACES, LARGE_IMAGE], ids=str)
def test_the_round_trip_is_exact(tmp_path: Path, space: Space[Any], more: bool) -> None:
    action = space if "Text" not in str(space) else Discrete(2)
    episodes = [
        episode_of(space, action, steps, i, infos=more, noise=more)
        for i, steps in enumerate((1, 7, 1, 30, 4))
    ]
    demos = write(tmp_path / "set", episodes, (space, action))
    fastrl.demos.export_minari(demos, ID)
    found = minari.load_dataset(ID)
    assert (found.total_episodes, found.total_steps) == (5, 43)
    if "Text" not in str(space):
        assert found.observation_space == space and found.action_space == action
    assert found.env_spec.id == "CartPole-v1" and found.env_spec.max_episode_steps == 500
    metadata = list(found.storage.get_episode_metadata(range(5)))
    for i, (episode, given) in enumerate(zip(episodes, found, strict=True)):
        assert given.id == i and metadata[i]["total_steps"] == len(episode)
        assert metadata[i].get("seed") == episode.seed
        assert_same(by_key(given.observations), by_key(as_minari(episode.observations)))
        assert_same(by_key(given.actions), by_key(as_minari(episode.actions)))
        assert_same(given.rewards, episode.rewards)
        assert_same(given.terminations, episode.terminated)
        assert_same(given.truncations, episode.truncated)
        assert repr(given)
        if more:
            assert_same(given.infos["inner"], dict(episode.infos)["inner"])
        else:
            assert given.infos == {}
    back = fastrl.demos.import_minari(ID, tmp_path / "back")
    assert_same_files(tmp_path / "set", tmp_path / "back")
    assert back.meta == demos.meta


def buffers(episodes: list[Episode]) -> list[Any]:
    """Episodes for Minari's own writer."""
    return [
        minari.data_collector.EpisodeBuffer(
            id=None,
            seed=each.seed,
            observations=each.observations,
            actions=each.actions,
            rewards=each.rewards.tolist(),
            terminations=each.terminated.tolist(),
            truncations=each.truncated.tolist(),
            infos=each.infos,
        )
        for each in episodes
    ]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.filterwarnings("ignore")
def test_sets_of_minari_are_imported(tmp_path: Path, data_format: str) -> None:
    spaces = Dict({"a": Box(-1, 1, (2,), np.float64), "b": Discrete(3)}), Box(-1, 1, (2,), np.float32)
    episodes = [episode_of(*spaces, steps, i) for i, steps in enumerate((3, 1, 8))]
    minari.create_dataset_from_buffers(
        ID,
        buffers(episodes),
        env="Pendulum-v1",
        observation_space=spaces[0],
        action_space=spaces[1],
        author="somebody",
        data_format=data_format,
    )
    demos = fastrl.demos.import_minari(ID, tmp_path / "set")
    assert demos.obs_space == spaces[0] and demos.action_space == spaces[1]
    for got, expected in zip(demos, episodes, strict=True):
        assert_same(got, expected)
    assert demos.meta["env"]["id"] == "Pendulum-v1" and demos.meta["minari"]["author"] == ["somebody"]
    assert demos.meta["expert"] == {"kind": "minari", "name": ID}
    fastrl.demos.export_minari(demos, "toy/again-v0")
    for got, expected in zip(minari.load_dataset("toy/again-v0"), minari.load_dataset(ID), strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert_same(getattr(got, name), getattr(expected, name))
    assert minari.load_dataset("toy/again-v0").storage.metadata["author"] == {"somebody"}


def test_an_exported_set_can_be_extended_and_listed(tmp_path: Path) -> None:
    spaces = Box(-1, 1, (2,), np.float32), Discrete(4)
    episodes = [episode_of(*spaces, 5, i) for i in range(30)]
    fastrl.demos.export_minari(write(tmp_path / "set", episodes[:20], spaces), ID)
    found = minari.load_dataset(ID)
    found.update_dataset_from_buffer(buffers(episodes[20:]))
    assert list(minari.list_local_datasets()) == [ID] and minari.namespace.list_local_namespaces() == ["toy"]
    demos = fastrl.demos.import_minari(minari.load_dataset(ID).spec.data_path, tmp_path / "more")
    for got, expected in zip(demos, episodes, strict=True):
        assert_same(got, expected)


@pytest.mark.slow
def test_many_episodes_are_found_by_name(tmp_path: Path) -> None:
    spaces = Discrete(9000), Discrete(2)
    episodes = [
        Episode(np.array([i, i + 1]), np.zeros(1, np.int64), np.ones(1), np.ones(1, bool), np.zeros(1, bool))
        for i in range(4500)
    ]
    fastrl.demos.export_minari(write(tmp_path / "set", episodes, spaces), ID)
    found = minari.load_dataset(ID)
    found.update_dataset_from_buffer(buffers(episodes[:200]))
    found = minari.load_dataset(ID)
    assert len(found) == 4700
    for i in (0, 1, 63, 64, 999, 2047, 2048, 4499):
        assert found[i].observations.tolist() == [i, i + 1]
    assert found[4699].observations.tolist() == [199, 200]


@pytest.mark.filterwarnings("ignore")
def test_other_dtypes_are_converted_and_infos_may_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaces = Box(-1, 1, (2,), np.float32), Discrete(4)
    episodes = [episode_of(*spaces, 3, 2 * i) for i in range(2)]
    rows = [
        dataclasses.replace(
            each,
            observations=each.observations.astype(np.float64) + 1e-12,
            actions=each.actions.astype(np.int32).reshape(-1, 1),
            infos={f"only in {i}": np.zeros(4)},
        )
        for i, each in enumerate(buffers(episodes))
    ]
    minari.create_dataset_from_buffers(ID, rows, observation_space=spaces[0], action_space=spaces[1])
    out = str(tmp_path / "set")
    assert main(["demos", "import", ID, "--out", out]) == 2
    _, err = capsys.readouterr()
    assert "episode 1: its infos differ from those of the first episode" in err and "--no-infos" in err
    shutil.rmtree(out)
    assert main(["demos", "import", ID, "--out", out, "--no-infos"]) == 0
    printed, err = capsys.readouterr()
    assert "2 episodes, 6 steps" in printed
    assert "observations were stored as float64, and are rounded to float32, as the space says" in err
    assert_same(load(out)[1].actions, episodes[1].actions)
    assert load(out).meta["env"] is None


def test_mistakes_are_told_in_one_line(
    tmp_path: Path, datasets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaces = Box(-1, 1, (2,), np.float32), Discrete(4)
    path, out = tmp_path / "set", ("--out", tmp_path / "out")
    demos = write(path, [episode_of(*spaces, 3, i) for i in range(3)], spaces)
    for name in ("toy", "toy/expert", "../up-v0", "a b-v0"):
        assert "is no id of Minari: expected a name and a version" in refusal(
            capsys, "demos", "export", path, "--minari", name
        )
    assert main(["demos", "export", str(path), "--minari", ID]) == 0
    assert f"{ID}: 3 episodes, 9 steps" in capsys.readouterr().out
    assert "exists already: choose another name" in refusal(capsys, "demos", "export", path, "--minari", ID)
    assert "no data set of that id" in refusal(capsys, "demos", "import", "toy/none-v0", *out)
    assert "it has episodes already" in refusal(capsys, "demos", "import", ID, "--out", path)
    slashes = Dict({"a/b": Discrete(2)})
    bad = write(tmp_path / "slashes", [episode_of(slashes, Discrete(2), 3, 1)], (slashes, Discrete(2)))
    with pytest.raises(DemosError, match="cannot have the key 'a/b'"):
        fastrl.demos.export_minari(bad, "toy/slashes-v0")
    assert sorted(each.name for each in datasets.iterdir()) == ["toy"]
    file = datasets / ID / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:3000])
    assert "episode 0 cannot be read" in refusal(capsys, "demos", "import", ID, *out)
    (datasets / ID / "data" / "metadata.json").write_text("{}")
    assert "Minari cannot read it" in refusal(capsys, "demos", "import", ID, "--out", tmp_path / "other")
    assert len(demos) == 3


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.delitem(sys.modules, "fastrl.demos.minari_sets", raising=False)
    line = refusal(capsys, "demos", "import", "a-v0", "--out", tmp_path / "out")
    assert "minari: pip install 'fastrl[demos]'" in line


@pytest.mark.slow
def test_damaged_metadata_are_refused_in_one_line(tmp_path: Path, datasets: Path) -> None:
    """Each of 400 changes to what Minari keeps of our own, and to its own entries, is refused or does no harm."""
    space = Dict({"a": Box(-1, 1, (2,), np.float32), "b": MultiDiscrete([2, 3])})
    write(tmp_path / "set", [episode_of(space, Discrete(2), 3, 0)], (space, Discrete(2)))
    fastrl.demos.export_minari(load(tmp_path / "set"), ID)
    file = datasets / ID / "data" / "metadata.json"
    good = json.loads(file.read_text())
    chance = random.Random(0)
    refused = 0
    for i in range(400):
        changed, what = mutated(good["fastrl"] if i % 4 else good, chance)
        file.write_text(json.dumps({**good, "fastrl": changed} if i % 4 else changed))
        out = tmp_path / str(i)
        refused += refuses(partial(fastrl.demos.import_minari, ID, out), what, DemosError)
    assert refused > 100
