"""Files as they should be: written whole or not at all, and in standard JSON."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that, whenever the machine stops, the old one or the new one is there, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The new name is on disk once its directory is.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Standard JSON, which has neither NaN nor infinity: they become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
