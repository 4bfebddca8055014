"""Output of commands whose stdout is closed, full or without a reader."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from rich.table import Table
from small_runs import ITERATION, OPTIONS, learnt

from fastrl.cli.main import main
from fastrl.utils.output import (
    ignoring_write_errors,
    is_watched,
    plain_console,
    printable,
    quiet_console,
    repair_streams,
)
from fastrl.utils.tables import print_lines, show


def full() -> TextIO:
    return open("/dev/full", "w")  # noqa: PTH123


def unread() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


FAILING = pytest.mark.parametrize(
    ("opened", "why"), [(full, "No space left on device"), (unread, "Broken pipe")], ids=["full", "unread"]
)


@pytest.mark.slow
@FAILING
def test_a_run_outlives_its_stdout(
    opened: Callable[[], TextIO],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    with opened() as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        steps = f"--total-timesteps={3 * ITERATION}"
        assert main(["train", "cage2", *OPTIONS, steps, f"--run-dir={run}"]) == 0
    assert capsys.readouterr().err == f"fastrl train: stdout failed ({why}): the run continues without it\n"
    assert learnt(run)["steps"] == 3 * ITERATION
    assert (run / "summary.json").exists()


@FAILING
def test_a_command_that_only_prints_fails_with_its_output(
    opened: Callable[[], TextIO],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (
        ["train", "cage2", "--print-config"],
        ["eval", "baseline:sleep", "--episodes=1", "--json"],
    ):
        with opened() as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            code = main(command)
        err = capsys.readouterr().err
        # Whoever closes a pipe knows why.
        line = "" if why == "Broken pipe" else f"fastrl {command[0]}: error: {why}"
        assert code == (1 if line else 141)
        assert err.partition(": on a disk")[0] == line


def test_a_slow_reader_of_a_non_blocking_descriptor_misses_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(reader, "rb") as read, os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with ignoring_write_errors("stdout"):
            print("x" * 1_000_000)
            os.set_blocking(reader, False)
            assert set(read.read()) == {ord("x")}
            print("later", flush=True)
            assert read.read().endswith(b"\nlater\n")


def test_closed_descriptors_become_dev_null(tmp_path: Path) -> None:
    # Otherwise the next file to be opened would get descriptor 0, 1 or 2, and output would be written to it.
    code = (
        "import sys, fastrl.cli.main\n"
        "code = fastrl.cli.main.main(['eval', 'baseline:sleep', '--episodes=1', '--ruleset=main'])\n"
        "file = open('file', 'w')\n"
        "print('lost', flush=True)\n"
        "print('lost', file=sys.stderr, flush=True)\n"
        "file.write(f'{code} {file.fileno() > 2}')\n"
    )
    closed = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(closed, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == "0 True"


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert main(["eval", "baseline:sleep", "--episodes=2", "--ruleset=main"]) == 0
    assert b"\\xb1" in stdout.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("columns", "kept"), [("0", None), ("000", None), ("", None), ("90", "90")])
def test_a_width_of_0_columns_is_ignored(
    columns: str, kept: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    repair_streams()
    assert os.environ.get("COLUMNS") == kept


def test_control_characters_of_texts_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b]0;title\x07 \x9b1m \u202eabc\tä\n"
    assert printable(text) == r"\x1b]0;title\x07 \x9b1m \u202eabc" + "\tä\n"
    table = Table(text, title=text)
    table.add_row(text)
    console = plain_console(width=200)
    console.print(text, table)
    out = capsys.readouterr().out
    assert out.count(r"\x1b]0;title\x07 \x9b1m \u202eabc") == 4 and "\x1b" not in out and "\x9b" not in out


def test_a_quiet_console_shows_nothing_and_has_what_rich_has(capsys: pytest.CaptureFixture[str]) -> None:
    console = quiet_console()
    console.print("text", style="bold")
    console.rule("title")
    print_lines(console, "line")
    show(console, "text", Table("table"))
    assert console.quiet and not console.is_terminal
    assert console.width > 0 and console.encoding == "utf-8"
    assert "".join(capsys.readouterr()) == ""


def test_a_run_is_watched_on_terminals_and_where_rich_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert not is_watched()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert is_watched()


def test_too_little_memory_for_a_library_is_one_line(tmp_path: Path) -> None:
    command = (
        f"ulimit -v 1000000; exec {sys.executable} -m fastrl train CartPole-v1 --run-dir={tmp_path / 'run'}"
    )
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    *_, line = ended.stderr.splitlines()
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert line.startswith("fastrl train: error: not enough memory")
