"""Networks that start with the weights of networks of fewer inputs: they act the same, what does not fit is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from multi_agent_run import acted

from fastrl.algorithms.async_ppo import AsyncPPO
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.impala import IMPALA
from fastrl.algorithms.ippo import IPPO
from fastrl.algorithms.mappo import MAPPO
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.algorithms.reinforce import REINFORCE
from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.torch_actor import TorchActor

OLD, NEW = 52, 62


def box(size: int) -> Box:
    return Box(-5, 5, (size,), np.float32)


def problem(size: int, actions: Space[Any], seed: int, num_agents: int = 1) -> Problem:
    return Problem(box(size), actions, 4, 1000, num_agents, seed)


def move(*networks: torch.nn.Module) -> None:
    """Gives networks weights that no initialisation has."""
    for network in networks:
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
            parameter.data += 0.05 * noise


def observations(rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(rows, NEW)).astype(np.float32)


def act(algorithm: PPO | IMPALA, obs: np.ndarray[Any, Any], actions: Space[Any]) -> tuple[Any, ...]:
    """Actions and log-probabilities of an actor, and its memory."""
    actor, rows = algorithm.policy.loaded_actor(algorithm.actions), len(obs)
    chosen = np.zeros((rows, *actions.shape), actions.dtype)  # type: ignore[misc]
    log_probs = np.zeros(rows, np.float32)
    size = getattr(algorithm.policy, "state_size", 0)
    states = np.zeros((rows, size), np.float32) if size else None
    actor.act(
        obs, np.arange(rows, dtype=np.uint64), np.zeros(rows, np.int64), chosen, log_probs, None, states
    )
    return actor, chosen, log_probs, states


@pytest.mark.parametrize("actions", [Discrete(7), MultiDiscrete([3, 4]), Box(-1, 1, (3,), np.float32)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden": ()},
        {"normalize_obs": True, "activation": "tanh"},
        {"shared_trunk": True},
        {"memory": "gru"},
        {"memory": "lstm", "hidden": (), "normalize_obs": True},
        {"layer_norm": True, "shared_trunk": False},
    ],
)
@pytest.mark.parametrize("kind", [PPO, AsyncPPO, IMPALA])
def test_actor_with_further_inputs_acts_as_the_old_one(
    kind: Any, settings: dict[str, Any], actions: Space[Any]
) -> None:
    config = kind.config_type(**settings)
    old, new = kind(config, problem(OLD, actions, 1)), kind(config, problem(NEW, actions, 2))
    obs = observations(33)
    old.policy.update_statistics(torch.from_numpy(obs[:, :OLD].copy()))
    move(old.policy)
    remarks = new.load_policy(old.state_dict())
    assert remarks == ["its 52 inputs are the first, 10 new ones start with weights of zero"]
    for rows in (1, 2, 33):
        actor, *before = act(old, np.ascontiguousarray(obs[:rows, :OLD]), actions)
        _, *after = act(new, obs[:rows], actions)
        for a, b in zip(before, after, strict=True):
            if isinstance(actor, MlpActor):
                np.testing.assert_array_equal(a, b)
            elif a is not None:
                assert isinstance(actor, TorchActor)
                # PyTorch's matrix products of few rows add up in an order that depends on the number of inputs.
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("settings", [{}, {"dueling": True}, {"noisy": True, "hidden": (8,)}])
def test_action_values_with_further_inputs_are_the_same(settings: dict[str, Any]) -> None:
    config = DQNConfig(**settings)
    old, new = (DQN(config, problem(size, Discrete(5), size)) for size in (OLD, NEW))
    move(old.network)
    assert len(new.load_policy(old.state_dict())) == 1
    obs = observations(9)
    best, values = [], []
    for algorithm, rows in ((old, obs[:, :OLD].copy()), (new, obs)):
        space = box(rows.shape[1])
        actor = DQN.make_actor(algorithm.policy_state(), space, Discrete(5))
        chosen, values_of = np.zeros(9, np.int64), np.zeros(9, np.float32)
        actor.act(rows, np.zeros(9, np.uint64), np.zeros(9, np.int64), chosen, values_of, greedy=True)
        best.append((chosen.tolist(), values_of.tobytes()))
        values.append(algorithm.network(torch.from_numpy(rows)).detach())
    assert best[0] == best[1]
    torch.testing.assert_close(*values, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [IPPO, MAPPO, REINFORCE])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("agent_ids", [False, True])
def test_agents_with_further_inputs_act_and_value_as_before(
    kind: Any, normalize_obs: bool, agent_ids: bool
) -> None:
    settings = kind.config_type(hidden=(8,), normalize_obs=normalize_obs, agent_ids=agent_ids)
    old, new = (kind(settings, problem(size, Discrete(5), size, num_agents=3)) for size in (OLD, NEW))
    critics = [[each.network for each in one.critics.optimizers.values()] for one in (old, new)]
    move(*(each for each in old.policy.policies.values()), *critics[0])
    assert len(new.load_policy(old.state_dict())) == 1
    obs, alive = observations(12), np.ones(12, bool)
    narrow = np.ascontiguousarray(obs[:, :OLD])
    np.testing.assert_array_equal(acted(old.policy, narrow, alive), acted(new.policy, obs, alive))
    values = []
    for networks, rows in zip(critics, (narrow, obs), strict=True):
        given = torch.from_numpy(rows)
        if old.central_critic:
            values.append(networks[0](given.unflatten(0, (4, 3)), torch.ones(4, 3, dtype=torch.bool)))
        else:
            values.append(networks[0](given, torch.arange(12) % 3))
    torch.testing.assert_close(*values, rtol=0, atol=2e-6)


def refusal(new: Algorithm[Any], old: Algorithm[Any]) -> str:
    with pytest.raises(ValueError) as caught:
        new.load_policy(old.state_dict())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_get_further_inputs_is_refused_in_a_line() -> None:
    def ppo(space: Space[Any], **settings: Any) -> PPO:
        return PPO(PPOConfig(**settings), Problem(space, Discrete(3), 4, 1000))

    assert refusal(ppo(box(3)), ppo(box(5))) == (
        "its network has 5 inputs, not 3: there may be more than in it, not fewer"
    )
    assert "its network has hidden [8], not [64, 64]" in refusal(ppo(box(5)), ppo(box(3), hidden=(8,)))
    vector = "only networks of fastrl for observations that are one vector can get more"
    parts = Dict({"a": box(2), "b": box(3)})
    assert vector in refusal(ppo(parts), ppo(box(3)))
    assert vector in refusal(ppo(parts, layer_norm=True), ppo(Dict({"a": box(2)}), layer_norm=True))
    image = Box(0, 255, (8, 8, 1), np.uint8)
    assert vector in refusal(ppo(image), ppo(Box(0, 255, (8, 8, 3), np.uint8)))
    own = {"network": "own_networks:Net"}
    assert vector in refusal(ppo(box(5), **own), ppo(box(3), **own))
    assert vector in refusal(ppo(box(5)), ppo(image))
