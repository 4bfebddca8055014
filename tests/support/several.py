"""Minibatches one after the other, as `UniformSampler.sample_several` gives them."""

from collections.abc import Sequence
from typing import Any

import torch

from fastrl.replay.samplers import Batch, Batches


def together(batches: Sequence[Any]) -> Batches:
    """Minibatches of the same size in one."""
    nothing = dict.fromkeys(("terminated", "truncated", "indices", "weights"), torch.zeros(0))
    parts = [Batch(**(nothing | vars(batch)), extra={}) for batch in batches]
    fields = {
        name: torch.cat([getattr(part, name) for part in parts]) if isinstance(value, torch.Tensor) else value
        for name, value in vars(parts[0]).items()
    }
    return Batches(**fields, parts=parts)
