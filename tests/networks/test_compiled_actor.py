"""fastrl.networks.compiled_actor: the compiled policy is torch's, and each row of it its own."""

from __future__ import annotations

import pickle
import threading
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl._native._rust import Mlp
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import MlpActor, with_weights
from fastrl.networks.distributions import gaussian_log_probs, sample_actions
from fastrl.utils.seeding import GOLDEN, mix, uniforms
from random_actor import RandomActor


def architecture(
    obs_dim=5, outputs=3, hidden=(8,), activation="relu", kind="discrete", obs_clip=None, layer_norm=False
):
    return {
        "kind": kind,
        "obs_dim": obs_dim,
        "outputs": outputs,
        "hidden": list(hidden),
        "activation": activation,
        "layer_norm": layer_norm,
        "obs_clip": obs_clip,
    }


def weights_of(options, rng, scale=0.5):
    n = MlpActor(options).weights_nbytes // 4
    return rng.normal(0, scale, n).astype(np.float32)


def observations(rng, rows, obs_dim):
    """Numbers among zeros, as bits and ReLUs are."""
    return (rng.normal(0, 1, (rows, obs_dim)) * (rng.random((rows, obs_dim)) < 0.6)).astype(np.float32)


def act(actor, obs, streams, steps, outputs=None, **options):
    """Actions and log-probabilities, of an actor whose actions are numbers if `outputs` says how many."""
    rows = len(obs)
    actions = np.full(rows, -1, np.int64) if outputs is None else np.full((rows, outputs), np.nan, np.float32)
    log_probs = np.full(rows, np.nan, np.float32)
    actor.act(obs, streams, steps, actions, log_probs, **options)
    return actions, log_probs


def slow_outputs(options, weights, obs):
    """The network in float64, layer by layer; what of the weights is left over."""
    rest = weights.astype(np.float64)

    def take(*shape):
        nonlocal rest
        taken, rest = np.split(rest, [int(np.prod(shape))])
        return taken.reshape(shape)

    x = obs.astype(np.float64)
    if options["obs_clip"] is not None:
        mean, scale = take(options["obs_dim"]), take(options["obs_dim"])
        x = np.clip((x - mean) * scale, -options["obs_clip"], options["obs_clip"])
    widths = [options["obs_dim"], *options["hidden"], options["outputs"]]
    for i in range(len(widths) - 1):
        x = x @ take(widths[i], widths[i + 1]) + take(widths[i + 1])
        if i < len(widths) - 2:
            if options["layer_norm"]:
                x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
                x = x * take(widths[i + 1]) + take(widths[i + 1])
            x = np.tanh(x) if options["activation"] == "tanh" else np.maximum(x, 0)
    return x, rest


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


networks = st.builds(
    architecture,
    obs_dim=st.integers(1, 40),
    outputs=st.integers(1, 150),
    hidden=st.lists(st.integers(1, 100), max_size=3),
    activation=st.sampled_from(["tanh", "relu"]),
    layer_norm=st.booleans(),
    obs_clip=st.sampled_from([None, 1.0, 10.0]),
)


@settings(deadline=None, max_examples=60)
@given(networks, st.integers(0, 2**32), st.integers(0, 6), st.booleans(), st.booleans())
def test_discrete_actions_are_those_of_a_slow_model(options, seed, rows, masked, greedy):
    rng = np.random.default_rng(seed)
    weights = weights_of(options, rng, 0.3)
    actor, mlp = MlpActor(options), Mlp(**options)
    actor.load(weights)
    mlp.load(weights)
    obs = observations(rng, rows, options["obs_dim"])
    streams = rng.integers(2**64, size=rows, dtype=np.uint64)
    steps = rng.integers(1000, size=rows)
    masks = rng.random((rows, options["outputs"])) < 0.5 if masked else None

    logits, rest = slow_outputs(options, weights, obs)
    assert rest.size == 0
    out = np.empty((rows, options["outputs"]), np.float32)
    mlp.outputs(obs, out)
    np.testing.assert_allclose(out, logits, rtol=1e-4, atol=1e-4)

    actions, log_probs = act(actor, obs, streams, steps, masks=masks, greedy=greedy)
    if masks is not None:
        logits = np.where(masks, logits, -1e9)
    expected = log_softmax(logits)
    cumulative = np.exp(expected).cumsum(-1)
    for row, action in enumerate(actions):
        assert log_probs[row] == pytest.approx(expected[row, action], rel=1e-3, abs=1e-3)
        if masks is not None and masks[row].any():
            assert masks[row, action]
        if greedy:
            assert logits[row, action] >= logits[row].max() - 1e-3
        else:
            uniform = uniforms(streams, steps)[row]
            below = cumulative[row, action - 1] if action else 0.0
            assert below - 1e-4 <= uniform <= cumulative[row, action] + 1e-4


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_actions_are_those_of_torch(activation, normalize_obs):
    generator = torch.Generator().manual_seed(3)
    network = ActorCritic(52, 54, (64, 64), activation, normalize_obs=normalize_obs, generator=generator)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for weight in network.actor.parameters():
            weight += 0.1 * torch.from_numpy(rng.normal(0, 1, weight.shape).astype(np.float32))
    obs = rng.normal(0.5, 2, (4000, 52)).astype(np.float32)
    if network.obs_norm is not None:
        network.obs_norm.update(torch.from_numpy(obs))
        obs[0, 0] = 1e6  # clipped
    actor = MlpActor(network.actor_architecture())
    weights = np.empty(actor.weights_nbytes // 4, np.float32)
    network.actor_weights(weights)
    actor.load(weights)

    streams, steps = rng.integers(2**64, size=4000, dtype=np.uint64), rng.integers(100, size=4000)
    actions, log_probs = act(actor, obs, streams, steps)
    draws = torch.from_numpy(uniforms(streams, steps))[:, None]
    with torch.inference_mode():
        logits = network.outputs(torch.from_numpy(obs))
        expected, expected_log_probs = sample_actions(logits, draws)
    same = actions == expected.numpy()
    assert same.mean() > 0.999  # the others stood at a border between two actions
    np.testing.assert_allclose(log_probs[same], expected_log_probs.numpy()[same], rtol=1e-4, atol=1e-4)
    greedy, _ = act(actor, obs, streams, steps, greedy=True)
    assert (greedy == logits.argmax(-1).numpy()).mean() > 0.999


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_continuous_actions_are_those_of_torch(normalize_obs):
    rng = np.random.default_rng(0)
    network = ActorCritic(
        5,
        3,
        (16,),
        normalize_obs=normalize_obs,
        continuous=True,
        generator=torch.Generator().manual_seed(3),
    )
    with torch.no_grad():
        for weight in (*network.actor.parameters(), network.log_std):
            weight += 0.5 * torch.from_numpy(rng.normal(0, 1, weight.shape).astype(np.float32))
    obs = rng.normal(0.5, 2, (500, 5)).astype(np.float32)
    if network.obs_norm is not None:
        network.obs_norm.update(torch.from_numpy(obs))
    actor = MlpActor(network.actor_architecture())
    weights = np.empty(actor.weights_nbytes // 4, np.float32)
    network.actor_weights(weights)
    actor.load(weights)
    streams, steps = rng.integers(2**64, size=500, dtype=np.uint64), rng.integers(100, size=500)
    with torch.inference_mode():
        means = network.outputs(torch.from_numpy(obs))
        greedy, _ = act(actor, obs, streams, steps, 3, greedy=True)
        np.testing.assert_allclose(greedy, means.numpy(), rtol=1e-4, atol=1e-5)
        draws, log_probs = act(actor, obs, streams, steps, 3)
        expected = gaussian_log_probs(means, network.log_std, torch.from_numpy(draws))
    np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-3, atol=1e-3)


@settings(deadline=None, max_examples=40)
@given(networks, st.sampled_from(["discrete", "gaussian"]), st.integers(0, 2**32), st.booleans())
def test_a_row_is_the_same_to_the_bit_in_any_batch(options, kind, seed, greedy):
    options = options | {"kind": kind}
    rng = np.random.default_rng(seed)
    actor, threaded = MlpActor(options), MlpActor(options, num_threads=3)
    weights = weights_of(options, rng)
    actor.load(weights)
    threaded.load(weights)
    rows = 150
    obs = observations(rng, rows, options["obs_dim"])
    streams = rng.integers(2**64, size=rows, dtype=np.uint64)
    steps = rng.integers(1000, size=rows)
    numbers = options["outputs"] if kind == "gaussian" else None
    whole = act(actor, obs, streams, steps, numbers, greedy=greedy)
    shared_out = act(threaded, obs, streams, steps, numbers, greedy=greedy)
    order = rng.permutation(rows)[: rng.integers(1, rows)]
    mixed = act(actor, obs[order], streams[order], steps[order], numbers, greedy=greedy)
    alone = act(actor, obs[7:8], streams[7:8], steps[7:8], numbers, greedy=greedy)
    for i in range(2):
        bits = whole[i].view(np.uint8).reshape(rows, -1)
        np.testing.assert_array_equal(shared_out[i].view(np.uint8).reshape(rows, -1), bits)
        np.testing.assert_array_equal(mixed[i].view(np.uint8).reshape(len(order), -1), bits[order])
        np.testing.assert_array_equal(alone[i].view(np.uint8).reshape(1, -1), bits[7:8])


@pytest.mark.parametrize("outputs", [1, 2, 3, 17])
def test_gaussian_actions(outputs):
    options = architecture(outputs=outputs, kind="gaussian", activation="tanh")
    rng = np.random.default_rng(outputs)
    weights = weights_of(options, rng)
    actor = MlpActor(options)
    actor.load(weights)
    rows = 20_000
    obs = np.repeat(observations(rng, 1, 5), rows, 0)
    streams = rng.integers(2**64, size=rows, dtype=np.uint64)
    steps = rng.integers(100, size=rows)
    means, log_std = slow_outputs(options, weights, obs[:1])
    assert len(log_std) == outputs

    actions, log_probs = act(actor, obs, streams, steps, outputs)
    z = (actions - means) / np.exp(log_std)
    expected = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_probs, expected.sum(-1), rtol=1e-3, atol=1e-3)
    assert np.abs(z.mean(0)).max() < 0.03  # four standard errors
    assert np.abs(np.cov(z.T).reshape(outputs, outputs) - np.eye(outputs)).max() < 0.06

    # Box and Muller's pair from the bits of the step, as the compiled side has them.
    with np.errstate(over="ignore"):
        bits = mix(streams + (steps.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        bits = mix(bits + GOLDEN)
    radius = np.sqrt(-2 * np.log(1 - (bits >> np.uint64(40)) * 2.0**-24))
    angle = 2 * np.pi * ((bits >> np.uint64(16) & np.uint64(2**24 - 1)) * 2.0**-24)
    np.testing.assert_allclose(z[:, 0], radius * np.cos(angle), atol=1e-3)

    greedy, log_probs = act(actor, obs, streams, steps, outputs, greedy=True)
    np.testing.assert_allclose(greedy, np.broadcast_to(means, greedy.shape), atol=1e-4)
    assert (log_probs == log_probs[0]).all()


def test_the_ends_of_the_distribution():
    """Numbers 0 and 1 - 2**-24 draw the first and the last action that is possible, never a masked one."""
    actor = MlpActor(architecture(obs_dim=1, outputs=20, hidden=()))
    actor.load(np.zeros(40, np.float32))
    streams = np.arange(2_000_000, dtype=np.uint64)
    draws = uniforms(streams, np.zeros(len(streams), np.int64))
    extremes = streams[[draws.argmin(), draws.argmax()]]
    masks = np.ones((2, 20), np.bool_)
    zeros = np.zeros((2, 1), np.float32), extremes, np.zeros(2, np.int64)
    assert act(actor, *zeros)[0].tolist() == [0, 19]
    masks[:, :4] = masks[:, 17:] = False
    actions, log_probs = act(actor, *zeros, masks=masks)
    assert actions.tolist() == [4, 16]
    np.testing.assert_allclose(log_probs, -np.log(13), rtol=1e-6)
    masks[:] = False
    np.testing.assert_allclose(act(actor, *zeros, masks=masks)[1], -np.log(20), rtol=1e-6)


def test_observations_that_are_no_numbers():
    options = architecture(outputs=20)
    actor = MlpActor(options)
    actor.load(weights_of(options, np.random.default_rng(0)))
    obs = np.zeros((3, 5), np.float32)
    obs[0, 2], obs[1, 2] = np.nan, np.inf
    for greedy in (False, True):
        rows = obs, np.zeros(3, np.uint64), np.zeros(3, np.int64)
        actions, log_probs = act(actor, *rows, greedy=greedy)
        assert ((actions >= 0) & (actions < 20)).all()
        assert np.isnan(log_probs).tolist() == [True, True, False]


def test_new_weights_count_from_the_next_call():
    options = architecture(obs_dim=1, outputs=2, hidden=())
    actor = MlpActor(options)
    assert actor.weights_nbytes == 16
    for favourite in (0, 1, 0):
        biases = np.full(2, -50, np.float32)
        biases[favourite] = 50
        buffer = np.concatenate([np.zeros(2, np.float32), biases])
        for same in (buffer, buffer.tobytes(), memoryview(bytearray(b"x" + buffer.tobytes()))[1:]):
            actor.load(same)
            buffer_rows = np.zeros((9, 1), np.float32), np.arange(9, dtype=np.uint64), np.arange(9)
            assert (act(actor, *buffer_rows)[0] == favourite).all()


def test_threads_act_while_weights_are_loaded():
    options = architecture(obs_dim=1, outputs=2, hidden=(64,))
    actor = MlpActor(options)
    zeros = np.zeros(actor.weights_nbytes // 4, np.float32)
    ones = np.ones_like(zeros)
    actor.load(zeros)
    rows = np.ones((300, 1), np.float32), np.arange(300, dtype=np.uint64), np.zeros(300, np.int64)
    wrong = []

    def run():
        for _ in range(200):
            _, log_probs = act(actor, *rows)
            wrong.extend(log_probs[np.abs(log_probs + np.log(2)) > 1e-6])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        actor.load(ones)
        actor.load(zeros)
    for thread in threads:
        thread.join()
    assert wrong == []


def arrays(**changes):
    given = {
        "obs": np.zeros((4, 5), np.float32),
        "streams": np.zeros(4, np.uint64),
        "steps": np.zeros(4, np.int64),
        "actions": np.zeros(4, np.int64),
        "log_probs": np.zeros(4, np.float32),
        "masks": np.ones((4, 3), np.bool_),
    }
    return given | changes


READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False
SHARED = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"obs": np.zeros((4, 5))}, TypeError, r"obs: expected a C-contiguous float32 .* got dtype float64"),
        ({"obs": [[0.0] * 5] * 4}, TypeError, "obs: expected .* got list"),
        ({"obs": np.zeros((4, 6), np.float32)}, ValueError, r"obs: .*\(4, 5\), got shape \(4, 6\)"),
        ({"obs": np.zeros(5, np.float32)}, ValueError, "obs: expected"),
        ({"obs": np.zeros((5, 4), np.float32).T}, ValueError, "strided"),
        ({"streams": np.zeros(4, np.int64)}, TypeError, "streams: expected a C-contiguous uint64"),
        ({"steps": np.zeros(3, np.int64)}, ValueError, "steps: expected"),
        ({"actions": np.zeros(4, np.int32)}, TypeError, "actions: expected a C-contiguous int64"),
        ({"log_probs": READ_ONLY}, ValueError, "log_probs: expected a writeable array"),
        ({"masks": np.ones((4, 2), np.bool_)}, ValueError, r"masks: .*\(4, 3\), got shape \(4, 2\)"),
        ({"streams": SHARED.view(np.uint64), "log_probs": SHARED[:4]}, ValueError, "share memory"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, error, match):
    actor = MlpActor(architecture())
    actor.load(np.zeros(actor.weights_nbytes // 4, np.float32))
    actor.act(**arrays())
    given = arrays(**changes)
    with pytest.raises(error, match=match):
        actor.act(**given)


def test_masks_of_numbers_are_refused():
    actor = MlpActor(architecture(kind="gaussian"))
    actor.load(bytes(actor.weights_nbytes))
    with pytest.raises(ValueError, match="masks: expected None"):
        actor.act(**arrays(actions=np.zeros((4, 3), np.float32)))


def test_weights_that_do_not_fit_are_refused():
    actor = MlpActor(architecture())
    with pytest.raises(RuntimeError, match="no weights yet"):
        actor.act(**arrays())
    n = actor.weights_nbytes // 4
    good = np.zeros(n, np.float32)
    actor.load(good)
    for bad in (np.nan, np.inf, -np.inf):
        weights = np.ones(n, np.float32)
        weights[7] = bad
        with pytest.raises(ValueError, match="NaN or infinity at index 7"):
            actor.load(weights)
    for size in (0, n - 1, n + 1):
        with pytest.raises(ValueError, match=f"buffer of {4 * n} bytes, got one of {4 * size} bytes"):
            actor.load(np.zeros(size, np.float32))
    with pytest.raises(TypeError, match="buffer: expected"):
        actor.load([0.0] * n)
    given = arrays(masks=None)
    actor.act(**given)
    np.testing.assert_allclose(given["log_probs"], -np.log(3), rtol=1e-6)  # still the first weights


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"kind": "beta"},
            ValueError,
            "kind: expected 'discrete', 'multi_discrete' or 'gaussian', got 'beta'",
        ),
        ({"activation": "gelu"}, ValueError, "activation: expected 'tanh' or 'relu', got 'gelu'"),
        ({"obs_dim": 0}, ValueError, "obs_dim: expected 1 to 65536, got 0"),
        ({"hidden": [64, 0]}, ValueError, "hidden: expected 1 to 65536, got 0"),
        ({"hidden": [1] * 65}, ValueError, "at most 64 layers"),
        ({"hidden": [65536, 65536]}, ValueError, "hidden: expected a network of at most"),
        ({"outputs": -1}, OverflowError, "negative"),
        ({"obs_clip": 0.0}, ValueError, "obs_clip: expected None or a positive number"),
        ({"obs_clip": float("nan")}, ValueError, "obs_clip"),
        ({"layers": 3}, TypeError, "layers"),
    ],
)
def test_architectures_that_are_none_are_refused(changes, error, match):
    with pytest.raises(error, match=match):
        MlpActor(architecture() | changes)
    with pytest.raises(ValueError, match="num_threads"):
        MlpActor(architecture(), num_threads=0)


def test_a_network_writes_its_weights_where_they_fit():
    network = ActorCritic(4, 2, (8,))
    for wrong in (np.zeros(3, np.float32), np.zeros(4 * 8 + 8 + 8 * 2 + 2)):
        with pytest.raises(ValueError, match=r"out: expected float32 \[58\]"):
            network.actor_weights(wrong)


@pytest.mark.parametrize("space", [Discrete(7), Box(np.float32([-1, 0]), np.float32([1, 5]))])
def test_random_actions_are_uniform_and_a_function_of_stream_and_step(space):
    actor = RandomActor(space)
    assert actor.weights_nbytes == 0
    actor.load(b"")
    with pytest.raises(ValueError, match="expected an empty buffer"):
        actor.load(b"1234")
    rows = 20_000
    rng = np.random.default_rng(0)
    streams, steps = rng.integers(2**64, size=rows, dtype=np.uint64), rng.integers(100, size=rows)
    obs = np.zeros((rows, 3), np.float32)
    outputs = None if isinstance(space, Discrete) else 2
    actions, log_probs = act(actor, obs, streams, steps, outputs)
    assert all(space.contains(action) for action in Actions(space).to_env(actions))
    if outputs is None:
        assert np.bincount(actions).min() > rows / 7 * 0.9
        np.testing.assert_allclose(log_probs, -np.log(7), rtol=1e-6)
    else:
        assert actions.min() >= -1 and actions.max() < 1
        np.testing.assert_allclose(actions.mean(0), [0, 0], atol=0.02)
        assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03
        np.testing.assert_allclose(log_probs, -np.log(4), rtol=1e-6)
    order = rng.permutation(rows)[:100]
    again, _ = act(actor, obs[order], streams[order], steps[order], outputs)
    np.testing.assert_array_equal(again, actions[order])


@pytest.mark.parametrize("masked", [False, True])
def test_random_actions_of_several_numbers_are_uniform_and_independent(masked):
    actor, rows = RandomActor(MultiDiscrete([3, 2, 4])), 20_000
    rng = np.random.default_rng(0)
    streams, steps = rng.integers(2**64, size=rows, dtype=np.uint64), rng.integers(100, size=rows)
    actions, log_probs = np.full((rows, 3), -1), np.zeros(rows, np.float32)
    masks = np.ones((rows, 9), np.bool_) if masked else None
    if masks is not None:
        masks[:, [0, 5, 6]] = False
    actor.act(np.zeros((rows, 1), np.uint8), streams, steps, actions, log_probs, masks)
    chosen = [[1, 2], [0, 1], [2, 3]] if masked else [range(3), range(2), range(4)]
    for column, values in zip(actions.T, chosen, strict=True):
        found, counts = np.unique(column, return_counts=True)
        assert found.tolist() == list(values) and counts.min() > rows / len(values) * 0.9
    assert np.abs(np.corrcoef(actions.T) - np.eye(3)).max() < 0.03
    np.testing.assert_allclose(log_probs, -np.log(8 if masked else 24), rtol=1e-6)


@pytest.mark.parametrize("space", [Discrete(3, start=1), Box(0, 1, (2,), np.float64), Box(0, 1, (2, 2))])
def test_random_actions_of_other_spaces(space):
    with pytest.raises(ValueError, match="actions should be Discrete from 0 on"):
        RandomActor(space)


@pytest.mark.parametrize("make", [partial(MlpActor, architecture()), partial(RandomActor, Discrete(3))])
def test_what_makes_actors_pickles(make):
    actor = pickle.loads(pickle.dumps(make))()
    assert actor.weights_nbytes == make().weights_nbytes
    actor.load(bytes(actor.weights_nbytes))
    given = arrays()
    del given["masks"]
    actor.act(**given)


def test_an_actor_pickles_with_fixed_weights_alone() -> None:
    options = architecture(obs_dim=3, outputs=4, hidden=(5,))
    weights = np.random.default_rng(0).normal(size=MlpActor(options).weights_nbytes // 4).astype(np.float32)
    made = with_weights(partial(MlpActor, options), weights)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(made))))
    obs = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    found = []
    for actor in (made, again):
        actions, log_probs = np.zeros(6, np.int64), np.zeros(6, np.float32)
        actor.act(obs, np.arange(6, dtype=np.uint64), np.zeros(6, np.int64), actions, log_probs)
        found.append((actions.tolist(), log_probs.tolist()))
    assert found[0] == found[1]
    with pytest.raises(TypeError, match="without fixed weights does not pickle"):
        pickle.dumps(MlpActor(options))
