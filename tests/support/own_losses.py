"""Losses and distributions as a user writes them."""

import functools

import numpy as np
import torch

import fastrl
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.networks.acting_network import saved_network
from fastrl.networks.compiled_actor import with_weights
from fastrl.networks.torch_actor import TorchActor
from fastrl.utils.config import section


class Same(fastrl.algorithms.PPO):
    """PPO, whose loss passes through a method of the user's."""

    def loss(self, batch):
        return super().loss(batch) + torch.zeros(())


class SmallOutputs:
    """A term of the loss of any algorithm of policies."""

    def loss(self, batch):
        return super().loss(batch) + 0.1 * batch.outputs.square().mean()


class Calm(SmallOutputs, fastrl.algorithms.PPO):
    pass


class CalmIPPO(SmallOutputs, fastrl.algorithms.IPPO):
    pass


class CalmMAPPO(SmallOutputs, fastrl.algorithms.MAPPO):
    pass


class CalmREINFORCE(SmallOutputs, fastrl.algorithms.REINFORCE):
    pass


class SmallValuesOfAgents:
    """A term of the loss of critics of many agents."""

    def critic_loss(self, batch):
        return super().critic_loss(batch) + 0.1 * batch.values.square().mean()


class CriticIPPO(SmallValuesOfAgents, fastrl.algorithms.IPPO):
    pass


class CriticMAPPO(SmallValuesOfAgents, fastrl.algorithms.MAPPO):
    pass


class CriticREINFORCE(SmallValuesOfAgents, fastrl.algorithms.REINFORCE):
    pass


class CalmIMPALA(SmallOutputs, fastrl.algorithms.IMPALA):
    pass


class CalmBC(SmallOutputs, fastrl.algorithms.BC):
    pass


class CalmDQN(fastrl.algorithms.DQN):
    def loss(self, batch):
        return super().loss(batch) + 0.1 * batch.estimates.square().mean()


class SmallValues:
    """A term of the losses of any algorithm with a policy and critics."""

    def policy_loss(self, batch):
        return super().policy_loss(batch) + 0.1 * self.policy(batch.obs).square().mean()

    def critic_loss(self, batch):
        return super().critic_loss(batch) + 0.1 * self.critics(batch.obs, batch.actions).square().mean()


class CalmSAC(SmallValues, fastrl.algorithms.SAC):
    def temperature_loss(self, entropy):
        return super().temperature_loss(entropy) + 0.1 * self.log_temperature.square()


class CalmTD3(SmallValues, fastrl.algorithms.TD3):
    pass


class CalmIQL(SmallValues, fastrl.algorithms.IQL):
    def value_loss(self, advantages):
        return super().value_loss(advantages) + 0.1 * advantages.square().mean()


@section
class MoreConfig(PPOConfig):
    weight: float = 0.0


class More(fastrl.algorithms.PPO):
    """A setting that compiled steps do not know."""

    config_type = MoreConfig


def beta_of(outputs, log_std):
    """A Beta distribution of the share of the way from -1 to 1: its mean from the outputs, its width from `log_std`."""
    means, concentration = outputs.sigmoid(), 2 + (-2 * log_std).exp()
    return torch.distributions.Beta(means * concentration, (1 - means) * concentration)


class BetaActor(TorchActor):
    def draw(self, outputs, streams, steps, greedy):
        beta = beta_of(outputs, self.network.log_std)
        shares = beta.mean
        if not greedy:
            rows = zip(
                streams.tolist(), steps.tolist(), beta.concentration1, beta.concentration0, strict=True
            )
            drawn = [np.random.default_rng(seeds).beta(a, b) for *seeds, a, b in rows]
            shares = torch.tensor(np.stack(drawn), dtype=torch.float32).clamp(1e-4, 1 - 1e-4)
        return 2 * shares - 1, beta.log_prob(shares).sum(-1)


class BetaPPO(fastrl.algorithms.PPO):
    """PPO with a Beta distribution (Chou, Maturana and Scherer, 2017), with any network that PyTorch runs."""

    def log_probs_and_entropy(self, outputs, log_std, actions, *, rows=None, masks=None):
        outputs = outputs if rows is None else outputs[rows]
        beta = beta_of(outputs, log_std)
        return beta.log_prob((actions + 1) / 2).sum(-1), beta.entropy().sum(-1)

    def actor_spec(self):
        return beta_actor(self.policy, self.actions.state())

    @classmethod
    def make_actor(cls, policy, obs_space, action_space):
        network = saved_network(policy)
        weights = np.zeros(network.actor_nbytes // 4, np.float32)
        network.actor_weights(weights)
        return with_weights(beta_actor(network, policy["action_space"]), weights)


def beta_actor(network, actions):
    return functools.partial(BetaActor, network.maker(), actions)
