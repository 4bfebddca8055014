"""Adam without ``torch.optim``: the same bits, and states that each of the two can load."""

import pytest
import torch

from fastrl.algorithms.optimizer import Optimizer


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_steps_are_those_of_the_fused_adam_of_pytorch(max_grad_norm: float | None) -> None:
    rng = torch.Generator().manual_seed(1)
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 1001)) for _ in range(2))
    ours.grad = torch.zeros_like(ours)
    optimizer = Optimizer(ours, "fp32", eps=1e-5, learning_rate=0.1)
    reference = torch.optim.Adam([theirs], lr=0.1, eps=1e-5, fused=True)
    for step in range(20):
        gradient = torch.randn(len(theirs), generator=rng) * 10.0 ** (step % 4 - 2)
        ours.grad.copy_(gradient)
        theirs.grad = gradient.clone()
        norm = gradient.norm()
        if max_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_([theirs], max_grad_norm)
        rate = None if step < 5 else 0.1 / step
        reference.param_groups[0]["lr"] = rate or 0.1
        reference.step()
        assert torch.equal(optimizer.step(max_grad_norm, rate), norm)
        assert torch.equal(ours, theirs)
        assert not ours.grad.any()
    state = reference.state[theirs]
    assert all(torch.equal(state[name], moment) for name, moment in optimizer.state_dict()["adam"].items())
