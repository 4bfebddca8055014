"""CrossQ: Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and
Simplicity", 2024."""

from typing import Any

import torch
from torch import Tensor

from fastrl.algorithms.loss import TDLoss, td_loss
from fastrl.algorithms.off_policy_loss import Minibatch, SACLoss, squashed
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac import SAC
from fastrl.algorithms.sac_settings import CrossQConfig, CrossQDeclaration
from fastrl.networks.batch_renorm import BatchRenorm, batch_statistics
from fastrl.networks.off_policy import RenormalizedActor


class CrossQ(CrossQDeclaration, SAC):
    """Soft actor-critic without target networks: critics with batch renormalisation value both actions of a transition
    in one pass, so that statistics are those of the mixture. The policy has batch renormalisation, too.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.
    """

    # Statistics are of whole minibatches.
    takes_shards = False
    actor_type = RenormalizedActor
    config: CrossQConfig  # type: ignore[assignment]

    def __init__(self, config: CrossQConfig, problem: Problem) -> None:
        super().__init__(config, problem)  # type: ignore[arg-type]
        for network in self.networks():
            for renorm in network.modules():
                if isinstance(renorm, BatchRenorm):
                    renorm.momentum, renorm.warmup_steps = config.renorm_momentum, config.renorm_warmup

    def _make_targets(self) -> None:
        """There are none."""

    def _move_targets(self, has_learned_policy: bool) -> None:
        """There are none."""

    def _compile(self, *arguments: Any, **options: Any) -> None:
        """Leaves the gradient steps to PyTorch: there are no compiled ones."""

    def critic_loss(self, batch: Minibatch) -> TDLoss:
        """The sum over critics i of E[(Q_i(s, a) - y)^2] / 2, y = r + gamma^n (min_i Q_i(s', a') - alpha log pi(a'|s'))
        without a gradient: figure 2. The policy draws a' by its running statistics."""
        assert batch.next_noise is not None
        with torch.no_grad():
            next_a, next_log_pi, _ = squashed(self.policy(batch.next_obs), batch.next_noise)
        s, a = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_a])
        with batch_statistics(self.critics.body):
            Q, next_Q = self.critics(s, a).chunk(2, 1)
        next_V = next_Q.detach().amin(0) - self.temperature * next_log_pi
        return td_loss(Q, torch.addcmul(batch.rewards, batch.discounts, next_V))

    def next_values(self, batch: Minibatch) -> Tensor:
        """Not defined: values of next observations are those of the pass of `critic_loss`."""
        raise NotImplementedError("CrossQ has no target critics: change its critic_loss")

    def policy_loss(self, batch: Minibatch) -> SACLoss:
        """J_pi and J_alpha of SAC. The policy learns its statistics, the critics use their running ones."""
        with batch_statistics(self.policy.body):
            return super().policy_loss(batch)
