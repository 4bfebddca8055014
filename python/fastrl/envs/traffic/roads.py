"""highway-env's environments on road networks, compiled: merges, roundabouts, crossings and more.

`reset(seed=s)` gives highway-env 1.12.1's initial state, and the episode runs on as it does there, within 1e-9; what
`fastrl.envs.traffic.highway` says of its differences holds here, too. Besides:

- highway-env's intersections set parameters of the traffic on its class, so that they hold for all environments of the
process from then on. Here they hold for the intersections only, so a reference needs a process of its own.
- `info["rewards"]["lane_change_reward"]` after a reset is that of the action that changes nothing (highway-env draws
one).

Environments of several agents have tuples of observations and actions, one entry an agent. All get the mean of the
agents' rewards, and one crash ends the episode for all; with v1 and v2 of `intersection-multi-agent` rewards and ends
are tuples too, one entry an agent. `make_multi` and `parallel_env` give the arrays and dicts of `fastrl.envs`, in which
each agent has its own reward and end.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.single import SingleEnv
from fastrl.envs.traffic.config_interfaces import (
    GOAL_KEYS,
    TABLES,
    action_names,
    action_space,
    flat_space,
    observation_space,
)
from fastrl.envs.traffic.config_kind import Kind, agent_config, for_agents, is_multi_agent
from fastrl.envs.traffic.linked import LinkedVectorEnv, build_with, widened
from fastrl.envs.traffic.links import Comms, link_options
from fastrl.envs.traffic.roads_config import KINDS
from fastrl.envs.vector import NativeVectorEnv, as_actions, as_autoreset_mode, in_space
from fastrl.envs.viewer import RENDER_MODES, View
from fastrl.utils.arguments import as_integer

if TYPE_CHECKING:
    from fastrl.envs.traffic.driving_task import DrivingTask


def kind_of(id: str, kinds: Mapping[str, Kind] = KINDS) -> Kind:  # noqa: A002 (Gymnasium's name)
    """The kind of highway-env's id. Raises ValueError for an unknown one."""
    if id not in kinds:
        raise ValueError(f"id: expected one of {', '.join(map(repr, kinds))}, got {id!r}")
    return kinds[id]


def default_config(id: str) -> dict[str, Any]:  # noqa: A002
    """highway-env's defaults of an id such as "merge-v0"."""
    return kind_of(id).check({})


class _InRows:
    """The compiled environments in rows of one agent each. With a team observations and actions of its agents lie side
    by side, and it has one reward and one end. Observations are float64 where the arrays are such. Everything else is
    passed on."""

    def __init__(self, native: _rust.RoadVec, team: bool) -> None:
        self.native, self._team = native, team
        self.num_envs, agents = native.num_envs, native.num_agents
        self.num_agents, self.obs_dim = 1, agents * native.obs_dim
        self.num_masked = agents * native.num_masked
        self._shape, self._rows = (self.num_envs, agents), self.num_envs * agents

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def _single(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of agents, or in float64 others to be thrown away."""
        if obs.dtype == np.float64:
            return np.empty((self._rows, self.native.obs_dim), np.float32)
        return obs.reshape(self._rows, -1) if self._team else obs

    def _write_double(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        if obs.dtype == np.float64:
            now = obs if mask is None else np.empty_like(obs)
            self.native.observe_double(now.reshape(self._rows, -1))
            if mask is not None:
                obs[mask] = now[mask]

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self.native.action_masks(out.reshape(self._rows, -1))

    def reset(
        self,
        obs: NDArray[Any],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        self.native.reset(self._single(obs), seeds, reset_mask)
        self._write_double(obs, reset_mask)

    def observe(self, obs: NDArray[Any], alive: NDArray[np.bool_] | None = None) -> None:
        self.native.observe(self._single(obs))
        self._write_double(obs)

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        final = None if final_obs is None else self._single(final_obs)
        if self._team:
            each = np.empty(self._rows, rewards.dtype)
            ended, late = np.empty(self._rows, np.bool_), np.empty(self._rows, np.bool_)
            flat = actions.reshape(self._rows, *actions.shape[2:])
            self.native.step(flat, self._single(obs), each, ended, late, final)
            rewards[:] = each.reshape(self._shape)[:, 0]
            terminations[:] = ended.reshape(self._shape).all(axis=1)
            truncations[:] = late.reshape(self._shape).any(axis=1)
        else:
            self.native.step(actions, self._single(obs), rewards, terminations, truncations, final)
        self._write_double(obs)


def _places(space: Dict) -> list[tuple[str, slice, tuple[int, ...]]]:
    """The parts of rows that have the values of a space of goals or attributes: name, place and shape, in
    highway-env's order."""
    places, start = {}, 0
    for key, part in space.items():
        shape = part.shape or ()
        places[key] = (key, slice(start, start + math.prod(shape)), shape)
        start += math.prod(shape)
    return [places[key] for key in (GOAL_KEYS if GOAL_KEYS[0] in places else places)]


class RoadVectorEnv(NativeVectorEnv):
    """N road networks of one of highway-env's ids, stepped natively.

    Args:
        num_envs: N.
        id: highway-env's, such as "merge-v0" (`fastrl.envs.traffic.roads_config.KINDS`).
        config: highway-env's keys, on top of the defaults; nested dicts are replaced as a whole, as there.
        max_episode_steps: Gymnasium's time limit; an episode is truncated by it or by the config's `duration`.
        num_threads: threads that step the environments; 0 for one a core.
        autoreset_mode: see `NativeVectorEnv`.
        info: fills `info` as highway-env does: speed float64 [N], crashed bool [N], action [N, ...], rewards (a dict
            of float64 [N]), and what the id has besides: is_success bool [N]; agents_rewards float64 [N, A] and
            agents_terminated bool [N, A]. Without it `info` is empty and steps are a little faster.
        own_ends: with several agents an episode lasts until it has ended for each of them.
        task: rewards, ends and further observations of users, a `fastrl.envs.DrivingTask` or its import path.

    Attributes:
        roads: the compiled networks, with the geometry of their lanes.

    `step` and `step_into` also take continuous actions in float64, and then compute in that precision. With several
    agents observations are a tuple of arrays [N, *S], one an agent, actions too; those of `step_into` are [N, A*D] and
    [N, A, ...].

    Raises:
        ValueError, TypeError: an option out of its range; the message says what was expected.
    """

    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    _keeps_float64 = True

    def __init__(
        self,
        num_envs: int = 1,
        *,
        id: str,  # noqa: A002
        config: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        info: bool = True,
        own_ends: bool = False,
        task: DrivingTask | str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.kind = kind_of(id, self.kinds)
        ends = "wrapped" if own_ends else "together"
        self.config, native = self.kind.simulator(num_envs, config, num_threads, max_episode_steps, ends)
        if self.config["offscreen_rendering"] is None:
            self.config["offscreen_rendering"] = render_mode != "human"
        single = agent_config(self.config)
        self._agent_space = action_space(single)
        self._agent_obs = observation_space(single)
        observations: Space[Any] = self._agent_obs
        actions: Space[Any] = self._agent_space
        self._agents = 0
        if is_multi_agent(self.config):
            self._agents = int(self.config["controlled_vehicles"])
            observations, actions = Tuple([observations] * self._agents), Tuple([actions] * self._agents)
        if isinstance(self._agent_obs, Dict):
            self._row_dtype, self._places = np.float64, _places(self._agent_obs)

        self.task = None if task is None else self._with_task(task)

        def build(mode: str) -> Any:
            inner, _ = build_with(self.task, native, mode, self.lane_indices)
            self.roads = inner if self.task is None else inner.native
            if self._agents or isinstance(self._agent_obs, Dict):
                return _InRows(inner, bool(self._agents))
            return inner

        super().__init__(
            build,
            observations if self._agents else self._agent_obs,
            actions,
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            info_of=self.read_info if info else None,
            render_modes=(),
            view=View.of_config(self.config),
            # As in highway-env, films run at twice real time.
            fps=2 * self.config["policy_frequency"],
        )

    def _with_task(self, task: DrivingTask | str) -> DrivingTask:
        """Makes room for what a task observes."""
        from fastrl.envs.traffic.driving_task import as_task

        if self._agents:
            raise ValueError(
                "task: Gymnasium's interface takes none with several agents: use fastrl.envs.make_multi"
            )
        made = as_task(task)
        self._agent_obs = widened(self._agent_obs, made.terms)
        return made

    def _batch(self, actions: Any) -> NDArray[Any]:
        if not self._agents:
            return super()._batch(actions)
        if not isinstance(actions, tuple | list) or len(actions) != self._agents:
            raise TypeError(
                f"actions: expected a tuple of {self._agents}, one an agent, got {type(actions).__name__}"
            )
        keep = all(getattr(part, "dtype", None) == np.float64 for part in actions)
        each = [as_actions(part, self._agent_space, (self.num_envs,), keep_float64=keep) for part in actions]
        return np.stack(each, axis=1)

    def _as_obs(self, obs: NDArray[Any]) -> Any:
        if not self._agents:
            return self._of_agent(obs)
        each = obs.reshape(self.num_envs, self._agents, -1)
        return tuple(self._of_agent(each[:, i]) for i in range(self._agents))

    def _of_agent(self, rows: NDArray[Any]) -> Any:
        """Rows [N, D] in the form of the observation space of one agent."""
        space, n = self._agent_obs, self.num_envs
        if not isinstance(space, Dict):
            return in_space(space, rows)
        return {key: rows[:, place].reshape(n, *shape) for key, place, shape in self._places}

    def read_info(self) -> dict[str, Any]:
        """The `info` without Gymnasium's masks."""
        native, config, scenario = self.roads, self.config, self.kind.scenario
        n, agents, names = native.num_envs, native.num_agents, native.part_names
        controlled = int(config.get("controlled_vehicles", 1))
        speed, crashed, succeeded = np.empty(n), np.empty(n, np.bool_), np.empty((n, controlled), np.bool_)
        terms, action = np.empty((n, len(names))), self._empty_actions(n, agents)
        rewards = terminated = None
        if scenario == "intersection":
            rewards, terminated = np.empty((n, controlled)), np.empty((n, controlled), np.bool_)
        native.info(speed, crashed, succeeded, terms, action, rewards, terminated)
        info: dict[str, Any] = {
            "speed": speed,
            "crashed": crashed,
            "action": action if self._agents else action[:, 0],
        }
        if names:
            info["rewards"] = dict(zip(names, terms.T.copy(), strict=True))
        if scenario == "intersection":
            info |= {"agents_rewards": rewards, "agents_terminated": terminated}
        if scenario in ("exit", "parking", "trips"):
            of_all = scenario == "parking" and self._agents
            info["is_success"] = succeeded if of_all else succeeded[:, 0]
        return info

    def _empty_actions(self, *batch_shape: int) -> NDArray[Any]:
        dtype = np.int64 if isinstance(self._agent_space, Discrete) else np.float32
        return np.empty((*batch_shape, *(self._agent_space.shape or ())), dtype)

    def copy_generators(self, other: RoadVectorEnv) -> None:
        """Continues the random streams of another environment, if it was ever reset."""
        if other.was_reset:
            self.roads.copy_generators(other.roads)
            self.was_reset = True

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """highway-env's index of each lane, by the numbers that `vehicles` has."""
        return self.roads.lane_indices()

    def vehicles(self, index: int = 0) -> dict[str, NDArray[Any]]:
        """All vehicles of one environment in highway-env's order: x, y, heading, speed float64 [V] (m, rad, m/s), lane,
        target_lane, agent (-1: none) int64 [V], crashed bool [V]. The arrays are copies."""
        return self.roads.vehicles(as_integer("index", index, 0, self.num_envs - 1))


class VehicleState(NamedTuple):
    """A copy of the controlled vehicle's present state, with highway-env's names.

    Attributes:
        position: x and y, m, float64 [2].
        heading: rad.
        speed: m/s.
        lane_index, target_lane_index: road sections, and last the number of the lane.
        target_speed: m/s.
        crashed: whether it has collided with another.
    """

    position: NDArray[np.float64]
    heading: float
    speed: float
    lane_index: tuple[str, str, int]
    target_lane_index: tuple[str, str, int]
    target_speed: float
    crashed: bool


class ActionType(NamedTuple):
    """Names of the actions of DiscreteMetaAction."""

    actions: dict[int, str]
    actions_indexes: dict[str, int]
    get_available_actions: Callable[[], list[int]]


class RoadEnv(SingleEnv):
    """One environment of an id for `gymnasium.make`, with the options of `RoadVectorEnv`.

    As in highway-env `config` may be changed: edit `env.unwrapped.config`, call `configure`, or pass
    `reset(options={"config": {...}})`. A change takes effect at the next reset, spaces included.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012
    vector_class: ClassVar[type[NativeVectorEnv]] = RoadVectorEnv
    vector: Any
    own_ends = False

    def __init__(
        self, config: Mapping[str, Any] | None = None, render_mode: str | None = None, **options: Any
    ) -> None:
        super().__init__(
            render_mode=render_mode, config=config, info=False, own_ends=self.own_ends, **options
        )

    def _build(self, options: Mapping[str, Any]) -> None:
        super()._build(options)
        self.config = deepcopy(self.vector.config)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Changes the config from the next reset on."""
        self.config = self.vector.kind.check(config, self.config)

    def default_config(self) -> dict[str, Any]:
        """highway-env's defaults."""
        return self.vector.kind.check({})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode. `options={"config": {...}}` changes the config first, as `configure` does."""
        options = dict(options or {})
        changes = options.pop("config", {})
        if options:
            raise ValueError(f"options: expected 'config' or nothing, got {', '.join(map(repr, options))}")
        self.configure(changes)
        if not data_equivalence(self.config, self.vector.config):
            old = self.vector
            self._build({**self._options, "config": self.config})
            self.vector.copy_generators(old)
            old.close()
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"action": action}

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """highway-env's info in plain Python."""
        own = {key: _plain(value) for key, value in self.vector.read_info().items()}
        for key in ("agents_rewards", "agents_terminated", "is_success"):
            if isinstance(own.get(key), np.ndarray):
                own[key] = tuple(own[key].tolist())
        return own

    @property
    def vehicle(self) -> VehicleState:
        """The controlled vehicle. `vehicles()` has all of them."""
        if not self.vector.was_reset:
            raise gymnasium.error.ResetNeeded("there is no vehicle yet: call reset() first")
        vehicles = self.vector.vehicles()
        own = int(np.flatnonzero(vehicles["agent"] == 0)[0]) if "agent" in vehicles else 0
        first = {key: value[own].item() for key, value in vehicles.items()}
        indices = self.vector.lane_indices()
        return VehicleState(
            np.array([first["x"], first["y"]]),
            first["heading"],
            first["speed"],
            indices[first["lane"]],
            indices[first["target_lane"]],
            first["target_speed"],
            first["crashed"],
        )

    @property
    def action_type(self) -> ActionType:
        """Names of the actions: `env.unwrapped.action_type.actions_indexes["IDLE"]`."""
        names = dict(enumerate(action_names(agent_config(self.vector.config))))
        return ActionType(names, {name: i for i, name in names.items()}, self.get_available_actions)

    def set_record_video_wrapper(self, wrapper: Any) -> None:
        """Sets the frame rate of `gymnasium.wrappers.RecordVideo` to the speed of highway-env's films. There is a
        picture of each step, none of the simulation frames in between."""
        wrapper.frames_per_sec = self.metadata["render_fps"]

    def __deepcopy__(self, memo: dict[int, Any]) -> RoadEnv:
        """A copy in the same state, for planners that simulate ahead."""
        twin: RoadEnv = object.__new__(type(self))
        memo[id(self)] = twin
        twin.render_mode, twin._options = self.render_mode, self._options
        twin._build({**self._options, "config": self.vector.config})
        twin.config = deepcopy(self.config, memo)
        twin.spec = deepcopy(self.spec, memo)
        twin._np_random, twin._np_random_seed = deepcopy(self._np_random, memo), self._np_random_seed
        if self.vector.was_reset:
            twin.load_state(self.save_state())
        return twin

    def get_available_actions(self) -> list[Any]:
        """The actions that can have an effect now, see `action_masks` of the vector environment; with several agents
        all tuples of such."""
        if not isinstance(self.action_space, Tuple):
            return [int(action) for action in np.flatnonzero(self.vector.action_masks()[0])]
        masks = self.vector.action_masks()[0].reshape(len(self.action_space), -1)
        return list(itertools.product(*(np.flatnonzero(mask).tolist() for mask in masks)))

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [num_actions], see `action_masks` of the vector environment."""
        return self.vector.action_masks()[0]

    def vehicles(self) -> dict[str, NDArray[Any]]:
        """See `vehicles` of the vector environment."""
        return self.vector.vehicles()


def _plain(value: Any) -> Any:
    """The first environment's part of an info; numbers as Python's."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    first = value[0]
    return first if first.ndim else first.item()


class OwnEndsRoadEnv(RoadEnv):
    """A `RoadEnv` with rewards and ends in tuples, one entry an agent, as with highway-env's MultiAgentWrapper."""

    own_ends = True

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        obs, _, _, truncated, info = super().step(action)
        return obs, info["agents_rewards"], info["agents_terminated"], truncated, info


class RoadMultiAgentVectorEnv(LinkedVectorEnv):
    """K environments of an id with as many agents as the config has; each agent has its own reward and end.
    Observations are flat; `obs_space` has their shape. With several `controlled_vehicles` the observation and action of
    the config are those of each.

    Links (`comms`, `docs/links.md`): with "perfect" agents see all others as they are. With "range" or "37885" every
    agent's vehicle broadcasts its state at the end of each step, at resets too, as long as it is on the road, and an
    agent knows of another the last state that it received. A share `connected` of the vehicles of the traffic has
    radios too, 256 at most with those of the agents, and what they send is heard as what agents send. Vehicles without
    a radio are seen as they are. Observations are tables then (Kinematics), which `order` sorts by the places that are
    known:

    - each row ends with one more number, the age of its state in `max_age` (0: of this moment, the agent's own, a
      vehicle without a radio, an obstacle); of vehicles that are not known of there is no row;
    - of the features of a received state `cos_d` and `sin_d` are 0, and those of a lane are of the lane nearest to its
      place;
    - a discrete action is manoeuvre + manoeuvres x (resource + resources x power), as far as there is a choice;
      continuous actions have a number more for each choice, whose range, -1 to 1, is cut into equal parts;
    - a reward has two more terms: `age_reward` x the mean age of information, in s, that receivers within the range
      have of the agent, and `delivery_reward` x the share of them that its message reached;
    - `info["comms"]`, `links` and the statistics of episodes are as in `fastrl.envs.traffic.coop`.

    `set_difficulty` sets the number of agents, at most `controlled_vehicles`, and the density of the other traffic,
    from 0 to 1, of coming episodes. The density multiplies `initial_vehicle_count`, `spawn_probability`,
    `vehicles_count`, `vehicles_density` and `other_vehicles`. In `merge` and `roundabout` the number of vehicles is
    always the same, and the traffic drives those that have no agent.

    In `surroundings="urban"` a building fills each corner of an intersection, from 7 m beside the middle of each road
    on: vehicles on different roads see each other only near the crossing. The other roads have no buildings.

    Args:
        num_envs: K.
        id, config, num_threads: as in `RoadVectorEnv`.
        comms: how agents know of one another: "perfect", "range" (by distance) or "37885" (by 3GPP TR 37.885).
        comms_options: fields of `fastrl.envs.traffic.links.LinkOptions`.
        age_reward, delivery_reward: weights of the links in an agent's reward; 0 with `comms="perfect"`.
        task: as in `RoadVectorEnv`.
        autoreset_mode: Gymnasium's enum or the name of a mode.

    Raises:
        ValueError, TypeError: an option out of its range; the message says what was expected.
    """

    kinds: ClassVar[Mapping[str, Kind]] = KINDS

    def __init__(
        self,
        num_envs: int,
        *,
        id: str,  # noqa: A002
        config: Mapping[str, Any] | None = None,
        comms: Comms = "perfect",
        comms_options: Mapping[str, Any] | None = None,
        age_reward: float = 0.0,
        delivery_reward: float = 0.0,
        task: DrivingTask | str | None = None,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        kind = kind_of(id, self.kinds)
        config = {} if config is None else config
        if isinstance(config, Mapping) and kind.has_teams:
            config = for_agents(kind, config)
        options = link_options(comms, comms_options)
        settings, build = kind.simulator(num_envs, config, num_threads, kind.most_steps, "each")
        single = agent_config(settings)
        if options is None and (age_reward or delivery_reward):
            name, value = ("age_reward", age_reward) if age_reward else ("delivery_reward", delivery_reward)
            raise ValueError(f"{name}: expected 0 with comms='perfect', which has no messages, got {value}")
        if options is not None and kind.compiled is not _rust.RoadVec:
            raise ValueError(
                f"comms: fastrl/{id} has no radio links, got {comms!r}: use fastrl/coop-highway-v0"
            )
        if options is not None and single["observation"]["type"] not in TABLES:
            raise ValueError(
                f"comms: {comms!r} needs an observation of the type {' or '.join(TABLES)}, got"
                f" {single['observation']['type']}"
            )
        mode = as_autoreset_mode(autoreset_mode)
        links = {"comms": options, "age_reward": age_reward, "delivery_reward": delivery_reward}
        if options is not None:
            build = functools.partial(build, **links)
        self.config = settings
        native, terms = build_with(task, build, mode.name.lower(), self.lane_indices)
        space, actions = observation_space(single), action_space(single)
        flat = flat_space(space)
        if options is not None:
            assert isinstance(space, Box), "of a table"
            count, width = space.shape[0], space.shape[1] + 1
            space = Box(-np.inf, np.inf, (count, width), np.float32)
            if sensed := native.obs_dim - terms - count * width:
                space = Tuple([space, Box(-np.inf, np.inf, (sensed,), np.float32)])
            flat = flat_space(space)
            actions = (
                Discrete(native.num_actions)
                if isinstance(actions, Discrete)
                else Box(-1.0, 1.0, (native.action_len,), np.float32)
            )
        super().__init__(
            lambda _: native,
            widened(flat, terms),
            actions,
            autoreset_mode=mode,
            name=f"fastrl/{id}",
            view=View.of_config(settings),
            fps=float(settings["policy_frequency"]),
        )
        if options is not None or (isinstance(space, Box) and space.dtype == np.float32):
            # Whose rows an encoder may tell apart.
            further = (Box(-np.inf, np.inf, (terms,), np.float32),) if terms else ()
            parts = (*(space if isinstance(space, Tuple) else (space,)), *further)
            self.obs_space = Tuple(parts) if len(parts) > 1 else space

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """The index of each lane, see `RoadVectorEnv.lane_indices`."""
        return self._native.lane_indices()

    def vehicles(self, index: int = 0) -> dict[str, NDArray[Any]]:
        """All vehicles of one environment, see `RoadVectorEnv.vehicles`."""
        return self._native.vehicles(as_integer("index", index, 0, self.num_envs - 1))
