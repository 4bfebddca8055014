"""DQN with a sampler of your own: loss-adjusted priorities (Fujimoto, Meger and Precup, "An Equivalence between Loss
Functions and Non-Uniform Sampling in Experience Replay", 2020), at least 1, without importance weights."""

import dataclasses

import fastrl
from fastrl.algorithms.protocol import Prioritization
from fastrl.replay import PrioritizedSampler


class LossAdjustedSampler(PrioritizedSampler):
    def update_priorities(self, indices, priorities):
        super().update_priorities(indices, priorities.clamp(min=1.0))


def no_weights(steps):
    return 0.0


class LossAdjustedDQN(fastrl.algorithms.DQN):
    def replay_spec(self):
        prioritized = Prioritization(alpha=0.4, beta=no_weights)
        return dataclasses.replace(
            super().replay_spec(), prioritized=prioritized, sampler=LossAdjustedSampler
        )


def main():
    model = fastrl.Model("CartPole-v1", algo=LossAdjustedDQN, huber=1.0, seed=0).learn(30_000)
    print("mean and standard deviation of the return:", model.evaluate(20))


if __name__ == "__main__":
    main()
