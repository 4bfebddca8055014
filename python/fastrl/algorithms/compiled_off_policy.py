"""Gradient steps of SAC, TD3 and IQL on the CPU, compiled.

They are, up to rounding, those that PyTorch takes along the `critic_loss` and the `policy_loss` of the algorithms,
which define what is learned.
"""

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fastrl._native._rust import OffPolicySteps
from fastrl.algorithms.batch_arrays import BatchArrays
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.protocol import Transitions
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.collectors.threads import threads

if TYPE_CHECKING:
    from fastrl.algorithms.off_policy import Learned, OffPolicyActorCritic

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes them.
_KNOWN = (
    {"gamma", "n_step", "learning_rate", "final_learning_rate", "batch_size", "tau", "critics", "hidden"}
    | {"policy_hidden", "weight_decay", "layer_norm", "encoder", "memory", "memory_size", "sequence_length"}
    | {"burn_in", "network", "network_options", "precision", "update_backend", "target_critics"}
    | {"policy_value", "policy_every", "temperature", "learn_temperature", "target_entropy", "entropy_share"}
    | {"entropy_backup", "action_masks", "exploration_noise", "target_noise", "target_noise_clip"}
    | {"expectile", "beta", "max_weight"}
)


# Fields of minibatches that they read.
_FIELDS = ("obs", "next_obs", "actions", "rewards", "discounts", "masks", "next_masks")

# Methods that are compiled, of all algorithms.
_METHODS = (
    "minibatch",
    "critic_loss",
    "policy_loss",
    "next_values",
    "td_targets",
    "least_target",
)


class CompiledOffPolicy:
    """Gradient steps of critics and policy, those of some minibatches in one call of
    ``fastrl._native._rust.OffPolicySteps``.

    It changes parameters and the optimisers' moments where they are, so that it and PyTorch can take turns. Results do
    not depend on the number of threads.

    Args:
        name: of the algorithm whose losses are compiled.
        learner: the algorithm.
        critics, policy: what learns.
        targets, target_policy: vectors of the parameters that follow.
        options: the others of ``OffPolicySteps``.
    """

    def __init__(
        self,
        name: Any,
        learner: "OffPolicyActorCritic",
        critics: "Learned",
        policy: "Learned",
        targets: Tensor,
        target_policy: Tensor | None,
        **options: Any,
    ) -> None:
        actions, network = learner.actions, learner.policy
        self._steps = OffPolicySteps(
            name,
            obs_dim=network.num_features,
            hidden=list(network.body.sizes[1:-1]),
            critics=learner.critics.body.count,
            numbers=actions.size if actions.is_box else 0,
            choices=0 if actions.is_box else actions.size,
            tau=learner.config.tau,
            bf16=learner.config.precision == "bf16",
            num_threads=threads(),
            **options,
        )
        # Numbers are features as they are.
        features = learner.critics.features if learner.critics.decoder.images else nn.Identity()
        self._arrays = BatchArrays(_FIELDS, features)
        self._critics, self._policy = critics.optimizer.arrays(), policy.optimizer.arrays()
        self._targets = targets.detach().numpy()
        self._target_policy = None if target_policy is None else target_policy.detach().numpy()
        self._all_critics = list(range(learner.critics.body.count))

    def __call__(
        self,
        batch: Transitions,
        means: LossMeans,
        *,
        learns_policy: list[bool],
        learning_rate: float,
        streams: Mapping[str, int],
        number: int,
        target_critics: list[list[int]] | None,
    ) -> Tensor:
        """Takes for each minibatch a gradient step of the critics, and perhaps of the policy, and moves the targets.

        Args:
            batch: minibatches, one after the other.
            means: to which the losses are added.
            learns_policy: with which the policy learns.
            streams: see `OffPolicyActorCritic`; ``number``: of gradient steps before this one.
            target_critics: that are asked with each; None: all of them each time.

        Returns:
            Absolute TD errors before each step, float32 [B].
        """
        arrays = self._arrays(batch)
        errors = np.empty_like(arrays["rewards"])
        self._steps.step(
            self._critics,
            self._policy,
            self._targets,
            means.array,
            errors,
            learning_rate=learning_rate,
            learns_policy=learns_policy,
            target_critics=(
                self._all_critics * len(learns_policy)
                if target_critics is None
                else [*chain(*target_critics)]
            ),
            target_policy=self._target_policy,
            noise=streams.get("noise"),
            next_noise=streams.get("next_noise"),
            number=number,
            **arrays,
        )
        means.counts[0] += len(learns_policy)
        means.counts[1] += learns_policy.count(True)
        return torch.from_numpy(errors)


def compiled_off_policy(
    learner: "OffPolicyActorCritic", known: Any, methods: tuple[str, ...], **arguments: Any
) -> tuple[CompiledOffPolicy | None, str]:
    """The gradient steps of an algorithm whose losses are those of the class ``known``. None where PyTorch takes them,
    for the reason in the text.

    Args:
        methods: of the class that are compiled, beside those of its base.
        arguments: of `CompiledOffPolicy`.

    Raises:
        ValueError: compiled ones are asked for, and there are none for the losses, the networks or their device.
    """

    def condition() -> str:
        if not all(network.is_perceptron for network in learner.networks()):
            return (
                "perceptrons of vectors, without images, memory, layer norm, residual blocks or a network of"
                " your own"
            )
        if learner.config.weight_decay:
            return "Adam without weight_decay"
        is_alike = learner.policy.body.sizes[1:-1] == learner.critics.body.sizes[1:-1]
        return "" if is_alike else "a policy with the hidden layers of the critics, without policy_hidden"

    is_compiled, why = takes_compiled_steps(learner, known, (*_METHODS, *methods), _KNOWN, condition)
    return (CompiledOffPolicy(known.name, learner, **arguments) if is_compiled else None), why
