"""PQN: lambda returns against a loop over the steps, loss and gradient, masks, memory, exact resumption, learning."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from fake_env import Bandit, Corridor
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_returns import slow_lambda_returns
from small_runs import assert_same_state
from test_ppo import problem_of, written_and_read

from fastrl.algorithms.pqn import PQN, Minibatch
from fastrl.algorithms.pqn_settings import PQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.rollout.fragment import Fragment, allocate
from fastrl.utils.seeding import NO_ENV
from fastrl.utils.timer import Stopwatch

OBS_DIM, NUM_ACTIONS = 3, 4
PLAIN = {"hidden": (8,), "gamma": 0.9, "num_epochs": 1, "minibatch_size": 10_000}


def pqn_of(num_envs: int = 3, *, seed: int = 0, num_actions: int = NUM_ACTIONS, **config: Any) -> PQN:
    spaces = Box(-np.inf, np.inf, (OBS_DIM,), np.float32), Discrete(num_actions)
    return PQN(PQNConfig(**(PLAIN | config)), Problem(*spaces, num_envs, total_timesteps=10_000, seed=seed))


def random_fragment(
    num_steps: int,
    rows: int,
    seed: int = 0,
    *,
    masks: bool = False,
    state_size: int = 0,
    whole: bool = False,
    first: int = 0,
) -> Fragment:
    """Steps of environments whose episodes end at random; at its last step alone if it is a whole episode."""
    random = np.random.default_rng(seed)
    masked = {"num_masked": NUM_ACTIONS, "final_masks": True} if masks else {}
    arrays = allocate(num_steps, rows, OBS_DIM, state_size=state_size, **masked)
    for name in ("obs", "rewards", "final_obs", "states"):
        if name in arrays:
            arrays[name][:] = random.normal(size=arrays[name].shape)
    if seed % 2:
        # Some are equal, and share a row of the network's pass.
        arrays["obs"][:] = random.integers(2, size=arrays["obs"].shape)
    arrays["actions"][:] = random.integers(NUM_ACTIONS, size=(num_steps, rows))
    for name in ("terminations", "truncations"):
        arrays[name][:] = random.random((num_steps, rows)) < 0.2
    if whole:
        arrays["terminations"][:-1] = arrays["truncations"][:-1] = False
        arrays["truncations"][-1] |= ~arrays["terminations"][-1]
    for name in masked and ("masks", "final_masks"):
        arrays[name][:] = random.random(arrays[name].shape) < 0.5
        arrays[name][..., 0] |= ~arrays[name].any(-1)
    arrays["log_probs"][:] = -random.exponential(size=(num_steps, rows))
    indices = np.full(rows, NO_ENV) if whole else np.arange(first, first + rows)
    counts = {name: np.zeros(0) for name in ("returns", "lengths")}
    return Fragment(
        **arrays, version=1, env_indices=indices, episodes=np.zeros((int(whole), 2), np.int64), **counts
    )


def slow_returns(network: Any, fragment: Fragment, td_lambda: float) -> Any:
    """Lambda returns [T, R] of a fragment, from values of the best actions that are allowed; with masks without the
    last step, whose next mask is not there."""
    count = fragment.num_steps
    if fragment.masks is not None and fragment.env_indices[0] != NO_ENV:
        count -= 1

    def best(obs: Any, masks: Any) -> Any:
        found = np.zeros(obs.shape[:2])
        values = (
            network(torch.from_numpy(obs.reshape(-1, OBS_DIM))).numpy().reshape(*found.shape, NUM_ACTIONS)
        )
        for t, row in np.ndindex(*found.shape):
            allowed = range(NUM_ACTIONS) if masks is None else np.flatnonzero(masks[t, row])
            found[t, row] = max(values[t, row, action] for action in allowed)
        return found

    masks = fragment.masks
    if masks is not None and len(masks) == count:
        masks = np.concatenate([masks, np.ones_like(masks[:1])])
    with torch.no_grad():
        values = best(fragment.obs[: count + 1], masks)
        final_masks = None if fragment.final_masks is None else fragment.final_masks[:count]
        if final_masks is not None:
            # Where nothing was cut off there is no mask.
            final_masks = final_masks | ~final_masks.any(-1, keepdims=True)
        arrays = {
            "rewards": fragment.rewards[:count],
            "values": values[:-1],
            "last_values": values[-1],
            "terminations": fragment.terminations[:count],
            "truncations": fragment.truncations[:count],
            "final_values": best(fragment.final_obs[:count], final_masks),
        }
    return slow_lambda_returns(arrays, 0.9, td_lambda)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_steps=st.integers(2, 7),
    td_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    masks=st.booleans(),
)
def test_returns_are_those_of_a_loop_over_the_steps(
    seed: int, num_steps: int, td_lambda: float, masks: bool
) -> None:
    pqn = pqn_of(5, td_lambda=td_lambda, num_steps=num_steps, action_masks=masks, learning_rate=0.0)
    network = copy.deepcopy(pqn.network)
    fragments = [
        random_fragment(num_steps, 2, seed, masks=masks),
        random_fragment(num_steps, 3, seed + 1, masks=masks, first=2),
    ]
    pqn.update(fragments, Stopwatch())
    expected = np.concatenate([slow_returns(network, each, td_lambda) for each in fragments], 1)
    np.testing.assert_allclose(pqn.rollout.returns, expected, rtol=1e-4, atol=1e-5)
    assert pqn.steps == 5 * num_steps


@pytest.mark.parametrize("masks", [False, True])
def test_returns_with_log_probabilities_of_the_policy(masks: bool) -> None:
    pqn = pqn_of(4, td_lambda=0.7, munchausen=0.8, action_masks=masks, learning_rate=0.0, num_steps=9)
    network, fragment = copy.deepcopy(pqn.network), random_fragment(9, 4, masks=masks)
    pqn.update([fragment], Stopwatch())

    def soft_value(obs: Any, allowed: Any) -> float:
        with torch.no_grad():
            values = network(torch.from_numpy(obs)[None])[0].numpy()
        return float(np.log(np.exp(values[slice(None) if allowed is None else allowed]).sum()))

    count = len(pqn.rollout.returns)
    for row in range(4):
        following = None
        for t in reversed(range(count)):
            if fragment.truncations[t, row]:
                allowed = None if fragment.final_masks is None else fragment.final_masks[t, row]
                after = soft_value(fragment.final_obs[t, row], allowed)
            else:
                allowed = None if fragment.masks is None else fragment.masks[t + 1, row]
                after = soft_value(fragment.obs[t + 1, row], allowed)
                if following is not None:
                    # The return of an action and its entropy bonus.
                    after = 0.7 * (following - fragment.log_probs[t + 1, row]) + 0.3 * after
            if fragment.terminations[t, row]:
                after = 0.0
            following = fragment.rewards[t, row] + 0.8 * fragment.log_probs[t, row] + 0.9 * after
            assert pqn.rollout.returns[t, row] == pytest.approx(following, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("masks", [False, True])
def test_returns_of_fragments_of_other_lengths(masks: bool) -> None:
    """Whole episodes, and fragments that end within an episode, one after the other."""
    for whole in (False, True):
        pqn = pqn_of(action_masks=masks, td_lambda=0.7, learning_rate=0.0)
        network = copy.deepcopy(pqn.network)
        rows = 1 if whole else 2
        fragments = [
            random_fragment(length, rows, length, masks=masks, whole=whole, first=2 * i)
            for i, length in enumerate((4, 6, 3))
        ]
        pqn.update(fragments, Stopwatch())
        expected = [slow_returns(network, each, 0.7).T.ravel() for each in fragments]
        np.testing.assert_allclose(pqn.rollout.returns[:, 0], np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("huber", [None, 0.5])
def test_the_loss_is_that_of_the_paper(huber: float | None) -> None:
    random = np.random.default_rng(1)
    estimates, returns = random.normal(size=(6, NUM_ACTIONS)), random.normal(size=6)
    actions = random.integers(NUM_ACTIONS, size=6)
    errors = np.array([returns[b] - estimates[b, actions[b]] for b in range(6)])
    losses = errors**2 / 2
    if huber is not None:
        losses = np.where(abs(errors) > huber, huber * (abs(errors) - huber / 2), losses)
    batch = Minibatch(*(torch.from_numpy(each) for each in (estimates, actions, returns)))
    loss = pqn_of(huber=huber).loss(batch)
    assert loss.total.item() == pytest.approx(losses.mean())
    np.testing.assert_allclose(loss.td_errors, abs(errors))


@pytest.mark.parametrize("option", [{}, {"layer_norm": False}, {"normalize_obs": True}, {"memory": "lstm"}])
def test_an_update_is_a_step_along_the_gradient(option: dict[str, Any]) -> None:
    pqn = pqn_of(2, **option, max_grad_norm=None, learning_rate=1e-3)
    size = pqn.network.state_size
    fragment = random_fragment(5, 2, state_size=size)
    network = copy.deepcopy(pqn.network)
    pqn.update([fragment], Stopwatch())
    # One row and one step at a time.
    losses = []
    for row in range(2):
        state = torch.from_numpy(fragment.states[row : row + 1]) if fragment.states is not None else None
        for t in range(5):
            values, _, state = network.step(torch.from_numpy(fragment.obs[t, row])[None], state)
            error = pqn.rollout.returns[t, row] - values[0, fragment.actions[t, row]]
            losses.append(error.square() / 2)
            if state is not None and (fragment.terminations[t, row] or fragment.truncations[t, row]):
                state = torch.zeros_like(state)
    loss = torch.stack(losses).mean()
    loss.backward()
    gradient = torch.cat([each.grad.flatten() for each in network.parameters()])
    found = pqn.metrics()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert found["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-3)
    torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-5).step()
    for one, other in zip(pqn.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=3e-5)


def test_values_of_a_memory_are_those_of_a_loop_over_the_steps() -> None:
    pqn = pqn_of(2, memory="lstm", memory_size=5, td_lambda=0.0, learning_rate=0.0)
    network = copy.deepcopy(pqn.network)
    fragment = random_fragment(6, 2, 3, state_size=network.state_size)
    pqn.update([fragment], Stopwatch())
    assert fragment.states is not None
    for row in range(2):
        state: Any = torch.from_numpy(fragment.states[row : row + 1])
        for t in range(6):
            with torch.no_grad():
                _, _, state = network.step(torch.from_numpy(fragment.obs[t, row])[None], state)
                cut, terminated = fragment.truncations[t, row], fragment.terminations[t, row]
                follows = fragment.final_obs[t, row] if cut else fragment.obs[t + 1, row]
                values, _, _ = network.step(torch.from_numpy(follows)[None], state)
            expected = fragment.rewards[t, row] + (0.0 if terminated else 0.9 * values.max().item())
            assert pqn.rollout.returns[t, row] == pytest.approx(expected, rel=1e-4, abs=1e-5)
            if cut or terminated:
                state = torch.zeros_like(state)


class Play:
    """Steps of a fake environment by an algorithm's actors, in this process."""

    def __init__(self, env: Any, masks: bool = False) -> None:
        self.env, self.masks = env, masks
        self.obs = np.zeros((env.num_envs, *env.single_observation_space.shape), np.float32)
        env.reset_into(self.obs, seed=1)
        self.steps = np.zeros(env.num_envs, np.int64)
        self.streams = np.arange(env.num_envs).astype(np.uint64) * np.uint64(7919)
        self.totals = np.zeros(env.num_envs)

    def fragment(self, pqn: PQN, num_steps: int) -> Fragment:
        actor, weights = pqn.actor_spec()(), bytearray(pqn.weights_nbytes)
        pqn.write_weights(weights)
        actor.load(weights)
        count, width = self.obs.shape
        masked = {"num_masked": self.env.single_action_space.n, "final_masks": True} if self.masks else {}
        arrays = allocate(num_steps, count, width, **masked)
        returns = []
        arrays["obs"][0] = self.obs
        for t in range(num_steps):
            masks = self.env.action_masks(arrays["masks"][t]) if self.masks else None
            actor.act(
                arrays["obs"][t],
                self.streams,
                self.steps,
                arrays["actions"][t],
                arrays["log_probs"][t],
                masks,
            )
            step = [arrays[name][t] for name in ("rewards", "terminations", "truncations", "final_obs")]
            self.env.step_into(arrays["actions"][t], arrays["obs"][t + 1], *step)
            if self.masks:
                # The same everywhere: the environments of these tests say what is allowed by the observation.
                arrays["final_masks"][t] = True
            self.steps += 1
            self.totals += step[0]
            ended = step[1] | step[2]
            returns += self.totals[ended].tolist()
            self.totals[ended] = 0
        self.obs[:] = arrays["obs"][-1]
        return Fragment(
            **arrays,
            version=1,
            env_indices=np.arange(count),
            returns=np.array(returns),
            lengths=np.zeros(len(returns), np.int64),
            episodes=np.zeros((0, 2), np.int64),
        )


LEARN = {
    "num_steps": 10,
    "learning_rate": 2e-3,
    "gamma": 0.9,
    "epsilon_steps": 4_000,
    "final_epsilon": 0.0,
    "hidden": (32,),
    "minibatch_size": 80,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_env", "option", "best"),
    [
        (Bandit, {"num_epochs": 8}, 10),
        (Bandit, {"num_epochs": 8, "munchausen": 0.9, "reward_scale": 3.0}, 10),
        (Corridor, {"normalize_obs": True, "normalize_returns": True}, -4),
    ],
)
def test_learns(make_env: Any, option: dict[str, Any], best: float) -> None:
    env = make_env(stagger=True)
    pqn = PQN(PQNConfig(**LEARN | option), problem_of(env, 8_000))
    play, found = Play(env), list[np.ndarray[Any, Any]]()
    while pqn.steps < 8_000:
        fragment = play.fragment(pqn, 10)
        pqn.update([fragment], Stopwatch())
        found.append(fragment.returns)
    # At random about 1.7 and -17.
    assert np.concatenate(found[-10:]).mean() > best - 1


@pytest.mark.parametrize(
    "option",
    [{"epsilon": 0.0, "final_epsilon": 0.0}, {"epsilon": 1.0, "final_epsilon": 1.0}, {"munchausen": 0.9}],
)
def test_masked_actions_are_never_chosen(option: dict[str, Any]) -> None:
    env = Bandit(masked=True, stagger=True)
    config = PQNConfig(**LEARN | option, action_masks=True)
    pqn, play = PQN(config, problem_of(env, 2_000)), Play(env, masks=True)
    while pqn.steps < 2_000:
        fragment = play.fragment(pqn, 10)
        assert fragment.masks is not None
        assert np.take_along_axis(fragment.masks, fragment.actions[..., None], 2).all()
        pqn.update([fragment], Stopwatch())
    # Forbidden actions, and values of the best of all actions, would give up to 10 a step.
    assert pqn.rollout.returns.max() < 1 / (1 - 0.99)


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"normalize_obs": True},
        {"normalize_returns": True},
        {"memory": "gru"},
        {"action_masks": True},
        {"munchausen": 0.9},
    ],
)
def test_resumes_to_the_bit(option: dict[str, Any]) -> None:
    first, second = (pqn_of(seed=seed, num_epochs=2, minibatch_size=6, **option) for seed in (0, 1))
    size = first.network.state_size
    fragments = [
        random_fragment(8, 3, seed, state_size=size, masks="action_masks" in option) for seed in range(4)
    ]
    for fragment in fragments[:2]:
        first.update([fragment], Stopwatch())
    second.load_state_dict(written_and_read(first.state_dict()))
    for learner in (first, second):
        for fragment in fragments[2:]:
            learner.update([fragment], Stopwatch())
    assert_same_state(first.state_dict(), second.state_dict())


def test_another_network_is_not_resumed() -> None:
    state = pqn_of().state_dict()
    with pytest.raises(ValueError, match="the saved network is"):
        pqn_of(layer_norm=False).load_state_dict(state)
    with pytest.raises(ValueError, match="normalize_returns of the saved run and of this one differ"):
        pqn_of(normalize_returns=True).load_state_dict(state)


def test_weights_of_a_network_with_fewer_inputs_are_taken() -> None:
    wide = PQN(PQNConfig(**PLAIN), Problem(Box(-1, 1, (OBS_DIM + 2,)), Discrete(NUM_ACTIONS), 3, 100))
    narrow = pqn_of()
    assert wide.load_policy(narrow.state_dict()) == [
        "its 3 inputs are the first, 2 new ones start with weights of zero"
    ]
    obs = torch.randn(4, OBS_DIM + 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(wide.network(obs), narrow.network(obs[:, :OBS_DIM]))


def test_the_compiled_actor_acts_as_the_network() -> None:
    for option in (
        {"normalize_obs": True},
        {"memory": "lstm"},
        {"activation": "tanh"},
        {"layer_norm": False},
    ):
        pqn = pqn_of(epsilon=0.0, final_epsilon=0.0, **option)
        pqn.network.update_statistics(
            torch.randn(50, OBS_DIM, generator=torch.Generator().manual_seed(0)) + 2
        )
        actor, weights = pqn.actor_spec()(), bytearray(pqn.weights_nbytes)
        assert actor.is_compiled
        pqn.write_weights(weights)
        actor.load(weights)
        fragment = random_fragment(3, 20, state_size=pqn.network.state_size)
        states, before = fragment.states, None
        if states is not None:
            states = states.copy()
            before = torch.from_numpy(states.copy())
        actions, log_probs = np.zeros(20, np.int64), np.ones(20, np.float32)
        for t in range(3):
            actor.act(
                fragment.obs[t], np.zeros(20, np.uint64), np.full(20, t), actions, log_probs, states=states
            )
            with torch.no_grad():
                values, _, before = pqn.network.step(torch.from_numpy(fragment.obs[t]), before)
            np.testing.assert_array_equal(actions, values.argmax(1))
            assert not log_probs.any()
            if before is not None:
                np.testing.assert_allclose(states, before, atol=1e-5)


@pytest.mark.parametrize("option", [{}, {"memory": "gru"}])
def test_actions_are_drawn_from_the_softmax_of_values(option: dict[str, Any]) -> None:
    pqn = pqn_of(munchausen=0.9, epsilon=1.0, final_epsilon=1.0, **option)
    assert pqn.metrics()["epsilon"] == pqn.policy_state()["epsilon"] == 0
    actor, weights = pqn.actor_spec()(), bytearray(pqn.weights_nbytes)
    pqn.write_weights(weights)
    actor.load(weights)
    count, obs = 20_000, np.ones((20_000, OBS_DIM), np.float32)
    states = np.zeros((count, pqn.network.state_size), np.float32)
    actions, log_probs = np.zeros(count, np.int64), np.zeros(count, np.float32)
    streams = np.arange(count).astype(np.uint64) * np.uint64(7919)
    actor.act(obs, streams, np.zeros(count, np.int64), actions, log_probs, states=states if option else None)
    with torch.no_grad():
        values, _, _ = pqn.network.step(torch.ones(1, OBS_DIM), torch.from_numpy(states[:1] * 0))
    expected = values[0].log_softmax(0).numpy()
    np.testing.assert_allclose(log_probs, expected[actions], atol=1e-4)
    np.testing.assert_allclose(np.bincount(actions) / count, np.exp(expected), atol=0.02)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"action_masks": True, "num_steps": 1}, "action_masks need num_steps of at least 2"),
        ({"network": "own_networks:Net", "memory": "gru"}, "are for networks of fastrl"),
        ({"network_options": ("width=3",)}, "network_options are for a network of your own"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PQNConfig(**config)


def test_actions_that_are_no_choice_are_refused() -> None:
    for actions in (Box(-1, 1, (2,)), Discrete(3, start=1)):
        with pytest.raises(ValueError, match="PQN needs a Discrete action space that starts at 0"):
            PQN(PQNConfig(), Problem(Box(-1, 1, (3,)), actions, 2, 100))
