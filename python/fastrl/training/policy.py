"""Trained policies, loaded from one checkpoint file, for use outside a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import mask_logits, sample_actions
from fastrl.networks.encoded_q import EncodedQ
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.q_network import ActionValues, QNetwork
from fastrl.networks.torch_actor import PolicyNet, policy_from_state
from fastrl.training.checkpoint import CheckpointError, load_newest, unusable
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
        device: of the network, "cpu" or "cuda".
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
        return Policy(state, device=device, seed=seed)
    except Exception as error:
        # The contents of the file are to blame for any error here.
        raise unusable(file, "holds no policy that this fastrl can use", error) from None


def _is_of_vectors(policy: Mapping[str, Any]) -> bool:
    """True for the saved networks that a `Policy` has. Networks of the user's own would have to be imported."""
    architecture, kind = policy.get("architecture", {}), policy.get("kind")
    if kind == QNetwork.kind:
        return len(architecture["obs_shape"]) == 1
    return "obs_dim" in architecture or kind in (EncodedPolicy.kind, EncodedQ.kind)


def _network_of(policy: Mapping[str, Any]) -> PolicyNet | QNetwork | EncodedQ:
    for kind in (QNetwork, EncodedQ):
        if policy.get("kind") == kind.kind:
            return kind.from_state(policy)
    network = policy_from_state(policy)
    return network.blind() if isinstance(network, ActorCritic) else network


class Policy:
    """Chooses actions for observations. Made by `load_policy`.

    Args:
        state: of a checkpoint.
        device: "cpu" or "cuda".
        seed: of random draws.

    Attributes:
        obs_dim: length of an observation.
        continuous: actions are numbers, not indices.
        num_actions: number of the environment's actions: 145 in CAGE 2, also if the policy uses some of them
            only. Of numbers in an action, if they are continuous.
        actions: int64 [A], those that it uses; none if they are continuous.
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
        network = _network_of(state["policy"])
        self.environment: dict[str, Any] = state["config"]["env"]
        self.steps: int = state["steps"]
        if isinstance(network, ActorCritic | QNetwork):
            self.obs_dim = network.obs_dim
        else:
            self.obs_dim = network.obs_rows.size
            if network.obs_rows.dtype != np.float32:
                raise ValueError("its observations have images")
        self.state_size = 0 if isinstance(network, ActorCritic | ActionValues) else network.state_size
        self._box = None if network.log_std is None else Actions.from_state(state["policy"]["action_space"])
        # Checkpoints list the actions only if the policy uses some of them.
        own = range(0 if self._box is not None else network.num_actions)
        self.actions: NDArray[np.int64] = np.array(state.get("actions", own), np.int64)
        self.num_actions: int = state.get("num_actions", network.num_actions)
        self.memory: str = self.environment.get("memory", "none")
        table = state["config"].get(table_of(state["algorithm"]), {})
        # With `actor_inputs` the value function alone saw the truth.
        self.observe: str = "blue" if table.get("actor_inputs") else self.environment.get("observe", "blue")
        self.needs_action_mask: bool = state.get("action_masks", table.get("action_masks", False))
        self.workflow: str | None = state.get("workflow")
        self.continuous = self._box is not None
        if self._box is not None:
            if self._box.size != network.num_actions:
                raise ValueError(
                    f"actions of {self._box.size} numbers for a network of {network.num_actions}"
                )
        elif self.actions.shape != (network.num_actions,):
            raise ValueError(f"{len(self.actions)} actions for a network of {network.num_actions}")
        elif not ((self.actions >= 0) & (self.actions < self.num_actions)).all():
            raise ValueError(f"actions beyond the environment's {self.num_actions}")
        self._network = network.to(device).eval()
        self._device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def act(
        self,
        obs: NDArray[np.floating],
        deterministic: bool = True,
        action_mask: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> Any:
        """The actions for observations, as indices into all of the environment's actions, or as numbers.

        Args:
            obs: float32 [N, obs_dim], or [obs_dim] for one observation. float64 is converted.
            deterministic: the most probable action, of values the best one; otherwise one is drawn, of values with
                probabilities that are their softmax.
            action_mask: bool [N, num_actions], or [num_actions] for one observation, True = allowed; for discrete
                actions.
            states: float32 [N, state_size], or [state_size] for one observation, of a policy with a memory: zeros at
                the start of an episode; replaced by the memory after this step.

        Returns:
            int64 [N], or float32 [N, num_actions] within the bounds of the environment's. For one observation one
            action: an int64, or float32 [num_actions].

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
        obs: NDArray[np.float32],
        deterministic: bool,
        action_mask: NDArray[np.bool_] | None,
        states: NDArray[np.float32] | None,
    ) -> NDArray[Any]:
        if self._box is not None and action_mask is not None:
            raise ValueError(
                "action_mask is for discrete actions, this policy's are continuous: leave it out"
            )
        with torch.inference_mode():
            outputs = self._outputs(obs, states).float().cpu()
            if self._box is not None:
                return self._box.to_env(self._drawn(outputs, deterministic).numpy())
            logits = outputs
            if action_mask is not None:
                logits = mask_logits(logits, torch.from_numpy(self._own_mask(action_mask, len(obs))))
            if deterministic:
                chosen = logits.argmax(-1)
            else:
                chosen, _ = sample_actions(logits, torch.rand(len(obs), 1, generator=self._generator))
        return self.actions[chosen.numpy()]

    def _outputs(self, obs: NDArray[np.float32], states: NDArray[np.float32] | None) -> Tensor:
        """The network's outputs; replaces the states."""
        rows = torch.from_numpy(obs).to(self._device)
        expected = f"float32 {[len(obs), self.state_size]}" if self.state_size else "None"
        found = "None" if states is None else f"{states.dtype} {list(states.shape)}"
        if found != expected:
            hint = ", zeros at the start of an episode" if self.state_size else ""
            raise ValueError(f"states should be {expected}{hint}, got {found}")
        if states is None or isinstance(self._network, ActorCritic | ActionValues):
            return self._network.outputs(rows)
        before = torch.from_numpy(states).to(self._device)
        outputs, _, after = self._network.sequences(rows, torch.tensor([len(rows)]), before)
        states[...] = after.cpu().numpy()
        return outputs

    def _drawn(self, means: Tensor, deterministic: bool) -> Tensor:
        """Draws of continuous actions, float32 [N, num_actions]."""
        log_std = self._network.log_std
        if deterministic or log_std is None:
            return means
        return means + log_std.exp().cpu() * torch.randn(means.shape, generator=self._generator)

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
        """The columns of a mask over all actions that stand for the policy's actions."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(
                f"action_mask should be a bool array, got {getattr(mask, 'dtype', type(mask).__name__)}"
            )
        if mask.shape != (rows, self.num_actions):
            raise ValueError(
                f"action_mask should have shape [{rows}, {self.num_actions}], got {list(mask.shape)}"
            )
        own = mask[:, self.actions]
        if not own.any(axis=1).all():
            row = int(np.argmin(own.any(axis=1)))
            raise ValueError(f"action_mask should allow some action that the policy uses, row {row} does not")
        return own
