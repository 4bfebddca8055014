"""A loss of your own: PPO with an auxiliary head, which learns to say what was observed from the features."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

import fastrl
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.utils.config import section


class Net(nn.Module):
    def __init__(self, obs_space, action_space, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_space.shape[0], width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, action_space.n), nn.Linear(width, 1)
        self.seen = nn.Linear(width, obs_space.shape[0])  # the auxiliary head

    def forward(self, obs: torch.Tensor):
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


@section
class AuxConfig(PPOConfig):
    aux_coef: Annotated[float, Field(ge=0, description="weight of the auxiliary loss")] = 0.1


class AuxPPO(fastrl.algorithms.PPO):
    config_type = AuxConfig

    def loss(self, batch):
        net = self.policy.own.module
        error = net.seen(net.body(batch.obs)) - batch.obs
        return super().loss(batch) + self.config.aux_coef * error.square().mean()


class CalmPPO(fastrl.algorithms.PPO):
    """With any network: the squares of the policy's outputs are held small."""

    def loss(self, batch):
        return super().loss(batch) + 1e-3 * batch.outputs.square().mean()


if __name__ == "__main__":
    settings = {"num_envs": 8, "seed": 0}
    model = fastrl.Model("CartPole-v1", algo=AuxPPO, network=Net, aux_coef=0.05, **settings).learn(30_000)
    print("with an auxiliary head:", model.evaluate(20))
    print(
        "with small outputs:",
        fastrl.Model("CartPole-v1", algo=CalmPPO, **settings).learn(30_000).evaluate(20),
    )
