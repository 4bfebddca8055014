"""Trials: a training each, what is known of it, and how its result is read from its run directory."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import SafetensorError, safe_open

from fastrl.runs.facts import RunFacts
from fastrl.runs.listing import read_summary, score_in
from fastrl.runs.row import STEPS
from fastrl.tuning.space import Point
from fastrl.utils.errors import UserError
from fastrl.utils.files import DamagedFileError, open_file, parse_json, read_lines
from fastrl.utils.seeding import stream

# Metrics of evaluations: the score, and the point of the run, see ``run.eval_points``.
_SCORE, _POINT = "eval/mean_reward", "eval/point"

# complete: to its end; pruned: stopped early, it was worse than others; failed: by an error or a limit.
End = Literal["complete", "pruned", "failed"]

# Uses of seeds: trials of the search, their confirmation, the evaluation of the report, and draws of samplers.
SEARCH, CONFIRMATION, REPORT, SAMPLING = 1, 2, 3, 4


class Evaluated(NamedTuple):
    """An evaluation on the way.

    Attributes:
        point: of the run, the last of those that were passed.
        steps: environment steps.
        score: mean return.
    """

    point: int
    steps: int
    score: float


class TuneError(UserError, RuntimeError):
    """A search that cannot start or continue; one line that says why."""


def seed_of(seed: int, use: int, *indices: int) -> int:
    """A seed for one use; those of other uses and indices differ."""
    return int(stream(seed, use, *indices)) >> 33


@dataclasses.dataclass(frozen=True)
class Result:
    """The end of a training.

    Attributes:
        state: how it ended.
        score: of the evaluation at its end, of a pruned one of its last evaluation; NaN without one.
        evaluations: on the way.
        seconds: of training.
        steps: environment steps.
        parameters: numbers that its networks learn.
        error: why it failed, one line.
    """

    state: End
    score: float = math.nan
    evaluations: tuple[Evaluated, ...] = ()
    seconds: float = math.nan
    steps: int = 0
    parameters: int = 0
    error: str = ""

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Result":
        """The inverse of `to_tree`."""
        known = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {
            key: math.nan if value is None else value for key, value in tree.items() if key in known
        }
        evaluations = tuple(
            Evaluated(int(point), int(steps), _number(score))
            for point, steps, score in tree.get("evaluations", ())
        )
        return cls(**values | {"evaluations": evaluations})


@dataclasses.dataclass
class Trial:
    """A training of the search, of the confirmation, or of a population.

    Attributes:
        name: such as ``trial-0007``, the name of its run directory.
        number: of the trial of the search that it is, or that it repeats.
        point: of the space.
        seed: of its run.
        kills: times that its process was killed.
        result: None: it has not ended.
    """

    name: str
    number: int
    point: Point
    seed: int
    kills: int = 0
    result: Result | None = None

    @property
    def score(self) -> float:
        """Score of a complete trial; NaN of others."""
        return self.result.score if self.result is not None and self.result.state == "complete" else math.nan


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Complete trials with a score, the best first; of equal ones that which was better on the way, as where the
    largest return is reached."""
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    return sorted(scored, key=lambda trial: (-trial.score, -_on_the_way(trial), trial.number))


def _on_the_way(trial: Trial) -> float:
    """The mean score of a trial's evaluations."""
    scores = [each.score for each in trial.result.evaluations] if trial.result is not None else []
    mean = math.fsum(scores) / len(scores) if scores else -math.inf
    return -math.inf if math.isnan(mean) else mean


def read_result(run: Path) -> Result | None:
    """The result of a complete run, from its directory; None if it is not complete."""
    summary, facts = read_summary(run), RunFacts.read(run)
    # The summary is written before the last evaluation, too.
    if not summary or facts is None or facts.state != "complete":
        return None
    evaluations = read_evaluations(run / "metrics.jsonl")
    score = score_in(summary)
    if math.isnan(score) and evaluations:
        score = evaluations[-1].score
    return Result(
        "failed" if math.isnan(score) else "complete",
        score,
        tuple(evaluations),
        _number(summary.get("seconds")),
        steps if isinstance(steps := summary.get("steps"), int) else 0,
        count_parameters(run),
        "its evaluation has no score" if math.isnan(score) else "",
    )


def read_evaluations(metrics: Path) -> list[Evaluated]:
    """The evaluations of a run so far."""
    found: list[Evaluated] = []
    try:
        for line in read_lines(metrics):
            # Most rows have none; the last line may be half written.
            if _SCORE in line and line.endswith("\n"):
                with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                    row = parse_json(line)
                    found.append(Evaluated(int(row.get(_POINT, 0)), int(row[STEPS]), _number(row[_SCORE])))
    except (OSError, DamagedFileError):
        pass
    return found


def count_parameters(run: Path) -> int:
    """The numbers that the network of a run's newest checkpoint learns; 0 without a checkpoint that can be read."""
    files = sorted((run / "checkpoints").glob("step-*.safetensors"))
    if not files:
        return 0
    try:
        # Mapping a pipe would block for ever.
        open_file(files[-1]).close()
        with safe_open(files[-1], "numpy") as file:
            tensors = {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError):
        return 0
    # Adam has one first moment for each.
    moments = [size for name, size in tensors.items() if re.search(r"exp_avg(/|$)", name)]
    return sum(moments) or sum(size for name, size in tensors.items() if name.startswith("policy/"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
