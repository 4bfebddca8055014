"""The graph of an exported policy: from observations in the environment's form to its actions."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.rows import ActionRows, ObsRows, Part
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.distributions import MASKED, choices_of
from fastrl.networks.encoded_q import KINDS, EncodedQ, OwnQ, q_type
from fastrl.networks.encoders import Decoder, Encoder, image_place
from fastrl.networks.memory import Memory
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.networks.off_policy import OffPolicyActor, policy_for
from fastrl.networks.own_network import OwnModule, OwnPolicy, nested
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.q_network import ActionValues, QNetwork, mean_values
from fastrl.networks.stacked_frames import stacked_first
from fastrl.networks.torch_actor import policy_from_state
from fastrl.utils.errors import UserError

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
        self.inputs = {each["name"]: _zeros(each) for each in (*leaves, *states)}
        self.defaults = {}
        if not self._head.is_box:
            self.defaults["action_masks"] = np.ones((1, self._head.size), np.bool_)
        if self._head.noise is not None:
            self.defaults["noise"] = np.zeros((1, self._head.size), np.float32)
        for name, value in self.defaults.items():
            self.inputs[name] = torch.from_numpy(np.repeat(value, 3, 0))
        self.outputs = ["action", "outputs", *(f"next_{each['name']}" for each in states)]
        noise: dict[str, Any] | None = None
        if self._head.noise is not None:
            noise = {"kind": self._head.noise, "shape": [self._head.size]}
            if policy.get("kind") in KINDS:
                noise["epsilon"] = policy.get("epsilon", 0.0)
        self.description = {
            "obs": leaves,
            "states": states,
            "agents": None,
            "actions": ["action"],
            "action_masks": 0 if self._head.is_box else self._head.size,
            "noise": noise,
        }

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
            [_AgentPolicy(team.networks[name], index) for index, name in enumerate(team.names)]
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
        self.outputs = [*chosen, "outputs", *(f"next_{each['name']}" for each in states)]
        shape = [self._agents, head.size]
        self.defaults = {} if head.is_box else {"action_masks": np.ones((1, *shape), np.bool_)}
        self.defaults["noise"] = np.zeros((1, *shape), np.float32)
        self.inputs = {each["name"]: _zeros(each) for each in (*leaves, *states)}
        for name, value in self.defaults.items():
            self.inputs[name] = torch.from_numpy(np.repeat(value, 3, 0))
        self.description = {
            "obs": leaves,
            "states": states,
            "agents": names,
            "actions": chosen,
            "action_masks": 0 if head.is_box else head.size,
            "noise": {"kind": head.noise, "shape": shape},
        }

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
        self._network, self._index = network.eval(), index

    def forward(self, leaves: Leaves, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        network = self._network
        if network.decoder is not None and network.encoder is not None:
            assert network.images is not None
            rows = ObsRows.from_state(network.images)
            features = _encoded(rows, network.decoder, network.encoder, leaves)
        else:
            features = leaves[0] if network.obs_norm is None else network.obs_norm(leaves[0])
        if network.num_ids:
            agent_id = nn.functional.one_hot(torch.tensor([self._index]), network.num_ids).float()
            features = torch.cat([features, agent_id.expand(features.shape[0], -1)], 1)
        if network.memory is None or memory is None:
            return network.body(features), memory
        features, after = _remembered(network.memory, network.body.features(features), memory)
        unused = memory.shape[1] - network.state_size
        return network.body[-1](features), nn.functional.pad(after, (0, unused))


class _AgentNetwork(nn.Module):
    """The network of one agent's policy on leaves.

    Attributes:
        head: what its outputs mean: a kind of `Actions`, or "squashed" or "deterministic" for those of `BoundedActor`.
        state_size: of its memory.
    """

    def __init__(self, policy: Mapping[str, Any], obs_rows: ObsRows) -> None:
        super().__init__()
        kind = policy.get("kind")
        network: Any
        self.state_size = 0
        self.log_std: nn.Parameter | None = None
        self.noise = 0.0
        self.head = "categorical"
        if kind == OffPolicyActor.kind:
            network = policy_for(policy)
            self.head = {"gaussian": "squashed"}.get(network.head, network.head)
            self.noise = policy["architecture"]["noise"]
        elif kind in KINDS:
            network = q_type(policy).from_state(policy)
            network.clear_noise()
        elif kind is None or kind in (EncodedPolicy.kind, OwnPolicy.kind):
            network = policy_from_state(policy)
            if isinstance(network, ActorCritic) and obs_rows.size == network.actor_inputs:
                network = network.blind()
            self.log_std = network.log_std
            self.state_size = getattr(network, "state_size", 0)
            self.head = "categorical" if self.log_std is None else "box"
        else:
            raise ExportError(f"networks of the kind {kind!r} cannot be exported")
        self._network = network.eval().requires_grad_(False)
        self._obs_rows = obs_rows

    def forward(self, leaves: Leaves, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        network, rows = self._network, self._obs_rows
        if isinstance(network, EncodedPolicy):
            features = _encoded(rows, network.decoder, network.actor_trunk, leaves)
            if network.memory is not None and memory is not None:
                features, memory = _remembered(network.memory, features, memory)
            return network.actor(features), memory
        if isinstance(network, OwnPolicy):
            return _own(network.own, leaves)[0], None
        if isinstance(network, OffPolicyActor):
            if network.own is not None:
                features = _own(network.own, leaves)
            else:
                features = _encoded(rows, network.decoder, network.encoder, leaves)
            for i in range(network.body.num_layers):
                weight, bias = network.body.linear[i]
                features = torch.addmm(bias[0], features, weight[0])
                features = features.relu() if i + 1 < network.body.num_layers else features
            return features, None
        if isinstance(network, ActorCritic):
            row = _joined(leaves)
            if network.actor_inputs < network.obs_dim:
                return network.outputs(row), None
            return network.actor(network.normalized(row)), None
        assert isinstance(network, ActionValues)
        return _values(network, rows, leaves), None


def _values(network: ActionValues, rows: ObsRows, leaves: Leaves) -> Tensor:
    """Values of actions."""
    if isinstance(network, OwnQ):
        values: Tensor = _own(network.own, leaves)
        return values
    if isinstance(network, EncodedQ):
        features = _encoded(rows, network.decoder, network.encoder, leaves)
    else:
        assert isinstance(network, QNetwork)
        x = leaves[0].flatten(1) if rows.dtype == np.uint8 else _joined(leaves)
        shape = network._architecture["obs_shape"]
        x = x.float() if len(shape) == 1 else x.float().unflatten(1, shape)
        features = network.trunk(x if network.obs_scale == 1 else x * network.obs_scale)
    value = None if network.value is None else network.value(features)
    return mean_values(network._combined(network.advantage(features), value))


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
                "scale": actions._scale,
                "middle": actions._middle,
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


def _encoded(rows: ObsRows, decoder: Decoder, encoder: Encoder, leaves: Leaves) -> Tensor:
    """The features that an encoder gives for leaves, as ``encoder(*decoder(rows))`` of rows."""
    vectors, images = [], []
    for part, leaf in zip(rows.parts, leaves, strict=True):
        if part.kind != "image":
            vectors.append(leaf)
            continue
        place = image_place(part)
        image = leaf.float() * (1 / 255)
        if place.channels_last:
            image = image.permute(0, 3, 1, 2)
        images.append(image.reshape(-1, *place.shape))
    if decoder.flat:
        vectors += [image.permute(0, 2, 3, 1).flatten(1) for image in images]
        images = []
    found = [network(image) for network, image in zip(encoder.images, images, strict=True)]
    if vectors:
        joined = _joined(vectors)
        if decoder.norm is not None:
            joined = decoder.norm(joined)
        found.insert(0, joined if encoder.numbers is None else encoder.numbers(joined))
    features: Tensor = encoder.hidden(_joined(found))
    return features


def _own(network: OwnModule, leaves: Leaves) -> Any:
    """The features that a module of the user's gives for leaves, as ``own(rows)`` of rows."""
    tensors: dict[tuple[Any, ...], Tensor] = {}
    norm, at = network.decoder.norm, 0
    for part, leaf in zip(network.obs_rows.parts, leaves, strict=True):
        if part.kind != "image":
            if norm is not None:
                place = slice(at, at + part.size)
                leaf = ((leaf - norm.mean[place].float()) * norm.scale()[place]).clamp(-norm.clip, norm.clip)
            at += part.size
            leaf = leaf.unflatten(1, part.shape or (1,))
        tensors[part.path] = leaf
    return network.module(nested(network.obs_rows.space, tensors, ()))


def _remembered(memory: Memory, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and state after one step, with the equations of PyTorch's cells."""
    linear, size = nn.functional.linear, memory.size
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
