"""The graph of an exported policy: from observations in the environment's form to its actions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.rows import ActionRows, ObsRows, Part
from fastrl.networks.acting_network import ActingNetwork, saved_network
from fastrl.networks.action_space import Actions
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.distributions import MASKED, choices_of
from fastrl.networks.encoders import Decoder, image_place
from fastrl.networks.ensemble import Ensemble
from fastrl.networks.memory import Memory
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.networks.off_policy import OffPolicyActor
from fastrl.networks.own_network import OwnModule, nested
from fastrl.networks.q_network import ActionValues
from fastrl.networks.stacked_frames import stacked_first
from fastrl.utils.errors import UserError

N = TypeVar("N", bound=ActingNetwork)

Leaves = Sequence[Tensor]
"""Parts of observations in the order of `ObsRows.parts`: uint8 [B, ...] of images, else float32 [B, n]."""


class ExportError(UserError, ValueError):
    """A policy that cannot be exported, or a package that this needs; one line."""


class PolicyGraph(nn.Module):
    """Base of graphs.

    Attributes:
        inputs: examples of the inputs by name, of three observations; those of observations come first.
        defaults: inputs that may be left out, with the values that they have then, [1, ...].
        outputs: names of the outputs.
        description: part of the metadata, see `fastrl.runtime`.
    """

    inputs: dict[str, Tensor]
    defaults: dict[str, NDArray[Any]]
    outputs: list[str]
    description: dict[str, Any]

    def _describe(
        self,
        leaves: list[dict[str, Any]],
        states: list[dict[str, Any]],
        actions: list[str],
        agents: list[str] | None,
        head: "_Head",
        shape: list[int],
        **of_noise: Any,
    ) -> None:
        """Sets the attributes from descriptions of the inputs and names of the outputs that are actions; ``shape`` is
        that of the noise and the action masks of one observation."""
        self.outputs = [*actions, "outputs", *(f"next_{each['name']}" for each in states)]
        self.defaults = {}
        if not head.is_box:
            self.defaults["action_masks"] = np.ones((1, *shape), np.bool_)
        if head.noise is not None:
            self.defaults["noise"] = np.zeros((1, *shape), np.float32)
        self.inputs = {each["name"]: _zeros(each) for each in (*leaves, *states)}
        for name, value in self.defaults.items():
            self.inputs[name] = torch.from_numpy(np.repeat(value, 3, 0))
        self.description = {
            "obs": leaves,
            "states": states,
            "agents": agents,
            "actions": actions,
            "action_masks": 0 if head.is_box else head.size,
            "noise": None if head.noise is None else {"kind": head.noise, "shape": shape, **of_noise},
        }


class AgentGraph(PolicyGraph):
    """The policy of one agent.

    Args:
        policy: saved state of the network.
        obs_space, action_space: of the environment.
        squash: see `Actions`.
        stack: the observation is a stack of frames [h, w, k], which the graph keeps as state: it takes the newest.
        stack_first: the network takes them as [k, h, w].

    Raises:
        ExportError: a network that is not known.
        ValueError: weights that do not fit.
    """

    def __init__(
        self,
        policy: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        squash: bool,
        stack: bool = False,
        stack_first: bool = False,
    ) -> None:
        super().__init__()
        self._obs_rows, action_rows = ObsRows(obs_space), ActionRows(action_space)
        self._stack, self._stack_first = stack, stack_first
        network_rows = ObsRows(stacked_first(obs_space)) if stack_first else self._obs_rows
        self._network = _AgentNetwork(policy, network_rows)
        self._head = _Head(self._network.head, Actions(action_rows.flat_space, squash), self._network)
        self._to_env = _EnvActions(action_rows)
        self._columns = nn.ModuleList(
            [_OneHot(part) for part in self._obs_rows.parts if part.kind == "onehot"]
        )
        leaves = [_leaf(part, "obs", ()) for part in self._obs_rows.parts]
        states: list[dict[str, Any]] = []
        if stack:
            leaves[0]["shape"] = leaves[0]["shape"][:-1]
            states.append({"name": "frames", "shape": list(obs_space.shape or ()), "dtype": "uint8"})
        if size := self._network.state_size:
            states.append({"name": "memory", "shape": [size], "dtype": "float32"})
        more = {"epsilon": policy.get("epsilon", 0.0)} if self._network.is_values else {}
        self._describe(leaves, states, ["action"], None, self._head, [self._head.size], **more)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, inputs, strict=True))
        values = [given[leaf["name"]] for leaf in self.description["obs"]]
        after: list[Tensor] = []
        if self._stack:
            frames = torch.cat([given["frames"][..., 1:], values[0].unsqueeze(-1)], -1)
            after.append(frames)
            values = [frames.permute(0, 3, 1, 2) if self._stack_first else frames]
        leaves = _leaves(self._obs_rows, values, self._columns)
        outputs, memory = self._network(leaves, given.get("memory"))
        if memory is not None:
            after.append(memory)
        if "action_masks" in given:
            outputs = torch.where(given["action_masks"], outputs, MASKED)
        return self._to_env(self._head(outputs, given.get("noise"))), outputs, *after


class TeamGraph(PolicyGraph):
    """The policies of all agents of an environment.

    Args:
        policy: saved state.
        obs_dim: length of an agent's row.
        form: of an environment whose agents have names; None: observations are rows [N, A, obs_dim].

    Raises:
        ExportError: an agent acts by a rule.
    """

    def __init__(self, policy: Mapping[str, Any], obs_dim: int, form: ParallelForm | None) -> None:
        super().__init__()
        try:
            team = MultiAgentPolicy.from_state(policy)
        except ValueError as error:
            raise ExportError(f"agents that act by a rule cannot be exported: {error}") from None
        self._agents, self._form, self._obs_dim = team.num_agents, form, obs_dim
        states: list[dict[str, Any]] = []
        if team.state_size:
            states.append({"name": "memory", "shape": [self._agents, team.state_size], "dtype": "float32"})
        self._policies = nn.ModuleList(
            [_AgentPolicy(on_leaves(team.networks[name]), index) for index, name in enumerate(team.names)]
        )
        self._heads = nn.ModuleList(
            [_Head(team.actions.kind, team.actions, team.networks[name]) for name in team.names]
        )
        head = self._heads[0]
        assert isinstance(head, _Head)
        if form is None:
            leaves = [_leaf_of("obs", (), "vector", (self._agents, obs_dim), "float32")]
            self._to_env: nn.ModuleList | None = None
            names, chosen = None, ["action"]
        else:
            leaves = [
                _leaf(part, f"obs/{agent}", (agent,))
                for agent, rows in zip(form.agents, form.obs_rows, strict=True)
                for part in rows.parts
            ]
            self._to_env = nn.ModuleList([_EnvActions(rows, wraps=True) for rows in form.action_rows])
            self._columns = nn.ModuleList(
                [
                    nn.ModuleList([_OneHot(part) for part in rows.parts if part.kind == "onehot"])
                    for rows in form.obs_rows
                ]
            )
            names = [str(agent) for agent in form.agents]
            chosen = [f"action/{name}" for name in names]
        self._describe(leaves, states, chosen, names, head, [self._agents, head.size])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, inputs, strict=True))
        values = [given[leaf["name"]] for leaf in self.description["obs"]]
        found, actions, after = [], [], []
        for a in range(self._agents):
            before = given["memory"][:, a] if "memory" in given else None
            outputs, memory = self._policies[a](self._observation(values, a), before)
            after.append(memory)
            if "action_masks" in given:
                outputs = torch.where(given["action_masks"][:, a], outputs, MASKED)
            found.append(outputs)
            action = self._heads[a](outputs, given["noise"][:, a])
            actions.append(action if self._to_env is None else self._to_env[a](action))
        chosen = [torch.stack(actions, 1)] if self._to_env is None else actions
        states = [torch.stack(after, 1)] if "memory" in given else []
        return *chosen, torch.stack(found, 1), *states

    def _observation(self, values: list[Tensor], a: int) -> Leaves:
        """The leaves of an agent; without images one, of the rows' length."""
        form = self._form
        if form is None:
            return [values[0][:, a]]
        first = sum(len(rows.parts) for rows in form.obs_rows[:a])
        rows = form.obs_rows[a]
        columns = self._columns[a]
        assert isinstance(columns, nn.ModuleList)
        leaves = _leaves(rows, values[first : first + len(rows.parts)], columns)
        if rows.dtype == np.uint8:
            return leaves
        row = _joined(leaves)
        return [nn.functional.pad(row, (0, self._obs_dim - rows.size))]


class _AgentPolicy(nn.Module):
    """The policy of an agent with its index."""

    def __init__(self, network: PolicyNetwork, index: int) -> None:
        super().__init__()
        self._network, self._index = network, index

    def forward(self, leaves: Leaves, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        network = self._network
        obs: Any = leaves[0] if network.decoder is None else leaves
        outputs, _, after = network.step_of(obs, torch.full((leaves[0].shape[0],), self._index), memory)
        if after is None or memory is None:
            return outputs, memory
        return outputs, nn.functional.pad(after, (0, memory.shape[1] - network.state_size))


class _AgentNetwork(nn.Module):
    """The network of one agent's policy on leaves.

    Attributes:
        head: what its outputs mean: a kind of `Actions`, or "squashed" or "deterministic" for those of `BoundedActor`.
        is_values: they are values of actions.
        state_size: of its memory.
    """

    def __init__(self, policy: Mapping[str, Any], obs_rows: ObsRows) -> None:
        super().__init__()
        try:
            network = saved_network(policy)
        except ValueError as error:
            raise ExportError(f"{error}: it cannot be exported") from None
        network = on_leaves(network.for_observations(obs_rows))
        self.log_std, self.state_size, self.noise = network.log_std, network.state_size, 0.0
        self.head = "categorical" if network.log_std is None else "box"
        if isinstance(network, OffPolicyActor):
            self.head = {"gaussian": "squashed"}.get(network.head, network.head)
            self.noise = policy["architecture"]["noise"]
        self.is_values = isinstance(network, ActionValues)
        self._network: Any = network
        self._takes_leaves = any(isinstance(each, _LeafDecoder | _LeafModule) for each in network.children())

    def forward(self, leaves: Leaves, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        given = leaves if self._takes_leaves else _joined(leaves)
        outputs, _, after = self._network.step(given, memory)
        return outputs, after


def on_leaves(network: N) -> N:
    """Replaces what cannot be exported in a network: it takes leaves in place of rows then, if it takes rows
    apart or is the user's own, and its memory makes one step."""
    if isinstance(network, ActionValues):
        network.clear_noise()
    network.gives_values = False
    for name, child in network.named_children():
        for kind, stand_in in _STAND_INS.items():
            if isinstance(child, kind):
                setattr(network, name, stand_in(child))
    return network.eval().requires_grad_(False)


class _LeafDecoder(nn.Module):
    """A `Decoder` of leaves."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self._parts, self._flat, self.norm = decoder.obs_rows.parts, decoder.flat, decoder.norm

    def forward(self, leaves: Leaves) -> tuple[Tensor, list[Tensor]]:
        vectors, images = [], []
        for part, leaf in zip(self._parts, leaves, strict=True):
            if part.kind != "image":
                vectors.append(leaf)
                continue
            place = image_place(part)
            image = leaf.float() * (1 / 255)
            if place.channels_last:
                image = image.permute(0, 3, 1, 2)
            images.append(image.reshape(-1, *place.shape))
        if self._flat:
            vectors += [image.permute(0, 2, 3, 1).flatten(1) for image in images]
            images = []
        if not vectors:
            return images[0].new_empty((images[0].shape[0], 0)), images
        vector = _joined(vectors)
        return vector if self.norm is None else self.norm(vector), images


class _LeafModule(nn.Module):
    """An `OwnModule` of leaves."""

    def __init__(self, network: OwnModule) -> None:
        super().__init__()
        self._network = network

    def forward(self, leaves: Leaves) -> Any:
        network, at = self._network, 0
        tensors: dict[tuple[Any, ...], Tensor] = {}
        norm = network.decoder.norm
        for part, leaf in zip(network.obs_rows.parts, leaves, strict=True):
            if part.kind != "image":
                if norm is not None:
                    place = slice(at, at + part.size)
                    leaf = (leaf - norm.mean[place].float()) * norm.scale()[place]
                    leaf = leaf.clamp(-norm.clip, norm.clip)
                at += part.size
                # unflatten() would trace the size of the batch as a constant.
                leaf = leaf.reshape(-1, *(part.shape or (1,)))
            tensors[part.path] = leaf
        return network.module(nested(network.obs_rows.space, tensors, ()))


class _MemoryStep(nn.Module):
    """One step of a `Memory`, with the equations of PyTorch's cells."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        memory, linear, size = self._memory, nn.functional.linear, self._memory.size
        before = state[:, :size]
        given = linear(features, memory.weight_ih, memory.bias_ih)
        recurrent = linear(before, memory.weight_hh, memory.bias_hh)
        if memory.kind == "lstm":
            enters, keeps, candidate, gives = (given + recurrent).split(size, 1)
            cell = keeps.sigmoid() * state[:, size : 2 * size] + enters.sigmoid() * candidate.tanh()
            outputs = gives.sigmoid() * cell.tanh()
            return outputs, torch.cat([outputs, cell], 1)
        of_reset, of_update, of_new = given.split(size, 1)
        reset, update, new = recurrent.split(size, 1)
        candidate = (of_new + (of_reset + reset).sigmoid() * new).tanh()
        outputs = candidate + (of_update + update).sigmoid() * (before - candidate)
        return outputs, outputs


class _Layers(nn.Module):
    """The only perceptron of an `Ensemble`, by one matrix product a layer without an axis of perceptrons."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self._ensemble, self.linear = ensemble, ensemble.acting_layers()

    def forward(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(self.linear):
            x = torch.addmm(bias[0], x if i == 0 else x.relu(), weight[0])
        return x.unsqueeze(0)


_STAND_INS: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    Decoder: _LeafDecoder,
    OwnModule: _LeafModule,
    Memory: _MemoryStep,
    Ensemble: _Layers,
}


class _Head(nn.Module):
    """Draws actions, flat ones of the environment, from a network's outputs.

    Attributes:
        size: numbers of the noise, and of an action mask.
        noise: "gumbel", "normal", or None where drawing is the same as choosing the best.
    """

    noise: str | None
    std: Tensor
    bounded: Tensor
    scale: Tensor
    middle: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, kind: str, actions: Actions, network: Any) -> None:
        super().__init__()
        self._kind, self._actions, self.size = kind, actions, actions.size
        self._choices = choices_of(actions)
        self.is_box = actions.is_box
        self._noise = float(getattr(network, "noise", 0.0))
        self.noise = "normal" if self.is_box else "gumbel"
        if kind == "deterministic" and not self._noise:
            self.noise = None
        if actions.is_box:
            std = network.log_std.detach().exp() if kind == "box" else torch.zeros(0)
            arrays = {
                "bounded": actions._bounded,
                "scale": actions.scale,
                "middle": actions.middle,
                "low": actions._low,
                "high": actions._high,
            }
            self.register_buffer("std", std)
            for name, array in arrays.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))

    def forward(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        if not self.is_box:
            # The highest logit with Gumbel noise is a draw from their softmax.
            logits = outputs if noise is None else outputs + noise
            return (logits if self._choices is None else self._choices.split(logits)).argmax(-1)
        if self._kind == "deterministic":
            draws = outputs.tanh()
            if noise is not None:
                draws = (draws + self._noise * noise).clamp(-1, 1)
        elif self._kind == "squashed":
            draws, log_std = outputs[:, : self.size], outputs[:, self.size :]
            assert noise is not None
            draws = (draws + log_std.clamp(*LOG_STD_RANGE).exp() * noise).tanh()
        else:
            assert noise is not None
            draws = outputs + self.std * noise
        if self._actions.squash:
            draws = torch.where(self.bounded, draws.tanh(), draws)
        return torch.minimum(torch.maximum(draws * self.scale + self.middle, self.low), self.high)


class _EnvActions(nn.Module):
    """The environment's actions from flat ones, as `ActionRows.to_env`.

    Args:
        wraps: indices beyond an agent's actions start again from 0, as `ParallelForm.to_env` does.
    """

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, rows: ActionRows, *, wraps: bool = False) -> None:
        super().__init__()
        self._rows, self._wraps = rows, wraps
        space = rows.space
        if isinstance(space, Box):
            for name, bound in (("low", space.low), ("high", space.high)):
                self.register_buffer(name, torch.from_numpy(bound.astype(np.float64)))
        else:
            self.register_buffer("start", torch.as_tensor(rows._start, dtype=torch.int64))

    def forward(self, flat: Tensor) -> Tensor:
        rows, space = self._rows, self._rows.space
        if isinstance(rows.flat_space, Discrete):
            if self._wraps:
                flat = flat % int(rows.flat_space.n)
            return flat + self.start if rows._start else flat
        if rows.is_plain:
            return flat
        assert space.dtype is not None
        dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        if isinstance(space, Box):
            flat = flat.round() if space.dtype.kind in "iu" else flat
            numbers = flat.reshape(-1, *space.shape).double()
            return torch.minimum(torch.maximum(numbers, self.low), self.high).to(dtype)
        return (flat + self.start).reshape(-1, *(space.shape or ())).to(dtype)


class _OneHot(nn.Module):
    """Discrete and MultiDiscrete observations as float32 [B, n], one-hot."""

    columns: Tensor
    values: Tensor

    def __init__(self, part: Part) -> None:
        super().__init__()
        space: Any = part.space
        if isinstance(space, Discrete):
            sizes, starts = [int(space.n)], [int(space.start)]
        else:
            sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        columns = [number for number, size in enumerate(sizes) for _ in range(size)]
        values = [start + k for size, start in zip(sizes, starts, strict=True) for k in range(size)]
        self.register_buffer("columns", torch.tensor(columns))
        self.register_buffer("values", torch.tensor(values))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], -1)
        return (flat.index_select(1, self.columns) == self.values).float()


def _leaves(rows: ObsRows, values: Sequence[Tensor], columns: nn.ModuleList) -> list[Tensor]:
    found, one_hot = [], iter(columns)
    for part, value in zip(rows.parts, values, strict=True):
        if part.kind == "image":
            found.append(value)
        elif part.kind == "onehot":
            found.append(next(one_hot)(value))
        else:
            found.append(value if value.dim() == 2 else value.reshape(-1, part.size))
    return found


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors side by side."""
    return torch.cat(list(tensors), 1) if len(tensors) > 1 else tensors[0]


def _leaf(part: Part, name: str, path: tuple[Any, ...]) -> dict[str, Any]:
    """The description of an input that is part of an observation."""
    name = "/".join([name, *map(str, part.path)])
    dtype = {"image": "uint8", "onehot": "int64"}.get(part.kind, "float32")
    shape = part.shape if part.kind != "onehot" else tuple(part.space.shape or ())
    return _leaf_of(name, (*path, *part.path), part.kind, shape, dtype)


def _leaf_of(
    name: str, path: tuple[Any, ...], kind: str, shape: tuple[int, ...], dtype: str
) -> dict[str, Any]:
    keys = [key if isinstance(key, int) else str(key) for key in path]
    return {"name": name, "path": keys, "kind": kind, "shape": list(shape), "dtype": dtype}


def _zeros(each: Mapping[str, Any]) -> Tensor:
    return torch.zeros((3, *each["shape"]), dtype=getattr(torch, each["dtype"]))
