"""Tables and lines for people, fitted to the width of a console: no word is cut."""

from rich.console import Console, Group, RenderableType
from rich.table import Table

# Columns of a terminal that no table needs, and those that are left to a column which may break words (paths do).
_WIDE, _FOLDED = 10_000, 20


def show(console: Console, *parts: RenderableType) -> None:
    """Prints tables, groups of them, and text.

    A table is as wide as the longest words of its columns ask for, on a narrower console too. Text, titles and captions
    break between words on a terminal; elsewhere their lines stay as they are.
    """
    for part in parts:
        if isinstance(part, Group):
            show(console, *part.renderables)
        elif isinstance(part, Table):
            _show_table(console, part)
        else:
            _show_text(console, part)


def _show_text(console: Console, text: RenderableType, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _show_table(console: Console, table: Table) -> None:
    # Within the table they would break at the table's width.
    title, table.title, caption, table.caption = table.title, None, table.caption, None
    least = _least(console, table)
    if least > console.width:
        table.width = least
    if title is not None:
        _show_text(console, title, "bold")
    console.print(table, crop=False)
    if caption is not None:
        _show_text(console, caption)


def _least(console: Console, table: Table) -> int:
    """Characters that a table needs. Each column gets room for its longest word, or for its longest cell if cells are
    not to break."""
    options = console.options.update(max_width=_WIDE)
    frame = console.measure(table, options=options).maximum
    for column in table.columns:
        cells = (column.header, column.footer, *column.cells)
        measured = [console.measure(cell, options=options) for cell in cells]
        own = column.min_width or 0
        frame -= max(own, *(cell.maximum for cell in measured))
        least = max(cell.maximum if column.no_wrap else cell.minimum for cell in measured)
        column.min_width = max(own, min(least, _FOLDED) if column.overflow == "fold" else least)
    return frame + sum(column.min_width or 0 for column in table.columns)
