"""A driving task of your own: the same class for one agent and for several, on any compiled road."""

import numpy as np

import fastrl
from fastrl.envs import DrivingTask


class Tailgating(DrivingTask):
    """Drive fast, stay whole, keep 10 m."""

    def reward(self, world):
        own = slice(0, world.num_agents)  # the columns of the agents' vehicles; the others follow
        close = world.gap < 10
        return world.speed[:, own] / 30 - 5 * world.crashed[:, own] - 0.2 * close


class Strict(Tailgating):
    """Besides, an agent has failed when it is too close, and sees its gap and how fast it closes."""

    terms = 2  # numbers that `observe` adds to each observation

    def terminated(self, world):
        return world.gap < 2

    def observe(self, world):
        closing = world.speed[:, : world.num_agents] - world.leader_speed
        return np.stack([np.minimum(world.gap, 100) / 100, closing / 30], axis=2)


def main():
    model = fastrl.PPO("fastrl/merge-v1", env_options={"task": "tailgating:Strict"}, num_envs=64, seed=0)
    print("one agent:", model.learn(100_000).evaluate(20))
    options = {"task": "tailgating:Strict"}
    model = fastrl.IPPO("fastrl/merge-v1", env__vehicles=3, env_options=options, seed=0)
    print("three agents:", model.learn(total_episodes=1_000).evaluate(20))


if __name__ == "__main__":
    main()
