"""Loggers: objects that take the rows of a run.

By name, ``--run.loggers csv,tensorboard,wandb,mlflow``; of your own, a class with two methods::

    class Recorder:
        def __init__(self, run: LoggedRun) -> None: ...
        def log(self, row: Row) -> None: ...      # row.steps, row.record()
        def close(self) -> None: ...

``--run.loggers my_module:Recorder`` starts it, or ``learn(..., loggers=[recorder])`` from Python.
docs/reference/metrics.md explains the names of the numbers.
"""

from fastrl.runs.console_logger import ConsoleLogger
from fastrl.runs.logger import LoggedRun, Logger, LoggerError
from fastrl.runs.loggers import CsvLogger, EpisodesLogger, JsonlLogger, TensorBoardLogger
from fastrl.runs.row import Row
from fastrl.runs.tracking import MLflowLogger, WandbLogger

__all__ = [
    "ConsoleLogger",
    "CsvLogger",
    "EpisodesLogger",
    "JsonlLogger",
    "LoggedRun",
    "Logger",
    "LoggerError",
    "MLflowLogger",
    "Row",
    "TensorBoardLogger",
    "WandbLogger",
]
