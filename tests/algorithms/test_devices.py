"""The losses and optimiser steps of all algorithms of one agent on a GPU that need not be there: PyTorch's fake tensors
have a device and a shape, no numbers, and refuse tensors of two devices in one operation.

The engine of autograd wants a true GPU, so `backward` alone is left out; its operations are on the devices of those of
the loss. So is what reads numbers: rollouts, whose arrays stay in main memory.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dqn_cases import batch_of as dqn_batch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from test_sac import batch_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fastrl.algorithms import algorithms, impala, pqn
from fastrl.algorithms.ppo import Minibatch
from fastrl.algorithms.ppo_loss import log_probs_and_entropy
from fastrl.algorithms.protocol import DatasetBatch, Problem
from fastrl.networks.ensemble import Ensemble
from fastrl.utils.timer import Stopwatch

OBS, IMAGE = Box(-1, 1, (3,), np.float32), Box(0, 255, (12, 12, 3), np.uint8)
VECTORS = Box(-np.inf, np.inf, (5,), np.float32)
BOX, CHOICES, NUMBERS = Box(-1, 1, (2,), np.float32), Discrete(4), MultiDiscrete([3, 2])
B = 6


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def moved(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """`nn.Module._apply`, which cannot swap fake parameters."""
        for child in module.children():
            moved(child, function)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(function(parameter.data), parameter.requires_grad)
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else function(buffer)
        if isinstance(module, Ensemble):
            layers = enumerate(module.linear)
            module.linear = [
                [module.get_parameter(f"{name}_{i}") for name in ("weight", "bias")] for i, _ in layers
            ]
        return module

    def backward(tensors: Any, *gradients: Any, inputs: Any = ()) -> None:
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            assert tensor.device.type == "cuda" and tensor.requires_grad
        assert all(each.device.type == "cuda" for each in inputs)

    monkeypatch.setattr(nn.Module, "_apply", moved)
    monkeypatch.setattr(torch.autograd, "backward", backward)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def learner(name: str, obs: Any, actions: Any, **config: Any) -> Any:
    algorithm = algorithms()[name]
    made: Any = algorithm(
        algorithm.config_type(hidden=(8,), **config), Problem(obs, actions, 2, 100, device="cuda")
    )
    return made


def drawn(actions: Any) -> Tensor:
    dtype = torch.float32 if isinstance(actions, Box) else torch.int64
    return torch.zeros((B, *actions.shape), dtype=dtype, device="cuda")


def minibatch(obs: Any, actions: Any, masks: bool = False) -> Minibatch:
    """Samples that share rows."""
    size = int(np.prod(obs.shape))
    dtype = torch.uint8 if obs.dtype == np.uint8 else torch.float32
    rows = torch.zeros(B, dtype=torch.int64, device="cuda")
    floats = [torch.zeros(B, device="cuda") for _ in range(4)]
    allowed = torch.ones((B, actions.n), dtype=torch.bool, device="cuda") if masks else None
    seen = torch.zeros((4, size), dtype=dtype, device="cuda")
    return Minibatch(seen, rows, drawn(actions), *floats, masks=allowed)


PPO_CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "discrete": (OBS, CHOICES, {"value_clip": 0.2}),
    "masks": (OBS, CHOICES, {"action_masks": True}),
    "multi-discrete": (OBS, NUMBERS, {"normalize_obs": True}),
    "box": (OBS, BOX, {}),
    "encoder": (OBS, CHOICES, {"layer_norm": True}),
    "images": (IMAGE, CHOICES, {}),
}


@pytest.mark.parametrize("name", ["ppo", "async-ppo"])
@pytest.mark.parametrize("case", PPO_CASES)
def test_ppo(name: str, case: str) -> None:
    obs, actions, config = PPO_CASES[case]
    ppo = learner(name, obs, actions, **config)
    numbers = ppo.differentiate(minibatch(obs, actions, masks=case == "masks"), 0.5)
    assert numbers.device.type == ppo.descend(1e-3).device.type == "cuda"


def test_a_tensor_in_main_memory_is_found() -> None:
    batch = minibatch(OBS, CHOICES)
    with pytest.raises(RuntimeError, match="device"):
        learner("ppo", OBS, CHOICES).differentiate(batch._replace(returns=torch.zeros(B)), 1.0)


@pytest.mark.parametrize("actions", [CHOICES, BOX], ids=["discrete", "box"])
def test_impala(actions: Any) -> None:
    algorithm = learner("impala", OBS, actions, num_steps=3)
    outputs, values = algorithm.policy(torch.zeros((B, 3), device="cuda"))
    log_probs, entropy = log_probs_and_entropy(outputs, algorithm.policy.log_std, drawn(actions))
    own = (outputs, drawn(actions), log_probs, entropy, values, *torch.zeros((2, B), device="cuda"))
    losses = algorithm.loss(impala.Minibatch(*own))
    assert losses.total.device.type == algorithm.descend(1e-3).device.type == "cuda"


@pytest.mark.parametrize("actions", [CHOICES, NUMBERS, BOX], ids=["discrete", "multi-discrete", "box"])
def test_bc(actions: Any) -> None:
    bc = learner("bc", OBS, actions, entropy_coef=0.1)
    bc.update(DatasetBatch(torch.zeros((B, 3), device="cuda"), drawn(actions)), Stopwatch())
    assert bc.steps == B


@pytest.mark.parametrize(
    "options",
    [{}, {"quantiles": 4, "noisy": True}, {"double": False, "huber": None, "dueling": False}],
    ids=str,
)
def test_dqn(options: dict[str, Any]) -> None:
    dqn = learner("dqn", VECTORS, Discrete(3), margin_coef=0.1, target_every=1, **options)
    assert dqn.update(dqn_batch(num_second=2), Stopwatch()).device.type == "cuda"


def test_pqn() -> None:
    algorithm = learner("pqn", OBS, CHOICES, num_steps=3)
    estimates = algorithm.network.estimates(torch.zeros((B, 3), device="cuda"))
    loss = algorithm.loss(pqn.Minibatch(estimates, drawn(CHOICES), torch.zeros(B, device="cuda")))
    assert loss.total.device.type == "cuda"


@pytest.mark.parametrize(
    ("name", "actions"),
    [("sac", BOX), ("sac", CHOICES), ("crossq", BOX), ("td3", BOX), ("iql", BOX), ("iql", CHOICES)],
)
def test_replay_learners(name: str, actions: Any) -> None:
    algorithm = learner(name, OBS, actions, **({"policy_every": 1} if name in ("crossq", "td3") else {}))
    assert algorithm.compiled is None
    assert algorithm.update(batch_of(OBS, actions), Stopwatch()).device.type == "cuda"


def test_every_algorithm_of_one_agent_is_here() -> None:
    one = {name for name, each in algorithms().items() if not each.many_agents}
    assert one == {"ppo", "async-ppo", "impala", "bc", "dqn", "sac", "crossq", "td3", "iql", "pqn"}
