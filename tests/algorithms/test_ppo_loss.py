"""The parts of PPO's loss against PyTorch's distributions; gradients in closed form, which policies of many agents use,
against automatic differentiation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.algorithms.ppo_loss import divergence, log_probs_and_entropy, log_probs_of, surrogate_gradient
from fastrl.networks.distributions import Choices, mask_logits


def plain_loss(outputs, log_std, actions, old_log_probs, advantages, clip_range, entropy_coef):
    """The objective as the paper writes it."""
    if log_std is None:
        distribution = torch.distributions.Categorical(logits=outputs)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
    else:
        distribution = torch.distributions.Normal(outputs, log_std.exp())
        log_probs, entropies = distribution.log_prob(actions).sum(-1), distribution.entropy().sum(-1)
    ratio = (log_probs - old_log_probs).exp()
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * advantages)
    return policy_loss.mean() - entropy_coef * entropies.mean(), policy_loss.mean(), entropies.mean()


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_gradients_are_those_of_autograd(seed, size, width, is_box):
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(size, width, generator=rng, dtype=torch.float64, requires_grad=True)
    log_std, actions = None, torch.randint(width, (size,), generator=rng)
    if is_box:
        log_std = torch.randn(width, generator=rng, dtype=torch.float64, requires_grad=True)
        actions = torch.randn(size, width, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        old = log_probs_of(outputs, log_std, actions) + 0.3 * torch.randn(size, generator=rng)
    advantages = torch.randn(size, generator=rng, dtype=torch.float64)
    loss, policy_loss, entropy = plain_loss(outputs, log_std, actions, old, advantages, 0.2, 0.3)
    parameters = [outputs] if log_std is None else [outputs, log_std]
    expected = torch.autograd.grad(loss, parameters)
    gradient = surrogate_gradient(
        outputs, log_std, actions, old, advantages, clip_range=0.2, entropy_coef=0.3
    )
    torch.testing.assert_close(gradient.outputs, expected[0])
    assert (gradient.log_std is None) == (log_std is None)
    if is_box:
        torch.testing.assert_close(gradient.log_std, expected[1])
    torch.testing.assert_close(gradient.losses.policy_loss, policy_loss)
    torch.testing.assert_close(gradient.losses.entropy, entropy)


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from(["discrete", "multi_discrete", "box"]),
    st.booleans(),
)
def test_samples_may_share_rows(seed, size, kind, masked):
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    rows = torch.randint(3, (size,), generator=rng)
    log_std = choices = masks = None
    actions = torch.randint(6, (size,), generator=rng)
    taken = actions.unsqueeze(1)
    if kind == "box":
        log_std, actions = torch.randn(6, generator=rng), torch.randn(size, 6, generator=rng)
    elif kind == "multi_discrete":
        choices = Choices([2, 4])
        actions = torch.stack([torch.randint(n, (size,), generator=rng) for n in (2, 4)], 1)
        taken = actions + torch.tensor([0, 2])
    if masked and kind != "box":
        masks = (torch.rand(size, 6, generator=rng) < 0.5).scatter_(1, taken, True)
    found = log_probs_and_entropy(outputs, log_std, actions, choices, rows=rows, masks=masks)
    own = log_probs_and_entropy(mask_logits(outputs[rows], masks), log_std, actions, choices)
    gradients = [torch.autograd.grad((a + b).sum(), outputs, retain_graph=True) for a, b in (found, own)]
    torch.testing.assert_close(found, own)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("is_box", [False, True])
def test_against_itself_it_is_the_policy_gradient(is_box):
    """The gradient of -log pi(a) A, Williams' (1992)."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 2, generator=rng, requires_grad=True)
    log_std = torch.zeros(2, requires_grad=True) if is_box else None
    actions = torch.randn(6, 2, generator=rng) if is_box else torch.randint(2, (6,), generator=rng)
    advantages = torch.randn(6, generator=rng)
    log_probs = log_probs_of(outputs, log_std, actions)
    expected = torch.autograd.grad(-(log_probs * advantages).mean(), outputs)[0]
    gradient = surrogate_gradient(
        outputs.detach(),
        None if log_std is None else log_std.detach(),
        actions,
        log_probs.detach(),
        advantages,
        clip_range=1.0,
        entropy_coef=0.0,
    )
    torch.testing.assert_close(gradient.outputs, expected)
    assert gradient.losses.clip_fraction == 0
    np.testing.assert_allclose(gradient.losses.approx_kl, 0, atol=1e-7)


class TestMultiDiscrete:
    @settings(deadline=None)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 9),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.booleans(),
    )
    def test_gradients_are_those_of_autograd(self, seed, size, nvec, masked):
        rng = torch.Generator().manual_seed(seed)
        width = sum(nvec)
        outputs = torch.randn(size, width, generator=rng, dtype=torch.float64, requires_grad=True)
        actions = torch.stack([torch.randint(n, (size,), generator=rng) for n in nvec], 1)
        choices, logits = Choices(nvec), outputs
        if masked:
            firsts = torch.tensor([sum(nvec[:i]) for i in range(len(nvec))])
            masks = torch.rand(size, width, generator=rng) < 0.5
            logits = mask_logits(outputs, masks.scatter_(1, firsts + actions, True))
        parts = [torch.distributions.Categorical(logits=part) for part in logits.split(nvec, 1)]
        log_probs = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
        entropies = sum(part.entropy() for part in parts)
        old = log_probs.detach() + 0.3 * torch.randn(size, generator=rng)
        advantages = torch.randn(size, generator=rng, dtype=torch.float64)
        ratio = (log_probs - old).exp()
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        [expected] = torch.autograd.grad(policy_loss - 0.3 * entropies.mean(), logits, retain_graph=True)
        gradient = surrogate_gradient(
            logits,
            None,
            actions,
            old,
            advantages,
            choices=choices,
            clip_range=0.2,
            entropy_coef=0.3,
        )
        torch.testing.assert_close(gradient.outputs, expected)
        torch.testing.assert_close(gradient.losses.policy_loss, policy_loss)
        torch.testing.assert_close(gradient.losses.entropy, entropies.mean())
        own, own_entropies = log_probs_and_entropy(logits, None, actions, choices)
        torch.testing.assert_close(own, log_probs)
        torch.testing.assert_close(own_entropies, entropies)
        torch.testing.assert_close(log_probs_of(logits, None, actions, choices), log_probs)

    def test_draws_have_the_probabilities(self):
        choices = Choices([2, 4])
        logits = torch.tensor([[0.0, 1.0, 2.0, 0.0, -1.0, 0.5]]).expand(20_000, 6)
        uniforms = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
        actions, log_probs = choices.sample(logits, uniforms)
        for i, part in enumerate(logits[0].split([2, 4])):
            shares = torch.bincount(actions[:, i], minlength=len(part)) / len(actions)
            torch.testing.assert_close(shares, part.softmax(0), atol=0.015, rtol=0)
        torch.testing.assert_close(log_probs, choices.log_probs(logits, actions))


@settings(deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 9), st.sampled_from(["discrete", "masked", "multi_discrete", "box"])
)
def test_the_divergence_is_that_of_the_distributions(seed, size, kind):
    rng = torch.Generator().manual_seed(seed)
    nvec = [2, 4]
    own, theirs = torch.randn(2, size, 6, generator=rng, dtype=torch.float64)
    log_std = reference_log_std = choices = None
    if kind == "box":
        log_std, reference_log_std = torch.randn(2, 6, generator=rng, dtype=torch.float64)
        first = torch.distributions.Normal(theirs, reference_log_std.exp())
        kl = torch.distributions.kl_divergence(first, torch.distributions.Normal(own, log_std.exp()))
        kl = kl.sum(-1).mean()
    else:
        if kind == "masked":
            masks = torch.rand(size, 6, generator=rng) < 0.5
            masks[:, 2] = True
            own, theirs = (mask_logits(each, masks) for each in (own, theirs))
        parts = [own], [theirs]
        if kind == "multi_discrete":
            choices = Choices(nvec)
            parts = own.split(nvec, 1), theirs.split(nvec, 1)
        categorical = torch.distributions.Categorical
        kl = sum(
            torch.distributions.kl_divergence(categorical(logits=b), categorical(logits=a)).mean()
            for a, b in zip(*parts, strict=True)
        )
    torch.testing.assert_close(divergence(theirs, own, reference_log_std, log_std, choices), kl)
