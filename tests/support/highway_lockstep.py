"""Runs highway-env and fastrl side by side and reports where they differ.

`test_highway_lockstep.py` plays a minute of it. Thousands of episodes, on all processors, each of another config:

    python tests/support/highway_lockstep.py --episodes 5000
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium.spaces import Box

import fastrl  # noqa: F401 (registers the environments)

IDS = ("highway-v0", "highway-fast-v0")
POLICIES = ("random", "idle", "faster", "changing")
# On tracks, beside these: random steering around that which keeps to the lane.
KEEPING = "keeping"
TOLERANCE = 1e-9
BEHAVIOUR = "highway_env.vehicle.behavior."


@dataclass(frozen=True)
class Case:
    """One config, run with several seeds."""

    id: str
    config: dict[str, Any]
    seeds: tuple[int, ...]
    policies: tuple[str, ...] = POLICIES
    name: str = ""
    most_steps: int = 1000


@dataclass
class Report:
    episodes: int = 0
    steps: int = 0
    crashes: int = 0
    worst: float = 0.0
    unstable: int = 0
    """Episodes that differ where highway-env with simulated rounding errors differs from itself, too."""
    differences: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.episodes += other.episodes
        self.steps += other.steps
        self.crashes += other.crashes
        self.worst = max(self.worst, other.worst)
        self.unstable += other.unstable
        self.differences += other.differences


def choose(policy: str, space: Any, names: dict[str, int], step: int, rng: np.random.Generator) -> Any:
    """The action of a policy: an index, or numbers, float32 in all steps of an episode or float64 in all of them.
    `names` maps meta-actions to indices, for action types that have them."""
    if isinstance(space, Box):
        size = space.shape[0]
        if policy == "random":
            return rng.uniform(-1.2, 1.2, size).astype(np.float32)
        steer = 0.02 * (-1) ** (step // 2) if policy == "changing" else 0.0
        throttle = 0.7 if policy == "faster" else 0.0
        return np.array([throttle, steer][-size:], np.float64 if policy == "changing" else np.float32)
    if policy == "random":
        return int(rng.integers(space.n))
    if not names:
        return {"idle": space.n // 2, "faster": space.n - 1, "changing": (5 * step) % space.n}[policy]
    if policy == "faster":
        return names.get("FASTER", names["IDLE"])
    if policy == "changing":
        return names.get(("LANE_LEFT", "LANE_RIGHT")[int(rng.integers(2))], names["IDLE"])
    return names["IDLE"]


def keep_lane(vehicle: Any, space: Any, rng: np.random.Generator) -> Any:
    """The action that keeps highway-env's vehicle to its lane, with a little noise."""
    along, lateral = vehicle.lane.local_coordinates(vehicle.position)
    turn = vehicle.lane.heading_at(along + 0.4 * vehicle.speed) - vehicle.heading
    turn = (turn + np.pi) % (2 * np.pi) - np.pi - 0.06 * lateral
    steer = np.clip(turn + rng.normal(0, 0.05), -1, 1)
    if isinstance(space, Box):
        return np.array([0.0, steer][-space.shape[0] :], np.float32)
    root = round(space.n**0.5)
    per_axis = root if root * root == space.n else int(space.n)
    middle = (int(space.n) // per_axis - 1) // 2
    return middle * per_axis + round((steer + 1) / 2 * (per_axis - 1))


def apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A mask of the numbers that differ by more than the tolerance and, in float32, by more than the last bit."""
    wide, narrow = a.astype(np.float64), b.astype(np.float64)
    is_double = a.dtype == np.float64 == b.dtype
    ulp = 0.0 if is_double else np.spacing(np.maximum(np.abs(wide), np.abs(narrow)).astype(np.float32))
    # highway-env shows NaN where an obstacle lacks a feature.
    both = np.isnan(wide) & np.isnan(narrow)
    return ~both & ~(np.abs(wide - narrow) <= np.maximum(TOLERANCE, ulp))


def flat(observation: Any) -> np.ndarray:
    """An observation as one array; those of several agents side by side, and the parts of a dict."""
    if isinstance(observation, tuple):
        return np.concatenate([flat(part).ravel() for part in observation])
    if isinstance(observation, dict):
        # Attributes are Python's numbers there.
        parts = [observation[key] for key in sorted(observation)]
        arrays = [part if isinstance(part, np.ndarray) else np.float64(part) for part in parts]
        return np.concatenate([np.ravel(part) for part in arrays])
    return np.asarray(observation)


@contextmanager
def other_last_bits(towards: float) -> Iterator[None]:
    """Changes the last bit of NumPy's functions that processors round differently."""

    def altered(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: np.nextafter(function(*args, **kwargs), towards)

    with ExitStack() as stack:
        for name in ("arcsin", "arctan", "arctan2", "dot"):
            stack.enter_context(mock.patch.object(np, name, altered(getattr(np, name))))
        yield


class Pair:
    """highway-env and fastrl with the same config."""

    def __init__(self, id: str, config: dict[str, Any]) -> None:  # noqa: A002
        import highway_env

        # "The environment merge-v0 is out of date."
        gymnasium.logger.min_level = gymnasium.logger.ERROR
        gymnasium.register_envs(highway_env)
        # highway-env's pictures of unoccupied cells.
        warnings.filterwarnings("ignore", "invalid value encountered in cast")
        # With their wrappers: time limits, and rewards of each agent.
        # These ids take no config when they are made.
        fixed = id in ("parking-ActionRepeat-v0", "parking-parked-v0")
        options = {} if fixed else {"config": config}
        self.whole_reference: Any = gymnasium.make(id, disable_env_checker=True, **options)
        if fixed:
            self.whole_reference.unwrapped.configure(config)
        self.whole_ours: Any = gymnasium.make(f"fastrl/{id}", config=config, disable_env_checker=True)
        self.reference, self.ours = self.whole_reference.unwrapped, self.whole_ours.unwrapped
        self.lanes = self.ours.vector.lane_indices()

    def close(self) -> None:
        self.reference.close()
        self.ours.close()

    def compare(self, report: Report, theirs: tuple[Any, ...], mine: tuple[Any, ...]) -> list[str]:
        """Describes the present differences. `theirs` and `mine`: obs, reward, terminated, truncated, info."""
        found: list[str] = []

        def near(what: str, a: Any, b: Any) -> None:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            if a.shape != b.shape:
                found.append(f"{what}: shape {a.shape}, here {b.shape}")
            elif a.size:
                worst = float(np.max(np.abs(a - b)))
                report.worst = max(report.worst, worst)
                if not worst <= TOLERANCE:
                    at = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
                    found.append(f"{what}{list(map(int, at))}: {a[at]!r}, here {b[at]!r}")

        def same(what: str, a: Any, b: Any) -> None:
            if not (a == b if isinstance(b, list) else np.array_equal(a, b)):
                found.append(f"{what}: {a}, here {b}")

        vehicles = self.reference.road.vehicles
        state = self.ours.vehicles()
        near("x", [v.position[0] for v in vehicles], state["x"])
        near("y", [v.position[1] for v in vehicles], state["y"])
        near("heading", [v.heading for v in vehicles], state["heading"])
        near("speed", [v.speed for v in vehicles], state["speed"])
        if len(vehicles) != len(state["lane"]):
            return found
        same("lane", [v.lane_index for v in vehicles], [self.lanes[i] for i in state["lane"]])
        aimed = [i for i, v in enumerate(vehicles) if hasattr(v, "target_lane_index")]
        targets = [self.lanes[i] for i in state["target_lane"][aimed]]
        same("target lane", [vehicles[i].target_lane_index for i in aimed], targets)
        near("target speed", [vehicles[i].target_speed for i in aimed], state["target_speed"][aimed])
        same("crashed", [v.crashed for v in vehicles], state["crashed"])
        obs, here = flat(theirs[0]), flat(mine[0])
        same("dtype of the observation", obs.dtype, here.dtype)
        same("shape of the observation", obs.shape, here.shape)
        if obs.shape == here.shape:
            far = apart(obs, here)
            # Another look at shuffled rows would draw again.
            looks = self.reference.config["observation"]
            if far.any() and looks["type"] != "Kinematics" and "shuffled" not in str(looks):
                for nearby in self.observed_nearby():
                    far &= apart(flat(nearby), here)
            if far.any():
                at = tuple(np.argwhere(far)[0])
                found.append(f"observation{list(map(int, at))}: {obs[at]!r}, here {here[at]!r}")
        near("reward", theirs[1], mine[1])
        same("terminated", theirs[2], mine[2])
        same("truncated", theirs[3], mine[3])
        for key in {"speed", "crashed", "agents_rewards", "agents_terminated", "is_success"} & set(theirs[4]):
            near(f"info[{key!r}]", theirs[4][key], mine[4][key])
        parts, own_parts = (info.get("rewards", {}) for info in (theirs[4], mine[4]))
        same("rewards", list(parts), list(own_parts))
        for key, value in parts.items():
            # After a reset highway-env's action is random, and these parts may depend on it.
            if key in ("lane_change_reward", "action_reward") and not self.stepped:
                continue
            near(f"info['rewards'][{key!r}]", value, own_parts[key])
        kind = self.reference.action_type
        kind = getattr(kind, "agents_action_types", [kind])[0]
        # With lane keeping a step has no info there.
        if theirs[4].get("action") is not None and "get_available_actions" in type(kind).__dict__:
            same(
                "available", sorted(self.reference.get_available_actions()), self.ours.get_available_actions()
            )
        return found

    def observed_nearby(self) -> Iterator[np.ndarray]:
        """Observations of highway-env's vehicle moved by rounding errors, where objects on the edge of a cell change
        cells."""
        vehicle = self.reference.vehicle
        place = vehicle.position
        for shift in itertools.product((-TOLERANCE, TOLERANCE), repeat=2):
            vehicle.position = place + np.array(shift)
            yield self.reference.observation_type.observe()
        vehicle.position = place

    def parts_from_itself(self, seed: int | None, generator: Any, actions: list[Any]) -> bool:
        """Tells whether highway-env itself diverges under rounding errors: of every position in each frame, or of the
        functions whose last bits differ between processors. The steering of slow drivers multiplies errors with every
        frame, the arc sine has no bound on its slope at the ends of its domain, and of bodies that a collision has
        pushed apart the last bit decides whether they touch."""

        def last(nudge: float) -> np.ndarray:
            if seed is None:
                self.reference.np_random.bit_generator.state = generator
            self.reference.reset(seed=seed)
            road = self.reference.road
            step = road.step

            def nudged(seconds: float) -> None:
                for vehicle in road.vehicles:
                    vehicle.position = vehicle.position + nudge
                step(seconds)

            road.step = nudged
            for action in actions:
                self.reference.step(action)
            return np.array([vehicle.position for vehicle in road.vehicles])

        ways = [last(1e-13), last(-1e-13)]
        for towards in (-np.inf, np.inf):
            with other_last_bits(towards):
                ways.append(last(0.0))
        exact = last(0.0)
        return any(bool(np.abs(way - exact).max() > TOLERANCE) for way in ways)

    def episode(self, seed: int | None, policy: str, most_steps: int) -> Report:
        report = Report(episodes=1)
        generator = self.reference.np_random.bit_generator.state
        played: list[Any] = []
        self.stepped = False
        obs, info = self.whole_reference.reset(seed=seed)
        here, own_info = self.whole_ours.reset(seed=seed)
        found = self.compare(report, (obs, 0.0, False, False, info), (here, 0.0, False, False, own_info))
        names = getattr(self.reference.action_type, "actions_indexes", {})
        spaces = getattr(self.ours.action_space, "spaces", None)
        rng = np.random.default_rng([0 if seed is None else seed, (*POLICIES, KEEPING).index(policy)])
        ended = False
        while not ended and not found and report.steps < most_steps:
            if policy == KEEPING:
                each = zip(
                    self.reference.controlled_vehicles, spaces or [self.ours.action_space], strict=False
                )
                action = tuple(keep_lane(vehicle, space, rng) for vehicle, space in each)
                action = action if spaces is not None else action[0]
            elif spaces is None:
                action = choose(policy, self.ours.action_space, names, report.steps, rng)
            else:
                agents = self.reference.action_type.agents_action_types
                names = getattr(agents[0], "actions_indexes", {})
                action = tuple(choose(policy, space, names, report.steps, rng) for space in spaces)
            played.append(action)
            self.stepped = True
            theirs, mine = self.whole_reference.step(action), self.whole_ours.step(action)
            found = self.compare(report, theirs, mine)
            ended = bool(np.all(theirs[2]) or theirs[3])
            report.steps += 1
            report.crashes += int(np.any(theirs[2]))
        if found and self.parts_from_itself(seed, generator, played):
            report.unstable, report.worst = 1, 0.0
        elif found:
            report.differences.append(
                f"seed {seed}, policy {policy}, step {report.steps}: " + "; ".join(found)
            )
        return report


def run_case(case: Case) -> Report:
    """Runs a case. One environment id per process: making some ids of highway-env changes the others."""
    players = Pair(case.id, case.config)
    report = Report()
    for i, seed in enumerate(case.seeds):
        report.add(players.episode(seed, case.policies[i % len(case.policies)], case.most_steps))
    # Both random streams continue into an episode without a seed.
    report.add(players.episode(None, "random", min(case.most_steps, 3)))
    players.close()
    return report


def run_cases(cases: Sequence[Case], processes: int) -> Report:
    """Runs cases of one id in processes of their own, and prints how they differ."""
    total = Report()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for case, report in zip(cases, pool.map(run_case, cases), strict=True):
            total.add(report)
            for difference in report.differences:
                print(f"{case.id}, {case.name}: {difference}\n  {case.config}", flush=True)
    print(
        f"{cases[0].id}: {total.episodes} episodes, {total.steps} steps, {total.crashes} ended early,"
        f" {len(total.differences)} differences, {total.unstable} unstable, worst error {total.worst:.2e}",
        flush=True,
    )
    return total


def random_case(id: str, number: int) -> Case:  # noqa: A002
    """A random config of the supported options, small enough to be fast."""
    rng = random.Random(f"{id} {number}")
    meta = {
        "type": "DiscreteMetaAction",
        "longitudinal": rng.random() < 0.8,
        "lateral": True,
        "target_speeds": rng.choice([None, [20, 25, 30], [0, 10, 20, 30, 40], [15.5, 22.25]]),
    }
    ranges = {
        "longitudinal": True,
        "lateral": rng.random() < 0.7,
        "clip": True,
        "acceleration_range": rng.choice([None, [-3, 4.5]]),
        "steering_range": rng.choice([None, [-0.3, 0.2]]),
    }
    continuous = {"type": "ContinuousAction", "speed_range": rng.choice([None, [10, 33]])} | ranges
    discrete = {"type": "DiscreteAction", "actions_per_axis": rng.choice([2, 3, 4, 5])} | ranges
    action = rng.choice([meta, meta, meta, continuous, discrete])
    features = ["presence", "x", "y", "vx", "vy", "heading", "cos_h", "sin_h", "cos_d", "sin_d", "long_off"]
    features += ["lat_off", "ang_off"]
    feature_ranges = rng.choice(
        [None, {"x": [-100, 100], "y": [-20, 20], "vx": [-30, 30], "heading": [-1, 2]}]
    )
    kinematics = {
        "type": "Kinematics",
        "features": rng.choice([None, rng.sample(features, rng.randint(1, len(features)))]),
        "vehicles_count": rng.randint(2, 12),
        "features_range": feature_ranges,
        "absolute": rng.random() < 0.5,
        "order": rng.choice(["sorted", "shuffled"]),
        "normalize": rng.random() < 0.7,
        "clip": rng.random() < 0.7,
        "see_behind": rng.random() < 0.5,
        "observe_intentions": rng.random() < 0.5,
    }
    grid = {
        "type": "OccupancyGrid",
        "features": rng.choice([None, [*rng.sample(features, 3), "on_road"]]),
        # The points that lanes are drawn by move with the vehicle: none of them lies on the edge of a cell here.
        "grid_size": rng.choice([None, [[-50.3, 80], [-11, 13]]]),
        "grid_step": rng.choice([None, [3, 2]]),
        "features_range": feature_ranges,
        "align_to_vehicle_axes": rng.random() < 0.5,
        "clip": rng.random() < 0.5,
        "as_image": rng.random() < 0.3,
    }
    kinds: list[dict[str, Any]] = [kinematics, kinematics, grid]
    if action["type"] == "DiscreteMetaAction":
        kinds.append({"type": "TimeToCollision", "horizon": rng.choice([5, 10, 12.5])})
    policy_frequency = rng.choice([1, 1, 2, 5])
    lanes = rng.randint(1, 6)
    config = {
        "observation": rng.choice(kinds),
        "action": action,
        "simulation_frequency": rng.choice([5, 10, 15]),
        "policy_frequency": policy_frequency,
        "other_vehicles_type": BEHAVIOUR
        + rng.choice(["IDM", "Linear", "Aggressive", "Defensive"])
        + "Vehicle",
        "lanes_count": lanes,
        "vehicles_count": rng.randint(0, 14),
        "controlled_vehicles": rng.choice([1, 1, 1, 2]),
        "initial_lane_id": rng.choice([None, rng.randrange(lanes)]),
        "duration": rng.randint(4, 15),
        "ego_spacing": rng.choice([0.5, 1.5, 2]),
        "vehicles_density": rng.choice([0.7, 1, 1.5, 2.5]),
        "collision_reward": rng.choice([-1, -2.5, 0]),
        "right_lane_reward": rng.choice([0.1, 0.5, 0]),
        "high_speed_reward": rng.choice([0.4, 1]),
        "reward_speed_range": rng.choice([[20, 30], [10.5, 35]]),
        "normalize_reward": rng.random() < 0.6,
        "offroad_terminal": rng.random() < 0.5,
    }
    seeds = tuple(rng.randrange(2**32) for _ in POLICIES)
    return Case(id, config, seeds, name=f"random config {number}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000, help="approximate number of episodes")
    parser.add_argument("--first", type=int, default=0, help="number of the first random config")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    each = -(-args.episodes // (2 * (len(POLICIES) + 1)))
    failed = False
    for id in IDS:  # noqa: A001
        cases = [random_case(id, number) for number in range(args.first, args.first + each)]
        failed |= bool(run_cases(cases, args.processes).differences)
    return failed


if __name__ == "__main__":
    sys.exit(main())
