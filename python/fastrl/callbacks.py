"""Callbacks: objects that watch a run and may stop it.

::

    class Stop(Callback):
        def on_update(self, run: Run) -> bool:
            return run.metrics.get("train/approx_kl", 0.0) < 0.1

``learn(..., callbacks=[Stop()])`` adds it to a run from Python; a task's `callbacks` to all of its runs.
"""

from fastrl.runs.episodes import Episodes
from fastrl.training.callbacks import BestCheckpoint, Callback, EarlyStopping, ProgressBar, Run
from fastrl.training.video_recorder import VideoRecorder

__all__ = [
    "BestCheckpoint",
    "Callback",
    "EarlyStopping",
    "Episodes",
    "ProgressBar",
    "Run",
    "VideoRecorder",
]
