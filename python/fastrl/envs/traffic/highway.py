"""highway-env's `highway-v0` and `highway-fast-v0`, compiled: the same config, spaces, rewards, ends and `info`.

`reset(seed=s)` gives highway-env 1.12.1's initial state, and the episode runs on as it does there, within 1e-9 (so a
vehicle on the very edge of a cell of an occupancy grid or of times to collision may fall to either side). Continuous
actions are scaled in their own precision, as NumPy does it (NEP 50): float32, as `action_space.sample()` draws them, or
float64. Differences, on purpose:

- A config key that is unknown or not supported raises, where highway-env ignores it
(`fastrl.envs.traffic.highway_config`).
- NaN, and with `clip=False` numbers outside of [-1, 1], are refused, and so is a step after the end of an episode.
- `info["action"]` after a reset is the action that changes nothing (highway-env draws one without a seed).
- Kinematics with `vehicles_count=1` is refused: highway-env then observes every near vehicle, outside of its own space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.single import SingleEnv
from fastrl.envs.traffic.highway_config import (
    HIGHWAY_DEFAULTS,
    HIGHWAY_FAST_DEFAULTS,
    MOST_ENVS,
    action_names,
    action_space,
    check_config,
    native_options,
    observation_space,
)
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.viewer import RENDER_MODES, View
from fastrl.utils.arguments import as_integer

REWARDS = ("collision_reward", "right_lane_reward", "high_speed_reward", "on_road_reward")


def _simulator(
    num_envs: int,
    config: Mapping[str, Any] | None,
    fast: bool,
    num_threads: int,
    max_episode_steps: int | None = None,
) -> tuple[dict[str, Any], Callable[[str], _rust.HighwayVec]]:
    """The checked config, and a function that builds the compiled highways for an autoreset mode."""
    num_envs = as_integer("num_envs", num_envs, 1, MOST_ENVS)
    num_threads = as_integer("num_threads", num_threads, 0, 1024)
    config = check_config({} if config is None else config, default_config(fast=fast))
    options = native_options(config, fast=fast)
    if max_episode_steps is not None:
        steps = as_integer("max_episode_steps", max_episode_steps, 1, 2**31)
        options["duration"] = min(options["duration"], (steps - 0.5) / config["policy_frequency"])
    return config, lambda mode: _rust.HighwayVec(
        num_envs, num_threads=num_threads, autoreset_mode=mode, **options
    )


def default_config(*, fast: bool = False) -> dict[str, Any]:
    """highway-env's defaults of `highway-v0`, or of `highway-fast-v0`."""
    return check_config({}, HIGHWAY_FAST_DEFAULTS if fast else HIGHWAY_DEFAULTS)


class HighwayVectorEnv(NativeVectorEnv):
    """N straight roads of traffic with one controlled vehicle each, stepped natively.

    Args:
        num_envs: number of roads, N.
        config: highway-env's keys, on top of the defaults; nested dicts are replaced as a whole, as there.
        fast: the defaults of `highway-fast-v0`, and collisions of the controlled vehicle only.
        max_episode_steps: Gymnasium's time limit; an episode is truncated by it or by the config's `duration`.
        num_threads: threads that step the roads; 0 for one a core.
        autoreset_mode: see `NativeVectorEnv`.
        info: fills `info` as highway-env does: speed float64 [N], crashed bool [N], action [N, ...], rewards (a dict
            of float64 [N]). Without it `info` is empty and steps are a little faster.

    `step` and `step_into` also take continuous actions in float64, and then compute in that precision.

    Raises:
        ValueError, TypeError: an option out of its range; the message says what was expected.
    """

    _keeps_float64 = True

    def __init__(
        self,
        num_envs: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        fast: bool = False,
        max_episode_steps: int | None = None,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        info: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.config, native = _simulator(num_envs, config, fast, num_threads, max_episode_steps)
        if self.config["offscreen_rendering"] is None:
            self.config["offscreen_rendering"] = render_mode != "human"
        super().__init__(
            native,
            observation_space(self.config),
            action_space(self.config),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            info_of=(lambda _: self.read_info()) if info else None,
            render_modes=(),
            view=View.of_config(self.config),
            # As in highway-env, films run at twice real time.
            fps=2 * self.config["policy_frequency"],
        )

    @property
    def _highway(self) -> _rust.HighwayVec:
        return cast(_rust.HighwayVec, self._native)

    def read_info(self) -> dict[str, Any]:
        """The `info` without Gymnasium's masks."""
        n, space = self.num_envs, self.single_action_space
        discrete = isinstance(space, Discrete)
        speed, crashed, rewards = np.empty(n), np.empty(n, np.bool_), np.empty((n, len(REWARDS)))
        action = np.empty(n, np.int64) if discrete else np.empty((n, *(space.shape or ())), np.float32)
        self._highway.info(speed, crashed, rewards, action)
        return {
            "speed": speed,
            "crashed": crashed,
            "action": action,
            "rewards": dict(zip(REWARDS, rewards.T.copy(), strict=True)),
        }

    def copy_generators(self, other: HighwayVectorEnv) -> None:
        """Continues the random streams of another environment, if it was ever reset."""
        if other.was_reset:
            self._highway.copy_generators(other._highway)
            self.was_reset = True

    def vehicles(self, index: int = 0) -> dict[str, NDArray[Any]]:
        """All vehicles of one road in highway-env's order, the controlled one first: x, y, heading, speed float64
        [V] (m, rad, m/s), lane, target_lane int64 [V], crashed bool [V]. The arrays are copies."""
        return self._highway.vehicles(as_integer("index", index, 0, self.num_envs - 1))


@dataclass(frozen=True)
class VehicleState:
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


@dataclass(frozen=True)
class ActionType:
    """Names of the actions of DiscreteMetaAction."""

    actions: dict[int, str]
    actions_indexes: dict[str, int]
    get_available_actions: Callable[[], list[int]]


class HighwayEnv(SingleEnv):
    """One road, for `gymnasium.make`.

    `config` is as in `HighwayVectorEnv`, and as in highway-env it may be changed: edit `env.unwrapped.config`, call
    `configure`, or pass `reset(options={"config": {...}})`. A change takes effect at the next reset, spaces included.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012
    vector_class = HighwayVectorEnv
    _vector: HighwayVectorEnv

    def __init__(
        self, config: Mapping[str, Any] | None = None, render_mode: str | None = None, *, fast: bool = False
    ) -> None:
        self.fast = fast
        super().__init__(render_mode=render_mode, config=config)

    def _build(self, options: Mapping[str, Any]) -> None:
        super()._build({**options, "fast": self.fast, "info": False})
        self.config = check_config(self._vector.config, self._vector.config)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return default_config()

    def configure(self, config: Mapping[str, Any]) -> None:
        """Changes the config from the next reset on."""
        self.config = check_config(config, self.config)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts an episode. `options={"config": {...}}` changes the config first, as `configure` does."""
        options = dict(options or {})
        changes = options.pop("config", {})
        if options:
            raise ValueError(f"options: expected 'config' or nothing, got {', '.join(map(repr, options))}")
        self.configure(changes)
        if not data_equivalence(self.config, self._vector.config):
            old = self._vector
            self._build({"config": self.config})
            self._vector.copy_generators(old)
            old.close()
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"action": action}

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        """highway-env's info in plain Python."""
        info = self._vector.read_info()
        rewards = {name: float(part[0]) for name, part in info["rewards"].items()}
        action = info["action"][0]
        return {
            "speed": float(info["speed"][0]),
            "crashed": bool(info["crashed"][0]),
            "action": action if action.ndim else int(action),
            "rewards": rewards,
        }

    @property
    def vehicle(self) -> VehicleState:
        """The controlled vehicle. `vehicles()` has all of them."""
        if not self._vector.was_reset:
            raise gymnasium.error.ResetNeeded("there is no vehicle yet: call reset() first")
        first = {key: value[0].item() for key, value in self._vector.vehicles().items()}
        lanes = {key: ("0", "1", int(first[key])) for key in ("lane", "target_lane")}
        return VehicleState(
            np.array([first["x"], first["y"]]),
            first["heading"],
            first["speed"],
            lanes["lane"],
            lanes["target_lane"],
            first["target_speed"],
            first["crashed"],
        )

    @property
    def action_type(self) -> ActionType:
        """Names of the actions: `env.unwrapped.action_type.actions_indexes["IDLE"]`."""
        names = dict(enumerate(action_names(self._vector.config)))
        return ActionType(names, {name: i for i, name in names.items()}, self.get_available_actions)

    def set_record_video_wrapper(self, wrapper: Any) -> None:
        """Sets the frame rate of `gymnasium.wrappers.RecordVideo` to the speed of highway-env's films. There is a
        picture of each step, none of the simulation frames in between."""
        wrapper.frames_per_sec = self.metadata["render_fps"]

    def __deepcopy__(self, memo: dict[int, Any]) -> HighwayEnv:
        """A copy in the same state, for planners that simulate ahead."""
        twin = type(self)(self._vector.config, self.render_mode, fast=self.fast)
        memo[id(self)] = twin
        twin.config = deepcopy(self.config, memo)
        twin.spec = deepcopy(self.spec, memo)
        twin._np_random, twin._np_random_seed = deepcopy(self._np_random, memo), self._np_random_seed
        if self._vector.was_reset:
            twin.load_state(self.save_state())
        return twin

    def get_available_actions(self) -> list[int]:
        """The actions that can have an effect now, see `HighwayVectorEnv.action_masks`."""
        return [int(action) for action in np.flatnonzero(self._vector.action_masks()[0])]

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [num_actions], see `HighwayVectorEnv.action_masks`."""
        return self._vector.action_masks()[0]

    def vehicles(self) -> dict[str, NDArray[Any]]:
        """See `HighwayVectorEnv.vehicles`."""
        return self._vector.vehicles()


class HighwayMultiAgentVectorEnv(MultiAgentVectorEnv):
    """K highways with one agent each; observations are flat.

    Args:
        num_envs: K.
        config, fast, num_threads: as in `HighwayVectorEnv`.
        autoreset_mode: Gymnasium's enum or the name of a mode.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        config: Mapping[str, Any] | None = None,
        fast: bool = False,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        settings, native = _simulator(num_envs, config, fast, num_threads)
        space = observation_space(settings)
        super().__init__(
            native,
            Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type),  # type: ignore[union-attr]
            action_space(settings),
            autoreset_mode=autoreset_mode,
            name="fastrl/highway-fast-v0" if fast else "fastrl/highway-v0",
            view=View.of_config(settings),
            fps=float(settings["policy_frequency"]),
        )


def highway_fast(num_envs: int, **options: Any) -> HighwayMultiAgentVectorEnv:
    """`fastrl/highway-fast-v0` for several agents."""
    return HighwayMultiAgentVectorEnv(num_envs, fast=True, **options)
