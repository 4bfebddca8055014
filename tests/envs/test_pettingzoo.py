"""The PettingZoo adapter: PettingZoo's own tests, and stricter ones."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from pettingzoo.test import parallel_api_test, parallel_seed_test
from stub_native_vec import AGENTS, stub_env

from fastrl.envs.adapters import PettingZooEnv, parallel_env


def stub() -> PettingZooEnv:
    return PettingZooEnv(stub_env(1, "disabled"))


GAMES: dict[str, Callable[[], PettingZooEnv]] = {
    "stub": stub,
    "highway": lambda: parallel_env("fastrl/coop-highway-v0", max_agents=6, num_agents=5),
    "merge": lambda: parallel_env("fastrl/coop-merge-v0", max_agents=4),
    "one highway": lambda: parallel_env("fastrl/highway-fast-v0"),
    "ring": lambda: parallel_env("fastrl/ring-v0", horizon=30, warmup_steps=10, num_agents=3),
    "lights": lambda: parallel_env("fastrl/lights-v0", net="grid", duration=60),
    "cage 2": lambda: parallel_env("fastrl/Cage2Game-v0", episode_length=15, red_agent="mix"),
    "cage 2, padded": lambda: parallel_env("fastrl/Cage2Game-v0", episode_length=15, pad_spaces=True),
    "cage 4": lambda: parallel_env("fastrl/Cage4-v0", episode_length=15),
    "cage 4, padded": lambda: parallel_env("fastrl/Cage4-v0", episode_length=15, pad_spaces=True),
    "continuous": lambda: parallel_env("fastrl/coop-merge-v0", max_agents=4, action_type="continuous"),
}
each_game = pytest.mark.parametrize("make", GAMES.values(), ids=GAMES.keys())


@each_game
def test_pettingzoo_accepts_it(make: Callable[[], PettingZooEnv]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # An episode may lack some possible agents.
        warnings.filterwarnings("ignore", message="No agents present but not all possible_agents")
        parallel_api_test(make(), num_cycles=60)
        parallel_seed_test(make, num_cycles=60)


def check_spaces(env: PettingZooEnv, obs: dict[str, Any]) -> None:
    for agent, row in obs.items():
        space = env.observation_space(agent)
        assert isinstance(row, np.ndarray) and row.dtype == space.dtype
        assert space.contains(row), f"{agent}: {row}"


def episode(env: PettingZooEnv, seed: int | None, draw: Any) -> list[Any]:
    """Runs one episode with actions of `draw(space)` and checks the contract of each step."""
    obs, infos = env.reset(seed=seed)
    assert env.agents and set(env.agents) <= set(env.possible_agents)
    assert list(obs) == list(infos) == env.agents
    check_spaces(env, obs)
    trace: list[Any] = [obs]
    gone: set[str] = set()
    while env.agents:
        acting = list(env.agents)
        obs, rewards, terminations, truncations, infos = env.step(
            {agent: draw(env.action_space(agent)) for agent in acting}
        )
        for part in (obs, rewards, terminations, truncations, infos):
            assert list(part) == acting, "a key for each agent that acted, and no other"
        check_spaces(env, obs)
        for agent in acting:
            assert type(rewards[agent]) is float and np.isfinite(rewards[agent])
            assert type(terminations[agent]) is bool and type(truncations[agent]) is bool
            assert not (terminations[agent] and truncations[agent])
        gone |= {agent for agent in acting if terminations[agent] or truncations[agent]}
        assert env.agents == [agent for agent in acting if agent not in gone], "who has ended is gone"
        assert all(("episode" in infos[agent]) == (not env.agents) for agent in acting)
        trace.append((obs, rewards, terminations, truncations, infos))
    return trace


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.array_equal(a, b, equal_nan=isinstance(a, float)))


def by_generator(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return lambda space: (
        rng.integers(space.n) if isinstance(space, Discrete) else rng.uniform(space.low, space.high)
    )


@each_game
def test_whole_episodes_keep_the_contract_and_are_deterministic(
    make: Callable[[], PettingZooEnv],
) -> None:
    env, other = make(), make()
    for seed in range(5):
        first = episode(env, seed, by_generator(seed))
        assert same(first, episode(other, seed, by_generator(seed)))
        # Streams continue: an episode without a seed is a new one, the same in both.
        assert same(episode(env, None, by_generator(9)), episode(other, None, by_generator(9)))


def test_agents_that_end_leave_and_others_continue() -> None:
    env = stub()
    env.reset(seed=0)
    _, rewards, terminations, _, _ = env.step({"agent_0": 0, "agent_1": 1, "agent_2": 0})
    assert terminations == {"agent_0": False, "agent_1": True, "agent_2": False}
    assert env.agents == ["agent_0", "agent_2"]
    _, rewards, *_ = env.step({"agent_0": 0, "agent_2": 0})
    assert rewards == {"agent_0": 1.0, "agent_2": 3.0}


@pytest.mark.parametrize(
    ("actions", "kind", "message"),
    [
        ({"agent_0": 0, "agent_1": 0, "agent_2": 0}, ValueError, "dead or unknown: agent_1"),
        ({"agent_0": 0}, ValueError, "missing: agent_2; dead or unknown: none"),
        ({"agent_0": 0, "agent_2": 0, "agent_9": 0}, ValueError, "missing: none; dead or unknown: agent_9"),
        ({"agent_0": 0, "agent_2": 0, 7: 0}, ValueError, "dead or unknown: 7"),
        ({}, ValueError, "missing: agent_0, agent_2"),
        ([0, 0], TypeError, "expected a dict by agent, got list"),
        (
            {"agent_0": 0, "agent_2": 2},
            ValueError,
            r"action of agent_2: expected one of Discrete\(2\), got 2",
        ),
        ({"agent_0": 0, "agent_2": -1}, ValueError, "agent_2"),
        ({"agent_0": 0, "agent_2": 0.0}, TypeError, "agent_2"),
        ({"agent_0": 0, "agent_2": np.nan}, TypeError, "agent_2"),
        ({"agent_0": 0, "agent_2": None}, TypeError, "agent_2"),
        ({"agent_0": [0], "agent_2": 0}, ValueError, "agent_0"),
    ],
)
def test_unusable_actions_change_nothing(actions: Any, kind: type[Exception], message: str) -> None:
    env = stub()
    env.reset(seed=0)
    env.step({"agent_0": 0, "agent_1": 1, "agent_2": 0})
    before = env.env.save_state()
    with pytest.raises(kind, match=message):
        env.step(actions)
    assert env.env.save_state() == before and env.agents == ["agent_0", "agent_2"]


def test_there_are_no_agents_before_the_reset_and_after_the_end() -> None:
    env = stub()
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step({"agent_0": 0})
    env.reset(seed=0)
    env.step(dict.fromkeys(env.agents, 1))
    assert env.agents == []
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step({})


def test_each_agent_has_one_space_object() -> None:
    env = stub()
    spaces = [env.action_space(agent) for agent in env.possible_agents]
    assert len(set(map(id, spaces))) == AGENTS == env.max_num_agents
    assert all(
        env.action_space(agent) is space for agent, space in zip(env.possible_agents, spaces, strict=True)
    )
    spaces[0].seed(1)
    spaces[1].seed(1)
    assert [spaces[0].sample() for _ in range(9)] == [spaces[1].sample() for _ in range(9)]


def test_a_picture_of_the_agents() -> None:
    env = parallel_env("fastrl/coop-merge-v0", max_agents=3, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before is not None and before.dtype == np.uint8 and before.shape == (160, 1000, 3)
    env.step(dict.fromkeys(env.agents, 1))
    assert not np.array_equal(env.render(), before)
    with pytest.raises(ValueError, match="render_mode"):
        parallel_env("fastrl/coop-merge-v0", render_mode="ansi")


def test_one_environment_without_autoreset() -> None:
    with pytest.raises(ValueError, match="one environment with autoreset_mode='disabled', got 2"):
        PettingZooEnv(stub_env(2, "disabled"))
    with pytest.raises(ValueError, match="'same_step'"):
        PettingZooEnv(stub_env(1))
    with pytest.raises(TypeError, match="MultiAgentVectorEnv, got str"):
        PettingZooEnv("fastrl/coop-highway-v0")  # type: ignore[arg-type]


def test_without_pettingzoo_the_error_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['pettingzoo'] = None\nfrom fastrl.envs.adapters import PettingZooEnv"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "PettingZooEnv needs PettingZoo, which is not installed: pip install 'fastrl[pettingzoo]'" in (
        done.stderr
    )
