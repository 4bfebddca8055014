"""Compiled games under a training loop of your own: REINFORCE in PyTorch, on 256 games that are stepped at once."""

import numpy as np
import torch
from torch import nn

from fastrl.envs import Cage2VectorEnv


def main(updates=40, num_games=256, steps=30):
    torch.manual_seed(0)
    games = Cage2VectorEnv(num_games, red_agent="bline", episode_length=steps, autoreset_mode="same_step")
    policy = nn.Sequential(nn.Linear(52, 64), nn.ReLU(), nn.Linear(64, games.single_action_space.n))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    obs = np.empty((steps + 1, num_games, 52), np.float32)  # filled in place, nothing is copied
    rewards = np.empty((steps, num_games), np.float32)
    terminations, truncations = np.empty((2, steps, num_games), np.bool_)
    actions, masks = [], []
    games.reset_into(obs[0], seed=0)
    for update in range(updates):
        actions.clear(), masks.clear()
        for step in range(steps):
            masks.append(torch.from_numpy(games.action_masks().copy()))
            with torch.no_grad():
                logits = policy(torch.from_numpy(obs[step])).masked_fill(~masks[-1], -torch.inf)
            actions.append(torch.distributions.Categorical(logits=logits).sample())
            games.step_into(
                actions[-1].numpy(), obs[step + 1], rewards[step], terminations[step], truncations[step]
            )
        to_go = torch.from_numpy(rewards[::-1].cumsum(0)[::-1].copy())
        advantages = (to_go - to_go.mean(1, keepdim=True)) / (to_go.std() + 1e-6)
        logits = policy(torch.from_numpy(obs[:-1])).masked_fill(~torch.stack(masks), -torch.inf)
        chosen = torch.distributions.Categorical(logits=logits).log_prob(torch.stack(actions))
        optimizer.zero_grad()
        (-(advantages * chosen).mean()).backward()
        optimizer.step()
        obs[0] = obs[-1]  # the next episodes have started
        if update % 10 == 0 or update == updates - 1:
            print(f"update {update}: mean return {rewards.sum(0).mean():.1f}")
    return float(rewards.sum(0).mean())


if __name__ == "__main__":
    main()
