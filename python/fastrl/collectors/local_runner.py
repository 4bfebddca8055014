"""Steps the environments of a worker in its own process, for the collectors "sequential", "executor", "ray"
and "live"."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.collectors.failures import Failures
from fastrl.collectors.fragment_arrays import Arrays, FragmentMeta, Step
from fastrl.collectors.local_backend import LocalBackend
from fastrl.collectors.protocol import ACTIVITIES, CollectError, Difficulty, Plan
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.vector_backends import VectorBackend
from fastrl.collectors.vector_runner import VectorEnvRunner
from fastrl.envs.contract import ContractError
from fastrl.networks.compiled_actor import Actor
from fastrl.utils.seeding import NO_ENV

if TYPE_CHECKING:
    from fastrl.collectors.team_backend import TeamBackend


class LocalRunner:
    """Steps some environments of a plan T steps at a time, or runs whole episodes, by the plan's unit.

    Episodes follow from ``fastrl.utils.seeding`` in any process. Environments and actor are built at the first use, and
    environments again after an error: the steps since the last fragment are then lost, and the running episodes are
    restarted.

    Args:
        env_indices: consecutive environment indices; empty with unit "episodes", where one environment runs any
            episode.
        stop: a byte of shared memory; `fastrl.collectors.protocol.Stopped` is raised before the next step once it is
            not 0.
        threads: of environments of many agents; None: as many as their options say.

    Attributes:
        env_indices: int64 [R], of the rows.
        episode_numbers: of their running episodes; may be set before the first fragment.
        running: the running episodes to resume; may be set before the first fragment, which then replays them.
        restarted: rows whose running episodes were restarted with the last fragment, as replaying them diverged.
        seconds: by `ACTIVITIES`.
        closing: a context in which environments are closed; does nothing unless set.
    """

    def __init__(
        self,
        plan: Plan,
        env_indices: Sequence[int] = (),
        stop: memoryview | None = None,
        *,
        threads: int | None = 1,
    ) -> None:
        self.plan, self._threads = plan, threads
        whole = plan.unit == "episodes"
        self.env_indices = np.asarray((NO_ENV,) if whole else env_indices, np.int64)
        first = plan.first_env if whole else int(self.env_indices[0])
        self._own = dataclasses.replace(plan, num_envs=len(self.env_indices), first_env=first)
        self.episode_numbers = [0] * len(self.env_indices)
        self.running: Sequence[RunningEpisode] = ()
        self._difficulty: tuple[int, Difficulty | None] = 0, None
        self.restarted: tuple[int, ...] = ()
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self.closing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._stop = memoryview(b"\0") if stop is None else stop
        self._actor: Actor | None = None
        self._runner: VectorEnvRunner | None = None
        self._team: TeamBackend | None = None

    @property
    def actor(self) -> Actor:
        if self._actor is None:
            self._actor = self.plan.make_actor()
        return self._actor

    def build(self) -> VectorEnvRunner:
        """Builds environments and actor, unless there are some. Collecting does so by itself.

        Raises:
            CollectError: the environment's spaces are not those that the learner expects.
            Exception: whatever environment and actor raise.
        """
        if self._runner is not None:
            return self._runner
        start = perf_counter()
        plan, actor = self._own, self.actor
        backend: VectorBackend
        if isinstance(plan.env, TeamSpec):
            from fastrl.collectors.team_backend import TeamBackend

            backend = self._team = TeamBackend(plan, workers=self._threads)
        else:
            backend = LocalBackend(plan)
        self._runner = runner = VectorEnvRunner(plan, backend, actor, Failures(1))
        runner.stop, runner.seconds = self._stop, self.seconds
        try:
            if isinstance(backend, LocalBackend):
                backend.build()
            else:
                backend.set_difficulty(*self._difficulty)
        except BaseException:
            self.close()
            raise
        finally:
            self.seconds["environment"] += perf_counter() - start
        return runner

    def load(self, weights: Any) -> None:
        """Loads weights into the actor."""
        start = perf_counter()
        self.actor.load(weights)
        self.seconds["weights"] += perf_counter() - start

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        """See `fastrl.collectors.protocol.Collector`. Does nothing where environments are a single agent's."""
        self._difficulty = level, difficulty
        if self._team is not None:
            self._team.set_difficulty(level, difficulty)

    def collect(
        self, out: Arrays, number: int | None = None, views: Sequence[Step] | None = None
    ) -> FragmentMeta:
        """Collects the next T steps of every environment, or the whole episode of a number.

        Args:
            out: of `fastrl.collectors.fragment_arrays.arrays_for`; written.
            views: of its steps, see `VectorEnvRunner.run_steps`.
        """
        runner = self._runner or self.build()
        try:
            if number is not None:
                return runner.run_episode(number, out)
            return self._collect(runner, out, views)
        except ContractError as error:
            self.close()
            # A retry would fail again.
            raise CollectError(str(error)) from None
        except CollectError as error:
            self.close()
            # The backend of many agents wraps errors of the user's environment, which cost a worker its task only.
            cause = None if isinstance(runner.backend, LocalBackend) else error.__cause__
            raise cause or error from None
        except BaseException:
            self.close()
            raise

    def _collect(self, runner: VectorEnvRunner, out: Arrays, views: Sequence[Step] | None) -> FragmentMeta:
        if self.running:
            runner.running, self.running = self.running, ()
        runner.episode_numbers[:] = self.episode_numbers
        meta = runner.run_steps(out, views)
        self.restarted = tuple(runner.restarted)
        if meta.ends:
            self.episode_numbers = runner.episode_numbers.tolist()
        return meta if self._team is None else meta._replace(difficulties=self._team.difficulties())

    def take_seconds(self) -> tuple[float, ...]:
        """The seconds since the last call, by `ACTIVITIES`."""
        taken = tuple(self.seconds.values())
        self.seconds.update(dict.fromkeys(ACTIVITIES, 0.0))
        return taken

    def close(self) -> None:
        """Closes the environments. Later fragments build new ones and restart the running episodes."""
        runner, self._runner, self._team = self._runner, None, None
        if runner is not None:
            with self.closing():
                runner.backend.close()
