"""PPO from images: steps a second beside Stable-Baselines3 and a plain PyTorch loop, and time to learn a game.

Run: ``pytest -n 0 benches/bench_ppo_pixels.py -s -k steps`` on an otherwise idle machine (3 minutes on 2 cores);
needs the extra ``atari``, and Stable-Baselines3 for its row. All play ALE/Pong-v5 through `fastrl.envs.pixels`, with
the network and the hyper-parameters of CleanRL's ``ppo_atari.py`` (8 environments, 128 steps, 4 epochs of 4
minibatches), PyTorch with a thread for each core, in float32 but for one row. On a machine that does other work, too,
read the column of steps for each second of the processors.

``-k catch`` learns fastrl/Catch-v0 from 84x84 pixels, three seeds.
"""

import contextlib
import functools
import time
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from fastrl.envs.pixels import make_stacked_pixels
from fastrl.tasks import find
from fastrl.training.device import use_threads
from fastrl.training.evaluation import Evaluation
from fastrl.utils.output import plain_console
from results import Case
from rounds import measure_in_turns

PIXELS = "fastrl.envs.pixels:make_stacked_pixels"
NUM_ENVS, NUM_STEPS, MINIBATCH, EPOCHS = 8, 128, 256, 4
UPDATES, ROUNDS = 3, 3

CLEANRL = {
    "ppo.num_steps": NUM_STEPS,
    "ppo.minibatch_size": MINIBATCH,
    "ppo.num_epochs": EPOCHS,
    "ppo.learning_rate": 2.5e-4,
    "ppo.final_learning_rate": 0.0,
    "ppo.gamma": 0.99,
    "ppo.gae_lambda": 0.95,
    "ppo.clip_range": 0.1,
    "ppo.value_clip": 0.1,
    "ppo.entropy_coef": 0.01,
    "ppo.final_entropy_coef": 0.01,
    "ppo.normalize_returns": False,
    "ppo.hidden": (),
}

# The rest is the environment's preset.
CATCH = {
    "env.id": "fastrl/Catch-v0",
    "env.size": 84,
    "env.num_envs": 32,
    "run.total_timesteps": 60_000,
    "run.eval_episodes": 100,
}


class Rate(NamedTuple):
    """Steps a second, and for each second of the processors."""

    wall: float
    cpu: float


class Clock:
    """Time since it was made, of the clock and of all processors of this process and those that it started."""

    def __init__(self):
        self._wall, self._cpu = time.perf_counter(), self._processors()

    @staticmethod
    def _processors():
        total = 0.0
        for process in (own := psutil.Process(), *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
        return total

    def seconds(self):
        return time.perf_counter() - self._wall, self._processors() - self._cpu

    def rate(self):
        """Steps per second of `UPDATES`."""
        return Rate(*(UPDATES * NUM_STEPS * NUM_ENVS / seconds for seconds in self.seconds()))


def trainer_of(task, settings):
    task = find(task)
    changes = {"run.algo": "ppo", "run.device": "cpu", **settings}
    return task.make_trainer(task.make_settings(changes))


def rate_of_fastrl(precision="fp32"):
    settings = {
        "env.id": PIXELS,
        "env.options": ("env_id=ALE/Pong-v5",),
        "env.num_envs": NUM_ENVS,
        "collect.collector": "sync",
        "run.total_timesteps": (UPDATES + 1) * NUM_ENVS * NUM_STEPS,
        "ppo.precision": precision,
        "run.torch_threads": 0,
    }
    trainer = trainer_of("gym", CLEANRL | settings)
    with contextlib.closing(trainer.rows()) as rows:
        next(rows)
        clock = Clock()
        for _ in range(UPDATES):
            next(rows)
        return clock.rate()


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


def rate_of_plain_loop():
    """CleanRL's loop, with the same environments one after the other in this process."""
    use_threads(0)
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
    clock = Clock()
    for _ in range(UPDATES):
        update()
    return clock.rate()


def rate_of_sb3():
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Rollouts(BaseCallback):
        """Measures `UPDATES` rollouts and updates, after the first."""

        def __init__(self):
            super().__init__()
            self.count = 0

        def _on_rollout_start(self):
            self.count += 1
            if self.count == 2:
                self.clock = Clock()
            elif self.count == 2 + UPDATES:
                self.rate = self.clock.rate()

        def _on_step(self):
            return self.count < 2 + UPDATES

    use_threads(0)
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
        vf_coef=0.25,
        device="cpu",
    )
    rollouts = Rollouts()
    # The measurement ends where one more rollout starts; the last steps of `learn` are not taken.
    model.learn((UPDATES + 2) * NUM_STEPS * NUM_ENVS, callback=rollouts)
    return rollouts.rate


def test_steps_per_second(record):
    pytest.importorskip("ale_py")
    contenders = {
        "fastrl": rate_of_fastrl,
        "fastrl, bf16": functools.partial(rate_of_fastrl, "bf16"),
        "plain PyTorch": rate_of_plain_loop,
    }
    with contextlib.suppress(ImportError):
        import stable_baselines3  # noqa: F401 - whether it is there

        contenders["Stable-Baselines3"] = rate_of_sb3
    found = measure_in_turns(contenders, ROUNDS)
    clocks = {"wall": "seconds", "cpu": "seconds of processors"}
    cases = {
        clock: Case(words, {name: [getattr(each, clock) for each in of] for name, of in found.items()})
        for clock, words in clocks.items()
    }
    record("PPO on ALE/Pong-v5", "steps/s", list(cases.values()), ["fastrl", "fastrl, bf16"])
    others = [name for name in found if not name.startswith("fastrl")]
    assert all(cases["cpu"].ratio("fastrl", other).median > 1 for other in others)


@pytest.mark.parametrize("seed", range(3))
def test_catch_from_84x84_is_learned(seed, record):
    trainer = trainer_of("pixels", CATCH | {"run.seed": seed})
    clock = Clock()
    with contextlib.closing(trainer.rows()) as rows:
        for row in rows:
            steps = row.record()["time/total_timesteps"]
    wall, cpu = clock.seconds()
    evaluation = trainer.callback(Evaluation)
    evaluation.at_end(trainer, plain_console())
    mean = evaluation.scores.mean_return
    case = Case(f"seed {seed}", {"fastrl": [mean]})
    about = f"{steps:,} steps in {wall:.0f} s, {cpu:.0f} s of processors; 10 is the best possible."
    record("Catch from 84x84 pixels, by PPO", "mean return", [case], ["fastrl"], about=about)
    assert mean >= 9
    # The machine may do other work, too.
    assert wall < 180 or cpu < 180
