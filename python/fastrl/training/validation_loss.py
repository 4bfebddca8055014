"""The callback that ends a run whose validation loss does not get lower."""

from fastrl.sources.dataset import DatasetSource
from fastrl.training.callbacks import Callback, Run


class ValidationLoss(Callback):
    """Stops a run whose validation loss does not get lower."""

    name = "validation_loss"

    def __init__(self, source: DatasetSource) -> None:
        self._source = source

    def on_start(self, run: Run) -> bool:
        return not self._source.is_stopped

    def on_update(self, run: Run) -> bool:
        return not self._source.is_stopped
