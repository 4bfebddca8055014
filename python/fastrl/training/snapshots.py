"""Snapshots of a run's policy: numbered checkpoint files of its past policies, in the run's folder ``snapshots``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastrl.collectors.team_spec import SELF
from fastrl.runs.checkpoint import SNAPSHOTS, CheckpointError, save_checkpoint
from fastrl.training.opposed_spec import snapshot_file, snapshots_in, weighted
from fastrl.utils.files import read_file, write_atomically

# The largest file that is copied.
_MOST_BYTES = 2**32


def save(directory: Path, number: int, state: Mapping[str, Any]) -> None:
    """Writes a snapshot.

    Args:
        state: of `fastrl.training.trainer.Trainer.policy_checkpoint`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # It plays others, and needs none itself.
    save_checkpoint(
        snapshot_file(directory, number), {key: each for key, each in state.items() if key != SNAPSHOTS}
    )


def continue_in(directory: Path, before: Path, count: int) -> None:
    """Makes a folder that of a run with so many snapshots: copies those that it lacks, and deletes later ones.

    Args:
        before: where they are.

    Raises:
        CheckpointError: one is not there.
    """
    for number in range(count):
        new, old = snapshot_file(directory, number), snapshot_file(before, number)
        if new.exists():
            continue
        if not old.exists():
            raise CheckpointError(
                f"{old}: this snapshot of the run's policy, an opponent, is not there any more"
            )
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(new, read_file(old, _MOST_BYTES))
    for number in range(count, snapshots_in(directory)):
        snapshot_file(directory, number).unlink(missing_ok=True)


def found_beside(state: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The state of a checkpoint file with snapshots, with their present folder: a run directory may have been moved."""
    beside = file.parent.parent / SNAPSHOTS
    if not beside.is_dir():
        return dict(state)
    return {**state, SNAPSHOTS: {**state[SNAPSHOTS], "directory": str(beside)}}


def against_snapshots(settings: Any, state: Mapping[str, Any]) -> Any:
    """Settings for a policy that plays: in place of ``self`` the opponents are the snapshots at its checkpoint.

    Args:
        settings: of the run.
        state: of the checkpoint, which has `SNAPSHOTS`.
    """
    env, kept = settings.env, state[SNAPSHOTS]
    directory, opponents = Path(kept["directory"]), list[str]()
    for name, weight in map(weighted, env.opponents):
        numbers = range(max(kept["count"] - env.pool_size, 0), kept["count"]) if name == SELF else None
        paths = [name] if numbers is None else [str(snapshot_file(directory, each)) for each in numbers]
        opponents += [f"{path}:{weight / len(paths)}" for path in paths]
    return dataclasses.replace(settings, env=dataclasses.replace(env, opponents=tuple(opponents)))
