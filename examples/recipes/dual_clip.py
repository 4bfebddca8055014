"""Dual-clip PPO (Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", 2020)."""

from typing import Annotated

import torch
from pydantic import Field

import fastrl
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.utils.config import section


@section
class DualClipConfig(PPOConfig):
    dual_clip: Annotated[
        float, Field(gt=1, description="bound of ratios where the advantage is negative")
    ] = 3.0


class DualClipPPO(fastrl.algorithms.PPO):
    config_type = DualClipConfig

    def surrogate(self, r, A):
        L = super().surrogate(r, A)
        return torch.where(A < 0, torch.max(L, self.config.dual_clip * A), L)


def main():
    model = fastrl.Model("CartPole-v1", algo=DualClipPPO, dual_clip=2.0, num_envs=8, seed=0).learn(30_000)
    print("mean and standard deviation of the return:", model.evaluate(20))


if __name__ == "__main__":
    main()
