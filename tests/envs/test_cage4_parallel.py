"""CAGE Challenge 4 as a parallel environment of PettingZoo: the original's names, spaces, masks, messages, truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from fastrl.envs.adapters import PettingZooEnv, parallel_env
from fastrl.envs.cage4.env import ACTIONS, AGENTS, HOSTS, OBS_LENGTHS, Cage4VectorEnv

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "cage4" / "fsm.npz"


def make(**options: Any) -> PettingZooEnv:
    return parallel_env("fastrl/Cage4-v0", **options)


def sleep(**others: int) -> dict[str, int]:
    return {
        agent: others.get(agent, names.index("Sleep")) for agent, names in zip(AGENTS, ACTIONS, strict=True)
    }


def test_an_episode_of_the_original_with_its_messages() -> None:
    with np.load(GOLDEN) as file:
        trace = {name: file[name] for name in file.files}
    meta = json.loads(str(trace["meta"]))
    env = make(random="numpy", episode_length=meta["steps"], red_agent=meta["red"])
    obs, infos = env.reset(seed=meta["seed"])
    masks = np.concatenate([infos[agent]["action_mask"] for agent in env.agents])
    np.testing.assert_array_equal(np.packbits(masks), trace["mask"][0])
    assert meta["seeding"] == "reset" and trace["message"].any()
    for step in range(meta["steps"] - 1):
        messages = {
            agent: np.unpackbits(trace["message"][step, i : i + 1])
            for i, agent in enumerate(AGENTS)
            if trace["message"][step, i]
        }
        actions = dict(zip(AGENTS, trace["blue_action"][step], strict=True))
        obs, rewards, _, truncations, infos = env.step(actions, messages=messages)
        assert {trace["phase"][step]} == {values[0] for values in obs.values()}
        bits = np.packbits(np.concatenate([values[1:] for values in obs.values()]))
        np.testing.assert_array_equal(bits, trace["obs"][step])
        assert set(rewards.values()) == {trace["reward"][step]}
    assert all(truncations.values()) and env.agents == []


def test_spaces_are_the_originals() -> None:
    env, padded = make(), make(pad_spaces=True)
    assert env.possible_agents == [
        "blue_agent_0",
        "blue_agent_1",
        "blue_agent_2",
        "blue_agent_3",
        "blue_agent_4",
    ]
    for agent, length, n in zip(AGENTS, (92, 92, 92, 92, 210), (82, 82, 82, 82, 242), strict=True):
        assert env.observation_space(agent) == MultiDiscrete([3] + [2] * (length - 1))
        assert env.action_space(agent) == Discrete(n)
        assert padded.observation_space(agent) == MultiDiscrete([3] + [2] * 209)
        assert padded.action_space(agent) == Discrete(242)
    (obs, infos), (wide, wide_infos) = env.reset(seed=4), padded.reset(seed=4)
    for agent, length, names in zip(AGENTS, OBS_LENGTHS, ACTIONS, strict=True):
        np.testing.assert_array_equal(wide[agent], np.pad(obs[agent], (0, 210 - length)))
        mask = infos[agent]["action_mask"]
        np.testing.assert_array_equal(wide_infos[agent]["action_mask"], np.pad(mask, (0, 242 - len(names))))
        assert mask[env.action_space(agent).sample(mask)]
    with pytest.raises(ValueError, match=r"action of blue_agent_1: expected one of Discrete\(82\), got 82"):
        env.step(sleep(blue_agent_1=82))
    padded.step(sleep(blue_agent_1=82))


def test_info_has_the_true_state_on_request() -> None:
    env = make(info_state=True, num_threads=1)
    _, infos = env.reset(seed=1)
    for _ in range(5):
        state = infos["blue_agent_0"]["state"]
        np.testing.assert_equal(state, {key: values[0] for key, values in env.env.truth().items()})
        assert state["hosts"].shape == (len(HOSTS),) and state["red_access"].sum() >= 1
        *_, infos = env.step(sleep())
    assert "state" not in make().reset(seed=1)[1]["blue_agent_0"]


BITS: NDArray[np.int64] = np.ones(8, np.int64)


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        ([BITS], TypeError, "messages: expected a dict by agent, got list"),
        ({"blue_agent_5": BITS}, ValueError, "messages: unknown agent 'blue_agent_5', expected one of "),
        ({"blue_agent_1": BITS[:7]}, ValueError, "message of blue_agent_1: expected 8 numbers 0 or 1, got "),
        ({"blue_agent_1": 2 * BITS}, ValueError, "message of blue_agent_1: expected 8 numbers 0 or 1, got "),
        ({"blue_agent_1": BITS * np.nan}, ValueError, "message of blue_agent_1: expected 8 numbers"),
        ({"blue_agent_1": "hello"}, ValueError, "message of blue_agent_1: expected 8 numbers"),
    ],
)
def test_messages_that_are_no_bits_give_one_line_and_change_nothing(
    messages: Any, kind: type[Exception], message: str
) -> None:
    env = make()
    env.reset(seed=1)
    state = env.env.save_state()
    with pytest.raises(kind, match=message) as raised:
        env.step(sleep(), messages=messages)
    assert "\n" not in str(raised.value) and env.env.save_state() == state


def test_agents_without_messages_refuse_them() -> None:
    env = parallel_env("fastrl/coop-merge-v0", max_agents=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^messages: expected None, the agents of .* send none$"):
        env.step(dict.fromkeys(env.agents, 1), messages={})


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"red_agent": "bline"}, ValueError, "red_agent: expected 'fsm' or 'discovery', got 'bline'"),
        ({"red_agent": ["fsm"]}, ValueError, r"red_agent: expected 'fsm' or 'discovery', got \['fsm'\]"),
        ({"random": "mersenne"}, ValueError, "random: expected 'fast' or 'numpy', got 'mersenne'"),
        ({"episode_length": 1}, ValueError, "episode_length: expected 2 to 1000, got 1"),
        ({"episode_length": 2**40}, ValueError, f"episode_length: expected 2 to 1000, got {2**40}"),
        ({"episode_length": 2.5}, TypeError, "episode_length: expected an integer, got 2.5"),
        ({"rules": ["impact"]}, TypeError, r"rules: expected a str, got \['impact'\]"),
        ({"num_envs": 0}, ValueError, "num_envs: expected 1 to 4294967295, got 0"),
        ({"num_threads": -1}, ValueError, "num_threads: expected 0 to 4294967295, got -1"),
        (
            {"autoreset_mode": "never"},
            ValueError,
            "autoreset_mode: expected 'next_step', 'same_step', 'disabled' .*",
        ),
        ({"ruleset": "main"}, TypeError, ".* got an unexpected keyword argument 'ruleset'"),
    ],
)
def test_options_out_of_range_give_one_line(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        Cage4VectorEnv(**options)


@pytest.mark.parametrize(
    ("actions", "kind", "message"),
    [
        (
            np.full((2, 5), 242),
            ValueError,
            "action of agent 0 of environment 0: expected an integer from 0 to 241",
        ),
        (
            np.zeros((2, 4), int),
            ValueError,
            r"actions: expected integers of shape \(2, 5\), got shape \(2, 4\)",
        ),
        (np.zeros((2, 5)), TypeError, r"actions: expected integers of shape \(2, 5\), got dtype float64"),
        (None, TypeError, r"actions: expected integers of shape \(2, 5\), got dtype object"),
    ],
)
def test_actions_out_of_range_give_one_line_and_change_nothing(
    actions: Any, kind: type[Exception], message: str
) -> None:
    env = Cage4VectorEnv(2, num_threads=1)
    env.reset(seed=0)
    state = env.save_state()
    with pytest.raises(kind, match=f"^{message}$"):
        env.step(actions)
    with pytest.raises(
        ValueError, match=r"^messages: expected a C-contiguous uint8 array of shape \(2, 5\), got"
    ):
        env.send(np.zeros((2, 4), np.uint8))
    with pytest.raises(NotImplementedError, match=r"^the agents of fastrl/Cage4-v0 send no messages$"):
        Cage4VectorEnv(2, view="hosts").send(np.zeros((2, 5), np.uint8))
    assert env.save_state() == state
