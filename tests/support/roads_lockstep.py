"""Runs highway-env and fastrl side by side on road networks and reports where they differ.

`test_roads_lockstep.py` plays a fixed sample of it. Hundreds of episodes of each id, each of another config:

    NPY_DISABLE_CPU_FEATURES=X86_V4 python tests/support/roads_lockstep.py --episodes 1000 --ids merge-v0 roundabout-v0

`test_roads_lockstep.py` says what the variable is for.
"""

from __future__ import annotations

import argparse
import random
import sys
from copy import deepcopy
from typing import Any

from highway_lockstep import BEHAVIOUR, KEEPING, POLICIES, Case, run_cases

from fastrl.envs.traffic.config_interfaces import CLOCKS, GOAL_FEATURES, LATERAL, VEHICLE_FEATURES
from fastrl.envs.traffic.roads_config import KINDS, Kind

SEEDS = 4
# The NumPy features whose functions differ in last bits from the C library's.
NO_AVX512 = "X86_V4"
# Traffic whose steering multiplies rounding errors at low speeds is rare: most of its episodes are unstable.
OTHERS = ("IDM", "IDM", "IDM", "Linear", "Aggressive", "Defensive")


def _observation(rng: random.Random, scenario: str, meta: bool) -> dict[str, Any]:
    ranges = rng.choice([None, {"x": [-100, 100], "y": [-90, 100], "vx": [-30, 30], "heading": [-4, 4]}])
    table = {
        "type": "ExitObservation" if scenario == "exit" and rng.random() < 0.6 else "Kinematics",
        "features": rng.choice([None, rng.sample(VEHICLE_FEATURES, rng.randint(1, len(VEHICLE_FEATURES)))]),
        "vehicles_count": rng.randint(2, 12),
        "features_range": ranges,
        "absolute": rng.random() < 0.5,
        "order": rng.choice(["sorted", "sorted", "shuffled"]),
        "normalize": rng.random() < 0.7,
        "clip": rng.random() < 0.7,
        "see_behind": rng.random() < 0.5,
        "observe_intentions": rng.random() < 0.5,
        "include_obstacles": rng.random() < 0.7,
    }
    grid = {
        "type": "OccupancyGrid",
        "features": rng.choice([None, [*rng.sample(VEHICLE_FEATURES, 3), "on_road"]]),
        "grid_size": rng.choice([None, [[-50.3, 80], [-11, 13]]]),
        "grid_step": rng.choice([None, [3, 2]]),
        "features_range": ranges,
        "align_to_vehicle_axes": rng.random() < 0.5,
        "clip": rng.random() < 0.5,
        "as_image": rng.random() < 0.3,
    }
    kinds: list[dict[str, Any]] = [table, table, grid]
    if scenario == "parking":
        features = rng.sample(GOAL_FEATURES, 6)
        scales = [rng.choice([1, 5.5, 100, -3]) for _ in features]
        goal = {"type": "KinematicsGoal", "features": features, "scales": scales}
        attributes = {"type": "AttributesObservation", "attributes": ["time", "steps"]}
        kinds = [KINDS["parking-v0"].defaults["observation"], goal, rng.choice([goal, attributes, *kinds])]
    if scenario == "lane-keeping":
        attributes = rng.sample([*CLOCKS, *LATERAL], rng.randint(1, 5))
        kinds = [KINDS["lane-keeping-v0"].defaults["observation"], rng.choice(kinds)]
        kinds += 2 * [{"type": "AttributesObservation", "attributes": attributes}]
    if meta:
        kinds.append({"type": "TimeToCollision", "horizon": rng.choice([5, 10, 12.5])})
    return rng.choice(kinds)


def _rays(rng: random.Random) -> dict[str, Any]:
    return {
        "type": "LidarObservation",
        "cells": rng.choice([16, 7, 64]),
        "maximum_range": rng.choice([60, 25.5]),
        "normalize": rng.random() < 0.5,
    }


def _action(rng: random.Random, speeds: list[float], kind: Kind) -> dict[str, Any]:
    meta = {
        "type": "DiscreteMetaAction",
        "longitudinal": rng.random() < 0.8,
        "lateral": True,
        "target_speeds": rng.choice([speeds, speeds, [0, 4.5, 9, 13.5, 18], [3.5, 11.25]]),
    }
    ranges = {
        "longitudinal": True,
        "lateral": rng.random() < 0.7,
        "clip": True,
        "dynamical": rng.random() < 0.3,
        "acceleration_range": rng.choice([None, [-3, 4.5]]),
        "steering_range": rng.choice([None, [-0.3, 0.2]]),
    }
    continuous = {"type": "ContinuousAction", "speed_range": rng.choice([None, [0, 33]])} | ranges
    discrete = {"type": "DiscreteAction", "actions_per_axis": rng.choice([2, 3, 4])} | ranges
    if kind.without_meta:
        action = rng.choice([continuous, continuous, discrete])
        axes = rng.choice([(False, True), (False, True), (True, True), (True, False)])
        return action | dict(zip(("longitudinal", "lateral"), axes, strict=True))
    return meta if kind.meta_only else rng.choice([meta, meta, meta, continuous, discrete])


def _reward(rng: random.Random, default: float) -> float:
    return rng.choice([default, default, default - 0.25 if default <= 0 else 0.7])


def random_case(id: str, number: int) -> Case:  # noqa: A002
    """A random config of the supported options, small enough to be fast. Number 0: the defaults."""
    kind, rng = KINDS[id], random.Random(f"{id} {number}")
    defaults = kind.defaults
    seeds = tuple(rng.randrange(2**32) for _ in range(SEEDS))
    if number == 0:
        return Case(id, {}, seeds, name="defaults", most_steps=kind.most_steps or 25)
    speeds = defaults["action"].get("target_speeds", [20, 25, 30])
    lane_change = kind.scenario == "merge" or kind.scenario.startswith(("roundabout", "merge"))
    action = _action(rng, speeds, kind)
    if lane_change and action["type"] == "ContinuousAction":
        # highway-env compares the action with 0 and 2, which fails for two numbers.
        action["lateral"] = False
    if kind.scenario == "lane-keeping":
        action["dynamical"] = True
    observation = _observation(rng, kind.scenario, action["type"] == "DiscreteMetaAction")
    # Draws of their own, which leave those of the other options as they were without them.
    senses = random.Random(f"{id} {number} senses")
    if senses.random() < 0.3:
        rays = _rays(senses)
        several = {"type": "TupleObservation", "observation_configs": [observation, rays]}
        # Goals and attributes are dicts, which tuples have no place for here.
        is_dict = observation["type"] in ("KinematicsGoal", "AttributesObservation")
        observation = senses.choice([rays, rays if is_dict else several])
    config: dict[str, Any] = {
        "observation": observation,
        "action": action,
        "simulation_frequency": rng.choice([5, 10, 15]),
        "policy_frequency": rng.choice([1, 1, 2, 5]),
        "other_vehicles_type": f"{BEHAVIOUR}{rng.choice(OTHERS)}Vehicle",
        "neighbour_vehicles_connected_lanes": defaults["neighbour_vehicles_connected_lanes"],
    }
    random_values: dict[str, Any] = {
        "duration": lambda: rng.randint(3, 12),
        "lanes_count": lambda: rng.randint(2, 6),
        "vehicles_count": lambda: rng.randint(0, 9),
        "incoming_vehicle_destination": lambda: rng.choice([None, 0, 1, 2]),
        "normalize_reward": lambda: rng.random() < 0.5,
        "offroad_terminal": lambda: rng.random() < 0.5,
        "reward_speed_range": lambda: rng.choice([defaults["reward_speed_range"], [1.5, 20]]),
        "before_merge_length": lambda: rng.choice([150, 97.5]),
        "converge_merge_length": lambda: rng.choice([80, 61.25]),
        "parallel_merge_length": lambda: rng.choice([80, 120]),
        "after_merge_length": lambda: rng.choice([150, 101]),
        "roundabout_radius": lambda: rng.choice([20, 17.5, 40]),
        "roundabout_lanes": lambda: rng.randint(1, 3),
        "destination": lambda: rng.choice([None, "o1", "o2", "o3"]),
        "initial_vehicle_count": lambda: rng.choice([0, 1, 5, 10, 14]),
        "spawn_probability": lambda: rng.choice([0.1, 0.6, 1.0]),
        "vehicles_density": lambda: rng.choice([0.8, 1.5, 2.5]),
        "ego_spacing": lambda: rng.choice([0.5, 2]),
        "lane_centering_cost": lambda: rng.choice([4, 4, 0.5]),
        "other_vehicles": lambda: rng.choice([0, 1, 2, 5, 9]),
        "speed_limit": lambda: rng.choice([10.0, 6, 13.5]),
        "terminate_off_road": lambda: rng.random() < 0.5,
        "length": lambda: rng.choice([100, 57.5, 171]),
        "no_lanes": lambda: rng.randint(2, 6),
        "block_lane": lambda: rng.random() < 0.3,
        "force_decision": lambda: rng.random() < 0.3,
        "success_goal_reward": lambda: rng.choice([0.12, 0.3, 0.45]),
        "reward_weights": lambda: rng.choice([defaults["reward_weights"], [0.5, 1, 0.1, 0.1, 0, 0.3]]),
        "add_walls": lambda: rng.random() < 0.8,
        "state_noise": lambda: rng.choice([0.05, 0, 0.7]),
        "derivative_noise": lambda: rng.choice([0.05, 0, 0.3]),
    }
    for key, default in defaults.items():
        if key in random_values:
            config[key] = random_values[key]()
        elif key.endswith("_reward"):
            config[key] = _reward(rng, default)
    several = defaults["action"]["type"] == "MultiAgentAction"
    if kind.scenario == "parking":
        config["vehicles_count"] = rng.choice([defaults["vehicles_count"], 0, 5, 25, 30])
        config["policy_frequency"] = rng.choice([defaults["policy_frequency"], 2, 5])
        config["controlled_vehicles"] = rng.choice([1, 1, 1, 2, 4, 7])
        several = observation["type"] == "KinematicsGoal" and rng.random() < 0.3
        several = several and len(observation["features"]) == len(defaults["reward_weights"])
    elif several:
        config["controlled_vehicles"] = rng.randint(1, 4)
    elif kind.without_meta and kind.has_teams:
        config["controlled_vehicles"] = rng.choice([1, 1, 1, 3])
        several = rng.random() < 0.2
    if several:
        if observation["type"] == "TupleObservation":
            # There all agents see the tuple of the first one.
            config["observation"] = observation["observation_configs"][-1]
        if observation["type"] == "TimeToCollision":
            config["observation"] = deepcopy(defaults["observation"]["observation_config"])
        config["observation"] = {"type": "MultiAgentObservation", "observation_config": config["observation"]}
        config["action"] = {"type": "MultiAgentAction", "action_config": action}
    policies = ("random", KEEPING, "changing", KEEPING) if kind.without_meta else POLICIES
    # Some ids have no time limit.
    steps = 15 * config["policy_frequency"]
    return Case(id, config, seeds, policies, f"random config {number}", steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=200, help="approximate number of episodes of each id")
    parser.add_argument("--ids", nargs="*", default=list(KINDS))
    parser.add_argument("--first", type=int, default=0, help="number of the first random config")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    failed = False
    for id in args.ids:  # noqa: A001
        numbers = range(args.first, args.first + -(-args.episodes // (SEEDS + 1)))
        # Each id in processes of its own: making some ids of highway-env changes the others.
        total = run_cases([random_case(id, number) for number in numbers], args.processes)
        failed |= bool(total.differences)
    return failed


if __name__ == "__main__":
    sys.exit(main())
