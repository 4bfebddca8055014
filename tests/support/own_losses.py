"""Losses and distributions as a user writes them."""

import torch

import fastrl
from fastrl.algorithms.ppo_settings import PPOConfig
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
