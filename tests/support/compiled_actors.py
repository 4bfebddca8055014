"""Comparison of a network's compiled actor with PyTorch."""

import numpy as np
import torch

from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.torch_actor import TorchActor


def perturb(network, rng):
    """Adds noise to all parameters: no bias is 0 any more."""
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.from_numpy(rng.normal(size=weight.shape).astype(np.float32))


def assert_acts_as_pytorch(network, actions, obs, rng, masks=None, *, agreement):
    """Outputs and actions of the compiled actor are PyTorch's.

    Args:
        obs: float32 [K, D].
        masks: bool [K, A].
        agreement: least share of the drawn actions that are the same: the others stood at a border between two
            actions. Greedy actions and numbers are all the same.
    """
    actor, batch = network.loaded_actor(actions), len(obs)
    assert isinstance(actor, MlpActor)
    outputs = actor.outputs(obs, None)
    with torch.inference_mode():
        np.testing.assert_allclose(outputs, network.outputs(torch.from_numpy(obs)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs, [actor.outputs(row[None], None)[0] for row in obs])

    other = TorchActor(network.maker(), actions.state())
    weights = np.concatenate([tensor.numpy().ravel() for tensor in network.state_dict().values()])
    other.load(weights.data)
    streams, steps = rng.integers(2**64, size=batch, dtype=np.uint64), np.arange(batch)
    for greedy in (True, False):
        chosen = []
        for each in (actor, other):
            found = np.empty((batch, *actions.shape), actions.dtype)
            log_probs = np.empty(batch, np.float32)
            each.act(obs, streams, steps, found, log_probs, masks, greedy=greedy)
            chosen.append((found.reshape(batch, -1), log_probs))
        same = np.isclose(chosen[0][0], chosen[1][0], rtol=1e-4, atol=1e-4).all(1)
        assert same.all() if greedy or actions.dtype == np.float32 else same.mean() > agreement
        np.testing.assert_allclose(chosen[0][1][same], chosen[1][1][same], rtol=1e-4, atol=1e-4)
