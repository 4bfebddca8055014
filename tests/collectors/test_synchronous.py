"""Environments stepped together, under the protocol of all collectors: the same episodes, whatever workers do."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from waiting import TIMEOUT, wait_until

from fastrl.collectors.protocol import CollectError, Plan, Unit
from fastrl.collectors.sequential import SequentialCollector
from fastrl.collectors.synchronous import LockstepCollector, native_collector, sync_collector
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import RowActor, Rows
from fastrl.rollout.fragment import Fragment
from fastrl.utils.processes import SHARED_MEMORY
from fastrl.utils.seeding import NO_ENV, act_stream, act_streams, env_seed, env_seeds
from random_actor import RandomActor


class Walk(gymnasium.Env[Any, Any]):
    """Ends after as many steps as its generator says, at a place that the actions lead to. With `fault` it goes wrong
    once at the third step of the first episode in its process that is longer, if `path` is not there; or, with
    "always", each time."""

    def __init__(self, box: bool = False, fault: str = "", path: str = "") -> None:
        self.observation_space = Box(-np.inf, np.inf, (2, 1), np.float64)
        self.action_space = Box(-1, 1, (2,), np.float32) if box else Discrete(4)
        self.fault, self.path = fault, path

    def _obs(self) -> Any:
        return np.array([[self.place], [self.steps]])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.random()
        self.length = int(self.np_random.integers(1, 9))
        self.truncates = self.np_random.random() < 0.3
        return self._obs(), {}

    def _first(self) -> bool:
        """True for the first call in all processes."""
        try:
            Path(self.path).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action))
        self.steps += 1
        self.place += float(np.sum(action)) + 1e-3 * self.np_random.random()
        if self.fault and self.steps == 3 and (self.fault == "always" or self._first()):
            if self.fault == "hang":
                time.sleep(10 * TIMEOUT)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this walk is broken")
        over = self.steps == self.length
        return self._obs(), self.place, over and not self.truncates, over and self.truncates, {}


class Weighed(RowActor):
    """An actor that adds its weight, 8 bytes, to what the streams say, and knows all of a row's numbers."""

    weights_nbytes = 8

    def load(self, weights: Any) -> None:
        self.weight = int(np.frombuffer(weights, np.int64)[0])

    def choose(self, rows: Rows) -> tuple[Any, Any]:
        actions = ((rows.streams >> np.uint64(9)).astype(np.int64) + rows.steps + self.weight) % 4
        return actions, rows.obs.sum(axis=1)


def plan_of(
    env: Any, unit: Unit, *, make_actor: Any = None, num_envs: int = 5, num_steps: int = 12, **options: Any
) -> Plan:
    spec = as_spec(env, **options)
    one = spec.make()
    actor = make_actor or partial(RandomActor, one.action_space)
    episodes = 13 if unit == "episodes" else 0
    return Plan(spec, actor, one.observation_space, one.action_space, num_envs, num_steps, unit, episodes, 7)


def sync(plan: Plan, **options: Any) -> LockstepCollector:
    return sync_collector(plan, **{"n_workers": 2, **options})


def expect_same(expected: list[Fragment], got: list[Fragment]) -> None:
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        for name, value in vars(one).items():
            np.testing.assert_equal(value, getattr(other, name), err_msg=name)
            assert getattr(value, "dtype", int) == getattr(getattr(other, name), "dtype", int)


def test_seeds_and_streams_of_many_episodes() -> None:
    env_indices, numbers = np.array([0, 3, NO_ENV]), np.array([5, 0, 2**40])
    pairs = list(zip(env_indices.tolist(), numbers.tolist(), strict=True))
    assert env_seeds(9, env_indices, numbers).tolist() == [env_seed(9, *pair) for pair in pairs]
    assert act_streams(9, env_indices, numbers).tolist() == [act_stream(9, *pair) for pair in pairs]


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(
    ("make", "env", "options"),
    [
        (sync, Walk, {}),
        (sync, Walk, {"box": True}),
        (sync, "CartPole-v1", {}),
        (partial(native_collector, n_workers=2), "fastrl/Cage2-v0", {"episode_length": 9}),
        (partial(native_collector, n_workers=1), "fastrl/Cage2-v0", {"episode_length": 30}),
        (partial(native_collector, n_workers=3), "fastrl/highway-fast-v0", {}),
    ],
)
def test_episodes_are_those_of_the_sequential_collector(
    make: Any, env: Any, options: Any, unit: Unit
) -> None:
    plan = plan_of(env, unit, **options)
    with SequentialCollector(plan) as reference, make(plan) as collector:
        for _ in range(3):
            expect_same(reference.collect(), collector.collect())
        assert collector.state_dict() == reference.state_dict()
        ours, theirs = collector.report(), reference.report()
        assert (ours.steps, ours.episodes) == (theirs.steps, theirs.episodes)
        assert set(ours.seconds) == set(theirs.seconds) and min(ours.seconds.values()) >= 0


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_an_end_costs_no_round_of_its_own(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    with sync(plan_of(Walk, unit, num_envs=2)) as collector:
        backend = collector.runner.backend
        resets, reset = [], backend.reset
        monkeypatch.setattr(
            backend, "reset", lambda obs, mask: (resets.append(mask.copy()), reset(obs, mask))
        )
        ends = sum(len(fragment.episodes) for fragment in collector.collect())
    # The first episodes; of whole ones, the last may change rows.
    assert ends > 2 and len(resets) <= (2 if unit == "episodes" else 1)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_weights_reach_the_actor_and_versions_the_fragments(unit: Unit) -> None:
    plan = plan_of(Walk, unit, make_actor=Weighed)
    with SequentialCollector(plan) as reference, sync(plan) as collector:
        with pytest.raises(CollectError, match="no weights yet"):
            collector.collect()
        for weight in (5, 6):
            for each in (reference, collector):
                assert each.publish(np.array([weight])) == weight - 4
            expect_same(reference.collect(), fragments := collector.collect())
            assert {fragment.version for fragment in fragments} == {weight - 4}


def test_a_resumed_collector_runs_the_next_episodes() -> None:
    for unit in ("steps", "episodes"):
        plan = plan_of(Walk, unit)  # type: ignore[arg-type]
        with SequentialCollector(plan) as first:
            first.collect()
            state = first.state_dict()
        with SequentialCollector(plan) as reference, sync(plan) as collector:
            reference.load_state_dict(state)
            collector.load_state_dict(state)
            expect_same(reference.collect(), collector.collect())


@pytest.mark.parametrize("make", [sync, native_collector])
@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_taken_fragments_are_the_callers_and_bounded(make: Any, unit: Unit) -> None:
    plan = plan_of("fastrl/Cage2-v0", unit, episode_length=9)
    with SequentialCollector(plan) as reference, make(plan, max_pending=3) as collector:
        kept = [collector.take() for _ in range(9)]
        wait_until(lambda: len(collector.background.ready) >= 3)
        time.sleep(0.1)
        assert len(collector.background.ready) == 3
        if unit == "episodes":
            kept.sort(key=lambda fragment: int(fragment.episodes[0, 1]))
            expect_same(reference.collect()[:9], kept)
        else:
            assert len({fragment.obs.ctypes.data for fragment in kept}) == 9
            expect_same([*reference.collect()], kept[:1])
        with pytest.raises(RuntimeError, match="take fragments"):
            collector.collect()


def test_taken_fragments_of_steps_continue_each_other() -> None:
    plan = plan_of(Walk, "steps")
    with sync(plan) as collector:
        first, second = collector.take(), collector.take(TIMEOUT)
        assert first is not None and second is not None
        np.testing.assert_array_equal(first.obs[-1], second.obs[0])
    with SequentialCollector(plan) as reference:
        one = reference.take()
        expect_same([one], [first])


def test_time_of_a_step_counts_once_however_many_threads_share_it() -> None:
    """Time of `collect` is the learner's; the thread behind `take` has a timeline of its own."""
    plan = plan_of("fastrl/highway-fast-v0", "steps", num_envs=6, num_steps=40)
    with native_collector(plan, n_workers=3) as collector:
        start = time.perf_counter()
        collector.collect()
        passed = time.perf_counter() - start
        report = collector.report()
        assert report.workers == 0
        assert 0 < report.seconds["environment"] < sum(report.seconds.values()) <= passed
    with native_collector(plan, n_workers=3) as collector:
        collector.take()
        assert collector.report().workers == 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "ValueError: this walk is broken"),
        ("kill", "killed by SIGKILL"),
        ("hang", "no answer for 1 s"),
    ],
)
def test_whole_episodes_survive_what_happens_to_workers(fault: str, cause: str, tmp_path: Path) -> None:
    options = {"fault": fault, "path": str(tmp_path / "happened")}
    with SequentialCollector(plan_of(Walk, "episodes")) as reference:
        expected = reference.collect()
    with sync(
        plan_of(Walk, "episodes", **options), task_timeout=1.0 if fault == "hang" else None
    ) as collector:
        expect_same(expected, collector.collect())
        report = collector.report()
    assert report.restarts == len(report.failures) >= 1
    failure = report.failures[0]
    assert failure.cause == cause and ("this walk is broken" in failure.traceback) == (fault == "raise")


def test_episodes_of_a_worker_that_dies_are_truncated_and_restarted(tmp_path: Path) -> None:
    plan = plan_of(Walk, "steps", fault="kill", path=str(tmp_path / "happened"))
    with SequentialCollector(plan_of(Walk, "steps")) as reference:
        [expected] = reference.collect()
    with sync(plan) as collector:
        [got] = collector.collect()
        report = collector.report()
    assert report.restarts == 1 and report.failures[0].cause == "killed by SIGKILL"
    rows = range(2) if "rows 0" in report.failures[0].task else range(2, 5)
    for row in range(5):
        if row not in rows:
            np.testing.assert_array_equal(expected.rewards[:, row], got.rewards[:, row])
    cut = int(np.flatnonzero((got.truncations & ~expected.truncations)[:, rows[0]])[0]) if rows else 0
    for row in rows:
        # Steps before the death are unchanged, and the episode is cut off there.
        np.testing.assert_array_equal(expected.rewards[: cut + 1, row], got.rewards[: cut + 1, row])
        assert got.terminations[cut, row] or got.truncations[cut, row]
        if not expected.terminations[cut, row] and not expected.truncations[cut, row]:
            np.testing.assert_array_equal(got.final_obs[cut, row], expected.obs[cut + 1, row])
        assert got.obs[cut + 1, row, 1] == 0  # no step has been taken


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_an_episode_that_fails_again_and_again_stops_the_run(unit: Unit) -> None:
    with sync(plan_of(Walk, unit, fault="always"), n_workers=1) as collector:
        with pytest.raises(
            CollectError, match=r"(?s)failed 3 times at a step of row.*this walk is broken"
        ) as error:
            collector.collect()
        assert "Traceback" in error.value.traceback
        assert len(collector.report().failures) >= 3


def broken() -> Any:
    raise RuntimeError("nobody can build this")


def test_mistakes_raise_readable_errors() -> None:
    plan = plan_of(Walk, "steps")
    with pytest.raises(CollectError, match="worker 0: RuntimeError: nobody can build this"):
        sync(Plan(as_spec(broken), Weighed, plan.obs_space, plan.action_space, 2, 3))
    with pytest.raises(CollectError, match=r"the action space of .* but the learner expects Discrete.7"):
        sync(Plan(plan.env, Weighed, plan.obs_space, Discrete(7), 2, 3))
    with pytest.raises(CollectError, match="CartPole-v1 is none: choose 'sync' or 'executor'"):
        native_collector(plan_of("CartPole-v1", "steps"))
    with pytest.raises(ValueError, match="max_pending should be at least 1"):
        native_collector(plan_of("fastrl/Cage2-v0", "steps"), max_pending=0)
    with pytest.raises(ValueError, match="n_workers should be at most 5"):
        sync(plan, n_workers=6)
    assert not [
        path for path in Path(SHARED_MEMORY).parent.glob("fastrl-*") if f"{os.getpid():08x}" in path.name
    ]
