"""PPO end to end on CAGE 2: steps per second, where the time goes, and the same beside Stable-Baselines3; and gradient
steps alone, compiled and by PyTorch, beside Stable-Baselines3's.

Run: ``pytest benches/bench_ppo.py -s`` on an otherwise idle machine. Both libraries train the same network on
the same native environment with the same rollout, minibatches and epochs, in turns, and medians are compared. Gradient
steps are of one thread and counted per second of processor time, which other work on the machine matters less to.
"""

import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.utils.timer import Stopwatch
from results import Case
from rounds import measure_in_turns

NUM_ENVS = 256
ROUNDS = 5
UPDATES = 16  # in a round: five rounds are two million steps, in which the defender learns most


def make_env():
    return Cage2VectorEnv(NUM_ENVS, red_agent="mix", autoreset_mode="same_step")


class Ours:
    """A run of fastrl's PPO, continued from round to round."""

    def __init__(self, config):
        env = make_env()
        spaces = env.single_observation_space, env.single_action_space
        self.watch = Stopwatch()
        self.ppo = PPO(config, Problem(*spaces, NUM_ENVS, total_timesteps=100_000_000))
        spec = EnvSpec("fastrl/Cage2-v0", {"red_agent": "mix"})
        self.collector = native_collector(
            Plan(spec, self.ppo.actor_spec(), *spaces, NUM_ENVS, config.num_steps)
        )
        self.weights = np.zeros(self.ppo.weights_nbytes, np.uint8)

    def round(self):
        """Environment steps per second of some updates."""
        start, steps = time.perf_counter(), self.ppo.steps
        for _ in range(UPDATES):
            self.ppo.write_weights(self.weights)
            self.collector.publish(self.weights)
            with self.watch("waiting"):
                fragments = self.collector.collect()
            self.ppo.update(fragments, self.watch)
        return (self.ppo.steps - steps) / (time.perf_counter() - start)


class StableBaselines3:
    """Trains by Stable-Baselines3's PPO."""

    def __init__(self, config):
        sb3 = pytest.importorskip("stable_baselines3")
        from fastrl.envs.adapters import SB3VecEnv

        activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[config.activation]
        self.ppo = sb3.PPO(
            "MlpPolicy",
            SB3VecEnv(make_env()),
            learning_rate=config.learning_rate,
            n_steps=config.num_steps,
            batch_size=config.minibatch_size,
            n_epochs=config.num_epochs,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            ent_coef=config.entropy_coef,
            vf_coef=config.value_coef / 2,
            policy_kwargs={"net_arch": list(config.hidden), "activation_fn": activation},
            seed=0,
            device="cpu",
        )
        self.steps_a_round = UPDATES * config.num_steps * NUM_ENVS

    def round(self):
        start = time.perf_counter()
        self.ppo.learn(self.steps_a_round, reset_num_timesteps=False)
        return self.steps_a_round / (time.perf_counter() - start)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_ppo_beside_stable_baselines3(activation, record):
    # A minibatch size that divides the rollout, so that both libraries take the same gradient steps.
    config = PPOConfig(activation=activation, num_steps=100, minibatch_size=NUM_ENVS * 100 // 8)
    ours, theirs = Ours(config), StableBaselines3(config)
    for learner in (ours, theirs):
        learner.round()  # warm-up
    ours.watch.reset()
    speeds = measure_in_turns({"fastrl": ours.round, "Stable-Baselines3": theirs.round}, ROUNDS)
    total = sum(ours.watch.seconds.values())
    steps = (ROUNDS + 1) * UPDATES * config.num_steps * NUM_ENVS
    about = f"{NUM_ENVS} environments, {torch.get_num_threads()} threads, the first {steps / 1e6:.1f} million steps."
    record(
        "Training by PPO on CAGE 2", "steps/s", [Case(f"2x64 {activation}", speeds)], ["fastrl"], about=about
    )
    for name, seconds in ours.watch.seconds.items():
        print(f"    {name:<16} {seconds / total:10.1%}")
    assert set(ours.watch.seconds) == {"waiting", "inference", "buffer", "returns", "update"}


def test_ppo_defaults(record):
    ours = Ours(PPOConfig())
    ours.round()
    ours.watch.reset()
    rates = [ours.round() for _ in range(ROUNDS)]
    total = sum(ours.watch.seconds.values())
    shares = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in ours.watch.seconds.items())
    case = Case(f"{NUM_ENVS} environments", {"fastrl": rates})
    record(
        "Training by PPO on CAGE 2, defaults", "steps/s", [case], ["fastrl"], about=f"Of the time: {shares}."
    )


class Spaces(gymnasium.Env):
    """An environment of which only the spaces matter."""

    def __init__(self, obs_dim, action_space):
        self.observation_space = Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}


def random_rollout(space, steps, obs_dim):
    """Observations, actions, and log-probabilities, values, advantages and returns."""
    rng = np.random.default_rng(0)
    obs, numbers = rng.normal(size=(steps, 1, obs_dim)), rng.normal(size=(4, steps, 1))
    if isinstance(space, Box):
        return obs, rng.normal(size=(steps, 1, *space.shape)), *numbers
    return obs, rng.integers(0, space.n, (steps, 1)), -np.abs(numbers[0]), *numbers[1:]


def our_steps(backend, precision, space, steps, obs_dim, config):
    """Measures gradient steps per second."""
    observations = Box(-np.inf, np.inf, (obs_dim,), np.float32)
    options = {"num_steps": steps, "update_backend": backend, "precision": precision, **config}
    ppo = PPO(PPOConfig(**options), Problem(observations, space, 1, 10**9))
    rollout = ppo.rollout
    rollout.obs[:-1], rollout.actions[:], rollout.log_probs[:], rollout.values[:-1], *_ = random_rollout(
        space, steps, obs_dim
    )
    rollout.rewards[:] = np.random.default_rng(1).normal(size=rollout.rewards.shape)
    rollout.find_groups()

    def measure():
        start = time.process_time()
        return ppo.learn(Stopwatch()).gradient_steps / (time.process_time() - start)

    return measure


def sb3_steps(space, steps, obs_dim, config):
    sb3 = pytest.importorskip("stable_baselines3")
    widths = list(config["hidden"])
    ppo = sb3.PPO(
        "MlpPolicy",
        Spaces(obs_dim, space),
        n_steps=steps,
        batch_size=config["minibatch_size"],
        n_epochs=config["num_epochs"],
        policy_kwargs={
            "net_arch": {"pi": widths, "vf": widths},
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[config["activation"]],
        },
        seed=0,
        device="cpu",
    )
    ppo.set_logger(sb3.common.logger.configure(None, []))
    count = config["num_epochs"] * (steps // config["minibatch_size"])

    def measure():
        buffer = ppo.rollout_buffer
        buffer.reset()
        obs, actions, log_probs, values, advantages, returns = random_rollout(space, steps, obs_dim)
        buffer.observations[:], buffer.log_probs[:], buffer.values[:] = obs, log_probs, values
        buffer.actions[:] = actions.reshape(buffer.actions.shape)
        buffer.advantages[:], buffer.returns[:], buffer.full = advantages, returns, True
        start = time.process_time()
        ppo.train()
        return count / (time.process_time() - start)

    return measure


@pytest.mark.parametrize(
    ("hidden", "minibatch_size", "steps", "obs_dim", "space"),
    [
        ((64, 64), 64, 2048, 8, Discrete(4)),
        ((256, 256), 64, 512, 17, Box(-1, 1, (6,), np.float32)),
        ((64, 64), 4096, 16384, 52, Discrete(145)),
        ((256, 256), 4096, 16384, 52, Discrete(145)),
    ],
    ids=["64x64-batch-64", "256x256-batch-64", "64x64-batch-4096", "256x256-batch-4096"],
)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradient_steps(hidden, minibatch_size, steps, obs_dim, space, activation, record):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    config = {"hidden": hidden, "minibatch_size": minibatch_size, "activation": activation, "num_epochs": 4}
    ours = {
        "fastrl, compiled": ("compiled", "fp32"),
        "fastrl, compiled, bf16": ("compiled", "bf16"),
        "fastrl, PyTorch": ("torch", "fp32"),
        "fastrl, PyTorch, bf16": ("torch", "bf16"),
    }
    contenders = {name: our_steps(*how, space, steps, obs_dim, config) for name, how in ours.items()}
    contenders["Stable-Baselines3"] = sb3_steps(space, steps, obs_dim, config)
    for measure in contenders.values():
        measure()  # warm-up
    rates = measure_in_turns(contenders, ROUNDS)
    torch.set_num_threads(before)
    case = Case(f"{'x'.join(map(str, hidden))} {activation}, minibatches of {minibatch_size}", rates)
    about = "One thread; steps per second of processor time."
    record("Gradient steps of PPO", "gradient steps/s", [case], list(ours), about=about)
    assert case.ratio("fastrl, compiled", "fastrl, PyTorch").median > 1
