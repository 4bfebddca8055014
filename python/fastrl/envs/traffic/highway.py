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

from typing import Any

import numpy as np

from fastrl.envs.traffic.highway_config import HIGHWAYS
from fastrl.envs.traffic.roads import RoadEnv, RoadMultiAgentVectorEnv, RoadVectorEnv

REWARDS = ("collision_reward", "right_lane_reward", "high_speed_reward", "on_road_reward")


def _id(fast: bool) -> str:
    return "highway-fast-v0" if fast else "highway-v0"


def default_config(*, fast: bool = False) -> dict[str, Any]:
    """highway-env's defaults of `highway-v0`, or of `highway-fast-v0`."""
    return HIGHWAYS[_id(fast)].check({})


class HighwayVectorEnv(RoadVectorEnv):
    """N straight roads of traffic with one controlled vehicle each, stepped natively.

    Args:
        num_envs: number of roads, N.
        fast: the defaults of `highway-fast-v0`, and collisions of the controlled vehicle only.
        options: as in `RoadVectorEnv`, but for `id` and `own_ends`: config, max_episode_steps, num_threads,
            autoreset_mode, info, task, render_mode.

    `step` and `step_into` also take continuous actions in float64, and then compute in that precision.

    Raises:
        ValueError, TypeError: an option out of its range; the message says what was expected.
    """

    kinds = HIGHWAYS

    def __init__(self, num_envs: int = 1, *, fast: bool = False, **options: Any) -> None:
        super().__init__(num_envs, id=_id(fast), **options)

    def read_info(self) -> dict[str, Any]:
        """The `info` without Gymnasium's masks."""
        n = self.num_envs
        speed, crashed, rewards = np.empty(n), np.empty(n, np.bool_), np.empty((n, len(REWARDS)))
        action = self._empty_actions(n)
        self.roads.info(speed, crashed, rewards, action)
        return {
            "speed": speed,
            "crashed": crashed,
            "action": action,
            "rewards": dict(zip(REWARDS, rewards.T.copy(), strict=True)),
        }

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """highway-env's index of each lane."""
        return [("0", "1", lane) for lane in range(self.config["lanes_count"])]


class HighwayEnv(RoadEnv):
    """One road, for `gymnasium.make`. Options are those of `HighwayVectorEnv`; the config may be changed."""

    vector_class = HighwayVectorEnv


class HighwayMultiAgentVectorEnv(RoadMultiAgentVectorEnv):
    """K highways with one agent each; observations are flat.

    Args:
        num_envs: K.
        fast: as in `HighwayVectorEnv`.
        options: config, task, num_threads, autoreset_mode, as in `RoadMultiAgentVectorEnv`; there are no radio links.
    """

    kinds = HIGHWAYS

    def __init__(self, num_envs: int, *, fast: bool = False, **options: Any) -> None:
        super().__init__(num_envs, id=_id(fast), **options)

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """highway-env's index of each lane."""
        return [("0", "1", lane) for lane in range(self.config["lanes_count"])]
