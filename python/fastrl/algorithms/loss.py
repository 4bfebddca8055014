"""The loss of a minibatch, as the `loss` methods of algorithms give it."""

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The loss of a minibatch, and its parts: scalars (0-dimensional tensors). ``loss + x`` adds to the total.

    Attributes:
        total: to descend along.
    """

    total: Tensor

    def __add__(self, other: Tensor) -> Self:
        return replace(self, total=self.total + other)

    @classmethod
    def parts(cls) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(field.name for field in fields(cls))[1:]

    def numbers(self) -> Tensor:
        """The parts, without gradients, float32 [n]."""
        return torch.stack([getattr(self, name) for name in self.parts()]).detach()
