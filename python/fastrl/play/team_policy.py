"""Policies of several agents: actions of all of them, for observations of the environment."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.contract import describe
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import Act
from fastrl.envs.rows import ObsRows, RowError
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.play.distribution import ActionDistribution, distribution_of
from fastrl.play.policy import PredictError, choose, masks_of, states_of
from fastrl.runs.checkpoint import CheckpointError
from fastrl.runs.metrics import counted

TeamCritic = Callable[[NDArray[Any], NDArray[np.bool_]], Tensor | None]
"""Gives values [K] of rows of agents [K, D], of which some act, bool [K]; None: it cannot."""


class TeamPolicy:
    """Chooses actions of all agents of an environment, as `fastrl.play.policy.Policy` does those of one.

    `predict` takes observations of the environment and gives its actions; `act` takes and gives rows of agents.

    Args:
        state: `MultiAgentPolicy.state`, as a checkpoint has it.
        form: of a parallel environment of PettingZoo, whose agents have names; None: an array has a row of each agent.
        seed: of draws.

    Attributes:
        team: the policies.
        obs_dim: length of an agent's observation.
        state_size: length of the memory of an agent's episode; 0: no policy has one.

    Raises:
        ValueError: an agent acts by a rule, or the state is damaged.
    """

    def __init__(self, state: Mapping[str, Any], form: ParallelForm | None = None, seed: int = 0) -> None:
        self.team, self.form = MultiAgentPolicy.from_state(state), form
        self.obs_dim = self.team.networks[self.team.names[0]].obs_dim
        self.state_size = self.team.state_size
        self._actor = self.team.actor_spec()()
        self._generator = np.random.default_rng([seed, 1])

    def act_in(self, env: MultiAgentVectorEnv, *, action_masks: bool, deterministic: bool = True) -> Act:
        """`act` for the agents of an environment.

        Args:
            action_masks: it keeps to the environment's.
            deterministic: as of `act`.

        Raises:
            CheckpointError: the policies are of other agents.
        """
        self.check_fits(env)

        def act(obs: NDArray[Any], alive: NDArray[np.bool_], states: Any) -> tuple[NDArray[Any], Any]:
            if states is None:
                states = self._states(None, (len(obs),))
            masks = env.action_masks() if action_masks else None
            return self.act(obs, alive, masks, deterministic, states=states), states

        return act

    def check_fits(self, env: MultiAgentVectorEnv) -> None:
        """Refuses an environment of other agents.

        Raises:
            CheckpointError
        """
        rows, shape = ObsRows(env.obs_space), env.single_observation_space.shape
        for net in self.team.networks.values():
            # A perceptron takes a table as numbers.
            has_parts = rows.dtype == np.uint8 or net.obs_parts is not None
            parts = rows.state() if has_parts else None
            there = (env.num_agents, shape, parts, Actions(env.single_action_space).state())
            here = (self.team.num_agents, (net.obs_dim,), net.obs_parts, self.team.actions.state())
            if here != there:
                raise CheckpointError(
                    f"the policy does not fit its environment, {env.name}: it is for {_described(*here)};"
                    f" the environment has {_described(*there)}"
                )

    def act(
        self,
        obs: NDArray[Any],
        alive: NDArray[np.bool_],
        action_masks: NDArray[np.bool_] | None = None,
        deterministic: bool = True,
        *,
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[Any]:
        """The actions for rows of agents, row = environment * A + agent, of any number of environments.

        Args:
            obs: float32 or uint8 [K * A, obs_dim].
            alive: bool [K * A], agents that act.
            action_masks: bool [K * A, M], which may be chosen, read where an agent acts; None: all.
            deterministic: the likeliest actions; otherwise they are drawn.
            states: float32 [K * A, state_size], the memory of the agents' episodes, zeros at their start; replaced by
                the memory after this step, of agents that do not act by zeros. None: all episodes start.

        Returns:
            Actions of the environment, int64 [K * A] or [K * A, n], or float32 [K * A, n]; any where no agent is alive.

        Raises:
            ValueError: rows that are no whole number of environments.
        """
        if len(obs) % self.team.num_agents or len(obs) != len(alive):
            raise ValueError(
                f"expected rows of environments of {self.team.num_agents} agents, got {len(obs)} observations"
                f" and {len(alive)} flags"
            )
        if states is None:
            states = self._states(None, (len(obs),))
        actions = choose(
            self._actor,
            self.team.actions,
            self._generator,
            obs,
            action_masks,
            states,
            greedy=deterministic,
            alive=alive,
        )
        if states is not None:
            states[~alive] = 0
        return actions

    def predict(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """The actions for observations of the environment, and the state for the next call; see
        `fastrl.Model.predict`. A state is float32 [A, state_size], or [N, A, state_size] as observations are. Its rows
        of agents that are not among the observations become zeros; where an agent's episode ends without that, its row
        is to be set to zeros.

        Raises:
            PredictError: they do not fit the policy.
        """
        rows, alive, masks, after = self._checked_inputs(obs, state, action_masks)
        states = None if after is None else after.reshape(len(rows), -1)
        actions = self.act(rows, alive, masks, deterministic, states=states)
        if self.form is None:
            return actions.reshape(*np.shape(obs)[:-1], *actions.shape[1:]), after
        form = self.form
        return {form.agents[a]: form.to_env(a, actions[a]) for a in np.flatnonzero(alive)}, after

    @torch.no_grad()
    def distribution(
        self, obs: Any, state: Any = None, action_masks: Any = None, *, critic: TeamCritic | None = None
    ) -> ActionDistribution | dict[str, ActionDistribution]:
        """The distributions of actions that `predict` draws from, and values; see `fastrl.Model.distribution`.

        Raises:
            PredictError: as of `predict`.
        """
        rows, alive, masks, after = self._checked_inputs(obs, state, action_masks)
        seen, agents = torch.from_numpy(rows), torch.arange(len(rows)) % self.team.num_agents
        states = None if after is None else torch.from_numpy(after.reshape(len(rows), -1))
        outputs = torch.zeros(len(rows), self.team.actions.size)
        log_std = torch.zeros_like(outputs)
        for name, network in self.team.networks.items():
            members = np.tile(self.team.members(name), len(rows) // self.team.num_agents)
            chosen = torch.from_numpy(np.flatnonzero(alive & members))
            before = None if states is None else states[chosen]
            outputs[chosen], _, following = network.step_of(seen[chosen], agents[chosen], before)
            if network.log_std is not None:
                log_std[chosen] = network.log_std
            if states is not None and following is not None:
                states[chosen, : following.shape[1]] = following
        values = None if critic is None else critic(rows, alive)

        def of(place: Any) -> ActionDistribution:
            allowed = None if masks is None else torch.from_numpy(masks[place])
            found = distribution_of(network, self.team.actions, outputs[place], log_std[place], allowed)
            return ActionDistribution(found, None if values is None else values[place], None, after)

        if self.form is None:
            return of(slice(None))
        return {self.form.agents[a]: of([a]) for a in np.flatnonzero(alive)}

    def _checked_inputs(
        self, obs: Any, state: Any, action_masks: Any
    ) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_] | None, NDArray[np.float32] | None]:
        """Rows of agents, who acts, masks of all, and a copy of the states in the form of observations, for the
        arguments of `predict`."""
        if state is not None and not self.state_size:
            raise PredictError(f"state: this policy has no memory, expected None, got {type(state).__name__}")
        if action_masks is not None and self.team.actions.is_box:
            raise PredictError("action_masks: this policy's actions are continuous, expected None")
        if self.form is None:
            return self._of_rows(obs, state, action_masks)
        return self._of_names(obs, self.form, state, action_masks)

    def _of_rows(self, obs: Any, state: Any, masks: Any) -> Any:
        agents = self.team.num_agents
        if isinstance(obs, Mapping):
            raise PredictError("obs: expected an array of all agents' observations, got a dict")
        array = np.asarray(obs, np.float32)
        if array.ndim not in (2, 3) or array.shape[-2:] != (agents, self.obs_dim):
            raise PredictError(
                f"obs: expected [{agents}, {self.obs_dim}], a row of each agent, or [N, {agents}, {self.obs_dim}],"
                f" got {list(array.shape)}"
            )
        rows = np.ascontiguousarray(array.reshape(-1, self.obs_dim))
        if masks is not None:
            masks = masks_of("action_masks", masks, (*array.shape[:-1], self.team.actions.size))
            masks = masks.reshape(len(rows), -1)
        return rows, np.ones(len(rows), np.bool_), masks, self._states(state, array.shape[:-1])

    def _states(self, state: Any, agents: tuple[int, ...]) -> NDArray[np.float32] | None:
        """A copy of the memory of agents' episodes, zeros where they start; None: no policy has one."""
        return states_of(state, (*agents, self.state_size)) if self.state_size else None

    def _of_names(self, obs: Any, form: ParallelForm, state: Any, masks: Any) -> Any:
        if not isinstance(obs, Mapping) or not obs or not obs.keys() <= set(form.agents):
            got = f"a dict of {', '.join(map(repr, obs))}" if isinstance(obs, Mapping) else describe(obs)
            raise PredictError(
                f"obs: expected a dict of observations by agent ({', '.join(map(repr, form.agents))}), got {got}"
            )
        alive = np.array([agent in obs for agent in form.agents])
        rows = np.zeros((len(alive), *form.row_space.shape), form.row_space.dtype)
        for a in np.flatnonzero(alive):
            obs_rows = form.obs_rows[a]
            try:
                obs_rows.write(obs[form.agents[a]], rows[a, : obs_rows.size])
            except RowError as error:
                raise PredictError(f"obs[{form.agents[a]!r}]: {error}") from None
        if rows.dtype == np.float32 and not np.isfinite(rows).all():
            raise PredictError("obs: expected finite numbers, got NaN or infinity")
        return rows, alive, self._masks_of(masks, form, alive), self._states(state, alive.shape)

    def _masks_of(self, masks: Any, form: ParallelForm, alive: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """The masks of all agents, bool [A, M], from those of the agents that act, by name; None: there are none."""
        if masks is None:
            return None
        acting = [form.agents[a] for a in np.flatnonzero(alive)]
        if not isinstance(masks, Mapping) or not masks.keys() >= set(acting):
            raise PredictError(
                f"action_masks: expected a dict of the masks of {', '.join(map(repr, acting))}, got {describe(masks)}"
            )
        found = np.zeros((len(alive), self.team.actions.size), np.bool_)
        for a in np.flatnonzero(alive):
            agent, size = form.agents[a], form.action_rows[a].num_choices
            found[a, :size] = masks_of(f"action_masks[{agent!r}]", masks[agent], (size,))
        return found


def _described(num_agents: int, obs: Any, parts: Any, actions: Any) -> str:
    return f"{counted(num_agents, 'agent')}, observations {parts or obs} and actions {actions}"
