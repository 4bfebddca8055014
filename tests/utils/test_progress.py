import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fastrl.tasks.cage2.evaluate import Contender, evaluate, protocol_steps
from fastrl.utils.progress import Progress


def shown(*, terminal: bool, interval: float = 0.0) -> str:
    """Everything that a console was sent while something was done in two steps."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=60, color_system=None)
    with Progress("counting", 4, console, interval=interval) as progress:
        progress.advance()
        progress.describe("counting [b]on[/b]")
        progress.advance(3)
    return text.getvalue()


def test_without_a_terminal_there_is_a_line_from_time_to_time() -> None:
    assert shown(terminal=False).splitlines() == [
        "counting: 25%",
        "counting [b]on[/b]: 25%",
        "counting [b]on[/b]: 100%",
    ]
    assert shown(terminal=False, interval=1000) == ""


def test_on_a_terminal_there_is_a_bar_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(terminal=True)
    assert "counting [b]on[/b]" in text
    assert "100%" in text
    # The bar's line is erased, and the cursor comes back.
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_an_evaluation_shows_its_progress() -> None:
    played: list[int] = []
    evaluate(Contender.from_baseline("sleep"), ruleset="main", episodes=5, advance=played.append)
    assert sum(played) == protocol_steps(5)
    assert len(played) > 100


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ("--resume", ["loading PyTorch ...", "importing"]),
        ("--json", ["importing"]),
        ("--help", ["importing"]),
    ],
)
def test_pytorch_is_announced_before_it_is_imported(option: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('importing')")
    code = (
        "import sys; from fastrl.utils.progress import load_torch; [load_torch(sys.argv) for _ in range(2)]"
    )
    command = [sys.executable, "-c", code, option]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")
