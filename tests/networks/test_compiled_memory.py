"""The compiled actor's memory and its actions of several numbers are those of torch, and each row's its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrl._native._rust import Mlp
from fastrl.networks.compiled_actor import MlpActor
from fastrl.utils.seeding import uniforms_of_parts

KINDS = ["discrete", "multi_discrete", "gaussian"]


def architecture(
    obs_dim=5,
    outputs=7,
    hidden=(8,),
    memory="gru",
    memory_size=6,
    kind="discrete",
    nvec=(2, 1, 4),
    obs_clip=None,
):
    return {
        "kind": kind,
        "obs_dim": obs_dim,
        "outputs": sum(nvec) if kind == "multi_discrete" else outputs,
        "hidden": list(hidden),
        "activation": "tanh",
        "obs_clip": obs_clip,
        "nvec": list(nvec) if kind == "multi_discrete" else None,
        "memory": memory,
        "memory_size": 0 if memory == "none" else memory_size,
    }


def loaded(options, rng, num_threads=1):
    weights = rng.normal(0, 0.5, MlpActor(options).weights_nbytes // 4).astype(np.float32)
    actor = MlpActor(options, num_threads)
    actor.load(weights)
    return actor, weights


def slow_step(options, weights, obs, states):
    """Outputs and new states by torch's cells, in float64."""
    rest = torch.from_numpy(weights.astype(np.float64))

    def take(*shape):
        nonlocal rest
        taken, rest = rest[: int(np.prod(shape))].reshape(shape), rest[int(np.prod(shape)) :]
        return taken

    x, states = torch.from_numpy(obs).double(), torch.from_numpy(states).double()
    if options["obs_clip"] is not None:
        mean, scale = take(options["obs_dim"]), take(options["obs_dim"])
        x = ((x - mean) * scale).clamp(-options["obs_clip"], options["obs_clip"])
    for width in options["hidden"]:
        x = torch.tanh(x @ take(x.shape[1], width) + take(width))
    if options["memory"] != "none":
        size = options["memory_size"]
        cell = (nn.GRUCell if options["memory"] == "gru" else nn.LSTMCell)(
            x.shape[1], size, dtype=torch.float64
        )
        gates = cell.weight_ih.shape[0]
        with torch.no_grad():
            cell.weight_ih.copy_(take(x.shape[1], gates).T)
            cell.bias_ih.copy_(take(gates))
            cell.weight_hh.copy_(take(size, gates).T)
            cell.bias_hh.copy_(take(gates))
            if options["memory"] == "gru":
                x = states = cell(x, states)
            else:
                x, memory = cell(x, states.split(size, 1))
                states = torch.cat([x, memory], 1)
    x = x @ take(x.shape[1], options["outputs"]) + take(options["outputs"])
    return x.numpy(), states.numpy(), rest.numpy()


def act(actor, options, obs, streams, steps, states=None, **more):
    rows, kind = len(obs), options["kind"]
    shape = {"discrete": (rows,), "multi_discrete": (rows, len(options["nvec"] or ()))}.get(
        kind, (rows, options["outputs"])
    )
    actions = np.zeros(shape, np.float32 if kind == "gaussian" else np.int64)
    log_probs = np.zeros(rows, np.float32)
    actor.act(obs, streams, steps, actions, log_probs, states=states, **more)
    return actions, log_probs


@settings(deadline=None, max_examples=30)
@given(
    st.builds(
        architecture,
        obs_dim=st.integers(1, 20),
        outputs=st.integers(1, 20),
        hidden=st.lists(st.integers(1, 40), max_size=2),
        memory=st.sampled_from(["gru", "lstm"]),
        memory_size=st.integers(1, 70),
        obs_clip=st.sampled_from([None, 1.0]),
    ),
    st.integers(0, 2**32),
    st.integers(0, 5),
)
def test_a_memory_is_that_of_torch(options, seed, rows):
    rng = np.random.default_rng(seed)
    actor, weights = loaded(options, rng)
    mlp = Mlp(**options)
    mlp.load(weights)
    size = options["memory_size"] * (1 if options["memory"] == "gru" else 2)
    assert actor.state_size == mlp.state_size == size
    states, acting = np.zeros((2, rows, size), np.float32)
    expected = np.zeros((rows, size))
    for step in range(6):
        obs = rng.normal(0, 1, (rows, options["obs_dim"])).astype(np.float32)
        outputs, expected, rest = slow_step(options, weights, obs, expected)
        assert rest.size == 0
        out = np.empty((rows, options["outputs"]), np.float32)
        mlp.outputs(obs, out, states)
        np.testing.assert_allclose(out, outputs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(states, expected, rtol=1e-4, atol=1e-5)
        streams, steps = rng.integers(2**64, size=rows, dtype=np.uint64), np.full(rows, step)
        actions, log_probs = act(actor, options, obs, streams, steps, acting, greedy=True)
        assert acting.tobytes() == states.tobytes()
        shifted = outputs - outputs.max(-1, keepdims=True)
        log_softmax = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        np.testing.assert_allclose(log_probs, log_softmax[np.arange(rows), actions], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_a_row_is_the_same_to_the_bit_in_any_batch(kind, memory):
    options = architecture(kind=kind, memory=memory, memory_size=20)
    rng = np.random.default_rng(3)
    actor, weights = loaded(options, rng)
    threaded = actor.with_threads(3)
    threaded.load(weights)
    rows = 150
    obs = rng.normal(0, 1, (rows, 5)).astype(np.float32)
    streams, steps = rng.integers(2**64, size=rows, dtype=np.uint64), rng.integers(1000, size=rows)
    before = rng.normal(0, 0.5, (rows, actor.state_size)).astype(np.float32)

    def run(actor, chosen):
        states = before[chosen].copy() if actor.state_size else None
        results = act(actor, options, obs[chosen], streams[chosen], steps[chosen], states)
        return [
            each.view(np.uint8).reshape(len(chosen), -1)
            for each in (*results, *([] if states is None else [states]))
        ]

    whole = run(actor, np.arange(rows))
    for again, chosen in (
        (threaded, np.arange(rows)),
        (actor, rng.permutation(rows)[:70]),
        (actor, np.array([7])),
    ):
        for expected, found in zip(whole, run(again, chosen), strict=True):
            np.testing.assert_array_equal(found, expected[chosen])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 2**32), st.booleans(), st.booleans()
)
def test_each_number_of_an_action_is_drawn_from_its_own_choices(nvec, seed, masked, greedy):
    options = architecture(kind="multi_discrete", nvec=nvec, memory="none")
    rng = np.random.default_rng(seed)
    actor, weights = loaded(options, rng)
    rows = 5
    obs = rng.normal(0, 1, (rows, 5)).astype(np.float32)
    streams, steps = rng.integers(2**64, size=rows, dtype=np.uint64), rng.integers(1000, size=rows)
    masks = None
    logits, _, _ = slow_step(options, weights, obs, np.zeros((rows, 0), np.float32))
    firsts = np.cumsum([0, *nvec[:-1]])
    if masked:
        masks = rng.random((rows, sum(nvec))) < 0.5
        masks[:, firsts] = True
        logits = np.where(masks, logits, -1e9)
    actions, log_probs = act(actor, options, obs, streams, steps, masks=masks, greedy=greedy)
    draws = uniforms_of_parts(streams, steps, len(nvec))
    expected = np.zeros(rows)
    for part, (first, choices) in enumerate(zip(firsts, nvec, strict=True)):
        own = logits[:, first : first + choices]
        shifted = own - own.max(-1, keepdims=True)
        log_softmax = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        cumulative = np.exp(log_softmax).cumsum(-1)
        for row, action in enumerate(actions[:, part]):
            expected[row] += log_softmax[row, action]
            assert masks is None or masks[row, first + action]
            if greedy:
                assert own[row, action] >= own[row].max() - 1e-3
            else:
                below = cumulative[row, action - 1] if action else 0.0
                assert below - 1e-4 <= draws[row, part] <= cumulative[row, action] + 1e-4
    np.testing.assert_allclose(log_probs, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"memory": "rnn"}, "memory: expected 'none', 'gru' or 'lstm', got 'rnn'"),
        ({"memory_size": 0}, "memory_size: expected 1 to 65536, got 0"),
        ({"memory": "none"}, "memory_size: expected 0 without a memory, got 6"),
        ({"nvec": [3, 4]}, "nvec: expected None with kind 'discrete'"),
        ({"kind": "multi_discrete"}, "nvec: expected a list with kind 'multi_discrete'"),
        (
            {"kind": "multi_discrete", "nvec": [3, 5]},
            r"nvec: expected positive numbers that add up to 7, got \[3, 5\]",
        ),
        ({"kind": "multi_discrete", "nvec": [7, 0]}, "nvec: expected positive"),
        ({"kind": "multi_discrete", "nvec": []}, "nvec: expected positive"),
        ({"kind": "multi_discrete", "nvec": [2**63, 2**63, 7]}, "nvec: expected positive"),
    ],
)
def test_architectures_that_are_none_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        MlpActor(architecture() | changes)


def test_states_of_other_sizes_are_refused():
    actor, _ = loaded(architecture(), np.random.default_rng(0))
    obs, streams, steps = np.zeros((2, 5), np.float32), np.zeros(2, np.uint64), np.zeros(2, np.int64)
    for states, match in (
        (None, r"states: expected a C-contiguous float32 array of shape \(2, 6\), got None"),
        (np.zeros((2, 5), np.float32), r"states: expected .* of shape \(2, 6\), got shape \(2, 5\)"),
        (np.zeros((3, 6), np.float32), "states"),
    ):
        with pytest.raises(ValueError, match=match):
            act(actor, architecture(), obs, streams, steps, states)
    with pytest.raises(TypeError, match=r"states: expected .* float32"):
        act(actor, architecture(), obs, streams, steps, np.zeros((2, 6)))
    wide = architecture(obs_dim=6)
    actor, _ = loaded(wide, np.random.default_rng(0))
    shared = np.zeros((2, 6), np.float32)
    with pytest.raises(ValueError, match="share memory"):
        act(actor, wide, shared, streams, steps, shared)
    plain, _ = loaded(architecture(memory="none"), np.random.default_rng(0))
    with pytest.raises(ValueError, match="states: expected None with a network without a memory"):
        act(plain, architecture(memory="none"), obs, streams, steps, np.zeros((2, 6), np.float32))
