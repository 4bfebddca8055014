"""Gradient steps of PQN on the CPU, compiled.

They are, up to rounding, those that PyTorch takes along `fastrl.algorithms.pqn.PQN.loss`, which says what is learned.
"""

import math
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.collectors.threads import threads
from fastrl.networks.normalized_q import NormalizedQ

if TYPE_CHECKING:
    from fastrl.algorithms.pqn import PQN

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = (
    {"num_steps", "num_epochs", "minibatch_size", "gamma", "td_lambda", "munchausen", "huber"}
    | {"epsilon", "final_epsilon", "epsilon_steps"}
    | {"learning_rate", "final_learning_rate", "adam_eps", "max_grad_norm", "update_backend"}
    | {"hidden", "activation", "layer_norm", "encoder", "memory", "memory_size", "network", "network_options"}
    | {"normalize_obs", "normalize_returns", "reward_scale", "reward_clip", "action_masks"}
)


class CompiledPQN:
    """Values of actions, and gradient steps of a rollout, all of them in one call of
    ``fastrl._native._rust.PpoUpdate``, whose critic the network is. It changes parameters and the optimiser's moments
    where they are. Results do not depend on the number of threads.

    Args:
        learner: whose network is a perceptron of vectors.
        optimizer: of the network.
    """

    def __init__(self, learner: "PQN", network: NormalizedQ, optimizer: Optimizer) -> None:
        self._config, self._network = learner.config, network
        self._optimizer = optimizer
        self._parameters, self._mean, self._square, _ = optimizer.arrays()
        config = learner.config
        self._compiled = PpoUpdate(
            obs_dim=network.obs_dim,
            hidden=list(config.hidden),
            activation=config.activation,
            critic_outputs=network.num_actions,
            networks="critic",
            layer_norm=config.layer_norm,
        )

    @classmethod
    def of(cls, learner: "PQN", known: type, optimizer: Optimizer) -> tuple[Self | None, str]:
        """The gradient steps of a learner whose loss is that of the class ``known``. None where PyTorch takes them, for
        the reason in the text.

        Raises:
            ValueError: compiled ones are asked for, and there are none for the loss, the network or its device.
        """
        network = learner.network
        is_plain = (
            type(network) is NormalizedQ
            and network.memory is None
            and network.encoder.numbers is None
            and network.actor_architecture() is not None
        )
        plain = "perceptrons of vectors, without images, memory or a network of your own"
        is_compiled, why = takes_compiled_steps(
            learner, known, ("loss",), _KNOWN, lambda: "" if is_plain else plain
        )
        if not is_compiled:
            return None, why
        assert isinstance(network, NormalizedQ)
        return cls(learner, network, optimizer), ""

    @torch.no_grad()
    def inputs(self, obs: Tensor) -> Tensor:
        """Inputs of the perceptron, float32 [G, D], from rows of observations [G, D]."""
        vector, _ = self._network.decoder(obs)
        return vector.contiguous()

    def estimates(self, inputs: Tensor) -> Tensor:
        """Values of actions, float32 [G, A]."""
        out = np.empty((len(inputs), self._network.num_actions), np.float32)
        # One action alone has no axis there.
        to = out if out.shape[1] > 1 else out[:, 0]
        rows = np.arange(len(inputs))
        self._compiled.values(self._parameters, inputs.numpy(), rows, to, num_threads=threads())
        return torch.from_numpy(out)

    def __call__(
        self,
        inputs: Tensor,
        groups: Tensor,
        actions: Tensor,
        returns: Tensor,
        generator: torch.Generator,
        means: LossMeans,
        learning_rate: float,
    ) -> int:
        """Takes the gradient steps of a rollout of S samples, and returns their number.

        Args:
            inputs: of the perceptron, float32 [G, D].
            groups: which of these each sample has, int64 [S].
            actions, returns: int64 and float32 [S].
            generator: draws the order of samples, as for PyTorch's steps.
            means: to which losses are added.
        """
        config, size = self._config, len(groups)
        orders = torch.stack([torch.randperm(size, generator=generator) for _ in range(config.num_epochs)])
        *found, steps = self._compiled.learn_values(
            self._parameters,
            self._mean,
            self._square,
            inputs.numpy(),
            groups.numpy(),
            actions.numpy(),
            returns.numpy(),
            orders.numpy(),
            steps=self._optimizer.steps,
            minibatches=-(-size // config.minibatch_size),
            huber=math.inf if config.huber is None else config.huber,
            max_grad_norm=math.inf if config.max_grad_norm is None else config.max_grad_norm,
            learning_rate=learning_rate,
            epsilon=config.adam_eps,
            num_threads=threads(),
        )
        self._optimizer.steps += steps
        means.array += np.multiply(found, steps, dtype=np.float32)
        means.counts[0] += steps
        return steps
