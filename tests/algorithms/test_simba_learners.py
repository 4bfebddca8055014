"""SAC and TD3 with SimBa's networks: losses, statistics and weights of gradient steps."""

from typing import Any

import fragments
import numpy as np
import pytest
import torch
from fake_env import Constant
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from test_sac import BOX, IMAGE, OBS, WATCH, batch_of, learner, steps_of, td3

from fastrl.algorithms.off_policy_loss import project, squashed
from fastrl.algorithms.sac_settings import SACConfig
from fastrl.networks.actor_critic import ActorCritic

ATOMS = torch.linspace(-5, 5, 5)
VALUES = arrays.arrays(np.float32, (2, 5), elements=st.floats(-9, 9, width=32))
CHANCES = arrays.arrays(np.float32, (2, 5), elements=st.floats(0.125, 1, width=32))


def projected(value: float, chance: float) -> np.ndarray:
    """The shares of the atoms of one value, by its distance from each."""
    distances = np.abs(np.clip(value, -5, 5) - ATOMS.numpy().astype(np.float64)) / 2.5
    return chance * np.maximum(1 - distances, 0)


@given(VALUES, CHANCES)
def test_projections_are_those_of_plain_code(values: Any, chances: Any) -> None:
    chances /= chances.sum(1, keepdims=True)
    found = project(torch.from_numpy(values), torch.from_numpy(chances), ATOMS)
    for row, (row_values, row_chances) in enumerate(zip(values, chances, strict=True)):
        pairs = zip(row_values.astype(np.float64), row_chances.astype(np.float64), strict=True)
        np.testing.assert_allclose(found[row], sum(projected(*pair) for pair in pairs), atol=1e-5)
    means = (torch.from_numpy(values.clip(-5, 5)) * torch.from_numpy(chances)).sum(1)
    torch.testing.assert_close(found @ ATOMS, means, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_loss_of_categorical_critics_is_that_of_plain_code(name: str) -> None:
    make: Any = learner if name == "sac" else td3
    algorithm = make(encoder="simba_v2", critics=3)
    algorithm.observe([steps_of(0)])
    # The two of a random choice.
    batch = algorithm.minibatch(batch_of(), True)
    assert batch.target_critics is not None and len(batch.target_critics) == 2
    z = algorithm.critics.atoms
    assert (len(z), float(z[0]), float(z[-1])) == (101, -5.0, 5.0)
    with torch.no_grad():
        if name == "sac":
            later, log_pi, _ = squashed(algorithm.policy(batch.next_obs), batch.next_noise)
            bonus = -algorithm.temperature * log_pi
        else:
            noise = (0.2 * batch.next_noise).clamp(-0.5, 0.5)
            later, bonus = (
                (algorithm.target_policy(batch.next_obs).tanh() + noise).clamp(-1, 1),
                torch.zeros(6),
            )
        later_probs = algorithm.targets.log_probs(batch.next_obs, later).exp()[batch.target_critics]
    log_probs = algorithm.critics.log_probs(batch.obs, batch.actions)
    expected = torch.zeros(())
    for b in range(6):
        least = min(later_probs[:, b], key=lambda probs: float(probs @ z))
        values = batch.rewards[b] + batch.discounts[b] * (z + bonus[b])
        target = project(values[None], least[None], z)[0]
        expected = expected - sum(target @ log_probs[i, b] for i in range(3)) / 6
    loss = algorithm.critic_loss(batch)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.q, (log_probs.exp() @ z).mean().detach())
    values = algorithm.critics(batch.obs, batch.actions)
    torch.testing.assert_close(values, log_probs.exp() @ z)


@pytest.mark.parametrize("make", [learner, td3])
def test_weights_stay_on_the_sphere(make: Any) -> None:
    algorithm = make(encoder="simba_v2", learning_rate=1e-2, policy_every=1)
    algorithm.observe([steps_of(0)])
    before = [parameter.clone() for parameter in algorithm.critics.parameters()]
    for seed in range(3):
        algorithm.update(batch_of(seed=seed), WATCH)
    assert all(not torch.equal(*pair) for pair in zip(before, algorithm.critics.parameters(), strict=True))
    for network in algorithm.networks():
        weights = {name: each for name, each in network.named_parameters() if name.endswith("weight")}
        assert len(weights) >= 7
        for each in weights.values():
            torch.testing.assert_close(each.norm(dim=1), torch.ones(each.shape[0], each.shape[2]))


def test_weights_decay_but_not_the_temperature() -> None:
    """With gradients of 0 AdamW changes parameters by the decay alone."""
    decayed, plain = (
        learner(weight_decay=each, update_backend="torch", temperature=0.5) for each in (0.5, 0.0)
    )
    for algorithm in (decayed, plain):
        algorithm.steps = 0
        algorithm.update(batch_of(), WATCH)
    pairs = zip(decayed.critics.parameters(), plain.critics.parameters(), strict=True)
    start = learner(temperature=0.5).critics.parameters()
    for (one, other), first in zip(pairs, start, strict=True):
        torch.testing.assert_close(one, other - 3e-4 * 0.5 * first)
    assert torch.equal(decayed.log_temperature, plain.log_temperature)


@pytest.mark.parametrize("encoder", ["simba", "simba_v2"])
def test_all_networks_whiten_by_what_was_collected(encoder: str) -> None:
    algorithm = td3(encoder=encoder)
    steps = [steps_of(seed) for seed in range(3)]
    for each in steps:
        algorithm.observe([each])
    rows = np.concatenate([each.obs[:-1, 0] for each in steps])
    networks = (algorithm.policy, algorithm.target_policy, algorithm.critics, algorithm.targets)
    for network in networks:
        norm = network.decoder.norm
        assert norm is not None
        np.testing.assert_allclose(norm.mean, rows.mean(0), rtol=1e-5)
        np.testing.assert_allclose(norm.var, rows.var(0), rtol=1e-5)
    scaled = algorithm.minibatch(batch_of(), True).rewards / batch_of().rewards
    if encoder == "simba":
        assert (scaled == 1).all()
        return
    returns, returned = [], 0.0
    for each in steps:
        for reward, ended in zip(each.rewards[:, 0], each.terminations[:, 0], strict=True):
            returned = reward + 0.99 * returned
            returns.append(returned)
            returned *= not ended
    expected = 1 / max(np.std(returns), np.abs(returns).max() / 5)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)


def test_statistics_do_not_depend_on_the_division_into_fragments() -> None:
    rows = fragments.Rows(Constant(num_envs=3, episode_length=4))
    fragment = rows.play(ActorCritic(1, 2, (), generator=torch.Generator()), 6)
    fragment.obs[:] = np.random.default_rng(0).normal(size=fragment.obs.shape)
    found = []
    for parts in ([fragment], fragments.parts(fragment, 2, 1)):
        algorithm = learner(Box(-1, 1, (1,), np.float32), encoder="simba")
        algorithm.observe(parts)
        found.append(algorithm.policy.state_dict()["decoder.norm.var"])
    assert torch.equal(*found)


SIMBA = {"encoder": "simba", "hidden": (8,)}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"layer_norm": True}, "the encoder simba normalises by itself: set layer_norm to false"),
        ({"precision": "bf16"}, "the encoder simba is computed in fp32: set precision to fp32"),
        ({"hidden": (8, 9)}, "hidden is the width of each block, the same for all, such as 512,512, got 8,9"),
        ({"policy_hidden": ()}, "policy_hidden is the width of each block, .* got none"),
    ],
)
def test_settings_that_do_not_go_with_simba_are_refused(settings: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SACConfig(**(SIMBA | settings))


@pytest.mark.parametrize(
    ("obs", "actions", "settings", "match"),
    [
        (
            IMAGE,
            BOX,
            SIMBA,
            "the encoder simba is for numbers, the observations have images: set encoder to auto",
        ),
        (
            OBS,
            Discrete(3),
            {"encoder": "simba_v2"},
            "simba_v2 is for continuous actions: set encoder to simba",
        ),
        (
            OBS,
            BOX,
            SIMBA | {"update_backend": "compiled"},
            "compiled is for perceptrons of .* residual blocks",
        ),
        (OBS, BOX, {"update_backend": "compiled", "weight_decay": 0.1}, "compiled is for Adam without"),
        (OBS, BOX, {"update_backend": "compiled", "policy_hidden": (4,)}, "without policy_hidden"),
    ],
)
def test_problems_that_are_not_offered_are_refused(obs: Any, actions: Any, settings: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        learner(obs, actions, **settings)
    assert "\n" not in str(error.value)


def test_a_policy_may_be_narrower_than_the_critics() -> None:
    algorithm = learner(policy_hidden=(4,))
    assert (algorithm.policy.body.sizes, algorithm.critics.body.sizes) == ((3, 4, 4), (5, 8, 8, 1))
    assert algorithm.update_backend == "torch"
    assert "without policy_hidden" in algorithm.remarks()[0]
