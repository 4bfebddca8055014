"""Tasks of users for compiled traffic: a reward, ends and further observations, from arrays of all environments.

>>> import numpy as np
>>> class Tailgating(DrivingTask):
...     def reward(self, world):
...         return world.speed[:, 0] / 30 - 5 * world.crashed[:, 0] - 0.2 * (world.gap[:, 0] < 10)
>>> envs = gymnasium.make_vec("fastrl/merge-v0", 64, "vector_entry_point", task=Tailgating())  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrl.envs.contract import ContractError
from fastrl.envs.multi_agent import reset_ended

_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("x", "y", "heading", "speed", "acceleration", "target_speed"), np.float64),
    **dict.fromkeys(("along", "offset", "lane_heading"), np.float64),
    **dict.fromkeys(("lane", "target_lane", "lane_number"), np.int64),
    **dict.fromkeys(("present", "crashed", "on_road"), np.bool_),
}

# Names of tasks of the package, which need no trust where a file has them, and their import paths.
BUILT_IN = {"passing": "fastrl.envs.traffic.passing:Passing"}

# Makes the names of lanes, see `DrivingWorld.lanes`.
Lanes = Callable[[], list[tuple[str, str, int]]]


class UnknownArrayError(ContractError, AttributeError):
    """A task asked a `DrivingWorld` for something that it does not have; the message names what there is."""


class DrivingWorld:
    """The state of N environments after a step or a reset, as arrays. Each is made when it is first read, of the
    present state: read them in the method that is given the world.

    Columns 0 to A - 1 of arrays [N, V] are the vehicles of the A agents, the others follow in the simulator's order. V
    is that of the environment with the most vehicles now. Where there is no vehicle (`present` is False) numbers are 0,
    flags False and lanes -1. The arrays are copies.
    """

    num_agents: int
    """A."""
    x: NDArray[np.float64]
    """Coordinate of the vehicle's centre, m, [N, V]."""
    y: NDArray[np.float64]
    """Coordinate of the centre, m, [N, V]; it points right of x, as in highway-env."""
    heading: NDArray[np.float64]
    """Radians from x to y, [N, V]."""
    speed: NDArray[np.float64]
    """m/s, [N, V]."""
    acceleration: NDArray[np.float64]
    """Last command, m/s^2, [N, V]."""
    target_speed: NDArray[np.float64]
    """Speed that the driver wants, m/s, [N, V]; of an agent that steers by numbers it has no meaning."""
    along: NDArray[np.float64]
    """Place along the vehicle's lane, m from its start, [N, V]."""
    offset: NDArray[np.float64]
    """Distance from the middle of the lane, m, positive to the right, [N, V]."""
    lane_heading: NDArray[np.float64]
    """Direction of the lane there, radians, [N, V]."""
    lane: NDArray[np.int64]
    """Number of the nearest lane among all lanes, see `lanes`, [N, V]."""
    target_lane: NDArray[np.int64]
    """Number of the lane that the driver wants, [N, V]."""
    lane_number: NDArray[np.int64]
    """Number of the nearest lane from the left among those beside it, from 0, [N, V]."""
    present: NDArray[np.bool_]
    """There is a vehicle, [N, V]."""
    crashed: NDArray[np.bool_]
    """The vehicle has collided, [N, V]."""
    on_road: NDArray[np.bool_]
    """The centre is on the lane, [N, V]."""
    gap: NDArray[np.float64]
    """Before each agent, bumper to bumper, m, [N, A]; infinite with a free road and without a vehicle."""
    leader_speed: NDArray[np.float64]
    """Speed of what is there, m/s, [N, A]; with a free road the agent's own."""
    arrived: NDArray[np.bool_]
    """The agent has reached its goal, on roads that have one, [N, A]."""
    time: NDArray[np.float64]
    """Since the episode began, s, [N]."""
    action: NDArray[Any]
    """Actions of the step, int64 [N, A] or numbers [N, A, n]; after a reset -1, or 0. Those of agents that did not act
    have no meaning."""
    acted: NDArray[np.bool_]
    """The agent took this step, [N, A]; False after a reset."""
    reward: NDArray[np.floating]
    """The simulator's reward of the step, [N, A]; 0 after a reset."""
    terminated: NDArray[np.bool_]
    """The simulator has ended the agent's episode with this step, [N, A]."""
    truncated: NDArray[np.bool_]
    """The time is up, [N, A]."""
    lanes: list[tuple[str, str, int]]
    """Two nodes and a number for each lane, as `lane_indices` of `RoadVectorEnv` has them. Cooperative driving does not
    have them: its lanes are numbered from the left, with the ramp last."""

    def __init__(self, native: Any, step: dict[str, NDArray[Any]], lanes: Lanes | None = None) -> None:
        self._native, self._lanes = native, lanes
        self._shape = (native.num_envs, native.num_agents)
        self._columns = 0
        self.num_agents = native.num_agents
        for name, rows in step.items():
            setattr(self, name, rows.reshape(*self._shape, *rows.shape[1:]))

    def __getattr__(self, name: str) -> Any:
        if name in _COLUMNS:
            self._columns = self._columns or self._native.num_columns
            column = np.zeros((self._shape[0], self._columns), _COLUMNS[name])
            if _COLUMNS[name] is np.int64:
                column.fill(-1)
            self._native.column(name, column)
            setattr(self, name, column)
        elif name in ("gap", "leader_speed"):
            self.gap, self.leader_speed = np.full(self._shape, np.inf), np.zeros(self._shape)
            self._native.leaders(self.gap, self.leader_speed)
        elif name in ("arrived", "time"):
            self.arrived, self.time = np.empty(self._shape, np.bool_), np.empty(self._shape[0])
            self._native.progress(self.arrived, self.time)
        elif name == "lanes" and self._lanes is not None:
            self.lanes = self._lanes()
        else:
            known = ", ".join(type(self).__annotations__)
            raise UnknownArrayError(f"world.{name}: these environments have {known}")
        return self.__dict__[name]


class DrivingTask:
    """Base of tasks: what a subclass does not define stays as the environment has it.

    Each method is called once a step for all environments. With one agent, arrays of an entry an agent are [N] or
    [N, 1]; with A agents they are [N, A], or [N] for the same in all. What agents get that did not act has no effect.
    Methods keep nothing between steps: saved states of environments do not have it, and they see more than one episode.

    Attributes:
        terms: numbers that `observe` gives an agent.
    """

    terms: int = 0

    def reward(self, world: DrivingWorld) -> ArrayLike:
        """Rewards of the step, finite numbers [N, A], instead of the environment's (`world.reward`). In the last step
        of an episode the world is the one that it ends in."""
        return world.reward

    def terminated(self, world: DrivingWorld) -> ArrayLike:
        """Agents whose episode ends with this step, bool [N, A], beside those that the environment ends. Truncation is
        the environment's: an agent that terminates is not truncated."""
        return np.zeros(world.acted.shape, np.bool_)

    def observe(self, world: DrivingWorld) -> ArrayLike:
        """Finite numbers at the end of each agent's observation, [N, A, terms]; with one agent also [N, terms]. It is
        called after resets, too, when `world.acted` is False for the agents that have just begun."""
        raise NotImplementedError


def as_task(task: object) -> DrivingTask:
    """A task, from itself, its class, the import path of either, such as "my_module:Tailgating", or the name of one of
    ours (`BUILT_IN`).

    Raises:
        TypeError: it is none, or does not say how many numbers it observes.
        ValueError: there is nothing at the path.
    """
    made = BUILT_IN.get(task, task) if isinstance(task, str) else task
    if isinstance(made, str) and ":" in made:
        module, _, name = made.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"task: {error}") from None
    if isinstance(made, type) and issubclass(made, DrivingTask):
        made = made()
    if not isinstance(made, DrivingTask):
        known = " or ".join(map(repr, BUILT_IN))
        raise TypeError(
            f"task: expected a fastrl.envs.DrivingTask, an import path such as my_module:MyTask, or {known}, got"
            f" {task!r}"
        )
    observes, terms = type(made).observe is not DrivingTask.observe, made.terms
    if isinstance(terms, bool) or not isinstance(terms, int) or observes != (terms > 0):
        expected = "at least 1, the numbers that observe gives" if observes else "0 without a method observe"
        raise TypeError(f"{type(made).__name__}.terms: expected {expected}, got {terms!r}")
    return made


class TaskVec:
    """Compiled environments whose rewards, ends and observations a task changes; see `fastrl._native._rust.NativeVec`.
    Everything else is passed on.

    Args:
        build: builds them for the name of an autoreset mode.
        mode: "next_step", "same_step" or "disabled".
        lanes: gives the names of the lanes; None: they have none.
    """

    def __init__(
        self, build: Callable[[str], Any], task: DrivingTask | str, mode: str, lanes: Lanes | None
    ) -> None:
        self.task, self._lanes = as_task(task), lanes
        # The last state of an episode is read before its environment is reset.
        self._resets = mode == "same_step"
        self.native = native = build("disabled" if self._resets else mode)
        self.num_envs, self.num_agents = native.num_envs, native.num_agents
        self._len = native.obs_dim
        self.obs_dim = self._len + self.task.terms
        rows = self.num_envs * self.num_agents
        # The agents that act next, and the arrays of a world without a step.
        self._alive = np.zeros(rows, np.bool_)
        numbers = native.action_len
        self._no_step: dict[str, NDArray[Any]] = {
            "action": np.zeros((rows, numbers), np.float32) if numbers else np.full(rows, -1),
            "acted": np.zeros(rows, np.bool_),
            "reward": np.zeros(rows),
            "terminated": np.zeros(rows, np.bool_),
            "truncated": np.zeros(rows, np.bool_),
        }
        for array in self._no_step.values():
            array.flags.writeable = False

    def __getattr__(self, name: str) -> Any:
        # A compiled rollout would leave the task out.
        if name in ("native", "rollout"):
            raise AttributeError(name)
        return getattr(self.native, name)

    def asynchronous(self, *args: Any, **options: Any) -> Any:
        raise ValueError("task: expected none in environments that are stepped one by one")

    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        seen = self._seen(obs)
        self.native.reset(seen, seeds, reset_mask, self._alive)
        rows = slice(None) if reset_mask is None else np.repeat(reset_mask, self.num_agents)
        self._write(obs, seen, rows, self._no_step)
        if alive is not None:
            alive[:] = self._alive

    def observe(self, obs: NDArray[np.float32], alive: NDArray[np.bool_] | None = None) -> None:
        seen = self._seen(obs)
        self.native.observe(seen, self._alive)
        self._write(obs, seen, slice(None), self._no_step)
        if alive is not None:
            alive[:] = self._alive

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
        acted, seen, task = self._alive.copy(), self._seen(obs), type(self.task)
        acted.flags.writeable = False
        last = None if self._resets else final_obs  # which other modes refuse
        self.native.step(actions, seen, rewards, terminations, truncations, last, self._alive)
        step = {
            "action": actions,
            "acted": acted,
            "reward": rewards.copy(),
            "terminated": terminations.copy(),
            "truncated": truncations.copy(),
        }
        world = self._write(obs, seen, slice(None), step)
        if task.reward is not DrivingTask.reward:
            rewards[:] = self._of_agents("reward", self.task.reward(world), "numbers", acted)
        if task.terminated is not DrivingTask.terminated:
            ended = self._of_agents("terminated", self.task.terminated(world), "bool", acted)
            ended &= ~terminations
            if ended.any():
                self.native.end(ended, self._alive)
                terminations |= ended
                truncations &= ~ended
        if self._resets:
            reset_ended(self, acted, self._alive, obs, final_obs, self._alive)
        if alive is not None:
            alive[:] = self._alive

    def load_state(self, state: bytes, index: int | None = None) -> None:
        self.native.load_state(state, index)
        self._see_alive()

    def branch(self, state: bytes, seeds: NDArray[np.uint64] | None = None) -> None:
        self.native.branch(state, seeds)
        self._see_alive()

    def _see_alive(self) -> None:
        self.native.observe(np.empty((len(self._alive), self._len), np.float32), self._alive)

    def _seen(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows for what the simulator observes."""
        if not self.task.terms:
            return obs
        shape = (len(self._alive), self.obs_dim)
        if obs.dtype != np.float32:
            raise TypeError(f"obs: expected a float32 array of shape {shape}, got dtype {obs.dtype}")
        if obs.shape != shape:
            raise ValueError(f"obs: expected a float32 array of shape {shape}, got shape {obs.shape}")
        return np.zeros((len(obs), self._len), np.float32)

    def _write(
        self,
        obs: NDArray[np.float32],
        seen: NDArray[np.float32],
        rows: Any,
        step: dict[str, NDArray[Any]],
    ) -> DrivingWorld:
        """Writes rows of observations, with the terms of the task. Returns the world that it sees."""
        world = DrivingWorld(self.native, step, self._lanes)
        if self.task.terms:
            # Those that have just ended, too.
            sees = self._alive | step["acted"]
            terms = self._of_agents("observe", self.task.observe(world), "numbers", sees, self.task.terms)
            obs[rows, : self._len] = seen[rows]
            obs[rows, self._len :] = terms[rows]
        return world

    def _of_agents(
        self, method: str, given: ArrayLike, noun: str, used: NDArray[np.bool_], *shape: int
    ) -> NDArray[Any]:
        """Rows of the values that a method of the task has returned, zeros where they are not used.

        Raises:
            ContractError: another shape or dtype, or a number that is not finite.
        """
        name, values = f"{type(self.task).__name__}.{method}", np.asarray(given)
        n, agents = self.num_envs, self.num_agents
        full, short = (n, agents, *shape), (n, *shape)
        if values.dtype.kind not in ("b" if noun == "bool" else "fiub"):
            raise ContractError(f"{name} should give {noun} of shape {full}, got dtype {values.dtype}")
        if values.shape == short and (agents == 1 or not shape):
            values = np.broadcast_to(values[:, np.newaxis], full)
        if values.shape != full:
            either = f"{full} or {short}" if agents == 1 or not shape else f"{full}"
            raise ContractError(f"{name} should give {noun} of shape {either}, got shape {values.shape}")
        rows = values.reshape(n * agents, *shape)
        mask = used.reshape(-1, *(1 for _ in shape))
        rows = np.where(mask, rows, np.zeros((), rows.dtype))
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            bad = int(np.argwhere(~np.isfinite(rows))[0][0])
            raise ContractError(
                f"{name} should give finite numbers, got {rows[bad]} in environment {bad // agents}, agent"
                f" {bad % agents}"
            )
        return rows
