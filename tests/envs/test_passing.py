"""The task `passing` on racetracks: what it observes and rewards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from fastrl.envs import make_multi
from fastrl.envs.traffic.passing import Passing

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date")


def world(*others: tuple[float, float, float], crashed: bool = False, steering: float = 0.0) -> Any:
    """Two straight lanes along x, 5 m wide, with an agent at x = 0 in the middle of the left one; others by x, y and
    speed."""
    x, y, speed = np.array([(0.0, 0.0, 10.0), *others, (0.0, 0.0, 0.0)]).T[:, np.newaxis]
    present = np.append(np.ones(1 + len(others), np.bool_), False)[np.newaxis]
    number = np.where(present, (y > 2.5).astype(int), -1)
    return SimpleNamespace(
        num_agents=1,
        x=x,
        y=y,
        speed=speed,
        heading=np.zeros_like(x),
        lane_heading=np.zeros_like(x),
        lane_number=number,
        offset=np.where(present, y - 5 * number, 0.0),
        present=present,
        crashed=present & crashed,
        on_road=present,
        lanes=[("a", "b", 0), ("a", "b", 1)],
        action=np.full((1, 1, 1), steering, np.float32),
    )


def observed(*others: tuple[float, float, float]) -> list[list[float]]:
    """The numbers of the agent, and of the lanes on its left, its own and on its right."""
    (row,) = Passing().observe(world(*others))[:, 0].tolist()
    return [row[:2], row[2:7], row[7:11], row[11:]]


def test_each_lane_shows_who_is_ahead_and_who_is_behind() -> None:
    assert observed() == [[0, 0], [0] * 5, [0] * 4, [1, 0, 0, 0, 0]]
    _, left, own, right = observed((20, 0, 7), (-5, 5, 9), (30, 5, 6), (10, 4, 8))
    assert left == [0] * 5
    assert own == pytest.approx([0.5, 0.75, 0, 0])
    # The nearer one of two ahead.
    near = np.hypot(10, 4)
    assert right == pytest.approx([1, 1 - near / 40, 0.5, -0.4, 1 - np.hypot(5, 5) / 20])


def test_who_is_far_is_not_seen() -> None:
    assert observed((41, 0, 7), (-21, 0, 9)) == observed()


def test_a_place_in_the_lane_is_observed() -> None:
    there = world()
    there.offset[0, 0], there.heading[0, 0], there.lane_heading[0, 0] = -1.25, 0.1, 2 * np.pi
    assert Passing().observe(there)[0, 0, :2] == pytest.approx([-0.5, 0.3])


def rewarded(*others: tuple[float, float, float], **state: Any) -> float:
    return float(Passing().reward(world(*others, **state))[0, 0])


def test_a_reward_is_less_the_nearer_somebody_ahead_is_and_as_before_beside() -> None:
    alone = rewarded()
    assert alone == 1.0
    assert rewarded((40, 0, 7)) == alone
    assert rewarded((8, 0, 7)) < rewarded((20, 0, 7)) < alone
    # To the side it gets less, and on the lane beside nothing.
    assert rewarded((8, 0, 7)) < rewarded((8, 2, 7)) < rewarded((8, 5, 7)) == alone
    assert rewarded((-10, 0, 7)) == alone
    assert rewarded(steering=-0.5) == pytest.approx(alone - 0.15)
    assert rewarded(crashed=True) == alone - 10
    off = world()
    off.on_road[0, 0] = False
    assert Passing().reward(off)[0, 0] == alone - 10


def test_choices_of_an_angle_have_no_price() -> None:
    by_number = world()
    by_number.action = np.array([[4]])
    assert Passing().reward(by_number)[0, 0] == 1.0


@pytest.mark.parametrize("name", ["racetrack-v0", "racetrack-large-v1", "racetrack-oval-v0"])
def test_racetracks_take_the_task_by_its_name(name: str) -> None:
    with_task = gymnasium.make_vec(f"fastrl/{name}", 8, task="passing")
    plain = gymnasium.make_vec(f"fastrl/{name}", 8)
    seen, before = (env.reset(seed=2)[0] for env in (with_task, plain))
    before = before.reshape(8, -1)
    np.testing.assert_array_equal(seen[:, : -Passing.terms], before)
    ends = 0
    for _ in range(100):
        seen, rewards, terminated, *_ = with_task.step(np.zeros((8, 1), np.float32))
        ends += terminated.sum()
        # Straight on leads off the road.
        assert (rewards[terminated] < -8).all() and with_task.single_observation_space.contains(seen[0])
    assert ends >= 8


def test_several_agents_see_each_other() -> None:
    envs = make_multi("fastrl/racetrack-v0", 16, config={"controlled_vehicles": 2}, task="passing")
    plain = make_multi(
        "fastrl/racetrack-v0", 16, config={"controlled_vehicles": 2, "other_vehicles": 0}, task="passing"
    )
    for each in (envs, plain):
        obs, _ = each.reset(seed=1)
        assert obs.shape[:2] == (16, 2)
        # Somebody ahead or behind on the agent's own lane.
        near = obs[:, :, [-9, -6]] > 0
        assert near.any()
