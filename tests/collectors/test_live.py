"""Collecting from a live simulation: it never waits, acts by the newest policy, and is replaced where it dies."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_cases import Broken, Chooser, Stuck, Unclosed, Wrong, chooser, plan
from gymnasium.vector import AutoresetMode
from paths import import_path
from shared_memory import shared_memory_of
from team_env import TeamEnv
from waiting import TIMEOUT, wait_until
from waiting import is_running as alive

from fastrl.collectors.factory import make_collector
from fastrl.collectors.live import LiveCollector
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.team_backend import EPISODE_INFO, Difficulty
from fastrl.collectors.team_spec import TeamSpec
from fastrl.rollout.fragment import Fragment
from fastrl.utils import child_process

AGENTS = 3

Start = Callable[..., LiveCollector]


@pytest.fixture
def start() -> Iterator[Start]:
    before = shared_memory_of(os.getpid())
    made: list[LiveCollector] = []

    def begin(same: Plan | None = None, *, publish: bool = True, **options: Any) -> LiveCollector:
        made.append(LiveCollector(same or plan(), **options))
        if publish:
            made[-1].publish(chooser(0.0))
        return made[-1]

    yield begin
    for collector in made:
        collector.close()
        assert not any(map(alive, collector.pids))
    assert shared_memory_of(os.getpid()) <= before


def taken(collector: LiveCollector) -> Fragment:
    """Waits for a fragment."""
    fragment = collector.take(TIMEOUT)
    assert fragment is not None
    return fragment


def test_fragments_are_whole_and_those_of_other_collectors(start: Start) -> None:
    """Without new weights, and with a queue that is long enough, time plays no role."""
    collector = start(queue=64)
    fragments = [taken(collector) for _ in range(3)]
    assert collector.report().dropped == 0
    with make_collector("sequential", plan()) as sequential:
        sequential.publish(chooser(0.0))
        for found in fragments:
            expected = taken(sequential)  # type: ignore[arg-type]
            for name in ("obs", "actions", "log_probs", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            for name in ("returns", "lengths", "episodes", "env_indices"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            np.testing.assert_array_equal(found.final_obs[found.ended], expected.final_obs[expected.ended])
            assert found.version == expected.version == 1
    report = collector.report()
    assert (report.steps, report.workers) == (3 * 60, 1)
    assert report.episodes == sum(len(each.returns) for each in fragments) > 0
    assert report.cold_start > 0 and report.memory_mib[0] > 1
    assert report.metrics["simulated"] >= 36 and report.metrics["missed"] == 0
    assert report.metrics["policy_age_updates"] == 0 < report.metrics["policy_age_seconds"]


def test_the_newest_policy_acts(start: Start) -> None:
    collector = start(queue=1)
    assert taken(collector).log_probs.max() < 1
    assert collector.publish(chooser(5.0)) == 2
    for _ in range(4):
        fragment = taken(collector)
    assert fragment.log_probs.min() >= 5
    assert fragment.version == 2 and collector.report().metrics["policy_age_updates"] == 0
    with pytest.raises(ValueError, match="4 bytes, got 12"):
        collector.publish(np.zeros(3, np.float32))


def test_a_slow_learner_does_not_block_the_simulation(start: Start) -> None:
    collector = start(queue=2)
    first = taken(collector)
    wait_until(lambda: collector.report().dropped >= 20)
    assert collector.report().metrics["waiting"] <= 2
    last = [taken(collector) for _ in range(3)][-1]
    assert collector.report().metrics["simulated"] > 20 * 12
    # Episodes have been dropped, too, none is given twice.
    found = [tuple(each) for fragment in (first, last) for each in fragment.episodes.tolist()]
    assert len(set(found)) == len(found)


@pytest.mark.slow
def test_in_real_time_steps_come_one_by_one(start: Start) -> None:
    began = time.monotonic()
    collector = start(period=5.0, speed=100.0)
    assert collector.take(0.1) is None
    for _ in range(3):
        taken(collector)
    numbers = collector.report().metrics
    assert 36 <= numbers["simulated"] <= (time.monotonic() - began) / 0.05 + 1
    assert 0 <= numbers["missed"] <= numbers["simulated"]
    assert (numbers["late_mean"] > 0) == (numbers["missed"] > 0)
    seconds = collector.report().seconds
    assert seconds["waiting"] > max(seconds["environment"], 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_killed_simulation_is_replaced_with_new_episodes(start: Start, start_method: str) -> None:
    collector = start(start_method=start_method)
    played = [tuple(each) for each in taken(collector).episodes.tolist()]
    [pid] = collector.pids
    os.kill(pid, signal.SIGKILL)
    # The queue may still have fragments.
    while collector.report().restarts == 0:
        played += [
            tuple(each) for each in getattr(collector.take(0.1), "episodes", np.empty((0, 2))).tolist()
        ]
    played += [tuple(each) for each in taken(collector).episodes.tolist()]
    assert len(set(played)) == len(played)
    report = collector.report()
    assert report.restarts == 1 and collector.pids != [pid]
    [failure] = report.failures
    assert (failure.cause, failure.task) == ("killed by SIGKILL", "a fragment of rows 0 to 4")
    assert report.seconds["environment"] > 0


def test_an_error_costs_some_steps_unless_it_recurs(start: Start, tmp_path: Path) -> None:
    collector = start(plan(env=Broken, num_envs=1, share=0.3, what="raise", once=str(tmp_path)))
    wait_until(lambda: collector.take(0.1) is not None and collector.report().restarts > 0)
    failure = collector.report().failures[0]
    assert failure.cause == "ValueError: this game is broken"
    assert 'raise ValueError("this game is broken")' in failure.traceback
    again = start(plan(env=Broken, share=1.0, what="exit"))
    with pytest.raises(
        CollectError, match=r"(?s)failed 3 times at a fragment.*SystemExit: this game is over"
    ):
        again.take()


# Seconds without a step: many times what a busy machine needs for one.
PATIENCE = 15.0


@pytest.mark.slow
def test_a_simulation_that_hangs_is_replaced_with_new_episodes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "DUMP_GRACE_S", TIMEOUT)
    collector = start(plan(env=Stuck, num_envs=1, once=str(tmp_path / "once")), task_timeout=PATIENCE)
    [pid] = collector.pids
    fragment = taken(collector)
    assert fragment.episodes[:, 1].min(initial=1) >= 1
    report = collector.report()
    assert report.restarts == 1 and collector.pids != [pid] and not alive(pid)
    [failure] = report.failures
    assert (failure.cause, failure.task) == ("no answer for 15 s", "a fragment of rows 0 to 0")
    assert "this_game_waits" in failure.traceback


@pytest.mark.slow
def test_one_that_hangs_again_and_again_ends_the_run(start: Start) -> None:
    collector = start(plan(env=Stuck, num_envs=1), task_timeout=PATIENCE, max_failures=1)
    with pytest.raises(CollectError, match=r"worker 0 failed once at a fragment.*: no answer for 15 s"):
        collector.take()


@pytest.mark.slow
def test_waiting_for_a_step_is_no_hang(start: Start) -> None:
    """The second step is due after an hour. The simulation says several times in a second that it lives."""
    collector = start(period=3600.0, task_timeout=PATIENCE)
    assert collector.take(1.2 * PATIENCE) is None
    assert collector.report().failures == ()


@pytest.mark.parametrize(
    ("same", "message"),
    [
        (plan(env=Wrong, what="nan reward"), "at step 3 of the episode that reset"),
        (dataclasses.replace(plan(), env=plan(scale=9.0).env), "the learner expects"),
    ],
    ids=["wrong reward", "other spaces"],
)
def test_an_environment_that_is_refused_is_not_tried_again(start: Start, same: Plan, message: str) -> None:
    collector = start(same)
    with pytest.raises(CollectError, match=message):
        collector.take()
    assert collector.report().restarts == 0


def test_what_does_not_go_together_is_refused(start: Start) -> None:
    with pytest.raises(ValueError, match="collect steps, not whole episodes"):
        make_collector("live", plan("episodes"))
    with pytest.raises(ValueError, match="speed should be a number from 0 on, got -1"):
        start(speed=-1)
    with pytest.raises(ValueError, match="task_timeout should be more than 0 s, got 0"):
        start(task_timeout=0.0)
    with pytest.raises(ValueError, match="'live' has no option n_workers"):
        make_collector("live", plan(), n_workers=2)
    with pytest.raises(CollectError, match="no weights yet"):
        start(publish=False).take()
    with pytest.raises(TypeError, match="does not pickle"):
        start(dataclasses.replace(plan(), make_actor=lambda: Chooser()))


def test_a_resumed_collector_has_other_episodes(start: Start) -> None:
    first, second = start(), start(publish=False)
    played = [tuple(each) for _ in range(2) for each in taken(first).episodes.tolist()]
    second.load_state_dict(first.state_dict())
    assert second.publish(chooser(0.0)) == 2
    assert not set(played) & {tuple(each) for each in taken(second).episodes.tolist()}
    with make_collector("sequential", plan()) as sequential:
        sequential.load_state_dict(first.state_dict())
        sequential.publish(chooser(0.0))
        assert not set(played) & {tuple(each) for each in sequential.collect()[0].episodes.tolist()}


@dataclasses.dataclass(frozen=True)
class Lines(TeamSpec):
    """Makes environments in which agents walk on a line."""

    def make_team(self, num_envs: int, *, workers: int | None = None, action_masks: bool = False) -> Any:
        env = TeamEnv(num_envs, AGENTS)
        env.autoreset_mode = AutoresetMode.DISABLED
        return env


class TeamChooser(Chooser):
    """Has every agent stay where it is."""

    def act(self, *arguments: Any, **options: Any) -> None:
        arguments[3][...], arguments[4][...] = 1, -0.5


def team_plan() -> Plan:
    env = TeamEnv(2, AGENTS)
    return Plan(
        Lines("lines"),
        functools.partial(TeamChooser),
        env.single_observation_space,
        env.single_action_space,
        num_envs=2,
        num_agents=AGENTS,
        num_steps=16,
        episode_info=EPISODE_INFO,
    )


def test_the_difficulty_reaches_the_simulation_of_many_agents(start: Start) -> None:
    collector = start(team_plan(), publish=False, queue=1)
    collector.set_difficulty(1, Difficulty(1, 0.0))
    collector.publish(chooser(0.0))
    fragment = taken(collector)
    assert fragment.alive is not None and fragment.alive.sum(2).max() == 1
    assert set(fragment.episode_info["level"].tolist()) == {1.0}
    # All observations of the living have a bias of 1.
    assert (fragment.obs[..., 2][fragment.alive] == 1).all()
    collector.set_difficulty(2, Difficulty(2, 0.0))
    for _ in range(5):
        fragment = taken(collector)
    assert fragment.alive is not None and fragment.alive.sum(2).max() == 2
    assert set(fragment.episode_info["level"].tolist()) == {2.0}
    assert fragment.version == collector.version == 1


@pytest.mark.slow
def test_an_environment_that_does_not_close_is_killed(start: Start) -> None:
    collector = start(plan(env=Unclosed, share=0.0, what=""))
    taken(collector)
    began = time.monotonic()
    collector.close()
    assert 4 < time.monotonic() - began < TIMEOUT


LEARNER = """
import sys
from test_live import chooser, plan, taken
from fastrl.collectors.live import LiveCollector

if __name__ == "__main__":
    collector = LiveCollector(plan())
    collector.publish(chooser(0.0))
    taken(collector)
    print(*collector.pids, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["killed", "unclosed"])
def test_a_learner_that_ends_leaves_neither_process_nor_memory(tmp_path: Path, ends: str) -> None:
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    environment = {**os.environ, "PYTHONPATH": import_path(__file__)}
    learner = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert learner.stdout is not None
    pid = int(learner.stdout.readline())
    assert alive(pid) and len(shared_memory_of(learner.pid)) == 2
    if ends == "killed":
        learner.kill()
    learner.communicate("\n", timeout=TIMEOUT)
    wait_until(lambda: not alive(pid), "the simulation outlives its learner")
    wait_until(lambda: not shared_memory_of(learner.pid), "its memory does")
