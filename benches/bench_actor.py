"""Choosing actions: the compiled actor beside torch, one thread each, and the compiled one's errors against torch.

Run: ``pytest benches/bench_actor.py -s`` on an otherwise idle machine.
"""

import functools

import numpy as np
import pytest
import torch

from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.distributions import sample_actions
from fastrl.utils.seeding import uniforms
from results import Case
from rounds import measure_in_turns, rate

# Observation, hidden layers, actions: CAGE 2 with its effective and with all actions, and a wider network.
NETWORKS = [(52, (64, 64), 54), (52, (64, 64), 145), (52, (256, 256), 54)]
BATCHES = (1, 16, 256, 4096)
ROUNDS, SECONDS = 5, 0.05


def timed(call, rows):
    """A measurement of rows per second; the first call is not counted."""
    call()

    def once():
        call()
        return rows

    return lambda: rate(once, SECONDS)


@pytest.mark.usefixtures("one_thread")
def test_acting(record):
    rng, cases = np.random.default_rng(0), []
    for obs_dim, hidden, actions in NETWORKS:
        for activation in ("relu", "tanh"):
            network = ActorCritic(obs_dim, actions, hidden, activation)
            actor = MlpActor(network.actor_architecture())
            weights = np.empty(actor.weights_nbytes // 4, np.float32)
            network.actor_weights(weights)
            actor.load(weights)
            for rows in BATCHES:
                obs = (rng.random((rows, obs_dim)) < 0.3).astype(np.float32)
                streams = rng.integers(2**64, size=rows, dtype=np.uint64)
                steps = np.zeros(rows, np.int64)
                chosen, log_probs = np.empty(rows, np.int64), np.empty(rows, np.float32)
                tensor = torch.from_numpy(obs)

                @torch.inference_mode()
                def by_torch(network=network, tensor=tensor, rows=rows):
                    return sample_actions(network.outputs(tensor), torch.rand(rows, 1))

                given = obs, streams, steps, chosen, log_probs
                calls = {"fastrl": functools.partial(actor.act, *given), "PyTorch": by_torch}
                rates = measure_in_turns({n: timed(c, rows) for n, c in calls.items()}, ROUNDS)
                with torch.inference_mode():
                    draws = torch.from_numpy(uniforms(streams, steps))[:, None]
                    expected, expected_log_probs = sample_actions(network.outputs(tensor), draws)
                same = chosen == expected.numpy()
                assert same.mean() > 0.99
                np.testing.assert_allclose(log_probs[same], expected_log_probs.numpy()[same], atol=1e-5)
                name = f"{obs_dim}-{'-'.join(map(str, hidden))}-{actions}, {activation}, {rows} rows"
                cases.append(Case(name, rates))
    record("Choosing actions", "rows/s", cases, ["fastrl"], about="One thread.")
