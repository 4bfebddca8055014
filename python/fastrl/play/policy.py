"""Policies: actions of what an algorithm has learned, for observations of the environment or for rows of numbers."""

import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from fastrl.algorithms.schedules import TimestepSchedule
from fastrl.envs.rows import ActionRows, ObsRows, RowError, space_of
from fastrl.networks.acting_network import ActingNetwork, PolicyNet, network_type, saved_actor, saved_network
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, moved
from fastrl.networks.distributions import mask_logits
from fastrl.networks.own_network import own_path
from fastrl.networks.parameters import claimed_numbers
from fastrl.networks.q_network import ActionValues
from fastrl.networks.stacked_frames import FramesFirst, stacked_first
from fastrl.networks.team_actor import TeamActor
from fastrl.play.distribution import ActionDistribution, distribution_of
from fastrl.runs.checkpoint import CheckpointError, load_newest, unusable
from fastrl.runs.settings import table_of
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError

Spaces = tuple[Space[Any], Space[Any]]
"""Observation space and action space."""

MakeActor = Callable[[Mapping[str, Any], Space[Any], Space[Any]], Actor]
"""`fastrl.algorithms.protocol.Algorithm.make_actor`."""


Critic = Callable[[Tensor, Distribution, Tensor | None], tuple[Tensor, Tensor | None]]
"""Gives values [N], and perhaps those of all actions [N, A], of rows [N, D] and the policy's distributions there."""


class PredictError(UserError, ValueError):
    """Observations, a state or masks that do not fit the policy; one line."""


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
    return policy_of(*load_newest(path), device=device, seed=seed)


def policy_of(file: Path, state: Mapping[str, Any], *, device: str = "cpu", seed: int = 0) -> "Policy":
    """The policy of a checkpoint that has been read; as `load_policy`, which has its arguments and errors.

    Args:
        file: for messages.
        state: of the checkpoint.
    """
    policy = state.get("policy")
    try:
        needs_code = policy and ("architecture" not in policy or own_path(policy) or "actor" in policy)
        made = None if needs_code else Policy(state, device=device, seed=seed)
    except Exception as error:
        # The contents of the file are to blame for any error here.
        raise unusable(file, "holds no policy that this fastrl can use", error) from None
    if made is None:
        raise CheckpointError(
            f"{file}: policies of {state.get('algorithm')} cannot be loaded; fastrl eval scores the run, and"
            " fastrl.load(path, trust=True).predict acts"
        )
    if "action_space" not in state and "actions" not in state:
        warnings.warn(
            f"{file} is of an older version, which did not save the action space: actions are of one dimension, from 0"
            " on or float32; where the environment's are others, use fastrl.load(...).predict",
            stacklevel=3,
        )
    return made


def saved_policy(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The policy in a checkpoint's state. Where ``epsilon`` is not saved (older versions), it follows from the
    settings."""
    policy: Mapping[str, Any] = state["policy"]
    if not issubclass(network_type(policy), ActionValues) or "epsilon" in policy:
        return policy
    table = state["config"].get(table_of(state["algorithm"]), {})
    names = ("epsilon", "final_epsilon", "epsilon_steps")
    schedule = TimestepSchedule(*(table.get(name, 0) for name in names))
    return {**policy, "epsilon": 0.0 if table.get("noisy") else schedule(state["steps"])}


def saved_spaces(state: Mapping[str, Any]) -> Spaces | None:
    """The spaces of the environment that a checkpoint's policy acts in; None: it is of an older version, or of an
    environment whose observations no file can describe.

    Raises:
        ValueError: the checkpoint is damaged.
    """
    if not state.keys() >= {"obs_space", "action_space"}:
        return None
    return space_of(state["obs_space"]), space_of(state["action_space"])


def _spaces_of(state: Mapping[str, Any], policy: Mapping[str, Any]) -> Spaces:
    """The spaces that a network is for, of its checkpoint or, where that lacks them, of its architecture. A policy that
    sees a part of the observations alone is given that part.

    Raises:
        ValueError: the checkpoint is damaged; no memory is taken for what it claims.
    """
    network_type(policy).check_size(policy)
    architecture, space = policy["architecture"], policy.get("action_space")
    num_weights = sum(weights.numel() for weights in policy["weights"].values())
    if claimed_numbers(state.get("action_space", {})) > num_weights:
        raise ValueError(f"actions {state.get('action_space')} for a network of {num_weights:,} numbers")
    seen = architecture.get("actor_inputs")
    if seen is None and (saved := saved_spaces(state)) is not None:
        return saved
    actions = Discrete(architecture["num_actions"]) if space is None else Actions.from_state(space).space
    if "action_space" in state:
        actions = space_of(state["action_space"])
    if "obs" in architecture:
        return ObsRows.from_state(architecture["obs"]).space, actions
    shape = architecture.get("obs_shape") or [seen or architecture["obs_dim"]]
    return Box(-np.inf, np.inf, tuple(shape), np.float32), actions


class Policy:
    """Chooses actions for observations.

    `predict` takes observations of the environment and gives its actions; `act` takes rows, which are the flattened
    observations of one ``Box``. `load_policy` and `fastrl.Model` make policies.

    Observations are those of the environment that is played, see `fastrl.training.task.Task.play_spec`. Frames are
    stacked along their last axis there, also where the network takes them along the first.

    Args:
        state: of a checkpoint; its part of `Trainer.policy_checkpoint` is enough.
        spaces: observation space and action space of the environment; None: as the checkpoint says.
        make_actor: of the algorithm; None: as the kind of the network says.
        frames_first: see `fastrl.training.task.Task.frames_first`; None: as the checkpoint says.
        device: where PyTorch acts; a compiled actor acts on the CPU.
        seed: of draws.

    Attributes:
        obs_dim: length of a row.
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
        obs_space, squash, actor: of `predict`, see `Actions` and `Actor`; their interfaces may change.
        frames_first: the network takes the stacked frames [h, w, k] as [k, h, w].

    Raises:
        ValueError: the policy is for other spaces, or damaged.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        spaces: Spaces | None = None,
        make_actor: MakeActor | None = None,
        frames_first: bool | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        policy = saved_policy(state)
        self.obs_space, self.action_space = spaces or _spaces_of(state, policy)
        self._obs_rows, self._action_rows = ObsRows(self.obs_space), ActionRows(self.action_space)
        flat = self._action_rows.flat_space
        # Policies of workflows, and older ones, do not say their actions.
        policy = {"action_space": Actions(flat).state(), **policy}
        self.squash = bool(policy["action_space"].get("squash"))
        self._flat = Actions(flat, self.squash)
        make_actor = make_actor or saved_actor
        self.frames_first = bool(state.get("frames_first")) if frames_first is None else frames_first
        taken = stacked_first(self.obs_space) if self.frames_first else self.obs_space
        self._saved, self._taken = policy, ObsRows(taken)
        actor = make_actor(policy, taken, self.action_space)
        self.actor = moved(FramesFirst(actor, self.obs_space) if self.frames_first else actor, device)
        self._generator = np.random.default_rng([seed, 1])
        self.environment: dict[str, Any] = state["config"]["env"]
        self.steps: int = state["steps"]
        self.obs_dim, self.state_size = self._obs_rows.size, self.actor.state_size
        self.continuous = self._flat.is_box
        # Checkpoints list the actions only if the policy uses some of them.
        self._is_part = "actions" in state and not self.continuous
        all_actions = range(0 if self.continuous else self._flat.size)
        self.actions: NDArray[np.int64] = np.array(state.get("actions", all_actions), np.int64)
        self.num_actions: int = state.get("num_actions", self._flat.size)
        self.memory: str = self.environment.get("memory", "none")
        table = state["config"].get(table_of(state["algorithm"]), {})
        # With `actor_inputs` the value function alone saw the truth.
        self.observe: str = "blue" if table.get("actor_inputs") else self.environment.get("observe", "blue")
        self.needs_action_mask: bool = state.get("action_masks", table.get("action_masks", False))
        self.workflow: str | None = state.get("workflow")
        if not self.continuous and self.actions.shape != (self._flat.size,):
            raise ValueError(f"{len(self.actions)} actions for a network of {self._flat.size}")
        if not ((self.actions >= 0) & (self.actions < self.num_actions)).all():
            raise ValueError(f"actions beyond the environment's {self.num_actions}")

    def predict(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """The action for an observation of the environment, or those for a batch, and the state for the next call; see
        `fastrl.Model.predict`. In CAGE 2 actions and masks are those that the policy uses.

        Raises:
            PredictError: they do not fit the policy.
        """
        rows, is_single, states, masks = self._checked_inputs(obs, state, action_masks)
        actions = self._choose(rows, deterministic, masks, states)
        if is_single:
            return actions[0], None if states is None else states[0]
        return actions, states

    def _checked_inputs(
        self, obs: Any, state: Any, action_masks: Any
    ) -> tuple[NDArray[Any], bool, NDArray[np.float32] | None, NDArray[np.bool_] | None]:
        """Rows, as of `_rows`, and their states and masks, for the arguments of `predict`."""
        rows, is_single = self._rows(obs)
        states = None
        if self.state_size:
            states = states_of(state, (len(rows), self.state_size))
        elif state is not None:
            raise PredictError(f"state: this policy has no memory, expected None, got {type(state).__name__}")
        return rows, is_single, states, None if action_masks is None else self._masks(action_masks, len(rows))

    @torch.no_grad()
    def distribution(
        self, obs: Any, state: Any = None, action_masks: Any = None, *, critic: Critic | None = None
    ) -> ActionDistribution:
        """The distribution of actions that `predict` draws from, and values; see `fastrl.Model.distribution`.

        Args:
            critic: gives values where the network that acts has none.

        Raises:
            PredictError: as of `predict`, or the policy has no distribution.
        """
        if "actor" in self._saved:
            name = self._saved["actor"]
            raise PredictError(
                f"distribution: {name}, the algorithm's own actor, draws actions in its own way"
            )
        rows, is_single, states, masks = self._checked_inputs(obs, state, action_masks)
        network = self._network
        taken = torch.from_numpy(self._frames_of(rows))
        before = None if states is None else torch.from_numpy(states)
        outputs, values, after = network.step(taken, before)
        if isinstance(network, PolicyNet) and values is None:
            sizes = torch.tensor([len(taken)])
            values = network.value(taken) if before is None else network.sequences(taken, sizes, before)[1]
        allowed = None if masks is None else torch.from_numpy(masks)
        epsilon = self._saved.get("epsilon", 0.0)
        try:
            found = distribution_of(network, self._flat, outputs, network.log_std, allowed, epsilon)
        except ValueError as error:
            raise PredictError(f"distribution: {error}") from None
        action_values = outputs if isinstance(network, ActionValues) else None
        if action_values is not None:
            values = mask_logits(action_values, allowed).amax(-1)
        elif critic is not None:
            values, action_values = critic(taken, found, before)
        numbers = None if after is None else after.numpy()
        return ActionDistribution(
            found, values, action_values, numbers[0] if is_single and numbers is not None else numbers
        )

    @functools.cached_property
    def _network(self) -> ActingNetwork:
        """The network, as PyTorch has it."""
        if "architecture" not in self._saved:
            raise PredictError("distribution: the policy has no network that fastrl knows")
        return saved_network(self._saved).for_observations(self._taken).eval()

    def _frames_of(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows in the order of the network."""
        if not self.frames_first:
            return rows
        frames = rows.reshape(-1, *(self.obs_space.shape or ())).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(frames).reshape(rows.shape)

    def _choose(
        self,
        rows: NDArray[Any],
        deterministic: bool,
        masks: NDArray[np.bool_] | None,
        states: NDArray[np.float32] | None,
    ) -> Any:
        """Actions of the environment, [K, ...], for rows [K, D]; replaces the states [K, state_size]."""
        # Actors without memory need not take states.
        memory = () if states is None else (states,)
        chosen = choose(self.actor, self._flat, self._generator, rows, masks, *memory, greedy=deterministic)
        return self._action_rows.to_env(chosen)

    def _rows(self, obs: Any) -> tuple[NDArray[Any], bool]:
        """The rows of one observation or of a batch, and which of the two it was."""
        part = self._obs_rows.parts[0]
        try:
            leaf = obs
            for key in part.path:
                leaf = leaf[key]
            shape = np.shape(leaf)
        except (TypeError, KeyError, IndexError, ValueError):
            shape = ()
        num_axes = len(part.space.shape or ())
        is_single = len(shape) == num_axes
        if not is_single and (len(shape) != num_axes + 1 or shape[0] < 1):
            expected = list(part.space.shape or ())
            raise PredictError(
                f"obs{''.join(f'[{key!r}]' for key in part.path)}: expected shape {expected} for one observation or"
                f" [N, {str(expected)[1:]} for N, got {list(shape)}"
            )
        rows = np.zeros((1 if is_single else shape[0], self._obs_rows.size), self._obs_rows.dtype)
        try:
            if is_single:
                self._obs_rows.write(obs, rows[0])
            else:
                self._obs_rows.write_batch(obs, rows)
        except RowError as error:
            raise PredictError(f"obs: {error}") from None
        if rows.dtype == np.float32 and not np.isfinite(rows).all():
            raise PredictError("obs: expected finite numbers, got NaN or infinity")
        return rows, is_single

    def _masks(self, masks: Any, count: int) -> NDArray[np.bool_]:
        if self.continuous:
            raise PredictError("action_masks: this policy's actions are continuous, expected None")
        return masks_of("action_masks", np.atleast_2d(np.asarray(masks)), (count, self._flat.size))

    def act(
        self,
        obs: NDArray[Any],
        deterministic: bool = True,
        action_mask: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> Any:
        """The actions for observations.

        Args:
            obs: float32 [N, obs_dim], or [obs_dim] for one observation. float64 is converted. Of images uint8.
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
        if self.continuous and action_mask is not None:
            raise ValueError(
                "action_mask is for discrete actions, this policy's are continuous: leave it out"
            )
        expected = f"float32 {[len(rows), self.state_size]}" if self.state_size else "None"
        found = "None" if states is None else f"{states.dtype} {list(states.shape)}"
        if found != expected:
            hint = ", zeros at the start of an episode" if self.state_size else ""
            raise ValueError(f"states should be {expected}{hint}, got {found}")
        masks = None if action_mask is None else self._network_mask(action_mask, len(rows))
        after = None if states is None else np.array(states, order="C")
        actions = self._choose(rows, deterministic, masks, after)
        if states is not None:
            states[...] = after
        if self._is_part:
            actions = self.actions[actions]
        return actions[0] if is_single else actions

    def _checked(self, obs: NDArray[Any]) -> NDArray[Any]:
        """A checked copy [N, obs_dim], float32 or uint8: PyTorch takes no read-only arrays."""
        if not isinstance(obs, np.ndarray):
            raise TypeError(f"obs should be a numpy array, got {type(obs).__name__}")
        dtype = self._obs_rows.dtype
        if obs.dtype not in ((np.uint8,) if dtype == np.uint8 else (np.float32, np.float64)):
            expected = "uint8" if dtype == np.uint8 else "float32 or float64"
            raise TypeError(f"obs should be {expected}, got {obs.dtype}")
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
            checked = np.array(obs, dtype, order="C").reshape(-1, self.obs_dim)
        if not np.isfinite(checked).all():
            row = int(np.argmin(np.isfinite(checked).all(axis=1)))
            raise ValueError(f"obs should be finite, row {row} has NaN or infinity")
        return checked

    def _network_mask(self, mask: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
        """The columns of a mask over all choices that stand for the policy's."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(
                f"action_mask should be a bool array, got {getattr(mask, 'dtype', type(mask).__name__)}"
            )
        if mask.shape != (rows, self.num_actions):
            raise ValueError(
                f"action_mask should have shape [{rows}, {self.num_actions}], got {list(mask.shape)}"
            )
        network_mask = np.ascontiguousarray(mask[:, self.actions])
        firsts = np.cumsum(self._flat.nvec) - self._flat.nvec
        allows = np.logical_or.reduceat(network_mask, firsts, axis=1).all(axis=1)
        if not allows.all():
            row = int(np.argmin(allows))
            raise ValueError(f"action_mask should allow some action that the policy uses, row {row} does not")
        return network_mask


def choose(
    actor: Actor | TeamActor,
    actions: Actions,
    generator: np.random.Generator,
    rows: NDArray[Any],
    *others: Any,
    **options: Any,
) -> NDArray[Any]:
    """Actions of the environment, [K, ...], for rows [K, D] that have no streams of their own.

    Args:
        actions: that the actor's draws become.
        generator: of streams to draw from.
        others, options: of `Actor.act`, after the log-probabilities.
    """
    count = len(rows)
    draws, log_probs = np.zeros((count, *actions.shape), actions.dtype), np.zeros(count, np.float32)
    streams, steps = generator.integers(2**64, size=count, dtype=np.uint64), np.zeros(count, np.int64)
    actor.act(rows, streams, steps, draws, log_probs, *others, **options)
    return actions.to_env(draws)


def states_of(state: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A copy of the memory of episodes; zeros where they start."""
    if state is None:
        return np.zeros(shape, np.float32)
    array = np.array(np.atleast_2d(np.asarray(state)), np.float32, order="C")
    if array.shape != shape:
        raise PredictError(
            f"state: expected what predict() returned for the same episodes, float32 {list(shape)}, or None where"
            f" they start; got shape {list(np.shape(state))}"
        )
    return array


def masks_of(name: str, given: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Action masks of a shape, bool, from bool or from integers that are not 0 where an action is allowed.

    Raises:
        PredictError: they are of another kind or shape.
    """
    array = np.asarray(given)
    if array.dtype.kind not in "bui" or array.shape != shape:
        raise PredictError(f"{name}: expected bool {list(shape)}, got {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array, np.bool_)
