"""An asynchronous actor-critic with V-trace (Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance
Weighted Actor-Learner Architectures", 2018, arXiv:1802.01561)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fastrl.algorithms.actor_critic import ActorCriticLearner, explained_variance
from fastrl.config import section
from fastrl.stopwatch import Stopwatch


@section
class ImpalaConfig:
    """Hyper-parameters of IMPALA. Schedules are linear in the environment steps done."""

    num_steps: Annotated[int, Field(ge=1, description="steps of each environment in an update")] = 20
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    trace_lambda: Annotated[
        float, Field(ge=0, le=1, description="V-trace: 0 trusts the value function, 1 the rewards")
    ] = 1.0
    rho_clip: Annotated[
        float, Field(gt=0, description="V-trace: most that an action's probability ratio weighs")
    ] = 1.0
    c_clip: Annotated[
        float, Field(gt=0, description="V-trace: the same of how far corrections reach back")
    ] = 1.0
    value_coef: Annotated[float, Field(ge=0, description="weight of the value loss")] = 0.5
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the start")] = 1e-3
    final_learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the end")] = 0.0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[
        float, Field(ge=0, description="weight of the entropy bonus at the end")
    ] = 0.001
    max_grad_norm: Annotated[float, Field(gt=0, description="gradients are scaled down to this norm")] = 0.5
    normalize_advantages: Annotated[
        bool, Field(description="advantages of each rollout are brought to mean 0, deviation 1")
    ] = True
    normalize_obs: Annotated[bool, Field(description="observations are whitened by running statistics")] = (
        False
    )
    normalize_returns: Annotated[
        bool, Field(description="rewards are divided by the running deviation of the discounted return")
    ] = True
    reward_scale: Annotated[
        float, Field(gt=0, description="rewards are multiplied by this before they are learnt from")
    ] = 1.0
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers of actor and critic, each of which has its own"),
    ] = (64, 64)
    activation: Annotated[
        Literal["tanh", "relu"], Field(description="after each hidden layer; tanh is much slower on CPUs")
    ] = "relu"


@dataclass(frozen=True)
class ImpalaMetrics:
    """What one update did.

    Attributes:
        policy_loss, value_loss, entropy: see `Losses`.
        mean_ratio: of the actions' probability under the policy to that under the policies that acted; 1 without lag.
        clip_fraction: share of actions whose ratio was above ``rho_clip``.
        grad_norm: before clipping.
        explained_variance: 1 - var(returns - values) / var(returns), before the update.
        learning_rate, entropy_coef: in force.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    mean_ratio: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float
    learning_rate: float
    entropy_coef: float


class Losses(NamedTuple):
    """Scalars (0-dimensional tensors), means over samples.

    Attributes:
        policy_loss: ``-advantage * log p(action)``.
        value_loss: half the squared error.
        entropy: of the policy, in nats.
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor


def impala_losses(
    all_log_probs: Tensor, values: Tensor, actions: Tensor, advantages: Tensor, returns: Tensor
) -> Losses:
    """The three parts of the loss (section 4.2 of the paper), to be differentiated.

    Args:
        all_log_probs: float32 [B, num_actions], log-softmax of the logits.
        values: float32 [B].
        actions: int64 [B].
        advantages, returns: float32 [B], V-trace's, constants: the former contain the clipped ratios.
    """
    log_probs = all_log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)
    return Losses(
        policy_loss=-(advantages * log_probs).mean(),
        value_loss=(values - returns).square().mean() / 2,
        entropy=-(all_log_probs.exp() * all_log_probs).sum(1).mean(),
    )


class Impala(ActorCriticLearner):
    """A policy that learns from what it, or older versions of it, have done: a gradient step an update.

    ::

        impala = Impala(ImpalaConfig(), obs_space, action_space, plan.num_envs, total_steps=1_000_000, seed=0)
        watch = Stopwatch()
        while impala.steps < impala.total_steps:
            impala.take_in([collector.take() for _ in range(4)], watch)
            metrics = impala.update(watch)

    Args and attributes: as of `ActorCriticLearner`.
    """

    def __init__(
        self,
        config: ImpalaConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_envs: int,
        *,
        total_steps: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        if config.c_clip > config.rho_clip:
            raise ValueError(f"c_clip should be at most rho_clip, got {config.c_clip} and {config.rho_clip}")
        super().__init__(
            config,
            obs_space,
            action_space,
            num_envs,
            num_steps=config.num_steps,
            total_steps=total_steps,
            seed=seed,
            device=device,
        )
        self.config = config

    def update(self, watch: Stopwatch) -> ImpalaMetrics:
        """Learns from the rollout that `take_in` has filled.

        Raises:
            FloatingPointError: the policy gave NaN or infinity, or parameters have become so.
        """
        config, rollout = self.config, self.rollout
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        with watch("update"):
            # One pass serves the corrections and the gradient. The row after the last has a value only.
            logits, all_values = self._forward(rollout.tensors["obs"].flatten(0, 1).to(self.device))
            values = all_values[: len(rollout)]
            all_log_probs = torch.log_softmax(logits[: len(rollout)], -1)
            actions = self._flat("actions").to(self.device)
            with torch.no_grad():
                log_probs = all_log_probs.gather(1, actions.unsqueeze(1)).squeeze(1).cpu()
                rollout.values[:] = all_values.cpu().numpy().reshape(rollout.values.shape)
        with watch("returns"):
            log_ratios = log_probs.numpy().reshape(rollout.log_probs.shape) - rollout.log_probs
            cut_off = rollout.cut_off()
            rollout.final_values[cut_off] = self._values(rollout.final_obs[cut_off])
            self._check_outputs()
            rollout.compute_vtrace(
                log_ratios,
                config.gamma,
                trace_lambda=config.trace_lambda,
                rho_clip=config.rho_clip,
                c_clip=config.c_clip,
                reward_scale=self._reward_scale,
            )
            explained = explained_variance(rollout)
            if config.normalize_advantages:
                rollout.advantages -= rollout.advantages.mean()
                rollout.advantages /= rollout.advantages.std() + 1e-8
        with watch("update"):
            self._optimizer.param_groups[0]["lr"] = learning_rate
            advantages, returns = (self._flat(name).to(self.device) for name in ("advantages", "returns"))
            losses = impala_losses(all_log_probs, values, actions, advantages, returns)
            loss = losses.policy_loss + config.value_coef * losses.value_loss - entropy_coef * losses.entropy
            grad_norm = self._descend((loss,), (torch.ones_like(loss),))
            if self.policy.obs_norm is not None:
                self.policy.obs_norm.update(self._flat("obs"))
            self._check_parameters()
        ratios = np.exp(np.minimum(log_ratios, 80))
        return ImpalaMetrics(
            policy_loss=losses.policy_loss.item(),
            value_loss=losses.value_loss.item(),
            entropy=losses.entropy.item(),
            mean_ratio=float(ratios.mean()),
            clip_fraction=float((ratios > config.rho_clip).mean()),
            grad_norm=grad_norm.item(),
            explained_variance=explained,
            learning_rate=learning_rate,
            entropy_coef=entropy_coef,
        )
