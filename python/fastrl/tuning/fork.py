"""Forks of runs: a new run directory that continues from another run's checkpoint with other settings."""

import shutil
from pathlib import Path

from fastrl.runs.checkpoint import load_newest, save_checkpoint
from fastrl.runs.directory import RunDirectory
from fastrl.sources.minibatches import REPLAY
from fastrl.utils.config import load_toml
from fastrl.utils.files import new_file, open_file, read_file

# Files of a run that a fork continues.
_HISTORY = ("metrics.jsonl", "episodes.csv")


def fork(source: Path, target: Path, config: Path) -> None:
    """Makes a run that continues where another one stands: networks, optimisers, statistics, replay.

    Its episodes restart, because their seeds are those of its own settings. The directory is there when it is
    complete, and not before.

    Args:
        source: the other run.
        target: the new run directory; nothing is done if it is there.
        config: file of the new run's settings.
    """
    if target.exists():
        return
    file, state = load_newest(source)
    state["config"] = load_toml(config)
    del state["config"]["kind"]
    if "collector" in state.get("source", {}):
        state["source"]["collector"] = None
    part = target.with_name(f".{target.name}.part")
    if part.is_symlink():
        part.unlink()
    shutil.rmtree(part, ignore_errors=True)
    with RunDirectory(part) as directory:
        directory.write_settings(read_file(config).decode())
        directory.checkpoints.mkdir()
        save_checkpoint(directory.checkpoints / file.name, state)
        for name in _HISTORY:
            if (source / name).exists():
                with open_file(source / name) as own, new_file(part / name) as copy:
                    shutil.copyfileobj(own, copy)
        if (source / REPLAY).exists():
            shutil.copytree(source / REPLAY, part / REPLAY)
    part.rename(target)
