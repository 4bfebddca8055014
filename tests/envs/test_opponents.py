"""Opponents that play some of the agents: draws, episodes, saved states, refusals."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stub_native_vec import AGENTS, LIMIT, stub_env

from fastrl.envs import Cage2GameVectorEnv, Cage2VectorEnv
from fastrl.envs.contract import ContractError
from fastrl.envs.opponents import OpponentVectorEnv, Pool, Turn
from fastrl.tasks.cage2_game.opponents import ScriptedRed

K = 6


class Fixed:
    """An opponent that always takes one action, and remembers how often."""

    state_size = 1

    def __init__(self, action: int) -> None:
        self.action = action
        self.turns: list[Turn] = []

    def act(self, turn: Turn) -> NDArray[np.int64]:
        self.turns.append(turn._replace(states=turn.states.copy(), mine=turn.mine.copy()))
        turn.states[turn.mine, :1] += 1
        return np.full(turn.mine.sum(), self.action)


def stubs(
    *opponents: Fixed, frozen: tuple[int, ...] = (0, 2), mode: str = "same_step", **options: Any
) -> OpponentVectorEnv:
    make = functools.partial(stub_env, mode="disabled")
    return OpponentVectorEnv(K, make, opponents=opponents, frozen=frozen, autoreset_mode=mode, **options)


def idle(env: OpponentVectorEnv) -> Any:
    return env.step(np.zeros((env.num_envs, env.num_agents), np.int64))


@pytest.mark.parametrize("red_agent", ["bline", "mix"])
def test_a_script_as_opponent_plays_as_in_the_environment_of_blue(red_agent: str) -> None:
    options: dict[str, Any] = {
        "red_agent": red_agent,
        "memory": "scan",
        "num_threads": 1,
        "episode_length": 20,
    }
    make = functools.partial(Cage2GameVectorEnv, **options, autoreset_mode="disabled")
    env = OpponentVectorEnv(K, make, opponents=[ScriptedRed()], frozen=[1])
    alone = Cage2VectorEnv(K, **options, autoreset_mode="same_step")
    assert env.agents == ["blue"] and env.agent_spaces(padded=False) == [
        (alone.single_observation_space, alone.single_action_space)
    ]
    (obs, alive), (expected, _) = env.reset(seed=4), alone.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(50):
        np.testing.assert_array_equal(obs[:, 0], expected)
        np.testing.assert_array_equal(env.action_masks(), alone.action_masks())
        blue = rng.integers(145, size=K)
        obs, rewards, terminations, truncations, alive, info = env.step(blue[:, None])
        expected, reward, _, truncated, other = alone.step(blue)
        np.testing.assert_array_equal(rewards[:, 0], reward.astype(np.float32))
        assert (truncations[:, 0] == truncated).all() and not terminations.any() and alive.all()
        if truncated.any():
            np.testing.assert_array_equal(info["final_obs"][:, 0], other["final_obs"])
    assert (env.episodes()["finished"] == 2).all() and (env.episodes()["return_mean"] < 0).all()


def test_an_episode_ends_when_no_agent_that_learns_is_alive() -> None:
    env = stubs(Fixed(0), frozen=(0, 2))
    env.reset(seed=0)
    assert (env.num_agents, list(env.agents), env.groups) == (1, [1], ("group0",))
    actions = np.zeros((K, 1), np.int64)
    actions[2] = 1
    obs, rewards, terminations, truncations, alive, info = env.step(actions)
    assert (rewards == 2).all() and alive.all() and not truncations.any()
    assert terminations[:, 0].tolist() == [False, False, True, False, False, False]
    # The next episode has started there.
    assert obs[2, 0].tolist() == [2, 1] and info["final_obs"][2, 0].tolist() == [2, 2]
    assert env.episodes()["finished"].tolist() == [0, 0, 1, 0, 0, 0]


def test_opponents_know_the_step_and_their_memory_of_the_episode() -> None:
    opponent = Fixed(0)
    env = stubs(opponent, frozen=(0,))
    env.reset(seed=0)
    for _ in range(LIMIT + 2):
        idle(env)
    steps = [int(turn.steps[0]) for turn in opponent.turns]
    assert steps == [*range(LIMIT), 0, 1]
    # Rows of agents that learn stay zero.
    assert [turn.states[:AGENTS, 0].tolist() for turn in opponent.turns] == [[step, 0, 0] for step in steps]
    first, again = opponent.turns[0], opponent.turns[LIMIT]
    assert len({*first.streams.tolist(), *again.streams.tolist()}) == 2 * len(first.streams)


def test_the_draw_follows_from_the_seed_of_each_environment() -> None:
    opponents = [Fixed(0), Fixed(0), Fixed(0)]
    env = stubs(*opponents, weights=[1, 0, 3])
    seen = []
    for seed in range(300):
        env.reset(seed=[seed] * K)
        assert len({*env.drawn()}) == 1
        seen.append(int(env.drawn()[0]))
    assert set(seen) == {0, 2} and 40 < seen.count(0) < 110
    # Each plays where it was drawn, and only agents that are frozen.
    for turn in (opponent.turns for opponent in opponents):
        turn.clear()
    env.reset(seed=0)
    drawn = env.drawn()
    idle(env)
    for index, opponent in enumerate(opponents):
        mine = opponent.turns[0].mine.reshape(K, AGENTS)
        assert (mine == (drawn == index)[:, None] * np.array([True, False, True])).all()
    env.reset(seed=9, reset_mask=np.arange(K) == 2)
    assert (np.delete(env.drawn(), 2) == np.delete(drawn, 2)).all()


def test_weights_of_each_environment_are_of_its_next_episodes() -> None:
    env = stubs(Fixed(0), Fixed(0), Fixed(0))
    assert env.num_opponents == 3
    env.reset(seed=0)
    drawn = env.drawn()
    wanted = np.arange(K) % 3
    env.set_weights(np.eye(3)[wanted])
    assert (env.drawn() == drawn).all()
    state = env.save_state()
    env.reset(seed=1)
    assert (env.drawn() == wanted).all()
    env.set_weights([0, 0, 1])
    env.reset(seed=1, reset_mask=np.arange(K) == 0)
    assert env.drawn().tolist() == [2, *wanted[1:]]
    # A saved state has them.
    env.load_state(state)
    assert (env.drawn() == drawn).all()
    env.reset()
    assert (env.drawn() == wanted).all()
    for wrong in (np.ones(2), np.ones((K + 1, 3)), np.zeros((K, 3)), np.array([1.0, -1.0, 1.0])):
        with pytest.raises(ValueError, match="weights: expected 3 numbers"):
            env.set_weights(wrong)


def game(num_envs: int = K, **options: Any) -> OpponentVectorEnv:
    make = functools.partial(Cage2GameVectorEnv, num_threads=1, autoreset_mode="disabled", episode_length=12)
    opponents = [ScriptedRed(), Fixed(0)]
    return OpponentVectorEnv(num_envs, make, opponents=opponents, frozen=[1], **options)


def played(env: OpponentVectorEnv, steps: int) -> list[Any]:
    rng = np.random.default_rng(1)
    return [env.step(rng.integers(145, size=(env.num_envs, 1)))[:5] for _ in range(steps)]


def test_a_saved_state_continues_to_the_bit() -> None:
    env, other = game(), game()
    env.reset(seed=3)
    other.reset(seed=8)
    played(env, 17)
    state, one = env.save_state(), env.save_state(4)
    expected = played(env, 20)
    other.load_state(state)
    found = played(other, 20)
    for a, b in zip(expected, found, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert (env.drawn() == other.drawn()).all() and (env.episodes()["finished"] == 3).all()
    other.load_state(one, 0)
    assert other.observe()[0].reshape(K, -1)[0].any()
    with pytest.raises(ValueError, match="damaged"):
        other.load_state(state[:-40] + bytes([state[-40] ^ 1]) + state[-39:])
    with pytest.raises(ValueError, match="damaged"):
        other.load_state(b"")


def test_branches_keep_the_opponent_of_the_saved_episode() -> None:
    env = game()
    env.reset(seed=3)
    played(env, 5)
    for index in range(K):
        branched = env.branch(env.save_state(index), 3, seed=[1, 2, 2])
        assert (branched.drawn() == env.drawn()[index]).all()
        obs = branched.observe()[0].reshape(3, -1)
        assert (obs == env.observe()[0].reshape(K, -1)[index]).all()
        obs = played(branched, 1)[0][0]
        assert obs.shape[0] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opponents": []}, "opponents: expected at least one"),
        ({"frozen": [0, 1]}, "frozen: expected indices of some of 2 agents, and not all"),
        ({"frozen": [2]}, "frozen: expected indices of some of 2 agents"),
        ({"weights": [1]}, "weights: expected 2 numbers"),
        ({"weights": [0, 0]}, "weights: expected 2 numbers"),
        ({"weights": [1, float("nan")]}, "weights: expected 2 numbers"),
        ({"autoreset_mode": "next_step"}, "expected 'same_step' or 'disabled', got 'next_step'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"opponents": [Fixed(0), Fixed(1)], "frozen": [0]}
    with pytest.raises(ValueError, match=message):
        OpponentVectorEnv(2, functools.partial(Cage2GameVectorEnv, num_threads=1), **(given | options))


def test_actions_that_do_not_fit_are_refused() -> None:
    env = game()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions: expected numbers from 0 to 144"):
        env.step(np.full((K, 1), 145))
    with pytest.raises(ValueError, match=r"actions: expected numbers|expected integers of shape"):
        env.step(np.zeros(K, np.int64))


class Past(Fixed):
    """An opponent of a pool: takes no action but 0, and knows its number."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self.number = number


def pooled(size: int = 2, *opponents: Fixed, count: int = 0) -> tuple[OpponentVectorEnv, dict[int, Past]]:
    """Environments with a pool, and the opponents of it that have been loaded."""
    loaded: dict[int, Past] = {}

    def load(number: int, env: Any) -> Past:
        assert env.num_agents == AGENTS and number not in loaded
        loaded[number] = Past(number)
        return loaded[number]

    return stubs(*opponents, pool=Pool(size, load, count, state_size=1)), loaded


def test_the_newest_snapshots_of_a_pool_are_drawn() -> None:
    env, loaded = pooled(3, Fixed(0))
    assert env.has_pool and env.num_opponents == 4
    env.reset(seed=0)
    assert (env.drawn() == 0).all() and not loaded
    env.set_pool(5)
    env.set_weights([0, 1, 0, 0])
    env.reset(seed=1)
    # The newest of five snapshots, numbered on from the other opponent.
    assert (env.drawn() == 5).all() and loaded.keys() == {4}
    env.set_weights([0, 0, 1, 1])
    env.reset(seed=2)
    drawn = env.drawn()
    assert {*drawn.tolist()} == {3, 4} and loaded.keys() == {2, 3, 4}
    idle(env)
    assert [len(loaded[number].turns) for number in (2, 3, 4)] == [1, 1, 0]
    for number in (2, 3):
        mine = loaded[number].turns[0].mine.reshape(K, AGENTS)
        assert (mine[:, 0] == (drawn == number + 1)).all() and not mine[:, 1].any()


def test_an_episode_keeps_a_snapshot_that_has_left_the_pool() -> None:
    env, loaded = pooled(2, count=1)
    env.reset(seed=0)
    assert (env.drawn() == 0).all()
    # A row has the pool of its next episode.
    env.set_pool([9, *[1] * (K - 1)])
    idle(env)
    assert (env.drawn() == 0).all() and loaded[0].turns
    env.reset(reset_mask=np.arange(K) < 2)
    assert env.drawn().tolist() == [8, *[0] * (K - 1)]
    state = env.save_state()
    other, _ = pooled(2, count=1)
    other.load_state(state)
    assert (other.drawn() == env.drawn()).all()
    for each in (env, other):
        each.reset()
    assert (other.drawn() == env.drawn()).all() and env.drawn()[0] == 8
    few, _ = pooled(1, count=1)
    with pytest.raises(ValueError, match=r"damaged|of other opponents"):
        few.load_state(state)


def test_an_empty_pool_alone_has_no_opponent() -> None:
    env, _ = pooled(2)
    with pytest.raises(ContractError, match="the pool has no opponent yet"):
        env.reset(seed=0)
