"""PPO with a Beta distribution, whose draws are within the bounds of actions (Chou, Maturana and Scherer, 2017)."""

import numpy as np
import torch

import fastrl
from fastrl.networks.torch_actor import TorchActor


def beta_of(outputs, log_std):
    """The distribution of the share of the way from the lower bound to the upper one."""
    means, concentration = outputs.sigmoid(), 2 + (-2 * log_std).exp()
    return torch.distributions.Beta(means * concentration, (1 - means) * concentration)


class BetaActor(TorchActor):
    def draw(self, outputs, streams, steps, greedy):
        beta = beta_of(outputs, self.network.log_std)
        shares = beta.mean
        if not greedy:
            # A draw depends on the stream and the step of its episode alone, so that one seed fixes a run.
            seeds = zip(streams.tolist(), steps.tolist(), strict=True)
            rows = zip(seeds, beta.concentration1, beta.concentration0, strict=True)
            drawn = [np.random.default_rng(seed).beta(a, b) for seed, a, b in rows]
            shares = torch.tensor(np.stack(drawn), dtype=torch.float32).clamp(1e-4, 1 - 1e-4)
        return 2 * shares - 1, beta.log_prob(shares).sum(-1)  # -1 and 1 are the bounds of actions


class BetaPPO(fastrl.algorithms.PPO):
    actor_type = BetaActor

    def log_probs_and_entropy(self, outputs, log_std, actions, *, rows=None, masks=None):
        beta = beta_of(outputs if rows is None else outputs[rows], log_std)
        return beta.log_prob((actions + 1) / 2).sum(-1), beta.entropy().sum(-1)


def main():
    model = fastrl.Model("Pendulum-v1", algo=BetaPPO, seed=0).learn(100_000)
    print("mean and standard deviation of the return:", model.evaluate(20))


if __name__ == "__main__":
    main()
