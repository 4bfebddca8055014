"""The actor of all agents of an environment: to each agent's rows that of its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl._native._rust import Mlp
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, ActorSpec, MlpActor, moved

# Chooses actions by rule: from observations [B, obs_dim] and agent indices int64 [B], actions of the environment, int64
# [B] or [B, n], or float32 [B, n]. It is not given action masks, and should keep to them all the same.
Scripted = Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]


class Member(NamedTuple):
    """A policy that some agents follow.

    Attributes:
        make: makes its actor; None: it is a rule.
        rule: None: it has an actor.
        num_ids: length of the one-hot index of the agent that the actor gets behind an observation; 0: none.
        learns: its weights are those that `TeamActor.load` reads; otherwise the actor has its own.
    """

    make: ActorSpec | None = None
    rule: Scripted | None = None
    num_ids: int = 0
    learns: bool = True


class TeamActor:
    """Chooses actions for rows of agents, row = environment * A + agent.

    Args:
        names: of the policy of each agent, A.
        members: policies by name.
        actions: `Actions.state` of an agent's.
        num_threads: of compiled actors.
        indices: of the agents in the environment that the policies have learned in; None: 0 to A - 1.

    Attributes:
        state_size: length of an agent's state: that of the policy with the longest; shorter ones use its first numbers.
        is_compiled: PyTorch computes none of the actors.

    Raises:
        ValueError: a name without a policy.
    """

    def __init__(
        self,
        names: Sequence[str],
        members: Mapping[str, Member],
        actions: Mapping[str, Any],
        num_threads: int = 1,
        indices: Sequence[int] | None = None,
    ) -> None:
        if missing := sorted(set(names) - members.keys()):
            raise ValueError(
                f"every agent needs a policy: there is none named {missing}, only {sorted(members)}"
            )
        self._given = (names, members, actions)
        self._indices = np.arange(len(names)) if indices is None else np.array(indices)
        self._num_agents = len(names)
        self._actions = Actions.from_state(actions)
        self._members = {name: members[name] for name in dict.fromkeys(names)}
        self._agents = {name: np.array([each == name for each in names]) for name in self._members}
        self._actors: dict[str, Actor] = {}
        for name, member in sorted(self._members.items()):
            if member.make is not None:
                actor = member.make()
                if num_threads > 1 and member.learns and isinstance(actor, MlpActor):
                    actor = actor.with_threads(num_threads)
                self._actors[name] = actor
        self.is_compiled = all(getattr(actor, "is_compiled", False) for actor in self._actors.values())
        self._learning = [name for name in self._actors if members[name].learns]
        self.weights_nbytes = sum(self._actors[name].weights_nbytes for name in self._learning)
        self.state_size = max((actor.state_size for actor in self._actors.values()), default=0)

    @property
    def mlp(self) -> Mlp | None:
        """The compiled network that acts for all agents, from their observations alone; None: there is none."""
        [(name, member), *others] = self._members.items()
        actor = self._actors.get(name)
        return actor.mlp if isinstance(actor, MlpActor) and not others and not member.num_ids else None

    def with_threads(self, num_threads: int) -> TeamActor:
        """Makes an actor of the same policies with another number of threads, without weights."""
        return TeamActor(*self._given, num_threads, self._indices.tolist())

    def to(self, device: str) -> None:
        """Has actors that PyTorch computes use a device."""
        for actor in self._actors.values():
            moved(actor, device)

    def load(self, weights: Buffer) -> None:
        """Takes the weights of the policies that learn, in the order of their names; see `Actor.load`."""
        data = memoryview(weights).cast("B")
        if data.nbytes != self.weights_nbytes:
            raise ValueError(f"weights: expected {self.weights_nbytes} bytes, got {data.nbytes}")
        end = 0
        for name in self._learning:
            actor = self._actors[name]
            start, end = end, end + actor.weights_nbytes
            actor.load(data[start:end])

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
        alive: NDArray[np.bool_],
    ) -> None:
        """Does as `Actor.act`, for R rows of agents.

        Args:
            masks: rules do not see them.
            alive: bool [R], agents that act; zeros are written for others, whose masks are not read.
        """
        rows = np.arange(len(obs))
        actions[~alive], log_probs[~alive] = 0, 0.0
        for name, agents in self._agents.items():
            member = self._members[name]
            chosen = rows[alive & np.tile(agents, len(obs) // self._num_agents)]
            if not len(chosen):
                continue
            if len(chosen) == len(rows) and not member.num_ids and member.make is not None:
                self._actors[name].act(obs, streams, steps, actions, log_probs, masks, states, greedy=greedy)
                continue
            seen, indices = obs[chosen], self._indices[chosen % self._num_agents]
            if member.rule is not None:
                actions[chosen] = self._by_rule(name, member.rule, seen, indices)
                log_probs[chosen] = 0.0
                continue
            if member.num_ids:
                seen = np.concatenate([seen, np.eye(member.num_ids, dtype=obs.dtype)[indices]], axis=1)
            drawn, chances = actions[chosen], log_probs[chosen]
            allowed = None if masks is None else masks[chosen]
            actor, memory = self._actors[name], None
            if states is not None and actor.state_size:
                memory = states[chosen, : actor.state_size]
            actor.act(seen, streams[chosen], steps[chosen], drawn, chances, allowed, memory, greedy=greedy)
            actions[chosen], log_probs[chosen] = drawn, chances
            if states is not None and memory is not None:
                states[chosen, : actor.state_size] = memory

    def _by_rule(
        self, name: str, rule: Scripted, obs: NDArray[Any], agents: NDArray[np.int64]
    ) -> NDArray[Any]:
        actions = np.asarray(rule(obs, agents))
        shape = (len(obs), *self._actions.shape)
        if actions.shape != shape:
            raise ValueError(
                f"the scripted policy {name!r} should give actions {list(shape)}, gave {list(actions.shape)}"
            )
        return self._actions.from_env(actions)
