"""Gradient steps of behaviour cloning on the CPU, compiled."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.collectors.threads import threads
from fastrl.networks.action_space import Actions
from fastrl.networks.perceptron import Perceptron

if TYPE_CHECKING:
    from fastrl.algorithms.flat_adam import FlatAdam
    from fastrl.algorithms.imitation import Imitation
    from fastrl.algorithms.imitation_settings import ImitationConfig
    from fastrl.algorithms.optimizer import Optimizer
    from fastrl.networks.multi_agent import PolicyNetwork

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(NetworkConfig)} | (
    {"epochs", "batch_size", "loss", "learning_rate", "final_learning_rate", "max_grad_norm"}
    | {"label_smoothing", "entropy_coef", "min_log_std", "validation", "patience", "update_backend"}
    | {"normalize_obs", "squash_actions", "action_masks", "precision", "share", "policies", "agent_ids"}
    | {"init"}
)


def takes_compiled_imitation(
    learner: "Imitation", known: type["Imitation"], *, is_plain: bool
) -> tuple[bool, str]:
    """True if compiled steps are taken along the loss of the class ``known``; see `takes_compiled_steps`.

    Args:
        is_plain: policies are perceptrons of vectors with tanh or relu in fp32 or bf16.
    """
    plain = (
        "separate perceptrons of vectors with tanh or relu in fp32 or bf16, without images, memory, layer norm, dropout"
        " or a network of your own"
    )
    return takes_compiled_steps(learner, known, ("loss",), _KNOWN, lambda: "" if is_plain else plain)


class CompiledImitation:
    """Takes gradient steps of a policy along `fastrl.algorithms.imitation_loss.imitation_loss`.

    It changes parameters and the optimiser's moments where they are. Results do not depend on the number of threads.

    Args:
        optimizer: of parameters of which the first are the policy's: logarithms of deviations, then those of ``body``.
        body: the policy's perceptron.
        actions: that it chooses.
        config: settings of the loss.
        has_bf16: hidden layers multiply bfloat16.
    """

    def __init__(
        self,
        optimizer: "Optimizer | FlatAdam[PolicyNetwork]",
        body: Perceptron,
        actions: Actions,
        config: "ImitationConfig",
        *,
        has_bf16: bool = False,
    ) -> None:
        inputs, *hidden, _ = body.sizes
        layers: dict[str, Any] = {"obs_dim": inputs, "hidden": hidden, "activation": body.activation}
        nvec, numbers = (None, actions.size) if actions.is_box else (actions.nvec.tolist(), 0)
        self._compiled = PpoUpdate(**layers, nvec=nvec, numbers=numbers, networks="actor", bf16=has_bf16)
        size = self._compiled.num_parameters
        tensors = (optimizer.vector.detach(), optimizer.mean, optimizer.square)
        self._parameters, self._mean, self._square = (tensor.numpy()[:size] for tensor in tensors)
        self._optimizer = optimizer
        self._has_one_choice = len(actions.nvec) == 1
        self._options: dict[str, Any] = {
            "squared": config.loss == "mse",
            "label_smoothing": config.label_smoothing,
            "entropy_coef": config.entropy_coef,
            "max_grad_norm": math.inf if config.max_grad_norm is None else config.max_grad_norm,
            "num_threads": threads(),
        }

    def __call__(self, inputs: Tensor, actions: Tensor, learning_rate: float) -> NDArray[np.float32]:
        """Takes a step.

        Args:
            inputs: of the perceptron, float32 [B, n].
            actions: of the expert, as in `fastrl.algorithms.protocol.DatasetBatch`.

        Returns:
            The parts of `fastrl.algorithms.imitation_loss.ImitationLoss`, and the gradient's norm before clipping,
            float32 [4].
        """
        found = self._compiled.imitate(
            self._parameters,
            self._mean,
            self._square,
            inputs.contiguous().numpy(),
            # Those of MultiDiscrete have a further axis, also where they are of one choice.
            (actions.flatten() if self._has_one_choice else actions).contiguous().numpy(),
            steps=self._optimizer.steps,
            learning_rate=learning_rate,
            **self._options,
        )
        self._optimizer.steps += 1
        return np.array(found, np.float32)
