"""What is to be collected, and the one protocol of those who collect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from fastrl.networks.action_space import Actions
from fastrl.rollout.fragment import Fragment

if TYPE_CHECKING:
    from fastrl.envs.spec import EnvSpec
    from fastrl.networks.compiled_actor import Actor

Unit = Literal["steps", "episodes"]


class CollectError(RuntimeError):
    """Nothing can be collected, for a reason that is told; ``traceback`` is that of the worker, if it had one."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


@dataclass(frozen=True)
class Plan:
    """What to collect. It pickles, for processes that collect.

    Attributes:
        env: how an environment is built.
        make_actor: makes what chooses the actions.
        obs_space, action_space: of one environment, as the learner expects them.
        num_envs: rows, R: environments that are played, wherever they are.
        num_steps: T. With unit "steps", of a fragment; with "episodes", the longest episode: a longer one is truncated.
        unit: whether rows are played on for T steps at a time, or whole episodes, one after the other.
        episodes: with unit "episodes", how many make one update's worth.
        seed: of everything random.
        action_masks: whether the environment says which actions it allows, and actors choose among those alone: by its
            method ``action_masks()``, bool [num_actions], or by ``info["action_mask"]``.
        episode_info: keys of infos, whose numbers at the end of each episode fragments have in ``episode_info``.

    Raises:
        ValueError: a size below 1, masks of actions that are not discrete, or spaces that cannot be collected from; the
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
    action_masks: bool = False
    episode_info: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_envs", "num_steps", *(("episodes",) if self.unit == "episodes" else ())):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.unit not in ("steps", "episodes"):
            raise ValueError(f"unit should be 'steps' or 'episodes', got {self.unit!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed should be from 0 to 2**63 - 1, got {self.seed}")
        check_spaces(self.obs_space, self.action_space)
        if self.action_masks and not isinstance(self.action_space, Discrete):
            raise ValueError(
                f"action_masks are for discrete actions, the environment's are {self.action_space}"
            )

    @property
    def num_masked(self) -> int:
        """Width of an action mask; 0 without masks."""
        return int(self.action_space.n) if self.action_masks else 0  # type: ignore[attr-defined]

    @property
    def obs_dim(self) -> int:
        """D: observations are flattened to float32 [D]."""
        return int(np.prod(self.obs_space.shape or ()))

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action: () for discrete ones (int64), (n,) for float32 [n]."""
        return () if isinstance(self.action_space, Discrete) else tuple(self.action_space.shape or ())


def check_spaces(obs_space: Space[Any], action_space: Space[Any]) -> None:
    """Refuses spaces that no collector handles.

    Raises:
        ValueError
    """
    spaces: dict[str, Any] = {"observation_space": obs_space, "action_space": action_space}
    for name, space in spaces.items():
        if not isinstance(space, Space):
            kind = f"{type(space).__module__}.{type(space).__name__}"
            raise ValueError(
                f"{name} should be one of gymnasium.spaces, got a {kind}; of an environment of the old Gym"
                " shimmy.GymV21CompatibilityV0 makes one of Gymnasium's"
            )
    if not isinstance(obs_space, Box):
        raise ValueError(
            f"observations should be a Box, of any shape; the environment's are {obs_space}:"
            " gymnasium.wrappers.FlattenObservation makes one of them"
        )
    Actions(action_space)


def shares(plan: Plan, workers: int) -> list[range]:
    """The rows that each worker plays, where rows have workers of their own; none with unit "episodes"."""
    if plan.unit == "episodes":
        return [range(0)] * workers
    ends = [plan.num_envs * i // workers for i in range(workers + 1)]
    return [range(ends[i], ends[i + 1]) for i in range(workers)]


def expect_spaces(plan: Plan, obs_space: Space[Any], action_space: Space[Any]) -> None:
    """Refuses an environment whose spaces are not those that the learner expects.

    Raises:
        CollectError
    """
    for what, expected, found in (
        ("observation", plan.obs_space, obs_space),
        ("action", plan.action_space, action_space),
    ):
        if found != expected:
            raise CollectError(
                f"env: the {what} space of {plan.env.id} is {found}, but the learner expects {expected};"
                " it should be built from the same environment, with the same options"
            )


@dataclass(frozen=True)
class Failure:
    """Something that went wrong in a worker, and cost a task.

    Attributes:
        worker: which.
        task: what it was doing, in words.
        cause: one line: an exception, "killed by SIGKILL", "no answer for 30 s".
        traceback: the worker's own; empty if it could not tell.
        at: seconds since the collector began.
    """

    worker: int
    task: str
    cause: str
    traceback: str
    at: float


@dataclass(frozen=True)
class Report:
    """What a collector has done since it was made.

    Attributes:
        steps, episodes: collected; an episode counts when it has ended.
        workers: processes or actors that play, or threads that go on while the learner learns; 0 where it plays itself,
            or has threads do so while it waits.
        failures: in order; restarts: workers that were replaced.
        begun_anew: running episodes of the state that it went on from that had to begin anew: their seeds and actions
            led elsewhere, so the environment is not deterministic.
        cold_start: seconds from the beginning until the first worker could play, with its environment built.
        memory_mib: of each worker's process, now; empty without any.
        seconds: what workers (or the learner) spent their time on, summed over them: ``environment``, ``inference``
            (choosing actions), ``buffer`` (rewards and storing), ``weights`` (reading them), ``waiting``.
        meanwhile: seconds that workers played while the learner did something else than wait here, summed over them;
            None where that is not measured.
    """

    steps: int = 0
    episodes: int = 0
    workers: int = 0
    failures: tuple[Failure, ...] = ()
    restarts: int = 0
    begun_anew: int = 0
    cold_start: float = 0.0
    memory_mib: tuple[float, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    meanwhile: float | None = None


class Collector(Protocol):
    """Plays a plan. Which episodes come out depends on the plan and the published weights alone, as long as they are
    asked for by `collect`; not on which collector it is, nor on its workers.
    """

    name: str
    plan: Plan
    version: int

    def publish(self, weights: Any) -> int:
        """Gives the actors new weights, a contiguous buffer their ``load`` takes. Returns the version: 1, 2, ..."""
        ...

    def collect(self) -> list[Fragment]:
        """One update's worth, by the newest version, ordered by lane and number. Arrays are valid until the next call.

        Unit "steps": T steps of every row, whose episodes go on from one call to the next. Unit "episodes": the next
        ``plan.episodes`` episodes.

        Raises:
            CollectError: the same task failed again and again.
        """
        ...

    def take(self, timeout: float | None = None) -> Fragment | None:
        """The next fragment that is finished, while the collector goes on, each by the newest version at its start. The
        caller owns its arrays. None if there is none within ``timeout`` seconds.

        Raises:
            CollectError: the same task failed again and again.
        """
        ...

    def report(self) -> Report: ...

    def state_dict(self) -> dict[str, Any]:
        """``{"numbers": {lane: number}, "running": {lane: Begun}, "version": version}``.

        With unit "steps" the numbers are those of the episodes that run, and `fastrl.collectors.running.Begun` has what
        has been played of them, but for those that are too long. With "episodes" there is the next episode's number,
        and none runs.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another collector stood, of any kind, before anything was collected: the actions of its running
        episodes are played again before the first fragment. Those that lead elsewhere, or are not in the state, begin
        anew.

        Raises:
            ValueError: the state is of another plan.
        """
        ...

    def close(self) -> None:
        """Ends workers, frees shared memory. May be called again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
