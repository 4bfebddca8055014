"""PPO from top to bottom in one file (the form that CleanRL made known), on compiled games and compiled returns.

    python ppo_in_one_file.py --total-timesteps 400000

Nothing is hidden: the loop steps the games into arrays that it owns, and the loss is the paper's (arXiv:1707.06347). A
test trains it beside `fastrl.algorithms.PPO`, from the same weights, and compares losses and parameters.
"""

import argparse
import dataclasses
import time

import numpy as np
import torch
from torch import nn

from fastrl._native._returns import gae
from fastrl.envs import Cage2VectorEnv


@dataclasses.dataclass
class Args:
    seed: int = 1
    total_timesteps: int = 400_000
    num_envs: int = 64  # games, stepped at once
    num_steps: int = 60  # of each game in a rollout
    num_epochs: int = 4
    minibatch_size: int = 960
    learning_rate: float = 2e-3  # falls to 0
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5


def layer(inputs, outputs, gain):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def perceptron(inputs, outputs, gain):
    hidden = [layer(inputs, 64, 2**0.5), nn.Tanh(), layer(64, 64, 2**0.5), nn.Tanh()]
    return nn.Sequential(*hidden, layer(64, outputs, gain))


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.actor = perceptron(obs_dim, num_actions, 0.01)
        self.critic = perceptron(obs_dim, 1, 1.0)

    def policy(self, obs):
        return torch.distributions.Categorical(logits=self.actor(obs))

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


class Rollout:
    """T steps of N games, which the loop fills in place."""

    def __init__(self, num_steps, num_envs, obs_dim):
        steps = (num_steps, num_envs)
        self.obs = np.empty((num_steps + 1, num_envs, obs_dim), np.float32)
        self.final_obs = np.zeros((*steps, obs_dim), np.float32)  # where an episode ended
        self.actions = np.empty(steps, np.int64)
        self.log_probs, self.rewards, self.advantages, self.returns = np.empty((4, *steps), np.float32)
        self.terminations, self.truncations = np.empty((2, *steps), np.bool_)

    def flat(self, name):
        array = getattr(self, name)[: len(self.actions)]
        return torch.from_numpy(array).flatten(0, 1)


@torch.no_grad()
def collect(agent, games, rollout):
    """Plays on from the rollout's first observations."""
    for t in range(len(rollout.actions)):
        policy = agent.policy(torch.from_numpy(rollout.obs[t]))
        actions = policy.sample()
        rollout.actions[t], rollout.log_probs[t] = actions.numpy(), policy.log_prob(actions).numpy()
        games.step_into(
            rollout.actions[t],
            rollout.obs[t + 1],
            rollout.rewards[t],
            rollout.terminations[t],
            rollout.truncations[t],
            rollout.final_obs[t],
        )


@torch.no_grad()
def compute_returns(agent, rollout, args):
    """Generalised advantage estimates; where time ran out, the value of the true last observation counts."""
    values = agent.value(torch.from_numpy(rollout.obs)).numpy()
    final_values = agent.value(torch.from_numpy(rollout.final_obs)).numpy()
    gae(
        rollout.rewards,
        values[:-1],
        rollout.terminations,
        rollout.truncations,
        final_values,
        values[-1],
        rollout.advantages,
        rollout.returns,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
    )


def update(agent, optimizer, rollout, args, shuffling):
    """Epochs of minibatches; means of the losses over the gradient steps, by name."""
    obs, actions, old_log_probs, advantages, returns = (
        rollout.flat(name) for name in ("obs", "actions", "log_probs", "advantages", "returns")
    )
    rows = []
    for _ in range(args.num_epochs):
        order = torch.randperm(len(obs), generator=shuffling)
        for batch in order.split(args.minibatch_size):
            policy = agent.policy(obs[batch])
            log_ratios = policy.log_prob(actions[batch]) - old_log_probs[batch]
            ratios = log_ratios.exp()

            gains = advantages[batch]
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            clipped = ratios.clamp(1 - args.clip_range, 1 + args.clip_range)
            policy_loss = -torch.min(ratios * gains, clipped * gains).mean()
            value_loss = (agent.value(obs[batch]) - returns[batch]).square().mean() / 2
            entropy = policy.entropy().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            approx_kl = (ratios - 1 - log_ratios).mean()
            rows.append(torch.stack([policy_loss, value_loss, entropy, approx_kl]).detach())
    names = ("policy_loss", "value_loss", "entropy", "approx_kl")
    return dict(zip(names, torch.stack(rows).mean(0).tolist(), strict=True))


def main(args):
    torch.manual_seed(args.seed)
    games = Cage2VectorEnv(args.num_envs, red_agent="bline", episode_length=30, autoreset_mode="same_step")
    obs_dim, num_actions = games.single_observation_space.shape[0], int(games.single_action_space.n)
    agent = Agent(obs_dim, num_actions)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shuffling = torch.Generator().manual_seed(args.seed)
    rollout = Rollout(args.num_steps, args.num_envs, obs_dim)
    games.reset_into(rollout.obs[0], seed=args.seed)

    updates, started = max(args.total_timesteps // rollout.actions.size, 1), time.perf_counter()
    for number in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - number / updates)
        collect(agent, games, rollout)
        compute_returns(agent, rollout, args)
        losses = update(agent, optimizer, rollout, args, shuffling)
        rollout.obs[0] = rollout.obs[-1]
        mean_return = float(rollout.rewards.sum(0).mean()) * 30 / args.num_steps
        if number % 10 == 0 or number == updates - 1:
            steps = (number + 1) * rollout.actions.size
            speed = steps / (time.perf_counter() - started)
            shown = "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
            print(f"{steps:,} steps ({speed:,.0f}/s)  mean return {mean_return:.1f}  {shown}")
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for field in dataclasses.fields(Args):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
