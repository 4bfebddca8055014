"""Settings of a search."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, connects_to_ray


@section
class TuneConfig:
    """The search: how many trials, who proposes them, and how the best are confirmed."""

    trials: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="trainings of the search, failed ones and those that were stopped early included; pbt: members"
            " of the population",
        ),
        Setting(option="--trials"),
    ] = 60
    method: Annotated[
        Literal["tpe", "random", "halving", "gp", "pbt"],
        Field(
            description="random: values drawn at random; halving: the same, and at a third and a ninth of its length"
            " only the best third of the trials continues; tpe: tree-structured Parzen estimator; gp: Gaussian process"
            " (both Optuna's); pbt: a population whose worst members copy the best ones on the way"
        ),
        Setting(option="--method"),
    ] = "tpe"
    n_workers: Annotated[
        int,
        Field(ge=1, le=1024, description="trials that run side by side, each in a process"),
        Setting(option="--n-workers"),
    ] = 1
    ray_address: Annotated[
        str | None,
        Field(
            description="address of a running Ray cluster, HOST:PORT or auto, on whose nodes trials run; they share the"
            " directory of the search; none: processes of this machine"
        ),
        Setting(option="--ray-address"),
        Reach(connects_to_ray),
    ] = None
    objective: Annotated[
        Literal["score", "score-per-second"],
        Field(
            description="score: of the evaluation at the end; score-per-second: seconds of training count, too, and a"
            " table shows the trials that no other one beats in both"
        ),
        Setting(option="--objective"),
    ] = "score"
    pruner: Annotated[
        Literal["auto", "median", "halving", "none"],
        Field(
            description="which trials are stopped early, by their evaluations alone. median: worse than half of the"
            " others at the same point; halving: not among the best third there; auto: halving for the method halving,"
            " none for score-per-second, else median"
        ),
        Setting(option="--pruner"),
    ] = "auto"
    eval_points: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="evaluations of a trial, at equal parts of its length; none: 4, or 9 with halving",
        ),
        Setting(option="--eval-points"),
    ] = None
    confirm: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="how many of the best trials are trained again with other seeds; the one with the highest mean"
            " minus standard error is chosen. 0: the best trial is chosen by its score in the search",
        ),
        Setting(option="--confirm"),
    ] = 4
    confirm_seeds: Annotated[
        int,
        Field(
            ge=2, le=100, description="seeds with which each of the --confirm best trials is trained again"
        ),
        Setting(option="--confirm-seeds"),
    ] = 5
    report_episodes: Annotated[
        int,
        Field(
            ge=0,
            description="episodes of each evaluation of the confirmation, at least --run.eval-episodes, and of the last"
            " evaluation, which scores the chosen policies with seeds that nothing else has had; 0: no last evaluation",
        ),
        Setting(option="--report-episodes"),
    ] = 100
    restarts: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="times that a trial continues from its last checkpoint after its process was killed, before it"
            " counts as failed; 0: it counts as failed at once",
        ),
        Setting(option="--restarts"),
    ] = 3
    trial_seconds: Annotated[
        float | None,
        Field(
            gt=0, description="seconds after which a trial is stopped and counts as failed; none: no limit"
        ),
        Setting(option="--trial-seconds"),
    ] = None
    generations: Annotated[
        int,
        Field(
            ge=2, le=1000, description="pbt: equal parts of the training, after each of which members copy"
        ),
        Setting(option="--generations"),
    ] = 8

    @property
    def points(self) -> int:
        """Evaluations of a trial."""
        return self.eval_points or (9 if self.stops_early == "halving" else 4)

    @property
    def stops_early(self) -> Literal["median", "halving", "none"]:
        """The pruner."""
        if self.pruner != "auto":
            return self.pruner
        if self.objective != "score":
            return "none"
        return "halving" if self.method == "halving" else "median"


@section
class TuneSettings:
    """Settings of a search as a table of a file."""

    tune: TuneConfig = TuneConfig()
