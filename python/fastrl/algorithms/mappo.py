"""PPO for many agents: MAPPO with a central critic (Yu et al., 2022, arXiv:2103.01955), independent PPO with critics of
their own (de Witt et al., 2020, arXiv:2011.09533)."""

import copy
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fastrl.algorithms.team import PolicySums, TeamConfig, TeamLearner, Trained
from fastrl.algorithms.team_losses import log_probs_of, surrogate_gradient
from fastrl.config import section
from fastrl.team_networks import Actor


@section
class MAPPOConfig(TeamConfig):
    """Hyper-parameters of PPO for many agents; ``critic`` makes it MAPPO (central) or independent PPO (own)."""

    num_epochs: Annotated[
        int, Field(ge=1, description="passes of policies over the rollout in an update")
    ] = 2
    clip_range: Annotated[
        float, Field(gt=0, description="how far the probability ratio may move before the gradient stops")
    ] = 0.2
    target_kl: Annotated[
        float | None,
        Field(gt=0, description="a policy's update stops once it has moved this far; none: never"),
    ] = None


class MAPPO(TeamLearner):
    """MAPPO or independent PPO, see `TeamLearner`.

    Dropout is off when acting. With dropout, the ratio of a sample compares the new policy with the old one under
    the same mask, drawn anew for each minibatch: at the first step every ratio is exactly 1, and it measures how far
    the parameters have moved, not the noise of the masks (compare Hausknecht and Wagener, 2022, "Consistent Dropout
    for Policy Gradient Reinforcement Learning"). It costs one more forward pass, of the old policy.
    """

    config: MAPPOConfig

    def _update_policy(
        self, name: str, trained: Trained[Actor], rows: Tensor, learning_rate: float, entropy_coef: float
    ) -> list[PolicySums]:
        config = self.config
        actor = trained.network
        old = copy.deepcopy(actor).requires_grad_(False) if config.dropout else None
        obs, actions, log_probs, advantages = (
            self._flat(part) for part in ("obs", "actions", "log_probs", "advantages")
        )
        steps = []
        for _ in range(config.num_epochs):
            for part in self._parts(rows, config.minibatch_size, "policies"):
                own_obs, agents = obs[part].to(self.device), self._agents(part)
                drops = self._drops(actor.body, len(part), "policies")
                outputs = actor(own_obs, agents, drops)
                chosen = actions[part].to(self.device)
                if old is None:
                    old_log_probs = log_probs[part].to(self.device)
                else:
                    old_log_probs = log_probs_of(old(own_obs, agents, drops), old.log_std, chosen)
                gradient = surrogate_gradient(
                    outputs.detach(),
                    actor.log_std,
                    chosen,
                    old_log_probs,
                    advantages[part].to(self.device),
                    clip_range=config.clip_range,
                    entropy_coef=entropy_coef,
                )
                trained.zero_grad()
                gradient.backpropagate(outputs, actor.log_std)
                norm = trained.step(learning_rate, config.max_grad_norm)
                steps.append(PolicySums(*gradient.losses, norm))
                if config.target_kl is not None and gradient.losses.approx_kl > config.target_kl:
                    return steps
        return steps
