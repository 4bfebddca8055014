"""Trained policies as opponents of the agents that learn, see `fastrl.envs.opponents`."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.opponents import Turn
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.networks.team_actor import Member, TeamActor
from fastrl.play.policy import Policy
from fastrl.runs.checkpoint import CheckpointError


class PolicyOpponent:
    """Plays agents by policies, those of one policy together.

    Args:
        actor: of A' agents.
        actions: that its draws become.
        agents: the indices in the environment of these agents, in increasing order.
        obs_dim: length of an observation that it takes.
        columns: so many numbers of an agent's row are its own observation; zeros follow them. None: all.
        choices: the environment's action for each of its own, int64 [n]. What it may choose beyond them is action 0.
            None: they are the same.
        action_masks: it keeps to the environment's.
        deterministic: the likeliest actions; otherwise they are drawn.
    """

    def __init__(
        self,
        actor: TeamActor,
        actions: Actions,
        agents: Sequence[int],
        *,
        obs_dim: int,
        columns: int | None = None,
        choices: NDArray[np.int64] | None = None,
        action_masks: bool = False,
        deterministic: bool = True,
    ) -> None:
        self._actor, self._actions, self._agents = actor, actions, list(agents)
        self._obs_dim, self._columns, self._masked = obs_dim, columns, action_masks
        self._choices, self._deterministic = choices, deterministic

    @classmethod
    def from_policy(cls, policy: Policy, agent: int, *, columns: int, deterministic: bool = True) -> Self:
        """The policy of a run of one agent, as one agent of several.

        Args:
            columns: see the class.
        """
        actions = Actions(policy.action_space)
        member = Member(make=lambda: policy.actor, learns=False)
        return cls(
            TeamActor(["policy"], {"policy": member}, actions.state()),
            actions,
            [agent],
            obs_dim=policy.obs_dim,
            columns=columns,
            choices=policy.actions,
            action_masks=policy.needs_action_mask,
            deterministic=deterministic,
        )

    @classmethod
    def from_team(cls, state: Mapping[str, Any], agents: Mapping[int, int], **options: Any) -> Self:
        """Agents of a run of many.

        Args:
            state: `MultiAgentPolicy.state`, as a checkpoint has it.
            agents: the agent of the run that plays each agent of the environment, in the environment's order.
            options: the others of the class but for ``obs_dim``.

        Raises:
            ValueError: the state is damaged, or has no such agents.
        """
        team = MultiAgentPolicy.from_state(state)
        if not {*agents.values()} <= {*range(team.num_agents)}:
            raise ValueError(f"expected a policy of more agents, got one of {team.num_agents}")
        names = [team.names[a] for a in agents.values()]
        members = {
            name: Member(
                team.networks[name].fixed_actor_spec(), num_ids=team.networks[name].num_ids, learns=False
            )
            for name in names
        }
        actor = TeamActor(names, members, team.actions.state(), indices=[*agents.values()])
        return cls(actor, team.actions, [*agents], obs_dim=team.networks[names[0]].obs_dim, **options)

    def check_fits(self, env: MultiAgentVectorEnv, name: str) -> None:
        """Refuses an environment whose agents have other observations or actions.

        Args:
            name: its own, for messages.

        Raises:
            CheckpointError
        """
        own, padded = env.agent_spaces(padded=False), (env.single_observation_space, env.single_action_space)
        here = (self._obs_dim,), self._actions.state()
        for a in self._agents:
            there = [(obs.shape, Actions(actions).state()) for obs, actions in (own[a], padded)]
            if here not in there:
                raise CheckpointError(
                    f"{name} does not fit agent {env.agents[a]} of {env.name}: its policy has observations {here[0]}"
                    f" and actions {here[1]}, the agent {there[0][0]} and {there[0][1]}"
                )

    @property
    def state_size(self) -> int:
        return self._actor.state_size

    def act(self, turn: Turn) -> NDArray[Any]:
        """See `Opponent.act`."""
        playing = turn.mine.reshape(-1, turn.env.num_agents)
        # The rows of its agents where it plays one.
        envs = np.flatnonzero(playing.any(1))
        rows = (envs[:, None] * turn.env.num_agents + self._agents).ravel()
        mine = turn.mine[rows]
        draws = np.zeros((len(rows), *self._actions.shape), self._actions.dtype)
        if len(rows):
            states = np.ascontiguousarray(turn.states[rows][:, : self.state_size])
            masks = self._masks(turn.masks[rows]) if self._masked and turn.masks is not None else None
            self._actor.act(
                _fitted(turn.obs[rows][:, : self._columns], self._obs_dim),
                turn.streams[rows],
                turn.steps[rows],
                draws,
                np.zeros(len(rows), np.float32),
                masks,
                states if self.state_size else None,
                greedy=self._deterministic,
                alive=mine,
            )
            turn.states[turn.mine, : self.state_size] = states[mine]
        chosen = self._actions.to_env(draws[mine])
        if self._choices is None:
            return chosen
        known = chosen < len(self._choices)
        return np.where(known, self._choices[np.where(known, chosen, 0)], 0)

    def _masks(self, masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        own = masks if self._choices is None else masks[:, self._choices]
        return _fitted(own, self._actions.size)


def _fitted(rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Rows [R, width] that begin with these, and zeros after them."""
    if rows.shape[1] == width:
        return np.ascontiguousarray(rows)
    fitted = np.zeros((len(rows), width), rows.dtype)
    fitted[:, : rows.shape[1]] = rows[:, :width]
    return fitted
