"""`fastrl/highway-v0` and `fastrl/highway-fast-v0` beside the installed highway-env: the same episodes, run freely.

Both start from the same seed and get the same actions; nothing is set back in between. At every step position, heading,
speed and reward agree within 1e-9, observations too (or to the last bit of float32), and lanes, crashes and ends
exactly. Each id of highway-env has a process of its own.

highway-env makes 5 to 50 steps/s at its usual size, so most episodes here are small and short. Thousands more, over
random configs, on request:

    FASTRL_LOCKSTEP_EPISODES=5000 pytest tests/conformance/test_highway_lockstep.py -k on_request
    python tests/support/highway_lockstep.py --episodes 5000
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import installed_highway  # noqa: F401 (skips without it)
import pytest
from highway_lockstep import BEHAVIOUR, IDS, POLICIES, Case, Report, random_case, run_case
from selected_tests import selected

from fastrl.envs.traffic.config_interfaces import VEHICLE_FEATURES

SMALL: dict[str, Any] = {"vehicles_count": 6, "duration": 8}
MANUAL = {"type": "ContinuousAction"}


def table(**options: Any) -> dict[str, Any]:
    return SMALL | {"observation": {"type": "Kinematics"} | options}


def grid(**options: Any) -> dict[str, Any]:
    return SMALL | {"observation": {"type": "OccupancyGrid"} | options}


def times(**options: Any) -> dict[str, Any]:
    return SMALL | {"observation": {"type": "TimeToCollision"}} | options


def action(kind: str, **options: Any) -> dict[str, Any]:
    return SMALL | {"action": {"type": kind} | options}


ALL_FEATURES = list(VEHICLE_FEATURES[::-1])
CONFIGS: dict[str, dict[str, Any]] = {
    "linear traffic": SMALL | {"other_vehicles_type": f"{BEHAVIOUR}LinearVehicle"},
    "aggressive traffic": SMALL | {"other_vehicles_type": f"{BEHAVIOUR}AggressiveVehicle"},
    "defensive traffic": SMALL | {"other_vehicles_type": f"{BEHAVIOUR}DefensiveVehicle"},
    "dense linear traffic, driven by hand": SMALL
    | {"other_vehicles_type": f"{BEHAVIOUR}LinearVehicle", "vehicles_density": 2.5, "action": MANUAL},
    "one lane": SMALL | {"lanes_count": 1},
    "two lanes, dense": SMALL | {"lanes_count": 2, "vehicles_density": 2.5, "vehicles_count": 10},
    "seven lanes": SMALL | {"lanes_count": 7, "initial_lane_id": 6},
    "nobody else": {"vehicles_count": 0, "duration": 6},
    "three controlled": SMALL | {"controlled_vehicles": 3, "vehicles_count": 7},
    "fine steps": SMALL | {"simulation_frequency": 15, "policy_frequency": 5, "duration": 3},
    "uneven frequencies": SMALL | {"simulation_frequency": 10, "policy_frequency": 3, "duration": 5},
    "rewards": SMALL
    | {
        "collision_reward": -3,
        "right_lane_reward": 0.7,
        "high_speed_reward": 0.2,
        "reward_speed_range": [15, 40],
    },
    "rewards as they are": SMALL | {"normalize_reward": False, "lane_change_reward": -0.5},
    "all features": table(features=ALL_FEATURES, vehicles_count=8, see_behind=True, observe_intentions=True),
    "absolute": table(absolute=True, normalize=False, features=ALL_FEATURES),
    "own ranges": table(features_range={"x": [-50, 60], "vx": [-5, 5], "presence": [0, 2]}, clip=False),
    "shuffled": table(order="shuffled", vehicles_count=6),
    "times to collision": times(),
    "times to collision, finely": times(policy_frequency=5, duration=4, vehicles_density=2),
    "occupancy": grid(),
    "occupancy, turned": grid(
        features=[*ALL_FEATURES, "on_road"],
        align_to_vehicle_axes=True,
        clip=False,
        grid_size=[[-40.7, 100], [-11, 13]],
        grid_step=[3, 2],
        features_range={"x": [-100, 100], "y": [-30, 30], "vx": [-20, 20]},
    )
    | {"action": MANUAL},
    "occupancy, a picture": grid(as_image=True),
    "speeds": action("DiscreteMetaAction", target_speeds=[0, 8.5, 17, 25.5, 34]),
    "speed only": action("DiscreteMetaAction", lateral=False),
    "lanes only": action("DiscreteMetaAction", longitudinal=False),
    "by hand": action("ContinuousAction"),
    "by hand, off the road": action("ContinuousAction", steering_range=[-0.3, 0.3])
    | {"offroad_terminal": True},
    "by hand, within speeds": action("ContinuousAction", speed_range=[22, 26], acceleration_range=[-3, 4.5]),
    "by hand, backwards": action("ContinuousAction", acceleration_range=[-5, -3]) | {"duration": 16},
    "by hand, with tyres that slip": action("ContinuousAction", dynamical=True),
    "throttle only": action("ContinuousAction", lateral=False),
    "steering only": action("ContinuousAction", longitudinal=False, steering_range=[-0.1, 0.05]),
    "a grid of actions": action("DiscreteAction"),
    "a fine grid of actions": action("DiscreteAction", actions_per_axis=4, steering_range=[-0.05, 0.04]),
}

CASES = [
    Case("highway-v0", {}, (3,), ("idle",), "as it is, to its end"),
    Case("highway-v0", {"duration": 5}, (0, 1), ("changing", "random"), "as it is"),
    *(
        Case(
            "highway-v0",
            {"vehicles_count": 5, "duration": 4},
            tuple(range(50)),
            (policy,),
            f"50 seeds, {policy}",
        )
        for policy in POLICIES
    ),
    Case("highway-fast-v0", {}, tuple(range(8)), name="as it is"),
    Case(
        "highway-fast-v0",
        {"vehicles_count": 1, "duration": 345},
        (1,),
        ("faster",),
        "beyond the end of the road",
    ),
    *(
        Case("highway-fast-v0", SMALL, tuple(range(50)), (policy,), f"50 seeds, {policy}")
        for policy in POLICIES
    ),
    # Some cases with the short frames of highway-v0, the others with the fast id.
    *(
        Case(IDS[1 if i % 4 else 0], config, tuple(range(8 * i, 8 * i + (4 if i % 4 else 2))), name=name)
        for i, (name, config) in enumerate(CONFIGS.items())
    ),
]


def is_long(case: Case) -> bool:
    """True for cases that take seconds: those of 50 episodes, and highway-v0 at its usual size."""
    return len(case.seeds) == 50 or (case.id == "highway-v0" and case.name.startswith("as it is"))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[dict[int, Future[Report]]]:
    """Cases of the tests that were selected, running in one process for each id."""
    found = selected(request, "test_episodes_agree_with_highway_env", "i")
    pools = {id: ProcessPoolExecutor(1, mp_context=get_context("spawn")) for id in IDS}  # noqa: A001
    yield {i: pools[case.id].submit(run_case, case) for i, case in enumerate(CASES) if i in found}
    for pool in pools.values():
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "i",
    [
        pytest.param(i, id=f"{case.id}: {case.name}", marks=pytest.mark.slow if is_long(case) else ())
        for i, case in enumerate(CASES)
    ],
)
def test_episodes_agree_with_highway_env(reports: dict[int, Future[Report]], i: int) -> None:
    report = reports[i].result()
    assert not report.differences, "\n".join(report.differences)
    assert not report.unstable, "choose another seed: highway-env parts from itself here"
    assert report.episodes == len(CASES[i].seeds) + 1
    assert report.steps > report.episodes


def test_some_episodes_end_in_a_crash(reports: dict[int, Future[Report]]) -> None:
    done = [report.result() for report in reports.values()]
    assert sum(report.crashes for report in done) > len(done)
    assert max(report.worst for report in done) > 0.0


WANTED = int(os.environ.get("FASTRL_LOCKSTEP_EPISODES", "0"))


@pytest.mark.slow
@pytest.mark.skipif(not WANTED, reason="thousands of episodes on request: FASTRL_LOCKSTEP_EPISODES=5000")
@pytest.mark.parametrize("id", IDS)
def test_episodes_on_request(id: str) -> None:  # noqa: A002
    cases = [random_case(id, number) for number in range(-(-WANTED // (2 * (len(POLICIES) + 1))))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for case, report in zip(cases, pool.map(run_case, cases), strict=True):
            assert not report.differences, f"{case}\n" + "\n".join(report.differences)
