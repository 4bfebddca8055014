"""Results of benchmarks: statistics, files, and the errors for files that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results import Benchmark, Case, ResultError, Spread, read_all, shown
from rounds import measure_in_turns, turns


def some_result(**changes: object) -> Benchmark:
    rates = {"fastrl": (10.0, 30.0, 20.0), "slow": (5.0, 3.0, 4.0), "fastrl, too": (1.0, 1.0, 1.0)}
    values = {
        "topic": "queue",
        "name": "64 B",
        "title": "Records",
        "unit": "records/s",
        "cases": (Case("one", rates),),
        "ours": ("fastrl", "fastrl, too"),
        "left_out": {"other": "not installed"},
    }
    return Benchmark(**values | changes)


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([1.0, 5.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_ratios_are_formed_round_by_round() -> None:
    result = some_result()
    (case,) = result.cases
    # 10 / 5, 30 / 3, 20 / 4: the ratio of the medians would be 5, too, that of the means 5; the quartiles tell.
    assert case.ratio("fastrl", "slow") == Spread(5.0, 3.5, 7.5)
    assert [(ours, other) for ours, other, _ in result.ratios(case)] == [
        ("fastrl", "slow"),
        ("fastrl, too", "slow"),
    ]
    assert result.best(case) == "fastrl"


def test_a_file_holds_everything_and_is_read_back(tmp_path: Path) -> None:
    result = some_result().stamped("python benches/suite.py queue", "a busy machine")
    file = result.write(tmp_path / "new" / "folder")
    assert file.name == "queue-64-b.json"
    tree = json.loads(file.read_text())
    (case,) = tree["cases"]
    assert case["contenders"]["fastrl"] == {"rates": [10, 30, 20], "median": 20, "quartiles": [15, 25]}
    assert case["ratios"][0] == {"of": "fastrl", "to": "slow", "median": 5, "quartiles": [3.5, 7.5]}
    assert tree["machine"]["cores"] >= 1 and tree["versions"]["numpy"] and tree["date"].endswith("Z")
    assert read_all(file.parent) == [result]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON: Expecting property name"),
        ("[]", "no result of a benchmark"),
        ("{}", "no result of a benchmark: KeyError('format')"),
        ('{"format": 99}', "format 99 is not 1"),
        ('{"format": 1, "topic": "x"}', "no result of a benchmark: KeyError('name')"),
    ],
)
def test_other_files_are_refused_in_a_line_that_names_them(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ResultError) as caught:
        read_all(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'a.json'}: {message}") and "\n" not in str(caught.value)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"no results \(\*\.json\) in this folder"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15_783_467, "15.8 M"),
        (2.5e9, "2,500 M"),
        (999_999, "1,000,000"),
        (106_220, "106,000"),
        (37.24, "37.2"),
        (0.8166, "0.817"),
        (0, "0"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_contenders_are_measured_in_turns() -> None:
    assert list(turns("abc", 3)) == list("abccbaabc")
    calls: list[str] = []
    found = measure_in_turns({name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}, 2)
    assert found == {"a": [1, 4], "b": [2, 3]}
    assert calls == ["a", "b", "b", "a"]
