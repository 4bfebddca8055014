"""Predictors: actions of a trained policy for observations in the environment's own form, with its memory."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.algorithms.schedules import LinearSchedule
from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.contract import describe
from fastrl.envs.rows import ActionRows, ObsRows, RowError
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.networks.encoded_q import KINDS
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.training.settings import table_of
from fastrl.utils.errors import UserError


class PredictError(UserError, ValueError):
    """Observations, a state or masks that do not fit the policy; one line."""


class Predictor(Protocol):
    """Chooses actions; see `fastrl.model.Model.predict`."""

    def predict(
        self, obs: Any, state: Any, deterministic: bool, action_masks: NDArray[np.bool_] | None
    ) -> tuple[Any, Any]: ...


def saved_policy(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The policy in the state of a checkpoint. Of values of actions those of older versions lack the ``epsilon``, which
    follows from the settings."""
    policy: Mapping[str, Any] = state["policy"]
    if policy.get("kind") not in KINDS or "epsilon" in policy:
        return policy
    table = state["config"].get(table_of(state["algorithm"]), {})
    names = ("epsilon", "final_epsilon", "epsilon_steps")
    schedule = LinearSchedule(*(table.get(name, 0) for name in names))
    return {**policy, "epsilon": 0.0 if table.get("noisy") else schedule(state["steps"])}


class RowPredictor:
    """Chooses actions of one agent for rows of observations with an actor.

    Args:
        actor: with the policy's weights.
        action_rows: of the environment.
        squash: see `Actions`.
        seed: of draws.
    """

    def __init__(self, actor: Actor, action_rows: ActionRows, *, squash: bool, seed: int) -> None:
        self._actor, self._action_rows = actor, action_rows
        self._actions = Actions(action_rows.flat_space, squash)
        self._generator = np.random.default_rng([seed, 1])

    def act(
        self,
        rows: NDArray[Any],
        deterministic: bool,
        masks: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> Any:
        """Actions of the environment, [K, ...].

        Args:
            rows: [K, D].
            deterministic: the likeliest actions; otherwise they are drawn, of values of actions any allowed one with
                probability epsilon.
            masks: bool [K, size], choices that are allowed; None: all.
            states: float32 [K, state_size] of an actor with memory; replaced by those after the step.
        """
        count = len(rows)
        draws = np.zeros((count, *self._actions.shape), self._actions.dtype)
        streams = self._generator.integers(2**64, size=count, dtype=np.uint64)
        # Actors without memory need not take states.
        own = () if states is None else (states,)
        steps, log_probs = np.zeros(count, np.int64), np.zeros(count, np.float32)
        self._actor.act(rows, streams, steps, draws, log_probs, masks, *own, greedy=deterministic)
        return self._action_rows.to_env(self._actions.to_env(draws))


class ActorPredictor(RowPredictor):
    """Chooses actions for observations in the environment's own form, as `RowPredictor` does for rows.

    Args:
        obs_rows: of the environment.
        others: as of `RowPredictor`.
    """

    def __init__(
        self, actor: Actor, obs_rows: ObsRows, action_rows: ActionRows, *, squash: bool, seed: int
    ) -> None:
        super().__init__(actor, action_rows, squash=squash, seed=seed)
        self._obs_rows = obs_rows

    def predict(
        self, obs: Any, state: Any, deterministic: bool, action_masks: NDArray[np.bool_] | None
    ) -> tuple[Any, Any]:
        rows, is_single = self._rows(obs)
        states = None
        if size := getattr(self._actor, "state_size", 0):
            states = _states(state, len(rows), size)
        elif state is not None:
            raise PredictError(f"state: this policy has no memory, expected None, got {type(state).__name__}")
        masks = None if action_masks is None else self._masks(action_masks, len(rows))
        actions = self.act(rows, deterministic, masks, states)
        if is_single:
            return actions[0], None if states is None else states[0]
        return actions, states

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
        own = len(part.space.shape or ())
        is_single = len(shape) == own
        if not is_single and (len(shape) != own + 1 or shape[0] < 1):
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
        if self._actions.is_box:
            raise PredictError("action_masks: this policy's actions are continuous, expected None")
        size = self._actions.size
        array = np.atleast_2d(np.asarray(masks))
        if array.dtype != np.bool_ or array.shape != (count, size):
            raise PredictError(
                f"action_masks: expected bool [{count}, {size}], got {array.dtype} {list(array.shape)}"
            )
        return np.ascontiguousarray(array)


def _states(state: Any, count: int, size: int) -> NDArray[np.float32]:
    """A copy of the memory of so many episodes; zeros where they start."""
    if state is None:
        return np.zeros((count, size), np.float32)
    array = np.array(np.atleast_2d(np.asarray(state)), np.float32, order="C")
    if array.shape != (count, size):
        raise PredictError(
            f"state: expected what predict() returned for the same episodes, float32 [{count}, {size}], or None where"
            f" they start; got shape {list(np.shape(state))}"
        )
    return array


class TeamPredictor:
    """Chooses actions of all agents of an environment.

    Args:
        policy: of all agents.
        obs_dim: length of an agent's observation.
        seed: of draws.
    """

    def __init__(self, policy: MultiAgentPolicy, obs_dim: int, seed: int) -> None:
        self._policy, self._obs_dim = policy, obs_dim
        self._generator = torch.Generator().manual_seed(seed)

    def predict(
        self, obs: Any, state: Any, deterministic: bool, action_masks: NDArray[np.bool_] | None
    ) -> tuple[Any, Any]:
        agents = self._policy.num_agents
        if state is not None or action_masks is not None:
            raise PredictError("this policy of several agents has no memory and no masks: leave them out")
        if isinstance(obs, Mapping):
            raise PredictError("obs: expected an array of all agents' observations, got a dict")
        array = np.asarray(obs, np.float32)
        if array.ndim not in (2, 3) or array.shape[-2:] != (agents, self._obs_dim):
            raise PredictError(
                f"obs: expected [{agents}, {self._obs_dim}], a row of each agent, or [N, {agents}, {self._obs_dim}],"
                f" got {list(array.shape)}"
            )
        rows = np.ascontiguousarray(array.reshape(-1, self._obs_dim))
        actions = self._policy.act(rows, np.ones(len(rows), np.bool_), deterministic, self._generator)
        return actions.reshape(*array.shape[:-1], *actions.shape[1:]), None


class ParallelPredictor:
    """Chooses actions of the agents of a parallel environment of PettingZoo that are alive.

    Args:
        policy: of all agents.
        form: of the environment.
        seed: of draws.
    """

    def __init__(self, policy: MultiAgentPolicy, form: ParallelForm, seed: int) -> None:
        self._policy, self._form = policy, form
        self._generator = torch.Generator().manual_seed(seed)

    def predict(
        self, obs: Any, state: Any, deterministic: bool, action_masks: NDArray[np.bool_] | None
    ) -> tuple[Any, Any]:
        form = self._form
        if state is not None or action_masks is not None:
            raise PredictError("this policy of several agents has no memory and no masks: leave them out")
        if not isinstance(obs, Mapping) or not obs or not obs.keys() <= set(form.agents):
            got = f"a dict of {', '.join(map(repr, obs))}" if isinstance(obs, Mapping) else describe(obs)
            raise PredictError(
                f"obs: expected a dict of observations by agent ({', '.join(map(repr, form.agents))}), got {got}"
            )
        alive = np.array([agent in obs for agent in form.agents])
        rows = np.zeros((len(alive), *form.row_space.shape), form.row_space.dtype)
        for a in np.flatnonzero(alive):
            own = form.obs_rows[a]
            try:
                own.write(obs[form.agents[a]], rows[a, : own.size])
            except RowError as error:
                raise PredictError(f"obs[{form.agents[a]!r}]: {error}") from None
        if rows.dtype == np.float32 and not np.isfinite(rows).all():
            raise PredictError("obs: expected finite numbers, got NaN or infinity")
        actions = self._policy.act(rows, alive, deterministic, self._generator)
        return {form.agents[a]: form.to_env(a, actions[a]) for a in np.flatnonzero(alive)}, None
