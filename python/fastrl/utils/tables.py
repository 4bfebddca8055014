"""Tables and text on a console, fitted to its width without cutting a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Characters: an upper bound of table widths, and the width of a column that may break words (such as paths).
_WIDE, _FOLDED = 10_000, 20


def show(console: Console, *renderables: RenderableType) -> None:
    """Prints tables, groups of them, and text.

    On a terminal a table is as wide as the longest words of its columns need, even if that is narrower, and text,
    titles and captions are wrapped between words. Elsewhere nothing is wrapped: a row of a table is one line.
    """
    if console.quiet:
        return
    for each in renderables:
        if isinstance(each, str):
            _show_text(console, each)
        else:
            _show_renderable(console, each)


def print_lines(console: Console, *lines: str) -> None:
    """Prints lines as they are: not wrapped, not coloured, brackets are no markup."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _show_renderable(console: Console, each: RenderableType) -> None:
    from rich.console import Group
    from rich.table import Table

    if isinstance(each, Group):
        show(console, *each.renderables)
    elif isinstance(each, Table):
        _show_table(console, each)
    else:
        _show_text(console, each)


def _show_text(console: Console, text: RenderableType, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _show_table(console: Console, table: Table) -> None:
    # Printed by the table, title and caption would be wrapped at the table's width.
    title, table.title, caption, table.caption = table.title, None, table.caption, None
    width = _fit_columns(console, table)
    if width > console.width or not (console.is_terminal or console.is_jupyter):
        table.width = width
    if title is not None:
        _show_text(console, title, "bold")
    console.print(table, crop=False)
    if caption is not None:
        _show_text(console, caption)


def _fit_columns(console: Console, table: Table) -> int:
    """Gives each column room for its longest word, or for its longest cell if its cells may not be wrapped.

    Returns:
        The width of the table, in characters.
    """
    options = console.options.update(max_width=_WIDE)
    if not (console.is_terminal or console.is_jupyter):
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
    frame = console.measure(table, options=options).maximum
    for column in table.columns:
        cells = (column.header, column.footer, *column.cells)
        measured = [console.measure(cell, options=options) for cell in cells]
        min_width = column.min_width or 0
        frame -= max(min_width, *(cell.maximum for cell in measured))
        least = max(cell.maximum if column.no_wrap else cell.minimum for cell in measured)
        column.min_width = max(min_width, min(least, _FOLDED) if column.overflow == "fold" else least)
    return frame + sum(column.min_width or 0 for column in table.columns)
