import io

from rich.console import Console, Group
from rich.table import Table

from fastrl.utils.tables import show


def shown(width: int, *, terminal: bool = False) -> list[str]:
    out = io.StringIO()
    table = Table(title="a title that is wider than the table below it")
    table.add_column("workflow", overflow="fold")
    table.add_column("numbers", no_wrap=True)
    table.add_row("enterprise > defender", "-1,234.56")
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    show(console, Group(table, "runs/[mine] has a picture of it"))
    return out.getvalue().splitlines()


def test_no_word_of_a_table_is_cut_on_a_narrow_console() -> None:
    for width in (8, 20, 80):
        lines = shown(width)
        assert lines[0] == "a title that is wider than the table below it"
        text = "\n".join(lines)
        for word in ("workflow", "enterprise", "defender", "-1,234.56"):
            assert word in text
        assert lines[-1] == "runs/[mine] has a picture of it"


def test_on_a_terminal_text_breaks_between_words() -> None:
    lines = shown(20, terminal=True)
    assert lines[0].strip() == "a title that is"
    assert [line.strip() for line in lines[-2:]] == ["runs/[mine] has a", "picture of it"]


def test_redirected_rows_are_lines() -> None:
    """A file, or the reader of a pipe, has no width: what does not fit into 80 columns is neither cut nor wrapped."""
    out = io.StringIO()
    table = Table("run", "environment", *(f"column {number}" for number in range(8)))
    rows = [
        [f"runs/a long name {i}", "fastrl/intersection-multi-agent-v2", *[f"-{i},234.56 ± 7.89"] * 8]
        for i in range(3)
    ]
    for row in rows:
        table.add_row(*row)
    show(Console(file=out, width=80), table)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 + len(rows) + 1
    for row, line in zip(rows, lines[3:], strict=False):
        assert [cell.strip() for cell in line.strip("│").split("│")] == row
