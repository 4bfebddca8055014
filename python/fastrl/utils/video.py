"""Pictures into a film: .mp4 by ffmpeg, .gif by Pillow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.errors import UserError

SUFFIXES = (".mp4", ".gif")
# By how much a colour of a GIF, of which there are 256, may be wrong before new ones are chosen.
GIF_ERROR = 48


class VideoError(UserError):
    """A film that cannot be written."""


def check_video(path: Path) -> None:
    """Whether a film can be written there, before it is made.

    Raises:
        VideoError: the suffix is not known, there is no such folder, or a library is missing.
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
        import imageio_ffmpeg  # type: ignore[import-untyped] # noqa: F401 (imageio finds it by itself, later)

        return imageio.v2
    except ImportError as error:
        raise VideoError(
            f"{path}: {error.name} is missing; install the extra, pip install 'fastrl[render]'"
        ) from None


def write_video(path: Path, pictures: Iterable[NDArray[np.uint8]], *, fps: float) -> int:
    """Writes pictures, uint8 [H, W, 3] of one size, and returns how many they were. The file is there once it is whole.

    Args:
        path: .mp4 (H.264) or .gif; a GIF's pictures last a multiple of 10 ms.
        pictures: at least one; they are asked for one at a time.
        fps: of them a second.

    Raises:
        VideoError: as `check_video`, or there was no picture.
    """
    check_video(path)
    counted = itertools.count()
    each = iter(pictures)
    first = next(each, None)
    if first is None:
        raise VideoError(f"{path}: there is no picture to show")

    def all_of_them() -> Iterator[NDArray[np.uint8]]:
        for picture in itertools.chain([first], each):
            next(counted)
            yield picture

    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        write = _write_gif if path.suffix.lower() == ".gif" else _write_mp4
        write(temporary, all_of_them(), fps)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return next(counted)


def _write_mp4(path: Path, pictures: Iterator[NDArray[np.uint8]], fps: float) -> None:
    writer = _libraries(path).get_writer(
        path, format="FFMPEG", mode="I", fps=fps, codec="libx264", quality=8, macro_block_size=2
    )
    with writer:
        for picture in pictures:
            # Colours are stored for squares of four pixels.
            odd = [(0, size % 2) for size in picture.shape[:2]]
            writer.append_data(np.pad(picture, [*odd, (0, 0)], mode="edge"))


def _write_gif(path: Path, pictures: Iterator[NDArray[np.uint8]], fps: float) -> None:
    image = _libraries(path)

    def with_few_colours() -> Iterator[Any]:
        palette = None
        for picture in pictures:
            full = image.fromarray(picture)
            if palette is not None:
                # The colours of the picture before do as long as they come near: the file is smaller, nothing flickers.
                reduced = full.quantize(palette=palette, dither=image.Dither.NONE)
                error = np.abs(np.asarray(reduced.convert("RGB")).astype(np.int16) - picture)
                if error.max() <= GIF_ERROR:
                    yield reduced
                    continue
            palette = full.quantize(256, method=image.Quantize.MAXCOVERAGE)
            yield palette

    each = with_few_colours()
    next(each).save(path, save_all=True, append_images=each, duration=max(round(100 / fps), 2) * 10, loop=0)
