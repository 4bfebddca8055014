"""Policies of runs as opponents, in environments of many agents."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import fastrl
from fastrl.envs import make_multi
from fastrl.envs.opponents import OpponentVectorEnv
from fastrl.play.opponents import PolicyOpponent

AGENTS, K = 3, 4


def model(**settings: Any) -> Any:
    made = fastrl.IPPO(
        "fastrl/coop-highway-v0",
        vehicles=AGENTS,
        num_envs=2,
        num_steps=16,
        hidden=(8,),
        device="cpu",
        **settings,
    )
    made.learn(32, progress=False)
    # So large that actions depend on what agents see.
    with torch.no_grad():
        for weights in made.network.parameters():
            weights.copy_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(len(weights))))
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"share": False},
        {"agent_ids": True},
        {"policies": ("a", "b", "a"), "memory": "gru", "memory_size": 3},
    ],
    ids=["own", "ids", "memory"],
)
@pytest.mark.parametrize("frozen", [(1,), (0, 2)])
def test_frozen_agents_act_as_in_a_team(settings: dict[str, Any], frozen: tuple[int, ...]) -> None:
    policy = model(**settings).policy
    make = functools.partial(
        make_multi, "fastrl/coop-highway-v0", max_agents=AGENTS, num_agents=AGENTS, autoreset_mode="disabled"
    )
    state = policy.team.state()
    opponent = PolicyOpponent.from_team(state, {agent: agent for agent in frozen})
    assert opponent.state_size == policy.state_size
    env, whole = OpponentVectorEnv(K, make, opponents=[opponent], frozen=frozen), make(K)
    free = np.setdiff1d(np.arange(AGENTS), frozen)
    (obs, alive), (all_obs, all_alive) = env.reset(seed=2), whole.reset(seed=2)
    states = np.zeros((K * AGENTS, policy.state_size), np.float32) if policy.state_size else None
    for _ in range(15):
        np.testing.assert_array_equal(obs, all_obs[:, free])
        np.testing.assert_array_equal(alive, all_alive[:, free])
        actions = policy.act(
            all_obs.reshape(K * AGENTS, -1), all_alive.ravel(), None, True, states=states
        ).reshape(K, AGENTS)
        all_obs, all_rewards, _, _, all_alive, _ = whole.step(actions)
        obs, rewards, _, _, alive, _ = env.step(actions[:, free])
        np.testing.assert_array_equal(rewards, all_rewards[:, free])
        if not all_alive[:, free].any(axis=1).all():
            break


def test_draws_follow_from_the_stream_and_agents_that_a_run_lacks_are_refused() -> None:
    state = model().policy.team.state()
    make = functools.partial(
        make_multi, "fastrl/coop-highway-v0", max_agents=AGENTS, num_agents=AGENTS, autoreset_mode="disabled"
    )
    opponent = PolicyOpponent.from_team(state, {1: 0, 2: 2}, deterministic=False)
    rows = []
    for count in (K, 2):
        env = OpponentVectorEnv(count, make, opponents=[opponent], frozen=(1, 2))
        env.reset(seed=7)
        for _ in range(4):
            obs = env.step(np.ones((count, 1), np.int64))[0]
        rows.append(obs[:2])
    np.testing.assert_array_equal(*rows)
    with pytest.raises(ValueError, match="expected a policy of more agents, got one of 3"):
        PolicyOpponent.from_team(state, {1: 3})
