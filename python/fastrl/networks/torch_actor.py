"""Actors that PyTorch computes, for networks that have no compiled form, and the choice between the two."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import Actor, ActorSpec, MlpActor
from fastrl.networks.distributions import choices_of, gaussian_log_probs, mask_logits, sample_actions
from fastrl.networks.own_network import OwnPolicy
from fastrl.networks.parameters import flat_size, read_flat
from fastrl.networks.policy_network import EncodedPolicy, TorchPolicy
from fastrl.utils.seeding import normals, uniforms, uniforms_of_parts

PolicyNet = ActorCritic | TorchPolicy
"""Networks of `fastrl.algorithms.actor_critic`."""

_TORCH_POLICIES: dict[str, type[TorchPolicy]] = {each.kind: each for each in (EncodedPolicy, OwnPolicy)}

# Rows of a forward pass: more would not fit into caches, and images as float32 would take memory without need.
CHUNK = 256


class TorchActor:
    """Acts for all rows of a call at once, in ``eval()`` mode.

    Random numbers are those of the rows' streams, as of the compiled actor. Outputs of PyTorch depend on the batch in
    their last bits, so unlike the compiled actor's a row's action may depend on the rows beside it where two actions
    are as good as equally probable.

    Args:
        kind, architecture: of the network, as `TorchPolicy.state` has them.
        actions: `Actions.state` of the policy's draws.

    Raises:
        ValueError: the network cannot be made.
    """

    def __init__(self, kind: str, architecture: Mapping[str, Any], actions: Mapping[str, Any]) -> None:
        self._network = _TORCH_POLICIES[kind].without_weights(architecture).eval()
        self._network.requires_grad_(False)
        self._actions = Actions.from_state(actions)
        self._choices = choices_of(self._actions)
        self.weights_nbytes = 4 * flat_size(self._network)
        self.state_size = self._network.state_size

    def load(self, weights: Buffer) -> None:
        read_flat(self._network, np.frombuffer(memoryview(weights).cast("B"), np.float32))

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
        parts = range(0, len(obs), CHUNK)
        outputs = torch.cat(
            [
                self._outputs(
                    obs[part : part + CHUNK], None if states is None else states[part : part + CHUNK]
                )
                for part in parts
            ]
        )
        if masks is not None:
            outputs = mask_logits(outputs, torch.from_numpy(masks))
        drawn, chances = self._draw(outputs, streams, steps, greedy)
        actions[...] = drawn.numpy()
        log_probs[...] = chances.numpy()

    def _outputs(self, obs: NDArray[Any], states: NDArray[np.float32] | None) -> Tensor:
        """Outputs of some rows, whose states it replaces."""
        rows = torch.from_numpy(obs)
        if states is None:
            return self._network.outputs(rows).float()
        before = torch.from_numpy(states)
        outputs, _, after = self._network.sequences(rows, torch.tensor([len(rows)]), before)
        before.copy_(after)
        return outputs.float()

    def _draw(
        self, outputs: Tensor, streams: NDArray[np.uint64], steps: NDArray[np.int64], greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Draws and their log-probabilities."""
        if self._network.log_std is not None:
            log_std = self._network.log_std
            draws = outputs
            if not greedy:
                noise = torch.from_numpy(normals(streams, steps, self._actions.size))
                draws = outputs + log_std.exp() * noise
            return draws, gaussian_log_probs(outputs, log_std, draws)
        if self._choices is not None:
            if greedy:
                chosen = self._choices.split(outputs).argmax(-1)
                return chosen, self._choices.log_probs(outputs, chosen)
            parts = torch.from_numpy(uniforms_of_parts(streams, steps, self._choices.num_parts))
            return self._choices.sample(outputs, parts)
        if greedy:
            highest, chosen = torch.log_softmax(outputs, -1).max(-1)
            return chosen, highest
        return sample_actions(outputs, torch.from_numpy(uniforms(streams, steps)[:, None]))


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
    return functools.partial(TorchActor, state["kind"], state["architecture"], actions.state())


def loaded_actor(policy: PolicyNet, actions: Actions) -> Actor:
    """An actor of a network with its weights as they are now."""
    actor = actor_spec(policy, actions)()
    weights = np.zeros(actor.weights_nbytes // 4, np.float32)
    policy.actor_weights(weights)
    actor.load(weights.data)
    return actor
