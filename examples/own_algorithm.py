"""Advantage actor-critic (A2C). The base class has the network and its actors, stores rollouts, saves and loads."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fastrl.algorithms.actor_critic import ActorCriticLearner
from fastrl.algorithms.network_settings import ActorCriticConfig
from fastrl.algorithms.ppo_loss import log_probs_and_entropy
from fastrl.networks.distributions import mask_logits
from fastrl.utils.config import section


@section
class A2CConfig(ActorCriticConfig):
    num_steps: Annotated[int, Field(ge=1, description="steps of each environment in a rollout")] = 8
    gae_lambda: Annotated[float, Field(ge=0, le=1, description="1: returns as they came; 0: TD errors")] = (
        0.95
    )


@dataclass
class Losses:
    policy_loss: float
    value_loss: float
    entropy: float


class A2C(ActorCriticLearner):
    name, summary, config_type = "a2c", "advantage actor-critic", A2CConfig
    action_kinds = frozenset({"discrete", "box"})

    def learn(self, watch):
        config, rollout = self.config, self.rollout  # T steps of N environments
        with watch("returns"):
            rollout.values[:] = self.predict_values(rollout.obs)
            cut_off = rollout.cut_off()  # where time ran out, the value of the last observation counts
            rollout.final_values[cut_off] = self.predict_values(rollout.final_obs[cut_off])
            rollout.compute_advantages(config.gamma, config.gae_lambda, self.reward_scale)
        with watch("update"):
            outputs, values = self.policy(rollout.flat("obs"))
            if rollout.masks is not None:
                outputs = mask_logits(outputs, rollout.flat("masks"))
            log_probs, entropy = log_probs_and_entropy(outputs, self.policy.log_std, rollout.flat("actions"))
            policy_loss = -(rollout.flat("advantages") * log_probs).mean()
            value_loss = (values - rollout.flat("returns")).square().mean() / 2
            loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
            loss.backward()
            self.descend(config.learning_rate)
        return Losses(policy_loss.item(), value_loss.item(), entropy.mean().item())
