"""REINFORCE with a baseline (Williams, 1992; Sutton and Barto, "Reinforcement Learning", 2018, section 13.4)."""

import torch
from torch import Tensor

from fastrl.algorithms.multi_agent import Losses, Minibatch, MultiAgentLearner
from fastrl.algorithms.multi_agent_settings import REINFORCEConfig, REINFORCEDeclaration
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.team_learner import Partners


class REINFORCE(REINFORCEDeclaration, MultiAgentLearner):
    """The policy gradient of whole returns less a baseline, see `MultiAgentLearner`.

    Each policy takes one step an update, along the mean over all that it did in the rollout; the minibatch size is
    that of the critics. Episodes that the rollout's end cuts in two are continued by the baseline's value there.

    With dropout, gradients are those of thinned networks, at the actions that the whole network chose.
    """

    config: REINFORCEConfig

    def __init__(self, config: REINFORCEConfig, problem: Problem, partners: Partners | None = None) -> None:
        super().__init__(config, problem, partners)
        self._compile(REINFORCE, ("critic_loss",))

    @property
    def central_critic(self) -> bool:
        return self.config.critic == "central"

    def loss(self, batch: Minibatch) -> Losses:
        """The negated performance J, whose gradient is that of the policy gradient theorem, E[A grad log pi], and an
        entropy bonus."""
        log_pi, S = batch.log_probs_and_entropy()
        J = (batch.advantages * log_pi).mean()
        unchanged = torch.zeros_like(J)  # The policy is the one that acted.
        return Losses(-J - self.entropy_coef * S.mean(), -J, S.mean(), unchanged, unchanged)

    def _update_policy(self, name: str, rows: Tensor, learning_rate: float) -> list[Tensor]:
        return [self._policy_step(name, self._whole(name, rows), learning_rate)] if len(rows) else []
