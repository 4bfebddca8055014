"""Callbacks: objects that watch a training and may change its environments."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastrl.training.experience import Episodes
from fastrl.training.row import Number
from fastrl.training.run_directory import RunDirectory

if TYPE_CHECKING:
    from fastrl.training.trainer import Trainer


class Callback:
    """Watches a training; each method may be overridden, and does nothing otherwise."""

    name = "callback"
    """Key of its state in checkpoints; one callback of a run has it."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called once before the first update of a session, after a checkpoint was loaded."""

    def on_update(self, trainer: "Trainer", ended: Episodes) -> None:
        """Called after each update, with the episodes that have ended since the last call."""

    def numbers(self, ended: Episodes) -> Mapping[str, Number]:
        """Its numbers for a row of metrics, named as in ``rollout/ep_success_rate``; called once for each row, with the
        episodes that have ended since the row before."""
        return {}

    def highlights(self) -> list[str]:
        """Those that a console shows, as text; called after `numbers`."""
        return []

    def write_report(self, directory: RunDirectory) -> None:
        """Writes files for people once at the end of a session, after the final evaluation, even if that fails."""

    def summary(self) -> Mapping[str, Any]:
        """Entries for a run's summary, JSON values by name."""
        return {}

    def lines(self) -> list[str]:
        """The same in lines for people."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """State for `load_state_dict`, kept in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a checkpoint's state."""
