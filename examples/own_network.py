"""A network of your own, with any algorithm that learns a policy and a value function."""

import torch
from torch import nn

import fastrl


class Net(nn.Module):
    def __init__(self, obs_space, action_space, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_space.shape[0], width), nn.LayerNorm(width), nn.Tanh())
        self.policy = nn.Linear(width, action_space.n)
        self.value = nn.Linear(width, 1)

    def forward(self, obs: torch.Tensor):
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


if __name__ == "__main__":
    model = fastrl.PPO("CartPole-v1", network=Net, network_options={"width": 32}, seed=0).learn(30_000)
    print("mean and standard deviation of the return:", model.evaluate(20))
