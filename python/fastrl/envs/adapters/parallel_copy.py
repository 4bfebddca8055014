"""One parallel environment of PettingZoo, whose agents' rows lie in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.contract import ContractError, describe
from fastrl.envs.rows import ActionRows, ObsRows, RowError, has_state, space_of, space_state
from fastrl.envs.spec import is_parallel
from fastrl.utils.forks import ending_copies
from fastrl.utils.seeding import env_seed

_SHOULD_STEP = (
    "step() should return (observations, rewards, terminations, truncations, infos), dicts by agent"
)

# Results of the last episode that an environment counts.
COUNTED = ("length", "return_mean", "num_agents")

# State of an environment: JSON-able values, and the actions of the running episode.
Saved = tuple[dict[str, Any], bytes]


@dataclass(frozen=True)
class ParallelForm:
    """The agents of an environment and their spaces, in the order of ``possible_agents``.

    Attributes:
        name: of the environment, for messages.
        agents: their names.
        obs_rows, action_rows: conversions of each agent's observations and actions.
        groups: a name for each agent, the same for agents of equal spaces.
        obs_space: of an agent: a Box of rows, or the space itself where it has images.
        row_space, action_space: of the rows of an agent and of its flat actions.
        num_masked: width of an action mask; 0: masks are not read.
    """

    name: str
    agents: tuple[Any, ...]
    obs_rows: tuple[ObsRows, ...]
    action_rows: tuple[ActionRows, ...]
    groups: tuple[str, ...]
    obs_space: gymnasium.Space[Any]
    row_space: Box
    action_space: Any
    num_masked: int = 0

    @classmethod
    def of(cls, env: Any, name: str, action_masks: bool = False) -> ParallelForm:
        """The form of an environment, whose action masks may be read.

        Raises:
            ValueError: it is no parallel environment, or has spaces that do not go together.
        """
        if not is_parallel(env):
            raise ValueError(
                f"env: {name} should make a PettingZoo ParallelEnv, got a {type(env).__name__}; an AECEnv becomes one"
                " with pettingzoo.utils.aec_to_parallel"
            )
        agents = tuple(env.possible_agents)
        if not agents:
            raise ValueError(f"env: {name} has no possible_agents")
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
        form = cls.of_spaces(name, agents, spaces)
        num_choices = max(rows.num_choices for rows in form.action_rows)
        return replace(form, num_masked=num_choices if action_masks else 0)

    @classmethod
    def of_spaces(
        cls,
        name: str,
        agents: tuple[Any, ...],
        spaces: Sequence[tuple[gymnasium.Space[Any], gymnasium.Space[Any]]],
    ) -> ParallelForm:
        """The form of agents with these spaces of observations and actions.

        Raises:
            ValueError: they do not go together.
        """
        obs_rows = tuple(ObsRows(obs) for obs, _ in spaces)
        action_rows = tuple(ActionRows(actions) for _, actions in spaces)
        names: list[str] = []
        for index, pair in enumerate(spaces):
            earlier = spaces.index(pair)
            names.append(f"group{len(set(names))}" if earlier == index else names[earlier])
        has_images = any(rows.dtype == np.uint8 for rows in obs_rows)
        row_space = _rows_of_images(name, agents, obs_rows) if has_images else _common_rows(obs_rows)
        return cls(
            name,
            agents,
            obs_rows,
            action_rows,
            tuple(names),
            obs_rows[0].space if has_images else row_space,
            row_space,
            _common_actions(name, agents, [rows.flat_space for rows in action_rows]),
        )

    def own_spaces(self) -> list[tuple[Box, Any]]:
        """The spaces of each agent's rows and flat actions, without what other agents have more."""
        if self.row_space.dtype == np.uint8:
            return [(self.row_space, self.action_space)] * len(self.agents)
        pairs = zip(self.obs_rows, self.action_rows, strict=True)
        return [(_common_rows([obs]), actions.flat_space) for obs, actions in pairs]

    def of_agents(self, indices: Sequence[int]) -> ParallelForm:
        """The form of some of the agents."""
        spaces = [(self.obs_rows[a].space, self.action_rows[a].space) for a in indices]
        return self.of_spaces(self.name, tuple(self.agents[a] for a in indices), spaces)

    def state(self) -> list[dict[str, Any]] | None:
        """JSON-able; `from_state` reads it. None: names that are no texts, or spaces that no file can describe."""
        if not all(isinstance(agent, str) for agent in self.agents) or not all(
            has_state(rows.space) for rows in self.obs_rows
        ):
            return None
        return [
            {"name": agent, "obs_space": space_state(obs.space), "action_space": space_state(actions.space)}
            for agent, obs, actions in zip(self.agents, self.obs_rows, self.action_rows, strict=True)
        ]

    @classmethod
    def from_state(cls, name: str, state: Sequence[Mapping[str, Any]]) -> ParallelForm:
        """The form of an environment that gave the state.

        Raises:
            ValueError: the state is damaged.
        """
        spaces = [(space_of(each["obs_space"]), space_of(each["action_space"])) for each in state]
        return cls.of_spaces(name, tuple(each["name"] for each in state), spaces)

    def to_env(self, a: Any, action: Any) -> Any:
        """The environment's action of agent a from a flat one."""
        rows = self.action_rows[a]
        if isinstance(rows.flat_space, Discrete):
            action = np.int64(action % rows.flat_space.n)
        return rows.to_env(action)

    @property
    def record(self) -> np.dtype[np.void]:
        """The type of a `ParallelCopy`'s record."""
        size = len(self.agents)
        rows = (size, *self.row_space.shape)
        return np.dtype(
            [
                ("obs", self.row_space.dtype, rows),
                ("final_obs", self.row_space.dtype, rows),
                ("rewards", np.float64, size),
                *((name, np.bool_, size) for name in ("terminations", "truncations", "alive")),
                ("ended", np.bool_),
                *((name, np.int64) for name in ("seed", "number", "steps", "finished")),
                ("last", np.float64, len(COUNTED)),
                *([("masks", np.bool_, (size, self.num_masked))] if self.num_masked else []),
            ],
            align=True,
        )


def _rows_of_images(name: str, agents: Sequence[Any], each: Sequence[ObsRows]) -> Box:
    """The space of rows with images.

    Raises:
        ValueError: agents differ.
    """
    for agent, rows in zip(agents, each, strict=True):
        if rows.space != each[0].space:
            raise ValueError(
                f"env: {name}: agents that observe images should all have one observation space; that of {agents[0]} is"
                f" {each[0].space}, of {agent} {rows.space}"
            )
    return Box(0, 255, (each[0].size,), np.uint8)


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


class ParallelCopy(gymnasium.Env[NDArray[np.uint8], NDArray[Any]]):
    """A parallel environment as one of Gymnasium, which worker processes can step: its observation is a record of all
    agents' rows, rewards and flags, its action all agents' flat actions.

    It resets itself, as its mode says; to Gymnasium its one episode never ends. The seed of each episode follows from
    the seed of the first reset and the number of the episode, both in the record.

    Args:
        make: builds the environment.
        name: of it, for messages.
        max_episode_steps: agents are truncated after so many; 0: never.
        mode: "same_step", "next_step" or "disabled", see `MultiAgentVectorEnv`.
        action_masks: read them.
        memory: `ParallelForm.record` [1], where the record lies; None: in memory of its own.

    Attributes:
        form: agents and spaces.
        row: the record, uint8 [n].

    Raises:
        ValueError: as of `ParallelForm.of`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        name: str,
        max_episode_steps: int,
        mode: str,
        action_masks: bool = False,
        memory: NDArray[np.void] | None = None,
    ) -> None:
        self.env = make()
        self.form = form = ParallelForm.of(self.env, name, action_masks)
        self.limit, self.mode = max_episode_steps, mode
        record = np.zeros(1, form.record) if memory is None else memory
        self.row = record.view(np.uint8)
        self.observation_space = Box(0, 255, self.row.shape, np.uint8)
        shape, space = (len(form.agents), *(form.action_space.shape or ())), form.action_space
        lowest: Any = -np.inf if space.dtype.kind == "f" else np.iinfo(space.dtype).min
        highest: Any = np.inf if space.dtype.kind == "f" else np.iinfo(space.dtype).max
        self.action_space = Box(lowest, highest, shape, space.dtype)
        self._returns = 0.0
        self._took_part = np.zeros(len(form.agents), np.bool_)
        self._record: Any = record[0]
        self._record["number"] = -1
        self.obs, self.final_obs, self.rewards = (record[name][0] for name in ("obs", "final_obs", "rewards"))
        self.terminations, self.truncations, self.alive = (
            record[name][0] for name in ("terminations", "truncations", "alive")
        )
        self._masks = record["masks"][0] if form.num_masked else None
        self._last = record["last"][0]
        self._last[:] = np.nan

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts the next episode, or with a seed the first one of it."""
        if seed is None:
            self._record["number"] += 1
        else:
            self._record["seed"], self._record["number"] = seed, 0
        self._clear()
        self._start()
        return self.row, {}

    def _clear(self) -> None:
        self.rewards[:], self.terminations[:], self.truncations[:] = 0, False, False
        self._record["ended"] = False

    def _start(self) -> None:
        record = self._record
        with ending_copies():
            result = self.env.reset(seed=env_seed(int(record["seed"]), 0, int(record["number"])))
        name = self.form.name
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise ContractError(
                f"{name}: reset() should return (observations, infos), got {describe(result)}"
            )
        record["steps"], self._returns = 0, 0.0
        self.obs[:] = 0
        self.alive[:] = self._present()
        if not self.alive.any():
            raise ContractError(f"{name}: no agents after reset()")
        self._took_part[:] = self.alive
        self._write_obs("reset", result[0], self.alive)
        self._write_masks("reset", *result)

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
        if self.obs.dtype == np.float32 and not np.isfinite(self.obs).all():
            raise ContractError(
                f"{form.name}: observations should be finite, {method}() gave NaN or infinity"
            )

    def _write_masks(self, method: str, observations: Mapping[Any, Any], infos: Any) -> None:
        """Writes which actions each agent that is alive may choose next."""
        if self._masks is None:
            return
        form = self.form
        self._masks[:] = False
        for a in np.flatnonzero(self.alive):
            agent, size = form.agents[a], form.action_rows[a].num_choices
            given = mask_of(agent, observations, infos)
            if given is None:
                raise ContractError(
                    f"{form.name}: action masks were asked for, and {method}() gave agent {agent!r} none: neither"
                    f" infos[{agent!r}]['action_mask'] nor an observation with 'action_mask'"
                )
            self._masks[a, :size] = contract.as_mask(form.name, given, size)

    def _value(self, method: str, values: Mapping[Any, Any], noun: str, a: Any) -> Any:
        agent = self.form.agents[a]
        if agent not in values:
            raise ContractError(f"{self.form.name}: {method}() gave no {noun} of agent {agent!r}")
        return values[agent]

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Steps the agents that are alive; `action` has the flat actions of all agents. Where none is alive, the next
        episode starts."""
        if not self.alive.any():
            self.reset()
        else:
            acted = self.alive.copy()
            self._step(action)
            self._record["ended"] = ended = not (acted & self.alive).any()
            if ended:
                self.final_obs[:] = self.obs * acted[:, None]
            self._autoreset()
        return self.row, 0.0, False, False, {}

    def _step(self, actions: NDArray[Any]) -> None:
        form, acted = self.form, self.alive.copy()
        chosen = {form.agents[a]: form.to_env(a, actions[a]) for a in np.flatnonzero(acted)}
        self._record["steps"] += 1
        with ending_copies():
            result = self.env.step(chosen)
        if not (
            isinstance(result, tuple)
            and len(result) == 5
            and all(isinstance(part, Mapping) for part in result[:4])
        ):
            raise ContractError(f"{form.name}: {_SHOULD_STEP}, got {describe(result)}")
        observations, rewards, terminations, truncations = result[:4]
        self._clear()
        self.obs[:] = 0
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
        if self.limit and self._record["steps"] >= self.limit:
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
        self._took_part |= self.alive
        given = np.array([agent in observations for agent in form.agents])
        # Some environments give no last observation of a terminated agent, which nothing is learned from.
        self._write_obs("step", observations, (acted & (given | ~self.terminations)) | self.alive)
        self._write_masks("step", observations, result[4])
        self._returns += float(self.rewards.sum())
        if not self.alive.any():
            self._record["finished"] += 1
            agents = int(self._took_part.sum())
            self._last[:] = self._record["steps"], self._returns / agents, agents

    def _autoreset(self) -> None:
        """Starts the next episode where the mode asks for it, keeping rewards and flags."""
        if self.mode == "same_step" and not self.alive.any():
            self._record["number"] += 1
            self._start()

    def load(self, saved: Saved) -> None:
        """Repeats the running episode of a state."""
        facts, actions = saved
        record = self._record
        record["seed"], record["number"] = facts["seed"], facts["number"]
        if facts["number"] >= 0:
            self._clear()
            self._start()
            space = self.action_space
            for each in np.frombuffer(actions, space.dtype).reshape(-1, *(space.shape or ())):
                if not self.alive.any():
                    break
                self._step(each)
            # Where it is over, it is not the episode of the state: the environment is not deterministic.
            self._autoreset()
        record["finished"] = facts["finished"]
        self._last[:] = [float(facts["last"][name]) for name in COUNTED]

    # Written by `ProcessVectorEnv.set_attr`.
    saved = property(fset=load)

    def close(self) -> None:
        contract.close(self.env)


def mask_of(agent: Any, observations: Any, infos: Any) -> Any:
    """The action mask of an agent in the info or else in the observation that a reset or a step gave it; None: in
    neither."""
    for values in (infos, observations):
        own = values.get(agent) if isinstance(values, Mapping) else None
        if isinstance(own, Mapping) and own.get(contract.ACTION_MASK) is not None:
            return own[contract.ACTION_MASK]
    return None
