"""Recorded episodes on disk: exact, whole at any moment, the same bytes however they were written."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete, Space
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import damaged, mutated, refuses
from recorded_episodes import SPACES, assert_same, episode_of

from fastrl.demos.summary import describe
from fastrl.replay.episode_columns import DemosError
from fastrl.replay.episode_writer import EpisodeWriter, save
from fastrl.replay.episodes import Episode, EpisodeDataset, check_spaces, load, merge


def write(
    path: Path, episodes: list[Episode], spaces: tuple[Space[Any], Space[Any]], **options: Any
) -> EpisodeDataset:
    with EpisodeWriter(path, {"env": {"id": "toy"}, "seed": 3}, *spaces, **options) as writer:
        writer.write_all(episodes)
    return load(path)


def plain(steps: list[int]) -> tuple[list[Episode], tuple[Space[Any], Space[Any]]]:
    spaces = Box(-np.inf, np.inf, (3,), np.float32), Discrete(4)
    return [episode_of(*spaces, each, i) for i, each in enumerate(steps)], spaces


@pytest.mark.parametrize("infos", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_episodes_are_stored_exactly(tmp_path: Path, space: Space[Any], infos: bool) -> None:
    action = space if "Text" not in str(space) else Discrete(2)
    episodes = [
        episode_of(space, action, steps, i, infos=infos, noise=infos) for i, steps in enumerate((1, 7, 1, 30))
    ]
    demos = write(tmp_path / "set", episodes, (space, action), shard_bytes=1000)
    assert len(demos) == 4 and demos.num_steps == 39
    if "Text" not in str(space):
        assert demos.obs_space == space and demos.action_space == action
    check_spaces(demos, space, action, "toy")
    for got, expected in zip(demos, episodes, strict=True):
        assert_same(got, expected)
    np.testing.assert_array_equal(demos.returns, [each.rewards.sum() for each in episodes])


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(100, 3000), st.data())
def test_the_bytes_do_not_depend_on_flushes_and_resumes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], shard_bytes: int, data: st.DataObject
) -> None:
    episodes, spaces = plain(steps)
    folder = tmp_path_factory.mktemp("sets")
    write(folder / "whole", episodes, spaces, shard_bytes=shard_bytes)
    writer = EpisodeWriter(
        folder / "parts", {"env": {"id": "toy"}, "seed": 3}, *spaces, shard_bytes=shard_bytes
    )
    i = 0
    while i < len(episodes):
        match data.draw(st.sampled_from(["write", "flush", "close", "kill"])):
            case "flush":
                writer.flush()
            case "close" | "kill" as end:
                # What was not flushed is recorded again.
                if end == "close":
                    writer.close()
                else:
                    writer.flush()
                writer = EpisodeWriter(
                    folder / "parts",
                    {"env": {"id": "toy"}, "seed": 3},
                    *spaces,
                    resume=True,
                    shard_bytes=shard_bytes,
                )
                assert writer.next_index == i
        block = episodes[i : i + data.draw(st.integers(1, 5))]
        if len(block) == 1:
            writer.write(block[0])
        else:
            names = ("observations", "actions", "rewards", "terminated", "truncated")
            joined = {name: np.concatenate([getattr(each, name) for each in block]) for name in names}
            writer.write_many(Episode(**joined), [len(each) for each in block], [each.seed for each in block])
        i += len(block)
    writer.close()
    whole, parts = (sorted((folder / name).iterdir()) for name in ("whole", "parts"))
    assert [file.name for file in whole] == [file.name for file in parts]
    for a, b in zip(whole, parts, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_parts_of_a_set(tmp_path: Path) -> None:
    episodes, spaces = plain([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    demos = write(tmp_path / "set", episodes, spaces, shard_bytes=400)
    assert len(list((tmp_path / "set").glob("shard-*"))) > 2
    returns = np.array([each.total_reward for each in episodes])
    best = demos.filter(top=0.3)
    assert sorted(best.returns) == sorted(returns)[-3:]
    assert_same(
        best[-1].observations, episodes[np.flatnonzero(returns >= best.returns.min())[-1]].observations
    )
    assert len(demos.filter(top=1e-9)) == 1
    assert (demos.filter(min_return=0.0).returns >= 0).all()
    first, second = demos.split(0.7, seed=1)
    assert (len(first), len(second)) == (7, 3)
    assert sorted([*first.returns, *second.returns]) == sorted(returns)
    assert_same(demos.split(0.7, seed=1)[0].returns, first.returns)
    assert first.returns.tolist() != demos.split(0.7, seed=2)[0].returns.tolist()
    both = merge([second, first, demos])
    assert len(both) == 20 and both.num_steps == 2 * demos.num_steps
    assert_same(both[9].actions, first[6].actions)
    save(both, tmp_path / "both")
    for a, b in zip(load(tmp_path / "both"), both, strict=True):
        assert_same(dataclasses.replace(a, index=0), dataclasses.replace(b, index=0))
    parts = [(shard.path.name, starts.tolist()) for shard, starts in both.parts()]
    assert sum(len(starts) for _, starts in parts) == 20


@pytest.mark.slow
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_statistics_are_those_of_all_rows(tmp_path_factory: pytest.TempPathFactory, steps: list[int]) -> None:
    episodes, spaces = plain(steps)
    demos = write(tmp_path_factory.mktemp("sets") / "set", episodes, spaces, shard_bytes=300)
    rows = np.concatenate([each.observations for each in demos]).astype(np.float64)
    found = demos.statistics()
    np.testing.assert_allclose(found["observations"][""]["mean"], rows.mean(0), atol=1e-9)
    np.testing.assert_allclose(found["observations"][""]["deviation"], rows.std(0), rtol=1e-6, atol=1e-9)
    assert (found["episodes"], found["steps"]) == (len(steps), sum(steps))
    np.testing.assert_allclose(found["returns"]["mean"], demos.returns.mean())


def test_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    episodes, spaces = plain([50, 60])
    demos = write(tmp_path / "set", episodes, spaces)
    array = demos[1].observations
    assert not array.flags.writeable and not array.flags.owndata
    assert np.shares_memory(array, demos[1].observations)


def refused(path: Path, message: str) -> None:
    with pytest.raises(DemosError, match=message):
        load(path)


def rewrite(file: Path, table: pa.Table) -> None:
    """Writes a file with other rows or columns and the index that it had."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)


def test_damage_is_named(tmp_path: Path) -> None:
    episodes, spaces = plain([5] * 12)
    path = tmp_path / "set"
    refused(path, r"set: no recorded episodes, it has no meta.json")
    write(path, episodes, spaces, shard_bytes=600)
    files = sorted(path.glob("shard-*"))
    whole = files[1].read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"no arrow file" * 99):
        files[1].write_bytes(data)
        refused(path, r"shard-00001.arrow: the file is damaged .*: restore it, or remove it")
    table = pa.ipc.open_file(pa.BufferReader(whole)).read_all()
    for rows in (0, table.num_rows - 1):
        rewrite(files[1], table[:rows])
        refused(
            path,
            rf"shard-00001.arrow: the file is damaged, it has {rows} rows for \d+ episodes .* restore it, or remove it",
        )
    rewrite(files[1], table.drop_columns(["reward"]))
    refused(path, r"shard-00001.arrow: it has other columns than shard-00000.arrow: restore it")
    files[1].write_bytes(whole)
    assert len(load(path)) == 12
    files[0].unlink()
    refused(path, r"shard-00000.arrow is missing: restore it")
    (path / "meta.json").write_text("{")
    refused(path, r"meta.json: damaged")


def test_damaged_facts_are_refused_or_shown(tmp_path: Path) -> None:
    """No change to meta.json or to a shard ends in another error than `DemosError`, nor a pipe in their place."""
    episodes, spaces = plain([5] * 3)
    path = tmp_path / ("long" * 30)
    write(path, episodes, spaces)
    meta, shard = path / "meta.json", path / "shard-00000.arrow"
    good, rows = meta.read_text(), shard.read_bytes()
    chance = random.Random(0)

    def show() -> None:
        demos = load(path)
        describe(demos)
        for i in range(len(demos)):
            assert len(demos[i].rewards) == len(demos[i])

    refusals = 0
    for _ in range(150):
        tree, what = mutated(json.loads(good), chance)
        meta.write_text(json.dumps(tree))
        refusals += refuses(show, what, DemosError)
        meta.write_text(good)
        data, what = damaged(rows, chance)
        shard.write_bytes(data)
        refusals += refuses(show, what, DemosError)
        shard.write_bytes(rows)
    assert 100 < refusals < 300
    meta.write_text("[" * 100_000)
    refused(path, "meta.json: damaged .*nested too deeply")
    meta.write_text(good)
    for file in (shard, meta):
        file.unlink()
        os.mkfifo(file)
        refused(path, f"{file.name}.*is no regular file")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    episodes, spaces = plain([5, 6])
    path = tmp_path / "set"
    write(path, episodes, spaces)
    file = path / "shard-00000.arrow"
    table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    for name, message in (
        ("reward", "there is no column 'reward'"),
        ("action", "a column of actions is missing"),
    ):
        rewrite(file, table.drop_columns([name]))
        with pytest.raises(DemosError, match=rf"shard-00000.arrow: {message}.*: restore the file"):
            load(path)[0]


@pytest.mark.parametrize("name", ["observation", "reward"])
def test_nan_is_named(tmp_path: Path, name: str) -> None:
    episodes, spaces = plain([5] * 9)
    array = episodes[6].observations if name == "observation" else episodes[6].rewards
    array[3] = np.nan
    demos = write(tmp_path / "set", episodes, spaces, shard_bytes=600)
    with pytest.raises(
        DemosError, match=rf"shard-0000\d.arrow: episode 6, step 3: {name} is NaN or infinite"
    ):
        demos.check_finite()
    demos[:6].check_finite()


def test_wrong_episodes_are_refused(tmp_path: Path) -> None:
    (first, second), spaces = plain([4, 4])
    with EpisodeWriter(tmp_path / "set", {}, *spaces) as writer:
        writer.write(first)
        for wrong, message in (
            (
                dataclasses.replace(second, observations=second.observations[:-1]),
                r"episode 1: observation: expected",
            ),
            (
                dataclasses.replace(second, actions=second.actions.astype(np.int32)),
                r"action: expected int64 \[4\]",
            ),
            (dataclasses.replace(second, rewards=second.rewards[:0]), r"at least one step"),
            (dataclasses.replace(second, infos={"x": np.zeros(4)}), r"its infos info/x float64\[\] differ"),
        ):
            with pytest.raises(DemosError, match=message):
                writer.write(wrong)
        writer.write(second)
    assert len(load(tmp_path / "set")) == 2


def test_numbers_of_the_other_byte_order_are_refused(tmp_path: Path) -> None:
    other = np.dtype(np.float32).newbyteorder("S")
    with pytest.raises(DemosError, match=r"observations cannot be recorded: .* has the other byte order"):
        EpisodeWriter(tmp_path / "a", {}, Box(-1, 1, (2,), other), Discrete(2))  # type: ignore[arg-type]
    [episode], spaces = plain([3])
    episode = dataclasses.replace(episode, infos={"x": np.zeros(3, other)})
    with pytest.raises(DemosError, match="infos 'x': expected an array"):
        write(tmp_path / "b", [episode], spaces)


def test_writing_does_not_import_pandas(tmp_path: Path) -> None:
    """That takes a second, and pyarrow does it for each of its own conversions of arrays."""
    pytest.importorskip("pandas", reason="pip install pandas")
    code = f"""
import pathlib, sys
import numpy as np
from gymnasium.spaces import Box, Discrete
from fastrl.replay.episode_writer import EpisodeWriter
from fastrl.replay.episodes import Episode, load
with EpisodeWriter(pathlib.Path({str(tmp_path / "set")!r}), {{}}, Box(-1, 1, (2,)), Discrete(2)) as writer:
    ends = np.array([False, True])
    obs = np.zeros((3, 2), np.float32)
    writer.write(Episode(obs, np.zeros(2, np.int64), np.zeros(2), ends, ~ends, seed=1))
assert load({str(tmp_path / "set")!r})[0].observations.shape == (3, 2)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    episodes, spaces = plain([4, 4])
    path = tmp_path / "set"
    write(path, episodes, spaces)
    with pytest.raises(DemosError, match="it has episodes already: choose another directory, or continue"):
        EpisodeWriter(path, {}, *spaces)
    with pytest.raises(
        DemosError, match="it was recorded with seed 3, not with 4: resume with the same settings"
    ):
        EpisodeWriter(path, {"seed": 4}, *spaces, resume=True)
    demos = load(path)
    with pytest.raises(DemosError, match=r"its actions are Discrete\(4\), those of other are Discrete\(5\)"):
        check_spaces(demos, spaces[0], Discrete(5), "other")
    write(tmp_path / "other", *plain_of(Discrete(5)))
    with pytest.raises(DemosError, match="merge sets of the same spaces"):
        merge([demos, load(tmp_path / "other")])


def plain_of(action: Space[Any]) -> tuple[list[Episode], tuple[Space[Any], Space[Any]]]:
    spaces = Box(-np.inf, np.inf, (3,), np.float32), action
    return [episode_of(*spaces, 3, 0)], spaces


WRITES = """
import sys, numpy as np
from pathlib import Path
from gymnasium.spaces import Box, Discrete
from fastrl.replay.episode_writer import EpisodeWriter
from fastrl.replay.episodes import Episode
spaces = Box(-1, 1, (3,), np.float32), Discrete(2)
writer = EpisodeWriter(Path(sys.argv[1]), {}, *spaces, resume=True, shard_bytes=20_000)
print(writer.next_index, flush=True)
while True:
    n = 1 + writer.next_index % 7
    flags = np.zeros(n, bool)
    value = np.float32(writer.next_index % 1000) / 1000
    writer.write(Episode(np.full((n + 1, 3), value), np.zeros(n, np.int64), np.ones(n), flags, flags))
    if writer.next_index % 10 == 0:
        writer.flush()
        print(writer.next_index, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_episodes(tmp_path: Path) -> None:
    path, known = tmp_path / "set", 0
    rng = np.random.default_rng(0)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= known
        for _ in range(rng.integers(1, 5)):
            start = int(process.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        demos = load(path)
        known = len(demos)
        assert known >= start
        for i in (0, known // 2, known - 1):
            episode = demos[i]
            assert len(episode) == 1 + i % 7 == len(episode.observations) - 1
            assert (episode.observations == np.float32(i % 1000) / 1000).all()
