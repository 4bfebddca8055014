"""CAGE Challenge 2 as a game of two agents: red's actions, masks and observations, the scripted reds, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastrl.envs import Cage2GameVectorEnv, Cage2VectorEnv, make_multi
from fastrl.envs.adapters import parallel_env
from fastrl.envs.cage2.env import ACTIONS, HOSTS
from fastrl.envs.cage2.game import RED_ACTIONS, RED_VIEW
from fastrl.envs.cage2.memory import Ruleset, observation_names
from fastrl.envs.cage2.traces import load_trace

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "cage2"
BLUE, RED = 0, 1


def act(name: str) -> int:
    return RED_ACTIONS.index(name)


def view(env: Cage2GameVectorEnv) -> set[str]:
    """Names of red's values of the first game that are 1."""
    row = env.observe()[0].reshape(env.num_envs, 2, -1)[0, RED, : len(RED_VIEW)]
    return {name for name, value in zip(RED_VIEW, row, strict=True) if value == 1}


@pytest.mark.parametrize("ruleset", get_args(Ruleset))
@pytest.mark.parametrize("red_agent", ["bline", "meander", "sleep", "mix"])
def test_scripted_reds_play_the_same_games_through_the_interface(ruleset: Any, red_agent: str) -> None:
    options: dict[str, Any] = {
        "ruleset": ruleset,
        "red_agent": red_agent,
        "memory": "full",
        "observe": "truth",
        "autoreset_mode": "same_step",
        "num_threads": 1,
    }
    game, alone = Cage2GameVectorEnv(5, **options), Cage2VectorEnv(5, **options)
    (obs, _), (expected, _) = game.reset(seed=3), alone.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(250):
        np.testing.assert_array_equal(obs[:, BLUE], expected)
        blue = rng.integers(145, size=5)
        red = game.choose_red()
        assert game.action_masks().reshape(5, 2, -1)[range(5), RED, red].all()
        obs, rewards, terminations, truncations, alive, _ = game.step(np.stack([blue, red], 1))
        expected, reward, _, truncated, _ = alone.step(blue)
        np.testing.assert_array_equal(rewards[:, BLUE], reward.astype(np.float32))
        np.testing.assert_array_equal(rewards[:, RED], -rewards[:, BLUE])
        assert (truncations == truncated[:, None]).all() and not terminations.any() and alive.all()


@pytest.mark.parametrize("ruleset", get_args(Ruleset))
def test_a_game_of_cyborg_is_reproduced_from_its_seed(ruleset: Any) -> None:
    trace = load_trace(GOLDEN / f"{ruleset}_given_mixed.npz")
    arrays = trace.arrays
    env = Cage2GameVectorEnv(1, ruleset=ruleset, random="python", num_threads=1)
    env.reset(seed=trace.seed)
    first = {1: 1, 2: 4, 3: 17, 4: 30, 5: 43}
    expected = np.unpackbits(arrays["obs"], axis=1)[:, :52]
    for i, blue in enumerate(arrays["blue_action"]):
        kind, target = int(arrays["red_kind"][i]), int(arrays["red_target"][i])
        red = first[kind] + target if kind else 0
        obs, rewards, _, truncations, _, info = env.step([[blue, red]])
        last = info["final_obs"] if truncations[0, 0] else obs
        np.testing.assert_array_equal(last[0, BLUE, :52], expected[i])
        assert rewards[0, BLUE] == arrays["reward"][i]
        success = arrays["red_success"][i]
        named = dict(zip(RED_VIEW, last[0, RED], strict=True))
        assert (named["the last action worked"], named["the last action failed"]) == (
            success == 1,
            success == 0,
        )
        if not truncations[0, 0]:
            known = int(arrays["red_known"][i])
            bits = [known >> bit & 1 for bit in range(29)]
            subnets, addresses, names = bits[:3], bits[3:16], bits[16:]
            masks = env.action_masks().reshape(2, -1)[RED]
            assert masks.tolist() == [True, *subnets, *addresses * 2, *names * 2, *[False] * 89]


def test_red_learns_from_the_results_of_its_actions() -> None:
    env = Cage2GameVectorEnv(1, num_threads=1, autoreset_mode="disabled")
    env.reset(seed=0)
    start = {f"User0: {what}" for what in ("address known", "name known", "exploited", "escalated")}
    assert view(env) == start | {"User: known"} and RED_VIEW[-1] == "share of the episode"

    def play(red: str, blue: str = "Sleep") -> set[str]:
        env.step([[ACTIONS.index(blue), act(red)]])
        return view(env)

    # A host that red cannot name is out of reach, and nothing changes but the result.
    assert play("ExploitRemoteService User1") == start | {"User: known", "the last action failed"}
    assert env.observe()[0][RED, len(RED_VIEW) - 1] == np.float32(0.01)
    seen = play("DiscoverRemoteSystems User")
    users = {f"User{i}: address known" for i in range(5)}
    assert seen == start | users | {
        "User: known",
        "User: swept",
        "the last action worked",
        "the last action showed something",
    }
    seen = play("DiscoverNetworkServices User1")
    assert {"User1: scanned", "User1: port for FTPDirectoryTraversal open"} <= seen
    while "the last action failed" in (seen := play("ExploitRemoteService User1")):
        pass
    assert {"User1: name known", "User1: exploited"} <= seen and "User1: escalated" not in seen
    assert {"User1: escalated", "Enterprise1: address known"} <= play("PrivilegeEscalate User1")
    # Blue takes the host back: red learns so when an action there fails.
    assert "User1: escalated" in play("Sleep", "Restore User1")
    seen = play("PrivilegeEscalate User1")
    assert "the last action failed" in seen and not {"User1: exploited", "User1: escalated"} & seen


def test_each_side_has_its_own_spaces() -> None:
    assert len(RED_ACTIONS) == 1 + 3 + 4 * len(HOSTS) == 56
    env = parallel_env("fastrl/Cage2Game-v0", memory="full")
    assert env.possible_agents == ["blue", "red"]
    blue, red = env.observation_space("blue"), env.observation_space("red")
    assert isinstance(blue, Box) and isinstance(red, Box)
    assert (blue.shape, red.shape) == ((len(observation_names("full")),), (len(RED_VIEW),))
    assert (env.action_space("blue"), env.action_space("red")) == (Discrete(145), Discrete(56))
    padded = parallel_env("fastrl/Cage2Game-v0", pad_spaces=True)
    assert padded.observation_space("blue").shape == padded.observation_space("red").shape == (181,)
    assert padded.action_space("red") == Discrete(145)
    few = parallel_env("fastrl/Cage2Game-v0", actions=[0, 132])
    assert (few.action_space("blue"), few.action_space("red")) == (Discrete(2), Discrete(56))
    obs, infos = few.reset(seed=1)
    assert all(few.observation_space(agent).contains(obs[agent]) for agent in few.agents)
    assert infos["red"]["action_mask"].sum() == 1 + 1 + 2 + 2
    with pytest.raises(ValueError, match=r"action of red: expected one of Discrete\(56\), got 56"):
        few.step({"blue": 0, "red": 56})


def test_actions_beyond_an_agents_own_do_nothing() -> None:
    one, two = (make_multi("fastrl/Cage2Game-v0", 3, actions=[0, 132], num_threads=1) for _ in range(2))
    one.reset(seed=0)
    two.reset(seed=0)
    for _ in range(20):
        results = one.step(np.tile([55, 4], (3, 1))), two.step(np.tile([0, 4], (3, 1)))
        for a, b in zip(results[0][:5], results[1][:5], strict=True):
            np.testing.assert_array_equal(a, b)


def test_games_do_not_depend_on_threads_or_a_restart_from_a_state() -> None:
    one, two = (Cage2GameVectorEnv(300, num_threads=threads, red_agent="mix") for threads in (1, 2))
    one.reset(seed=1)
    two.reset(seed=1)
    rng = np.random.default_rng(2)
    for step in range(130):
        blue = rng.integers(145, size=300)
        red = np.where(rng.random(300) < 0.3, rng.integers(56, size=300), one.choose_red())
        two.choose_red()
        actions = np.stack([blue, red], 1)
        for a, b in zip(one.step(actions)[:5], two.step(actions)[:5], strict=True):
            np.testing.assert_array_equal(a, b)
        if step == 40:
            two = Cage2GameVectorEnv(300, num_threads=2, red_agent="mix")
            two.load_state(one.save_state())


def test_scripted_reds_of_ended_games_sleep() -> None:
    env = Cage2GameVectorEnv(2, episode_length=3, autoreset_mode="next_step", num_threads=1)
    env.reset(seed=0)
    for _ in range(3):
        *_, alive, _ = env.step(np.stack([[0, 0], env.choose_red()], 1))
    assert not alive.any() and env.choose_red().tolist() == [0, 0]
    env.step(np.zeros((2, 2), int))
    assert env.choose_red().tolist() == [act("DiscoverRemoteSystems User")] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ruleset": "x"}, "ruleset: expected 'main', 'leaderboard' or 'plusplus', got 'x'"),
        ({"red_agent": "x"}, "red_agent: expected 'bline', 'meander' or 'sleep', got 'x'"),
        ({"random": "numpy"}, "random: expected 'fast' or 'python', got 'numpy'"),
        ({"random": "python", "red_agent": "mix"}, "random='python' plays a single red agent"),
        ({"episode_length": 0}, "episode_length: expected 1 to 4294967295, got 0"),
        ({"actions": [145]}, "actions: expected different indices from 0 to 144"),
        ({"memory": "x"}, "memory: expected"),
        ({"observe": "x"}, "observe: expected 'blue' or 'truth', got 'x'"),
    ],
)
def test_options_out_of_range_give_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as error:
        Cage2GameVectorEnv(**options)
    assert "\n" not in str(error.value)


def test_actions_out_of_range_change_nothing() -> None:
    env = Cage2GameVectorEnv(2, num_threads=1)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(
        ValueError, match="action of agent 1 of environment 1: expected an integer from 0 to 144"
    ):
        env.step([[0, 0], [0, 145]])
    assert env.save_state() == before
