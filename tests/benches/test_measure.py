"""Measurements for the documentation, and their page, chart and paragraph, which agree with the results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import measure
from results import Benchmark, Case, ResultError, read_all

draw_speed = pytest.importorskip("draw_speed", reason="a source distribution has no documentation")
DATA = draw_speed.BENCHMARKS / "data"


def results_with(rates: dict[str, list[float]]) -> list[Benchmark]:
    """All results of the chart; of one comparison these rates, of the others ours is twice as fast."""
    results = []
    for each in draw_speed.BARS:
        topic, _, name = each.result.partition(" ")
        own = rates if each is draw_speed.CAGE2 else {each.ours: [2.0, 2.0], each.other: [1.0, 1.0]}
        results.append(Benchmark(topic, name, "t", "steps/s", (Case(each.case, own),), (each.ours,)))
    return results


def test_the_readme_has_the_figures_of_the_results_and_no_others() -> None:
    text = draw_speed.README.read_text(encoding="utf-8")
    paragraph = draw_speed.paragraph(read_all(DATA))
    assert draw_speed.PARAGRAPH.findall(text) == [paragraph], "run python docs/draw_speed.py"
    assert "times" not in text.replace(paragraph, "")


def test_bars_have_the_ratios_and_their_quartiles() -> None:
    cage2 = {draw_speed.CAGE2.ours: [4e4, 6e4, 5e4], "CybORG": [1.0, 1.0, 1.0]}
    figure = draw_speed.draw(results_with(cage2))
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [*[2.0] * (len(draw_speed.BARS) - 1), 5e4]
    assert axes.get_yticklabels()[-1].get_text() == "CAGE Challenge 2, 4,096 games\nbeside CybORG"
    assert [text.get_text() for text in axes.texts][-2:] == ["2.0 ×", "50,000 ×"]
    (whiskers,) = [each for each in axes.collections if each.get_segments()]
    assert whiskers.get_segments()[-1][:, 0].tolist() == [4.5e4, 5.5e4]


def test_what_was_not_measured_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    results = results_with({draw_speed.CAGE2.ours: [1.0]})
    (axes,) = draw_speed.draw(results).axes
    assert len(axes.patches) == len(draw_speed.BARS) - 1
    named = "the results lack envs cage2, CAGE Challenge 2, B_line: fastrl, 4,096 at a time beside CybORG"
    assert capsys.readouterr().err == f"left out of the chart: {named}\n"
    with pytest.raises(ResultError, match=named):
        draw_speed.paragraph(results)


@pytest.mark.parametrize(("ratio", "text"), [(39_432, "39,000"), (114, "110"), (17.8, "18"), (5.12, "5.1")])
def test_ratios_have_two_digits(ratio: float, text: str) -> None:
    assert draw_speed.times(ratio) == text


@pytest.mark.slow
def test_each_selection_of_benches_chooses_tests() -> None:
    suite, *benches = measure.commands(Path("out"), "a note")
    assert suite[1:] == [str(measure.BENCHES / "suite.py"), "--out", "out", "--note", "a note"]
    assert all(command[-2:] == ["--bench-out=out", "--bench-note=a note"] for command in benches)
    files = [str(measure.BENCHES / f"bench_{name}.py") for name in measure.SELECTION]
    collect = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run([*collect, *files], capture_output=True, text=True, check=True)
    found = re.findall(r"bench_(\w+)\.py::(\S.*)", done.stdout)
    for name, selected in measure.SELECTION.items():
        tests = [test for of, test in found if of == name]
        assert tests, name
        for word in re.findall(r"[\w-]+", re.sub(r"\b(?:and|or|not)\b", "", selected)):
            assert any(word in test for test in tests), f"bench_{name}.py has no test {word}"


def test_old_results_go_and_missed_bars_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text("{}")
    failing = [sys.executable, "-c", "raise SystemExit(1)"]
    monkeypatch.setattr(measure, "commands", lambda *_: [failing, [sys.executable, "-c", "pass"]])
    assert measure.main([str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out.count("a bar was missed: raise SystemExit(1)") == 1


def test_a_step_s_cost_is_drawn_by_activity() -> None:
    draw_growth = pytest.importorskip("draw_growth")
    rates = {name: [1.0, 2.0, 3.0] for name in draw_growth.COLOURS}
    cases = tuple(Case(f"{count} vehicles", {**rates, draw_growth.LEAST: [5.0]}) for count in (2, 4))
    result = Benchmark(
        "growth", "t", "Cost of a step by vehicles", "µs/step", cases, (), lower_is_better=True
    )
    axes = draw_growth.draw([result] * 4).axes[0]
    assert axes.get_xlabel() == "vehicles"
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [
        (2.0 * index, 2.0) for index in range(4) for _ in cases
    ]
    assert [list(line.get_ydata()) for line in axes.lines] == [[5.0, 5.0]] * 2
