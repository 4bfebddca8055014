"""Trained policies, loaded from one checkpoint file, for use outside a run."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from fastrl.envs.rows import ActionRows, space_of
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import Actor, moved
from fastrl.networks.encoded_q import EncodedQ, loaded_q_actor
from fastrl.networks.off_policy import OffPolicyActor, policy_for
from fastrl.networks.own_network import own_path
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.q_network import ActionValues, QNetwork
from fastrl.networks.torch_actor import PolicyNet, loaded_actor, policy_from_state
from fastrl.training.checkpoint import CheckpointError, load_newest, unusable
from fastrl.training.predict import RowPredictor, saved_policy
from fastrl.training.settings import table_of
from fastrl.utils.config import ConfigError


def load_policy(path: str | Path, *, device: str = "cpu", seed: int = 0) -> "Policy":
    """The policy of a run directory (its newest checkpoint) or of a checkpoint file.

    In the real CybORG, seen through the challenge's wrapper::

        policy = fastrl.load_policy("runs/mine")
        blue = fastrl.envs.cage2.memory.BlueMemory(1, policy.memory)
        obs, action = wrapper.reset(), None
        for _ in range(100):
            row = blue.observe(obs[None], action)
            masks = blue.action_masks() if policy.needs_action_mask else None
            action = policy.act(row, action_mask=masks)
            obs, reward, done, info = wrapper.step(int(action[0]))

    Call ``blue.reset()`` at the start of each episode. A policy with ``state_size`` above 0 has a memory of its own,
    the ``states`` of `Policy.act`.

    Args:
        path: a run directory or a checkpoint file; nothing else of the run is read.
        device: "cpu" or "cuda", where PyTorch acts; a compiled actor acts on the CPU.
        seed: of the draws of ``act(..., deterministic=False)``.

    Raises:
        CheckpointError: there is no checkpoint, or a damaged or foreign one.
        ConfigError: this machine has no such device.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    file, state = load_newest(path)
    policy = state.get("policy")
    if policy and not _is_of_vectors(policy):
        raise CheckpointError(
            f"{file}: policies of {state.get('algorithm')} cannot be loaded; fastrl eval scores the run"
        )
    try:
        made = Policy(state, device=device, seed=seed)
    except Exception as error:
        # The contents of the file are to blame for any error here.
        raise unusable(file, "holds no policy that this fastrl can use", error) from None
    if "action_space" not in state and "actions" not in state:
        warnings.warn(
            f"{file} is of an older version, which did not save the action space: actions are of one dimension, from 0"
            " on or float32; where the environment's are others, use fastrl.load(...).predict",
            stacklevel=2,
        )
    return made


def _is_of_vectors(policy: Mapping[str, Any]) -> bool:
    """True for the saved networks that a `Policy` has. Networks of the user's own would have to be imported."""
    architecture, kind = policy.get("architecture", {}), policy.get("kind")
    if kind == QNetwork.kind:
        return len(architecture["obs_shape"]) == 1
    if own_path(policy) is not None:
        return False
    return "obs_dim" in architecture or kind in (EncodedPolicy.kind, EncodedQ.kind, OffPolicyActor.kind)


def _network_of(policy: Mapping[str, Any]) -> PolicyNet | QNetwork | EncodedQ | OffPolicyActor:
    for kind in (QNetwork, EncodedQ):
        if policy.get("kind") == kind.kind:
            return kind.from_state(policy)
    if policy.get("kind") == OffPolicyActor.kind:
        return policy_for(policy)
    network = policy_from_state(policy)
    return network.blind() if isinstance(network, ActorCritic) else network


def _action_space(state: Mapping[str, Any], num_actions: int) -> Space[Any]:
    """The environment's action space; the flat one where a checkpoint has no other.

    Args:
        num_actions: outputs of the network.
    """
    if "action_space" not in state:
        own = state["policy"].get("action_space")
        return Discrete(num_actions) if own is None else Actions.from_state(own).space
    if math.prod(state["action_space"].get("shape", ())) > num_actions:
        raise ValueError(f"actions {state['action_space']} for a network of {num_actions}")
    return space_of(state["action_space"])


def _actor_of(network: PolicyNet | ActionValues | OffPolicyActor, actions: Actions, epsilon: float) -> Actor:
    if isinstance(network, ActionValues):
        return loaded_q_actor(network, epsilon)
    if isinstance(network, OffPolicyActor):
        return network.loaded_actor()
    return loaded_actor(network, actions)


class Policy:
    """Chooses actions for observations. Made by `load_policy`.

    Args:
        state: of a checkpoint.
        device, seed: as of `load_policy`.

    Attributes:
        obs_dim: length of an observation.
        action_space: of the environment, which `act` gives actions of; in CAGE 2 the space of the actions that the
            policy uses.
        continuous: actions are of a Box, not indices.
        num_actions: length of an action mask. Of Discrete actions the number of the environment's: 145 in CAGE 2, also
            if the policy uses some of them only; of MultiDiscrete and MultiBinary ones the choices of all numbers. Of a
            Box the numbers in an action.
        actions: int64 [A], places in a mask that it uses; none if they are continuous.
        state_size: length of its memory of an episode; 0: it has none.
        memory: values of blue's memory in its observations of CAGE 2, see ``fastrl.envs.cage2.memory``: pass the 52
            plain ones through a ``BlueMemory``; "none": it needs no more.
        observe: "truth": its observations of CAGE 2 end with the true state of the game, which no defender can see;
            else "blue".
        needs_action_mask: it was trained on actions that may have an effect only: give it
            ``env.action_masks()``. Without, it may choose actions that do nothing.
        environment: the settings of the environment that it was trained on.
        workflow: the order of priority that it was trained to fix hosts in, the most urgent first (see
            ``fastrl.envs.cage2.workflow``); None if it was trained without one. It is part of the network, no argument
            of `act`.
        steps: how many environment steps it was trained for.
    """

    def __init__(self, state: dict[str, Any], *, device: str = "cpu", seed: int = 0) -> None:
        policy = saved_policy(state)
        network = _network_of(policy)
        self.environment: dict[str, Any] = state["config"]["env"]
        self.steps: int = state["steps"]
        if isinstance(network, ActorCritic | QNetwork):
            self.obs_dim = network.obs_dim
        else:
            self.obs_dim = network.obs_rows.size
            if network.obs_rows.dtype != np.float32:
                raise ValueError("its observations have images")
        self.action_space = _action_space(state, network.num_actions)
        rows, own = ActionRows(self.action_space), policy.get("action_space")
        squash = own is not None and bool(own.get("squash"))
        self._flat = Actions(rows.flat_space, squash)
        self.continuous = self._flat.is_box
        if self._flat.size != network.num_actions or own not in (None, self._flat.state()):
            raise ValueError(f"actions {self._flat.state()} for a network of {network.num_actions}, {own}")
        # Checkpoints list the actions only if the policy uses some of them.
        self._is_part = "actions" in state and not self.continuous
        all_actions = range(0 if self.continuous else network.num_actions)
        self.actions: NDArray[np.int64] = np.array(state.get("actions", all_actions), np.int64)
        self.num_actions: int = state.get("num_actions", network.num_actions)
        self.memory: str = self.environment.get("memory", "none")
        table = state["config"].get(table_of(state["algorithm"]), {})
        # With `actor_inputs` the value function alone saw the truth.
        self.observe: str = "blue" if table.get("actor_inputs") else self.environment.get("observe", "blue")
        self.needs_action_mask: bool = state.get("action_masks", table.get("action_masks", False))
        self.workflow: str | None = state.get("workflow")
        if not self.continuous and self.actions.shape != (network.num_actions,):
            raise ValueError(f"{len(self.actions)} actions for a network of {network.num_actions}")
        if not ((self.actions >= 0) & (self.actions < self.num_actions)).all():
            raise ValueError(f"actions beyond the environment's {self.num_actions}")
        actor = moved(_actor_of(network, self._flat, policy.get("epsilon", 0.0)), device)
        self.state_size = actor.state_size
        self._predictor = RowPredictor(actor, rows, squash=squash, seed=seed)

    def act(
        self,
        obs: NDArray[np.floating],
        deterministic: bool = True,
        action_mask: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> Any:
        """The actions for observations.

        Args:
            obs: float32 [N, obs_dim], or [obs_dim] for one observation. float64 is converted.
            deterministic: the most probable action, of values the best one; otherwise one is drawn, of values (DQN)
                any allowed one with the run's last epsilon, else the best.
            action_mask: bool [N, num_actions], or [num_actions] for one observation, True = allowed; for all but
                continuous actions. The choices of each number of a MultiDiscrete or MultiBinary action stand side by
                side.
            states: float32 [N, state_size], or [state_size] for one observation, of a policy with a memory: zeros at
                the start of an episode; replaced by the memory after this step.

        Returns:
            Actions of `action_space` with a first axis N: int64 [N] if it is Discrete, else [N, ...] of its shape and
            dtype. In CAGE 2 they are indices into all 145 actions. For one observation one action: an int64, or an
            array of the space's shape.

        Raises:
            TypeError: wrong dtype.
            ValueError: wrong shape, NaN or infinity (in float32), a row whose mask allows none of ``actions``, a mask
                of continuous actions, or no states of a policy with a memory.
        """
        is_single = isinstance(obs, np.ndarray) and obs.ndim == 1
        rows = self._checked(obs)
        if is_single and isinstance(action_mask, np.ndarray):
            action_mask = action_mask[None]
        if is_single and isinstance(states, np.ndarray):
            states = states[None]
        actions = self._act(rows, deterministic, action_mask, states)
        return actions[0] if is_single else actions

    def _act(
        self,
        rows: NDArray[np.float32],
        deterministic: bool,
        action_mask: NDArray[np.bool_] | None,
        states: NDArray[np.float32] | None,
    ) -> NDArray[Any]:
        if self.continuous and action_mask is not None:
            raise ValueError(
                "action_mask is for discrete actions, this policy's are continuous: leave it out"
            )
        expected = f"float32 {[len(rows), self.state_size]}" if self.state_size else "None"
        found = "None" if states is None else f"{states.dtype} {list(states.shape)}"
        if found != expected:
            hint = ", zeros at the start of an episode" if self.state_size else ""
            raise ValueError(f"states should be {expected}{hint}, got {found}")
        masks = None if action_mask is None else self._own_mask(action_mask, len(rows))
        after = None if states is None else np.array(states, order="C")
        chosen: NDArray[Any] = self._predictor.act(rows, deterministic, masks, after)
        if states is not None:
            states[...] = after
        return self.actions[chosen] if self._is_part else chosen

    def _checked(self, obs: NDArray[np.floating]) -> NDArray[np.float32]:
        """A checked float32 copy [N, obs_dim]: PyTorch takes no read-only arrays."""
        if not isinstance(obs, np.ndarray):
            raise TypeError(f"obs should be a numpy array, got {type(obs).__name__}")
        if obs.dtype not in (np.float32, np.float64):
            raise TypeError(f"obs should be float32 or float64, got {obs.dtype}")
        if obs.ndim not in (1, 2) or obs.shape[-1] != self.obs_dim:
            hint = ""
            if obs.size and obs.size % self.obs_dim == 0:
                hint = f"; observations of several dimensions are flattened: obs.reshape(-1, {self.obs_dim})"
            elif self.memory != "none" and obs.shape[-1:] == (52,):
                hint = "; pass plain observations through fastrl.envs.cage2.memory.BlueMemory first"
            raise ValueError(
                f"obs should have shape [N, {self.obs_dim}] or [{self.obs_dim}], got {list(obs.shape)}{hint}"
            )
        with np.errstate(over="ignore"):
            checked = np.array(obs, np.float32, order="C").reshape(-1, self.obs_dim)
        if not np.isfinite(checked).all():
            row = int(np.argmin(np.isfinite(checked).all(axis=1)))
            raise ValueError(f"obs should be finite, row {row} has NaN or infinity")
        return checked

    def _own_mask(self, mask: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
        """The columns of a mask over all choices that stand for the policy's."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(
                f"action_mask should be a bool array, got {getattr(mask, 'dtype', type(mask).__name__)}"
            )
        if mask.shape != (rows, self.num_actions):
            raise ValueError(
                f"action_mask should have shape [{rows}, {self.num_actions}], got {list(mask.shape)}"
            )
        own = np.ascontiguousarray(mask[:, self.actions])
        firsts = np.cumsum(self._flat.nvec) - self._flat.nvec
        allows = np.logical_or.reduceat(own, firsts, axis=1).all(axis=1)
        if not allows.all():
            row = int(np.argmin(allows))
            raise ValueError(f"action_mask should allow some action that the policy uses, row {row} does not")
        return own
