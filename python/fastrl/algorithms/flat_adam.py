"""Adam for small networks: one vector of parameters, clipping, dropout, order of samples."""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from fastrl.algorithms.optimizer import clip_gradient
from fastrl.networks.kinds import LOG_STD_RANGE
from fastrl.networks.multi_agent import CentralCritic, Critic, PolicyNetwork
from fastrl.networks.parameters import flatten_parameters, load_weights

Network = TypeVar("Network", bound=PolicyNetwork | Critic | CentralCritic)

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-5


class FlatAdam(Generic[Network]):
    """A network and Adam (Kingma and Ba, 2015) on the vector of all its parameters.

    The arithmetic is that of ``torch.optim.Adam(eps=1e-5)``, whose class would load PyTorch's compiler: 120 MB.
    `fastrl.algorithms.optimizer.Optimizer` steps by PyTorch's fused kernel, which rounds otherwise, and has fp16. Here
    the deviations of a Gaussian stay within their range.

    Args:
        network: learns; its parameters become views of ``vector``.

    Attributes:
        gradient: of the vector; `step` zeroes it.
        mean, square: Adam's moments.
        steps: of the optimiser so far.
    """

    def __init__(self, network: Network) -> None:
        self.network: Network = network
        self.vector = flatten_parameters(network)
        assert self.vector.grad is not None
        self.gradient = self.vector.grad
        self.steps = 0
        self.mean = torch.zeros_like(self.gradient)
        self.square = torch.zeros_like(self.gradient)

    @torch.no_grad()
    def step(self, learning_rate: float, max_grad_norm: float) -> Tensor:
        """Takes a step along the gradient, scaled down to ``max_grad_norm``, and zeroes it; returns its norm before
        scaling."""
        gradient = self.gradient
        norm = clip_gradient(gradient, max_grad_norm)
        self.steps += 1
        self.mean.lerp_(gradient, 1 - _BETA1)
        self.square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        spread = (self.square / (1 - _BETA2**self.steps)).sqrt_().add_(_EPSILON)
        self.vector.addcdiv_(self.mean, spread, value=-learning_rate / (1 - _BETA1**self.steps))
        gradient.zero_()
        if isinstance(self.network, PolicyNetwork) and self.network.log_std is not None:
            self.network.log_std.clamp_(*LOG_STD_RANGE)
        return norm

    def drops(self, rows: int, rate: float, generator: torch.Generator) -> list[Tensor]:
        """Dropout at that rate of a pass of so many rows through the network, as `Perceptron` takes it."""
        if rate == 0:
            return []
        masks = self.network.body.dropout_masks(rows, rate, generator)
        return [mask.to(self.vector.device) for mask in masks]

    def state_dict(self) -> dict[str, Any]:
        """Weights and moments, not copies."""
        return {
            "weights": self.network.state_dict(),
            "mean": self.mean,
            "square": self.square,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from the state of a network and optimiser of the same kind.

        Raises:
            ValueError: it is of another network, or not finite.
        """
        load_weights(self.network, state["weights"])
        if not state["mean"].shape == state["square"].shape == self.mean.shape:
            raise ValueError(f"the moments should have shape {list(self.mean.shape)}")
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.steps = state["steps"]


def minibatches(samples: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Samples in a new order, in equal parts of at most ``size``."""
    if len(samples):
        order = torch.randperm(len(samples), generator=generator)
        yield from samples[order].tensor_split(-(-len(samples) // max(size, 1)))


def networks_of(optimizers: Mapping[str, FlatAdam[Any]]) -> nn.ModuleDict:
    """The networks of optimisers, by name; names of modules have no dots."""
    return nn.ModuleDict({name.replace(".", "_"): each.network for name, each in optimizers.items()})
