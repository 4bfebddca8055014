"""How a run collects: the settings that say so, and the collector that they ask for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
from pydantic import Field
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.env_runner import resumed
from fastrl.collectors.factory import is_native, make_collector
from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.fragment_stream import pending_for
from fastrl.collectors.protocol import CollectError, Collector, Failure, Plan, Report
from fastrl.collectors.resources import cores
from fastrl.collectors.running import RunningEpisode, RunningEpisodes
from fastrl.envs.spec import EnvSpec
from fastrl.networks.compiled_actor import ActorSpec
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
    """One environment, in this process, to see what it is like.

    Raises:
        TrainError: there is none of that name, or what makes it cannot be called with its options.
        CollectError: it raised while it was built; with the traceback of its own code.
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
    """After how many steps an episode that is collected whole ends at the latest."""
    own = None if env.spec is None else env.spec.max_episode_steps
    return config.max_episode_steps or own or EPISODE_STEPS


def make_plan(
    config: CollectConfig,
    spec: EnvSpec,
    actor_spec: ActorSpec,
    *,
    obs_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    num_envs: int,
    num_steps: int,
    episode_steps: int,
    seed: int,
    action_masks: bool = False,
    episode_info: tuple[str, ...] = (),
) -> Plan:
    """What is to be collected.

    Args:
        actor_spec: of the algorithm.
        num_steps: of each row between updates.
        episode_steps: after which a whole episode is cut off.
        others: as of `fastrl.collectors.protocol.Plan`.

    Raises:
        TrainError: spaces that cannot be collected from.
    """
    whole = config.episodes_per_update > 0
    try:
        return Plan(
            env=spec,
            make_actor=actor_spec,
            obs_space=obs_space,
            action_space=action_space,
            num_envs=num_envs,
            num_steps=episode_steps if whole else num_steps,
            unit="episodes" if whole else "steps",
            episodes=config.episodes_per_update,
            seed=seed,
            action_masks=action_masks,
            episode_info=episode_info,
        )
    except ValueError as error:
        raise TrainError(f"--env {spec.id}: {error}") from None


class Publisher:
    """Gives a collector the weights of an algorithm's policy."""

    def __init__(self, algorithm: Algorithm[Any], collector: Collector) -> None:
        self._algorithm, self._collector = algorithm, collector
        self._buffer = np.zeros(algorithm.weights_nbytes // 4, np.float32)

    def publish(self) -> int:
        """As they are now; returns the version."""
        self._algorithm.write_weights(self._buffer)
        return self._collector.publish(self._buffer)


def open_collector(config: CollectConfig, plan: Plan, console: Console, max_staleness: int = 0) -> Collector:
    """The collector that the settings ask for, started.

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


def collector_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A collector's state for a checkpoint, whose keys are text."""
    numbers, running = state["numbers"], state["running"]
    begun = list(running.values())
    return {
        "version": state["version"],
        "env_indices": torch.tensor(list(numbers), dtype=torch.int64),
        "numbers": torch.tensor(list(numbers.values()), dtype=torch.int64),
        "running": {
            "env_indices": torch.tensor(list(running), dtype=torch.int64),
            # Bytes of each one's actions and observation.
            "sizes": torch.tensor([list(map(len, each)) for each in begun], dtype=torch.int64).reshape(-1, 2),
            "actions": b"".join(each.actions for each in begun),
            "obs": b"".join(each.obs for each in begun),
        },
    }


def state_of_collector(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `collector_state`.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    env_indices, numbers = saved["env_indices"].tolist(), saved["numbers"].tolist()
    running = {}
    # Fastrl 0.1 kept no actions.
    if kept := saved.get("running"):
        actions, obs = memoryview(kept["actions"]), memoryview(kept["obs"])
        for env_index, (length, shown) in zip(
            kept["env_indices"].tolist(), kept["sizes"].tolist(), strict=True
        ):
            running[env_index] = RunningEpisode(bytes(actions[:length]), bytes(obs[:shown]))
            actions, obs = actions[length:], obs[shown:]
    return {
        "version": saved["version"],
        "numbers": dict(zip(env_indices, numbers, strict=True)),
        "running": running,
    }


def check_collected(plan: Plan, saved: Mapping[str, Any]) -> None:
    """Refuses a checkpoint's state of a collector that no collector of the plan could go on from.

    Raises:
        ValueError, KeyError
    """
    state = state_of_collector(saved)
    if plan.unit == "steps":
        env_indices = range(plan.num_envs)
        RunningEpisodes(plan, env_indices).load(resumed(state, env_indices), state["running"])


def load_collected(collector: Collector, saved: Mapping[str, Any], console: Console) -> None:
    """Has a collector go on from a checkpoint's state, and tells which episodes are not in it."""
    state = state_of_collector(saved)
    collector.load_state_dict(state)
    lacking = len(state["numbers"]) - len(state["running"])
    if collector.plan.unit == "steps" and lacking:
        total = len(state["numbers"])
        line = f"{lacking} of {total} running episodes begin anew: the checkpoint does not have their actions"
        console.print(line, highlight=False, soft_wrap=True)


def print_diverged(plan: Plan, before: Report, report: Report, console: Console) -> None:
    """Says that episodes could not be gone on with, where that has happened between two reports."""
    if report.diverged > before.diverged:
        console.print(
            f"{report.diverged} of {plan.num_envs} running episodes began anew: the same seed and actions led"
            f" elsewhere than before, so {plan.env.id} is not deterministic",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )


def spent(
    own: Mapping[str, float], before: Report, report: Report
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the learner and of the workers by part, between two reports of the collector.

    Args:
        own: of the learner, who had the collector collect while it was ``waiting``.
    """
    collected = {name: seconds - before.seconds.get(name, 0.0) for name, seconds in report.seconds.items()}
    if report.workers:
        return dict(own), collected
    # The learner's own process played: it waited for nobody.
    parts = {name: seconds for name, seconds in own.items() if name != "waiting"}
    for name in ("environment", "inference", "buffer"):
        parts[name] = parts.get(name, 0.0) + collected.get(name, 0.0)
    return parts, {}


class FailureReporter:
    """Tells of workers' failures as they happen: a line each, the traceback of each cause once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._causes: set[str] = set()

    def tell(self, failures: Sequence[Failure]) -> None:
        """Of those that have not been told yet."""
        for failure in failures[self._told :]:
            line = f"worker {failure.worker} failed at {failure.task}: {failure.cause}; it goes on"
            if failure.cause not in self._causes and failure.traceback:
                line = f"{failure.traceback.rstrip()}\n{line}"
            self._causes.add(failure.cause)
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)
        self._told = len(failures)
