"""Steps environments of many agents in a worker, as `fastrl.collectors.env_runner.EnvRunner` does those of one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastrl.collectors.env_runner import PARTS, Arrays, EnvRunner, FragmentMeta
from fastrl.collectors.failures import Failures
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.team_backend import TeamBackend
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.vector_runner import EndedEpisode, VectorEnvRunner, meta_of
from fastrl.networks.compiled_actor import Actor
from fastrl.utils.seeding import NO_ENV


class TeamRunner:
    """As `EnvRunner`, for a plan of many agents: the loop of collectors in lockstep, over the worker's environments.

    Args and attributes: as of `EnvRunner`.
    """

    def __init__(self, plan: Plan, env_indices: Sequence[int] = (), stop: memoryview | None = None) -> None:
        self.plan = plan
        whole = plan.unit == "episodes"
        self.env_indices = np.asarray((NO_ENV,) if whole else env_indices, np.int64)
        first = plan.first_env if whole else int(self.env_indices[0])
        self._own = dataclasses.replace(plan, num_envs=len(self.env_indices), first_env=first)
        self.numbers = [0] * len(self.env_indices)
        self.running: Sequence[RunningEpisode] = ()
        self.restarted: tuple[int, ...] = ()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.closing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._stop = memoryview(b"\0") if stop is None else stop
        self._actor: Actor | None = None
        self._runner: VectorEnvRunner | None = None

    @property
    def actor(self) -> Actor:
        if self._actor is None:
            self._actor = self.plan.make_actor()
        return self._actor

    def build(self) -> None:
        """See `EnvRunner.build`."""
        if self._runner is not None:
            return
        spec = self._own.env
        assert isinstance(spec, TeamSpec), "the plan is of many agents"
        backend = TeamBackend(self._own, spec.make_team(self._own.num_envs, workers=1))
        self._runner = VectorEnvRunner(self._own, backend, self.actor, Failures(1))

    def load(self, weights: Any) -> None:
        """Loads weights into the actor."""
        self.actor.load(weights)

    def run_steps(self, out: Arrays) -> FragmentMeta:
        """See `EnvRunner.run_steps`."""
        with self._running() as runner:
            runner.running, self.running = self.running or runner.running, ()
            runner.numbers[:] = self.numbers
            ends = runner.run_steps(out)
            self.numbers, self.restarted = runner.numbers.tolist(), tuple(runner.restarted)
        return meta_of(self.plan.num_steps, ends)

    def run_episode(self, number: int, out: Arrays) -> FragmentMeta:
        """See `EnvRunner.run_episode`."""
        found: list[EndedEpisode] = []
        with self._running() as runner:
            runner.run_episodes(range(number, number + 1), found.extend)
        [episode] = found
        length = len(episode.arrays["rewards"])
        for name, array in episode.arrays.items():
            out[name][: len(array)] = array
        return FragmentMeta(length, [episode.total], [length], [(NO_ENV, number)], [episode.info])

    @contextlib.contextmanager
    def _running(self) -> Iterator[VectorEnvRunner]:
        """The loop; environments are closed where it raises, and its seconds counted."""
        self.build()
        runner = self._runner
        assert runner is not None
        runner.stop = self._stop
        try:
            yield runner
        except CollectError as error:
            self.close()
            # An error of a user's environment costs a worker its task only.
            raise error.__cause__ or error from None
        except BaseException:
            self.close()
            raise
        for part, seconds in runner.seconds.items():
            self.seconds[part] += seconds
            runner.seconds[part] = 0.0

    def close(self) -> None:
        """See `EnvRunner.close`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            with self.closing():
                runner.backend.close()


def runner_of(
    plan: Plan, env_indices: Sequence[int] = (), stop: memoryview | None = None
) -> EnvRunner | TeamRunner:
    """The runner of a plan's environments; see `EnvRunner`."""
    return (EnvRunner if plan.num_agents is None else TeamRunner)(plan, env_indices, stop)
