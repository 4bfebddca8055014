"""Environments of several agents in which frozen opponents play some of them, and only the others learn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fastrl._native._rust import TrafficScene
from fastrl.envs.contract import ContractError
from fastrl.envs.multi_agent import MultiAgentVectorEnv, reset_ended
from fastrl.envs.vector import as_autoreset_mode
from fastrl.utils.seeding import agent_streams, stream

# Purposes of random numbers of an episode: which opponent it is against, and the opponent's actions.
_WHICH, _ACTS = 1, 2


class Turn(NamedTuple):
    """The agents of K environments before a step, as an opponent sees them; row = environment * A + agent.

    Attributes:
        env: the environments.
        obs: float32 or uint8 [K * A, D].
        mine: bool [K * A], the rows that it plays.
        streams: uint64 [K * A], of the agents' episodes; see `fastrl.networks.compiled_actor.Actor.act`.
        steps: int64 [K * A], of the episodes so far.
        masks: bool [K * A, M], the actions that are allowed; None: the environments have no masks.
        states: float32 [K * A, n], the memory of the agents' episodes, zeros at their start. The opponent replaces the
            first `Opponent.state_size` numbers of its rows.
    """

    env: MultiAgentVectorEnv
    obs: NDArray[Any]
    mine: NDArray[np.bool_]
    streams: NDArray[np.uint64]
    steps: NDArray[np.int64]
    masks: NDArray[np.bool_] | None
    states: NDArray[np.float32]


class Opponent(Protocol):
    """A policy that does not learn. It is asked before every step, also if it plays nobody there."""

    @property
    def state_size(self) -> int:
        """Length of its memory of an agent's episode; 0: it has none."""
        ...

    def act(self, turn: Turn) -> NDArray[Any]:
        """The actions of its rows, in their order."""
        ...


@dataclass(frozen=True)
class Pool:
    """Snapshots of a policy, numbered in the order in which they join; the newest ones are opponents.

    Attributes:
        size: how many of them are in the draw.
        load: makes the opponent of a number for the environments of all agents. It is asked only where it plays.
        count: snapshots that there are at first.
        state_size: at least the `Opponent.state_size` of each.
    """

    size: int
    load: Callable[[int, MultiAgentVectorEnv], Opponent]
    count: int = 0
    state_size: int = 0


class OpponentVectorEnv(MultiAgentVectorEnv):
    """K environments of the agents that learn; opponents play the frozen ones.

    The opponent of each episode is drawn. The draw, and the random numbers of its actions, follow from the seed of the
    environment and the number of the episode since, whatever the others do. An episode ends when no agent that learns
    is alive; one has to be at its start.

    If the agents that learn have equal spaces, observations, actions and masks have these; otherwise they have the
    padded ones of the environment.

    Args:
        num_envs: K.
        make: makes so many environments in the autoreset mode "disabled".
        opponents: of which each episode has one.
        frozen: indices of the agents that they play.
        weights: of the opponents in the draw, and after them of the pool's, the newest first; None: even.
        pool: further opponents.
        autoreset_mode: "same_step" or "disabled".

    Raises:
        ValueError: no opponent, no agent that learns, no such agent, or another autoreset mode.
    """

    def __init__(
        self,
        num_envs: int,
        make: Callable[[int], MultiAgentVectorEnv],
        *,
        opponents: Sequence[Opponent],
        frozen: Sequence[int],
        weights: Sequence[float] | None = None,
        pool: Pool | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        if as_autoreset_mode(autoreset_mode) is AutoresetMode.NEXT_STEP:
            raise ValueError("autoreset_mode: expected 'same_step' or 'disabled', got 'next_step'")
        env = make(num_envs)
        try:
            native = _Opposed(env, opponents, frozen, weights, pool)
        except BaseException:
            env.close()
            raise
        free = native.free.tolist()
        super().__init__(native.in_mode, *native.spaces, autoreset_mode=autoreset_mode, name=env.name)
        self.agents = [env.agents[a] for a in free]
        self.groups = tuple(env.groups[a] for a in free)
        self.view, self.fps = env.view, env.fps
        if not native.is_cut:
            self.obs_space, self.obs_shapes = env.obs_space, tuple(env.obs_shapes[a] for a in free)

    def agent_spaces(self, *, padded: bool) -> list[Any]:
        inner, free = self._native.env.agent_spaces(padded=padded), self._native.free
        return super().agent_spaces(padded=True) if self._native.is_cut else [inner[a] for a in free]

    @property
    def num_opponents(self) -> int:
        """Opponents in the draw: those that were given, and as many as the pool has room for."""
        return self._native.num_opponents

    @property
    def has_pool(self) -> bool:
        return self._native.pool is not None

    def set_weights(self, weights: ArrayLike) -> None:
        """Sets the weights of the opponents in the draws of the episodes that start from now on.

        Args:
            weights: float64 [num_opponents], or [K, num_opponents] with those of each environment.

        Raises:
            ValueError: as of the class.
        """
        self._native.set_weights(np.asarray(weights, np.float64))

    def set_pool(self, counts: ArrayLike) -> None:
        """Sets how many snapshots the pool has had so far, for the episodes that start from now on. Weights of places
        in the pool that are still empty should be 0.

        Args:
            counts: int64, or [K] with those of each environment.
        """
        self._native.counts[...] = counts

    def drawn(self) -> NDArray[np.int64]:
        """The index of the opponent of each environment's present episode, int64 [K]; of a snapshot of the pool its
        number, counted on from the other opponents."""
        return self._native.drawn.copy()

    @property
    def unopposed(self) -> MultiAgentVectorEnv:
        """The environments of all agents. It is stepped here: it may be looked at, but not changed."""
        return self._native.env

    @property
    def has_scenes(self) -> bool:
        return self.unopposed.has_scenes

    def scene(self, index: int = 0) -> TrafficScene:
        return self.unopposed.scene(index)

    @property
    def render_modes(self) -> Sequence[str]:
        return self.unopposed.render_modes

    def render(self, mode: str = "rgb_array") -> tuple[Any, ...]:
        return self.unopposed.render(mode)


class _Opposed:
    """Environments with opponents behind the interface of a compiled simulator (`fastrl._native._rust.NativeVec`)."""

    def __init__(
        self,
        env: MultiAgentVectorEnv,
        opponents: Sequence[Opponent],
        frozen: Sequence[int],
        weights: Sequence[float] | None,
        pool: Pool | None,
    ) -> None:
        if not opponents and pool is None:
            raise ValueError("opponents: expected at least one, got none")
        self.env, self.num_envs, self._opponents = env, env.num_envs, list(opponents)
        self._is_frozen = np.zeros(env.num_agents, np.bool_)
        if not {*frozen} < {*range(env.num_agents)}:
            raise ValueError(
                f"frozen: expected indices of some of {env.num_agents} agents, and not all, got {list(frozen)}"
            )
        self._is_frozen[list(frozen)] = True
        self.pool = pool
        self.num_opponents = len(opponents) + (0 if pool is None else pool.size)
        # Of each environment, snapshots that the pool has had for its next episode.
        self.counts = np.full(self.num_envs, 0 if pool is None else pool.count)
        # The pool's opponents that play, by index; the given ones and those that play.
        self._snapshots: dict[int, Opponent] = {}
        self._players = list(enumerate(opponents))
        # Of each environment, the shares of random numbers below which the opponents lie.
        self._bounds = np.zeros((self.num_envs, self.num_opponents))
        even = np.ones(len(opponents) + (0 if pool is None else min(pool.count, pool.size)))
        if weights is not None or len(even):
            given = np.pad(even, (0, self.num_opponents - len(even))) if weights is None else weights
            self.set_weights(np.array(given, np.float64))
        self.free = np.flatnonzero(~self._is_frozen)
        self.num_agents = len(self.free)
        spaces: Any = (env.single_observation_space, env.single_action_space)
        own = env.agent_spaces(padded=False)
        first = own[self.free[0]]
        # The agents that learn see no padding if none of them needs it.
        self.is_cut = first != spaces and all(own[a] == first for a in self.free)
        if self.is_cut and not isinstance(first[0], Box):
            # Rows are numbers, whatever they mean.
            (size,), box = first[0].shape, spaces[0]
            first = Box(box.low[:size], box.high[:size], dtype=box.dtype), first[1]
        self.spaces = first if self.is_cut else spaces
        (self.obs_dim,), self.num_masked = self.spaces[0].shape, env.num_masked
        actions = self.spaces[1]
        if self.is_cut and isinstance(actions, Discrete):
            self.num_masked = min(env.num_masked, int(actions.n))
        size, padded = self.num_envs * env.num_agents, env.single_observation_space
        self._obs = np.zeros((size, *padded.shape), padded.dtype)
        self._alive, self._terminations, self._truncations = (np.zeros(size, np.bool_) for _ in range(3))
        self._rewards = np.zeros(size, np.float32)
        self._actions = np.zeros(
            (size, *(env.single_action_space.shape or ())), env.single_action_space.dtype
        )
        self._masks: NDArray[np.bool_] | None = None
        # Of the present episodes: seed of the environment, episodes since, steps and opponent; memories of agents.
        self._seeds, self._numbers = np.zeros(self.num_envs, np.uint64), np.zeros(self.num_envs, np.int64)
        self._steps, self.drawn = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, np.int64)
        self._streams = np.zeros(size, np.uint64)
        sizes = [0 if pool is None else pool.state_size, *(each.state_size for each in opponents)]
        self._states = np.zeros((size, max(sizes)), np.float32)
        self._same_step = False

    def set_weights(self, weights: NDArray[np.float64]) -> None:
        shapes = (self.num_opponents,), self._bounds.shape
        sums = weights.sum(axis=-1, keepdims=True)
        if weights.shape not in shapes or not (
            (weights >= 0).all() and (sums > 0).all() and (sums < np.inf).all()
        ):
            raise ValueError(
                f"weights: expected {self.num_opponents} numbers from 0 on, some above 0, got {weights.tolist()}"
            )
        bounds = np.cumsum(weights, axis=-1)
        # Exactly 1 from the last one above 0 on, so that none after it is drawn.
        self._bounds[...] = np.where(bounds == bounds[..., -1:], 1.0, bounds / sums)

    def in_mode(self, mode: str) -> Any:
        self._same_step = mode == "same_step"
        return self

    def _of_free(self, flat: NDArray[Any]) -> NDArray[Any]:
        """The rows of the agents that learn, [K, A', ...], out of [K * A, ...]."""
        return flat.reshape(self.num_envs, -1, *flat.shape[1:])[:, self.free]

    def _as_own(self, flat: NDArray[Any]) -> NDArray[Any]:
        """A view [K, A', ...] of what is [K * A', ...]."""
        return flat.reshape(self.num_envs, self.num_agents, *flat.shape[1:])

    def reset(
        self,
        obs: NDArray[Any],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        mask = np.ones(self.num_envs, np.bool_) if reset_mask is None else reset_mask
        self.env.reset_into(self._obs, self._alive, seed=seeds, reset_mask=reset_mask)
        self._start(mask, seeds)
        self._write(obs, alive, mask)

    def _start(self, mask: NDArray[np.bool_], seeds: NDArray[np.uint64] | None) -> None:
        """Draws the opponents of episodes that start in the environments of a mask."""
        if (mask & ~self._of_free(self._alive).any(axis=1)).any():
            raise ContractError(f"{self.env.name}: no agent that learns is there at the start of an episode")
        self._numbers[mask] += 1
        if seeds is not None:
            self._seeds[mask], self._numbers[mask] = seeds[mask], 0
        self._steps[mask] = 0
        self._states.reshape(self.num_envs, -1)[mask] = 0
        if not self._bounds.any():
            raise ContractError(f"{self.env.name}: the pool has no opponent yet")
        shares = (self._episodes(_WHICH) >> np.uint64(11)) * 2.0**-53
        drawn, given = (self._bounds <= shares[:, None]).sum(axis=1), len(self._opponents)
        # Places in the pool count from the newest snapshot, indices from the first.
        drawn = np.where(drawn < given, drawn, 2 * given + self.counts - 1 - drawn)
        self.drawn[mask] = drawn[mask]
        self._find_players()
        self._masks, self._streams = None, self._agent_streams()

    def _find_players(self) -> None:
        """Loads the snapshots that play, and forgets those that do not and are no longer in the draw."""
        if self.pool is None:
            return
        given, playing = len(self._opponents), {*self.drawn.tolist()}
        newest = given + int(self.counts.min()) - self.pool.size
        self._snapshots = {i: each for i, each in self._snapshots.items() if i in playing or i >= newest}
        for index in playing - self._snapshots.keys() - {*range(given)}:
            self._snapshots[index] = self.pool.load(index - given, self.env)
        among = sorted(playing & self._snapshots.keys())
        self._players = [*enumerate(self._opponents), *((index, self._snapshots[index]) for index in among)]

    def _episodes(self, purpose: int) -> NDArray[np.uint64]:
        """Random numbers of the present episodes for a purpose, uint64 [K]."""
        return stream(purpose, self._seeds, self._numbers)

    def _agent_streams(self) -> NDArray[np.uint64]:
        return agent_streams(self._episodes(_ACTS), self.env.num_agents).ravel()

    def _write(self, obs: NDArray[Any], alive: NDArray[np.bool_] | None, mask: NDArray[np.bool_]) -> None:
        self._as_own(obs)[mask] = self._of_free(self._obs)[mask, :, : self.obs_dim]
        if alive is not None:
            self._as_own(alive)[mask] = self._of_free(self._alive)[mask]

    def observe(self, obs: NDArray[Any], alive: NDArray[np.bool_] | None = None) -> None:
        self._write(obs, alive, np.ones(self.num_envs, np.bool_))

    def _present_masks(self) -> NDArray[np.bool_]:
        if self._masks is None:
            self._masks = self.env.action_masks()
        return self._masks

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self._as_own(out)[...] = self._of_free(self._present_masks())[..., : self.num_masked]

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[Any] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        expected = (self.num_envs * self.num_agents, *self._actions.shape[1:])
        if actions.shape != expected:
            raise ValueError(f"actions: expected shape {expected}, got {actions.shape}")
        if actions.dtype != self._actions.dtype:
            raise TypeError(f"actions: expected {self._actions.dtype}, got {actions.dtype}")
        space: Any = self.spaces[1]
        if isinstance(space, Discrete) and ((actions < 0) | (actions >= space.n)).any():
            raise ValueError(f"actions: expected numbers from 0 to {space.n - 1}")
        acted = self._of_free(self._alive)
        self._act()
        self._actions.reshape(self.num_envs, -1, *actions.shape[1:])[:, self.free] = self._as_own(actions)
        outputs = self._obs, self._rewards, self._terminations, self._truncations, self._alive
        self.env.step_into(self._actions, *outputs)
        self._masks = None
        self._steps += 1
        for out, flat in (
            (rewards, self._rewards),
            (terminations, self._terminations),
            (truncations, self._truncations),
        ):
            self._as_own(out)[...] = self._of_free(flat)
        self.observe(obs, alive)
        if self._same_step:
            reset_ended(self, acted, self._of_free(self._alive), obs, final_obs, alive)

    def _act(self) -> None:
        """Sets the actions of the frozen agents."""
        playing = self._alive.reshape(self.num_envs, -1) & self._is_frozen
        masks = self._present_masks() if self.env.num_masked else None
        steps = np.repeat(self._steps, self.env.num_agents)
        for index, opponent in self._players:
            mine = (playing & (self.drawn == index)[:, None]).ravel()
            turn = Turn(self.env, self._obs, mine, self._streams, steps, masks, self._states)
            self._actions[mine] = opponent.act(turn)

    def set_difficulty(self, num_agents: Any, density: Any) -> None:
        self.env.set_difficulty(num_agents=num_agents, density=density)

    def save_state(self, index: int | None = None) -> bytes:
        body = b"".join(each.tobytes() for each in self._saved(index))
        return self.env.save_state(index) + zlib.crc32(body).to_bytes(4, "little") + body

    def _saved(self, index: int | None) -> list[NDArray[Any]]:
        """Views of what is saved of all environments, or of one."""
        at = slice(None) if index is None else slice(index, index + 1)
        states = self._states.reshape(self.num_envs, -1)
        counts = () if self.pool is None else (self.counts,)
        return [
            each[at]
            for each in (self._seeds, self._numbers, self._steps, self.drawn, states, self._bounds, *counts)
        ]

    def load_state(self, state: bytes, index: int | None = None) -> None:
        inner, parts = self._split(state, self.num_envs if index is None else 1)
        self.env.load_state(inner, index)
        self._restore(parts, index)

    def _restore(self, parts: Sequence[NDArray[Any]], index: int | None) -> None:
        """Takes over what is saved of opponents, of as many environments or of one."""
        for own, part in zip(self._saved(index), parts, strict=True):
            own[...] = part
        self._find_players()
        self._obs[...], self._alive[...] = self.env.observe()
        self._masks, self._streams = None, self._agent_streams()

    def _split(self, state: bytes, count: int) -> tuple[bytes, list[NDArray[Any]]]:
        """The state of so many environments themselves, and what is saved of their opponents beside it.

        Raises:
            ValueError: it is damaged.
        """
        kept = self._saved(None)
        sizes = [each.nbytes // self.num_envs * count for each in kept]
        at = len(state) - sum(sizes)
        if at < 4 or zlib.crc32(state[at:]).to_bytes(4, "little") != state[at - 4 : at]:
            raise ValueError(
                "this environment state cannot be restored: what it says of opponents is damaged"
            )
        inner, parts = state[: at - 4], []
        for each, size in zip(kept, sizes, strict=True):
            parts.append(np.frombuffer(state[at : at + size], each.dtype).reshape(count, *each.shape[1:]))
            at += size
        most = len(self._opponents) + (0 if self.pool is None else parts[-1])
        if not ((parts[3] >= 0) & (parts[3] < most)).all():
            raise ValueError("this environment state cannot be restored: it is of other opponents")
        return inner, parts

    def branch(self, state: bytes, seeds: NDArray[np.uint64] | None = None) -> None:
        inner, parts = self._split(state, 1)
        before, self.env = self.env, self.env.branch(inner, self.num_envs, seed=seeds)
        before.close()
        self._restore(parts if seeds is None else [seeds, *parts[1:]], None)

    def close(self) -> None:
        self.env.close()
