"""Gradients of the losses of SAC, TD3 and IQL on the CPU, compiled.

They equal the gradients that ``backward`` finds for the `critic_loss` and the `policy_loss` of the algorithms, which
define what is learned.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native._rust import OffPolicyGradients
from fastrl.algorithms.loss import TDLoss, overridden
from fastrl.algorithms.off_policy_loss import IQLLoss, Minibatch, PolicyLoss, SACLoss
from fastrl.algorithms.update_backend import failing_condition, why_torch
from fastrl.networks.off_policy import Critics, OffPolicyActor

if TYPE_CHECKING:
    from fastrl.algorithms.iql import IQL
    from fastrl.algorithms.off_policy import OffPolicyActorCritic
    from fastrl.algorithms.sac import SAC
    from fastrl.algorithms.td3 import TD3

# Settings that compiled gradients obey, or that say nothing of a gradient: with any other PyTorch finds them.
_KNOWN = {
    "gamma",
    "n_step",
    "learning_rate",
    "final_learning_rate",
    "batch_size",
    "tau",
    "critics",
    "hidden",
    "layer_norm",
    "encoder",
    "network",
    "network_options",
    "precision",
    "update_backend",
    "target_critics",
    "policy_value",
    "policy_every",
    "temperature",
    "learn_temperature",
    "target_entropy",
    "entropy_share",
    "entropy_backup",
    "action_masks",
    "exploration_noise",
    "target_noise",
    "target_noise_clip",
    "expectile",
    "beta",
    "max_weight",
}


class _Vectors(NamedTuple):
    """Parameters of a network and their gradient, float32 [P], which are those of PyTorch themselves."""

    values: NDArray[np.float32]
    gradient: NDArray[np.float32]


def _vectors(network: OffPolicyActor | Critics) -> _Vectors:
    """Parameters and gradient of a network whose parameters are views of one vector, see `flatten_parameters`."""
    first = network.body.linear[0][0]
    size = sum(each.numel() for each in network.body.parameters())
    assert first.grad is not None

    def flat(tensor: Tensor) -> NDArray[np.float32]:
        found: NDArray[np.float32] = tensor.as_strided((size,), (1,), tensor.storage_offset()).numpy()
        return found

    return _Vectors(flat(first.detach()), flat(first.grad))


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.contiguous().numpy()
    return found


def _optional(tensor: Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else _array(tensor)


class CompiledGradients(ABC):
    """Computes losses of an algorithm and adds their gradients.

    Its methods have the names of the losses. Their argument ``weight`` multiplies the gradients, but not the losses,
    whose totals have no meaning.

    Args:
        learner: the algorithm.

    Class attributes:
        algorithm: its name.
        methods: those of the algorithm that are compiled.
    """

    algorithm: ClassVar[Literal["sac", "td3", "iql"]]
    methods: ClassVar[tuple[str, ...]] = (
        "critic_loss",
        "policy_loss",
        "next_values",
        "td_targets",
        "least_target",
    )

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        actions, policy = learner.actions, learner.policy
        self._compiled = OffPolicyGradients(
            self.algorithm,
            obs_dim=policy.num_features,
            hidden=list(policy.body.sizes[1:-1]),
            critics=learner.critics.body.count,
            numbers=actions.size if actions.is_box else 0,
            choices=0 if actions.is_box else actions.size,
        )
        self.policy, self.critics = _vectors(policy), _vectors(learner.critics)
        self.targets = _vectors(learner.targets)
        self._all_critics = list(range(learner.critics.body.count))

    @classmethod
    def of(cls, learner: "OffPolicyActorCritic", known: type) -> tuple[Self | None, str]:
        """Gradients of an algorithm whose losses are those of the class ``known``. None where PyTorch finds them, for
        the reason in the text.

        Raises:
            ValueError: compiled ones are asked for, and there are none for the losses, the networks or their device.
        """
        config = learner.config
        if config.update_backend == "torch":
            return None, ""
        changed = overridden(type(learner), known, cls.methods)
        takes = failing_condition(
            config, _KNOWN, learner.device, overrides=changed, shards=0, owner=cls.algorithm.upper()
        )
        networks = learner.networks()
        if not takes and any(n.has_encoder or n.body.layer_norm or n.body.half_type for n in networks):
            takes = "perceptrons of vectors in fp32, without images, layer norm or a network of your own"
        if takes:
            return None, why_torch(config.update_backend, takes)
        return cls(learner), ""

    def critic_loss(self, batch: Minibatch, weight: float) -> TDLoss:
        learner, asked, errors = self.learner, batch.target_critics, torch.empty(len(batch))
        loss, q = self._compiled.critic_loss(
            self.critics.values,
            self.critics.gradient,
            errors.numpy(),
            _array(learner.critics.features(batch.obs)),
            _array(learner.critics.features(batch.next_obs)),
            _array(batch.actions),
            _array(batch.rewards),
            _array(batch.discounts),
            asked=self._all_critics if asked is None else asked.tolist(),
            targets=self.targets.values,
            next_masks=_optional(batch.next_masks),
            next_noise=_optional(batch.next_noise),
            weight=weight,
            **self.critic_options(),
        )
        total = torch.tensor(loss)
        return TDLoss(total, loss=total, q=torch.tensor(q), td_errors=errors)

    @abstractmethod
    def critic_options(self) -> dict[str, Any]:
        """Arguments that the values of the next observations need beside the target critics."""

    @abstractmethod
    def policy_loss(self, batch: Minibatch, weight: float) -> PolicyLoss: ...


class SACGradients(CompiledGradients):
    """Gradients of SAC."""

    algorithm = "sac"
    methods = (*CompiledGradients.methods, "policy_value", "temperature_loss", "temperature")

    def critic_options(self) -> dict[str, Any]:
        sac: SAC = self.learner
        temperature = float(sac.temperature) if sac.config.entropy_backup else 0.0
        return {"policy": self.policy.values, "temperature": temperature}

    def policy_loss(self, batch: Minibatch, weight: float) -> SACLoss:
        sac: SAC = self.learner
        alpha = sac.temperature
        loss, entropy, *_ = self._compiled.policy_loss(
            *self.policy,
            _array(sac.policy.features(batch.obs)),
            critics=self.critics.values,
            masks=_optional(batch.masks),
            noise=_optional(batch.noise),
            weight=weight,
            temperature=float(alpha),
            mean_value=sac.config.policy_value == "mean",
        )
        if sac.config.learn_temperature:
            assert sac.log_temperature.grad is not None
            sac.log_temperature.grad.add_((entropy - sac.target_entropy) * weight)
        total = torch.tensor(loss)
        return SACLoss(total, policy_loss=total, entropy=torch.tensor(entropy), temperature=alpha)


class TD3Gradients(CompiledGradients):
    """Gradients of TD3."""

    algorithm = "td3"

    def __init__(self, learner: Any) -> None:
        super().__init__(learner)
        self.target_policy = _vectors(learner.target_policy)

    def critic_options(self) -> dict[str, Any]:
        config = self.learner.config
        return {
            "policy": self.target_policy.values,
            "target_noise": config.target_noise,
            "target_noise_clip": config.target_noise_clip,
        }

    def policy_loss(self, batch: Minibatch, weight: float) -> PolicyLoss:
        td3: TD3 = self.learner
        obs = _array(td3.policy.features(batch.obs))
        loss, *_ = self._compiled.policy_loss(*self.policy, obs, critics=self.critics.values, weight=weight)
        total = torch.tensor(loss)
        return PolicyLoss(total, policy_loss=total)


class IQLGradients(CompiledGradients):
    """Gradients of IQL."""

    algorithm = "iql"
    methods = (*CompiledGradients.methods, "value_loss", "imitation_weights", "imitation_costs")

    def __init__(self, learner: Any) -> None:
        super().__init__(learner)
        self.value = _vectors(learner.value)

    def critic_options(self) -> dict[str, Any]:
        return {"value": self.value.values}

    def policy_loss(self, batch: Minibatch, weight: float) -> IQLLoss:
        iql: IQL = self.learner
        config = iql.config
        loss, _, value_loss, value, imitation_weight = self._compiled.policy_loss(
            *self.policy,
            _array(iql.policy.features(batch.obs)),
            actions=_array(batch.actions),
            targets=self.targets.values,
            value=self.value.values,
            value_gradient=self.value.gradient,
            masks=_optional(batch.masks),
            weight=weight,
            expectile=config.expectile,
            beta=config.beta,
            max_weight=config.max_weight,
        )
        total = torch.tensor(loss)
        return IQLLoss(
            total,
            policy_loss=total,
            value_loss=torch.tensor(value_loss),
            value=torch.tensor(value),
            imitation_weight=torch.tensor(imitation_weight),
        )
