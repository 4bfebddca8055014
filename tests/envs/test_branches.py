"""One environment of many is saved, restored elsewhere and branched, at any step of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from fastrl.envs import (
    Cage2VectorEnv,
    Cage2WorkflowVectorEnv,
    Cage4VectorEnv,
    ClassicVectorEnv,
    DrivingTask,
    DrivingWorld,
    HighwayVectorEnv,
    NativeVectorEnv,
    RingVectorEnv,
)
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi

Env = NativeVectorEnv | MultiAgentVectorEnv


def rewarded() -> MultiAgentVectorEnv:
    """Environments with rewards of the user's own, whose returns Python counts."""
    env = make_multi("fastrl/coop-highway-v0", 3, num_agents=2, max_agents=2, num_threads=1)
    env.reward = lambda rewards, *_: 2 * rewards + 1
    return env


class Slow(DrivingTask):
    """Rewards and ends of the user's own, and a number more to observe."""

    terms = 1

    def reward(self, world: DrivingWorld) -> ArrayLike:
        return world.speed[:, : world.num_agents]

    def terminated(self, world: DrivingWorld) -> ArrayLike:
        return world.speed[:, : world.num_agents] < 20

    def observe(self, world: DrivingWorld) -> ArrayLike:
        return np.minimum(world.gap, 100)[:, :, np.newaxis]


MAKERS: dict[str, Callable[[], Env]] = {
    "cage2": lambda: Cage2VectorEnv(3, red_agent="mix", num_threads=1),
    "cage2 with Python's draws": lambda: Cage2VectorEnv(
        3, random="python", red_agent="meander", num_threads=1
    ),
    "workflow": lambda: Cage2WorkflowVectorEnv(num_envs=3, num_threads=1),
    "cage4": lambda: Cage4VectorEnv(3, num_threads=1),
    "cage4 with NumPy's draws": lambda: Cage4VectorEnv(3, random="numpy", num_threads=1),
    "highway": lambda: HighwayVectorEnv(3, config={"vehicles_count": 4}, num_threads=1),
    "acrobot": lambda: ClassicVectorEnv(3, task="Acrobot", max_episode_steps=20, num_threads=1),
    "ring": lambda: RingVectorEnv(3, num_threads=1, warmup_steps=1, horizon=20),
    "merge with radio": lambda: make_multi(
        "fastrl/coop-merge-v0", 3, max_agents=3, background=2, comms="37885", num_threads=1
    ),
    "roundabout of several": lambda: make_multi("fastrl/intersection-multi-agent-v1", 3, num_threads=1),
    "own rewards": rewarded,
    "driving task": lambda: HighwayVectorEnv(3, config={"vehicles_count": 4}, num_threads=1, task=Slow()),
    "driving task of several": lambda: make_multi(
        "fastrl/merge-v0", 3, config={"controlled_vehicles": 2}, num_threads=1, task=Slow()
    ),
}


def played(env: Env, steps: int, seed: int, rows: NDArray[np.int64]) -> list[tuple[Any, ...]]:
    """Observations, rewards and ends of steps; environments of equal `rows` get equal actions."""
    space, found = env.single_action_space, []
    agents = (env.num_agents,) if isinstance(env, MultiAgentVectorEnv) else ()
    space.seed(seed)
    for _ in range(steps):
        drawn = np.array(
            [[space.sample() for _ in range(int(np.prod(agents)))] for _ in range(rows.max() + 1)]
        )
        actions = drawn.reshape(rows.max() + 1, *agents, *(space.shape or ()))[rows]
        found.append(env.step(actions)[:4])
    return found


def same(one: list[tuple[Any, ...]], i: int, other: list[tuple[Any, ...]], j: int) -> bool:
    """The episodes of environments `i` and `j` are the same to the bit."""
    return all(
        np.array_equal(a[i], b[j])
        for mine, others in zip(one, other, strict=True)
        for a, b in zip(mine, others, strict=True)
    )


@pytest.mark.parametrize("name", MAKERS)
def test_a_restored_environment_continues_to_the_bit(name: str) -> None:
    env = MAKERS[name]()
    env.reset(seed=5)
    played(env, 4, 1, np.arange(3))
    state, whole = env.save_state(1), env.save_state()
    found = played(env, 30, 2, np.array([0, 1, 2]))
    other = MAKERS[name]()
    other.reset(seed=9)
    other.load_state(state, 2)
    assert other.save_state(2) == state
    assert same(found, 1, played(other, 30, 2, np.array([2, 0, 1])), 2)
    env.load_state(whole)
    assert env.save_state(1) == state, "others were played in between"


@pytest.mark.parametrize("name", MAKERS)
def test_branches_continue_as_the_original_does(name: str) -> None:
    env = MAKERS[name]()
    env.reset(seed=5)
    played(env, 4, 1, np.arange(3))
    state = env.save_state(1)
    branches = env.branch(state, 4)
    assert type(branches) is type(env) and branches.num_envs == 4
    found, theirs = played(env, 30, 2, np.zeros(3, np.int64)), played(branches, 30, 2, np.zeros(4, np.int64))
    assert all(same(found, 1, theirs, i) for i in range(4))


@pytest.mark.parametrize("name", MAKERS)
def test_branches_of_one_seed_share_their_random_numbers(name: str) -> None:
    env = MAKERS[name]()
    env.reset(seed=5)
    played(env, 4, 1, np.arange(3))
    seeds = [7, 8, 7, 9]
    env = env.branch(env.save_state(1), 4, seed=seeds)
    # Highways draw only where an episode starts.
    found = played(env, 40, 2, np.zeros(4, np.int64))
    assert same(found, 0, found, 2)
    assert not same(found, 0, found, 1) and not same(found, 0, found, 3)


def test_what_cannot_be_restored_is_refused() -> None:
    env = Cage2VectorEnv(3, num_threads=1)
    env.reset(seed=0)
    state = env.save_state()
    with pytest.raises(ValueError, match="it holds 3 environments, here are 1"):
        env.branch(state, 4)
    with pytest.raises(ValueError, match="it holds 3 environments, here are 1"):
        env.load_state(state, 0)
    with pytest.raises(IndexError, match="index: expected 0 to 2, got 3"):
        env.save_state(3)
    with pytest.raises(IndexError, match="index: expected 0 to 2, got 3"):
        env.load_state(env.save_state(0), 3)
    with pytest.raises(ValueError, match="seed: expected 4 seeds, got 2"):
        env.branch(env.save_state(0), 4, seed=[1, 2])
    with pytest.raises(ValueError, match="it was saved by CAGE 2"):
        Cage2VectorEnv(3, red_agent="meander").branch(env.save_state(0), 4)
    assert env.save_state() == state


def test_damaged_statistics_are_refused() -> None:
    env = rewarded()
    env.reset(seed=0)
    state = env.save_state(0)
    with pytest.raises(ValueError, match="its episode statistics are damaged"):
        env.load_state(state[:-1] + bytes([state[-1] ^ 1]), 0)
    with pytest.raises(ValueError, match="its episode statistics are damaged"):
        env.branch(b"", 2)
