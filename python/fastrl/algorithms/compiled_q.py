"""Gradient steps of DQN on the CPU, compiled.

They are, up to rounding, those that PyTorch takes along `fastrl.algorithms.dqn.DQN.loss`, which says what is learned.
"""

import math
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from fastrl._native._rust import QSteps
from fastrl.algorithms.batch_arrays import BatchArrays
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import Transitions
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.collectors.threads import threads
from fastrl.networks.q_network import QNetwork

if TYPE_CHECKING:
    from fastrl.algorithms.dqn import DQN

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes them.
_KNOWN = (
    {"accumulate", "action_masks", "adam_eps", "alpha", "batch_norm", "batch_size", "beta", "beta_steps"}
    | {"channels_last", "compile", "conv", "double", "dueling", "encoder", "epsilon", "epsilon_spread"}
    | {"epsilon_steps", "final_beta", "final_epsilon", "final_learning_rate", "final_margin_coef", "gamma"}
    | {"hidden", "huber", "learning_rate", "margin", "margin_coef", "max_grad_norm", "memory", "memory_size"}
    | {"sequence_length", "burn_in", "n_step", "network", "network_options", "noisy", "noisy_sigma"}
    | {"precision", "prioritized", "quantiles", "target_every", "target_tau", "update_backend"}
)

# Fields of minibatches that they read.
_FIELDS = ("obs", "next_obs", "actions", "rewards", "discounts", "weights", "next_masks")


class CompiledQ:
    """Gradient steps of DQN, those of some minibatches in one call of ``fastrl._native._rust.QSteps``. Results do not
    depend on the number of threads.

    Args:
        learner: whose networks are perceptrons of vectors.
        optimizer: of the online network.
    """

    def __init__(self, learner: "DQN", network: QNetwork, optimizer: Optimizer) -> None:
        self._learner, self._online, scale = learner, optimizer.arrays(), network.obs_scale
        self._arrays = BatchArrays(_FIELDS, lambda rows: rows.float() if scale == 1 else rows.float() * scale)
        architecture = network.state()["architecture"]
        self._steps = QSteps(
            obs_dim=network.obs_dim,
            hidden=list(architecture["hidden"]),
            actions=network.num_actions,
            dueling=architecture["dueling"],
            bf16=optimizer.half == torch.bfloat16,
            num_threads=threads(),
        )
        gradient = learner.parameters.grad
        assert gradient is not None
        self._gradient = gradient.numpy()
        # The target's parameters become views of one vector, too.
        target = torch.nn.utils.parameters_to_vector(learner.target.parameters())
        torch.nn.utils.vector_to_parameters(target, learner.target.parameters())
        self._target = target.numpy()

    @classmethod
    def of(cls, learner: "DQN", known: type, optimizer: Optimizer) -> tuple[Self | None, str]:
        """The gradient steps of a learner whose loss is that of the class ``known``. None where PyTorch takes them, for
        the reason in the text.

        Raises:
            ValueError: compiled ones are asked for, and there are none for the loss, the network or its device.
        """
        config, network = learner.config, learner.network

        def condition() -> str:
            plain = type(network) is QNetwork and len(network.state()["architecture"]["obs_shape"]) == 1
            is_fp16 = optimizer.half == torch.float16
            if not plain or config.batch_norm or config.noisy or config.quantiles or is_fp16:
                return (
                    "perceptrons of vectors in fp32 or bf16, without images, memory, batch_norm, noisy layers,"
                    " quantiles or a network of your own"
                )
            return "networks without torch.compile" if config.compile else ""

        is_compiled, why = takes_compiled_steps(learner, known, ("loss",), _KNOWN, condition)
        if not is_compiled:
            return None, why
        assert isinstance(network, QNetwork)
        return cls(learner, network, optimizer), ""

    def __call__(
        self,
        batch: Transitions,
        means: LossMeans,
        *,
        num_second: int,
        margin_coef: float,
        learning_rate: float,
        steps: list[bool],
        moves_target: list[bool],
    ) -> Tensor:
        """Adds the gradient of the loss of each minibatch.

        Args:
            batch: minibatches, one after the other.
            means: to which the losses are added.
            num_second: demonstrations among the transitions, the last ones of a minibatch that is alone.
            margin_coef: weight of their margin.
            steps: after which there is a step along the gradients that were added.
            moves_target: after which the target network moves, too.

        Returns:
            Absolute TD errors before each step, float32 [B].
        """
        config, arrays = self._learner.config, self._arrays(batch)
        errors = np.empty_like(arrays["rewards"])
        self._steps.step(
            self._online,
            self._target,
            self._gradient,
            means.array,
            errors,
            double=config.double,
            huber=math.inf if config.huber is None else config.huber,
            learning_rate=learning_rate,
            epsilon=config.adam_eps,
            steps=steps,
            max_grad_norm=config.max_grad_norm,
            taus=[config.target_tau if moves else None for moves in moves_target],
            demonstrations=num_second,
            margin=config.margin,
            margin_coef=margin_coef,
            weight=1 / config.accumulate,
            **arrays,
        )
        means.counts[0] += len(steps)
        means.counts[1] += sum(steps)
        return torch.from_numpy(errors)
