"""The phases of a search: the trials themselves, the confirmation of the best, the evaluation of the chosen one."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastrl.runs.metrics import moments
from fastrl.tuning.pool import Answer
from fastrl.tuning.pruning import should_stop
from fastrl.tuning.runner import Phase
from fastrl.tuning.samplers import Sampler
from fastrl.tuning.study import Study
from fastrl.tuning.trial import CONFIRMATION, REPORT, SEARCH, Evaluated, Result, Trial, best_first, seed_of
from fastrl.utils.config import Values


class SearchPhase(Phase):
    """The trials that a sampler proposes.

    Args:
        sampler: proposes.
    """

    title, prefix = "search", "trial-"

    def __init__(self, study: Study, sampler: Sampler) -> None:
        super().__init__(study)
        self._sampler = sampler

    @property
    def total(self) -> int:
        return self.study.config.trials

    def propose(self) -> Trial | None:
        started = self.trials()
        number = len(started)
        if number >= self.total:
            return None
        point = self._sampler(number, started)
        return Trial(f"trial-{number:04d}", number, point, seed_of(self.study.seed, SEARCH, number))

    def should_stop(self, trial: Trial, evaluations: Sequence[Evaluated]) -> bool:
        others = [other for other in self.trials() if other is not trial]
        return should_stop(self.study.config, evaluations, others)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A trial that was trained again.

    Attributes:
        trial: of the search.
        scores: with other seeds; without those that failed.
    """

    trial: Trial
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return moments(self.scores)["mean"]

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN of fewer than two scores."""
        return moments(self.scores)["standard_error"]

    @property
    def bound(self) -> float:
        """The mean less its standard error, by which it is chosen; NaN of fewer than two scores."""
        return self.mean - self.error


class ConfirmationPhase(Phase):
    """The best trials, each trained again with the same other seeds."""

    title, prefix = "confirmation", "confirm-"

    @property
    def total(self) -> int:
        return len(self._chosen()) * self.study.config.confirm_seeds

    def _chosen(self) -> list[Trial]:
        trials = self.study.of_search()
        if self.study.config.objective != "score":
            trials = front(trials)
        return best_first(trials)[: self.study.config.confirm]

    def job(self, trial: Trial) -> Mapping[str, Any]:
        return self.study.job(trial, self.study.trial_settings(trial, self.evaluation()))

    def evaluation(self) -> Values:
        """Settings of the evaluation: one at the end, of so many episodes that seeds differ more than luck does."""
        episodes = int(self.study.settings.run.eval_episodes)
        return {"run.eval_points": 0, "run.eval_episodes": max(episodes, self.study.config.report_episodes)}

    def propose(self) -> Trial | None:
        for i in range(self.study.config.confirm_seeds):
            for trial in self._chosen():
                name = f"confirm-{trial.number:04d}-{i}"
                if name not in self.study.trials:
                    return Trial(name, trial.number, trial.point, seed_of(self.study.seed, CONFIRMATION, i))
        return None

    def candidates(self) -> list[Candidate]:
        """The trials of the search that were trained again, the best first."""
        found = []
        for trial in self._chosen():
            found.append(Candidate(trial, tuple(run.score for run in self.runs_of(trial))))
        return sorted(
            found, key=lambda each: -math.inf if math.isnan(each.bound) else each.bound, reverse=True
        )

    def runs_of(self, trial: Trial) -> list[Trial]:
        """The complete trainings that repeat a trial."""
        return [run for run in self.trials() if run.number == trial.number and not math.isnan(run.score)]


class ReportPhase(Phase):
    """The evaluation of policies in episodes whose seeds nothing else has had.

    Args:
        runs: complete trainings.
    """

    title, prefix = "report", "report-"

    def __init__(self, study: Study, runs: Sequence[Trial]) -> None:
        super().__init__(study)
        self._runs = runs

    @property
    def total(self) -> int:
        return len(self._runs) if self.study.config.report_episodes else 0

    def trials(self) -> list[Trial]:
        return [trial for trial in self.study.trials.values() if trial.name in self._names()]

    def _names(self) -> dict[str, Trial]:
        return {f"{self.prefix}{run.name}": run for run in self._runs}

    def propose(self) -> Trial | None:
        if not self.study.config.report_episodes:
            return None
        for i, (name, run) in enumerate(self._names().items()):
            if name not in self.study.trials:
                return Trial(name, run.number, run.point, seed_of(self.study.seed, REPORT, i))
        return None

    def job(self, trial: Trial) -> Mapping[str, Any]:
        run = self.study.run_of(self._names()[trial.name])
        return {
            "kind": self.study.task.name,
            "run": str(run),
            "log": str(run.with_name(f"{run.name}.log")),
            "episodes": self.study.config.report_episodes,
            "seed": trial.seed,
            "trust": self.study.trust,
        }

    def result(self, trial: Trial, answer: Answer) -> Result:
        score = math.nan if answer.score is None else answer.score
        return Result("failed" if math.isnan(score) else "complete", score, seconds=answer.seconds)

    def scores(self) -> list[float]:
        """One of each run."""
        return [trial.score for trial in self.trials() if not math.isnan(trial.score)]


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The complete trials that no other one beats in both score and seconds, the fastest first."""
    scored = best_first(trials)
    scored.sort(key=lambda trial: (trial.result.seconds if trial.result else math.inf, -trial.score))
    found: list[Trial] = []
    for trial in scored:
        if not found or trial.score > found[-1].score:
            found.append(trial)
    return found
