"""A progress bar in the output of a notebook's cell."""

from __future__ import annotations

import math
import time
from typing import Any

WIDTH = 30
# Seconds between two pictures of the bar.
INTERVAL = 0.2


class NotebookBar:
    """A bar that is redrawn in its place. It needs IPython alone, which every notebook has.

    Args:
        description: text before the bar.
    """

    def __init__(self, description: str = "") -> None:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self._description = description
        self._shown_at = -math.inf
        self._latest: tuple[float, str] = (math.nan, "")
        self._handle: Any = display(self._data(), raw=True, display_id=True)

    def show(self, share: float, text: str, description: str | None = None) -> None:
        """Shows how far it is.

        Args:
            share: of the work that is done, 0 to 1; NaN: unknown.
            text: after the bar; further lines below it.
            description: replaces the text before the bar.
        """
        if description is not None:
            self._description = description
        self._latest = (share, text)
        if time.monotonic() - self._shown_at >= INTERVAL:
            self._draw()

    def close(self) -> None:
        """Shows the latest state, which stays."""
        self._draw()

    def _draw(self) -> None:
        self._shown_at = time.monotonic()
        if self._handle is not None:
            self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        share, text = self._latest
        texts = [self._description] if self._description else []
        if not math.isnan(share):
            filled = round(min(max(share, 0.0), 1.0) * WIDTH)
            texts.append(f"[{'█' * filled}{'·' * (WIDTH - filled)}] {min(share, 1):.0%}")
        return {"text/plain": "  ".join([*texts, text]).rstrip()}
