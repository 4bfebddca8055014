"""PPO from images: steps a second beside Stable-Baselines3 and a plain PyTorch loop, and time to learn a game.

Run: ``pytest benches/bench_ppo_pixels.py -s`` on an otherwise idle machine; needs the extra ``atari``, and
Stable-Baselines3 for its row. All play ALE/Pong-v5 through `fastrl.envs.pixels`, with the network and the
hyper-parameters of CleanRL's ``ppo_atari.py`` (8 environments, 128 steps, 4 epochs of 4 minibatches), on all cores.
"""

import contextlib
import time

import numpy as np
import pytest
import torch
from torch import nn

from fastrl.envs.pixels import make_stacked_pixels
from fastrl.tasks import find
from fastrl.training.evaluation import Evaluation
from fastrl.utils.output import plain_console
from rounds import measure_in_turns, number_table

PIXELS = "fastrl.envs.pixels:make_stacked_pixels"
NUM_ENVS, NUM_STEPS, MINIBATCH, EPOCHS = 8, 128, 256, 4
UPDATES, ROUNDS = 4, 3

CLEANRL = {
    "ppo.num_steps": NUM_STEPS,
    "ppo.minibatch_size": MINIBATCH,
    "ppo.num_epochs": EPOCHS,
    "ppo.learning_rate": 2.5e-4,
    "ppo.gamma": 0.99,
    "ppo.gae_lambda": 0.95,
    "ppo.clip_range": 0.1,
    "ppo.value_clip": 0.1,
    "ppo.entropy_coef": 0.01,
    "ppo.final_entropy_coef": 0.01,
    "ppo.normalize_returns": False,
    "ppo.hidden": (),
}

# Frames are 10x10 cells scaled up; a ball falls nine steps.
CATCH = {
    "env.options": ("env_id=fastrl/Catch-v0", "size=84", "stack=2", "frame_skip=1", "noop_max=0"),
    "env.num_envs": 32,
    "ppo.num_steps": 32,
    "ppo.minibatch_size": 256,
    "ppo.num_epochs": 3,
    "ppo.learning_rate": 1e-3,
    "ppo.gamma": 0.9,
    "ppo.gae_lambda": 0.9,
    "ppo.entropy_coef": 0.01,
    "ppo.final_entropy_coef": 0.0,
    "ppo.hidden": (),
}


def trainer_of(settings, budget, seed=0):
    task = find("gym")
    changes = {
        "env.id": PIXELS,
        "run.algo": "ppo",
        "run.total_timesteps": budget,
        "run.seed": seed,
        "run.device": "cpu",
        "collect.collector": "sync",
        **settings,
    }
    return task.make_trainer(task.make_settings(changes))


def steps_per_second_of_fastrl():
    settings = {**CLEANRL, "env.options": ("env_id=ALE/Pong-v5",), "env.num_envs": NUM_ENVS}
    size = NUM_ENVS * NUM_STEPS
    trainer = trainer_of(settings, (UPDATES + 1) * size)
    with contextlib.closing(trainer.rows()) as rows:
        next(rows)
        start = time.perf_counter()
        for _ in range(UPDATES):
            next(rows)
        return UPDATES * size / (time.perf_counter() - start)


class Agent(nn.Module):
    """CleanRL's."""

    def __init__(self, num_actions):
        super().__init__()

        def layer(module, gain=2**0.5):
            nn.init.orthogonal_(module.weight, gain)
            nn.init.zeros_(module.bias)
            return module

        self.network = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, 4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(3136, 512)),
            nn.ReLU(),
        )
        self.actor, self.critic = layer(nn.Linear(512, num_actions), 0.01), layer(nn.Linear(512, 1), 1)

    def forward(self, images):
        features = self.network(images / 255.0)
        return torch.distributions.Categorical(logits=self.actor(features)), self.critic(features).flatten()


def steps_per_second_of_plain_loop():
    """CleanRL's loop, with the same environments one after the other in this process."""
    envs = [make_stacked_pixels("ALE/Pong-v5") for _ in range(NUM_ENVS)]
    agent = Agent(int(envs[0].action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((NUM_STEPS, NUM_ENVS, 4, 84, 84))
    actions, log_probs, rewards, dones, values = (torch.zeros((NUM_STEPS, NUM_ENVS)) for _ in range(5))
    seen = torch.from_numpy(np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)]))
    done = torch.zeros(NUM_ENVS)

    def as_images(frames):
        return frames.permute(0, 3, 1, 2).float()

    def update():
        nonlocal seen, done
        for t in range(NUM_STEPS):
            obs[t], dones[t] = as_images(seen), done
            with torch.no_grad():
                policy, values[t] = agent(obs[t])
                action = policy.sample()
                actions[t], log_probs[t] = action, policy.log_prob(action)
            frames, ended = [], []
            for i, (env, chosen) in enumerate(zip(envs, action.tolist(), strict=True)):
                frame, rewards[t, i], terminated, truncated, _ = env.step(chosen)
                ended.append(terminated or truncated)
                frames.append(env.reset()[0] if ended[-1] else frame)
            seen, done = torch.from_numpy(np.stack(frames)), torch.tensor(ended).float()
        with torch.no_grad():
            advantages, last = torch.zeros_like(rewards), 0
            following, alive = agent(as_images(seen))[1], 1 - done
            for t in reversed(range(NUM_STEPS)):
                delta = rewards[t] + 0.99 * following * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
                following, alive = values[t], 1 - dones[t]
            returns = advantages + values
        flat = [each.flatten(0, 1) for each in (obs, actions, log_probs, advantages, returns, values)]
        for _ in range(EPOCHS):
            for part in torch.randperm(NUM_STEPS * NUM_ENVS).split(MINIBATCH):
                images, chosen, old, advantage, target, before = (each[part] for each in flat)
                policy, value = agent(images)
                ratio = (policy.log_prob(chosen) - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1)).mean()
                clipped = before + (value - before).clamp(-0.1, 0.1)
                value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
                loss = policy_loss - 0.01 * policy.entropy().mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    update()
    start = time.perf_counter()
    for _ in range(UPDATES):
        update()
    return UPDATES * NUM_STEPS * NUM_ENVS / (time.perf_counter() - start)


def steps_per_second_of_sb3():
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Clock(BaseCallback):
        """Notes when each rollout starts."""

        def __init__(self):
            super().__init__()
            self.starts = []

        def _on_rollout_start(self):
            self.starts.append(time.perf_counter())

        def _on_step(self):
            return True

    model = stable_baselines3.PPO(
        "CnnPolicy",
        DummyVecEnv([lambda: make_stacked_pixels("ALE/Pong-v5")] * NUM_ENVS),
        learning_rate=2.5e-4,
        n_steps=NUM_STEPS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        clip_range=0.1,
        clip_range_vf=0.1,
        ent_coef=0.01,
        device="cpu",
    )
    clock = Clock()
    model.learn((UPDATES + 2) * NUM_STEPS * NUM_ENVS, callback=clock)
    return UPDATES * NUM_STEPS * NUM_ENVS / (clock.starts[UPDATES + 1] - clock.starts[1])


def test_steps_per_second():
    pytest.importorskip("ale_py")
    contenders = {"fastrl": steps_per_second_of_fastrl, "plain PyTorch": steps_per_second_of_plain_loop}
    with contextlib.suppress(ImportError):
        import stable_baselines3  # noqa: F401 - whether it is there

        contenders["Stable-Baselines3"] = steps_per_second_of_sb3
    rates = measure_in_turns(contenders, ROUNDS)
    table = number_table("PPO on ALE/Pong-v5, steps/s", "contender", "best", "median")
    for name, found in rates.items():
        table.add_row(name, f"{max(found):.0f}", f"{np.median(found):.0f}")
    plain_console().print(table)
    fastest = max(max(found) for name, found in rates.items() if name != "fastrl")
    print(f"{max(rates['fastrl']) / fastest:.2f} times the fastest other one")
    assert max(rates["fastrl"]) > fastest


def test_catch_from_84x84_is_learned():
    trainer = trainer_of(CATCH, 150_000)
    start = time.perf_counter()
    with contextlib.closing(trainer.rows()) as rows:
        for row in rows:
            record = row.record()
            if record["rollout/ep_rew_mean"] >= 9:
                break
    seconds = time.perf_counter() - start
    evaluation = trainer.callback(Evaluation)
    evaluation.at_end(trainer, plain_console())
    print(f"Catch from 84x84: {record['steps']:,} steps, {seconds:.0f} s, {evaluation.scores.mean_return}")
    assert evaluation.scores.mean_return >= 9
    assert seconds < 180
