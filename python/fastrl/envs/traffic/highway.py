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
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.traffic.config_interfaces import action_space, flat_space, observation_space
from fastrl.envs.traffic.config_keys import MOST_ENVS
from fastrl.envs.traffic.configured import ConfiguredEnv
from fastrl.envs.traffic.highway_config import (
    HIGHWAY_DEFAULTS,
    HIGHWAY_FAST_DEFAULTS,
    check_config,
    native_options,
)
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.viewer import View
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

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """highway-env's index of each lane."""
        return [("0", "1", lane) for lane in range(self.config["lanes_count"])]

    def vehicles(self, index: int = 0) -> dict[str, NDArray[Any]]:
        """All vehicles of one road in highway-env's order, the controlled one first: x, y, heading, speed float64
        [V] (m, rad, m/s), lane, target_lane int64 [V], crashed bool [V]. The arrays are copies."""
        return self._highway.vehicles(as_integer("index", index, 0, self.num_envs - 1))


class HighwayEnv(ConfiguredEnv):
    """One road, for `gymnasium.make`. `config` is as in `HighwayVectorEnv`, and may be changed."""

    vector_class = HighwayVectorEnv

    def __init__(
        self, config: Mapping[str, Any] | None = None, render_mode: str | None = None, *, fast: bool = False
    ) -> None:
        self.fast = fast
        super().__init__(render_mode=render_mode, config=config)

    def _fixed(self) -> dict[str, Any]:
        return {"fast": self.fast}

    def _checked(self, changes: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
        return check_config(changes, base)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return default_config()


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
        super().__init__(
            native,
            flat_space(observation_space(settings)),
            action_space(settings),
            autoreset_mode=autoreset_mode,
            name="fastrl/highway-fast-v0" if fast else "fastrl/highway-v0",
            view=View.of_config(settings),
            fps=float(settings["policy_frequency"]),
        )


def highway_fast(num_envs: int, **options: Any) -> HighwayMultiAgentVectorEnv:
    """`fastrl/highway-fast-v0` for several agents."""
    return HighwayMultiAgentVectorEnv(num_envs, fast=True, **options)
