"""The environments on road networks beside the installed highway-env: the same episodes, run freely.

As in `test_highway_lockstep.py` both start from the same seed and get the same actions, and nothing is set back in
between. Lanes and routes are compared first.

At walking pace highway-env's steering multiplies every difference by more than one in each frame, so that a vehicle
that stops ends some 1e-5 m elsewhere where one bit differs. NumPy's arc functions have other last bits on processors
with AVX-512 than elsewhere: highway-env itself differs between the two. Here NumPy is told to compute without it. Where
a processor rounds differently still, an episode that differs counts as unstable if highway-env with other last bits
parts from itself in it, and one of each case may. Hundreds more of each id, over random configs, on request:

    FASTRL_LOCKSTEP_EPISODES=1000 pytest tests/conformance/test_roads_lockstep.py -k on_request
    NPY_DISABLE_CPU_FEATURES=X86_V4 python tests/support/roads_lockstep.py --episodes 1000
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import installed_highway  # noqa: F401 (skips without it)
import pytest
from highway_lockstep import Case, Report, run_case
from roads_geometry import differences
from roads_lockstep import NO_AVX512, SEEDS, random_case
from selected_tests import selected

from fastrl.envs.traffic import ROAD_IDS
from fastrl.envs.traffic.roads_config import KINDS

# Numbers of random configs, 0 being the defaults, for these ids; the others play one config.
NUMBERS = (0, 3)
FIRST = ("merge-v0", "roundabout-v0", "intersection-v0", "intersection-multi-agent-v2", "racetrack-v0")
CONFIGS: dict[str, dict[str, Any]] = {
    "merge-generic-v0": {"lanes_count": 4, "converge_merge_length": 61.5},
    "roundabout-generic-v0": {"roundabout_lanes": 3, "roundabout_radius": 31.5},
    "exit-v0": {"lanes_count": 3},
    "racetrack-oval-v0": {"length": 71.5, "no_lanes": 2, "block_lane": True, "force_decision": True},
}
# Lanes, a circle, a track and a car park; each of the others is like one of these.
QUICK = ("merge-v0", "roundabout-v0", "racetrack-v0", "parking-v0")
SELECTED = [id if id in QUICK else pytest.param(id, marks=pytest.mark.slow) for id in KINDS]  # noqa: A001


def cases(id: str) -> list[Case]:  # noqa: A002
    return [random_case(id, number) for number in (NUMBERS if id in FIRST else NUMBERS[1:])]


def play(id: str) -> tuple[list[str], list[Report]]:  # noqa: A002
    """Differences on the roads of an id, and reports of its cases."""
    roads = differences(id, CONFIGS.get(id, {}))
    return roads, [run_case(case) for case in cases(id)]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[list[str], list[Report]]]]]:
    """Every id of the tests that were selected, in a process of its own: making some ids of highway-env changes the
    others."""
    found = selected(request, "test_episodes_agree_with_highway_env", "id")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPY_DISABLE_CPU_FEATURES", NO_AVX512)
        pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1)
        yield {id: pool.submit(play, id) for id in KINDS if id in found}  # noqa: A001
        pool.shutdown(cancel_futures=True)


def test_all_ids_are_registered() -> None:
    assert list(ROAD_IDS) == list(KINDS)
    assert {id: kind.most_steps for id, kind in KINDS.items()} == ROAD_IDS  # noqa: A001


@pytest.mark.slow
@pytest.mark.parametrize("id", SELECTED)
def test_roads_agree_with_highway_env(played: dict[str, Future[Any]], id: str) -> None:  # noqa: A002
    roads, _ = played[id].result()
    assert not roads, "\n".join(roads[:20])


@pytest.mark.slow
@pytest.mark.parametrize("id", SELECTED)
def test_episodes_agree_with_highway_env(played: dict[str, Future[Any]], id: str) -> None:  # noqa: A002
    for case, report in zip(cases(id), played[id].result()[1], strict=True):
        assert not report.differences, f"{case}\n" + "\n".join(report.differences)
        assert report.unstable <= 1, "highway-env parts from itself here"
        assert report.episodes == SEEDS + 1
        assert report.steps >= report.episodes


@pytest.mark.slow
def test_some_episodes_end_early(played: dict[str, Future[Any]]) -> None:
    reports = [report for future in played.values() for report in future.result()[1]]
    assert sum(report.crashes for report in reports) > len(reports) / 2


WANTED = int(os.environ.get("FASTRL_LOCKSTEP_EPISODES", "0"))


@pytest.mark.skipif(not WANTED, reason="hundreds of episodes on request: FASTRL_LOCKSTEP_EPISODES=1000")
@pytest.mark.parametrize("id", KINDS)
def test_episodes_on_request(monkeypatch: pytest.MonkeyPatch, id: str) -> None:  # noqa: A002
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", NO_AVX512)
    wanted = [random_case(id, number) for number in range(-(-WANTED // (SEEDS + 1)))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for case, report in zip(wanted, pool.map(run_case, wanted), strict=True):
            assert not report.differences, f"{case}\n" + "\n".join(report.differences)
