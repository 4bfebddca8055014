"""Writing videos: .mp4 with ffmpeg, .gif with Pillow."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.errors import UserError
from fastrl.utils.files import atomic_path

SUFFIXES = (".mp4", ".gif")
# The largest error of a colour, 0 to 255, before a GIF gets a new palette of 256 colours.
GIF_ERROR = 48


class VideoError(UserError):
    """A video that cannot be written."""


def draw_without_display() -> None:
    """Tells SDL, with which pygame draws, to use no display where there is none: its search for one writes lines on
    stderr."""
    if sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def check_video(path: Path) -> None:
    """Checks before a video is made that it can be written.

    Raises:
        VideoError: the suffix is unknown, the folder does not exist, or a library is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise VideoError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise VideoError(f"{path}: there is no folder {path.parent}")
    _libraries(path)


def _libraries(path: Path) -> Any:
    try:
        if path.suffix.lower() == ".gif":
            from PIL import Image

            return Image
        import imageio.v2
        import imageio_ffmpeg  # type: ignore[import-untyped] # noqa: F401 (imageio imports it later)

        return imageio.v2
    except ImportError as error:
        raise VideoError(
            f"{path}: {error.name} is missing; install the extra, pip install 'fastrl[render]'"
        ) from None


def write_video(path: Path, pictures: Iterable[NDArray[np.uint8]], *, fps: float) -> int:
    """Writes a video; the file appears once it is complete.

    Args:
        path: .mp4 (H.264) or .gif; the pictures of a GIF last a multiple of 10 ms.
        pictures: uint8 [H, W, 3] each, of one size, at least one; taken from the iterator one at a time.
        fps: pictures per second.

    Returns:
        The number of pictures.

    Raises:
        VideoError: as `check_video`, or there was no picture.
    """
    check_video(path)
    counted = itertools.count()
    each = iter(pictures)
    first = next(each, None)
    if first is None:
        raise VideoError(f"{path}: there is no picture to write")

    def counted_pictures() -> Iterator[NDArray[np.uint8]]:
        for picture in itertools.chain([first], each):
            next(counted)
            yield picture

    write = _write_gif if path.suffix.lower() == ".gif" else _write_mp4
    with atomic_path(path) as temporary:
        write(temporary, counted_pictures(), fps)
    return next(counted)


def text_shape(text: str) -> tuple[int, int]:
    """Lines and columns of a picture for a text, with room for lines that become longer."""
    lines = _lines(text)
    return len(lines) + 1, max(map(len, lines), default=0) * 5 // 4 + 2


def text_picture(text: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """A picture of a text as a terminal shows it, uint8 [H, W, 3]; what is beyond the shape is cut off.

    Args:
        text: escape sequences of colours are left out.
        shape: lines and columns.

    Raises:
        VideoError: Pillow is missing.
    """
    _libraries(Path("text.gif"))
    from PIL import Image, ImageDraw, ImageFont

    num_lines, num_columns = shape
    lines = [line[:num_columns] for line in _lines(text)[:num_lines]]
    # Before Pillow 10.4 the default font was this one, whose letters are of one width.
    font = getattr(ImageFont, "load_default_imagefont", ImageFont.load_default)()
    _, _, width, height = map(round, font.getbbox("M"))
    height += 3
    image = Image.new("RGB", (width * num_columns, height * num_lines), "black")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((width, height * number + 2), line, fill="white", font=font)
    return np.asarray(image)


def _lines(text: str) -> list[str]:
    # The font has Latin letters only.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).expandtabs()
    return plain.encode("latin-1", "replace").decode("latin-1").splitlines()


def _write_mp4(path: Path, pictures: Iterator[NDArray[np.uint8]], fps: float) -> None:
    writer = _libraries(path).get_writer(
        path, format="FFMPEG", mode="I", fps=fps, codec="libx264", quality=8, macro_block_size=2
    )
    with writer:
        for picture in pictures:
            # H.264 stores colours for squares of two by two pixels.
            odd = [(0, size % 2) for size in picture.shape[:2]]
            writer.append_data(np.pad(picture, [*odd, (0, 0)], mode="edge"))


def _write_gif(path: Path, pictures: Iterator[NDArray[np.uint8]], fps: float) -> None:
    image = _libraries(path)

    def reduced_pictures() -> Iterator[Any]:
        palette = None
        for picture in pictures:
            full = image.fromarray(picture)
            if palette is not None:
                # Keep the palette while its colours are near enough: the file is smaller, and nothing flickers.
                reduced = full.quantize(palette=palette, dither=image.Dither.NONE)
                error = np.abs(np.asarray(reduced.convert("RGB")).astype(np.int16) - picture)
                if error.max() <= GIF_ERROR:
                    yield reduced
                    continue
            palette = full.quantize(256, method=image.Quantize.MAXCOVERAGE)
            yield palette

    each = reduced_pictures()
    next(each).save(path, save_all=True, append_images=each, duration=max(round(100 / fps), 2) * 10, loop=0)
