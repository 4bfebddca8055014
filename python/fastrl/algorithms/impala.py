"""An asynchronous actor-critic with V-trace (Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance
Weighted Actor-Learner Architectures", 2018, arXiv:1802.01561)."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.actor_critic import (
    ActorCriticConfig,
    ActorCriticLearner,
)
from fastrl.algorithms.ppo_loss import log_probs_and_entropy
from fastrl.algorithms.protocol import Problem
from fastrl.networks.distributions import mask_logits
from fastrl.rollout.rollout import explained_variance
from fastrl.utils.config import section
from fastrl.utils.timer import Stopwatch
from fastrl.utils.tunable import Range


@section
class ImpalaConfig(ActorCriticConfig):
    """Hyper-parameters of IMPALA."""

    max_staleness: hp.MaxStaleness = 2
    num_steps: Annotated[hp.NumSteps, Range(5, 80, log=True)] = 20
    trace_lambda: Annotated[
        float, Field(ge=0, le=1, description="V-trace: 0 trusts the value function, 1 the rewards")
    ] = 1.0
    burn_in: hp.BurnIn = 0
    normalize_advantages: hp.NormalizeAdvantages = "rollout"
    rho_clip: Annotated[
        float, Field(gt=0, description="V-trace: most that an action's probability ratio weighs")
    ] = 1.0
    c_clip: Annotated[
        float, Field(gt=0, description="V-trace: the same of how far corrections reach back")
    ] = 1.0


@dataclass(frozen=True)
class ImpalaMetrics:
    """Numbers of one update.

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
    log_probs: Tensor, entropy: Tensor, values: Tensor, advantages: Tensor, returns: Tensor
) -> Losses:
    """The three parts of the loss (section 4.2 of the paper), to be differentiated.

    Args:
        log_probs: float32 [B], of the actions.
        entropy: of the policy at each sample, float32 [B], or the same everywhere, [].
        values: float32 [B].
        advantages, returns: float32 [B], V-trace's, constants: the former contain the clipped ratios.
    """
    return Losses(
        policy_loss=-(advantages * log_probs).mean(),
        value_loss=(values - returns).square().mean() / 2,
        entropy=entropy.mean(),
    )


class IMPALA(ActorCriticLearner):
    """A policy that learns from experience of its own and of older versions: a gradient step an update.

    ::

        impala = IMPALA(ImpalaConfig(), Problem(obs_space, action_space, plan.num_envs, total_timesteps=1_000_000))
        watch = Stopwatch()
        while impala.steps < impala.total_timesteps:
            impala.update([collector.take() for _ in range(4)], watch)

    Args and attributes: as of `ActorCriticLearner`.
    """

    name = "impala"
    summary = "actor-critic with V-trace that collects while it learns: one gradient step in each update"
    config_type = ImpalaConfig
    config: ImpalaConfig

    def __init__(self, config: ImpalaConfig, problem: Problem) -> None:
        if config.c_clip > config.rho_clip:
            raise ValueError(f"c_clip should be at most rho_clip, got {config.c_clip} and {config.rho_clip}")
        super().__init__(config, problem)

    @property
    def max_staleness(self) -> int:
        return self.config.max_staleness

    @property
    def burn_in(self) -> int:
        return self.config.burn_in

    def learn(self, watch: Stopwatch) -> ImpalaMetrics:
        config, rollout = self.config, self.rollout
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        with watch("update"):
            # One pass serves the corrections and the gradient.
            outputs, values, places = self._pass() if self._sequences is None else self._sequence_pass()
            if rollout.masks is not None:
                outputs = mask_logits(outputs, self._samples("masks", places))
            log_probs, entropy = log_probs_and_entropy(
                outputs, self.policy.log_std, self._samples("actions", places), self._choices
            )
        with watch("returns"):
            self._check_outputs()
            # Steps before the learned ones do not affect them: their ratios stay 1.
            log_ratios = np.zeros(len(rollout), np.float32)
            log_ratios[places] = log_probs.detach().cpu().numpy() - rollout.log_probs.reshape(-1)[places]
            rollout.compute_vtrace(
                log_ratios.reshape(rollout.log_probs.shape),
                config.gamma,
                trace_lambda=config.trace_lambda,
                rho_clip=config.rho_clip,
                c_clip=config.c_clip,
                reward_scale=self._reward_scale,
                reward_clip=config.reward_clip,
            )
            explained = explained_variance(
                rollout.returns.reshape(-1)[places], rollout.values[:-1].reshape(-1)[places]
            )
            if config.normalize_advantages == "rollout":
                learned = rollout.advantages.reshape(-1)[places]
                rollout.advantages -= learned.mean()
                rollout.advantages /= learned.std() + 1e-8
        with watch("update"):
            advantages, returns = (self._samples(name, places) for name in ("advantages", "returns"))
            losses = impala_losses(log_probs, entropy, values, advantages, returns)
            loss = losses.policy_loss + config.value_coef * losses.value_loss - entropy_coef * losses.entropy
            grad_norm = self._descend((loss,), (torch.ones_like(loss),), learning_rate)
            self.policy.update_statistics(self.rollout.flat("obs"))
            self._check_parameters()
        ratios = np.exp(np.minimum(log_ratios[places], 80))
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

    def _pass(self) -> tuple[Tensor, Tensor, slice]:
        """Outputs and values at the rollout's samples, and which these are, all; fills the rollout's values."""
        rollout = self.rollout
        # The row after the last has a value only.
        outputs, values = self._train_pass(rollout.tensors["obs"].flatten(0, 1).to(self.device))
        rollout.values[:] = values.detach().cpu().numpy().reshape(rollout.values.shape)
        cut_off = rollout.cut_off()
        rollout.final_values[cut_off] = self._values(rollout.final_obs[cut_off])
        return outputs[: len(rollout)], values[: len(rollout)], slice(None)

    def _sequence_pass(self) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """Does as `_pass` along sequences of steps, for those that are learned from."""
        assert self._sequences is not None
        batch = self._sequences.learned(self.rollout)
        outputs, values = self._train_pass(batch)
        self._sequences.write_values(batch, values)
        steps = torch.from_numpy(batch.packed.is_step).to(self.device)
        return outputs[steps], values[steps], batch.packed.places[batch.packed.is_step]

    def _samples(self, name: str, places: slice | NDArray[np.int64]) -> Tensor:
        """Some samples of an array of the rollout."""
        samples = self.rollout.flat(name)
        return (samples if isinstance(places, slice) else samples[torch.from_numpy(places)]).to(self.device)
