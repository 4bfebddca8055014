"""Learners of many agents with a memory: every step is seen with the state that the agent's steps before it left."""

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from parallel_toys import Hints, Masked
from torch import nn

from fastrl.algorithms.ippo import IPPO
from fastrl.algorithms.mappo import MAPPO, MAPPOConfig
from fastrl.algorithms.ppo_loss import log_probs_of
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.reinforce import REINFORCE, REINFORCEConfig
from fastrl.collectors.factory import make_collector
from fastrl.collectors.parallel_spec import ParallelSpec
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import as_spec
from fastrl.networks.distributions import mask_logits
from fastrl.utils.timer import Stopwatch

CONFIGS: dict[Any, Any] = {IPPO: MAPPOConfig, MAPPO: MAPPOConfig, REINFORCE: REINFORCEConfig}
CASES = [
    (IPPO, {"memory": "gru"}),
    (MAPPO, {"memory": "lstm", "share": False}),
    (MAPPO, {"memory": "gru", "dropout": 0.3, "agent_ids": True}),
    (REINFORCE, {"memory": "lstm", "normalize_obs": True, "critic": "own"}),
    (IPPO, {"memory": "gru", "action_masks": True, "hidden": ()}),
]


class Played:
    """A learner and the fragments of its newest weights; every second one of the episodes is truncated, agent "a"
    leaves first, "late" comes late."""

    def __init__(self, kind: Any, unit: Any = "steps", **options: Any) -> None:
        settings = {"memory_size": 6, "hidden": (5,), "num_steps": 10, "gamma": 0.9} | options
        config = CONFIGS[kind](**settings, normalize_rewards=False, normalize_advantages="none")
        masks = config.action_masks
        spec = ParallelSpec("toy", spec=as_spec(Masked if masks else Hints), max_episode_steps=20)
        spaces = Box(-1, 1, (2,), np.float32), Discrete(50 if masks else 2)
        problem = Problem(*spaces, 4, total_timesteps=10_000, num_agents=3, seed=2)
        self.learner = kind(config, problem)
        for actor in self.learner.actors.values():
            # So that policies differ from step to step.
            actor.network.body[-1].weight.data.mul_(100)
            actor.network.memory.bias_hh.data.add_(0.3)
        plan = Plan(
            spec,
            self.learner.actor_spec(),
            *spaces,
            num_envs=4,
            num_agents=3,
            num_steps=10,
            unit=unit,
            episodes=7 if unit == "episodes" else 0,
            action_masks=masks,
        )
        self.collector = make_collector("sequential", plan)

    def next(self) -> Any:
        weights = np.zeros(self.learner.weights_nbytes, np.uint8)
        self.learner.write_weights(weights)
        self.collector.publish(weights)
        return self.collector.collect()


def step_of(network: Any) -> Any:
    """A function of an observation [D], an agent and a state [1, S] by torch's cells: outputs, memory, next state."""
    kind, size = network.memory.kind, network.memory.size
    cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(network.body.sizes[-2], size)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def step(obs: Any, agent: int, state: Any) -> Any:
        inputs = network.inputs(torch.from_numpy(obs[None]), torch.tensor([agent]))
        given = state if kind == "gru" else tuple(state.split(size, 1))
        parameters = {name: network.memory.get_parameter(name) for name in names}
        after = torch.func.functional_call(cell, parameters, (network.body.features(inputs), given))
        hidden = after if kind == "gru" else after[0]
        after = after if kind == "gru" else torch.cat(after, 1)
        return network.body[-1](hidden)[0], hidden[0], after

    return step


@torch.no_grad()
def slow_pass(learner: Any, fragments: Any) -> Any:
    """For each step of an agent the log-probability of its action, what is remembered at its observation, and at the
    one that follows where its episode goes on after the fragment, or was truncated; else None."""
    found = []
    steps = {name: step_of(copy.deepcopy(actor.network)) for name, actor in learner.actors.items()}
    for fragment in fragments:
        for row, agent in np.ndindex(fragment.num_rows, 3):
            name = learner.policy.names[agent]
            step, log_std = steps[name], learner.actors[name].network.log_std
            state = torch.from_numpy(fragment.states[row, agent][None])
            for t in range(fragment.num_steps):
                if not fragment.alive[t, row, agent]:
                    continue
                outputs, memory, state = step(fragment.obs[t, row, agent], agent, state)
                if fragment.masks is not None:
                    outputs = mask_logits(outputs, torch.from_numpy(fragment.masks[t, row, agent]))
                action = torch.from_numpy(fragment.actions[t, row, agent][None])
                chance = log_probs_of(outputs[None], log_std, action, None)
                terminated, truncated = (
                    each[t, row, agent] for each in (fragment.terminations, fragment.truncations)
                )
                following = None
                if truncated and not terminated:
                    following = step(fragment.final_obs[t, row, agent], agent, state)[1]
                elif not terminated and t == fragment.num_steps - 1:
                    following = step(fragment.obs[-1, row, agent], agent, state)[1]
                found.append((float(chance), fragment.log_probs[t, row, agent], memory, following))
                if terminated or truncated:
                    state = torch.zeros_like(state)
    return found


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_what_was_collected_is_what_is_learned_from(kind: Any, options: Any, unit: Any) -> None:
    played = Played(kind, unit, **options)
    for _ in range(3):
        fragments = played.next()
        assert any((fragment.states != 0).any() for fragment in fragments) or unit == "episodes" or not _
        expected = slow_pass(played.learner, fragments)
        np.testing.assert_allclose(*(np.array([each[i] for each in expected]) for i in range(2)), atol=1e-4)
        played.learner.load_rollout(fragments, Stopwatch())
        rollout = played.learner.rollout
        # In the order of rows, then steps.
        places = _places(rollout, fragments)
        assert len(places) == len(expected)
        for (t, row, is_last), (_, _, memory, following) in zip(places, expected, strict=True):
            np.testing.assert_allclose(rollout.memories[t, row], memory, atol=1e-5)
            if following is not None:
                is_final = rollout.truncations[t, row]
                found = rollout.final_memories[t, row] if is_final else rollout.memories[t + 1, row]
                np.testing.assert_allclose(found, following, atol=1e-5)
                assert is_final or is_last
        played.learner.learn_rollout(Stopwatch())


def _places(rollout: Any, fragments: Any) -> Any:
    """Step and row of each living agent's steps, in the order of `slow_pass`, and whether it is a fragment's last."""
    found: list[Any] = []
    start = first = 0
    for fragment in fragments:
        steps, rows = fragment.num_steps, 3 * fragment.num_rows
        for row in range(rows):
            alive = fragment.alive[:, row // 3, row % 3]
            found += [(start + t, first + row, t == steps - 1) for t in range(steps) if alive[t]]
        if rollout.num_rows > 3:
            first += rows
        else:
            start += steps
    return found


@pytest.mark.parametrize("kind", [IPPO, MAPPO])
@pytest.mark.parametrize("options", [{"memory": "gru"}, {"memory": "lstm", "dropout": 0.3}])
def test_the_ratio_of_an_unchanged_policy_is_one(kind: Any, options: Any) -> None:
    played = Played(kind, learning_rate=0.0, minibatch_size=40, **options)
    learner, gaps = played.learner, []

    def loss(batch: Any) -> Any:
        gaps.append(float((batch.log_probs_and_entropy()[0] - batch.log_probs).detach().abs().max()))
        return kind.loss(learner, batch)

    learner.loss = loss
    for _ in range(2):
        learner.update(played.next(), Stopwatch())
        assert learner.metrics()["clip_fraction"] == 0
    assert len(gaps) > 8 and max(gaps) < 1e-5


@pytest.mark.parametrize("kind", [IPPO, MAPPO, REINFORCE])
def test_gradients_flow_back_to_the_first_step(kind: Any) -> None:
    """The hint of the first step decides the last action: its gradient is not zero, nor is that of all parameters."""
    played = Played(kind, memory="gru")
    network = played.learner.actors["shared"].network
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    played.learner.update(played.next(), Stopwatch())
    assert all((parameter != before[name]).any() for name, parameter in network.named_parameters())


def test_partners_remember_as_long_as_they_did() -> None:
    partner = Played(MAPPO, memory="lstm", memory_size=9).learner.policy_state()
    spaces = Box(-1, 1, (2,), np.float32), Discrete(2)
    config = MAPPOConfig(
        memory="gru", memory_size=4, hidden=(5,), policies=("new", "old", "new"), num_steps=10
    )
    learner = MAPPO(config, Problem(*spaces, 4, total_timesteps=400, num_agents=3), {"old": partner})
    assert learner.policy.state_size == 18
    actor = learner.actor_spec()()
    weights = np.zeros(learner.weights_nbytes, np.uint8)
    learner.write_weights(weights)
    actor.load(weights)
    states = np.zeros((3, 18), np.float32)
    act = functools.partial(
        actor.act, np.ones((3, 2), np.float32), np.zeros(3, np.uint64), np.zeros(3, np.int64)
    )
    act(np.zeros(3, np.int64), np.zeros(3, np.float32), None, states, alive=np.array([True, True, False]))
    assert states[0, :4].all() and not states[0, 4:].any() and states[1].all() and not states[2].any()


def test_a_memory_is_not_compiled_gradient_steps() -> None:
    with pytest.raises(ValueError, match="without images, memory or dropout"):
        Played(IPPO, memory="gru", update_backend="compiled")


def test_a_claimed_memory_is_refused_before_there_is_one() -> None:
    [state] = Played(IPPO, memory="gru").learner.policy_state()["actors"].values()
    state = {**state, "architecture": {**state["architecture"], "memory_size": 10**6}}
    with pytest.raises(ValueError, match="is claimed, the weights are"):
        type(Played(IPPO, memory="gru").learner.actors["shared"].network).from_state(state)
