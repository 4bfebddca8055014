"""The compiled vector environment refuses invalid input and stays usable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.vector import as_autoreset_mode

N = 3


def arrays() -> dict[str, Any]:
    return {
        "actions": np.zeros(N, np.int64),
        "obs": np.zeros((N, 52), np.float32),
        "rewards": np.zeros(N, np.float32),
        "terminations": np.zeros(N, np.bool_),
        "truncations": np.zeros(N, np.bool_),
        "final_obs": np.zeros((N, 52), np.float32),
    }


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def misaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    return raw.view(array.dtype).reshape(array.shape)


BROKEN: list[tuple[str, Callable[[np.ndarray], Any], type[Exception], str]] = [
    ("obs", lambda a: a.astype(np.float64), TypeError, "float32 array of shape .3, 52., got dtype float64"),
    ("obs", lambda a: a[:2], ValueError, r"got shape \(2, 52\)"),
    ("obs", lambda a: a.ravel(), ValueError, r"got shape \(156,\)"),
    ("obs", lambda a: np.zeros((N, 104), np.float32)[:, ::2], ValueError, "strided view"),
    ("obs", lambda a: np.asfortranarray(a), ValueError, "strided view"),
    ("obs", read_only, ValueError, "read-only"),
    ("obs", misaligned, ValueError, "misaligned"),
    ("obs", lambda a: a.astype(">f4"), TypeError, "got dtype >f4"),
    ("obs", lambda a: a.tolist(), TypeError, "got list"),
    ("obs", lambda a: None, TypeError, "got NoneType"),
    ("actions", lambda a: a.astype(np.int32), TypeError, "int64"),
    ("actions", lambda a: a.astype(np.float32), TypeError, "int64"),
    ("actions", lambda a: a + 145, ValueError, "environment 0: expected an integer from 0 to 144"),
    ("actions", lambda a: a - 1, ValueError, "environment 0"),
    ("actions", lambda a: np.array([0, 0, 2**62]), ValueError, "environment 2"),
    ("rewards", lambda a: a.astype(np.float16), TypeError, "rewards"),
    ("rewards", lambda a: a.reshape(N, 1), ValueError, "rewards"),
    ("rewards", read_only, ValueError, "read-only"),
    ("terminations", lambda a: a.astype(np.uint8), TypeError, "bool"),
    ("truncations", read_only, ValueError, "read-only"),
    ("final_obs", lambda a: a[0], ValueError, "final_obs"),
]


@pytest.mark.parametrize(("name", "break_it", "kind", "message"), BROKEN)
def test_unusable_arrays_are_refused(
    name: str, break_it: Callable[[np.ndarray], Any], kind: type[Exception], message: str
) -> None:
    env = Cage2VectorEnv(N, autoreset_mode="same_step")
    env.reset(seed=0)
    before, given_arrays = env.save_state(), arrays()
    given_arrays[name] = break_it(given_arrays[name])
    with pytest.raises(kind, match=message):
        env.step_into(**given_arrays)
    assert env.save_state() == before


def test_arrays_that_share_memory_are_refused() -> None:
    env = Cage2VectorEnv(N, autoreset_mode="same_step")
    env.reset(seed=0)
    a = arrays()
    a["final_obs"] = a["obs"]
    with pytest.raises(ValueError, match="share memory"):
        env.step_into(**a)
    a = arrays()
    a["truncations"] = a["terminations"]
    with pytest.raises(ValueError, match="terminations and truncations share memory"):
        env.step_into(**a)
    a = arrays()
    whole = np.zeros(2 * N, np.float32)
    a["rewards"], a["obs"] = whole[:N], np.zeros((N, 52), np.float32)
    env.step_into(**a)


def test_final_obs_belongs_to_same_step() -> None:
    env = Cage2VectorEnv(N)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="same_step"):
        env.step_into(**arrays())


@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.int64, np.int32, np.uint8, np.uint64, np.float64, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_any_array_of_actions_is_stepped_or_refused(actions: np.ndarray) -> None:
    env = Cage2VectorEnv(N)
    env.reset(seed=0)
    before = env.save_state()
    usable = (
        actions.dtype.kind in "iu"
        and actions.shape == (N,)
        and bool(((actions >= 0) & (actions < 145)).all())
    )
    if usable:
        env.step(actions)
        assert env.save_state() != before
    else:
        with pytest.raises((TypeError, ValueError)):
            env.step(actions)
        assert env.save_state() == before


def test_step_before_reset() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="never reset"):
        Cage2VectorEnv(N).step([0] * N)
    with pytest.raises(gymnasium.error.ResetNeeded, match="never reset"):
        Cage2VectorEnv(N).reset(options={"reset_mask": np.array([True, False, False])})


def test_disabled_requires_a_reset_after_an_end() -> None:
    env = Cage2VectorEnv(N, autoreset_mode="disabled", episode_length=1)
    env.reset(seed=0)
    env.step([0] * N)
    with pytest.raises(gymnasium.error.ResetNeeded, match="environment 0 has ended"):
        env.step([0] * N)
    env.reset(options={"reset_mask": np.array([True, True, False])})
    with pytest.raises(gymnasium.error.ResetNeeded, match="environment 2 has ended"):
        env.step([0] * N)


def test_close_is_final_and_idempotent() -> None:
    env = Cage2VectorEnv(N)
    env.reset(seed=0)
    env.close()
    env.close()
    for use in (
        lambda: env.step([0] * N),
        env.reset,
        env.save_state,
        env.action_masks,
        lambda: env.load_state(b""),
    ):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (-1, ValueError),
        (2**64, ValueError),
        (1.5, TypeError),
        ("7", TypeError),
        (True, TypeError),
        ([1, 2], ValueError),
        ([1, 2, None], ValueError),
        ([1, 2, -3], ValueError),
        (2**64 - 2, ValueError),
    ],
)
def test_bad_seeds(seed: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="seed"):
        Cage2VectorEnv(N).reset(seed=seed)


@pytest.mark.parametrize(
    "mask",
    [
        np.zeros(N, np.bool_),
        np.ones(N + 1, np.bool_),
        np.ones(N, np.int64),
        [True] * N,
        np.ones((N, 1), bool),
    ],
)
def test_bad_reset_masks(mask: Any) -> None:
    env = Cage2VectorEnv(N)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises((TypeError, ValueError), match="reset_mask"):
        env.reset(options={"reset_mask": mask})
    assert env.save_state() == before


def test_unknown_reset_option_is_named() -> None:
    with pytest.raises(ValueError, match="'resetmask'"):
        Cage2VectorEnv(N).reset(options={"resetmask": None})


def test_states_are_checked() -> None:
    env = Cage2VectorEnv(N)
    env.reset(seed=0)
    state = env.save_state()
    flipped = bytearray(state)
    flipped[len(state) // 2] ^= 16
    for bad, why in [
        (b"", "not a state"),
        (b"x" * 100, "not a state"),
        (state[:-1], "damaged"),
        (bytes(flipped), "damaged"),
        (Cage2VectorEnv(N, ruleset="leaderboard").save_state(), "it was saved by"),
        (Cage2VectorEnv(N + 1).save_state(), "it holds 4 environments, here are 3"),
    ]:
        with pytest.raises(ValueError, match=why):
            env.load_state(bad)
        assert env.save_state() == state


def test_a_second_thread_is_refused_during_a_step() -> None:
    """While one thread steps a large batch without the GIL, a call of the other raises, without a data race."""
    env = Cage2VectorEnv(20_000, num_threads=1)
    env.reset(seed=0)
    actions = np.zeros(20_000, np.int64)
    refused, stop = [], threading.Event()

    def interfere() -> None:
        while not stop.is_set():
            try:
                env.red_agents()
            except RuntimeError as error:
                refused.append(str(error))
                return

    thread = threading.Thread(target=interfere)
    thread.start()
    stepped = 0
    while not refused and stepped < 2000:
        with contextlib.suppress(RuntimeError):
            env.step(actions)
        stepped += 1
    stop.set()
    thread.join()
    assert refused and "another thread" in refused[0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_modes_by_enum_value_and_name(mode: AutoresetMode) -> None:
    assert (
        as_autoreset_mode(mode)
        is as_autoreset_mode(mode.value)
        is as_autoreset_mode(mode.name.lower())
        is mode
    )
