"""The rewards of compiled roads, written again as tasks of users."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrl.envs import DrivingTask, DrivingWorld


def clipped(speed: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    return np.clip((speed - low) / (high - low), 0.0, 1.0)


class Highway(DrivingTask):
    """The reward of highway-v0."""

    def reward(self, world: DrivingWorld) -> ArrayLike:
        forward = world.speed[:, 0] * np.cos(world.heading[:, 0])
        sum_ = 0.4 * clipped(forward, 20, 30) + 0.1 * world.target_lane[:, 0] / 3 - world.crashed[:, 0]
        return (sum_ + 1) / 1.5 * world.on_road[:, 0]


class Merge(DrivingTask):
    """The reward of merge-v0, of one agent or of each of several."""

    def reward(self, world: DrivingWorld) -> ArrayLike:
        own = slice(0, world.num_agents)
        on_ramp = world.present & (world.lane == world.lanes.index(("b", "c", 2)))
        slowness = np.where(on_ramp, 1 - world.speed / np.where(on_ramp, world.target_speed, 1), 0).sum(
            axis=1
        )
        sum_ = (
            -1.0 * world.crashed[:, own]
            + 0.1 * world.lane_number[:, own]
            + 0.2 * (world.speed[:, own] - 20) / 10
            - 0.05 * np.isin(world.action, (0, 2))
            - 0.5 * slowness[:, np.newaxis]
        )
        return (sum_ + 1.5) / (0.3 + 1.5)


class CoopMerge(DrivingTask):
    """The reward of coop-merge-v0."""

    def reward(self, world: DrivingWorld) -> ArrayLike:
        agents = slice(0, world.num_agents)
        turned = world.heading[:, agents] - world.lane_heading[:, agents]
        lane = world.lane[:, agents]
        on_road = np.where(lane < 2, 0.05 * lane, 0.0)
        on_road += 0.4 * clipped(world.speed[:, agents] * np.cos(turned), 10, 30)
        near = np.abs(world.offset[:, agents]) <= 2.0
        own = np.where(near, on_road, 0.0) + world.arrived - world.crashed[:, agents]
        own = np.where(world.acted, own, 0.0)
        return (
            0.5 * own + 0.5 * own.sum(axis=1, keepdims=True) / np.maximum(world.acted.sum(axis=1), 1)[:, None]
        )
