"""Settings of collecting experience, and the collector that they ask for."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from fastrl.collectors.factory import COLLECTORS, is_native, make_collector, options_of
from fastrl.collectors.fragment_stream import pending_for
from fastrl.collectors.protocol import CollectError, Collector, Plan
from fastrl.collectors.resources import cores
from fastrl.play.episodes import EPISODE_STEPS
from fastrl.runs.errors import TrainError
from fastrl.utils.config import Setting, Values, section
from fastrl.utils.tables import print_lines
from fastrl.utils.trust import Reach, connects_to_ray

if TYPE_CHECKING:
    from rich.console import Console

# Settings that not all collectors have.
_OPTIONS = ("n_workers", "start_method", "ray_address", "asynchronous", "period", "speed", "queue")

CollectorName = Annotated[
    Literal["auto", "sequential", "sync", "executor", "native", "ray", "vector", "live"],
    Field(
        description="sequential: in this process; sync: processes that step together; executor: processes that each"
        " run at their own pace; native: threads, for fastrl's compiled environments, where it is several times as"
        " fast as processes; ray: Ray actors; vector: this process,"
        " for a vector environment of your own; live: a process that simulates, perhaps in real time, and never waits"
        " for the learner; auto: what suits the environment"
    ),
]


@section
class CollectConfig:
    """Collection of experience, see fastrl.collectors."""

    collector: Annotated[CollectorName, Setting(resumable=True, option="--collector")] = "auto"
    n_workers: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"],
        Field(description="worker processes, Ray actors, or threads of native; auto: by cores and memory"),
        Setting(resumable=True, option="--n-workers"),
    ] = "auto"
    episodes_per_update: Annotated[
        int,
        Field(
            ge=0, description="whole episodes in each update; 0: num_steps steps of each environment instead"
        ),
        Setting(option="--episodes-per-update"),
    ] = 0
    max_episode_steps: Annotated[
        int,
        Field(
            ge=0,
            description="with whole episodes: steps after which an episode is cut off; 0: the environment's limit, else"
            f" {EPISODE_STEPS}",
        ),
    ] = 0
    task_timeout: Annotated[
        float,
        Field(ge=0, description="seconds after which a worker that does not answer is replaced; 0: never"),
        Setting(resumable=True, option="--task-timeout"),
    ] = 300.0
    start_method: Annotated[
        Literal["spawn", "forkserver"],
        Field(description="how worker processes are started"),
        Setting(resumable=True, option="--start-method"),
    ] = "forkserver"
    asynchronous: Annotated[
        int | None,
        Field(
            ge=1,
            description="native: step so many environments as soon as they are ready, for long and uneven steps; none:"
            " all environments of a thread step together",
        ),
        Setting(resumable=True),
    ] = None
    ray_address: Annotated[
        str | None,
        Field(description="address of a running Ray cluster; none: start Ray on this machine"),
        Reach(connects_to_ray),
        Setting(resumable=True, option="--ray-address"),
    ] = None
    period: Annotated[
        float | None,
        Field(ge=0, description="live: seconds of a step; none: traffic's own, else as fast as possible"),
        Setting(resumable=True),
    ] = None
    speed: Annotated[
        float,
        Field(ge=0, description="live: simulated seconds per second: 1: real time; 0: as fast as possible"),
        Setting(resumable=True),
    ] = 1.0
    queue: Annotated[
        int,
        Field(ge=1, le=1024, description="live: fragments that may wait; of more, the oldest are dropped"),
        Setting(resumable=True),
    ] = 2

    @property
    def is_live(self) -> bool:
        """True if environments are stepped whether the learner is ready or not."""
        return self.collector == "live"

    def with_cores(self, count: int) -> Self:
        """Settings of a run that has ``count`` of the machine's cores: so many workers in place of "auto"."""
        if self.n_workers != "auto" or (
            self.collector != "auto" and "n_workers" not in options_of(self.collector)
        ):
            return self
        return dataclasses.replace(self, n_workers=count)


def open_collector(
    config: CollectConfig,
    plan: Plan,
    console: "Console",
    max_staleness: int = 0,
    total_steps: int | None = None,
) -> Collector:
    """Starts the collector that the settings ask for.

    Args:
        max_staleness: of fragments, for `fastrl.collectors.fragment_stream.FragmentStream`.
        total_steps: that the run still has; None: not known.

    Raises:
        TrainError: settings that do not suit the environment or the machine.
        CollectError: its workers do not start.
    """

    # Options with default values are left out: a collector refuses options that do not apply to it.
    usual = CollectConfig()
    given = {
        name: getattr(config, name) for name in _OPTIONS if getattr(config, name) != getattr(usual, name)
    }
    if config.task_timeout != usual.task_timeout:
        given["task_timeout"] = config.task_timeout or None
    if max_staleness and config.collector not in ("sequential", "live"):
        useful = plan.episodes if plan.unit == "episodes" else plan.num_envs
        workers = min(cores(), useful) if config.n_workers == "auto" else config.n_workers
        given["max_pending"] = pending_for(
            plan, 1 if config.collector in ("sync", "native", "vector") else workers, max_staleness
        )
    try:
        collector = make_collector(
            config.collector,
            plan,
            total_steps=total_steps,
            log=functools.partial(print_lines, console),
            **given,
        )
    except (ValueError, TypeError, ImportError) as error:
        raise TrainError(f"--collector {config.collector}: {error}") from None
    except CollectError as error:
        # Faults of the environment keep their own error, as during the run.
        if error.traceback or str(error).startswith(plan.env.id):
            raise
        raise TrainError(f"--collector {config.collector}: {error}") from None
    if config.collector != "auto":
        faster = (
            f"; {plan.env.id} is compiled: --collector native steps it in threads, several times as fast"
            if collector.name not in ("native", "live") and is_native(plan.env)
            else ""
        )
        print_lines(console, f"collecting with {collector.name!r}{faster}")
    return collector


def options_of_others(collector: str) -> Values:
    """Settings, by dotted key, that other collectors have and this one refuses, with their default values."""
    usual = CollectConfig()
    if collector not in COLLECTORS:
        return {}
    names = {*_OPTIONS, "task_timeout"} - options_of(collector)
    return {f"collect.{name}": getattr(usual, name) for name in names}
