"""Parallel environments of PettingZoo as one vector environment of several agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.envs.contract import ContractError, describe
from fastrl.envs.episode_log import EPISODE_FIELDS
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.rows import ActionRows, ObsRows, RowError
from fastrl.envs.spec import is_parallel
from fastrl.utils.seeding import env_seed

_SHOULD_STEP = (
    "step() should return (observations, rewards, terminations, truncations, infos), dicts by agent"
)

# Results of the last episode that an environment counts; the other fields are NaN.
_COUNTED = ("length", "return_mean", "num_agents")


class ParallelVectorEnv(MultiAgentVectorEnv):
    """K copies of a parallel environment of PettingZoo, stepped in this process.

    Agent a of a copy is ``possible_agents[a]``; it is alive while ``agents`` has it, so agents may come and go within
    an episode. Observations are rows (`fastrl.envs.rows.ObsRows`), actions flat ones (`ActionRows`). Agents may differ
    in observations and in numbers of discrete actions: zeros follow shorter rows, and a choice that an agent does not
    have stands for its remainder by the agent's number of choices. An episode ends when ``agents`` is empty, or after
    ``max_episode_steps``.

    The seed of each episode follows from the seed of its copy and the number of the episode. A saved state has the
    actions of the running episodes: `load_state` repeats these.

    Args:
        make: builds one copy.
        num_envs: K.
        max_episode_steps: agents are truncated after so many; 0: never.
        autoreset_mode, name: as of `MultiAgentVectorEnv`.

    Attributes:
        groups: a name for each agent, the same for agents of equal spaces.

    Raises:
        ValueError: it is no parallel environment, or has spaces that do not go together.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        *,
        max_episode_steps: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        name: str = "this environment",
    ) -> None:
        first = make()
        if not is_parallel(first):
            raise ValueError(
                f"env: {name} should make a PettingZoo ParallelEnv, got a {type(first).__name__}; an AECEnv becomes one"
                " with pettingzoo.utils.aec_to_parallel"
            )
        form = _Form.of(first, name)
        envs = [first, *(make() for _ in range(num_envs - 1))]
        self.groups = form.groups

        def native(mode: str) -> Any:
            return _Envs(envs, form, max_episode_steps, mode)

        super().__init__(
            native,
            form.observation_space,
            form.action_space,
            autoreset_mode=autoreset_mode,
            name=name,
        )


@dataclass(frozen=True)
class _Form:
    """The agents of an environment and their spaces, in the order of ``possible_agents``."""

    name: str
    agents: tuple[Any, ...]
    obs_rows: tuple[ObsRows, ...]
    action_rows: tuple[ActionRows, ...]
    groups: tuple[str, ...]
    observation_space: Box
    action_space: Any

    @classmethod
    def of(cls, env: Any, name: str) -> _Form:
        agents = tuple(env.possible_agents)
        if not agents:
            raise ValueError(f"env: {name} has no possible_agents")
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
        obs_rows = tuple(ObsRows(obs) for obs, _ in spaces)
        images = [agent for agent, rows in zip(agents, obs_rows, strict=True) if rows.dtype != np.float32]
        if images:
            raise ValueError(
                f"env: {name}: {images[0]} observes images; policies of many agents take vectors: make vectors of them"
                " in the environment"
            )
        action_rows = tuple(ActionRows(actions) for _, actions in spaces)
        names: list[str] = []
        for index, pair in enumerate(spaces):
            earlier = spaces.index(pair)
            names.append(f"group{len(set(names))}" if earlier == index else names[earlier])
        return cls(
            name,
            agents,
            obs_rows,
            action_rows,
            tuple(names),
            _common_rows(obs_rows),
            _common_actions(name, agents, [rows.flat_space for rows in action_rows]),
        )


def _common_rows(each: Sequence[ObsRows]) -> Box:
    """The space of the rows of all agents: zeros follow shorter ones."""
    size = max(rows.size for rows in each)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    for rows in each:
        space = rows.row_space
        pad = np.zeros(size - rows.size)
        low = np.minimum(low, np.concatenate([space.low.ravel().astype(np.float64), pad]))
        high = np.maximum(high, np.concatenate([space.high.ravel().astype(np.float64), pad]))
    with np.errstate(over="ignore"):
        return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _common_actions(name: str, agents: Sequence[Any], spaces: Sequence[Any]) -> Any:
    """The flat action space of all agents.

    Raises:
        ValueError: there is none.
    """
    if all(isinstance(space, Discrete) for space in spaces):
        return Discrete(max(int(space.n) for space in spaces))
    for agent, space in zip(agents, spaces, strict=True):
        if space != spaces[0]:
            raise ValueError(
                f"env: {name}: the agents' actions should be equal, or all Discrete; those of {agents[0]} are"
                f" {spaces[0]}, of {agent} {space}"
            )
    return spaces[0]


class _Copy:
    """One environment: the rows of its agents, and what repeats its episode."""

    def __init__(self, env: Any, form: _Form, max_episode_steps: int) -> None:
        self.env, self.form, self.limit = env, form, max_episode_steps
        size = len(form.agents)
        self.seed, self.number = 0, -1
        self.actions: list[bytes] = []
        self.obs = np.zeros((size, form.observation_space.shape[0]), np.float32)
        self.rewards = np.zeros(size, np.float64)
        self.terminations, self.truncations, self.alive, self.took_part = (
            np.zeros(size, np.bool_) for _ in range(4)
        )
        self.returns = 0.0
        self.finished = 0
        self.last = dict.fromkeys(_COUNTED, float("nan"))

    def reset(self, seed: int | None = None) -> None:
        """Starts the next episode, or with a seed the first one of it."""
        self.seed, self.number = (self.seed, self.number + 1) if seed is None else (seed, 0)
        self._start()

    def _start(self) -> None:
        result = self.env.reset(seed=env_seed(self.seed, 0, self.number))
        name = self.form.name
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise ContractError(
                f"{name}: reset() should return (observations, infos), got {describe(result)}"
            )
        self.actions, self.returns = [], 0.0
        self.rewards[:], self.terminations[:], self.truncations[:], self.obs[:] = 0, False, False, 0
        self.alive[:] = self._present()
        if not self.alive.any():
            raise ContractError(f"{name}: no agents after reset()")
        self.took_part[:] = self.alive
        self._write_obs("reset", result[0], self.alive)

    def _present(self) -> NDArray[np.bool_]:
        agents = list(self.env.agents)
        unknown = [agent for agent in agents if agent not in self.form.agents]
        if unknown:
            raise ContractError(f"{self.form.name}: agent {unknown[0]!r} is not in possible_agents")
        return np.array([agent in agents for agent in self.form.agents])

    def _write_obs(self, method: str, observations: Mapping[Any, Any], rows: NDArray[np.bool_]) -> None:
        form = self.form
        for a in np.flatnonzero(rows):
            obs_rows = form.obs_rows[a]
            obs = self._value(method, observations, "observation", a)
            try:
                obs_rows.write(obs, self.obs[a, : obs_rows.size])
            except RowError as error:
                raise ContractError(
                    f"{form.name}: {method}() gave {form.agents[a]} an observation that its observation_space does not"
                    f" have: {error}"
                ) from None
        if not np.isfinite(self.obs).all():
            raise ContractError(
                f"{form.name}: observations should be finite, {method}() gave NaN or infinity"
            )

    def _value(self, method: str, values: Mapping[Any, Any], noun: str, a: Any) -> Any:
        agent = self.form.agents[a]
        if agent not in values:
            raise ContractError(f"{self.form.name}: {method}() gave no {noun} of agent {agent!r}")
        return values[agent]

    def step(self, actions: NDArray[Any]) -> None:
        """Steps the agents that are alive; `actions` are flat, of all agents."""
        form, acted = self.form, self.alive.copy()
        chosen: dict[Any, Any] = {}
        for a in np.flatnonzero(acted):
            rows, action = form.action_rows[a], actions[a]
            if isinstance(rows.flat_space, Discrete):
                action = np.int64(action % rows.flat_space.n)
            chosen[form.agents[a]] = rows.to_env(action)
        self.actions.append(actions.tobytes())
        result = self.env.step(chosen)
        if not (
            isinstance(result, tuple)
            and len(result) == 5
            and all(isinstance(part, Mapping) for part in result[:4])
        ):
            raise ContractError(f"{form.name}: {_SHOULD_STEP}, got {describe(result)}")
        observations, rewards, terminations, truncations = result[:4]
        self.rewards[:], self.terminations[:], self.truncations[:], self.obs[:] = 0, False, False, 0
        for a in np.flatnonzero(acted):
            try:
                self.rewards[a] = float(self._value("step", rewards, "reward", a))
            except (TypeError, ValueError):
                raise ContractError(
                    f"{form.name}: step() should give numbers as rewards, got"
                    f" {describe(rewards[form.agents[a]])} for agent {form.agents[a]!r}"
                ) from None
            self.terminations[a] = bool(self._value("step", terminations, "termination", a))
            self.truncations[a] = bool(self._value("step", truncations, "truncation", a))
        present = self._present()
        if self.limit and len(self.actions) >= self.limit:
            self.truncations |= acted & ~self.terminations
            present[:] = False
        ended = self.terminations | self.truncations
        lost = acted & ~present & ~ended
        if lost.any():
            raise ContractError(
                f"{form.name}: agent {form.agents[int(lost.argmax())]!r} left agents without being terminated"
                " or truncated"
            )
        self.alive[:] = present & ~ended
        self.took_part |= self.alive
        given = np.array([agent in observations for agent in form.agents])
        # Some environments give no last observation of a terminated agent, which nothing is learned from.
        self._write_obs("step", observations, (acted & (given | ~self.terminations)) | self.alive)
        self.returns += float(self.rewards.sum())
        if not self.alive.any():
            self.finished += 1
            agents = int(self.took_part.sum())
            self.last = dict(
                zip(_COUNTED, (float(len(self.actions)), self.returns / agents, float(agents)), strict=True)
            )

    def state(self) -> tuple[dict[str, Any], bytes]:
        """JSON-able values, and the actions of the running episode."""
        facts = {
            "seed": self.seed,
            "number": self.number,
            "steps": len(self.actions),
            "finished": self.finished,
            "last": {name: str(value) for name, value in self.last.items()},
        }
        return facts, b"".join(self.actions)

    def load(self, facts: Mapping[str, Any], actions: NDArray[Any]) -> None:
        """Repeats the episode of a state; `actions` are of its steps."""
        self.seed, self.number = facts["seed"], facts["number"]
        if self.number >= 0:
            self._start()
            for each in actions:
                if not self.alive.any():
                    break
                self.step(each)
        self.finished = facts["finished"]
        self.last = {name: float(value) for name, value in facts["last"].items()}


class _Envs:
    """Copies of an environment behind the interface of a compiled simulator (`fastrl.envs.vector.NativeVec`)."""

    def __init__(self, envs: Sequence[Any], form: _Form, max_episode_steps: int, mode: str) -> None:
        self.num_envs, self.num_agents = len(envs), len(form.agents)
        self.obs_dim = form.observation_space.shape[0]
        self._copies = [_Copy(env, form, max_episode_steps) for env in envs]
        self._mode = mode
        space = form.action_space
        shape = (self.num_agents, *(space.shape or ()))
        self._action_shape, self._action_dtype = shape, np.dtype(space.dtype)

    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        if reset_mask is not None and (reset_mask.shape != (self.num_envs,) or not reset_mask.any()):
            raise ValueError(
                f"reset_mask: expected bools of shape ({self.num_envs},), at least one of them True"
            )
        for index, copy in enumerate(self._copies):
            if reset_mask is None or reset_mask[index]:
                copy.reset(None if seeds is None else int(seeds[index]))
                self._write(index, obs, alive)

    def observe(self, obs: NDArray[np.float32], alive: NDArray[np.bool_] | None = None) -> None:
        for index in range(self.num_envs):
            self._write(index, obs, alive)

    def _rows(self, index: int) -> slice:
        return slice(index * self.num_agents, (index + 1) * self.num_agents)

    def _write(self, index: int, obs: NDArray[Any], alive: NDArray[np.bool_] | None) -> None:
        rows, copy = self._rows(index), self._copies[index]
        obs[rows] = copy.obs
        if alive is not None:
            alive[rows] = copy.alive

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        self._check(actions)
        for index, copy in enumerate(self._copies):
            rows = self._rows(index)
            if not copy.alive.any():
                copy.reset()
            else:
                acted = copy.alive.copy()
                copy.step(actions[rows])
                if final_obs is not None and not (acted & copy.alive).any():
                    final_obs[rows] = np.where(acted[:, None], copy.obs, np.float32(0))
            rewards[rows] = copy.rewards
            terminations[rows], truncations[rows] = copy.terminations, copy.truncations
            if self._mode == "same_step" and not copy.alive.any():
                copy.reset()
            self._write(index, obs, alive)

    def _check(self, actions: NDArray[Any]) -> None:
        shape = (self.num_envs * self.num_agents, *self._action_shape[1:])
        if actions.shape != shape:
            raise ValueError(f"actions: expected shape {shape}, got {actions.shape}")
        if actions.dtype != self._action_dtype:
            raise TypeError(f"actions: expected {self._action_dtype}, got {actions.dtype}")
        for copy in self._copies:
            if copy.number < 0 or (self._mode == "disabled" and not copy.alive.any()):
                raise gymnasium.error.ResetNeeded("an environment has to be reset first: call reset()")

    def episodes(self) -> dict[str, NDArray[Any]]:
        """As `MultiAgentVectorEnv.episodes`; NaN of what PettingZoo does not say."""
        out: dict[str, NDArray[Any]] = {name: np.full(self.num_envs, np.nan) for name in EPISODE_FIELDS}
        out["finished"] = np.array([copy.finished for copy in self._copies], np.int64)
        for name in _COUNTED:
            out[name] = np.array([copy.last[name] for copy in self._copies], np.float64)
        return out

    def save_state(self) -> bytes:
        states = [copy.state() for copy in self._copies]
        head = json.dumps([facts for facts, _ in states]).encode()
        return len(head).to_bytes(8, "little") + head + b"".join(actions for _, actions in states)

    def load_state(self, state: bytes) -> None:
        size = int.from_bytes(state[:8], "little")
        step = int(np.prod(self._action_shape)) * self._action_dtype.itemsize
        try:
            facts = json.loads(state[8 : 8 + size])
            steps = [each["steps"] for each in facts]
            if len(steps) != self.num_envs or len(state) != 8 + size + step * sum(steps):
                raise ValueError("another size")
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                "this environment state cannot be restored: it is damaged, or of other environments"
            ) from None
        at = 8 + size
        for copy, each in zip(self._copies, facts, strict=True):
            end = at + step * each["steps"]
            actions = np.frombuffer(state[at:end], self._action_dtype)
            copy.load(each, actions.reshape(-1, *self._action_shape))
            if self._mode == "same_step" and copy.number >= 0 and not copy.alive.any():
                # Not the episode of the state: the environment is not deterministic.
                copy.reset()
            at = end

    def close(self) -> None:
        for copy in self._copies:
            copy.env.close()
