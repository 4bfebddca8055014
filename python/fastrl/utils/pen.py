"""Pictures of boxes, lines and texts with smooth edges, in the font that Matplotlib brings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

# Pixels are the means of so many by so many, so that edges are smooth.
_SMOOTH = 2


class Pen:
    """Draws in units from the upper left corner, of which a picture has 100 an inch.

    Args:
        width, height: of the picture, units.
        dpi: pixels an inch.
    """

    def __init__(self, width: float, height: float, dpi: int = 100) -> None:
        # Matplotlib needs Pillow, so that it is there.
        from PIL import Image, ImageDraw

        self._scale = _SMOOTH * dpi / 100
        self._image = Image.new("RGB", (self._pixels(width), self._pixels(height)), "white")
        self._draw = ImageDraw.Draw(self._image)

    def picture(self) -> NDArray[np.uint8]:
        """The picture so far, uint8 [H, W, 3]."""
        return np.asarray(self._image.reduce(_SMOOTH))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: str,
        anchor: str = "ls",
        *,
        bold: bool = False,
    ) -> None:
        """A text at a point; `anchor` is Pillow's."""
        font = _font(self._pixels(size), bold)
        self._draw.text((x * self._scale, y * self._scale), text, fill=colour, font=font, anchor=anchor)

    def text_width(self, text: str, size: float) -> float:
        """The width of a text, units."""
        return _font(self._pixels(size), bold=False).getlength(text) / self._scale

    def box(
        self,
        left: float,
        top: float,
        right: float,
        bottom: float,
        colour: str,
        edge: str | None = None,
        line: float = 0.0,
        radius: float = 5.0,
    ) -> None:
        """A box with round corners, and an edge inside of it where `line` is its width."""
        s = self._scale
        corners = (left * s, top * s, right * s, bottom * s)
        self._draw.rounded_rectangle(corners, radius * s, colour, edge, self._pixels(line))

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float) -> None:
        """A line through points."""
        scaled = [(x * self._scale, y * self._scale) for x, y in points]
        self._draw.line(scaled, colour, self._pixels(width))

    def _pixels(self, units: float) -> int:
        return round(units * self._scale)


@functools.cache
def _font(size: int, bold: bool) -> FreeTypeFont:
    from PIL import ImageFont

    # Which fonts a system has is not known.
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)
