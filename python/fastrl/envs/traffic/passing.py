"""A task for highway-env's racetracks: to pass others on the lane beside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.driving_task import DrivingTask, DrivingWorld

# Width of a racetrack's lanes and length of a vehicle, m; the speed of agents that only steer, m/s.
_WIDTH, _LENGTH, _SPEED = 5.0, 5.0, 10.0
# Distances, m, within which others are observed ahead and behind.
_AHEAD, _BEHIND = 40.0, 20.0
# Distances, m, within which others have a price: behind, ahead from bumper to bumper, and to the side.
_PASSED, _NEAR, _ASIDE = 8.0, 25.0, 4.5


class Passing(DrivingTask):
    """Numbers that an agent needs to pass others on highway-env's racetracks, and a reward that leads to it.

    Each step is rewarded by 1 in the middle of a lane. It costs 0.3 for a full steering angle, up to 3 for somebody
    near ahead or beside who is less than 4.5 m to the side, and 10 if the agent crashes or leaves the road.

    Observations have 16 numbers more. The first two are the agent's own: its place right of the middle of its lane, in
    half widths of it, and three times the angle from the lane's direction, rad. Five, four and five are of the lanes on
    its left, its own, and on its right:

    - 1 if there is such a lane, not of its own;
    - the next one ahead there: how near it is, from 0 at 40 m to 1; 10 m/s less its speed, in units of 4 m/s; its place
      right of the middle of the lane, in half widths;
    - the next one behind: how near it is, from 0 at 20 m to 1.

    Obstacles are not among the others.
    """

    terms = 16

    def observe(self, world: DrivingWorld) -> NDArray[np.float64]:
        own = slice(0, world.num_agents)
        turned = np.mod(world.heading[:, own] - world.lane_heading[:, own] + np.pi, 2 * np.pi) - np.pi
        seen = [world.offset[:, own] / (_WIDTH / 2), 3 * turned]
        ahead, last = _ahead(world), max(number for *_, number in world.lanes)
        for side in (-1, 0, 1):
            lane = world.lane_number[:, own] + side
            if side:
                seen.append(((lane >= 0) & (lane <= last)).astype(np.float64))
            on = world.lane_number[:, np.newaxis] == lane[..., np.newaxis]
            before = np.where(on & (ahead > 0), ahead, np.inf)
            behind = np.where(on & (ahead <= 0), -ahead, np.inf).min(axis=2)
            gap, following = before.min(axis=2), before.argmin(axis=2)
            slower = (_SPEED - np.take_along_axis(world.speed, following, 1)) / 4
            beside = np.take_along_axis(world.offset, following, 1) / (_WIDTH / 2)
            is_near = gap < _AHEAD
            seen += [np.maximum(0, 1 - gap / _AHEAD), is_near * slower, is_near * beside]
            seen.append(np.maximum(0, 1 - behind / _BEHIND))
        return np.stack(seen, axis=2)

    def reward(self, world: DrivingWorld) -> NDArray[np.float64]:
        own = slice(0, world.num_agents)
        ahead, place = _ahead(world), world.offset + _WIDTH * world.lane_number
        near = np.clip(1 - np.maximum(ahead - _LENGTH, 0) / _NEAR, 0, 1) * (ahead > -_PASSED)
        aside = np.abs(place[:, np.newaxis] - place[:, own, np.newaxis])
        threat = (near * np.clip(1 - aside / _ASIDE, 0, 1)).max(axis=2)
        # An angle that is chosen by its number has no price.
        steered = np.abs(world.action[..., -1]) if world.action.ndim == 3 else 0
        lost = world.crashed[:, own] | ~world.on_road[:, own]
        centred = 1 / (1 + world.offset[:, own] ** 2)
        reward: NDArray[np.float64] = centred - 0.3 * steered - 3 * threat - 10 * lost
        return reward


def _ahead(world: DrivingWorld) -> NDArray[np.float64]:
    """Distances of all vehicles from the centre of each agent, m, negative behind it, [N, A, V]; of itself and of those
    that are not there minus infinity."""
    own = slice(0, world.num_agents)
    dx = world.x[:, np.newaxis] - world.x[:, own, np.newaxis]
    dy = world.y[:, np.newaxis] - world.y[:, own, np.newaxis]
    heading = world.heading[:, own, np.newaxis]
    # Straight lines are near enough: where the road bends away others are far.
    distance = np.copysign(np.hypot(dx, dy), dx * np.cos(heading) + dy * np.sin(heading))
    is_other = world.present[:, np.newaxis] & ~np.eye(world.num_agents, world.x.shape[1], dtype=np.bool_)
    return np.where(is_other, distance, -np.inf)
