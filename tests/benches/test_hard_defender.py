"""A defender of CAGE Challenge 2 that is trained against its best responses, and its figure."""

from __future__ import annotations

from pathlib import Path

import pytest

import hard_defender


def test_the_newest_attacker_and_the_scripts_are_met_more_often() -> None:
    assert hard_defender.opponents([]) == ["bline:0.15", "meander:0.15"]
    shares = dict(each.rsplit(":", 1) for each in hard_defender.opponents([Path("a"), Path("b"), Path("c")]))
    assert sum(map(float, shares.values())) == pytest.approx(1, abs=1e-5)
    assert float(shares["c"]) == pytest.approx(2 * float(shares["a"]), rel=1e-4)


def test_rounds_go_on_where_they_were_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [str(tmp_path), "--steps", "400", "400", "400"]
    assert hard_defender.main([*small, "--rounds=1"]) == 0
    before = (tmp_path / "red000.safetensors").read_bytes()
    assert hard_defender.main([*small, "--rounds=2"]) == 0
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["blue000", "blue001", "red000", "red001"]
    assert (tmp_path / "red000.safetensors").read_bytes() == before
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["0", "1"]
    row = hard_defender.measure(
        "small", str(tmp_path / "blue001.safetensors"), seeds=(0,), steps=400, episodes=4
    )
    assert row["total"] < 0
    assert row["scripts"].keys() == {"bline", "meander", "mix"}
    assert row["gain"] == pytest.approx(min(row["scripts"].values()) - row["responses"][0], abs=0.02)
    limit = hard_defender.bound(
        "red", str(tmp_path / "red000.safetensors"), seeds=(0,), steps=400, episodes=4
    )
    assert {memory: len(returns) for memory, returns in limit["bound"].items()} == {"decoys": 1, "full": 1}
    draw = pytest.importorskip("draw_hard_defender", reason="a source distribution has no documentation")
    figure = draw.draw([row, row | {"name": "round 1", "total": row["total"] + 5}, limit])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["small", "round 1", "the most against red alone"]
