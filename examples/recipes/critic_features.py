"""Features for the critic alone: PPO on a pendulum whose gravity differs from episode to episode.

The policy has to do without the gravity, which the value function sees. The features come last in an observation.
"""

import gymnasium
import numpy as np

import fastrl


class HiddenGravity(gymnasium.Wrapper):
    def __init__(self, render_mode=None):
        super().__init__(gymnasium.make("Pendulum-v1", render_mode=render_mode))
        seen = self.env.observation_space
        low, high = np.float32([*seen.low, -1]), np.float32([*seen.high, 1])
        self.observation_space = gymnasium.spaces.Box(low, high)

    def with_gravity(self, obs):
        return np.append(obs, (self.unwrapped.g - 10) / 5).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.unwrapped.g = self.unwrapped.np_random.uniform(5, 15)
        return self.with_gravity(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return self.with_gravity(obs), *rest


def main():
    settings = {"num_envs": 16, "gamma": 0.9, "learning_rate": 1e-3, "seed": 0}
    model = fastrl.PPO(HiddenGravity, actor_inputs=3, **settings).learn(100_000)
    print("mean and standard deviation of the return:", model.evaluate(20))
    model.save("pendulum.safetensors")
    policy = fastrl.load_policy("pendulum.safetensors")
    print("an action, without the gravity:", policy.act(np.float32([[1, 0, 0]])))


if __name__ == "__main__":
    main()
