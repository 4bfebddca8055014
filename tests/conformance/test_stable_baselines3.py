"""Settings converted as ``docs/guides/from-stable-baselines3.md`` says learn what Stable-Baselines3 learns: from equal
weights, experience and random numbers come equal parameters after several updates, up to rounding."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

import fastrl
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac import SAC
from fastrl.algorithms.sac_settings import SACConfig, TD3Config
from fastrl.algorithms.td3 import TD3
from fastrl.networks.ensemble import Ensemble
from fastrl.networks.off_policy import Critics
from fastrl.networks.parameters import generator_of
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import noise
from fastrl.utils.timer import Stopwatch

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

SEED = 3
LAYERS = [16, 16]
OBS = Box(-1, 1, (3,), np.float32)
BOX = Box(np.float32([-2, 0]), np.float32([2, 1]))
WATCH = Stopwatch()


pytestmark = pytest.mark.usefixtures("one_thread")


def copy_weights(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Sets the second tensor of each pair to the first."""
    with torch.no_grad():
        for theirs, ours in pairs:
            ours.copy_(theirs)


def assert_equal(pairs: list[tuple[Tensor, Tensor]], before: list[Tensor], *, atol: float) -> None:
    """The tensors of each pair agree, and every one of them has learned."""
    for (theirs, ours), start in zip(pairs, before, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=atol)
        assert (ours - start).abs().max() > 50 * atol


def snapshot(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [ours.detach().clone() for _, ours in pairs]


def seeded_generator(part: int) -> torch.Generator:
    """One of the three generators that a learner derives from its seed."""
    return generator_of(np.random.SeedSequence(SEED).spawn(3)[part])


# PPO


class Both(BaseCallback):
    """Has fastrl learn from what Stable-Baselines3 has collected, before that learns from it itself."""

    def __init__(self, ours: PPO) -> None:
        super().__init__()
        self.ours = ours
        self.steps: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        told = self.locals
        infos = told["infos"]
        truncated = np.array([info["TimeLimit.truncated"] for info in infos])
        last = [
            info.get("terminal_observation", obs) for info, obs in zip(infos, told["new_obs"], strict=True)
        ]
        self.steps.append(
            {
                "obs": told["obs_tensor"].numpy().copy(),
                "next_obs": told["new_obs"].copy(),
                "actions": told["actions"].copy(),
                "log_probs": told["log_probs"].numpy().copy(),
                "rewards": told["rewards"].copy(),
                "terminations": told["dones"] & ~truncated,
                "truncations": truncated,
                "final_obs": np.stack(last),
            }
        )
        return True

    def _on_rollout_end(self) -> None:
        arrays = {name: np.stack([step[name] for step in self.steps]) for name in self.steps[0]}
        self.steps = []
        arrays["obs"] = np.concatenate([arrays["obs"], arrays.pop("next_obs")[-1:]])
        nothing = np.zeros(0, np.int64)
        rows = np.arange(arrays["rewards"].shape[1])
        fragment = Fragment(
            **arrays,
            version=1,
            env_indices=rows,
            returns=np.zeros(0),
            lengths=nothing,
            episodes=nothing.reshape(0, 2),
        )
        self.ours.update([fragment], WATCH)


def short_cart_pole() -> gymnasium.Env[Any, Any]:
    """Episodes end both ways."""
    return gymnasium.make("CartPole-v1", max_episode_steps=17)


def pendulum() -> gymnasium.Env[Any, Any]:
    """Actions from -1 to 1, where the two Gaussians have the same unit."""
    scaled = gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1", max_episode_steps=17), -1.0, 1.0)
    return gymnasium.wrappers.RescaleObservation(scaled, -1.0, 1.0)


@pytest.mark.parametrize("backend", ["torch", "compiled"])
@pytest.mark.parametrize("make_env", [short_cart_pole, pendulum])
def test_ppo(make_env: Callable[[], Any], backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    num_envs, num_steps, updates = 2, 24, 4
    theirs = sb3.PPO(
        "MlpPolicy",
        DummyVecEnv([make_env] * num_envs),
        n_steps=num_steps,
        batch_size=16,
        n_epochs=3,
        learning_rate=1e-3,
        clip_range=0.1,
        ent_coef=0.02,
        vf_coef=0.4,
        max_grad_norm=0.3,
        gae_lambda=0.9,
        policy_kwargs={"net_arch": LAYERS},
        seed=SEED,
        device="cpu",
    )
    config = PPOConfig(
        num_steps=num_steps,
        minibatch_size=16,
        num_epochs=3,
        learning_rate=1e-3,
        final_learning_rate=1e-3,
        clip_range=0.1,
        entropy_coef=0.02,
        final_entropy_coef=0.02,
        value_coef=0.8,
        max_grad_norm=0.3,
        gae_lambda=0.9,
        hidden=tuple(LAYERS),
        activation="tanh",
        normalize_returns=False,
        normalize_advantages="minibatch",
        update_backend=backend,
    )
    spaces = theirs.observation_space, theirs.action_space
    ours = PPO(config, Problem(*spaces, num_envs, num_envs * num_steps * updates, seed=SEED))
    net = theirs.policy
    of_actor = [*net.mlp_extractor.policy_net.parameters(), *net.action_net.parameters()]
    of_critic = [*net.mlp_extractor.value_net.parameters(), *net.value_net.parameters()]
    pairs = list(
        zip(
            of_actor + of_critic,
            [*ours.policy.actor.parameters(), *ours.policy.critic.parameters()],
            strict=True,
        )
    )
    if ours.policy.log_std is not None:
        pairs.append((net.log_std, ours.policy.log_std))
    copy_weights(pairs)
    before = snapshot(pairs)
    shuffling = seeded_generator(2)

    def order(size: int) -> np.ndarray:
        """The order of samples in fastrl, whose rollouts are [steps, environments] and theirs the other way round."""
        step, env = np.divmod(torch.randperm(size, generator=shuffling).numpy(), num_envs)
        return env * num_steps + step

    monkeypatch.setattr(np.random, "permutation", order)
    theirs.learn(num_envs * num_steps * updates, callback=Both(ours))
    assert_equal(pairs, before, atol=2e-6)


# Algorithms that learn from a replay: both get the same minibatches


class Replay:
    """Stands in for Stable-Baselines3's replay: draws the minibatches that it is given."""

    def __init__(self, batches: list[SimpleNamespace]) -> None:
        self._batches = iter(batches)

    def sample(self, batch_size: int, env: Any = None) -> SimpleNamespace:
        batch = next(self._batches)
        assert len(batch.rewards) == batch_size
        return SimpleNamespace(
            observations=batch.obs,
            next_observations=batch.next_obs,
            actions=batch.actions.unsqueeze(1) if batch.actions.ndim == 1 else batch.actions,
            rewards=batch.rewards.unsqueeze(1),
            dones=(batch.discounts == 0).float().unsqueeze(1),
            discounts=batch.discounts.unsqueeze(1),
        )


def minibatches(actions: gymnasium.Space[Any], size: int, count: int) -> list[SimpleNamespace]:
    """Transitions, a quarter of them terminated, with actions as a replay keeps them: those of a Box from -1 to 1."""
    rng = np.random.default_rng(SEED)

    def batch() -> SimpleNamespace:
        arrays = {
            "obs": rng.normal(size=(size, *OBS.shape)).astype(np.float32),
            "next_obs": rng.normal(size=(size, *OBS.shape)).astype(np.float32),
            "actions": rng.integers(0, actions.n, size)
            if isinstance(actions, Discrete)
            else rng.uniform(-1, 1, (size, *actions.shape)).astype(np.float32),
            "rewards": (3 * rng.normal(size=size)).astype(np.float32),
            "discounts": np.where(rng.random(size) < 0.25, 0, 0.9).astype(np.float32),
            "weights": np.ones(size, np.float32),
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return SimpleNamespace(**tensors, masks=None, next_masks=None)

    return [batch() for _ in range(count)]


class Still(gymnasium.Env[Any, Any]):
    """Spaces alone."""

    observation_space = OBS

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.action_space = action_space


def make_theirs(name: str, action_space: gymnasium.Space[Any], **settings: Any) -> Any:
    model = getattr(sb3, name)(
        "MlpPolicy",
        Still(action_space),
        gamma=0.9,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": LAYERS},
        device="cpu",
        seed=SEED,
        **settings,
    )
    model.set_logger(Logger(None, []))
    return model


def test_dqn() -> None:
    actions, size, steps = Discrete(4), 8, 12
    theirs = make_theirs(
        "DQN", actions, batch_size=size, tau=0.7, target_update_interval=3, max_grad_norm=0.5
    )
    config = DQNConfig(
        gamma=0.9,
        n_step=1,
        double=False,
        dueling=False,
        learning_rate=1e-3,
        batch_size=size,
        target_every=3,
        target_tau=0.7,
        adam_eps=1e-8,
        max_grad_norm=0.5,
        hidden=tuple(LAYERS),
    )
    ours = DQN(config, Problem(OBS, actions, 1, steps, seed=SEED))
    pairs = list(zip(theirs.q_net.parameters(), ours.network.parameters(), strict=True))
    of_targets = list(zip(theirs.q_net_target.parameters(), ours.target.parameters(), strict=True))
    copy_weights(pairs + of_targets)
    before = snapshot(pairs + of_targets)
    batches = minibatches(actions, size, steps)
    theirs.replay_buffer = Replay(batches)
    for batch in batches:
        theirs.train(1, size)
        theirs._on_step()
        ours.update(batch, WATCH)
    assert_equal(pairs + of_targets, before, atol=2e-6)


def ensemble_pairs(
    theirs: Iterable[nn.Parameter], ours: Ensemble, member: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Parameters of linear layers, and of one of the networks of an ensemble, whose matrices are transposed."""
    return [
        (of_layer, tensor[member].T if of_layer.ndim == 2 else tensor[member, 0])
        for of_layer, tensor in zip(theirs, (each.detach() for each in ours.parameters()), strict=True)
    ]


def pairs_of_critics(theirs: Any, ours: Critics) -> list[tuple[Tensor, Tensor]]:
    return [
        pair
        for member, network in enumerate(theirs.q_networks)
        for pair in ensemble_pairs(network.parameters(), ours.body, member)
    ]


def both_learn(
    ours: Any, theirs: Any, pairs: list[tuple[Tensor, Tensor]], *, size: int, steps: int, atol: float
) -> None:
    copy_weights(pairs)
    before = snapshot(pairs)
    batches = minibatches(BOX, size, steps)
    theirs.replay_buffer = Replay(batches)
    for batch in batches:
        theirs.train(1, size)
        ours.update(batch, WATCH)
    assert_equal(pairs, before, atol=atol)


def noise_of(ours: Any, size: int, *names: str) -> Iterator[Tensor]:
    """The noise of fastrl's gradient steps, in the order of some fields of its minibatches."""
    for number in itertools.count():
        for name in names:
            drawn = noise(ours.streams[name], number, size * ours.actions.size)
            yield torch.from_numpy(drawn.reshape(size, -1))


def test_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    size, steps, (width,) = 8, 12, BOX.shape
    theirs = make_theirs("SAC", BOX, batch_size=size, tau=0.2)
    config = SACConfig(gamma=0.9, learning_rate=1e-3, batch_size=size, tau=0.2, hidden=tuple(LAYERS))
    ours = SAC(config, Problem(OBS, BOX, 1, steps, seed=SEED))
    assert theirs.target_entropy == ours.target_entropy
    *of_hidden, weight, bias = (each.detach() for each in ours.policy.body.parameters())
    actor = theirs.actor
    of_policy = [
        *(
            (of_layer, tensor[0].T if of_layer.ndim == 2 else tensor[0, 0])
            for of_layer, tensor in zip(actor.latent_pi.parameters(), of_hidden, strict=True)
        ),
        (actor.mu.weight, weight[0, :, :width].T),
        (actor.mu.bias, bias[0, 0, :width]),
        (actor.log_std.weight, weight[0, :, width:].T),
        (actor.log_std.bias, bias[0, 0, width:]),
    ]
    pairs = [
        *of_policy,
        *pairs_of_critics(theirs.critic, ours.critics),
        *pairs_of_critics(theirs.critic_target, ours.targets),
    ]
    # Stable-Baselines3 draws for the policy first.
    drawn = noise_of(ours, size, "noise", "next_noise")
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *_, **__: next(drawn))
    both_learn(ours, theirs, pairs, size=size, steps=steps, atol=1e-5)
    torch.testing.assert_close(ours.temperature, theirs.log_ent_coef.detach().exp()[0])
    assert ours.temperature < 0.99


def test_td3(monkeypatch: pytest.MonkeyPatch) -> None:
    size, steps = 8, 12
    theirs = make_theirs("TD3", BOX, batch_size=size, tau=0.2)
    config = TD3Config(gamma=0.9, learning_rate=1e-3, batch_size=size, tau=0.2, hidden=tuple(LAYERS))
    ours = TD3(config, Problem(OBS, BOX, 1, steps, seed=SEED))
    pairs = [
        *ensemble_pairs(theirs.actor.mu.parameters(), ours.policy.body),
        *ensemble_pairs(theirs.actor_target.mu.parameters(), ours.target_policy.body),
        *pairs_of_critics(theirs.critic, ours.critics),
        *pairs_of_critics(theirs.critic_target, ours.targets),
    ]
    drawn = noise_of(ours, size, "next_noise")
    monkeypatch.setattr(
        torch.Tensor, "normal_", lambda self, mean=0.0, std=1.0: self.copy_(mean + std * next(drawn))
    )
    both_learn(ours, theirs, pairs, size=size, steps=steps, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_envs", "train_freq", "gradient_steps"), [(1, 4, 1), (2, 4, 3), (2, 1, -1)], ids=str
)
def test_gradient_steps_of_a_run(num_envs: int, train_freq: int, gradient_steps: int) -> None:
    """Their number, up to a turn of learning: the two differ in when learning starts."""
    steps, turn = 400, num_envs * train_freq if gradient_steps < 0 else gradient_steps
    theirs = sb3.DQN(
        "MlpPolicy",
        DummyVecEnv([short_cart_pole] * num_envs),
        learning_starts=100,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
        batch_size=2,
        policy_kwargs={"net_arch": [4]},
        device="cpu",
    )
    theirs.learn(steps)
    ours = fastrl.DQN(
        "CartPole-v1",
        num_envs=num_envs,
        hidden=(4,),
        batch_size=2,
        replay__learning_starts=100,
        replay__train_freq=train_freq,
        replay__updates_per_step=turn / (train_freq * num_envs),
        collector="sequential",
        run__row_seconds=0.0,
        run__eval_episodes=0,
        device="cpu",
    )
    ours.learn(steps)
    taken = sum(row.get("train/gradient_steps", 0) for row in ours.metrics)
    assert theirs._n_updates > 50
    assert abs(taken - theirs._n_updates) <= turn
