"""benches/report.py: pages and charts from folders of results, the committed page among them."""

from __future__ import annotations

from pathlib import Path

import pytest

import report
from results import Benchmark, Case, read_all

ROOT = Path(__file__).resolve().parents[2]


def result(name: str, *cases: Case, **more: object) -> Benchmark:
    values = {"topic": "queue", "title": "Records", "unit": "records/s", "ours": ("fastrl",)}
    return Benchmark(name=name, cases=cases, **values | more).stamped(
        "python benches/suite.py queue", "A busy machine."
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    peers = {"fastrl": [100.0, 300.0, 200.0], "peer": [9.0, 9.0, 9.0]}
    result("a", Case("64 B", peers), left_out={"third": "not installed"}).write(folder)
    result("b", Case("512 B", {"fastrl": [4e6] * 3, "peer": [1e6] * 3})).write(folder)
    result("c", Case("alone", {"fastrl": [5.0] * 3})).write(folder)
    result("d", Case("x", {"fastrl": [1.0] * 3}), topic="envs", title="Steps", unit="steps/s").write(folder)
    return folder


def test_the_page_has_the_numbers_of_the_files(data: Path, tmp_path: Path) -> None:
    assert report.main([str(data), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "measured.md").read_text()
    assert page.index("## Steps") < page.index("## Records")
    # Cases of several files with the same contenders are one table; others have their own.
    assert "| records/s | 64 B | 512 B |" in page and "| records/s | alone |" in page
    assert "| fastrl | 200 (150 to 250) | 4.00 M (4.00 M to 4.00 M) |" in page
    assert "| peer | 22.2 (16.7 to 27.8) | 4.00 (4.00 to 4.00) |" in page
    assert page.count("third was left out: not installed.") == 1 and "A busy machine." in page
    charts = {file.name for file in (tmp_path / "out" / "charts").iterdir()}
    assert charts == {"envs-steps.svg", "queue-records.svg", "queue-records-1.svg"}
    assert all(f"charts/{name}" in page for name in charts)


@pytest.mark.slow
def test_the_same_data_give_the_same_files_and_old_charts_go(data: Path, tmp_path: Path) -> None:
    first = {file: file.read_bytes() for file in report.write(data, tmp_path)}
    (tmp_path / "charts" / "old.svg").write_text("of a section that is gone")
    assert {file: file.read_bytes() for file in report.write(data, tmp_path)} == first
    assert not (tmp_path / "charts" / "old.svg").exists()


@pytest.mark.slow
def test_an_axis_is_logarithmic_where_bars_differ_much(data: Path) -> None:
    result("e", Case("losses", {"fastrl": [-50.0], "peer": [-60.0]})).write(data)
    scales = {
        case.name: axes.get_xscale()
        for section in report.sections(read_all(data))
        for of, cases in section.tables()
        for case, axes in zip(cases, report.chart(cases, of).axes, strict=False)
    }
    assert scales == {"64 B": "log", "512 B": "linear", "alone": "linear", "x": "linear", "losses": "linear"}


def test_many_cases_are_rows_with_a_chart_of_ratios(tmp_path: Path) -> None:
    cases = [Case(f"{n} rows", {"fastrl": [30.0 * n] * 3, "peer": [10.0] * 3}) for n in (1, 2, 3, 4)]
    made = result("a", *cases)
    made.write(tmp_path)
    (section,) = report.sections(read_all(tmp_path))
    page = report.page([section], "data")
    assert "| records/s | fastrl | peer | ratio to peer |" in page
    assert "| 2 rows | 60.0 (60.0 to 60.0) | 10.0 (10.0 to 10.0) | 6.00 (6.00 to 6.00) |" in page
    (axes,) = report.chart(cases, made).axes
    assert axes.get_title() == "ratio to peer"
    assert [bar.get_width() for bar in axes.patches] == [3, 6, 9, 12]


def test_results_of_a_section_have_contenders_of_their_own() -> None:
    highway = result("a", Case("highway", {"fastrl": [2.0], "peer": [1.0]}))
    ring = result("b", Case("ring", {"fastrl, 64": [3.0], "other": [1.0]}), ours=("fastrl, 64",))
    first, second = report.tables(report.Section([highway, ring]))
    assert "| peer | 2.00 (2.00 to 2.00) |" in first
    assert "| other | 3.00 (3.00 to 3.00) |" in second


def test_a_folder_without_results_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        report.main([str(tmp_path), "--out", str(tmp_path)])
    assert caught.value.code == 2 and "no results (*.json) in this folder" in capsys.readouterr().err


def test_the_committed_page_is_that_of_the_committed_data() -> None:
    docs = ROOT / "docs" / "benchmarks"
    if not docs.exists():
        pytest.skip("a source distribution has no docs")
    found = report.sections(read_all(docs / "data"))
    assert (docs / report.PAGE).read_text(encoding="utf-8") == report.page(found, "data")
