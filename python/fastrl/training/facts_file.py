"""The facts of a run that trains, kept in its directory."""

import dataclasses
from pathlib import Path

from fastrl.runs.facts import RunFacts, State, new_session, now
from fastrl.training.trainer import Trainer


class FactsFile:
    """Keeps the facts of a run that trains.

    Args:
        path: the run directory, which has a file already where the run is resumed.
        task: its name.
        training: the run.
    """

    def __init__(self, path: Path, task: str, training: Trainer) -> None:
        before = RunFacts.read(path)
        self._path, self._task, self._training = path, task, training
        self._earlier = () if before is None or not training.steps else before.sessions
        self._session = new_session(training.steps, training.device)
        self.write("running")

    def write(self, state: State, stopped_by: str | None = None) -> None:
        """Writes how far the run is."""
        training = self._training
        ended_at = None if state == "running" else now()
        RunFacts(
            state=state,
            task=self._task,
            env=training.env_id,
            algorithm=training.algorithm_name,
            seed=training.run.seed,
            total_timesteps=training.steps,
            episodes=training.episodes,
            mean_return=training.mean_return,
            seconds=training.seconds,
            stopped_by=stopped_by,
            sessions=(*self._earlier, dataclasses.replace(self._session, ended_at=ended_at)),
        ).write(self._path)
