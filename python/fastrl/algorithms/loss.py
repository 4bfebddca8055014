"""The loss of a minibatch, as the `loss` methods of algorithms give it, and sums of losses over minibatches."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fastrl.utils.ranks import Ranks, Shard


def overridden(algorithm: type, known: type, methods: Sequence[str]) -> list[str]:
    """Names of the methods of a class ``known`` that its subclass ``algorithm`` overrides."""
    return [name for name in methods if getattr(algorithm, name) is not getattr(known, name)]


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
    def names(cls) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(field.name for field in fields(cls))[1:]

    def metrics(self) -> Tensor:
        """The parts, without gradients, float32 [n]."""
        return torch.stack([getattr(self, name) for name in self.names()]).detach()


@dataclass(frozen=True)
class TDLoss(Loss):
    """The loss of values of actions; of B samples.

    Attributes:
        loss: that of the algorithm.
        q: mean value of the actions that were taken.
        td_errors: absolute, float32 [B], without gradients; their mean is a part.
    """

    loss: Tensor
    q: Tensor
    td_errors: Tensor

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("loss", "q", "td_error")

    def metrics(self) -> Tensor:
        return torch.stack([self.loss, self.q, self.td_errors.mean()]).detach()


def td_loss(Q: Tensor, y: Tensor) -> TDLoss:
    """The sum over critics i of E[(Q_i - y)^2] / 2, of values [E, B] and their targets [B]."""
    loss = (Q - y).square().mean(1).sum() / 2
    return TDLoss(loss, loss=loss, q=Q.mean(), td_errors=(Q - y).detach().abs().mean(0))


def reduce_loss(
    ranks: Ranks, gradient: Tensor, size: int, kind: type[Loss], learn: Callable[[Shard, float], Loss]
) -> tuple[Tensor, Tensor]:
    """Adds the gradient of a minibatch's loss to a gradient, see `Ranks.reduce`.

    Args:
        size: of the minibatch.
        kind: of the loss.
        learn: adds the gradient of a shard, which is not empty, multiplied by its weight in the minibatch, and returns
            the loss.

    Returns:
        `Loss.metrics`, float32 [n], and the TD errors of a `TDLoss` [size], of others [0].
    """
    num_means = len(kind.names())

    def means_of(shard: Shard) -> Tensor | None:
        rows = shard.rows
        if rows.start == rows.stop:
            return None
        weight = (rows.stop - rows.start) / size
        loss = learn(shard, weight)
        means, errors = loss.metrics(), loss.td_errors if isinstance(loss, TDLoss) else None
        if weight < 1:
            # Errors of other shards are zeros, so that sums put them side by side.
            errors = None if errors is None else functional.pad(errors, (rows.start, size - rows.stop))
            means = means * weight
        return means if errors is None else torch.cat([means, errors])

    found = ranks.reduce(gradient, size, num_means + size * issubclass(kind, TDLoss), means_of)
    return found[:num_means], found[num_means:]


class LossMeans:
    """Means of numbers of gradient steps, which are summed on their device: nothing waits for a GPU.

    Args:
        groups: names of the numbers that are added together.

    Attributes:
        array: sums of all groups, float32, where they are on a CPU.
        counts: how often numbers of each group were added.
    """

    def __init__(self, device: torch.device, *groups: Sequence[str]) -> None:
        self._groups = groups
        self._sums = torch.zeros(sum(map(len, groups)), device=device)
        self.counts = [0] * len(groups)
        if device.type == "cpu":
            self.array = self._sums.numpy()

    def add(self, group: int, means: Tensor | NDArray[np.float32]) -> None:
        """Adds numbers [n] of a group; an array on a CPU alone, where it takes less time."""
        start = sum(map(len, self._groups[:group]))
        sums: Any = self._sums if isinstance(means, Tensor) else self.array
        sums[start : start + len(means)] += means
        self.counts[group] += 1

    def take(self, after: str) -> dict[str, float]:
        """The means since the last call, NaN without any.

        Args:
            after: number of all gradient steps, or of samples, for the error.

        Raises:
            FloatingPointError: a number was NaN or infinite; the parameters are of no use any more.
        """
        sums = self._sums.double().cpu()
        counts = torch.tensor(self.counts).repeat_interleave(torch.tensor([*map(len, self._groups)]))
        self._sums.zero_()
        self.counts = [0] * len(self._groups)
        if not sums.sum().isfinite():
            raise FloatingPointError(
                f"the loss is not finite (NaN or infinity) after {after}; go back to a checkpoint, and"
                " lower the learning rate or check rewards and observations"
            )
        return dict(zip(itertools.chain(*self._groups), (sums / counts).tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "summed": list(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums.copy_(state["sums"])
        self.counts = [int(count) for count in state["summed"]]
