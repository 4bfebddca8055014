"""Episodes on road networks with fewer agents and less traffic, as a curriculum asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi
from fastrl.envs.traffic.roads_config import KINDS
from fastrl.envs.traffic.sumo_config import SUMO_KINDS

CROSSING = "intersection-multi-agent-v2"
IDS = [name for name, kind in (KINDS | SUMO_KINDS).items() if "controlled_vehicles" in kind.defaults]


def make(id: str, **options: Any) -> MultiAgentVectorEnv:  # noqa: A002
    return make_multi(f"fastrl/{id}", 3, config={"controlled_vehicles": 3}, num_threads=1, **options)


def played(env: MultiAgentVectorEnv, steps: int = 8) -> list[tuple[Any, ...]]:
    """Observations, rewards and ends of agents that change nothing."""
    shape = (3, env.num_agents, *(env.single_action_space.shape or ()))
    actions = np.ones(shape, np.int64) if not shape[2:] else np.zeros(shape, np.float32)
    return [env.step(actions)[:5] for _ in range(steps)]


def vehicles(env: MultiAgentVectorEnv, index: int) -> int:
    return len(env.vehicles(index)["x"])


@pytest.mark.parametrize("id", IDS)
def test_agents_beyond_the_number_do_not_drive(id: str) -> None:  # noqa: A002
    env, full = make(id), make(id)
    env.set_difficulty(num_agents=np.array([1, 2, 3]))
    obs, alive = env.reset(seed=0)
    assert alive.sum(axis=1).tolist() == [1, 2, 3]
    assert not obs[~alive].any()
    expected, _ = full.reset(seed=0)
    np.testing.assert_array_equal(obs[2], expected[2])
    assert env.save_state() != full.save_state()
    for seen, rewards, terminated, truncated, acting in played(env, 4):
        for array in (seen, rewards, terminated, truncated, acting):
            assert not array[0, 1:].any() and not array[1, 2:].any()
    # All again, with the same bits as if nothing had been changed.
    env.set_difficulty(num_agents=3)
    np.testing.assert_array_equal(env.reset(seed=4)[0], full.reset(seed=4)[0])
    for a, b in zip(played(env), played(full), strict=True):
        np.testing.assert_equal(a, b)


def test_density_makes_the_traffic_thinner() -> None:
    counts = {}
    for density in (0.0, 0.5, 1.0):
        env = make(CROSSING)
        env.set_difficulty(density=density)
        env.reset(seed=0)
        counts[density] = sum(vehicles(env, i) for i in range(3))
    # Without traffic there is one that comes on the road of the agents, if there is room.
    assert 9 <= counts[0.0] <= 12 < counts[0.5] < counts[1.0]
    merge = make("merge-v0")
    merge.set_difficulty(num_agents=1, density=0.0)
    merge.reset(seed=0)
    assert vehicles(merge, 0) == 5  # the traffic drives what no agent does


@pytest.mark.parametrize("comms", ["perfect", "range", "37885"])
def test_a_saved_state_has_its_difficulty_and_that_of_the_next_episode(comms: str) -> None:
    env, other = make(CROSSING, comms=comms), make(CROSSING, comms=comms)
    env.set_difficulty(num_agents=2, density=0.5)
    env.reset(seed=1)
    env.set_difficulty(num_agents=1, density=0.25)
    state = env.save_state()
    other.load_state(state)
    assert other.save_state() == state
    assert not env.episodes()["finished"].any()
    # Beyond the end of the episode, where the next difficulty begins.
    for a, b in zip(played(env, 20), played(other, 20), strict=True):
        np.testing.assert_equal(a, b)
    assert env.episodes()["finished"].all()
    assert set(env.episodes()["num_agents"]) <= {1, 2}
    assert other.save_state() == env.save_state()


def test_a_difficulty_takes_effect_with_the_next_episode() -> None:
    env = make(CROSSING)
    _, alive = env.reset(seed=0)
    env.set_difficulty(num_agents=2)
    assert alive.all()
    seen = {0: 3.0}
    for _ in range(30):
        played(env, 1)
        finished = env.episodes()["finished"][0]
        seen.setdefault(int(finished), float(env.episodes()["num_agents"][0]))
    # Of the episodes that have ended, in their order: the first one had three agents.
    assert [seen[number] for number in (1, 2)] == [3, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_agents": 4}, r"num_agents: expected 1 to 3 \(controlled_vehicles\), got 4"),
        ({"num_agents": 0}, "num_agents: expected 1 to 3"),
        ({"density": 1.5}, "density: expected 0 to 1, got 1.5"),
        ({"density": float("nan")}, "density: expected 0 to 1, got NaN"),
    ],
)
def test_harder_than_the_config_is_refused(options: dict[str, Any], message: str) -> None:
    env = make(CROSSING)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(ValueError, match=message):
        env.set_difficulty(**options)
    assert env.save_state() == before


def test_worlds_of_one_agent_have_one() -> None:
    env = make_multi("fastrl/two-way-v0", 2)
    env.set_difficulty(num_agents=1, density=0.5)
    with pytest.raises(ValueError, match="num_agents: expected 1 to 1"):
        env.set_difficulty(num_agents=2)
