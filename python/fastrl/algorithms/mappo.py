"""MAPPO, PPO for many agents with a central critic: Yu et al., "The Surprising Effectiveness of PPO in Cooperative
Multi-Agent Games", 2022, arXiv:2103.01955."""

import copy

import torch
from torch import Tensor

from fastrl.algorithms.compiled_update import samples_of
from fastrl.algorithms.multi_agent import Losses, Minibatch, MultiAgentLearner
from fastrl.algorithms.multi_agent_settings import MAPPOConfig, MAPPODeclaration
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.team_learner import Partners


class MAPPO(MAPPODeclaration, MultiAgentLearner):
    """PPO with a critic that sees what all agents of an environment observe, see `MultiAgentLearner`.

    Dropout is off when acting. With dropout, the ratio of a sample compares the new policy with the old one under
    the same mask, drawn for each minibatch: at the first step every ratio is exactly 1, and it measures how far
    the parameters have moved, not the noise of the masks (compare Hausknecht and Wagener, 2022, "Consistent Dropout
    for Policy Gradient Reinforcement Learning"). It costs one more forward pass, of the old policy.
    """

    config: MAPPOConfig

    def __init__(self, config: MAPPOConfig, problem: Problem, partners: Partners | None = None) -> None:
        super().__init__(config, problem, partners)
        self._compile(MAPPO, ("loss", "critic_loss"))

    @property
    def central_critic(self) -> bool:
        return True

    def loss(self, batch: Minibatch) -> Losses:
        """The negated objective of the policies, L(theta) of arXiv:2103.01955, appendix A: the clipped surrogate and an
        entropy bonus."""
        A, epsilon = batch.advantages, self.config.clip_range
        log_pi, S = batch.log_probs_and_entropy()
        log_r = log_pi - batch.log_probs
        r = log_r.exp()
        L_clip = torch.min(r * A, r.clamp(1 - epsilon, 1 + epsilon) * A).mean()
        return Losses(
            -L_clip - self.entropy_coef * S.mean(),
            policy_loss=-L_clip,
            entropy=S.mean(),
            approx_kl=(r - 1 - log_r).mean(),
            clip_fraction=((r - 1).abs() > epsilon).float().mean(),
        )

    def _update_policy(self, name: str, rows: Tensor, learning_rate: float) -> list[Tensor]:
        config, optimizer = self.config, self.actors[name]
        if name in self._compiled and len(rows):
            with torch.no_grad():
                agents = self._agents(torch.arange(len(self.rollout)))
                obs = optimizer.network.inputs(self.rollout.flat("obs"), agents, encoded=False)
            take = self._compiled[name].prepare(
                samples_of(self.rollout, obs, rows, rows),
                optimizer,
                self._generators["policies"],
                num_epochs=config.num_epochs,
                minibatch_size=config.minibatch_size,
                learning_rate=learning_rate,
                max_grad_norm=config.max_grad_norm,
                clip_range=config.clip_range,
                entropy_coef=self.entropy_coef,
                target_kl=config.target_kl,
            )
            return take().of_each_step(*Losses.names(), "grad_norm")
        old = copy.deepcopy(optimizer.network).requires_grad_(False) if config.dropout else None
        steps = []
        for _ in range(config.num_epochs):
            for drawn in self._minibatches(name, rows):
                steps.append(self._policy_step(name, drawn, learning_rate, old))
                approx_kl = steps[-1][Losses.names().index("approx_kl")]
                if config.target_kl is not None and approx_kl > config.target_kl:
                    return steps
        return steps
