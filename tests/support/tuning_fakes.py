"""Searches without training: the score of a trial is a function of its settings and its seed."""

import contextlib
import dataclasses
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fastrl.runs.facts import RunFacts
from fastrl.runs.row import STEPS
from fastrl.tasks import find
from fastrl.tuning import journal
from fastrl.tuning.pool import Answer
from fastrl.tuning.settings import TuneConfig
from fastrl.tuning.space import Space, read_space
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial
from fastrl.tuning.tune import run_search

SPACE = """
[ppo.learning_rate]
low = 1e-5
high = 1e-1
log = true

[ppo.gamma]
low = 0.9
high = 0.999
log = true
from_one = true

[ppo.hidden]
widths = [16, 32, 64]
depths = [1, 2]

[ppo.activation]
values = ["relu", "tanh"]
"""

# Score of a trial at a share of its length.
Score = Callable[[Trial, float], float]


def new_study(directory: Path, space: str = SPACE, seed: int = 0, **config: Any) -> Study:
    """A search on CartPole that trains nothing by itself."""
    task = find("gym")
    settings = task.make_settings({"env.id": "CartPole-v1", "run.algo": "ppo", "run.seed": seed})
    return Study.create(
        directory, TuneConfig(**config), task, settings, space_from(space, directory, settings)
    )


def space_from(text: str, directory: Path, settings: Any) -> Space:
    """A space of a file's text."""
    file = directory.with_name(f"{directory.name}-space.toml")
    file.write_text(text)
    return read_space(settings, file)


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """A context beside which a thread works, until the event that it is given is set."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class FunctionPool:
    """Ends trials at once, with a run directory as a worker leaves it.

    Args:
        score: of a trial, and of the evaluation of the report, whose names start with "report".
        size: of the pool.
        before: called with each trial when it starts; may raise.
    """

    def __init__(
        self,
        study: Study,
        score: Score,
        size: int = 1,
        before: Callable[[Trial], object] = lambda trial: None,
    ) -> None:
        self.size, self._study, self._score, self._before = size, study, score, before
        self._running: list[Trial] = []
        self.started: list[Trial] = []

    def running(self) -> Sequence[Trial]:
        return self._running

    def start(self, trial: Trial, job: Mapping[str, Any]) -> None:
        self._before(trial)
        self._running.append(trial)
        self.started.append(trial)

    def stop(self, trial: Trial) -> None:
        pass

    def answers(self, seconds: float) -> list[Answer]:
        trial = self._running.pop(0)
        if trial.name.startswith("report"):
            return [Answer(trial, "complete", score=self._score(trial, 1.0))]
        points = self._study.config.points
        write_run(self._study.run_of(trial), [self._score(trial, (i + 1) / points) for i in range(points)])
        return [Answer(trial, "complete")]


def write_run(run: Path, scores: Sequence[float], seconds: float = 1.0) -> None:
    """Writes the directory of a complete run with these evaluations."""
    run.mkdir(parents=True, exist_ok=True)
    rows = [
        {STEPS: 1000 * i, "eval/mean_reward": score, "eval/point": i} for i, score in enumerate(scores, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    summary = {"seconds": seconds, "steps": 1000 * len(scores), "evaluation": {"mean": scores[-1]}}
    (run / "summary.json").write_text(json.dumps(summary))
    facts = RunFacts("complete", "gym", "CartPole-v1", "ppo", 0, 0, 0, None, seconds, None, ())
    (run / "run.json").write_text(json.dumps(dataclasses.asdict(facts)))


def search(study: Study, score: Score, **options: Any) -> Any:
    """Runs a search to its end; returns its findings."""
    return run_search(study, Console(quiet=True), FunctionPool(study, score, **options))


def quality(trial: Trial) -> float:
    """1 at a learning rate of 1e-3, less elsewhere; 0 at a distance of one decade."""
    return 1 - (math.log10(trial.point["ppo.learning_rate"]) + 3) ** 2


def recorded(directory: Path) -> list[journal.Record]:
    """The records of a search on disk, which may go on."""
    lines = (directory / journal.NAME).read_bytes().splitlines(keepends=True)
    return [record for line in lines if (record := journal.parse(line)) is not None]
