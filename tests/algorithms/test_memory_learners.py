"""Learners of networks with a memory: every step is seen with the state that the steps before it left."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import nn

from fastrl.algorithms.async_ppo import AsyncPPO, AsyncPPOConfig
from fastrl.algorithms.impala import IMPALA, ImpalaConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_loss import log_probs_of
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.spec import as_spec
from fastrl.networks.distributions import choices_of
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch

GAMMA = 0.9
CONFIGS: dict[Any, Any] = {PPO: PPOConfig, AsyncPPO: AsyncPPOConfig, IMPALA: ImpalaConfig}
KNOWN = {"gamma": GAMMA, "normalize_returns": False, "normalize_advantages": "none"}
ACTIONS = {
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete([2, 3]),
    "box": Box(-1, 1, (2,), np.float32),
}


class Ends(gymnasium.Env[Any, Any]):
    """Rewards of -1 and observations from the episode's seed; episodes of 1 to 9 steps, every second one truncated."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, actions: str = "discrete") -> None:
        self.action_space = ACTIONS[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        self.cut = self.left % 2 == 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        over = self.left == 0
        return self._obs(), -1.0, over and not self.cut, over and self.cut, {}

    def _obs(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


def learner_of(kind: Any, memory: str, actions: str = "discrete", **options: Any) -> Any:
    settings = {"memory": memory, "memory_size": 6, "hidden": (5,), "num_steps": 12} | options
    env = Ends(actions)
    problem = Problem(env.observation_space, env.action_space, 5, total_timesteps=10_000, seed=2)
    learner = kind(CONFIGS[kind](**settings), problem)
    with torch.no_grad():
        # So that policy and values differ from step to step.
        learner.policy.actor.weight.mul_(100)
        learner.policy.memory.bias_hh.add_(0.3)
    return learner


class Play:
    """Fragments of `Ends` by a learner's newest weights."""

    def __init__(self, learner: Any, unit: Any = "steps", actions: str = "discrete") -> None:
        env = Ends(actions)
        self.learner = learner
        self.collector = SequentialCollector(
            Plan(
                as_spec(Ends, actions=actions),
                learner.actor_spec(),
                env.observation_space,
                env.action_space,
                num_envs=5,
                num_steps=learner.num_steps,
                unit=unit,
                episodes=7 if unit == "episodes" else 0,
                seed=1,
            )
        )

    def next(self) -> Any:
        weights = np.zeros(self.learner.weights_nbytes, np.uint8)
        self.learner.write_weights(weights)
        self.collector.publish(weights)
        return self.collector.collect()


def slow_network(learner: Any) -> Any:
    """A copy of the network, and a function of one observation [D] and a state [1, S] by torch's cells: outputs, value
    and the next state."""
    # Not the learner's own, for gradients after its step.
    policy = copy.deepcopy(learner.policy)
    kind, size = policy.memory.kind, policy.memory.size
    cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(policy.actor_trunk.size, size)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def step(obs: Any, state: Any) -> Any:
        features = policy.actor_trunk(*policy.decoder(torch.from_numpy(obs[None])))
        given = state if kind == "gru" else tuple(state.split(size, 1))
        after = torch.func.functional_call(
            cell, {name: policy.memory.get_parameter(name) for name in names}, (features, given)
        )
        hidden = after if kind == "gru" else after[0]
        after = after if kind == "gru" else torch.cat(after, 1)
        return policy.actor(hidden)[0], policy.critic(hidden)[0, 0], after

    return policy, step


def slow_pass(learner: Any, fragments: Any, burn_in: int = 0) -> Any:
    """A copy of the network; and for each row of each fragment and step: outputs, value, value of what follows (None
    at a termination or within an episode), and whether it is learned from."""
    policy, step = slow_network(learner)
    found = []
    for fragment in fragments:
        for row in range(fragment.num_rows):
            state, steps = torch.from_numpy(fragment.states[row : row + 1]), []
            burning = burn_in if bool(state.any()) else 0
            for t in range(fragment.num_steps):
                outputs, value, state = step(fragment.obs[t, row], state)
                if burning:
                    state = state.detach()
                following = None
                ended = fragment.terminations[t, row] or fragment.truncations[t, row]
                if ended and not fragment.terminations[t, row]:
                    following = step(fragment.final_obs[t, row], state)[1].detach()
                elif not ended and t == fragment.num_steps - 1:
                    following = step(fragment.obs[-1, row], state)[1].detach()
                steps.append((outputs, value, following, not burning))
                burning = max(burning - 1, 0)
                if ended:
                    state, burning = torch.zeros_like(state), 0
            found.append(steps)
    return policy, found


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_truncation_with_a_known_answer(kind: Any, memory: str, unit: str) -> None:
    """Reward -1 each step, value 1, lambda 0: -1 + gamma, once, and -1 at a true end."""
    trace = {"trace_lambda": 0.0} if kind is IMPALA else {"gae_lambda": 0.0}
    learner = learner_of(kind, memory, **KNOWN, **trace)
    with torch.no_grad():
        learner.policy.critic.weight.zero_()
        learner.policy.critic.bias.fill_(1.0)
    play = Play(learner, unit)
    for _ in range(2):
        fragments = play.next()
        assert any((each.truncations & ~each.terminations).any() for each in fragments)
        assert any(each.terminations.any() for each in fragments)
        learner.load_rollout(fragments, Stopwatch())
        returns_of(learner)
        expected = np.where(learner.rollout.terminations, -1, -1 + GAMMA)
        np.testing.assert_allclose(learner.rollout.returns, expected, rtol=1e-5)


def returns_of(learner: Any) -> None:
    """Has the returns of the loaded rollout computed; parameters change."""
    state = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    learner.learn(Stopwatch())
    learner.policy.load_state_dict(state)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_values_are_those_of_a_loop_over_the_steps(kind: Any, memory: str, unit: str) -> None:
    learner = learner_of(kind, memory)
    play = Play(learner, unit)
    for _ in range(2):
        fragments = play.next()
        # Other weights than those that left the states.
        with torch.no_grad():
            learner.policy.memory.weight_hh.add_(0.1)
        learner.load_rollout(fragments, Stopwatch())
        _, expected = slow_pass(learner, fragments)
        returns_of(learner)
        rollout = learner.rollout
        columns = expected if unit == "steps" else [[step for steps in expected for step in steps]]
        for column, steps in enumerate(columns):
            for t, (_, value, following, _) in enumerate(steps):
                assert rollout.values[t, column] == pytest.approx(value.item(), abs=1e-5)
                if rollout.cut_off()[t, column]:
                    assert rollout.final_values[t, column] == pytest.approx(following.item(), abs=1e-5)
                elif following is not None:
                    assert rollout.values[t + 1, column] == pytest.approx(following.item(), abs=1e-5)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_log_probs_are_those_of_the_actor(memory: str, actions: str) -> None:
    learner = learner_of(AsyncPPO, memory, actions)
    play = Play(learner, actions=actions)
    for _ in range(3):
        [fragment] = play.next()
        learner.load_rollout([fragment], Stopwatch(), correct_off_policy=True)
        np.testing.assert_allclose(learner.rollout.log_probs, fragment.log_probs, rtol=1e-4, atol=1e-5)
    assert fragment.states.any()


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_gradients_are_those_of_a_loop_over_the_steps(memory: str, actions: str, burn_in: int) -> None:
    """Through all steps of an episode in the fragment, from its stored state."""
    learner = learner_of(
        IMPALA, memory, actions, burn_in=burn_in, max_grad_norm=1e9, entropy_coef=0.0, **KNOWN
    )
    play = Play(learner, actions=actions)
    play.next()
    [fragment] = play.next()
    learner.load_rollout([fragment], Stopwatch())
    policy, steps = slow_pass(learner, [fragment], burn_in)
    metrics = learner.learn(Stopwatch())

    rollout, losses, learned = learner.rollout, [], 0
    for row, column in enumerate(steps):
        for t, (outputs, value, _, counts) in enumerate(column):
            if not counts:
                continue
            learned += 1
            action = torch.from_numpy(np.asarray(fragment.actions[t, row])[None])
            log_prob = log_probs_of(outputs[None], policy.log_std, action, choices_of(learner.actions))
            error = value - float(rollout.returns[t, row])
            losses.append(-float(rollout.advantages[t, row]) * log_prob[0] + 0.5 * error**2 / 2)
    assert (learned < rollout.rewards.size) == bool(burn_in)
    loss = torch.stack(losses).sum() / learned
    gradients = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    norm = torch.cat([each.flatten() for each in gradients if each is not None]).norm()
    assert metrics.grad_norm == pytest.approx(norm.item(), rel=1e-3)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_minibatches_are_whole_sequences(unit: str) -> None:
    learner = learner_of(PPO, "gru", minibatch_size=30, num_epochs=2)
    fragments = Play(learner, unit).next()
    learner.load_rollout(fragments, Stopwatch())
    batches = [drawn.take(Shard(0, slice(None))) for drawn in learner.minibatches()]
    total = sum(len(each) for each in fragments)
    sizes = [len(batch.actions) for batch in batches]
    assert sum(sizes) == 2 * total and max(sizes) <= 30
    places = np.concatenate([batch.obs.packed.places for batch in batches])
    assert (np.bincount(places) == 2).all() and len(np.unique(places)) == total
    if unit == "steps":
        assert sizes == [24, 24, 12] * 2


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_resumes_to_the_bit(kind: Any, memory: str) -> None:
    straight, resumed = learner_of(kind, memory), learner_of(kind, memory)
    play = Play(straight)
    for _ in range(2):
        straight.update(play.next(), Stopwatch())
    resumed.load_state_dict(straight.state_dict())
    fragments = play.next()
    for learner in (straight, resumed):
        learner.update(fragments, Stopwatch())
    for name, value in straight.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name]), name


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="burn_in should be less than num_steps, 12, got 12"):
        learner_of(IMPALA, "gru", burn_in=12)
    with pytest.raises(ValueError, match="memory does not go with shared_trunk false"):
        learner_of(PPO, "gru", shared_trunk=False)
    with pytest.raises(ValueError, match="memory does not go with a network of your own"):
        learner_of(PPO, "gru", network="some_module:Net")
