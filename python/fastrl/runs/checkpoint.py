"""Checkpoints: one file that holds a whole state, written so that a crash never leaves half of one.

A checkpoint is a safetensors file: tensors, and in its metadata a JSON document in which they have their
places, the name and version of the format, and a SHA-256 over all of it. Reading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.collectors.protocol import CollectError
from fastrl.utils.errors import UserError
from fastrl.utils.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

# Name of the best evaluation's checkpoint; `Checkpoints` does not delete it.
BEST = "best.safetensors"
FORMAT = "fastrl-checkpoint"
VERSION = "1"
SNAPSHOTS = "snapshots"
"""Entry of a run whose opponents are its own past policies: their folder, and how many there are."""

# Key of a placeholder for a tensor in the document; its value is the tensor's name in the file.
_TENSOR = "$tensor"
# The same for bytes, which are kept as a uint8 tensor.
_BYTES = "$bytes"

_NAME = re.compile(r"step-\d{12,}\.safetensors")


class CheckpointError(UserError, ValueError):
    """A file that is no checkpoint, a damaged one, or one of another version; one line that says which."""


def unusable(path: str | Path, what: str, error: Exception) -> CheckpointError:
    """Error of a checkpoint whose contents raised one: ``path what: error``, in one line."""
    reason = " ".join(repr(error).split())
    return CheckpointError(f"{path} {what}: {reason if len(reason) <= 300 else f'{reason[:300]}...'}")


@contextmanager
def using_checkpoint(checkpoint: Path, problem: str) -> Iterator[None]:
    """Blames a checkpoint for errors of code that uses its contents, unless user, environment or machine are to blame.

    Raises:
        CheckpointError
    """
    try:
        yield
    except (UserError, CollectError, MemoryError, OSError):
        raise
    except Exception as error:
        raise unusable(checkpoint, problem, error) from None


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Writes a state: nested dicts with string keys and lists, of tensors, bytes and JSON values.

    Floats keep every bit; NaN and infinity are kept. An existing file is replaced, in one go.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    document = json.dumps(_detach(state, "", tensors))
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "document": document,
        "sha256": _digest(document, tensors),
    }
    write_atomically(Path(path), save(tensors, metadata))


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote; tensors are on the CPU. It takes no more memory than a few times the
    file's size, whatever the file claims.

    Raises:
        CheckpointError: the file is missing, foreign, damaged or of another version.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    # Reading a pipe would block for ever.
    if Path(path).exists() and not Path(path).is_file():
        raise CheckpointError(f"{path} is no file")
    try:
        # Read instead of mapped: truncating a mapped file kills the process.
        data = Path(path).read_bytes()
        tensors = load(data)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        problem: object = error
        if data.startswith(b"PK"):
            problem = "a zip file, as Stable-Baselines3 saves; fastrl eval module:Class scores such a model"
        raise CheckpointError(f"{path} is not a checkpoint, or a damaged one: {problem}") from None
    # The file's first 8 bytes are the length of its header, which is JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a fastrl checkpoint: it is some other safetensors file")
    if metadata.get("version") != VERSION:
        raise CheckpointError(
            f"{path} is a checkpoint of version {metadata.get('version')}, this fastrl reads {VERSION}"
        )
    document = metadata.get("document", "")
    if _digest(document, tensors) != metadata.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
    try:
        state = _attach(json.loads(document), tensors)
    except (ValueError, KeyError, TypeError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a fastrl checkpoint: its document was made by something else")
    return state


class Checkpoints:
    """The checkpoints of one run, ``step-*.safetensors`` in a directory, of which the newest are kept.

    Args:
        directory: made by the first `save`.
        keep: how many.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self.directory = directory
        self.keep = keep

    def save(self, steps: int, state: Mapping[str, Any]) -> Path:
        """Writes the checkpoint of a step, then removes the oldest ones."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"step-{steps:012d}.safetensors"
        save_checkpoint(path, state)
        for old in self.paths()[: -self.keep]:
            old.unlink(missing_ok=True)
        for left_over in self.directory.glob(".step-*.tmp"):
            left_over.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """The files, oldest first."""
        if not self.directory.is_dir():
            return []
        files = (path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))
        return sorted(files, key=_steps)

    def drop_after(self, steps: int) -> None:
        """Removes those of later steps: a run that resumes from an older one writes them again."""
        for path in self.paths():
            if _steps(path) > steps:
                path.unlink()


def checksum(state: Mapping[str, Any]) -> str:
    """Checksum of all tensors and values of a state as of `save_checkpoint`."""
    tensors: dict[str, Tensor] = {}
    return _digest(json.dumps(_detach(state, "", tensors)), tensors)


def check_kinds(state: Any, fresh: Any, name: str = "") -> None:
    """Refuses a state whose values are of other kinds than those of a run that starts: they would fail later, in the
    middle of the run. Values that such a run does not have are not compared.

    Raises:
        ValueError
    """
    from torch import Tensor

    if isinstance(fresh, Mapping):
        if not isinstance(state, Mapping):
            raise ValueError(f"{name} should be a table, got {_shown(state)}")
        for key in fresh.keys() & state.keys():
            check_kinds(state[key], fresh[key], f"{name}/{key}" if name else key)
        return
    match fresh:
        case None:
            return
        case bool():
            fits, expected = isinstance(state, bool), "true or false"
        case int():
            fits, expected = type(state) is int, "a whole number"
            # Those of generators are longer.
            fits &= not -(2**63) <= fresh < 2**63 or (fits and -(2**63) <= state < 2**63)
        case float():
            fits, expected = type(state) in (int, float), "a number"
        case Tensor():
            fits = isinstance(state, Tensor) and (state.dtype, state.ndim) == (fresh.dtype, fresh.ndim)
            expected = f"{fresh.ndim} axes of {fresh.dtype}"
        case list() | tuple():
            fits, expected = isinstance(state, list), "a list"
            if fits and len(state) == len(fresh):
                for i, each in enumerate(fresh):
                    check_kinds(state[i], each, f"{name}/{i}")
        case _:
            fits, expected = isinstance(state, type(fresh)), f"a {type(fresh).__name__}"
    if not fits:
        raise ValueError(f"{name} should be {expected}, got {_shown(state)}")


def _shown(value: Any) -> str:
    from torch import Tensor

    return f"{value.ndim} axes of {value.dtype}" if isinstance(value, Tensor) else repr(value)[:100]


def _steps(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint file that a path means: the file itself, or the newest one of a run directory.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such run directory or checkpoint file")
    if not path.is_dir():
        return path
    directory = path if path.name == "checkpoints" else path / "checkpoints"
    # Checkpoints of other names, such as that of the best evaluation, may be the only ones.
    paths = Checkpoints(directory).paths() or sorted(directory.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{path} has no checkpoint")
    return paths[-1]


def load_newest(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Finds and loads a checkpoint; of a damaged newest one the error says which older one to turn to."""
    file = find_checkpoint(path)
    try:
        return file, load_checkpoint(file)
    except CheckpointError as error:
        older = [other for other in Checkpoints(file.parent).paths() if other != file]
        if not Path(path).is_dir() or not older:
            raise
        raise CheckpointError(f"{error}; the one before it is {older[-1]}") from None


def to_play(run: Path) -> Path:
    """The best policy of a run directory, if its evaluations have kept one; else what is given."""
    best = run / "checkpoints" / BEST
    return best if best.is_file() else run


def _detach(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors go to ``tensors``."""
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise TypeError(f"{name or 'state'}: keys should be strings that do not start with $")
        return {key: _detach(item, f"{name}/{key}" if name else key, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_detach(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    if not isinstance(value, torch.Tensor | bytes):
        raise TypeError(f"{name}: a checkpoint cannot hold a {type(value).__name__}")
    if name in tensors:
        raise ValueError(f"two tensors would have the name {name}")
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    tensors[name] = torch.from_numpy(np.frombuffer(value, np.uint8).copy())
    return {_BYTES: name}


def _attach(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_attach(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    # Each tensor is used once: otherwise a small document could request a thousand copies of a large one.
    if _TENSOR in value:
        return tensors.pop(value[_TENSOR])
    if _BYTES in value:
        return tensors.pop(value[_BYTES]).numpy().tobytes()
    return {key: _attach(item, tensors) for key, item in value.items()}


def _digest(document: str, tensors: dict[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256(document.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
