"""Writing into fastrl.replay: bad rows, steps, records and arguments are refused and change nothing."""

import numpy as np
import pytest
from replay_model import EXTRA, MASKS, all_of, contents

from fastrl.replay import Replay


def good(replay, count=2):
    return {
        "obs": np.ones((count, 3), np.float32),
        "actions": np.ones(count, np.int64),
        "rewards": np.ones(count, np.float32),
        "next_obs": np.ones((count, 3), np.float32),
        "terminated": np.zeros(count, bool),
        "truncated": np.zeros(count, bool),
    }


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("obs", np.ones((2, 3)), TypeError),
        ("obs", np.ones((2, 3), ">f4"), TypeError),
        ("obs", [[1, 2, 3]] * 2, TypeError),
        ("obs", np.ones((2, 4), np.float32), ValueError),
        ("obs", np.array(1, np.float32), ValueError),
        ("obs", np.ones((2, 6), np.float32)[:, ::2], ValueError),
        ("obs", np.ones((3, 2), np.float32).T, ValueError),
        ("next_obs", np.ones((1, 3), np.float32), ValueError),
        ("next_obs", np.ones((2, 3), np.float64), TypeError),
        ("actions", np.ones(2, np.int32), TypeError),
        ("actions", np.ones((2, 1), np.int64), ValueError),
        ("rewards", np.ones(2), TypeError),
        ("rewards", np.ones(3, np.float32), ValueError),
        ("terminated", np.zeros(2, np.uint8), TypeError),
        ("truncated", np.zeros(4, bool)[::2], ValueError),
        ("envs", np.array([0, 2]), IndexError),
        ("envs", np.array([-1, 0]), IndexError),
        ("envs", np.array([0.0, 1.0]), TypeError),
        ("envs", np.array([0, 1], np.int32), TypeError),
        ("nonsense", np.zeros(2), TypeError),
    ],
)
def test_bad_rows_of_add_many_change_nothing(name, value, error):
    replay = Replay(10, (3,), num_envs=2)
    replay.add_many(**good(replay))
    before = contents(replay)
    with pytest.raises(error):
        replay.add_many(**{**good(replay), name: value})
    assert contents(replay) == before


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("obs", np.ones(3), TypeError),
        ("obs", np.ones((1, 3), np.float32), ValueError),
        ("next_obs", None, TypeError),
        ("action", 1.5, TypeError),
        ("action", "1", TypeError),
        ("action", 1 << 70, OverflowError),
        ("action", np.ones(1, np.int64), ValueError),
        ("reward", "much", TypeError),
        ("reward", None, TypeError),
        ("terminated", 1, TypeError),
        ("truncated", np.ones(1, bool), TypeError),
        ("env", 2, IndexError),
        ("env", -1, IndexError),
        ("env", 0.5, TypeError),
        ("nonsense", 1, TypeError),
    ],
)
def test_a_bad_step_of_add_changes_nothing(name, value, error):
    replay = Replay(10, (3,), num_envs=2)
    step = {
        "obs": np.ones(3, np.float32),
        "action": 1,
        "reward": 1.0,
        "next_obs": np.ones(3, np.float32),
        "terminated": False,
        "truncated": False,
    }
    replay.add(**step)
    before = contents(replay)
    with pytest.raises(error):
        replay.add(**{**step, name: value})
    assert contents(replay) == before


@pytest.mark.parametrize("masks", ["none", "acted", "final"])
def test_masks_are_given_exactly_where_a_replay_has_them(masks):
    replay = Replay(10, (3,), num_envs=2, **MASKS[masks])
    given = {"none": (), "acted": ("mask",), "final": ("mask", "next_mask")}[masks]
    row, rows = (
        {name: np.ones(5, bool) for name in given},
        {f"{name}s": np.ones((2, 5), bool) for name in given},
    )
    step = {"obs": np.ones(3, np.float32), "action": 1, "reward": 1.0, "next_obs": np.zeros(3, np.float32)}
    step |= {"terminated": False, "truncated": False}
    replay.add(**step, **row)
    replay.add_many(**good(replay), **rows)
    before = contents(replay)
    for name in ("mask", "next_mask"):
        for value in (np.ones(4, bool), np.ones(5, np.uint8), None if name in given else np.ones(5, bool)):
            with pytest.raises((TypeError, ValueError), match="mask"):
                replay.add(**{**step, **row, name: value})
            values = None if value is None else np.stack([value] * 2)
            with pytest.raises((TypeError, ValueError), match="masks"):
                replay.add_many(**{**good(replay), **rows, f"{name}s": values})
    assert contents(replay) == before


def test_actions_that_do_not_fit_are_refused():
    replay = Replay(10, (1,), action_dtype=np.int8)
    obs = np.zeros(1, np.float32)
    for action in (-128, 127, np.int64(5)):
        replay.add(obs, action, 0.0, obs, True, False)
    for action in (128, -129, 1000):
        with pytest.raises(ValueError, match="fit"):
            replay.add(obs, action, 0.0, obs, True, False)
    assert sorted(all_of(replay).actions.tolist()) == [-128, 5, 127]


def test_bad_records_change_nothing():
    replay = Replay(10, (3,), num_envs=2)
    other = np.dtype([(name, replay.dtype[name]) for name in replay.dtype.names])
    outside = np.zeros(4, replay.dtype)
    outside["env"][3] = 2
    cases = [
        ([1, 2], TypeError),
        (np.zeros(2, np.float32), TypeError),
        (np.zeros(2, other) if other != replay.dtype else np.zeros(2), TypeError),
        (np.zeros(2, replay.dtype.newbyteorder()), TypeError),
        (np.zeros((2, 2), replay.dtype), ValueError),
        (np.zeros(4, replay.dtype)[::2], ValueError),
        (outside, IndexError),
    ]
    before = contents(replay)
    for records, error in cases:
        with pytest.raises(error):
            replay.append(records)
    for env in (2, -1):
        with pytest.raises(IndexError):
            replay.cut(env)
    assert contents(replay) == before


def test_bad_steps_of_a_fragment_change_nothing():
    replay = Replay(10, (3,), num_envs=2, extra={"version": (np.uint32, ())})
    flags = np.zeros((4, 1), np.bool_)
    good = {
        "envs": np.zeros(1, np.int64),
        "obs": np.zeros((5, 1, 3), np.float32),
        "actions": np.zeros((4, 1), np.int64),
        "rewards": np.zeros((4, 1), np.float32),
        "terminated": flags,
        "truncated": flags,
        "final_obs": np.zeros((4, 1, 3), np.float32),
        "version": np.array(1, np.uint32),
    }
    before = contents(replay)
    for name, value, error in (
        ("envs", np.full(1, 2), IndexError),
        ("obs", np.zeros((5, 1, 4), np.float32), ValueError),
        ("obs", np.zeros((5, 3), np.float32), ValueError),
        ("obs", np.zeros((4, 1, 3), np.float32), ValueError),
        ("actions", np.zeros((4, 1), np.int32), TypeError),
        ("rewards", np.zeros(4, np.float32), ValueError),
        ("rewards", [[0.0]] * 4, ValueError),
        ("final_obs", np.zeros((4, 2, 3), np.float32), ValueError),
        ("masks", flags, TypeError),
        ("version", np.zeros(4, np.uint32), ValueError),
        ("version", 1, TypeError),
        ("other", flags, TypeError),
    ):
        with pytest.raises(error):
            replay.append_steps(**{**good, name: value})
    assert contents(replay) == before
    replay.append_steps(**good)
    assert len(replay) == 3


def test_read_only_input_is_welcome():
    replay = Replay(10, (3,), num_envs=2)
    rows = good(replay)
    for array in rows.values():
        array.flags.writeable = False
    replay.add_many(**rows)
    assert len(replay) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"capacity": 0}, ValueError),
        ({"capacity": -5}, ValueError),
        ({"capacity": 1.5}, TypeError),
        ({"capacity": True}, TypeError),
        ({"capacity": 10**30}, ValueError),
        ({"capacity": 1 << 40}, (ValueError, MemoryError, OSError)),
        ({"num_envs": 0}, ValueError),
        ({"stack": 0}, ValueError),
        ({"stack": 1000}, ValueError),
        ({"pad": "none"}, ValueError),
        ({"obs_shape": (-1,)}, ValueError),
        ({"obs_dtype": object}, TypeError),
        ({"obs_dtype": ">f4"}, TypeError),
        ({"action_dtype": ">i8"}, TypeError),
        ({"extra": {"obs": (np.float32, ())}}, ValueError),
        ({"extra": {"weights": (np.float32, ())}}, ValueError),
        ({"extra": {"mask": (np.bool_, (3,))}}, ValueError),
        ({"num_masked": -1}, ValueError),
        ({"num_masked": 1.5}, TypeError),
        ({"final_masks": True}, ValueError),
        ({"extra": {f"x{i}": (np.float32, ()) for i in range(17)}}, ValueError),
    ],
)
def test_bad_arguments_of_a_replay(options, error):
    arguments = {"capacity": 10, "obs_shape": (3,), **options}
    with pytest.raises(error):
        Replay(arguments.pop("capacity"), arguments.pop("obs_shape"), **arguments)


def test_all_extra_fields_must_be_given():
    replay = Replay(10, (1,), extra=EXTRA)
    obs = np.zeros(1, np.float32)
    for extra in ({}, {"extra": 1.0, "more": 2.0}, {"other": 1.0}):
        with pytest.raises(TypeError):
            replay.add(obs, 0, 0.0, obs, False, False, **extra)
    assert len(replay) == 0
