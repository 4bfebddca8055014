"""The command `python benches/suite.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import suite
from fastrl.utils.progress import Progress
from results import Benchmark, Case


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """One topic that costs nothing; returns the rounds and seconds with which it is called."""
    calls = []

    def measure(rounds: int, seconds: float, progress: Progress) -> list[Benchmark]:
        calls.append((rounds, seconds))
        case = Case("one case", {"fastrl": [2e6] * rounds, "peer": [1e6] * rounds})
        return [Benchmark("fake", "a", "A title", "steps/s", (case,), ("fastrl",), left_out={"third": "why"})]

    module = ModuleType("fake_topic")
    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_topic", module)
    monkeypatch.setattr(suite, "TOPICS", {"fake": "fake_topic"})
    return calls


def test_tables_are_printed_and_results_written(
    topic: list[tuple[int, float]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert suite.main(["--rounds", "2", "--seconds", "0.5", "--out", "results", "--note", "busy"]) == 0
    assert topic == [(2, 0.5)]
    shown = capsys.readouterr().out
    for words in ("A title: one case, steps/s", "2.00 M", "third is left out: why", "results/fake-a.json"):
        assert words in shown
    tree = json.loads((tmp_path / "results" / "fake-a.json").read_text())
    assert tree["command"] == "python benches/suite.py fake --rounds=2 --seconds=0.5"
    assert tree["note"] == "busy" and tree["cases"][0]["ratios"][0]["median"] == 2


def test_without_out_nothing_is_written(
    topic: list[tuple[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert suite.main(["fake"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_topic_is_answered_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        suite.main(["replai"])
    assert caught.value.code == 2
    assert "unknown topic replai; there are envs, queue, replay, collectors" in capsys.readouterr().err
