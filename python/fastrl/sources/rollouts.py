"""Rollouts from any collector, as experience for an algorithm that learns from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm, LearnsFrom, Problem
from fastrl.collectors.factory import check_suits
from fastrl.collectors.fragment_stream import FragmentStream, Staleness
from fastrl.collectors.protocol import CollectError, Collector, Failure, Plan, Report, even_ranges
from fastrl.collectors.resources import cores
from fastrl.collectors.running import check_saved, num_running, packed, unpacked
from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import facts_of, sampled_rows
from fastrl.rollout.fragment import Fragment, last_places
from fastrl.runs.episodes import NO_EPISODES, Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.metrics import counted, shares
from fastrl.runs.row import Number
from fastrl.sources.collecting import CollectConfig, open_collector
from fastrl.sources.source import Source
from fastrl.utils.output import quiet_console
from fastrl.utils.seeding import NO_ENV
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from rich.console import Console

# Staleness that no fragment has.
ANY_STALENESS = 2**62

# Seconds without a row of metrics while a live simulation has brought nothing to learn from.
LIVE_WAIT_S = 2.0

# Entries of a collector's state that are by environment index.
_OF_ENVS = ("numbers", "running")


class RolloutSource(Source):
    """Brings lists of fragments, an update's worth each.

    Args:
        spec: of the environment; one is built at once, to see its spaces.
        num_envs: environments that are stepped.
        collect: how.
        seed: of episodes and actions.
        console: gets lines about the collector and about failures of workers.
        episode_info: keys of the environment's info whose values at the end of an episode are kept.

    Raises:
        TrainError, CollectError: the environment cannot be built, or not collected from.
    """

    brings: ClassVar[LearnsFrom] = "rollouts"
    steps: int = 0

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        collect: CollectConfig,
        *,
        seed: int = 0,
        console: Console | None = None,
        episode_info: Sequence[str] = (),
    ) -> None:
        self.spec, self.num_envs, self.collect, self.seed = spec, num_envs, collect, seed
        self.env_id = spec.id
        self.collector: str = collect.collector
        self._console = console or quiet_console()
        self._episode_info = tuple(episode_info)
        self._see_env()
        # Of all ranks' environments.
        self._plan: Plan | None = None
        # Of the run; None: not known.
        self._total_steps: int | None = None
        # While the source runs: the collector, and the stream of its fragments.
        self._collector: Collector | None = None
        self._stream: FragmentStream | None = None
        # While it does not run: state for the next collector.
        self._saved: dict[str, Any] | None = None
        self._report = Report()
        # Failures and restarts of workers in earlier sessions.
        self._failures = self._restarts = 0
        self._staleness = Staleness()
        self._episodes: list[Episodes] = []

    @property
    def collected_steps(self) -> int:
        """Environment steps so far, also those that no update has learned from yet."""
        return self.steps

    def _see_env(self) -> None:
        """Builds an environment, and reads its spaces and the longest episode."""
        found = facts_of(self.spec, self.num_envs, self.collect.max_episode_steps)
        self.obs_space, self.action_space, self.env_actions, self.episode_steps, is_vector = found
        if is_vector:
            self.spec = dataclasses.replace(self.spec, is_vector=True)

    def sampled_rows(self) -> NDArray[Any]:
        return sampled_rows(self.spec, self.num_envs)

    def problem(self, total_timesteps: int, seed: int) -> Problem:
        self._total_steps = total_timesteps
        return super().problem(total_timesteps, seed)

    def attach(self, algorithm: Algorithm[Any]) -> None:
        self.expect(algorithm)
        whole = self.collect.episodes_per_update > 0
        self._algorithm = algorithm
        try:
            self._plan = Plan(
                env=self.spec,
                make_actor=algorithm.actor_spec(),
                obs_space=self.obs_space,
                action_space=self.action_space,
                num_envs=self.num_envs,
                num_steps=self.episode_steps if whole else self._num_steps(algorithm),
                unit="episodes" if whole else "steps",
                episodes=self.collect.episodes_per_update,
                seed=self.seed,
                squash=algorithm.squash_actions,
                actor_device=str(algorithm.device),
                action_masks=algorithm.action_masks,
                final_masks=algorithm.final_masks,
                episode_info=self._episode_info,
                num_agents=self.num_agents,
            )
        except ValueError as error:
            raise TrainError(f"--env {self.spec.id}: {error}") from None
        name = (
            "vector" if self.spec.is_vector and self.collect.collector == "auto" else self.collect.collector
        )
        if name != "auto":
            try:
                check_suits(name, self._plan)
            except (ValueError, CollectError) as error:
                raise TrainError(f"--collector {name}: {error}") from None

    def check_ranks(self) -> None:
        """They divide the environments."""
        count = self.ranks.count
        if self.collect.is_live:
            raise TrainError(
                f"--ranks {count}: there is one live simulation; leave out --ranks, or choose another --collector"
            )
        if self.spec.is_vector:
            raise TrainError(
                f"--ranks {count}: {self.spec.id} is a vector environment, which cannot be divided; give a function"
                " that makes a single environment"
            )
        if self.spec.is_local:
            raise TrainError(
                f"--ranks {count}: {self.spec.id} can be built by one process alone; give the import path of a function"
                " at the top of a module, 'my_module:make_env'"
            )
        if self.collect.episodes_per_update:
            raise TrainError(
                f"--ranks {count}: whole episodes are not divided among ranks; set --episodes-per-update to 0"
            )
        if self.num_envs < count:
            raise TrainError(f"--ranks {count}: {self.num_envs} environments are fewer than ranks")

    def _num_steps(self, algorithm: Algorithm[Any]) -> int:
        """Steps of each environment in a fragment."""
        return algorithm.num_steps

    def _max_staleness(self) -> int:
        """Versions that a fragment's policy may be behind the newest one."""
        return self._algorithm.max_staleness or (ANY_STALENESS if self.collect.is_live else 0)

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "attach() comes first"
        return self._plan

    def __enter__(self) -> Self:
        staleness = self._max_staleness()
        # Reports count from the start of a collector.
        self._failures, self._restarts = self._faults().values()
        self._report = Report()
        left = None if self._total_steps is None else self._total_steps - self.steps
        collector = open_collector(self._rank_collect(), self._rank_plan(), self._console, staleness, left)
        try:
            if self._saved is not None:
                self._resume(collector, self._saved)
        except BaseException:
            collector.close()
            raise
        self._collector, self.collector = collector, collector.name
        self._stream = FragmentStream(collector, staleness, LIVE_WAIT_S if self.collect.is_live else None)
        self._failure_lines = FailurePrinter(self._console)
        self._weights = np.zeros(self._algorithm.weights_nbytes, np.uint8)
        # The collector has the algorithm's present weights.
        self._is_published = False
        return self

    def _rank_plan(self) -> Plan:
        """The plan of the environments that this rank steps."""
        if self.ranks.count == 1:
            return self.plan
        envs = even_ranges(self.num_envs, self.ranks.count)[self.ranks.rank]
        return dataclasses.replace(self.plan, num_envs=len(envs), first_env=envs.start)

    def _rank_collect(self) -> CollectConfig:
        """The settings of this rank's collector: ranks on one machine divide its cores."""
        if self.ranks.count == 1:
            return self.collect
        return self.collect.with_cores(max(cores() // self.ranks.local_count, 1))

    def _state_of(self, collector: Collector) -> dict[str, Any]:
        """The state of the collectors of all ranks, packed."""
        states = self.ranks.gather(collector.state_dict())
        merged = {key: {i: each for state in states for i, each in state[key].items()} for key in _OF_ENVS}
        return packed({**states[0], **merged})

    def _resume(self, collector: Collector, saved: Mapping[str, Any]) -> None:
        """Has a collector resume from a state, and prints how many episodes are not in it."""
        state = unpacked(saved)
        if self.ranks.count > 1:
            envs = collector.plan.env_indices
            state |= {key: {i: each for i, each in state[key].items() if i in envs} for key in _OF_ENVS}
        collector.load_state_dict(state)
        total = len(state["numbers"])
        lacking = total - len(state["running"])
        no_actions = "the checkpoint does not have their actions"
        if self.plan.unit == "steps" and lacking:
            print_lines(
                self._console,
                f"{lacking} of {total} running episodes are restarted:"
                f" {'a vector environment starts its episodes itself' if self.spec.is_vector else no_actions}",
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collector, self._collector, self._stream = self._collector, None, None
        if collector is not None:
            # Where this rank fails, the others do not know it yet, and do not send theirs.
            if kind is None or self.ranks.count == 1:
                self._saved = self._state_of(collector)
            self._account(collector.report())
            collector.close()

    def next(self, watch: Stopwatch) -> list[Fragment] | None:
        fragments = self._collect(watch)
        self.steps += sum(len(fragment) for fragment in fragments)
        return fragments or None

    def feedback(self, result: Any) -> None:
        """Has a live simulation act by what the algorithm has learned, without delay."""
        if self.collect.is_live:
            self._publish()

    def _publish(self) -> None:
        """Publishes the weights as they are now."""
        assert self._collector is not None, "it runs as a context"
        self._algorithm.write_weights(self._weights)
        self._collector.publish(self._weights)
        self._is_published = True

    def _collect(self, watch: Stopwatch) -> list[Fragment]:
        """Publishes the weights as they are now, and collects what an update learns from; nothing, if a live
        simulation brings nothing for some time."""
        assert self._stream is not None, "it runs as a context"
        if not self._is_published:
            with watch("publishing"):
                self._publish()
        fragments = self._all_ranks(self._stream.next(watch))
        self._is_published = not fragments
        if any(len(fragment.returns) for fragment in fragments):
            self._episodes += ended_in(fragments, self.collected_steps)
        return fragments

    def _all_ranks(self, collected: list[Fragment]) -> list[Fragment]:
        """The fragments of all ranks, in the order of environments."""
        if self.ranks.count == 1:
            return collected
        found = self.ranks.gather([_compact(fragment) for fragment in collected])
        return [
            fragment
            for rank, fragments in enumerate(found)
            for fragment in (collected if rank == self.ranks.rank else map(_expanded, fragments))
        ]

    def take_episodes(self) -> Episodes:
        if not self._episodes:
            return NO_EPISODES
        ended, self._episodes = self._episodes, []
        return Episodes.concatenated(ended).in_order()

    def choices(self) -> Mapping[str, object]:
        workers = {"collect.n_workers": self._report.workers} if self._report.workers else {}
        return {"collect.collector": self.collector, **workers}

    def report(self) -> Report:
        """Asks the collector, and prints what has failed since the last time."""
        if self._collector is not None:
            before = self._report
            self._account(self._collector.report())
            self._failure_lines.print_new(self._report.failures)
            if self._report.diverged > before.diverged:
                print_lines(
                    self._console,
                    f"{self._report.diverged} of {self.num_envs} running episodes were restarted: the same seed and"
                    f" actions led elsewhere than before, so {self.spec.id} is not deterministic",
                )
        return self._report

    def _account(self, report: Report) -> None:
        """Keeps the collector's report, and counts what it has dropped since the last one."""
        new = Staleness(dropped=report.dropped - self._report.dropped)
        self._report, self._staleness = report, self._staleness.plus(new)

    def metrics(self) -> Mapping[str, Number]:
        assert self._stream is not None, "it runs as a context"
        of_row = self._stream.take_staleness()
        self._staleness = self._staleness.plus(of_row)
        return {
            "collect/staleness": of_row.mean,
            "collect/max_staleness": of_row.highest,
            "collect/dropped": self._staleness.dropped,
            **{f"collect/{name}": number for name, number in self._faults().items()},
            "collect/worker_memory_mib": max(self._report.memory_mib, default=0.0),
            **{f"collect/{name}": number for name, number in self._report.metrics.items()},
        }

    def _faults(self) -> dict[str, int]:
        """Failures and restarts of workers so far, in earlier sessions too."""
        return {
            "failures": self._failures + len(self._report.failures),
            "restarts": self._restarts + self._report.restarts,
        }

    def summary(self) -> Mapping[str, Any]:
        report, stale = self._report, self._staleness
        return {
            "workers": dict(report.seconds) if report.workers else {},
            "worker_memory_mib": list(report.memory_mib),
            "cold_start": report.cold_start,
            "staleness": stale.mean,
            "max_staleness": stale.highest,
            "dropped": stale.dropped,
            **self._faults(),
        }

    def lines(self) -> list[str]:
        report, stale = self._report, self._staleness
        lines = []
        if report.workers:
            lines.append(_about_workers(report.memory_mib, report.cold_start, report.seconds))
        if stale.highest or stale.dropped:
            lines.append(
                f"staleness {stale.mean:.2f} updates on average, {stale.highest} at most,"
                f" {stale.dropped:,} fragments dropped"
            )
        faults = self._faults()
        if any(faults.values()):
            lines.append(
                f"{counted(faults['failures'], 'failure')} of workers, {counted(faults['restarts'], 'restart')}"
            )
        return lines

    def state_dict(self) -> dict[str, Any]:
        running = self._collector
        return {
            "steps": self.steps,
            "collector": self._saved if running is None else self._state_of(running),
            **self._faults(),
            "staleness": self._staleness._asdict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = state["collector"]
        if self._saved is not None:
            check_saved(self.plan, self._saved)
        self.steps = state["steps"]
        self._failures, self._restarts = state["failures"], state["restarts"]
        self._staleness = Staleness(**state["staleness"])

    def start_stage(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict({**state, "collector": None})


def ended_in(fragments: Sequence[Fragment], before: int) -> list[Episodes]:
    """The episodes that ended in the fragments of an update; of games that say their returns themselves, the games that
    are over. Environments are counted as stepped together, whichever collector stepped them; whole episodes as one
    after the other.

    Args:
        before: environment steps of the run before the fragments.
    """
    found = list[Episodes]()
    for fragment in fragments:
        if not len(fragment.returns):
            continue
        if fragment.env_indices[0] == NO_ENV:
            before += len(fragment)
            steps = np.full(len(fragment.returns), before)
        else:
            num_rows = sum(each.num_rows for each in fragments)
            steps = before + (np.nonzero(fragment.ended)[0] + 1) * num_rows
        found.append(_games_in(fragment, steps))
    return found


def _games_in(fragment: Fragment, steps: NDArray[np.int64]) -> Episodes:
    """The episodes of a fragment, or its games."""
    info = fragment.episode_info
    if contract.GAME_RETURN not in info:
        return Episodes(fragment.returns, fragment.lengths, steps, info)
    over = ~np.isnan(info[contract.GAME_RETURN])
    mine = {key: values[over] for key, values in info.items()}
    lengths = mine[contract.GAME_LENGTH].astype(np.int64)
    return Episodes(mine[contract.GAME_RETURN], lengths, steps[over], mine)


def _compact(fragment: Fragment) -> Fragment:
    """A fragment whose last observations, and their masks, are those of ended episodes alone."""
    ended = last_places(vars(fragment))
    masks = None if fragment.final_masks is None else fragment.final_masks[ended]
    return dataclasses.replace(fragment, final_obs=fragment.final_obs[ended], final_masks=masks)


def _expanded(fragment: Fragment) -> Fragment:
    """The inverse of `_compact`."""
    ended = last_places(vars(fragment))
    final_obs, final_masks = np.zeros_like(fragment.obs[:-1]), None
    final_obs[ended] = fragment.final_obs
    if fragment.final_masks is not None:
        final_masks = np.zeros_like(fragment.masks)
        final_masks[ended] = fragment.final_masks
    return dataclasses.replace(fragment, final_obs=final_obs, final_masks=final_masks)


class FailurePrinter:
    """Prints workers' failures as they happen: a line each, the traceback of each cause once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        self._causes: set[str] = set()

    def print_new(self, failures: Sequence[Failure]) -> None:
        """Prints those that have not been printed yet.

        Args:
            failures: all so far.
        """
        for failure in failures[self._printed :]:
            line = f"worker {failure.worker} failed at {failure.task}: {failure.cause}; training continues"
            if failure.cause not in self._causes and failure.traceback:
                line = f"{failure.traceback.rstrip()}\n{line}"
            self._causes.add(failure.cause)
            print_lines(self._console, line)
        self._printed = len(failures)


def check_num_envs(state: Mapping[str, Any], num_envs: int) -> None:
    """Compares the saved state of a `RolloutSource` with a number of environments, before memory is taken for them.

    Raises:
        ValueError: it is of fewer environments.
    """
    collector = state["collector"]
    if collector is not None and (saved := num_running(collector)) not in (0, num_envs):
        raise ValueError(f"{num_envs:,} environments are claimed, the state has {saved:,}")


def _about_workers(memory_mib: Sequence[float], cold_start: float, seconds: Mapping[str, float]) -> str:
    """Describes workers in words: number, time to start, memory of each and shares of their time."""
    memory = ", ".join(f"{each:,.0f}" for each in memory_mib)
    workers = counted(len(memory_mib), "worker")
    return f"{workers}, ready after {cold_start:.1f} s, memory {memory} MiB; their time: {shares(seconds)}"
