"""``fastrl demos show | filter | split | merge``, and the face of `fastrl.demos`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import fastrl
from fastrl.cli.main import main
from fastrl.demos import Episode, EpisodeDataset, EpisodeWriter, load

SPACES = Box(-1, 1, (3,), np.float32), Discrete(4)
FACTS = {
    "env": {"id": "Toy-v0", "options": {"size": 3}},
    "seed": 3,
    "expert": {"kind": "baseline", "name": "good"},
}


def make_set(path: Path, lengths: list[int], facts: dict[str, Any] = FACTS, **more: Any) -> EpisodeDataset:
    """Episode i has a reward of i at each step; odd ones are terminated, even ones truncated."""
    rng = np.random.default_rng(0)
    with EpisodeWriter(path, facts, *SPACES) as writer:
        for i, length in enumerate(lengths):
            ended = np.arange(length) == length - 1
            episode = Episode(
                rng.random((length + 1, 3), np.float32),
                rng.integers(4, size=length),
                np.full(length, float(i)),
                ended & bool(i % 2),
                ended & (not i % 2),
                seed=2**64 - 2 - i,
            )
            writer.write(dataclasses.replace(episode, **more))
    return load(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["demos", *map(str, arguments)])
    return code, *capsys.readouterr()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line in which a command fails."""
    try:
        code, out, err = run(capsys, *arguments)
    except SystemExit as error:
        code, (out, err) = error.code, capsys.readouterr()
    assert code == 2 and not out
    return err.splitlines()[-1]


def test_a_set_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demos = make_set(tmp_path / "set", [2, 5, 3])
    assert demos[0].seed == 2**64 - 2
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "set" / "episodes.png").symlink_to(victim)
    code, out, err = run(capsys, "show", tmp_path / "set")
    assert victim.read_text() == "mine"
    assert (code, err) == (0, "")
    rows = {
        cells[1].strip(): cells[2].strip() for line in out.splitlines() if len(cells := line.split("│")) == 4
    }
    assert rows["episodes"] == "3" and rows["steps"] == "10"
    assert rows["return"].startswith("mean 3.66667,") and rows["return"].endswith("from 0 to 6")
    assert rows["ends"] == "1 terminated, 2 truncated"
    assert rows["environment"] == "Toy-v0, size 3" and rows["expert"] == "baseline, good"
    assert rows["observations"] == "Box(-1.0, 1.0, (3,), float32)" and rows["actions"] == "Discrete(4)"
    assert (tmp_path / "set" / "episodes.png").stat().st_size > 1000
    assert run(capsys, "show", tmp_path / "set", "--out", tmp_path / "picture.svg")[0] == 0
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    code, out, _ = run(capsys, "show", tmp_path / "set", "--json")
    found = json.loads(out)
    assert found["episodes"] == 3 and found["seed"] == 3 and len(found["observations"][""]["mean"]) == 3


def test_sets_are_filtered_split_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demos = make_set(tmp_path / "set", [4] * 10)
    assert run(capsys, "filter", tmp_path / "set", "--top", "0.2", "--out", tmp_path / "best")[0] == 0
    best = load(tmp_path / "best")
    assert best.returns.tolist() == [32, 36] and best.meta["seed"] == 3
    assert best.meta["source"] == {"name": "set", "episodes": 10}
    np.testing.assert_array_equal(best[1].observations, demos[9].observations)
    assert best[1].seed == demos[9].seed
    assert run(capsys, "filter", tmp_path / "set", "--min-return=20", "--out", tmp_path / "least")[0] == 0
    assert len(load(tmp_path / "least")) == 5
    code, out, _ = run(capsys, "split", tmp_path / "set", "0.7", "--seed=1", "--out", tmp_path / "parts")
    assert code == 0 and len(out.splitlines()) == 2
    train, validation = (load(tmp_path / "parts" / name) for name in ("train", "validation"))
    assert train.returns.tolist() == demos.split(0.7, seed=1)[0].returns.tolist()
    assert sorted([*train.returns, *validation.returns]) == sorted(demos.returns)
    other = make_set(tmp_path / "other", [3], {**FACTS, "seed": 4})
    code, *_ = run(capsys, "merge", tmp_path / "best", tmp_path / "other", "--out", tmp_path / "both")
    both = fastrl.demos.load(tmp_path / "both")
    assert code == 0 and both.returns.tolist() == [32, 36, 0]
    assert "seed" not in both.meta and both.meta["env"] == other.meta["env"]


def test_a_part_of_a_recording_is_not_resumed(tmp_path: Path) -> None:
    make_set(tmp_path / "set", [4] * 10)
    fastrl.demos.save(load(tmp_path / "set")[:4], tmp_path / "part")
    with pytest.raises(fastrl.demos.DemosError, match="it was recorded with source"):
        EpisodeWriter(tmp_path / "part", FACTS, *SPACES, resume=True)


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set"
    make_set(path, [4] * 10)
    out = ("--out", tmp_path / "out")
    assert "no recorded episodes" in refusal(capsys, "show", tmp_path / "none")
    assert "--out: expected a name that ends in .png or .svg" in refusal(capsys, "show", path, "--out=a.txt")
    assert "expected --top, --min-return or both" in refusal(capsys, "filter", path, *out)
    assert "top: expected a share over 0" in refusal(capsys, "filter", path, "--top=2", *out)
    assert "should be a number, got 'nan'" in refusal(capsys, "filter", path, "--top=nan", *out)
    assert "no episode has a return of at least 99" in refusal(
        capsys, "filter", path, "--min-return=99", *out
    )
    assert "share: expected a number between 0 and 1" in refusal(capsys, "split", path, "1", *out)
    assert "it has episodes already" in refusal(capsys, "filter", path, "--top=1", "--out", path)
    assert "did you mean show" in refusal(capsys, "shwo")
    infos = {"x": np.zeros(5)}
    make_set(tmp_path / "infos", [4], infos=infos)
    assert "merge sets with the same infos" in refusal(capsys, "merge", path, tmp_path / "infos", *out)
    (path / "shard-00000.arrow").write_bytes(b"")
    assert "shard-00000.arrow: the file is damaged" in refusal(capsys, "show", path)
    assert not (tmp_path / "out").exists()


def test_help_of_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    from fastrl.cli.demos import COMMANDS

    code, out, _ = run(capsys)
    assert code == 0 and all(f"  {name}" in out for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            run(capsys, name, "--help")
        assert stop.value.code == 0 and capsys.readouterr().out.startswith(f"usage: fastrl demos {name}")


def test_names_are_loaded_when_they_are_used() -> None:
    assert set(fastrl.demos.__all__) <= set(dir(fastrl.demos))
    for name in fastrl.demos.__all__:
        assert getattr(fastrl.demos, name) is not None
