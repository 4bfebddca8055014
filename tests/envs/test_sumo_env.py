"""`fastrl/road-v0`: traffic and agents on networks of SUMO."""

from __future__ import annotations

import itertools
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_states import assert_a_state_continues

from fastrl.envs.adapters import parallel_env
from fastrl.envs.registration import make_multi
from fastrl.envs.roads import from_sumo
from fastrl.envs.traffic.sumo_config import TOWN
from fastrl.envs.traffic.sumo_env import SumoRoadVectorEnv
from fastrl.testing import check_vector_env

gymnasium.logger.min_level = gymnasium.logger.ERROR
GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "sumo"
NETWORKS = [TOWN, GOLDEN / "spider.net.xml", GOLDEN / "rand.net.xml"]
SLOWER, IDLE, FASTER = range(3)


def test_gymnasium_accepts_it() -> None:
    check_env(gymnasium.make("fastrl/road-v0").unwrapped, skip_render_check=True)


@pytest.mark.slow
def test_the_vector_keeps_the_contract() -> None:
    check_vector_env(
        partial(SumoRoadVectorEnv, config={"duration": 5, "vehicles_count": 5}), num_envs=2, steps=30
    )


def test_all_faces_play_alike() -> None:
    config = {"vehicles_count": 12}
    single = gymnasium.make("fastrl/road-v0", config=config).unwrapped
    vector = gymnasium.make_vec("fastrl/road-v0", 2, config=config)
    several = make_multi("fastrl/road-v0", 1, config=config, autoreset_mode="disabled")
    pettingzoo: Any = parallel_env("fastrl/road-v0", config=config)
    obs, _ = single.reset(seed=3)
    np.testing.assert_array_equal(vector.reset(seed=3)[0][0], obs)
    np.testing.assert_array_equal(several.reset(seed=3)[0][0, 0], obs.ravel())
    first, _ = pettingzoo.reset(seed=3)
    np.testing.assert_array_equal(next(iter(first.values())), obs.ravel())
    for action in (FASTER, IDLE, SLOWER):
        obs, reward, *_ = single.step(action)
        np.testing.assert_array_equal(vector.step(np.full(2, action))[0][0], obs)
        own, rewards, *_ = several.step(np.full((1, 1), action))
        np.testing.assert_array_equal(own[0, 0], obs.ravel())
        assert rewards[0, 0] == pytest.approx(reward)


def followers(env: SumoRoadVectorEnv) -> list[set[int]]:
    """For each lane the lanes of its road, and those that its road leads to, across two junctions."""
    names = env.lane_indices()
    leads: dict[tuple[str, str], set[tuple[str, str]]] = {name[:2]: {name[:2]} for name in names}
    for start, end in list(leads):
        if start != end:
            leads[start, start].add((start, end))
            leads[start, end].add((end, end))
    for _ in range(2):
        leads = {road: set().union(*(leads[other] for other in others)) for road, others in leads.items()}
    return [{i for i, other in enumerate(names) if other[:2] in leads[name[:2]]} for name in names]


@pytest.mark.parametrize(("path", "count"), [*zip(NETWORKS, (25, 10, 15), strict=True)])
def test_vehicles_stay_on_the_roads(path: Path, count: int) -> None:
    """Each is on or beside its lane, and comes from lane to lane along the links."""
    config = {"vehicles_count": count, "duration": 1000, "policy_frequency": 5}
    env = SumoRoadVectorEnv(4, net=path, config=config, autoreset_mode="next_step")
    env.reset(seed=1)
    leads = followers(env)
    last: list[dict[str, Any] | None] = [None] * 4
    moved = crashed = 0
    for _ in range(200):
        _, _, terminated, *_ = env.step(np.full(4, IDLE))
        for k in range(4):
            now, before = env.vehicles(k), last[k]
            last[k] = None if terminated[k] else now
            crashed += int(now["crashed"].sum())
            for i in np.flatnonzero(~now["crashed"]):
                lateral = abs(env.roads.lanes_at(now["x"][i], now["y"][i])[now["lane"][i]][5][1])
                assert lateral < 5, f"{env.lane_indices()[now['lane'][i]]}: {lateral:.1f} m beside it"
            if before is None:
                continue
            # The same vehicle is near where it was.
            for i in range(len(now["x"])):
                apart = np.hypot(before["x"] - now["x"][i], before["y"] - now["y"][i])
                j = int(apart.argmin())
                if (
                    apart[j] < 0.25 * before["speed"][j]
                    and not now["crashed"][i]
                    and now["delta"][i] == before["delta"][j]
                ):
                    moved += 1
                    assert now["lane"][i] in leads[before["lane"][j]]
    assert moved > 4000 and (path != TOWN or crashed < 0.005 * moved)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(NETWORKS), st.integers(1, 6), st.integers(0, 80))
def test_vehicles_do_not_overlap_where_they_begin(seed: int, path: Path, agents: int, count: int) -> None:
    config = {"vehicles_count": count, "controlled_vehicles": agents}
    env = make_multi("fastrl/road-v0", 1, net=path, config=config)
    env.reset(seed=seed)
    vehicles = env.vehicles(0)
    assert (vehicles["agent"] >= 0).sum() == agents
    cos, sin = np.cos(vehicles["heading"]), np.sin(vehicles["heading"])
    dx = vehicles["x"][:, None] - vehicles["x"]
    dy = vehicles["y"][:, None] - vehicles["y"]
    along, across = np.abs(dx * cos + dy * sin), np.abs(dy * cos - dx * sin)
    on_one = vehicles["lane"][:, None] == vehicles["lane"]
    np.fill_diagonal(on_one, False)
    assert not (on_one & (along < 5) & (across < 2)).any()
    assert not vehicles["crashed"].any()


def timetable(folder: Path, *lines: str) -> Path:
    path = folder / "x.rou.xml"
    path.write_text(f"<routes>{''.join(lines)}</routes>")
    return path


def test_a_vehicle_drives_its_route(tmp_path: Path) -> None:
    """Two turns and a change of lanes, then it leaves; the agent waits elsewhere."""
    route = ["left0A0", "A0B0", "B0B1", "B1A1", "A1left1"]
    demand = timetable(tmp_path, f'<vehicle id="v" depart="1"><route edges="{" ".join(route)}"/></vehicle>')
    config = {"origin": "right0B0", "destination": "B0bottom1", "duration": 1000, "policy_frequency": 10}
    env = SumoRoadVectorEnv(1, demand=demand, config=config, autoreset_mode="disabled")
    env.reset(seed=0)
    names, seen, times = env.lane_indices(), [], []
    for step in range(3000):
        env.step(np.array([SLOWER]))
        vehicles = env.vehicles()
        for lane in vehicles["lane"][vehicles["agent"] < 0]:
            times.append(step)
            if names[lane][:2] not in seen:
                seen.append(names[lane][:2])
    edges = [start for start, end in seen if start == end]
    assert edges == route
    assert [ends for ends in seen if ends[0] != ends[1]] == list(itertools.pairwise(route))
    assert times[0] in (9, 10) and times[-1] < 2500 and np.diff(times).max() == 1


def test_traffic_stops_at_red_lights(tmp_path: Path) -> None:
    """Nobody crosses a line at red; where there is green they do."""
    flows = (
        f'<flow id="f{i}" from="{start}" to="{end}" period="4"/>'
        for i, (start, end) in enumerate(
            [
                ("left0A0", "B0right0"),
                ("bottom0A0", "A1top0"),
                ("right1B1", "A1left1"),
                ("top1B1", "B0bottom1"),
            ]
        )
    )
    demand = timetable(tmp_path, *flows)
    config = {"origin": "right0B0", "destination": "B0bottom1", "duration": 1e4, "policy_frequency": 10}
    env = SumoRoadVectorEnv(1, demand=demand, config=config, autoreset_mode="disabled")
    env.reset(seed=0)
    network, names = env.network, env.lane_indices()
    lights = {(one.start[0], one.end[0]): one.light for one in network.connections}
    before: dict[float, int] = {}
    crossed = stood = 0
    for step in range(2000):
        env.step(np.array([SLOWER]))
        vehicles = env.vehicles()
        now = {
            float(delta): int(lane) for delta, lane in zip(vehicles["delta"], vehicles["lane"], strict=True)
        }
        stood += int((vehicles["speed"][vehicles["agent"] < 0] < 0.1).sum())
        for vehicle, lane in now.items():
            ends = names[lane][:2]
            if ends[0] != ends[1] and before.get(vehicle, lane) != lane:
                crossed += 1
                light = lights[ends]
                assert light is not None
                phases = network.lights[light[0]].phases
                left = (step / 10) % sum(duration for duration, _ in phases)
                for duration, state in phases:
                    if left < duration:
                        assert state[light[1]] != "r"
                        break
                    left -= duration
        before = now
    assert crossed > 50 and stood > 500


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_states_continue_as_they_were(mode: AutoresetMode, tmp_path: Path) -> None:
    demand = GOLDEN / "town.rou.xml"
    env, twin = (
        SumoRoadVectorEnv(3, demand=demand, config={"duration": 8}, autoreset_mode=mode, num_threads=threads)
        for threads in (1, 2)
    )
    assert_a_state_continues(env, twin, steps=40, before=10)
    with pytest.raises(ValueError, match="state"):
        SumoRoadVectorEnv(3, autoreset_mode=mode).load_state(env.save_state())


def test_every_environment_has_its_own_stream() -> None:
    four = SumoRoadVectorEnv(4, num_threads=2)
    obs, _ = four.reset(seed=7)
    steps = [four.step(np.full(4, FASTER))[0] for _ in range(10)]
    for k in range(4):
        one = SumoRoadVectorEnv(1, num_threads=1)
        np.testing.assert_array_equal(one.reset(seed=7 + k)[0][0], obs[k])
        for step in steps:
            np.testing.assert_array_equal(one.step(np.full(1, FASTER))[0][0], step[k])


def test_agents_arrive_one_by_one_and_leave_the_roads() -> None:
    config = {"controlled_vehicles": 4, "vehicles_count": 0, "duration": 300}
    env = make_multi("fastrl/road-v0", 16, config=config, autoreset_mode="disabled")
    _, alive = env.reset(seed=0)
    assert alive.shape == (16, 4) and alive.all()
    left = arrived = 0
    for _ in range(150):
        before = alive
        _, rewards, terminations, truncations, alive, _ = env.step(np.full((16, 4), IDLE))
        assert not rewards[~before].any()
        np.testing.assert_array_equal(alive, before & ~terminations & ~truncations)
        arrived += int((terminations & (rewards > 0.9)).sum())
        for k in np.flatnonzero(alive.any(axis=1)):
            vehicles = env.vehicles(int(k))
            assert sorted(vehicles["agent"].tolist()) == np.flatnonzero(alive[k]).tolist()
            left += int((~alive[k]).any())
        if not alive.any(axis=1).all():
            _, alive = env.reset(reset_mask=~alive.any(axis=1))
    assert left > 100 and arrived > 10


def test_a_red_light_is_seen_and_running_it_costs(tmp_path: Path) -> None:
    """The only thing that the agent sees on an empty road is the line that it must stop at."""
    demand = timetable(tmp_path, '<trip id="t" from="A0left0" to="A0left0" depart="900"/>')
    # From the side that has red for 45 s.
    config = {"origin": "left0A0", "destination": "B0right0", "begin": 0, "duration": 300}
    env = SumoRoadVectorEnv(1, demand=demand, config=config, autoreset_mode="disabled")
    rows = []
    obs, _ = env.reset(seed=0)
    cost = 0.0
    for _ in range(60):
        obs, _, terminated, _, info = env.step(np.array([FASTER]))
        rows.append(obs[0, 1:, 0].sum())
        assert not obs[0, 2:].any()
        cost += float(info["rewards"]["violation_reward"][0])
        if terminated[0]:
            break
    assert terminated[0] and info["is_success"][0] and 0 < sum(rows) < len(rows)
    light = next(one.light for one in env.network.connections if one.start == ("left0A0", 0))
    assert light is not None and env.network.lights[light[0]].phases[0][1][light[1]] == "r" and cost > 0


def test_other_observations_and_actions_fit() -> None:
    for observation in ({"type": "OccupancyGrid"}, {"type": "TimeToCollision", "horizon": 5}):
        env = gymnasium.make("fastrl/road-v0", config={"observation": observation})
        obs, _ = env.reset(seed=0)
        assert env.observation_space.contains(obs)
    for action in ("ContinuousAction", "DiscreteAction"):
        env = gymnasium.make("fastrl/road-v0", config={"action": {"type": action}})
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(20):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()


@pytest.mark.slow
def test_it_is_copied_and_drawn() -> None:
    env: Any = gymnasium.make("fastrl/road-v0", render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    twin = deepcopy(env)
    for action in (FASTER, IDLE, FASTER):
        np.testing.assert_equal(env.step(action)[:4], twin.step(action)[:4])
    picture = env.render()
    assert picture.shape == (600, 600, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 5
    assert env.vehicle.lane_index[0] in from_sumo(TOWN).edges


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"nett": "x"}}, "unknown key 'nett'; did you mean net?"),
        (
            {"config": {"origin": "left0A1"}},
            r"config\['origin'\]: there is no edge 'left0A1' .*did you mean left1A1",
        ),
        ({"config": {"origin": "A0left0", "destination": "A0A1"}}, "no way from the origin 'A0left0'"),
        ({"config": {"destination": ["A0A1", "A0A1"]}}, "one for each of 1 controlled_vehicles, got 2"),
        ({"config": {"origin": 3}}, "expected the id of an edge"),
        (
            {"config": {"controlled_vehicles": 20, "origin": "left0A0"}},
            "room for .* agents on one edge, got 20",
        ),
        ({"config": {"warm_up": -1}}, "at least 0"),
        ({"net": TOWN, "config": {"net": TOWN}}, "net: expected it as an option or in the config, got both"),
        ({"demand": 3}, "demand: expected the path"),
        ({"config": {"vehicles_count": 1.5}}, "vehicles_count"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        gymnasium.make_vec("fastrl/road-v0", 2, **options)
