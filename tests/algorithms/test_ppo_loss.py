"""The terms of losses, and the losses of policies of many agents, against PyTorch's distributions."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.algorithms.mappo import MAPPO
from fastrl.algorithms.multi_agent import Minibatch
from fastrl.algorithms.ppo_loss import divergence, log_probs_and_entropy, log_probs_of
from fastrl.algorithms.reinforce import REINFORCE
from fastrl.networks.distributions import Choices, mask_logits


def loss_of(algorithm, outputs, log_std, actions, log_probs, advantages, choices=None, entropy_coef=0.3):
    """Total and parts of an algorithm's `loss`."""
    policy = SimpleNamespace(log_std=log_std, choices=choices)
    learner = SimpleNamespace(config=SimpleNamespace(clip_range=0.2), entropy_coef=entropy_coef)
    batch = Minibatch(policy, None, None, outputs, actions, log_probs, advantages)
    return algorithm.loss(learner, batch)


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
def test_the_loss_of_ppo_of_many_agents(seed, size, width, is_box):
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
    losses = loss_of(MAPPO, outputs, log_std, actions, old, advantages)
    torch.testing.assert_close(torch.autograd.grad(losses.total, parameters), expected)
    torch.testing.assert_close(losses.metrics()[:2], torch.stack([policy_loss, entropy]).detach())
    assert ((losses + torch.ones(())).total - losses.total).item() == pytest.approx(1)


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
def test_the_loss_of_reinforce(is_box):
    """The gradient of -log pi(a) A, Williams' (1992)."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 2, generator=rng, requires_grad=True)
    log_std = torch.zeros(2, requires_grad=True) if is_box else None
    actions = torch.randn(6, 2, generator=rng) if is_box else torch.randint(2, (6,), generator=rng)
    advantages = torch.randn(6, generator=rng)
    log_probs = log_probs_of(outputs, log_std, actions)
    expected = -(log_probs * advantages).mean()
    found = loss_of(REINFORCE, outputs, log_std, actions, log_probs, advantages, entropy_coef=0.0)
    torch.testing.assert_close(found.policy_loss, expected)
    parameters = [outputs, log_std] if is_box else [outputs]
    gradients = (torch.autograd.grad(each, parameters, retain_graph=True) for each in (found.total, expected))
    torch.testing.assert_close(*gradients)


class TestMultiDiscrete:
    @settings(deadline=None)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 9),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.booleans(),
    )
    def test_the_loss_and_its_terms(self, seed, size, nvec, masked):
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
        losses = loss_of(MAPPO, logits, None, actions, old, advantages, choices)
        [gradient] = torch.autograd.grad(losses.total, logits)
        torch.testing.assert_close(gradient, expected)
        torch.testing.assert_close(losses.policy_loss, policy_loss)
        torch.testing.assert_close(losses.entropy, entropies.mean())
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
