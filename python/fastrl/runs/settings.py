"""Settings of a run: the table that all runs have, and how the tables of task, algorithm and collector come
together."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

from pydantic import Field

from fastrl.algorithms import declarations
from fastrl.utils.config import ConfigError, Setting, Values, section
from fastrl.utils.trust import Reach, imports_algorithm, imports_modules


@section
class RunConfig:
    """Length, device and random seed of a run, and what is written and when."""

    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=2**63,
            description="fixes everything random in the run, except that algorithms that learn from stale experience"
            " also depend on timing",
        ),
        Setting(option="--seed"),
    ] = 0
    # Without Reach: reading a checkpoint runs no code.
    init_from: Annotated[
        Path | None,
        Field(
            description="start with the weights of a run (of its newest checkpoint) or of a checkpoint file, and with"
            " nothing else of it; observations may be longer than its, the first numbers as before; none: random"
            " weights"
        ),
        Setting(option="--init"),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(
            description="where networks learn; auto: cuda if there is one, unless compiled gradient steps on the cpu"
            " are faster"
        ),
        Setting(resumable=True, option="--device"),
    ] = "auto"
    algo: Annotated[
        str,
        Field(description="name of an algorithm, or module:Class of your own"),
        Reach(imports_algorithm),
        Setting(option="--algo"),
    ] = "ppo"
    total_timesteps: Annotated[
        int | None,
        Field(
            ge=1,
            description="environment steps in all; the last update may go beyond. none: --total-episodes",
        ),
        Setting(resumable=True, option="--total-timesteps"),
    ] = 1_000_000
    stages: Annotated[
        tuple[str, ...],
        Field(
            description="stages before the last one, each a text of the step at which it ends and of its settings, such"
            " as '12e6 env.memory=scan ppo.learning_rate=1e-3'; the others are those of the run, which the last stage"
            " has; observations may get longer from stage to stage"
        ),
        Setting(words="'STEP KEY=VALUE ...'"),
    ] = ()
    total_episodes: Annotated[
        int | None,
        Field(
            ge=1, description="episodes in all, in place of --total-timesteps; the last update may go beyond"
        ),
        Setting(resumable=True, option="--total-episodes"),
    ] = None
    schedule_start: Annotated[
        int,
        Field(
            ge=0,
            description="environment steps after which schedules that end with the run start, as of the learning rate;"
            " in Python each call of learn restarts them",
        ),
        Setting(resumable=True),
    ] = 0
    stop_at_return: Annotated[
        float | None,
        Field(
            description="stop the run once its policy reaches this mean return: in an evaluation if --eval-freq is"
            " given, else over the newest 100 episodes of training; none: at no return"
        ),
        Setting(resumable=True, option="--stop-at-return"),
    ] = None
    threads: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        Field(
            description="cores that workers, compiled simulators, the compiled actor and compiled gradient steps use at"
            " most; auto: workers all that this process may use, compiled code these or one, as a measurement at the"
            " start says. Synchronous algorithms learn the same with any number"
        ),
        Setting(resumable=True, option="--threads"),
    ] = "auto"
    torch_threads: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="threads of PyTorch in the learner; 0: one for each core, or as OMP_NUM_THREADS says",
        ),
        Setting(resumable=True),
    ] = 1
    shards: Annotated[
        int | None,
        Field(
            ge=1,
            le=4096,
            description="parts of each batch whose gradients are added up in a fixed order: any number of ranks"
            " (--ranks) that divides it learns the same, to the bit. none: as many as ranks; whole batches on one",
        ),
        Setting(resumable=True),
    ] = None
    rank_timeout: Annotated[
        float,
        Field(
            ge=0,
            description="seconds of silence after which a rank counts as lost and all of them end; 0: never",
        ),
        Setting(resumable=True),
    ] = 120.0
    row_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between rows of metrics, at most; 0: one after every update"),
        Setting(resumable=True),
    ] = 1.0
    min_rows: Annotated[
        int,
        Field(
            ge=0,
            description="rows of metrics of the whole run, at least, evenly by its steps, if it has as many updates;"
            " short runs have a curve so, too",
        ),
        Setting(resumable=True),
    ] = 100
    loggers: Annotated[
        tuple[str, ...],
        Field(
            description="further loggers beside the console, metrics.jsonl and episodes.csv, any of csv, tensorboard,"
            " wandb, mlflow and module:Class of your own"
        ),
        Setting(resumable=True),
        Reach(imports_modules),
    ] = ("tensorboard",)
    checkpoint_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between checkpoints; 0: one after every row"),
        Setting(resumable=True),
    ] = 30.0
    save_freq: Annotated[
        int,
        Field(ge=0, description="episodes between checkpoints, besides those by time; 0: by time only"),
        Setting(resumable=True, option="--save-freq"),
    ] = 0
    keep_checkpoints: Annotated[
        int,
        Field(ge=1, description="how many of the newest checkpoints are kept, besides the best"),
        Setting(resumable=True),
    ] = 3
    eval_freq: Annotated[
        int,
        Field(
            ge=0,
            description="episodes (--algo bc: epochs) between evaluations; 0: one evaluation, at the end",
        ),
        Setting(resumable=True, option="--eval-freq"),
    ] = 0
    eval_points: Annotated[
        int,
        Field(
            ge=0,
            le=1_000,
            description="evaluations at so many equal parts of the run, in place of --eval-freq, so that runs of other"
            " settings are evaluated at the same points, the last one at the end; 0: see --eval-freq",
        ),
        Setting(resumable=True),
    ] = 0
    eval_episodes: Annotated[
        int,
        Field(ge=0, description="episodes of an evaluation, without exploration; 0: no evaluation"),
        Setting(resumable=True),
    ] = 20


class Settings(Protocol):
    """The settings of a run: tables of its own, made by `settings_type`."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def env(self) -> Any: ...


def table_of(algorithm: str) -> str:
    """The table that an algorithm's settings stand in: ``async_ppo`` for ``async-ppo``; of a class of the user's own
    its name in lower case."""
    return algorithm.rpartition(":")[2].lower().replace("-", "_")


def algorithms_of(tables: Iterable[str]) -> list[str]:
    """The algorithms of this package whose settings stand in these tables, in alphabetical order."""
    names = (table.replace("_", "-") for table in tables)
    return sorted(name for name in names if name in declarations())


def settings_type(tables: Mapping[str, Any]) -> type:
    """The type of a run's settings, from a default instance of each table's section."""
    return _settings_type(tuple(tables.items()))


@functools.cache
def _settings_type(tables: tuple[tuple[str, Any], ...]) -> type:
    body: dict[str, Any] = {
        "__doc__": "All settings of a run.",
        "__annotations__": {name: type(default) for name, default in tables},
        **dict(tables),
    }
    return cast("type", section(type("Settings", (), body)))


def with_one_goal(values: Values) -> Values:
    """Settings in which a goal in steps replaces one in episodes of lower layers, and the other way round.

    Raises:
        ConfigError: both are given.
    """
    goals = [key for key in ("run.total_timesteps", "run.total_episodes") if values.get(key) is not None]
    if len(goals) > 1:
        raise ConfigError(
            "--total-timesteps and --total-episodes both say how long the run is: give one of them"
        )
    if not goals:
        return values
    other = "run.total_episodes" if goals[0] == "run.total_timesteps" else "run.total_timesteps"
    return {**values, other: None}
