"""PPO with random network distillation (Burda et al., "Exploration by Random Network Distillation", 2018).

A network learns to predict what another one, which stays random, says of the next observation. Where observations are
new its error is large, and is added to the reward.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

import fastrl
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import flatten_parameters
from fastrl.utils.config import section


@section
class RNDConfig(PPOConfig):
    bonus: Annotated[float, Field(ge=0, description="weight of the prediction's error in rewards")] = 0.1


class RNDPPO(fastrl.algorithms.PPO):
    config_type = RNDConfig

    def __init__(self, config, problem):
        super().__init__(config, problem)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(problem.seed)
            self.target, self.predictor = (
                nn.Sequential(nn.Linear(problem.obs_dim, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2)
            )
        self.obs_norm, self.error_norm = RunningNorm(problem.obs_dim, clip=5.0), RunningNorm(1)
        self.adam = Optimizer(flatten_parameters(self.predictor), "fp32", eps=1e-5)

    def learn(self, watch):
        next_obs = torch.from_numpy(self.rollout.obs[1:]).float().flatten(0, 1)
        self.obs_norm.update(next_obs)
        seen = self.obs_norm(next_obs)
        errors = (self.predictor(seen) - self.target(seen).detach()).square().mean(-1)
        self.error_norm.update(errors.detach()[:, None])
        bonus = self.config.bonus * self.error_norm.scale() * errors.detach()
        self.rollout.rewards += bonus.numpy().reshape(self.rollout.rewards.shape)
        errors.mean().backward()
        self.adam.step(None, 1e-3)
        return super().learn(watch)

    def extras(self):
        """The predictor and what belongs to it, by name."""
        names = ("target", "predictor", "obs_norm", "error_norm", "adam")
        return {name: getattr(self, name) for name in names}

    def state_dict(self):
        return super().state_dict() | {name: each.state_dict() for name, each in self.extras().items()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for name, each in self.extras().items():
            each.load_state_dict(state[name])


def main():
    model = fastrl.Model("MountainCar-v0", algo=RNDPPO, bonus=1.0, seed=0).learn(200_000)
    print("mean and standard deviation of the return:", model.evaluate(20))


if __name__ == "__main__":
    main()
