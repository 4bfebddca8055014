"""The Gymnasium environments of CAGE 2."""

from __future__ import annotations

import itertools
import os
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import fastrl
from fastrl.envs.cage2.env import ACTIONS, EFFECTIVE_ACTIONS, HOSTS, Cage2Env, Cage2VectorEnv
from fastrl.envs.cage2.network_picture import NetworkState, network_picture

MODES = ["next_step", "same_step", "disabled"]


def random_actions(n: int, steps: int, seed: int = 0, actions: int = 145) -> np.ndarray:
    return np.random.default_rng(seed).integers(actions, size=(steps, n))


def test_registered_for_make_and_make_vec() -> None:
    env = gymnasium.make("fastrl/Cage2-v0", red_agent="meander")
    assert isinstance(env.unwrapped, Cage2Env)
    vector = gymnasium.make_vec(
        "fastrl/Cage2-v0", num_envs=3, vectorization_mode="vector_entry_point", ruleset="leaderboard"
    )
    assert isinstance(vector, Cage2VectorEnv) and vector.num_envs == 3
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP is vector.autoreset_mode
    assert vector.spec is not None and vector.spec.id == "fastrl/Cage2-v0"


def test_gymnasium_accepts_the_single_env() -> None:
    check_env(Cage2Env(info_state=True, memory="full"), skip_render_check=True)


def test_spaces_are_those_of_the_challenge() -> None:
    env = Cage2VectorEnv(5)
    assert env.single_observation_space.shape == (52,) and env.single_action_space.n == 145
    assert env.observation_space.shape == (5, 52) and env.action_space.shape == (5,)
    assert ACTIONS[:3] == ("Sleep", "Monitor", "Analyse Defender")
    assert ACTIONS[28] == "DecoyApache Defender" and ACTIONS[144] == "Restore User4"


def test_single_env_and_row_of_the_vector_env_agree() -> None:
    vector, actions = Cage2VectorEnv(4, red_agent="meander"), random_actions(4, 100)
    obs, _ = vector.reset(seed=10)
    for i in range(4):
        single = gymnasium.make("fastrl/Cage2-v0", red_agent="meander")
        first, _ = single.reset(seed=10 + i)
        np.testing.assert_array_equal(first, obs[i])
    singles = [gymnasium.make("fastrl/Cage2-v0", red_agent="meander") for _ in range(4)]
    for i, single in enumerate(singles):
        single.reset(seed=10 + i)
    for row in actions:
        got = vector.step(row)
        for i, single in enumerate(singles):
            one = single.step(row[i])
            np.testing.assert_array_equal(one[0], got[0][i])
            assert one[1:4] == (got[1][i], got[2][i], got[3][i])
    assert got[3].all() and not got[2].any()


@pytest.mark.parametrize("length", [1, 7, 100])
def test_episodes_are_truncated_never_terminated(length: int) -> None:
    env = Cage2VectorEnv(2, episode_length=length, autoreset_mode="same_step")
    env.reset(seed=0)
    for t in range(1, 2 * length + 1):
        _, _, terminated, truncated, _ = env.step([0, 0])
        assert not terminated.any() and truncated.all() == truncated.any() == (t % length == 0)


def test_max_episode_steps_takes_precedence() -> None:
    assert Cage2VectorEnv(1, max_episode_steps=30).episode_length == 30


def test_same_step_keeps_the_true_last_observation() -> None:
    same, plain = Cage2VectorEnv(3, autoreset_mode="same_step"), Cage2VectorEnv(3, autoreset_mode="disabled")
    same.reset(seed=5)
    plain.reset(seed=5)
    for row in random_actions(3, 100):
        obs_same, *_, info = same.step(row)
        obs, *_ = plain.step(row)
    np.testing.assert_array_equal(info["final_obs"], obs)
    assert info["_final_obs"].all() and info["_final_info"].all()
    np.testing.assert_array_equal(obs_same, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_info_state_has_the_true_state(mode: str) -> None:
    env = Cage2VectorEnv(2, autoreset_mode=mode, info_state=True, episode_length=20)
    _, info = env.reset(seed=1)
    assert info["red_access"].shape == (2, 13) and info["_red_access"].all()
    np.testing.assert_array_equal(info["red_access"][0], np.eye(13, dtype=np.uint8)[8] * 2)
    for _ in range(20):
        _, _, _, truncated, info = env.step([0, 0])
    assert truncated.all()
    last = info["final_info"] if mode == "same_step" else info
    # Without a defence B_line owns Op_Server0 by then and has begun to impact it.
    assert (last["red_access"][:, HOSTS.index("Op_Server0")] == 2).all()
    assert (last["red_action"][:, 0] == 5).all()
    if mode == "same_step":
        assert (info["red_access"][:, HOSTS.index("Op_Server0")] == 0).all(), "of the new episode"


def test_info_state_does_not_change_the_episodes() -> None:
    runs = []
    for info_state in (False, True):
        env = Cage2VectorEnv(
            3, autoreset_mode="same_step", info_state=info_state, episode_length=9, red_agent="mix"
        )
        env.reset(seed=2)
        runs.append([env.step(row)[:4] for row in random_actions(3, 40)])
    for plain, with_state in zip(*runs, strict=True):
        for a, b in zip(plain, with_state, strict=True):
            np.testing.assert_array_equal(a, b)


def test_step_into_fills_a_rollout() -> None:
    env, twin = Cage2VectorEnv(4, autoreset_mode="same_step"), Cage2VectorEnv(4, autoreset_mode="same_step")
    obs = np.full((121, 4, 52), np.nan, np.float32)
    rewards = np.zeros((120, 4), np.float32)
    ends = np.zeros((2, 120, 4), np.bool_)
    final = np.full((4, 52), np.nan, np.float32)
    env.reset_into(obs[0], seed=3)
    expected, _ = twin.reset(seed=3)
    np.testing.assert_array_equal(obs[0], expected)
    for t, row in enumerate(random_actions(4, 120)):
        env.step_into(row, obs[t + 1], rewards[t], ends[0, t], ends[1, t], final)
        expected, reward, terminated, truncated, info = twin.step(row)
        np.testing.assert_array_equal(obs[t + 1], expected)
        np.testing.assert_array_equal(rewards[t], reward.astype(np.float32))
        np.testing.assert_array_equal(ends[:, t], [terminated, truncated])
        if truncated.any():
            np.testing.assert_array_equal(final, info["final_obs"])
        elif t < 99:
            assert np.isnan(final).all(), "left alone until an episode ends"


def test_effective_actions_leave_out_impossible_decoys() -> None:
    names = {ACTIONS[a] for a in EFFECTIVE_ACTIONS}
    assert "Sleep" in names and "Monitor" not in names and "Analyse Defender" not in names
    assert "DecoyFemitter Enterprise0" not in names, "Femitter runs on Windows"
    assert "DecoySSHD User2" in names and "DecoySSHD User1" not in names, "User1 runs its own sshd"
    env = Cage2VectorEnv(1, actions="effective")
    assert env.single_action_space.n == len(EFFECTIVE_ACTIONS) == len(env.actions)


def test_masked_actions_really_have_no_effect() -> None:
    """A masked action leaves the same state and reward as Sleep, except for random draws."""
    env = Cage2VectorEnv(1, info_state=True, autoreset_mode="disabled", red_agent="meander")
    env.reset(seed=8)
    rng = np.random.default_rng(0)
    for _ in range(60):
        state, mask = env.save_state(), env.action_masks()[0]
        env.step([0])
        asleep = env.save_state()
        for action in rng.choice(np.flatnonzero(~mask), 5):
            env.load_state(state)
            env.step([action])
            assert env.save_state() == asleep, ACTIONS[action]
        env.load_state(state)
        env.step([rng.choice(np.flatnonzero(mask))])


def test_a_running_decoy_is_masked_until_the_host_is_restored() -> None:
    env = Cage2VectorEnv(1)
    env.reset(seed=0)
    decoy, restore = ACTIONS.index("DecoyApache Enterprise0"), ACTIONS.index("Restore Enterprise0")
    assert env.action_masks()[0, decoy]
    env.step([decoy])
    assert not env.action_masks()[0, decoy]
    env.step([restore])
    assert env.action_masks()[0, decoy]


def test_an_action_subset_is_indexed_from_zero() -> None:
    restore = ACTIONS.index("Restore User1")
    few, full = Cage2VectorEnv(1, actions=[0, restore]), Cage2VectorEnv(1)
    few.reset(seed=1)
    full.reset(seed=1)
    for a in (0, 1, 1, 0):
        assert few.step([a])[1] == full.step([[0, restore][a]])[1]
    assert few.action_masks().shape == (1, 2)


def test_the_mix_is_drawn_per_episode_and_named() -> None:
    env = Cage2VectorEnv(400, red_agent={"bline": 1, "meander": 2, "sleep": 1}, episode_length=1)
    env.reset(seed=0)
    shares = np.bincount(env.red_agents(), minlength=3) / 400
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.1)


def test_render_has_blues_view_and_the_true_state() -> None:
    env = gymnasium.make("fastrl/Cage2-v0", render_mode="ansi")
    env.reset(seed=0)
    env.step(0)
    text = env.render()
    assert isinstance(text, str)
    assert all(host in text for host in HOSTS) and "DiscoverRemoteSystems User, worked" in text
    assert len(Cage2VectorEnv(3, render_mode="ansi").reset()[0]) == 3
    assert Cage2Env().render() is None


def test_the_picture_of_a_network_shows_what_red_holds_and_blue_does() -> None:
    states = []
    for access, blue in ((0, ""), (1, ""), (2, ""), (0, "Restore User0")):
        red_access = np.zeros(len(HOSTS), np.uint8)
        red_access[HOSTS.index("User0")] = access
        states.append(NetworkState("title", red_access, blue, 0.0))
    alone = [network_picture(state, note="step 1") for state in states]
    assert {(picture.shape, picture.dtype) for picture in alone} == {((320, 360, 3), np.dtype(np.uint8))}
    for left, right in itertools.combinations(alone, 2):
        rows, columns = np.nonzero((left != right).any(axis=-1))
        # Only the first host of the first subnet differs, and the line that names blue's action.
        box = (rows > 60) & (rows < 95) & (columns < 125)
        assert box.any() and (box | (rows > 270)).all()
    # Beside each other, they are as alone, but for what stands below them.
    both = network_picture(*states[1:3], note="step 1")
    np.testing.assert_array_equal(both[:270], np.concatenate(alone[1:3], axis=1)[:270])


def test_a_game_is_drawn_in_colour() -> None:
    env = gymnasium.make("fastrl/Cage2-v0", render_mode="rgb_array")
    env.reset(seed=0)
    pictures = [env.render()]
    for _ in range(2):
        env.step(0)
        pictures.append(env.render())
    assert all(picture.shape == (512, 576, 3) for picture in pictures)
    assert all((a != b).any() for a, b in itertools.pairwise(pictures))
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), pictures[0])
    with pytest.raises(ValueError, match="render_mode"):
        Cage2Env(render_mode="human")


def test_unseeded_environments_differ() -> None:
    streams = []
    for _ in range(2):
        env = Cage2VectorEnv(50)
        env.reset()
        streams.append([env.step([0] * 50)[0] for _ in range(5)])
    assert not np.array_equal(*streams)


def test_call_get_attr_set_attr() -> None:
    env = Cage2VectorEnv(3)
    env.reset(seed=0)
    assert env.get_attr("episode_length") == (100, 100, 100)
    assert [m.shape for m in env.call("action_masks")] == [(145,)] * 3
    env.set_attr("label", ["a", "b", "c"])
    assert env.get_attr("label") == ("a", "b", "c")
    with pytest.raises(AttributeError, match="fixed"):
        env.set_attr("episode_length", 5)
    with pytest.raises(ValueError, match="expected 3"):
        env.set_attr("label", ["a"])
    with pytest.raises(AttributeError):
        env.get_attr("nothing_of_this_name")


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_envs": 0}, ValueError, "num_envs: expected 1"),
    ({"num_envs": -3}, ValueError, "num_envs"),
    ({"num_envs": 10**12}, ValueError, "num_envs"),
    ({"num_envs": 2.0}, TypeError, "num_envs: expected an integer"),
    ({"ruleset": "mian"}, ValueError, "ruleset: expected 'main', 'leaderboard' or 'plusplus', got 'mian'"),
    ({"red_agent": "blin"}, ValueError, "red_agent: expected 'bline', 'meander' or 'sleep', got 'blin'"),
    ({"red_agent": {}}, ValueError, "red_agent"),
    ({"red_agent": {"bline": float("nan")}}, ValueError, "positive weights"),
    ({"red_agent": {"bline": -1.0}}, ValueError, "positive weights"),
    ({"episode_length": 0}, ValueError, "episode_length: expected 1"),
    ({"episode_length": True}, TypeError, "episode_length"),
    ({"actions": []}, ValueError, "actions"),
    ({"actions": [0, 145]}, ValueError, "actions"),
    ({"actions": [3, 3]}, ValueError, "actions"),
    ({"actions": "all"}, ValueError, "actions"),
    ({"memory": "all"}, ValueError, "memory: expected 'none', 'scan', 'decoys' or 'full', got 'all'"),
    ({"memory": True}, ValueError, "memory: expected"),
    ({"observe": "all"}, ValueError, "observe: expected 'blue' or 'truth', got 'all'"),
    ({"num_threads": -1}, ValueError, "num_threads"),
    ({"num_threads": 10**6}, ValueError, "num_threads"),
    ({"autoreset_mode": "later"}, ValueError, "autoreset_mode: expected 'next_step'"),
    ({"random": "numpy"}, ValueError, "random: expected 'fast' or 'python'"),
    ({"random": "python", "red_agent": "mix"}, ValueError, "single red agent"),
    ({"render_mode": "human"}, ValueError, "render_mode"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_bad_options_are_named(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Cage2VectorEnv(**options)


def test_single_env_names_vector_options() -> None:
    with pytest.raises(TypeError, match="num_envs belongs to the vector environment"):
        Cage2Env(num_envs=4)


def test_environments_do_not_pickle_silently() -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(Cage2VectorEnv(1))


def test_use_after_fork_is_refused() -> None:
    env = Cage2VectorEnv(200, num_threads=2)
    env.reset(seed=0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            env.step(np.zeros(200, np.int64))
            answer = b"stepped"
        except RuntimeError as error:
            answer = str(error).encode()
        env.close()
        os.write(write, answer)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert b"fork" in pipe.read()
    env.step(np.zeros(200, np.int64))


def test_version_is_the_package_version() -> None:
    from importlib.metadata import version

    assert fastrl.__version__ == version("fastrl")
