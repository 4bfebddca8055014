"""Settings of collection, and the collector that they ask for."""

from typing import Annotated, Any, Literal

import gymnasium
from pydantic import Field
from rich.console import Console

from fastrl.collectors.factory import is_native, make_collector
from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.fragment_stream import pending_for
from fastrl.collectors.protocol import CollectError, Collector, Plan
from fastrl.collectors.resources import cores
from fastrl.envs.spec import EnvSpec
from fastrl.training.errors import TrainError
from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, connects_to_ray

Method = Annotated[
    Literal["auto", "sequential", "sync", "executor", "native", "ray"],
    Field(
        description="sequential: in this process; sync: processes that step together; executor: processes that each"
        " run at their own pace; native: threads, for fastrl's compiled environments, where it is several times as"
        " fast as processes; ray: Ray actors; auto: what suits the environment"
    ),
]

# Where the environment has no time limit of its own and none is set.
EPISODE_STEPS = 1000


@section
class CollectConfig:
    """Collection of experience, see fastrl.collectors."""

    method: Annotated[Method, Setting(resumable=True, option="--collect", common=True)] = "auto"
    n_workers: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"],
        Field(description="worker processes or Ray actors; auto: by cores and memory"),
        Setting(resumable=True, option="--n-workers", common=True),
    ] = "auto"
    episodes_per_update: Annotated[
        int,
        Field(
            ge=0, description="whole episodes in each update; 0: num_steps steps of each environment instead"
        ),
        Setting(option="--episodes-per-update", common=True),
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


def build_env(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """Builds one environment in this process.

    Raises:
        TrainError: there is none of that name, or what makes it cannot be called with its options.
        CollectError: it raised while it was built; the error has the traceback of its own code.
    """
    try:
        return spec.make()
    except (Exception, SystemExit) as error:
        trace = own_traceback(error)
        reason = str(error).removeprefix("env: ") or type(error).__name__
        if trace:
            reason = f"it could not be built: {last_line(trace)}"
        options = f" with {dict(spec.options)}" if spec.options and isinstance(error, TypeError) else ""
        line = f"--env {spec.id}{options}: {reason.splitlines()[0]}"
        if trace:
            raise CollectError(line, trace) from error
        raise TrainError(line) from error


def episode_steps(config: CollectConfig, env: gymnasium.Env[Any, Any]) -> int:
    """Returns the steps after which an episode that is collected whole ends at the latest."""
    own = None if env.spec is None else env.spec.max_episode_steps
    return config.max_episode_steps or own or EPISODE_STEPS


def open_collector(config: CollectConfig, plan: Plan, console: Console, max_staleness: int = 0) -> Collector:
    """Starts the collector that the settings ask for.

    Args:
        max_staleness: of fragments, for `fastrl.collectors.fragment_stream.FragmentStream`.

    Raises:
        TrainError: settings that do not suit the environment or the machine.
        CollectError: its workers do not start.
    """

    def log(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    # A collector refuses options that are not for it, and those alone were meant for it that were given.
    usual = CollectConfig()
    given = {
        name: getattr(config, name)
        for name in ("n_workers", "start_method", "ray_address")
        if getattr(config, name) != getattr(usual, name)
    }
    if config.asynchronous is not None:
        given["asynchronous"] = config.asynchronous
    if config.task_timeout != usual.task_timeout:
        given["task_timeout"] = config.task_timeout or None
    if max_staleness and config.method != "sequential":
        useful = plan.episodes if plan.unit == "episodes" else plan.num_envs
        workers = min(cores(), useful) if config.n_workers == "auto" else config.n_workers
        given["max_pending"] = pending_for(
            plan, 1 if config.method in ("sync", "native") else workers, max_staleness
        )
    try:
        collector = make_collector(
            config.method,
            plan,
            log=log,
            **given,
        )
    except (ValueError, TypeError, ImportError) as error:
        raise TrainError(f"--collect {config.method}: {error}") from None
    except CollectError as error:
        # The environment's own faults end a run as they do later on.
        if error.traceback or str(error).startswith(plan.env.id):
            raise
        raise TrainError(f"--collect {config.method}: {error}") from None
    if config.method != "auto":
        faster = (
            f"; {plan.env.id} is compiled: --collect native plays it in threads, several times as fast"
            if collector.name != "native" and is_native(plan.env)
            else ""
        )
        log(f"collecting with {collector.name!r}{faster}")
    return collector
