"""Rewards of your own: wrappers of PettingZoo and of Gymnasium, and a function for compiled traffic of many agents."""

import gymnasium
import numpy as np
from gymnasium.wrappers.vector import TransformReward
from pettingzoo.utils import BaseParallelWrapper

import fastrl
from fastrl.envs.adapters import parallel_env

FASTER, SLOWER = 3, 4


class Shared(BaseParallelWrapper):
    """Every agent gets the mean of all rewards."""

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        mean = sum(rewards.values()) / max(len(rewards), 1)
        return obs, dict.fromkeys(rewards, mean), *rest


def shared_highway(render_mode=None):
    return Shared(parallel_env("fastrl/coop-highway-v0", max_agents=4, render_mode=render_mode))


def hurried_merge(num_envs=16):
    """One agent in compiled traffic: each step costs something."""
    envs = gymnasium.make_vec("fastrl/merge-v0", num_envs=num_envs, vectorization_mode="vector_entry_point")
    return TransformReward(envs, lambda rewards: rewards - 0.5)


def calm(rewards, actions, obs, terminations, truncations):
    """Whoever changes its speed pays for it; arrays have an entry for each agent of each environment, [K * A]."""
    return rewards - 0.05 * np.isin(actions, (FASTER, SLOWER))


def main():
    model = fastrl.IPPO(shared_highway, num_envs=4, seed=0).learn(total_episodes=100)
    print("shared rewards:", model.evaluate(20))
    model = fastrl.PPO(hurried_merge, num_envs=16, seed=0).learn(20_000)
    print("a hurry:", model.evaluate(20))
    model = fastrl.IPPO("fastrl/coop-highway-v0", env__vehicles=4, env__reward="own_reward:calm", seed=0)
    print("calm driving:", model.learn(total_episodes=100).evaluate(20))


if __name__ == "__main__":
    main()
