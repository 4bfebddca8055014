"""DQN, SAC and TD3 with a memory: what they say of a step is what the steps of its episode before it have left."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_memory_learners import Ends
from torch import nn

import fastrl
from fastrl.algorithms import SAC, TD3, dqn, off_policy
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import SACConfig, TD3Config
from fastrl.collectors.protocol import Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.spec import as_spec
from fastrl.networks.memory import Memory
from fastrl.replay import Replay
from fastrl.replay.recurrent import RecurrentSampler, state_fields
from fastrl.sources.transitions import store_fragment
from fastrl.utils.errors import UserError
from fastrl.utils.ranks import Ranks
from fastrl.utils.timer import Stopwatch

CONFIGS: dict[Any, Any] = {DQN: DQNConfig, SAC: SACConfig, TD3: TD3Config}
SMALL = {"memory_size": 3, "hidden": (5,), "sequence_length": 4, "burn_in": 3, "batch_size": 24, "n_step": 2}
CASES = [
    pytest.param(DQN, "discrete", {"memory": "gru"}, id="dqn-gru"),
    pytest.param(DQN, "discrete", {"memory": "lstm", "dueling": False, "quantiles": 3}, id="dqn-lstm"),
    pytest.param(SAC, "box", {"memory": "gru"}, id="sac-box"),
    pytest.param(SAC, "discrete", {"memory": "lstm"}, id="sac-discrete"),
    pytest.param(TD3, "box", {"memory": "gru"}, id="td3"),
]


def play_of(kind: Any, actions: str, shards: int = 0, **options: Any) -> Any:
    """A learner, and a replay of the steps that it has taken, with the history of each observation: all those of its
    episode up to it."""
    env = Ends(actions)
    ranks = Ranks(shards=shards)
    problem = Problem(env.observation_space, env.action_space, 2, total_timesteps=10_000, seed=2, ranks=ranks)
    learner = kind(CONFIGS[kind](**SMALL | options), problem)
    plan = Plan(
        as_spec(Ends, actions=actions),
        learner.actor_spec(),
        env.observation_space,
        env.action_space,
        num_envs=2,
        num_steps=3,
        seed=1,
    )
    collector = SequentialCollector(plan)
    replay = Replay(
        70,
        (3,),
        num_envs=2,
        action_shape=plan.actions.shape,
        action_dtype=plan.actions.dtype,
        extra={"version": (np.uint32, ()), **state_fields(plan.state_size)},
    )
    weights = np.zeros(learner.weights_nbytes, np.uint8)
    learner.write_weights(weights)
    collector.publish(weights)
    histories: dict[bytes, list[Any]] = {}
    running: list[list[Any]] = [[], []]
    for _ in range(15):
        for fragment in collector.collect():
            store_fragment(replay, fragment, fragment.env_indices)
            for t, row in np.ndindex(fragment.rewards.shape):
                env_index = int(fragment.env_indices[row])
                so_far = running[env_index] = [*running[env_index], fragment.obs[t, row].copy()]
                histories[so_far[-1].tobytes()] = so_far
                after = fragment.obs[t + 1, row]
                if fragment.terminations[t, row] or fragment.truncations[t, row]:
                    after, running[env_index] = fragment.final_obs[t, row], []
                histories.setdefault(after.tobytes(), [*so_far, after.copy()])
    return SimpleNamespace(learner=learner, replay=replay, histories=histories)


def sampler_of(play: Any) -> RecurrentSampler:
    spec = play.learner.replay_spec()
    length, burn_in = spec.sequences
    return RecurrentSampler(
        play.replay, spec.batch_size, length=length, burn_in=burn_in, n_step=spec.n_step, gamma=spec.gamma
    )


def networks_of(learner: Any) -> list[Any]:
    return [learner.network, learner.target] if isinstance(learner, DQN) else [learner.policy]


@pytest.mark.parametrize(("kind", "actions", "options"), CASES)
def test_stored_states_are_those_that_acting_had(kind: Any, actions: str, options: Any) -> None:
    """With the weights that acted, all outputs are those of a walk from the start of the episode."""
    play = play_of(kind, actions, **options)
    batch: Any = sampler_of(play).sample()
    assert batch.obs.states.any()
    for network in networks_of(play.learner):
        for obs in (batch.obs, batch.next_obs):
            with torch.no_grad():
                found = network(obs)
            for place, outputs in zip(obs.places.tolist(), found, strict=True):
                rows = play.histories[obs.steps.data[place].numpy().tobytes()]
                state = torch.zeros(1, network.state_size)
                for row in rows:
                    expected, _, state = network.step(torch.from_numpy(row[None]), state)
                torch.testing.assert_close(outputs, expected[0], rtol=1e-4, atol=1e-5)


def slow_features(network: Any, encode: Any, obs: Any) -> torch.Tensor:
    """The memory's outputs at the observations of a batch by torch's cells, without gradients of the burn-in."""
    memory, size = network.memory, network.memory.size
    parameters = dict(memory.named_parameters())
    cell = (nn.GRUCell if memory.kind == "gru" else nn.LSTMCell)(memory.weight_ih.shape[1], size)

    def step(row: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        given = state if memory.kind == "gru" else tuple(state.split(size, 1))
        after = torch.func.functional_call(cell, parameters, (encode(row[None]), given))
        return after if memory.kind == "gru" else torch.cat(after, 1)

    outputs: dict[int, torch.Tensor] = {}
    for i in range(len(obs.states)):
        state = obs.states[i : i + 1]
        if i in obs.burnt.tolist():
            for _, row in unpack(obs.burn_in, obs.burnt.tolist().index(i)):
                state = step(row, state).detach()
        for place, row in unpack(obs.steps, i):
            state = step(row, state)
            outputs[place] = state[0, :size]
    return torch.stack([outputs[place] for place in obs.places.tolist()])


def unpack(steps: Any, sequence: int) -> Any:
    """Places and rows of a sequence's steps."""
    column, start = int(steps.unsorted_indices[sequence]), 0
    for size in steps.batch_sizes.tolist():
        if column < size:
            yield start + column, steps.data[start + column]
        start += size


def change(learner: Any) -> None:
    """Other weights than those that acted, of targets others again."""
    generator = torch.Generator().manual_seed(5)
    networks = (
        [learner.network, learner.target] if isinstance(learner, DQN) else [learner.critics, learner.targets]
    )
    with torch.no_grad():
        for network in networks:
            for parameter in network.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_gradients_of_dqn_are_those_of_a_loop_over_the_steps(memory: str) -> None:
    # The gradient of one batch of two, which is not yet descended along.
    play = play_of(DQN, "discrete", memory=memory, accumulate=2, max_grad_norm=None, huber=0.5, batch_size=8)
    learner, batch = play.learner, sampler_of(play).sample()
    change(learner)

    def values(network: Any, obs: Any) -> torch.Tensor:
        features = slow_features(network, lambda rows: network.encoder(*network.decoder(rows)), obs)
        advantage = network.advantage(features)
        return network.value(features) + advantage - advantage.mean(1, keepdim=True)

    best = values(learner.network, batch.next_obs).argmax(1, keepdim=True)
    following = values(learner.target, batch.next_obs).gather(1, best).squeeze(1)
    y = (batch.rewards + batch.discounts * following).detach()
    q = values(learner.network, batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    loss = torch.nn.functional.huber_loss(q, y, delta=0.5)
    expected = torch.autograd.grad(loss, list(learner.network.parameters()))
    td_errors = learner.update(batch, Stopwatch())
    torch.testing.assert_close(td_errors, (y - q).abs().detach(), rtol=1e-4, atol=1e-5)
    flat = torch.cat([each.flatten() for each in expected])
    torch.testing.assert_close(learner.parameters.grad, flat / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_critics_learn_the_memory_and_the_policy_shares_it(kind: Any) -> None:
    play = play_of(kind, "box", memory="gru", batch_size=8, policy_every=1)
    learner, batch = play.learner, sampler_of(play).sample()
    change(learner)
    minibatch = learner.minibatch(batch, learns_policy=True)
    y = learner.td_targets(minibatch)

    def encode(rows: Any) -> Any:
        return learner.critics.encoder(*learner.critics.decoder(rows))

    features = slow_features(learner.critics, encode, batch.obs)
    values = learner.critics.body(torch.cat([features, batch.actions], 1)).squeeze(-1)
    loss = (values - y).square().mean(1).sum() / 2
    found = learner.critic_loss(minibatch)
    torch.testing.assert_close(found.total, loss)
    parameters = list(learner.critics.memory.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found.total, parameters), torch.autograd.grad(loss, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    before = learner.critics.memory.weight_hh.clone()
    learner.update(batch, Stopwatch())
    assert not torch.equal(learner.critics.memory.weight_hh, before)
    assert torch.equal(learner.policy.memory.weight_hh, learner.critics.memory.weight_hh)
    assert not torch.equal(learner.targets.memory.weight_hh, before)


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize(
    ("kind", "actions", "options", "unrolls"),
    [
        # The online network, once for the values and for the choice of the next action, and the target network.
        (DQN, "discrete", {"memory": "gru", "noisy": True}, 2),
        (DQN, "discrete", {"memory": "lstm", "double": False}, 2),
        # The critics with the next actions, the target critics, and the policy with its values.
        (SAC, "box", {"memory": "gru"}, 3),
        (SAC, "discrete", {"memory": "lstm"}, 3),
        # The target policy, too.
        (TD3, "box", {"memory": "gru", "policy_every": 1}, 4),
    ],
)
def test_equal_memories_run_once_along_a_minibatch(
    kind: Any, actions: str, options: Any, unrolls: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same bits as where each is run each time."""

    def learned(module: Any) -> list[Any]:
        play, runs = play_of(kind, actions, shards, **options), []
        run = Memory.forward

        def counted(self: Memory, *arguments: Any) -> Any:
            runs.append(arguments)
            return run(self, *arguments)

        with monkeypatch.context() as patch:
            if module is not None:
                patch.setattr(module, "unrolled_once", lambda *_: nullcontext())
            sampler = sampler_of(play)
            batches: list[Any] = [sampler.sample() for _ in range(3)]
            patch.setattr(Memory, "forward", counted)
            for batch in batches:
                play.learner.update(batch, Stopwatch())
        if module is None and not shards:
            assert len(runs) == unrolls * sum(1 + (batch.obs.burn_in is not None) for batch in batches)
        networks = networks_of(play.learner)
        if kind is not DQN:
            networks += [play.learner.critics, play.learner.targets]
        return [parameter for network in networks for parameter in network.parameters()]

    apart = learned(dqn if kind is DQN else off_policy)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(learned(None), apart, strict=True))


@pytest.mark.parametrize(
    ("algorithm", "settings", "line"),
    [
        ("DQN", {"prioritized": True}, "set prioritized to false, or memory to none"),
        ("DQN", {"batch_norm": True}, "memory does not go with batch_norm"),
        ("DQN", {"burn_in": 65}, "burn_in"),
        ("DQN", {"update_backend": "compiled"}, "without images, memory"),
        ("SAC", {"update_backend": "compiled"}, "without images, memory"),
        ("SAC", {"replay__overlap": True, "replay__prefetch": "on"}, "sequences are not drawn ahead"),
        ("DQN", {"replay__hindsight": 0.5}, "with a memory learns from sequences"),
    ],
)
def test_what_does_not_go_with_a_memory(algorithm: str, settings: dict[str, Any], line: str) -> None:
    env = "fastrl/BitFlip-v0" if algorithm == "DQN" else "Pendulum-v1"

    def learn() -> None:
        getattr(fastrl, algorithm)(env, memory="gru", eval_episodes=0, **settings).learn(10)

    with pytest.raises(UserError, match=line):
        learn()


@pytest.mark.parametrize(
    ("kind", "actions"), [(fastrl.DQN, "discrete"), (fastrl.SAC, "discrete"), (fastrl.SAC, "box")]
)
def test_values_are_those_of_an_observation_and_its_state(kind: Any, actions: str) -> None:
    options = {"memory_size": 4, "hidden": (8,), "num_envs": 1, "eval_episodes": 0, "learning_starts": 8}
    model = kind(Ends, memory="gru", env__options={"actions": actions}, **options).learn(16)
    first = model.distribution(np.ones(3, np.float32))
    again = model.distribution(np.ones(3, np.float32), first.state)
    assert first.state.shape == (4,) and not np.array_equal(first.state, again.state)
    assert not torch.equal(first.values, again.values)
