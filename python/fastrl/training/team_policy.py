"""Policies of several agents: actions of all of them, for observations of the environment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.contract import describe
from fastrl.envs.rows import RowError
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.training.policy import PredictError


class TeamPolicy:
    """Chooses actions of all agents of an environment, as `fastrl.training.policy.Policy` does those of one.

    Args:
        policy: of all agents.
        obs_dim: length of an agent's observation.
        form: of a parallel environment of PettingZoo, whose agents have names; None: an array has a row of each agent.
        seed: of draws.
    """

    def __init__(self, policy: MultiAgentPolicy, obs_dim: int, form: ParallelForm | None, seed: int) -> None:
        self._policy, self.obs_dim, self.form = policy, obs_dim, form
        self._generator = torch.Generator().manual_seed(seed)

    def predict(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, None]:
        """The actions for observations of the environment; see `fastrl.Model.predict`.

        Raises:
            PredictError: they do not fit the policy.
        """
        if state is not None or action_masks is not None:
            raise PredictError("this policy of several agents has no memory and no masks: leave them out")
        if self.form is None:
            return self._of_rows(obs, deterministic), None
        return self._of_names(obs, self.form, deterministic), None

    def _of_rows(self, obs: Any, deterministic: bool) -> Any:
        agents = self._policy.num_agents
        if isinstance(obs, Mapping):
            raise PredictError("obs: expected an array of all agents' observations, got a dict")
        array = np.asarray(obs, np.float32)
        if array.ndim not in (2, 3) or array.shape[-2:] != (agents, self.obs_dim):
            raise PredictError(
                f"obs: expected [{agents}, {self.obs_dim}], a row of each agent, or [N, {agents}, {self.obs_dim}],"
                f" got {list(array.shape)}"
            )
        rows = np.ascontiguousarray(array.reshape(-1, self.obs_dim))
        actions = self._policy.act(rows, np.ones(len(rows), np.bool_), deterministic, self._generator)
        return actions.reshape(*array.shape[:-1], *actions.shape[1:])

    def _of_names(self, obs: Any, form: ParallelForm, deterministic: bool) -> Any:
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
        return {form.agents[a]: form.to_env(a, actions[a]) for a in np.flatnonzero(alive)}
