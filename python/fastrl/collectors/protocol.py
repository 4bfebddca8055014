"""The plan of what to collect, and the protocol of collectors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, ValuingActor, moved
from fastrl.rollout.fragment import Fragment

if TYPE_CHECKING:
    from fastrl.envs.spec import EnvSpec

Unit = Literal["steps", "episodes"]


ACTIVITIES = ("environment", "inference", "buffer", "weights", "waiting")
"""Names of what time goes to, in `Report`."""

UNPUBLISHED = "no weights yet: publish some before anything is collected with them"


class Stopped(Exception):  # noqa: N818 - no error: the runner ends
    """The collector is closed while its environments are stepped."""


class CollectError(RuntimeError):
    """Nothing can be collected, for the reason in the message; ``traceback`` is the worker's, if it had one."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Difficulty(NamedTuple):
    """Arguments of ``MultiAgentVectorEnv.set_difficulty``, and of methods of ``OpponentVectorEnv``.

    Attributes:
        num_agents: agents that an episode starts with.
        density: of the traffic around them. NaN of both: they are as they are.
        opponents: their weights in the draw, as of ``set_weights``; empty: they are as they are.
        snapshots: that their pool has had so far, as of ``set_pool``; 0: they have no pool.
    """

    num_agents: float = math.nan
    density: float = math.nan
    opponents: tuple[float, ...] = ()
    snapshots: int = 0


@dataclass(frozen=True)
class Plan:
    """Description of what to collect; it pickles.

    Attributes:
        env: builds an environment.
        make_actor: makes the actor that chooses actions.
        obs_space, action_space: of one environment, as the learner expects them; of any kind that has rows (see
            `fastrl.envs.rows`). Environments are made to give rows, and ``action_space`` becomes the flat one.
        num_envs: R, environments in all workers together.
        num_agents: A, agents of each environment, whose ``env`` is a `fastrl.collectors.team_spec.TeamSpec`; None: the
            environment is a single agent's. Spaces are then those of an agent.
        first_env: index of the first of them; other ranks have those before it.
        num_steps: T. With unit "steps", the steps of a fragment; with "episodes", the longest episode: longer ones are
            truncated.
        unit: "steps": fragments of T steps of each environment. "episodes": fragments of one whole episode each.
        episodes: with unit "episodes", how many an update learns from.
        seed: of everything random.
        squash: actions of a Box are squashed (see `fastrl.networks.action_space.Actions`).
        action_masks: whether actors choose only among the actions that the environment allows: by its method
            ``action_masks()``, or by ``info["action_mask"]``: bool [n] for discrete actions; for multi-discrete ones
            the choices of all numbers side by side, bool [sum of nvec]. An agent of many has it in its info, or else in
            its observation, a Dict.
        final_masks: with ``action_masks``, the masks of the last observations of truncated episodes are needed, too.
        episode_info: keys of infos whose numbers at the end of each episode go to ``Fragment.episode_info``.
        actor_device: where actors of the learner's own process compute, if PyTorch computes them; workers' on the CPU.
        obs_rows: storage of observations.
        actions: as actors draw them.
        reward_dtype: of the rewards in fragments, of all plans of a class.

    Raises:
        ValueError: a size below 1, masks of actions that are no choices, or spaces that cannot be collected from; the
            message says what can.
    """

    env: EnvSpec
    make_actor: Callable[[], Actor]
    obs_space: Space[Any]
    action_space: Space[Any]
    num_envs: int
    num_steps: int
    unit: Unit = "steps"
    episodes: int = 0
    seed: int = 0
    squash: bool = False
    action_masks: bool = False
    final_masks: bool = False
    episode_info: tuple[str, ...] = ()
    actor_device: str = "cpu"
    first_env: int = 0
    num_agents: int | None = None
    obs_rows: ObsRows = field(init=False, repr=False, compare=False)
    actions: Actions = field(init=False, repr=False, compare=False)
    reward_dtype: ClassVar[type[np.floating]] = np.float32

    def __post_init__(self) -> None:
        self._check_numbers()
        flat_space = ActionRows(self.action_space).flat_space
        self._derive(
            env=self.env.as_rows(),
            action_space=flat_space,
            obs_rows=ObsRows(self.obs_space),
            actions=Actions(flat_space, self.squash),
        )
        self._check_masks()

    def _check_numbers(self) -> None:
        for name in ("num_envs", "num_steps", *(("episodes",) if self.unit == "episodes" else ())):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.unit not in ("steps", "episodes"):
            raise ValueError(f"unit should be 'steps' or 'episodes', got {self.unit!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed should be from 0 to 2**63 - 1, got {self.seed}")

    def _derive(self, **values: Any) -> None:
        for name, value in values.items():
            # The constructor of a frozen dataclass sets attributes in this way.
            object.__setattr__(self, name, value)

    def _check_masks(self) -> None:
        if self.action_masks and self.actions.is_box:
            raise ValueError(
                f"action_masks are for discrete actions, the environment's are {self.action_space}"
            )

    def make_local_actor(self) -> Actor:
        """Makes an actor for the learner's own process, on `actor_device`."""
        return moved(self.make_actor(), self.actor_device)

    @property
    def env_indices(self) -> range:
        """Indices of the environments."""
        return range(self.first_env, self.first_env + self.num_envs)

    @property
    def agents(self) -> tuple[int, ...]:
        """The axis of agents in arrays by environment: (A,), or () of a single agent's environment."""
        return () if self.num_agents is None else (self.num_agents,)

    @property
    def num_masked(self) -> int:
        """Width of an action mask; 0 without masks."""
        return self.actions.size if self.action_masks else 0

    @property
    def obs_dim(self) -> int:
        """D: observations are rows [D] of the dtype ``obs_rows.dtype``."""
        return self.obs_rows.size

    @functools.cached_property
    def state_size(self) -> int:
        """Length of the actor's state in each environment, or of each of its agents; 0 without memory."""
        return self.make_actor().state_size

    @functools.cached_property
    def has_values(self) -> bool:
        """The actor gives values of observations, which fragments keep."""
        return isinstance(self.make_actor(), ValuingActor)

    def zero_states(self, rows: int) -> NDArray[np.float32] | None:
        """States of the actor at the start of episodes, float32 [rows, state_size], of many agents
        [rows, A, state_size]; None without memory."""
        return np.zeros((rows, *self.agents, self.state_size), np.float32) if self.state_size else None


def partition_envs(plan: Plan, workers: int) -> list[range]:
    """The environment indices of each worker; empty with unit "episodes", where any worker runs any episode."""
    if plan.unit == "episodes":
        return [range(0)] * workers
    indices = plan.env_indices
    return [indices[part.start : part.stop] for part in even_ranges(plan.num_envs, workers)]


def even_ranges(num_envs: int, workers: int) -> list[range]:
    """Consecutive environment indices for each worker, as even in number as possible."""
    ends = [num_envs * i // workers for i in range(workers + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def expect_spaces(plan: Plan, obs_space: Space[Any], action_space: Space[Any]) -> None:
    """Refuses an environment in rows whose spaces are not those that the learner expects.

    Raises:
        CollectError
    """
    for what, expected, found in (
        ("observation", plan.obs_rows.row_space, obs_space),
        ("action", plan.action_space, action_space),
    ):
        if found != expected:
            raise CollectError(
                f"env: the {what} space of {plan.env.id} is {found}, but the learner expects {expected};"
                " it should be built from the same environment, with the same options"
            )


@dataclass(frozen=True)
class Failure:
    """An error in a worker that cost a task.

    Attributes:
        worker: its index.
        task: its task, in words.
        cause: one line: an exception, "killed by SIGKILL", "no answer for 30 s".
        traceback: the worker's own; empty if it left none.
        at: seconds since the collector started.
    """

    worker: int
    task: str
    cause: str
    traceback: str
    at: float


@dataclass(frozen=True)
class Report:
    """Account of a collector since it was made.

    Attributes:
        steps, episodes: collected; an episode counts when it has ended.
        workers: processes or Ray actors, or threads that collect while the learner learns; 0 where the learner's
            process collects while the learner waits.
        failures: of workers, in order.
        restarts: workers that were replaced.
        dropped: fragments that were not taken in time.
        diverged: running episodes of the loaded state that were restarted, because replaying their seeds and actions
            led to another observation: the environment is not deterministic.
        cold_start: seconds until the first worker had built its environment.
        memory_mib: of each worker's process, now; empty without workers.
        seconds: of workers (or the learner's process), summed over them, by part: ``environment``, ``inference``
            (choosing actions), ``buffer`` (rewards and storing), ``weights`` (reading them), ``waiting``.
        overlap_seconds: seconds that workers collected while the learner did not wait for them, summed over workers;
            None where that is not measured.
        metrics: further numbers of this kind of collector, by name.
    """

    steps: int = 0
    episodes: int = 0
    workers: int = 0
    failures: tuple[Failure, ...] = ()
    restarts: int = 0
    dropped: int = 0
    diverged: int = 0
    cold_start: float = 0.0
    memory_mib: tuple[float, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    overlap_seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Collector(Protocol):
    """Collects what a plan says; a context that closes it at its end.

    With `collect`, the fragments depend on the plan and the published weights alone; not on the kind of collector, nor
    on its workers. Those of a live simulation depend on the time, too.
    """

    name: str
    plan: Plan
    version: int

    def publish(self, weights: Any) -> int:
        """Publishes new weights, a contiguous buffer that ``Actor.load`` reads. Returns their version: 1, 2, ..."""
        ...

    def collect(self) -> list[Fragment]:
        """Collects one update's worth with the newest weights, ordered by environment index and number. Arrays are
        valid until the next call, and perhaps read-only.

        Unit "steps": T steps of every environment, whose episodes continue from one call to the next. Unit "episodes":
        the next ``plan.episodes`` episodes.

        Raises:
            CollectError: the same task failed too often.
        """
        ...

    def take(self, timeout: float | None = None) -> Fragment | None:
        """Returns the next finished fragment while workers continue, each fragment by the newest weights at its start.
        The caller owns its arrays. None if there is none within ``timeout`` seconds, or `limit` allows no more.

        Raises:
            CollectError: the same task failed too often.
        """
        return next(iter(self.take_many(1, timeout)), None)

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        """Returns up to ``most`` finished fragments, those that are there; otherwise as `take`, with an empty list for
        None. Many short episodes cost less than one by one."""
        ...

    def limit(self, end: int) -> None:
        """Makes `take` start no episode with this number or a higher one, with unit "episodes". It may be called again
        with a higher number; by default there is no limit."""
        ...

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        """Sets the difficulty of the episodes that start from now on; those that workers were given before `take` keep
        theirs. For environments of many agents.

        Args:
            level: its number, in the infos of these episodes.
            difficulty: None: as it is.

        Raises:
            NotImplementedError: that of the environments is fixed.
        """
        ...

    def report(self) -> Report: ...

    def state_dict(self) -> dict[str, Any]:
        """``{"numbers": {env_index: number}, "running": {env_index: RunningEpisode}, "version": version}``.

        With unit "steps" the numbers are those of the running episodes, and each
        `fastrl.collectors.running.RunningEpisode` has the actions taken so far; too long ones are left out. With
        "episodes" there is the number of the next episode, and none is running.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes where another collector of any kind stopped, before anything is collected: its running episodes are
        replayed before the first fragment. Episodes that diverge, or are not in the state, are restarted.

        Raises:
            ValueError: the state is of another plan.
        """
        ...

    def close(self) -> None:
        """Stops workers and frees shared memory. May be called again."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
