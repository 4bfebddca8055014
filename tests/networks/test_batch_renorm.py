"""Batch renormalisation against the equations of the paper, one network and one column after the other."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from fastrl.networks.batch_renorm import BatchRenorm, batch_statistics
from fastrl.networks.ensemble import Ensemble

EPSILON, R_MAX, D_MAX = 1e-3, 3.0, 5.0


class Column:
    """Algorithm 1 of Ioffe (2017) for one number, in float64."""

    def __init__(self, scale: float, shift: float, momentum: float, warmup_steps: int) -> None:
        self.scale, self.shift, self.momentum, self.left = scale, shift, momentum, warmup_steps
        self.mean, self.std = 0.0, 1.0
        self.r, self.d = 1.0, 0.0

    def learned(self, x: np.ndarray) -> list[float]:
        mean = sum(x) / len(x)
        std = (sum((each - mean) ** 2 for each in x) / len(x) + EPSILON) ** 0.5
        self.r, self.d = 1.0, 0.0
        if self.left <= 0:
            self.r = min(max(std / self.std, 1 / R_MAX), R_MAX)
            self.d = min(max((mean - self.mean) / self.std, -D_MAX), D_MAX)
        self.left -= 1
        self.mean += self.momentum * (mean - self.mean)
        self.std += self.momentum * (std - self.std)
        return [self.scale * ((each - mean) / std * self.r + self.d) + self.shift for each in x]

    def acted(self, x: np.ndarray) -> list[float]:
        return [self.scale * (each - self.mean) / self.std + self.shift for each in x]


def drawn(layer: BatchRenorm, generator: torch.Generator) -> BatchRenorm:
    """The layer with factors and offsets that are not those of the start."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("warmup_steps", [0, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_papers_algorithm(seed: int, warmup_steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = drawn(BatchRenorm(2, 5), generator)
    layer.momentum, layer.warmup_steps = 0.1, warmup_steps
    scale, shift = layer.scale.flatten().tolist(), layer.shift.flatten().tolist()
    columns = [Column(*pair, 0.1, warmup_steps) for pair in zip(scale, shift, strict=True)]
    seen: set[str] = set()
    for i in range(8):
        # Columns from 0.01 to 30, so that each limit is met.
        spread = torch.logspace(-2, 1.5, 10).view(2, 1, 5)
        x = (torch.randn(2, 7, 5, generator=generator) + 3 * (i % 3 - 1)) * spread
        rows = x.transpose(1, 2).reshape(10, 7).double().numpy()
        acted = np.array([column.acted(row) for column, row in zip(columns, rows, strict=True)])
        torch.testing.assert_close(layer.eval()(x), as_batch(acted), atol=1e-4, rtol=1e-4)
        learned = np.array([column.learned(row) for column, row in zip(columns, rows, strict=True)])
        torch.testing.assert_close(layer.train()(x), as_batch(learned), atol=1e-4, rtol=1e-4)
        for name in ("mean", "std"):
            expected = torch.tensor([float(getattr(column, name)) for column in columns])
            torch.testing.assert_close(getattr(layer, name).flatten(), expected, atol=1e-5, rtol=1e-4)
        limits = {"least r": 1 / R_MAX, "largest r": R_MAX, "least d": -D_MAX, "largest d": D_MAX}
        seen |= {name for name, limit in limits.items() for each in columns if limit in (each.r, each.d)}
        if i < warmup_steps:
            assert not seen
    assert layer.steps == 8 and seen == set(limits)


def as_batch(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows).float().view(2, 5, 7).transpose(1, 2)


def test_corrections_have_no_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = drawn(BatchRenorm(2, 3), generator).train()
    layer.warmup_steps = 0
    x = (2 * torch.randn(2, 6, 3, generator=generator) + 1).requires_grad_()
    weights = torch.randn(2, 6, 3, generator=generator)
    (layer(x) * weights).sum().backward()
    mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
    std = (var + EPSILON).sqrt()
    # The running statistics were 0 and 1.
    r, d = std.detach().clamp(1 / R_MAX, R_MAX), mean.detach().clamp(-D_MAX, D_MAX)
    expected = ((x - mean) / std * r + d) * layer.scale + layer.shift
    inputs = [x, layer.scale, layer.shift]
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for each, gradient in zip(inputs, gradients, strict=True):
        torch.testing.assert_close(each.grad, gradient, atol=1e-4, rtol=1e-4)


def test_an_ensemble_learns_statistics_when_it_is_told_and_acts_by_plain_layers() -> None:
    generator = torch.Generator().manual_seed(0)
    body = Ensemble(3, (4, 6, 5, 2), batch_renorm=True, generator=generator)
    for renorm in body.renorms:
        drawn(renorm, generator).momentum = 0.3
    x = 2 * torch.randn(8, 4, generator=generator) + 1
    start = copy.deepcopy(body.state_dict())
    outputs = body(x)
    with batch_statistics(body):
        assert not torch.allclose(body(x), outputs)
    moved = {name for name, each in body.state_dict().items() if not torch.equal(each, start[name])}
    assert moved == {f"renorm_{i}.{name}" for i in range(3) for name in ("mean", "std", "steps")}
    # The statistics count, and do not move any more.
    found = body(x)
    assert not torch.allclose(found, outputs) and torch.equal(body(x), found)
    (first, a), (second, b), (last, c) = body.acting_layers()
    hidden = ((x @ first + a).relu() @ second + b).relu()
    torch.testing.assert_close(found, hidden @ last + c, atol=1e-5, rtol=1e-4)
