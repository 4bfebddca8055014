"""Tests of what a learner gets from a collector: an update's worth, none of it too old, and how old it was."""

import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastrl.collectors.fragment_stream import FragmentStream, Staleness, pending_for
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.fragment import Fragment, allocate
from fastrl.utils.timer import Stopwatch


def plan_for(unit="steps", num_envs=4, episodes=3):
    return Plan(
        env=EnvSpec("CartPole-v1"),
        make_actor=lambda: None,
        obs_space=Box(-1, 1, (2,), np.float32),
        action_space=Discrete(2),
        num_envs=num_envs,
        num_steps=5,
        unit=unit,
        episodes=episodes,
    )


class Scripted:
    """A collector whose fragments are known beforehand: versions, numbers of rows."""

    def __init__(self, plan, script, version):
        self.plan, self.version = plan, version
        self.script = iter(script)
        self.taken = 0

    def fragment(self, version, rows):
        return Fragment(
            **allocate(5, rows, 2, ()),
            version=version,
            env_indices=np.arange(rows),
            returns=np.zeros(0),
            lengths=np.zeros(0, np.int64),
            episodes=np.zeros((0, 2), np.int64),
        )

    def collect(self):
        return [self.fragment(*each) for each in self.script]

    def take(self, timeout=None):
        self.taken += 1
        found = next(self.script)
        return None if found is None else self.fragment(*found)


def test_synchronous_is_what_the_collector_collects():
    collector = Scripted(plan_for(), [(3, 2), (3, 2)], version=3)
    stream, watch = FragmentStream(collector), Stopwatch()
    assert [fragment.num_rows for fragment in stream.next(watch)] == [2, 2]
    assert stream.take_staleness() == Staleness(steps=20, total=0, highest=0, dropped=0)
    assert set(watch.seconds) == {"waiting"}


def test_asynchronous_takes_rows_until_they_suffice_and_measures_their_staleness():
    collector = Scripted(plan_for(), [(5, 1), (3, 2), (4, 2), (5, 9)], version=5)
    stream = FragmentStream(collector, max_staleness=2)
    assert [fragment.version for fragment in stream.next(Stopwatch())] == [5, 3, 4]
    assert stream.take_staleness() == Staleness(steps=25, total=5 * (0 + 2 * 2 + 2 * 1), highest=2, dropped=0)
    assert stream.take_staleness() == Staleness()


def test_what_is_older_than_the_bound_is_dropped_and_counted():
    collector = Scripted(plan_for(), [(2, 4), (4, 2), (3, 2), (4, 2)], version=5)
    stream = FragmentStream(collector, max_staleness=1)
    assert [fragment.version for fragment in stream.next(Stopwatch())] == [4, 4]
    assert stream.take_staleness() == Staleness(steps=20, total=20, highest=1, dropped=2)


def test_after_a_timeout_there_are_fewer():
    collector = Scripted(plan_for(), [(5, 2), None], version=5)
    stream = FragmentStream(collector, max_staleness=1, timeout=0.1)
    assert [fragment.num_rows for fragment in stream.next(Stopwatch())] == [2]


def test_of_whole_episodes_as_many_as_planned():
    collector = Scripted(plan_for("episodes"), [(1, 1)] * 9, version=1)
    assert len(FragmentStream(collector, max_staleness=1).next(Stopwatch())) == 3
    assert collector.taken == 3


def test_staleness_adds_up():
    assert math.isnan(Staleness().mean)
    both = Staleness(10, 5, 1, 2).plus(Staleness(20, 40, 3, 1))
    assert both == Staleness(30, 45, 3, 3)
    assert both.mean == 1.5


def test_a_negative_staleness_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        FragmentStream(Scripted(plan_for(), [], 0), max_staleness=-1)


@pytest.mark.parametrize(
    ("unit", "episodes", "max_staleness", "max_pending"),
    [
        # Of rows, an update takes what all workers play at a time.
        ("steps", 0, 1, 4),
        ("steps", 0, 2, None),
        # Of episodes, more or less.
        ("episodes", 30, 1, None),
        ("episodes", 6, 1, 6),
        ("episodes", 3, 2, 6),
        ("episodes", 1, 3, 4),
    ],
)
def test_pending_fragments_are_bounded_by_staleness_but_every_worker_has_work(
    unit, episodes, max_staleness, max_pending
):
    assert (
        pending_for(plan_for(unit, episodes=episodes), concurrent=4, max_staleness=max_staleness)
        == max_pending
    )
