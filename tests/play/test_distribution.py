"""Distributions of actions: beside what `predict` draws, for algorithms and spaces; values beside the learners'."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import cartpole_expert, played
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from parallel_toys import Leavers
from space_cases import AnySpaces
from torch.distributions import Categorical, Independent, Normal
from toy_algorithm import Toy

import fastrl
from fastrl.play.distribution import SquashedNormal
from fastrl.play.policy import PredictError
from fastrl.utils.config import ConfigError

BASE: dict[str, Any] = {"num_envs": 2, "collector": "sequential", "hidden": [8], "device": "cpu", "seed": 5}
REPLAY = {**BASE, "replay__capacity": 100, "replay__learning_starts": 20, "batch_size": 8}
ROLLOUT = {**BASE, "num_steps": 8}
OBS = Box(-1, 1, (3,), np.float32)
BOUNDED = Box(np.array([-2, 0], np.float32), np.array([1, 8], np.float32))
COUNT = 20_000


def env(obs: Any, action: Any) -> Any:
    return functools.partial(AnySpaces, obs, action)


def batch(model: fastrl.Model, count: int = COUNT) -> Any:
    """One observation of the space, many times."""
    space = model.policy.obs_space
    space.seed(1)
    obs = space.sample()
    if isinstance(obs, dict):
        return {key: np.repeat(np.asarray(each)[None], count, 0) for key, each in obs.items()}
    return np.repeat(np.asarray(obs)[None], count, 0)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("PPO", env(OBS, Discrete(4, start=3)), ROLLOUT),
    "dict": ("PPO", env(Dict(a=OBS, b=Discrete(3)), Discrete(3)), ROLLOUT),
    "several": ("PPO", env(OBS, MultiDiscrete([2, 4])), ROLLOUT),
    "binary": ("IMPALA", env(OBS, MultiBinary(3)), ROLLOUT),
    "lstm": ("PPO", env(OBS, Discrete(4)), {**ROLLOUT, "memory": "lstm", "memory_size": 4}),
    "dqn": ("DQN", env(OBS, Discrete(4)), {**REPLAY, "epsilon": 0.4, "final_epsilon": 0.4}),
    "pqn": ("PQN", env(OBS, Discrete(4)), {**ROLLOUT, "epsilon": 0.4, "final_epsilon": 0.4}),
    "quantiles": ("DQN", env(OBS, Discrete(4)), {**REPLAY, "quantiles": 3, "epsilon": 0.3}),
    "sac": ("SAC", env(OBS, Discrete(4)), REPLAY),
}


@pytest.mark.parametrize("name", CASES)
def test_discrete_actions_are_drawn_as_it_says(name: str) -> None:
    algorithm, make, settings = CASES[name]
    model = getattr(fastrl, algorithm)(make, **settings).learn(60)
    obs, start = batch(model), 3 if name == "ppo" else 0
    state = None
    if name == "lstm":
        state = np.repeat(np.linspace(-1, 1, model.policy.state_size, dtype=np.float32)[None], COUNT, 0)
    drawn, after = model.predict(obs, state, deterministic=False)
    greedy, _ = model.predict(obs, state)
    found = model.distribution(obs, state)
    assert isinstance(found.distribution, Categorical | Independent)
    flat = np.asarray(drawn).reshape(COUNT, -1) - start
    probs = getattr(found.distribution, "base_dist", found.distribution).probs.reshape(
        COUNT, flat.shape[1], -1
    )
    for number in range(flat.shape[1]):
        shares = np.bincount(flat[:, number].astype(int), minlength=probs.shape[-1]) / COUNT
        np.testing.assert_allclose(probs[0, number].numpy(), shares, atol=0.02)
        assert probs[0, number].argmax() == np.asarray(greedy).reshape(COUNT, -1)[0, number] - start
    actions = torch.as_tensor(flat.squeeze(-1) if flat.shape[1] == 1 else flat)
    expected = np.prod([probs[0, i, flat[0, i]] for i in range(flat.shape[1])])
    assert found.distribution.log_prob(actions)[0].exp() == pytest.approx(expected, abs=1e-5)
    if after is not None:
        np.testing.assert_allclose(found.state, after, atol=1e-5)
    assert found.values is not None and found.values.shape == (COUNT,)
    if algorithm in ("DQN", "PQN", "SAC"):
        values = found.action_values
        assert values is not None and values.shape == (COUNT, 4)
        best = values.amax(-1) if algorithm != "SAC" else (values * probs[:, 0]).sum(-1)
        torch.testing.assert_close(found.values, best)


@pytest.mark.parametrize(
    ("algorithm", "settings", "kind"),
    [
        ("PPO", ROLLOUT, Normal),
        ("PPO", {**ROLLOUT, "squash_actions": True}, SquashedNormal),
        ("SAC", REPLAY, SquashedNormal),
        ("TD3", {**REPLAY, "exploration_noise": 0.05}, Normal),
    ],
)
def test_continuous_actions_are_drawn_as_it_says(algorithm: str, settings: Any, kind: type) -> None:
    if algorithm == "PPO":
        # Hardly any draw is clipped.
        settings = {**settings, "initial_log_std": -1.5}
    model = getattr(fastrl, algorithm)(env(OBS, BOUNDED), **settings).learn(60)
    obs = batch(model)
    drawn, _ = model.predict(obs, deterministic=False)
    greedy, _ = model.predict(obs)
    found = model.distribution(obs[:2])
    distribution = found.distribution
    assert isinstance(getattr(distribution, "base_dist", None) if kind is Normal else distribution, kind)
    scale = (BOUNDED.high - BOUNDED.low) / 2
    mode = distribution.mode if isinstance(distribution, SquashedNormal) else distribution.mean
    np.testing.assert_allclose(mode[0].numpy(), greedy[0], atol=1e-4)
    np.testing.assert_allclose(distribution.mean[0].numpy() / scale, drawn.mean(0) / scale, atol=0.02)
    np.testing.assert_allclose(distribution.stddev[0].numpy() / scale, drawn.std(0) / scale, atol=0.02)
    assert found.values is not None and found.values.shape == (2,) and found.action_values is None
    if isinstance(distribution, SquashedNormal):
        # Entropy is minus the mean of log-densities.
        actions = torch.from_numpy(drawn).clamp(
            torch.from_numpy(BOUNDED.low + 1e-4), torch.from_numpy(BOUNDED.high - 1e-4)
        )
        sampled = -model.distribution(obs).distribution.log_prob(actions).mean()
        assert distribution.entropy()[0].item() == pytest.approx(sampled.item(), abs=0.05)


def test_values_are_those_of_the_learner() -> None:
    model = fastrl.PPO(env(OBS, Discrete(4)), **ROLLOUT).learn(32)
    obs = np.random.default_rng(0).uniform(-1, 1, (7, 3)).astype(np.float32)
    values = model.distribution(obs).values
    np.testing.assert_allclose(values.numpy(), model.trainer.algorithm.predict_values(obs), atol=1e-5)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_masked_actions_have_no_probability(algorithm: str) -> None:
    settings = ROLLOUT if algorithm == "PPO" else REPLAY
    if algorithm == "DQN":
        settings = {**settings, "epsilon": 0.5, "final_epsilon": 0.5}
    model = getattr(fastrl, algorithm)(env(OBS, Discrete(4)), **settings).learn(40)
    mask = np.array([False, True, False, True])
    obs = batch(model, 1)[0]
    found = model.distribution(obs, action_masks=mask)
    probs = found.distribution.probs[0]
    assert probs[~mask].sum() == 0 and probs[mask].min() > 0
    assert probs.sum() == pytest.approx(1)
    with pytest.raises(PredictError, match="action_masks: expected bool"):
        model.distribution(obs, action_masks=mask[:3])


@pytest.mark.parametrize("algorithm", ["IPPO", "MAPPO", "REINFORCE"])
def test_agents_with_names(algorithm: str) -> None:
    model = getattr(fastrl, algorithm)(Leavers, **ROLLOUT).learn(32)
    obs = {"a": np.array([0.5, 0], np.float32), "late": np.array([-0.5, 0.1], np.float32)}
    found = model.distribution(obs)
    assert found.keys() == obs.keys()
    drawn = [model.predict(obs, deterministic=False)[0] for _ in range(2_000)]
    for agent, each in found.items():
        share = np.mean([actions[agent] for actions in drawn])
        assert each.distribution.probs[0, 1].item() == pytest.approx(share, abs=0.05)
        assert each.values.shape == (1,)


def test_rows_of_agents() -> None:
    model = fastrl.MAPPO("fastrl/coop-merge-v0", eval_episodes=0, **ROLLOUT).learn(32)
    agents, dim = model.trainer.source.num_agents, model.policy.obs_dim
    obs = np.random.default_rng(0).uniform(-1, 1, (2, agents, dim)).astype(np.float32)
    found = model.distribution(obs)
    assert found.values.shape == found.distribution.batch_shape == (2 * agents,)
    # The central critic sees all agents of an environment, and of no other one.
    alone = model.distribution(obs[1]).values
    torch.testing.assert_close(found.values[agents:], alone)


def test_a_loaded_model_has_the_same(tmp_path: Any) -> None:
    model = fastrl.PPO("CartPole-v1", **ROLLOUT).learn(32)
    model.save(tmp_path / "m.safetensors")
    obs = np.zeros(4, np.float32)
    expected = model.distribution(obs)
    found = fastrl.load(tmp_path / "m.safetensors").distribution(obs)
    torch.testing.assert_close(found.distribution.probs, expected.distribution.probs)
    torch.testing.assert_close(found.values, expected.values)


def test_a_clone_has_learned_no_values() -> None:
    demos = played(gymnasium.make("CartPole-v1"), cartpole_expert, 2, steps=20)
    model = fastrl.BC("CartPole-v1", demos=demos, epochs=1, hidden=(8,), eval_episodes=0)
    found = model.distribution(np.zeros((3, 4), np.float32))
    assert found.values is None and found.distribution.batch_shape == (3,)


@pytest.mark.slow
def test_stacked_frames_are_in_the_order_of_the_network() -> None:
    model = fastrl.DQN(
        "fastrl/Catch-v0", num_envs=2, hidden=[8], seed=1, epsilon=0.0, final_epsilon=0.0, device="cpu"
    )
    obs = np.random.default_rng(0).integers(0, 255, (64, *model.policy.obs_space.shape), dtype=np.uint8)
    best = model.distribution(obs).distribution.probs.argmax(-1)
    assert best.tolist() == model.predict(obs)[0].tolist() and len(set(best.tolist())) > 1


def test_actions_that_are_not_drawn_have_none() -> None:
    model = fastrl.TD3(env(OBS, BOUNDED), exploration_noise=0.0, **REPLAY)
    with pytest.raises(PredictError, match="distribution: its actions are not drawn"):
        model.distribution(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("algorithm", "make", "settings"),
    [
        ("PPO", env(OBS, Discrete(4)), ROLLOUT),
        ("DQN", env(OBS, Discrete(4)), REPLAY),
        ("SAC", env(OBS, BOUNDED), REPLAY),
        ("MAPPO", Leavers, ROLLOUT),
    ],
)
def test_the_network_is_what_acts(algorithm: str, make: Any, settings: Any) -> None:
    model = getattr(fastrl, algorithm)(make, **settings).learn(40)
    obs: Any = {"a": np.ones(2, np.float32)} if make is Leavers else np.ones(3, np.float32)
    before = model.distribution(obs)
    assert isinstance(model.network, torch.nn.Module)
    acting, learned = list(model.network.parameters()), list(model.parameters())
    assert acting and all(each.requires_grad for each in learned)
    assert {id(each) for each in acting} <= {id(each) for each in learned}
    assert (len(learned) > len(acting)) == (algorithm in ("SAC", "MAPPO"))
    with torch.no_grad():
        for parameter in acting:
            parameter.zero_()
    after = model.distribution(obs)
    if make is Leavers:
        before, after = before["a"], after["a"]
        assert after.distribution.probs.tolist() == [[0.5, 0.5]]
    elif algorithm == "SAC":
        assert after.distribution.mode[0].tolist() == [-0.5, 4.0]
        assert model.predict(obs)[0].tolist() == [-0.5, 4.0]
    elif algorithm == "PPO":
        assert after.distribution.probs.tolist() == [[0.25] * 4]
        assert after.values.tolist() == [0.0] != before.values.tolist()
    else:
        assert after.action_values.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_training_starts_with_the_weights_that_were_given(algorithm: str) -> None:
    settings = ROLLOUT if algorithm == "PPO" else REPLAY
    model = getattr(fastrl, algorithm)("CartPole-v1", learning_rate=0.0, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    model.learn(40)
    assert all((parameter == 0.25).all() for parameter in model.parameters())


def test_an_algorithm_of_ones_own_says_its_networks() -> None:

    with pytest.raises(ConfigError, match=r"Toy does not say .* networks\(\)"):
        fastrl.Model("CartPole-v1", algo=Toy).network  # noqa: B018
