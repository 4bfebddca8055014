"""Export of multi-layer perceptrons as plain numpy arrays, with the code that acts with them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.envs.rows import ActionRows
from fastrl.exports.graph import AgentGraph, ExportError, PolicyGraph
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.off_policy import OffPolicyActor
from fastrl.networks.q_network import QNetwork
from fastrl.play.policy import Policy
from fastrl.utils.files import atomic_file

Arrays = dict[str, NDArray[Any]]

_ONLY = "plain numpy is for multi-layer perceptrons that take one array of numbers and give Discrete or Box actions"

_ACTIVATIONS = {
    "relu": "np.maximum(x, 0)",
    "tanh": "np.tanh(x)",
    "elu": "np.where(x > 0, x, np.expm1(np.minimum(x, 0)))",
}


@dataclass(frozen=True)
class ArrayPolicy:
    """A policy as arrays.

    Attributes:
        arrays: by name.
        code: numpy of about 30 lines; ``act(obs)`` takes a batch float [N, ...] and gives the greedy actions.
    """

    arrays: Arrays
    code: str

    def save(self, path: Path) -> None:
        """Writes the arrays in one piece."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            np.savez(file, **self.arrays)  # type: ignore[arg-type] # for the arrays have other names than its settings

    def player(self, path: Path, graph: PolicyGraph) -> "ArrayPlayer":
        """The result of the code with the arrays of a file, as a policy."""
        names: dict[str, Any] = {}
        exec(self.code_for(path), names)
        return ArrayPlayer(names["act"], graph)

    def code_for(self, path: Path) -> str:
        """The code, with the name of the file that it reads."""
        return self.code.replace("{path!r}", repr(str(path)))


class ArrayPlayer:
    """The code of an `ArrayPolicy`, with the methods of `fastrl.runtime.Policy` that comparisons call.

    Args:
        act: of the code.
        graph: gives the outputs by which comparisons know ties.
    """

    def __init__(self, act: Callable[[NDArray[Any]], NDArray[Any]], graph: PolicyGraph) -> None:
        self.metadata: dict[str, Any] = {"states": []}
        self._state = None
        self._act, self._graph = act, graph
        self._shape = tuple(graph.inputs["obs"].shape[1:])

    def reset(self) -> None:
        """Nothing: it has no memory."""

    def predict(self, obs: Any, state: Any = None, **others: Any) -> tuple[Any, None]:
        """Actions, and no memory."""
        batch = np.asarray(obs).reshape(-1, *self._shape)
        actions = self._act(batch)
        return (actions if np.ndim(obs) > len(self._shape) else actions[0]), None

    def act(self, obs: Any, **others: Any) -> Any:
        """The action."""
        return self.predict(obs)[0]

    def outputs(self, obs: Any, state: Any = None, **others: Any) -> NDArray[np.float32]:
        """Outputs of the network, [N, ...]."""
        batch = np.asarray(obs, np.float32).reshape(-1, *self._shape)
        given = {
            name: torch.as_tensor(np.repeat(value, len(batch), 0))
            for name, value in self._graph.defaults.items()
        }
        given["obs"] = torch.from_numpy(batch)
        with torch.no_grad():
            found: NDArray[np.float32] = self._graph(*(given[name] for name in self._graph.inputs))[1].numpy()
        return found


def array_policy(graph: AgentGraph, policy: Policy) -> ArrayPolicy:
    """The arrays of a policy, and the code that acts with them.

    Args:
        graph: of the policy.

    Raises:
        ExportError: the network is no perceptron, or the spaces have another form.
    """
    obs_space, action_space = policy.obs_space, policy.action_space
    is_number = isinstance(obs_space, Box) and obs_space.dtype is not None and obs_space.dtype.kind == "f"
    if not is_number or not isinstance(action_space, Box | Discrete):
        raise ExportError(f"{_ONLY}: export to .onnx")
    network = graph._network._network
    layers, activation, norm = _layers(network)
    arrays: Arrays = {}
    for i, (weight, bias) in enumerate(layers):
        arrays[f"w{i}"], arrays[f"b{i}"] = _array(weight), _array(bias)
    lines = ["x = np.asarray(obs, np.float32).reshape(len(obs), -1)"]
    if norm is not None:
        arrays["mean"], arrays["scale"] = _array(norm.mean.float()), _array(norm.scale())
        lines.append(f'x = np.clip((x - p["mean"]) * p["scale"], -{norm.clip}, {norm.clip})')
    last = len(layers) - 1
    lines += [
        f"for i in range({last}):",
        '    x = x @ p[f"w{i}"] + p[f"b{i}"]',
        f"    x = {_ACTIVATIONS[activation]}",
        f'x = x @ p["w{last}"] + p["b{last}"]',
    ]
    lines += _head(network, policy, arrays)
    code = "\n".join(
        [
            "import numpy as np",
            "",
            "with np.load({path!r}) as file:",
            "    p = dict(file)",
            "",
            "",
            "def act(obs):",
            '    """Greedy actions for a batch of observations, [N, ...]."""',
            *(f"    {line}" for line in lines),
        ]
    )
    return ArrayPolicy(arrays, code)


def _layers(network: Any) -> tuple[list[tuple[Tensor, Tensor]], str, RunningNorm | None]:
    """Layers [in, out] with biases, the activation between them, and the normalisation before."""
    layers: list[tuple[Any, Any]]
    if isinstance(network, ActorCritic) and network.actor_inputs == network.obs_dim:
        perceptron: Any = network.actor
        layers = [(layer.weight.t(), layer.bias) for layer in perceptron]
        return layers, network.actor.activation, network.obs_norm
    if isinstance(network, OffPolicyActor) and network.is_perceptron:
        body: Any = network.body
        return [(weight[0], bias[0].reshape(-1)) for weight, bias in body.linear], "relu", None
    if isinstance(network, QNetwork) and network.obs_scale == 1:
        branches = [network.trunk, network.advantage, network.value or nn.Identity()]
        linear: list[list[Any]] = [
            [each for each in branch.modules() if hasattr(each, "weight")] for branch in branches
        ]
        # Neither convolutions nor batch normalisation.
        if all(each.weight.dim() == 2 for branch in linear for each in branch):
            return _value_layers(network.num_quantiles, *linear), "relu", None
    raise ExportError(f"{_ONLY}: export to .onnx")


def _value_layers(
    quantiles: int, trunk: list[Any], advantage: list[Any], value: list[Any]
) -> list[tuple[Tensor, Tensor]]:
    """The layers of a perceptron that gives mean values of actions: what follows the last layers is linear, too."""
    layers = [(each.weight.t(), each.bias) for each in (*trunk, *advantage)]
    weight, bias = (each.unflatten(-1, (-1, max(quantiles, 1))).mean(-1) for each in layers[-1])
    if value:
        *hidden, (value_weight, value_bias) = [(each.weight.t(), each.bias) for each in value]
        weight = torch.cat(
            [weight - weight.mean(1, keepdim=True), value_weight.mean(1, keepdim=True).expand_as(weight)]
        )
        bias = bias - bias.mean() + value_bias.mean()
        # Hidden layers of both branches side by side, which see the same features.
        [(own_weight, own_bias)], at = hidden, len(trunk)
        layers[at] = torch.cat([layers[at][0], own_weight], 1), torch.cat([layers[at][1], own_bias])
    layers[-1] = weight, bias
    return layers


def _head(network: Any, policy: Policy, arrays: Arrays) -> list[str]:
    """Lines from the network's outputs to actions of the environment."""
    space: Any = policy.action_space
    if isinstance(space, Discrete):
        return [f"return x.argmax(1) + {int(space.start)}" if space.start else "return x.argmax(1)"]
    rows = ActionRows(space)
    actions = Actions(rows.flat_space, policy.squash)
    arrays |= {"action_scale": np.array(actions.scale), "action_middle": np.array(actions.middle)}
    # Those of the space itself: as float32 they may lie outside.
    arrays |= {"action_low": space.low.ravel(), "action_high": space.high.ravel()}
    lines = []
    if isinstance(network, OffPolicyActor):
        lines.append(f"x = np.tanh(x[:, :{actions.size}])")
    if actions.squash:
        arrays["bounded"] = np.array(actions._bounded)
        lines.append('x = np.where(p["bounded"], np.tanh(x), x)')
    lines.append('x = x * p["action_scale"] + p["action_middle"]')
    assert space.dtype is not None
    if space.dtype.kind in "iu":
        lines.append("x = np.round(x)")
    lines.append('x = np.clip(x, p["action_low"], p["action_high"])')
    return [*lines, f'return x.reshape(-1, *{tuple(space.shape)}).astype("{space.dtype}")']


def _array(tensor: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
