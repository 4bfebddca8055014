"""Actors that PyTorch computes, for networks that have no compiled form, and the choice between the two."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Buffer

from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import Actor, ActorSpec, MlpActor, with_weights
from fastrl.networks.distributions import choices_of, gaussian_log_probs, mask_logits, sample_actions
from fastrl.networks.own_network import OwnPolicy
from fastrl.networks.parameters import flat_size, read_flat
from fastrl.networks.policy_network import EncodedPolicy, TorchPolicy
from fastrl.utils.seeding import normals, uniforms, uniforms_of_parts

Network = TypeVar("Network", bound=nn.Module)

PolicyNet = ActorCritic | TorchPolicy
"""Networks of `fastrl.algorithms.actor_critic`."""

_TORCH_POLICIES: dict[str, type[TorchPolicy]] = {each.kind: each for each in (EncodedPolicy, OwnPolicy)}

# Rows of a forward pass: more would not fit into caches, and images as float32 would take memory without need.
CHUNK = 256
GPU_CHUNK = 4096


class NetworkActor(Generic[Network]):
    """Base of actors that PyTorch computes, for all rows of a call at once.

    Args:
        network: whose weights are to be loaded; it is set to ``eval()`` mode. An attribute, too.
    """

    def __init__(self, network: Network) -> None:
        network.eval().requires_grad_(False)
        self.network, self._device = network, torch.device("cpu")
        self.weights_nbytes = 4 * flat_size(network)

    def to(self, device: str) -> None:
        """Computes on a device from here on; random numbers and draws stay on the CPU."""
        self._device = torch.device(device)
        self.network.to(self._device)

    def load(self, weights: Buffer) -> None:
        """See `fastrl.networks.compiled_actor.Actor.load`."""
        read_flat(self.network, np.frombuffer(memoryview(weights).cast("B"), np.float32))

    @property
    def _chunk(self) -> int:
        """Rows of a forward pass."""
        return CHUNK if self._device.type == "cpu" else GPU_CHUNK

    def _in_chunks(self, obs: NDArray[Any]) -> Tensor:
        """Outputs of a network without memory for rows of observations, float32 on the CPU."""
        rows = torch.from_numpy(obs if obs.flags.writeable else obs.copy()).split(self._chunk)
        return torch.cat([self.network(chunk.to(self._device)).float().cpu() for chunk in rows])


class DrawingActor(NetworkActor[Network], ABC):
    """Base of actors that draw from a distribution, for all rows of a call at once, in ``eval()`` mode.

    Random numbers are those of the rows' streams, as of the compiled actor. Outputs of PyTorch depend on the batch in
    their last bits, so unlike the compiled actor's a row's action may depend on the rows beside it where two actions
    are as good as equally probable.

    Args:
        network: has a ``log_std``, of a Gaussian; None for choices.
        actions: `Actions.state` of the policy's draws.
        state_size: of the network's memory.
    """

    network: Any

    def __init__(self, network: Network, actions: Mapping[str, Any], state_size: int = 0) -> None:
        super().__init__(network)
        self._actions = Actions.from_state(actions)
        self._choices = choices_of(self._actions)
        self.state_size = state_size

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        """See `fastrl.networks.compiled_actor.Actor.act`."""
        chunk = self._chunk
        outputs = torch.cat(
            [
                self._outputs(
                    obs[part : part + chunk], None if states is None else states[part : part + chunk]
                )
                for part in range(0, max(len(obs), 1), chunk)
            ]
        )
        if masks is not None:
            outputs = mask_logits(outputs, torch.from_numpy(masks))
        drawn, chances = self.draw(outputs, streams, steps, greedy)
        actions[...] = drawn.numpy()
        log_probs[...] = chances.numpy()

    def _remember(self, states: NDArray[np.float32], sequences: Callable[[Tensor, Tensor], Any]) -> Tensor:
        """Outputs of a network with a memory for a step of each row, on the CPU; replaces the rows' states.

        Args:
            sequences: gives outputs, something else and the states after sequences, of batch sizes and states.
        """
        before = torch.from_numpy(states)
        outputs, _, after = sequences(torch.tensor([len(states)]), before.to(self._device))
        before.copy_(after)
        found: Tensor = outputs.float().cpu()
        return found

    @abstractmethod
    def _outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        """Outputs of some rows on the CPU; replaces the rows' states."""

    def draw(
        self, outputs: Tensor, streams: NDArray[np.uint64], steps: NDArray[np.int64], greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Draws and their log-probabilities."""
        if self.network.log_std is not None:
            log_std = self.network.log_std.cpu()
            draws = outputs
            if not greedy:
                noise = torch.from_numpy(normals(streams, steps, self._actions.size))
                draws = outputs + log_std.exp() * noise
            return draws, gaussian_log_probs(outputs, log_std, draws)
        if self._choices is not None:
            if greedy:
                chosen = self._choices.split(outputs).argmax(-1)
                return chosen, self._choices.log_probs(outputs, chosen)
            uniform = torch.from_numpy(uniforms_of_parts(streams, steps, self._choices.num_choices))
            return self._choices.sample(outputs, uniform)
        if greedy:
            highest, chosen = torch.log_softmax(outputs, -1).max(-1)
            return chosen, highest
        return sample_actions(outputs, torch.from_numpy(uniforms(streams, steps)[:, None]))


class TorchActor(DrawingActor[TorchPolicy]):
    """Acts for a policy of one agent.

    Args:
        kind, architecture: of the network, as `TorchPolicy.state` has them.
        actions: as of `DrawingActor`.

    Raises:
        ValueError: the network cannot be made.
    """

    def __init__(self, kind: str, architecture: Mapping[str, Any], actions: Mapping[str, Any]) -> None:
        network = _TORCH_POLICIES[kind].without_weights(architecture)
        super().__init__(network, actions, network.state_size)

    def _outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        rows = torch.from_numpy(obs).to(self._device)
        if states is None:
            return self.network.outputs(rows).float().cpu()
        return self._remember(states, lambda *memory: self.network.sequences(rows, *memory))


class ValuingTorchActor(TorchActor):
    """A `TorchActor` of a network that ``gives_values``; see `fastrl.networks.compiled_actor.ValuingActor`."""

    def __init__(self, kind: str, architecture: Mapping[str, Any], actions: Mapping[str, Any]) -> None:
        super().__init__(kind, architecture, actions)
        self.values: NDArray[np.float32] = np.zeros(0, np.float32)
        self._found: list[Tensor] = []

    def act(self, *args: Any, **kwargs: Any) -> None:
        """See `fastrl.networks.compiled_actor.Actor.act`."""
        self._found = []
        super().act(*args, **kwargs)
        self.values = torch.cat(self._found).numpy()

    def _outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        outputs, values = self.network(torch.from_numpy(obs).to(self._device))
        self._found.append(values.float().cpu())
        return cast("Tensor", outputs).float().cpu()


def policy_from_state(state: Mapping[str, Any]) -> PolicyNet:
    """The network of a policy's saved state. One of the user's own is imported: `own_path` says what.

    Raises:
        ValueError: weights that do not fit the architecture, or are not finite; an unknown kind.
    """
    return policy_type(state).from_state(state)


def policy_type(state: Mapping[str, Any]) -> type[PolicyNet]:
    """The class of the network of a policy's saved state.

    Raises:
        ValueError: there is no such kind.
    """
    kind = state.get("kind")
    if kind is None:
        return ActorCritic
    if kind not in _TORCH_POLICIES:
        raise ValueError(f"networks of the kind {kind!r} are not known, only {', '.join(_TORCH_POLICIES)}")
    return _TORCH_POLICIES[kind]


def actor_spec(policy: PolicyNet, actions: Actions) -> ActorSpec:
    """Makes an actor of a network: compiled where it can be, else PyTorch's.

    Args:
        actions: that the network's draws become.
    """
    compiled = policy.actor_architecture()
    if compiled is not None:
        if actions.kind == "multi_discrete":
            compiled |= {"kind": "multi_discrete", "nvec": actions.nvec.tolist()}
        return functools.partial(MlpActor, compiled)
    assert not isinstance(policy, ActorCritic)
    state = policy.state()
    gives_values = policy.gives_values and not policy.state_size
    made = ValuingTorchActor if gives_values else TorchActor
    return functools.partial(made, state["kind"], state["architecture"], actions.state())


def loaded_actor(policy: PolicyNet, actions: Actions) -> Actor:
    """An actor of a network with its weights as they are now."""
    spec = actor_spec(policy, actions)
    weights = np.zeros(spec().weights_nbytes // 4, np.float32)
    policy.actor_weights(weights)
    return with_weights(spec, weights)
