"""REINFORCE with a baseline (Williams, 1992; Sutton and Barto, "Reinforcement Learning", 2018, section 13.4)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fastrl.algorithms.team import PolicySums, TeamConfig, TeamLearner, Trained
from fastrl.algorithms.team_losses import log_probs_of, surrogate_gradient
from fastrl.config import section
from fastrl.team_networks import Actor


@section
class REINFORCEConfig(TeamConfig):
    """Hyper-parameters of REINFORCE; critics are its baselines."""

    gae_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="1: whole returns, less the baseline; below, an actor-critic"),
    ] = 1.0
    critic_epochs: Annotated[
        int, Field(ge=1, description="passes of baselines over the rollout in an update")
    ] = 4


class REINFORCE(TeamLearner):
    """The policy gradient of whole returns less a baseline, see `TeamLearner`.

    Each policy takes one step along the mean over all that it did in the rollout, however large; the minibatch size
    bounds only how much is held at a time, and the parts that critics learn from. Episodes that the rollout's end
    cuts in two are continued by the baseline's value there.

    With dropout, gradients are those of thinned networks, at the actions that the whole network chose.
    """

    config: REINFORCEConfig

    def _update_policy(
        self, name: str, trained: Trained[Actor], rows: Tensor, learning_rate: float, entropy_coef: float
    ) -> list[PolicySums]:
        if not len(rows):
            return []
        actor = trained.network
        obs, actions, advantages = (self._flat(part) for part in ("obs", "actions", "advantages"))
        trained.zero_grad()
        losses = []
        for part in rows.split(self.config.minibatch_size):
            share = len(part) / len(rows)
            drops = self._drops(actor.body, len(part), "policies")
            outputs = actor(obs[part].to(self.device), self._agents(part), drops)
            chosen = actions[part].to(self.device)
            with torch.no_grad():
                # Its own log-probabilities: the ratio is 1, and the gradient of the ratio that of the logarithm.
                own = log_probs_of(outputs, actor.log_std, chosen)
            gradient = surrogate_gradient(
                outputs.detach(),
                actor.log_std,
                chosen,
                own,
                advantages[part].to(self.device),
                clip_range=1.0,
                entropy_coef=entropy_coef,
            )
            gradient.backpropagate(outputs, actor.log_std, share)
            losses.append(torch.stack(gradient.losses) * share)
        norm = trained.step(learning_rate, self.config.max_grad_norm)
        policy_loss, entropy, approx_kl, clip_fraction = torch.stack(losses).sum(0)
        return [PolicySums(policy_loss, entropy, approx_kl, clip_fraction, norm)]
