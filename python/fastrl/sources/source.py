"""Base of what brings the trainer experience."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm, LearnsFrom, Problem
from fastrl.collectors.protocol import Report
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Number
from fastrl.utils.ranks import ALONE, Ranks
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from fastrl.envs.adapters.parallel_copy import ParallelForm


class Source(ABC):
    """Brings an algorithm what it learns from: rollouts of a collector, minibatches of a replay.

    It is made with settings, describes the `Problem` that an algorithm is built for, and is given that algorithm by
    `attach`. It runs as a context: workers start with it and end with it. Its state can be saved and loaded whether it
    runs or not.

    Class attributes:
        brings: what algorithms learn from it, see `fastrl.algorithms.protocol.Algorithm.learns_from`.

    Attributes:
        collector: name of what steps the environments.
        env_id: of the environment.
        episode_steps: after which an episode ends at the latest; the run's length in steps is estimated by it where the
            goal is in episodes.
        obs_space, action_space: of the problem.
        env_actions: the environment's own action space; None: it is the problem's.
        num_envs: environments that are stepped.
        num_agents: of each environment; None: they are a single agent's.
        form: of a parallel environment of PettingZoo; None: it is another one.
        opponents: of its agents, by name, and their weights in the draw; empty: there are none.
        ranks: that train together; each brings the same experience. Set before `attach`.
        updates: that the algorithm makes with the last experience.
    """

    brings: ClassVar[LearnsFrom]
    env_actions: Space[Any] | None = None
    form: "ParallelForm | None" = None
    opponents: "Mapping[str, float]" = MappingProxyType({})
    ranks: Ranks = ALONE
    updates = 1
    num_agents: int | None = None
    collector: str
    env_id: str
    episode_steps: int
    obs_space: Space[Any]
    action_space: Space[Any]
    num_envs: int

    @property
    @abstractmethod
    def steps(self) -> int:
        """Environment steps taken so far, by earlier sessions too; samples learned from of a data set."""

    @property
    def goal(self) -> tuple[int, str] | None:
        """Length of the run, and its unit, where the source decides it; None: the settings do."""
        return None

    @property
    def rounds(self) -> tuple[int, str] | None:
        """Count by which evaluations are due, and its unit, where that is not episodes."""
        return None

    def problem(self, total_timesteps: int, seed: int) -> Problem:
        """Spaces and sizes that the algorithm is built for, on the CPU."""
        spaces, num_agents = (self.obs_space, self.action_space), self.num_agents or 1
        return Problem(*spaces, self.num_envs, total_timesteps, num_agents=num_agents, seed=seed)

    def sampled_rows(self) -> NDArray[Any]:
        """Rows [K, size] of observations of an environment of its own, to try networks of the user's on; none by
        default."""
        return np.zeros((0, 0), np.float32)

    def check_ranks(self) -> None:
        """Refuses `ranks` that cannot have the same experience each.

        Raises:
            TrainError: the message says what can be done.
        """
        raise TrainError(f"--ranks {self.ranks.count}: {self.env_id} is stepped by one process alone here")

    @abstractmethod
    def attach(self, algorithm: Algorithm[Any]) -> None:
        """Gives it the algorithm that the experience is for, once, before it runs."""

    def expect(self, algorithm: Algorithm[Any]) -> None:
        """Refuses an algorithm that learns from something else.

        Raises:
            TrainError
        """
        if algorithm.learns_from != self.brings:
            raise TrainError(f"{algorithm.name} learns from {algorithm.learns_from}, these are {self.brings}")

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027 - nothing to end for some sources
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @abstractmethod
    def next(self, watch: Stopwatch) -> Any | None:
        """Experience for the next update, valid until the next call; None if there is nothing yet, after a short time.
        The newest weights act.

        Raises:
            CollectError: environments or workers fail again and again.
        """

    def feedback(self, result: Any) -> None:  # noqa: B027 - most sources ask for nothing
        """Takes what the algorithm's update returned for the last experience."""

    @abstractmethod
    def take_episodes(self) -> Episodes:
        """Episodes that have ended since the last call."""

    def choices(self) -> Mapping[str, object]:
        """Values in place of "auto" in its settings, by dotted key; known once it runs."""
        return {}

    def report(self) -> Report:
        """Account of collection and of its time since this session started."""
        return Report()

    def metrics(self) -> Mapping[str, Number]:
        """Metrics that it adds to a row, by names such as ``collect/staleness``; asked once for each row."""
        return {}

    def summary(self) -> Mapping[str, Any]:
        """Entries for a run's summary, JSON values by name. Also after it has run."""
        return {}

    def lines(self) -> list[str]:
        """Lines for people with what `summary` has; none where there is nothing to show."""
        return []

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs: nested dicts with string keys, of tensors, bytes and JSON values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes where the other source stood; called after `attach`, before it runs.

        Raises:
            ValueError, KeyError: the state is of other settings, or damaged.
        """

    def start_stage(self, state: Mapping[str, Any]) -> None:
        """Counts on from the state of the source of the stage before; environments restart.

        Raises:
            ValueError: it cannot.
        """
        raise ValueError("this collector has no stages")

    def save_files(self, directory: Path) -> None:  # noqa: B027 - checkpoints hold all of most sources
        """Writes what is too large for checkpoints into the run directory. Called at the end of a session, after it has
        run; none of it is needed to resume, though a resumed run may differ without it."""

    def load_files(self, directory: Path) -> None:  # noqa: B027 - as `save_files`
        """Loads what `save_files` has written there, if there is anything. Called before `load_state_dict`.

        Raises:
            TrainError: files that are damaged or of other settings.
        """

    def take_over(self, other: Self) -> None:  # noqa: B027 - as `save_files`
        """Takes what `save_files` would write from a source of the same run that has ended, without files. Called
        before `load_state_dict`."""
