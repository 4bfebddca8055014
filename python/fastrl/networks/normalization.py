"""Running normalisation of observations and returns."""

import torch
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """Whitens vectors by the mean and variance of all vectors that `update` was given.

    Statistics are float64 and merged exactly (Chan, Golub and LeVeque, "Algorithms for computing the sample
    variance", 1983). Before the first update it is the identity.

    Args:
        size: length of a vector.
        clip: outputs are clipped to [-clip, clip].
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, batch: Tensor) -> None:
        """Adds a batch of vectors, float [B, size]."""
        batch_var, batch_mean = torch.var_mean(batch.double(), dim=0, correction=0)
        total = self.count + len(batch)
        weight = len(batch) / total
        difference = batch_mean - self.mean
        self.var.lerp_(batch_var, weight).add_(difference.square() * weight * (1 - weight))
        self.mean.add_(difference * weight)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """The factor of whitening, float32 [size]: one over the standard deviation."""
        return (self.var + 1e-8).rsqrt().float()

    def forward(self, x: Tensor) -> Tensor:
        """Whitens vectors, float [B, size], or their first numbers."""
        width = x.shape[-1]
        return ((x - self.mean[:width].float()) * self.scale()[:width]).clamp(-self.clip, self.clip)
