"""An environment of your own, written for Gymnasium: a ball that is pushed left and right should stay in the middle."""

import gymnasium
import numpy as np

import fastrl


class Balance(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)  # position and speed
    action_space = gymnasium.spaces.Discrete(3)  # push left, not at all, right

    def __init__(self, wind=0.02, render_mode=None):
        self.wind, self.render_mode = wind, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.uniform(-0.5, 0.5, 2), 0
        return self.state.astype(np.float32), {}

    def step(self, action):
        position, speed = self.state
        speed += 0.1 * (action - 1) + self.np_random.normal(0, self.wind)
        self.state = np.clip([position + 0.1 * speed, speed], -2, 2)
        self.steps += 1
        terminated = bool(abs(self.state[0]) > 1)  # it fell off
        truncated = self.steps >= 100  # it could continue: its value counts
        return self.state.astype(np.float32), 1 - abs(self.state[0]), terminated, truncated, {}


def main(timesteps=60_000):
    model = fastrl.PPO(Balance, env_options={"wind": 0.05}, num_envs=16, seed=0)
    print("before:", model.evaluate(20))
    model.learn(timesteps)
    print("after:", model.evaluate(20))


if __name__ == "__main__":
    main()
