"""Loggers of experiment trackers: Weights & Biases and MLflow. Both write files unless their own environment variables
name a server."""

import importlib
import math
import os
from typing import Any

from fastrl.runs.logger import LoggedRun, Logger, LoggerError
from fastrl.runs.row import Row


class WandbLogger(Logger):
    """Weights & Biases, the extra ``fastrl[wandb]``. Offline, into ``wandb/`` of the run directory, unless WANDB_MODE
    is ``online``; WANDB_PROJECT and WANDB_ENTITY apply. A resumed run has the same id."""

    name = "wandb"

    def __init__(self, run: LoggedRun) -> None:
        wandb = _library("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fastrl"),
            name=run.files.path.name,
            id="".join(char if char.isalnum() or char in "-_" else "-" for char in run.files.path.name),
            resume="allow",
            dir=str(run.files.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=run.hyper_parameters(),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, row: Row) -> None:
        self._run.log(_finite(row), step=row.steps)

    def close(self) -> None:
        self._run.finish()


class MLflowLogger(Logger):
    """MLflow, the extra ``fastrl[mlflow]``. Into ``mlruns/`` of the run directory, unless MLFLOW_TRACKING_URI names a
    server or another folder; MLFLOW_EXPERIMENT_NAME applies."""

    name = "mlflow"

    def __init__(self, run: LoggedRun) -> None:
        mlflow = _library("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run.files.path / "mlruns").absolute().as_uri()
        # Versions that advise against folders refuse them otherwise.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = mlflow.MlflowClient(uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fastrl")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=run.files.path.name).info.run_id
        self._metric = mlflow.entities.Metric
        params = [
            mlflow.entities.Param(key, str(value)[:6000]) for key, value in run.hyper_parameters().items()
        ]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._run, params=params[first : first + 100])

    def log(self, row: Row) -> None:
        passed = int(1000 * row.metrics.get("time/time_elapsed", 0.0))
        metrics = [self._metric(name, number, passed, row.steps) for name, number in _finite(row).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _finite(row: Row) -> dict[str, float]:
    return {name: number for name, number in row.record().items() if math.isfinite(number)}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LoggerError(
            f"run.loggers {name}: {error.name} is missing; install the extra, pip install 'fastrl[{name}]'"
        ) from None
