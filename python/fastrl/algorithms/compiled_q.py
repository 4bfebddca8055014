"""The gradient of DQN's loss on the CPU, compiled.

It is the one that ``backward`` finds for `fastrl.algorithms.dqn.DQN.loss`, which defines what is learned.
"""

import math
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native._rust import QGradient
from fastrl.algorithms.loss import TDLoss, overridden
from fastrl.algorithms.protocol import Transitions
from fastrl.algorithms.update_backend import failing_condition, why_torch
from fastrl.networks.q_network import QNetwork

if TYPE_CHECKING:
    from fastrl.algorithms.dqn import DQN

# Settings that the compiled gradient obeys, or that say nothing of it: with any other PyTorch finds it.
_KNOWN = {
    "accumulate",
    "action_masks",
    "adam_eps",
    "alpha",
    "batch_norm",
    "batch_size",
    "beta",
    "beta_steps",
    "channels_last",
    "compile",
    "conv",
    "double",
    "dueling",
    "encoder",
    "epsilon",
    "epsilon_spread",
    "epsilon_steps",
    "final_beta",
    "final_epsilon",
    "final_learning_rate",
    "final_margin_coef",
    "gamma",
    "hidden",
    "huber",
    "learning_rate",
    "margin",
    "margin_coef",
    "max_grad_norm",
    "n_step",
    "network",
    "network_options",
    "noisy",
    "noisy_sigma",
    "precision",
    "prioritized",
    "quantiles",
    "target_every",
    "target_tau",
    "update_backend",
}


class CompiledQ:
    """Computes DQN's loss and adds its gradient.

    Args:
        learner: whose networks are perceptrons of vectors.
    """

    def __init__(self, learner: "DQN", network: QNetwork) -> None:
        self._learner, self._scale = learner, network.obs_scale
        architecture = network.state()["architecture"]
        self._compiled = QGradient(
            obs_dim=network.obs_dim,
            hidden=list(architecture["hidden"]),
            actions=network.num_actions,
            dueling=architecture["dueling"],
        )
        gradient = learner.parameters.grad
        assert gradient is not None
        self._online, self._gradient = learner.parameters.detach().numpy(), gradient.numpy()
        # The target's parameters become views of one vector, too.
        target = torch.nn.utils.parameters_to_vector(learner.target.parameters())
        torch.nn.utils.vector_to_parameters(target, learner.target.parameters())
        self._target = target.numpy()

    @classmethod
    def of(cls, learner: "DQN", known: type, *, has_half_precision: bool) -> tuple[Self | None, str]:
        """The gradient of a learner whose loss is that of the class ``known``. None where PyTorch finds it, for the
        reason in the text.

        Raises:
            ValueError: compiled ones are asked for, and there is none for the loss, the network or its device.
        """
        config, network = learner.config, learner.network
        if config.update_backend == "torch":
            return None, ""
        takes = failing_condition(
            config,
            _KNOWN,
            learner.device,
            overrides=overridden(type(learner), known, ("loss",)),
            shards=learner.ranks.shards,
            owner="DQN",
        )
        if not takes:
            plain = type(network) is QNetwork and len(network.state()["architecture"]["obs_shape"]) == 1
            if not plain or config.batch_norm or config.noisy or config.quantiles or has_half_precision:
                takes = (
                    "perceptrons of vectors in fp32, without images, batch_norm, noisy layers, quantiles or a network"
                    " of your own"
                )
            elif config.compile:
                takes = "networks without torch.compile"
        if takes:
            return None, why_torch(config.update_backend, takes)
        assert isinstance(network, QNetwork)
        return cls(learner, network), ""

    def loss(self, batch: Transitions, num_second: int, margin_coef: float, weight: float) -> TDLoss:
        """The loss, whose total has no meaning; its gradient is added, multiplied by ``weight``.

        Args:
            num_second: demonstrations among the transitions, the last ones.
            margin_coef: weight of their margin.
        """
        config, errors = self._learner.config, torch.empty(len(batch.actions))
        loss, q = self._compiled.compute(
            self._online,
            self._target,
            self._gradient,
            errors.numpy(),
            self._rows(batch.obs),
            self._rows(batch.next_obs),
            batch.actions.contiguous().numpy(),
            batch.rewards.contiguous().numpy(),
            batch.discounts.contiguous().numpy(),
            batch.weights.contiguous().numpy(),
            double=config.double,
            huber=math.inf if config.huber is None else config.huber,
            next_masks=None if batch.next_masks is None else batch.next_masks.contiguous().numpy(),
            demonstrations=num_second,
            margin=config.margin,
            margin_coef=margin_coef,
            weight=weight,
        )
        total = torch.tensor(loss)
        return TDLoss(total, loss=total, q=torch.tensor(q), td_errors=errors)

    def _rows(self, obs: Tensor) -> NDArray[np.float32]:
        rows = obs.flatten(1).float()
        scaled: NDArray[np.float32] = (rows if self._scale == 1 else rows * self._scale).contiguous().numpy()
        return scaled
