"""fastrl.envs.AsyncNativeVectorEnv: the same episodes as sequential environments, in any order."""

from __future__ import annotations

import os
import signal
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from waiting import TIMEOUT, wait_until

import fastrl
from fastrl.envs import AsyncNativeVectorEnv, Cage2VectorEnv, CoopVectorEnv, HighwayVectorEnv, RingVectorEnv
from fastrl.utils.seeding import env_seed

SEED = 11

# Id, options and length of episodes, which are short enough to end.
CASES = [
    ("fastrl/Cage2-v0", {"episode_length": 7}),
    ("fastrl/highway-fast-v0", {"config": {"vehicles_count": 5, "duration": 4}}),
    ("fastrl/ring-v0", {"horizon": 6, "warmup_steps": 3}),
    ("fastrl/Pendulum-v1", {"max_episode_steps": 6}),
]


def make(env_id, options, num_envs, **keywords):
    env = gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
    return AsyncNativeVectorEnv(env, seed=SEED, **keywords)


def action_of(space, rng):
    if isinstance(space, Discrete):
        return int(rng.integers(space.n))
    return rng.uniform(space.low, space.high).astype(np.float32)


@pytest.mark.parametrize(("env_id", "options"), CASES)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_episodes_are_those_of_sequential_environments(env_id, options, num_threads):
    assert fastrl.__version__
    num_envs, num_steps = 5, 20
    env = make(env_id, options, num_envs, num_threads=num_threads)
    twin = gymnasium.make(env_id, **options)
    order = np.random.default_rng(num_threads)
    actors = [np.random.default_rng(env_id) for env_id in range(num_envs)]
    got = [[] for _ in range(num_envs)]
    masks = [[] for _ in range(num_envs)]
    sent = [[] for _ in range(num_envs)]
    env.reset()
    while env.in_flight:
        batch = env.recv(int(order.integers(1, env.in_flight + 1)))
        for i, env_id in enumerate(batch.env_ids):
            got[env_id].append([value[i] for value in batch[1:6]])
        if env.num_masked:
            for env_id, mask in zip(batch.env_ids, env.action_masks(batch.env_ids), strict=True):
                masks[env_id].append(mask.tolist())
        more = [env_id for env_id in batch.env_ids.tolist() if len(got[env_id]) <= num_steps]
        for env_id in order.permutation(more).astype(np.int64):
            sent[env_id].append(action_of(env.single_action_space, actors[env_id]))
            env.send(np.array([sent[env_id][-1]]), np.array([env_id]))
    env.close()

    ends = 0
    for env_id in range(num_envs):
        number = 0
        obs, _ = twin.reset(seed=env_seed(SEED, env_id, number))
        seen_masks = iter(masks[env_id])
        assert not env.num_masked or next(seen_masks) == twin.get_wrapper_attr("action_masks")().tolist()
        np.testing.assert_array_equal(got[env_id][0][0], np.ravel(obs).astype(np.float32))
        assert [value.item() for value in got[env_id][0][1:4]] == [0.0, False, False]
        for action, (seen, reward, terminated, truncated, final_obs) in zip(
            sent[env_id], got[env_id][1:], strict=True
        ):
            obs, expected, *flags, _ = twin.step(action)
            assert reward == np.float32(expected)
            assert [terminated, truncated] == flags
            if any(flags):
                ends += 1
                number += 1
                np.testing.assert_array_equal(final_obs, np.ravel(obs).astype(np.float32))
                obs, _ = twin.reset(seed=env_seed(SEED, env_id, number))
            np.testing.assert_array_equal(seen, np.ravel(obs).astype(np.float32))
            assert not env.num_masked or next(seen_masks) == twin.get_wrapper_attr("action_masks")().tolist()
    assert ends >= num_envs
    twin.close()


def cage2(num_envs=3, **keywords):
    return AsyncNativeVectorEnv(Cage2VectorEnv(num_envs, episode_length=2), **keywords)


def ids(*values):
    return np.array(values, np.int64)


def test_without_autoreset_the_caller_chooses_the_episodes():
    env = cage2(2, seed=5, autoreset_mode="disabled")
    twin = Cage2VectorEnv(1, episode_length=2)
    env.reset(ids(1), streams=ids(2**32), numbers=ids(40))
    batch = env.recv()
    for action in (3, 4):
        env.send([action], batch.env_ids)
        batch = env.recv()
    assert batch.truncations.tolist() == [True]
    np.testing.assert_array_equal(batch.obs, batch.final_obs)
    twin.reset(seed=env_seed(5, 2**32, 40))
    twin.step([3])
    np.testing.assert_array_equal(batch.obs, twin.step([4])[0])
    with pytest.raises(
        gymnasium.error.ResetNeeded, match="environment 1 has ended and autoreset is disabled"
    ):
        env.send([0], ids(1))
    env.reset(ids(1), streams=ids(2**32), numbers=ids(41))
    np.testing.assert_array_equal(env.recv().obs, twin.reset(seed=env_seed(5, 2**32, 41))[0])
    env.close()


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_infos_are_of_the_episodes_that_ended(mode):
    env = AsyncNativeVectorEnv(
        Cage2VectorEnv(4, episode_length=2, red_agent="mix"),
        seed=3,
        autoreset_mode=mode,
        episode_info=("red_agent", "none"),
    )
    twin = Cage2VectorEnv(4, episode_length=2, red_agent="mix", autoreset_mode="disabled")
    seen = set()
    for number in range(4):
        if mode == "disabled" or number == 0:
            env.reset(numbers=np.full(4, number))
            env.recv()
        for _ in range(2):
            env.send(np.zeros(4, np.int64), np.arange(4))
            batch = env.recv()
        assert batch.truncations.all()
        twin.reset(seed=[env_seed(3, env_id, number) for env_id in range(4)])
        np.testing.assert_array_equal(batch.episode_info[:, 0], twin.red_agents()[batch.env_ids])
        assert np.isnan(batch.episode_info[:, 1]).all()
        seen |= set(batch.episode_info[:, 0].tolist())
    assert len(seen) == 2
    env.close()


def test_masks_that_cannot_be_read_are_refused():
    env = cage2()
    env.reset()
    with pytest.raises(ValueError, match="environment 0 is in flight"):
        env.action_masks(np.arange(3))
    env.recv()
    with pytest.raises(ValueError, match="environment 1 is named twice"):
        env.action_masks(ids(1, 1))
    env.close()
    rings = AsyncNativeVectorEnv(RingVectorEnv(2))
    with pytest.raises(ValueError, match="expected environments that have masks"):
        rings.action_masks(ids(0))
    rings.close()


def test_misplaced_calls_are_refused_and_change_nothing():
    env = cage2()
    with pytest.raises(gymnasium.error.ResetNeeded, match="environment 0 was never reset"):
        env.send([0], ids(0))
    with pytest.raises(ValueError, match="at least 1 environment, got 0; 0 are in flight"):
        env.recv()
    env.reset()
    assert env.in_flight == 3
    with pytest.raises(ValueError, match="environment 2 is in flight"):
        env.reset(ids(2))
    for count in (4, 10**12):
        with pytest.raises(ValueError, match="at most 3 environments, as many as are in flight, got 4"):
            env.recv(count)
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"at least 1 environment, got {count}"):
            env.recv(count)
    env.recv(3)
    refused = [
        ([0, 0], ids(0, 3), ValueError, "env_ids: expected 0 to 2, got 3"),
        ([0, 0], ids(0, -1), ValueError, "env_ids: expected 0 to 2, got -1"),
        ([0, 0], ids(1, 1), ValueError, "environment 1 is named twice"),
        ([0, 145], ids(0, 1), ValueError, "action of environment 1: expected an integer from 0 to 144"),
        ([0, -1], ids(0, 1), ValueError, "action of environment 1"),
        ([0], ids(0, 1), ValueError, r"actions: .*\(2,\), got shape \(1,\)"),
        ([0.0, 1.0], ids(0, 1), TypeError, "actions: expected integers, got dtype float64"),
        ([0], [0], TypeError, "env_ids: expected .* got list"),
        ([0], np.zeros(1), TypeError, "env_ids: expected .* int64 .* got dtype float64"),
    ]
    for actions, env_ids, error, match in refused:
        with pytest.raises(error, match=match):
            env.send(actions, env_ids)
    assert env.in_flight == 0
    env.send([0, 0], ids(0, 1))
    with pytest.raises(ValueError, match="environment 1 is in flight"):
        env.send([0], ids(1))
    assert sorted(env.recv().env_ids) == [0, 1]
    for changes in ({"streams": ids(-1)}, {"numbers": ids(-1)}):
        with pytest.raises(ValueError, match="expected no number below 0"):
            env.reset(ids(0), **changes)
    with pytest.raises(TypeError, match="streams: expected integers"):
        env.reset(ids(0), streams=np.zeros(1))
    env.reset()
    with pytest.raises(ValueError, match="timeout: expected None or at least 0"):
        env.recv(1, timeout=-1.0)
    env.close()


def test_continuous_actions():
    env = AsyncNativeVectorEnv(RingVectorEnv(2, warmup_steps=0))
    env.reset()
    env.recv()
    for bad in (np.nan, 100.0):
        with pytest.raises(ValueError, match="action of environment 1"):
            env.send([[0.0], [bad]], ids(0, 1))
    with pytest.raises(TypeError, match="actions: expected numbers"):
        env.send(["fast"], ids(0))
    env.send([[0.5]], ids(1))
    assert env.recv().env_ids == [1]
    env.close()


def test_invalid_options_are_refused():
    with pytest.raises(ValueError, match="expected 'same_step' or 'disabled', got 'next_step'"):
        cage2(autoreset_mode="next_step")
    with pytest.raises(ValueError, match="num_threads: expected 0"):
        cage2(num_threads=1025)
    with pytest.raises(ValueError, match="seed: expected 0"):
        cage2(seed=-1)
    many = CoopVectorEnv(2)
    with pytest.raises(TypeError, match="env: expected a NativeVectorEnv, got CoopVectorEnv"):
        AsyncNativeVectorEnv(many)
    many.reset()
    taken = Cage2VectorEnv(2)
    AsyncNativeVectorEnv(taken).close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        taken.reset()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        AsyncNativeVectorEnv(taken)


def slow_highways(num_envs):
    config = {"vehicles_count": 400, "simulation_frequency": 100, "policy_frequency": 1}
    return AsyncNativeVectorEnv(HighwayVectorEnv(num_envs, config=config), num_threads=1)


def test_recv_times_out_and_loses_no_environment():
    env = slow_highways(2)
    env.reset()
    env.recv()

    def came_too_early():
        env.send([1, 1], ids(0, 1))
        try:
            env.recv(2, timeout=0.0)
        except TimeoutError as error:
            assert "no 2 environments were ready within 0.0 s" in str(error)  # noqa: PT017
            return True
        return False

    # After a long wait the environments are ready.
    wait_until(came_too_early)
    assert env.in_flight == 2
    assert len(env.recv(2, timeout=TIMEOUT).env_ids) == 2
    assert env.busy_seconds > 0
    env.close()


def test_closing_while_environments_step():
    for _ in range(5):
        env = slow_highways(4)
        env.reset()
        env.close()
        env.close()
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            env.recv(1)


def test_a_second_thread_is_refused_during_recv():
    env = slow_highways(8)
    env.reset()
    env.recv()
    seen = []

    def wait():
        seen.append(env.recv(8))

    def times_refused():
        env.send(np.ones(8, np.int64), np.arange(8))
        thread = threading.Thread(target=wait)
        thread.start()
        refused = 0
        while thread.is_alive():
            try:
                assert env.in_flight in (0, 8)
            except RuntimeError as error:
                assert "another thread" in str(error)  # noqa: PT017
                refused += 1
        thread.join()
        assert len(seen.pop().env_ids) == 8
        return refused

    # The other thread may have finished before this one checks.
    wait_until(times_refused)
    env.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_refused_with_advice():
    env = cage2()
    env.reset()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                env.recv()
            except RuntimeError as error:
                code = 0 if "this is a fork of it" in str(error) else 2
            env.close()
            del env
        finally:
            os._exit(code)
    signal.alarm(int(TIMEOUT))
    assert os.waitpid(child, 0)[1] == 0
    signal.alarm(0)
    assert len(env.recv().env_ids) == 3
    env.close()
