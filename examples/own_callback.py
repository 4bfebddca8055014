"""A callback of your own: it stops the training when the last episodes were good enough."""

import fastrl
from fastrl.callbacks import Callback


class Enough(Callback):
    def on_update(self, run):
        return run.metrics.get("rollout/ep_rew_mean", 0.0) < 150


if __name__ == "__main__":
    model = fastrl.PPO("CartPole-v1", seed=0, row_seconds=0).learn(1_000_000, callbacks=[Enough()])
    print(f"stopped after {model.steps:,} steps")
