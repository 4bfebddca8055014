"""Radio links on road networks: a slow model of every link, corners of crossings, tables, rewards, actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from link_cases import assert_no_links, assert_traffic_is_undisturbed
from link_model import around_a_corner, no_building, slow_model
from numpy.typing import NDArray

from fastrl.envs import make_multi
from fastrl.envs.adapters.pettingzoo import parallel_env
from fastrl.envs.traffic.links import STATISTICS, LinkOptions
from fastrl.envs.traffic.roads import RoadMultiAgentVectorEnv

CROSSING = "intersection-multi-agent-v2"
# The same roads, whose config has the observation and the action of one agent.
SINGLE = "intersection-v2"
WORLDS = {CROSSING: 4, "roundabout-v0": 5, "merge-v0": 4, "merge-generic-v0": 6}
each_world = pytest.mark.parametrize("name", list(WORLDS))


def make(
    name: str = CROSSING, num_envs: int = 1, comms: str = "37885", **options: Any
) -> RoadMultiAgentVectorEnv:
    config = {"controlled_vehicles": WORLDS.get(name, 4)} | options.pop("config", {})
    env = make_multi(f"fastrl/{name}", num_envs, config=config, comms=comms, **options)
    assert isinstance(env, RoadMultiAgentVectorEnv)
    return env


def draw(
    env: RoadMultiAgentVectorEnv, rng: np.random.Generator, manoeuvres: int | None = None
) -> NDArray[Any]:
    assert isinstance(env.single_action_space, Discrete)
    return rng.integers(manoeuvres or env.single_action_space.n, size=(env.num_envs, env.num_agents))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from([CROSSING, CROSSING, "roundabout-v0", "merge-generic-v0"]),
    steps=st.integers(0, 5),
    surroundings=st.sampled_from(["highway", "urban", "urban"]),
    blockage=st.sampled_from(["none", "vehicles"]),
    slots=st.integers(1, 6),
    selection=st.sampled_from(["random", "sensing", "agent"]),
    tx_power=st.sampled_from([23.0, (23.0, 10.0, -20.0)]),
    connected=st.sampled_from([False, False, True, 0.5]),
)
def test_every_link_is_what_the_slow_model_says(seed: int, name: str, steps: int, **options: Any) -> None:
    env = make(name, comms_options=options)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        env.step(draw(env, rng))
    links, cars = env.links(0), env.scene(0).cars()
    here = links["places"].any(axis=1)
    corners = around_a_corner if name == CROSSING else no_building
    sinr, success = slow_model(links, cars, here, LinkOptions(**options), corners)
    np.testing.assert_allclose(links["sinr"], sinr, rtol=0, atol=1e-9)
    np.testing.assert_allclose(links["success"], success, rtol=0, atol=1e-9)


def test_buildings_of_a_crossing_weaken_links_and_shadow_them_at_their_own_pace() -> None:
    """Innovations of the shadowing, recovered from two messages in a row, are standard normal: 10 m of way within
    sight, 13 m around a corner. Vehicles on different roads hear each other worse until they are at the crossing."""
    env = make(
        num_envs=48,
        comms_options={"surroundings": "urban", "blockage": "none"},
    )
    env.reset(seed=3)
    before = [env.links(i) for i in range(48)]
    found: dict[bool, list[float]] = {True: [], False: []}
    heard: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(6):
        *_, info = env.step(np.full((48, 4), 2))
        began = info.get("_episode", np.zeros(48, np.bool_))
        after = [env.links(i) for i in range(48)]
        for old, new, fresh_start in zip(before, after, began, strict=True):
            if fresh_start:
                continue
            way = np.hypot(*(new["places"] - old["places"]).T)
            for a in range(4):
                for b in range(a):
                    hidden = around_a_corner(new["places"][a], new["places"][b])
                    if np.isfinite(new["sinr"][a, b]):
                        heard[hidden].append(new["sinr"][a, b])
                    if (
                        way[a] + way[b] > 1
                        and not np.isnan([new["success"][a, b], old["success"][a, b]]).any()
                    ):
                        r = np.exp(-(way[a] + way[b]) / (13.0 if hidden else 10.0))
                        fresh = new["shadowing"][a, b] - r * old["shadowing"][a, b]
                        found[hidden].append(fresh / np.sqrt(1 - r * r))
        before = after
    for hidden, some in found.items():
        assert len(some) > 300, hidden
        assert abs(np.mean(some)) < 4 / np.sqrt(len(some)) and abs(np.std(some) - 1) < 0.1, hidden
    assert np.median(heard[True]) + 8 < np.median(heard[False])


@pytest.mark.parametrize("connected", [False, True])
@each_world
def test_perfect_is_as_without_and_what_is_received_at_once_is_what_is_seen(
    name: str, connected: bool
) -> None:
    """With every message delivered, rows have the bits of the perfect ones, and ages of 0; rewards and ends too."""
    links_of = {"range": 1e5, "connected": connected}
    config = {"controlled_vehicles": WORLDS[name]}
    features = 7 if name == CROSSING else 5
    plain = make_multi(f"fastrl/{name}", 4, config=config)
    perfect, received = make(name, 4, "perfect"), make(name, 4, "range", comms_options=links_of)
    rng = np.random.default_rng(0)
    (a, _), (b, _), (c, _) = (env.reset(seed=1) for env in (plain, perfect, received))
    for _ in range(25):
        np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))
        rows = c.reshape(4, WORLDS[name], -1, features + 1)
        np.testing.assert_array_equal(rows[..., :-1].reshape(a.shape).view(np.int32), a.view(np.int32))
        assert not rows[..., -1].any()
        actions = draw(perfect, rng)
        a, *of_a, _ = plain.step(actions)
        b, *of_b, _ = perfect.step(actions)
        c, *of_c, _ = received.step(actions)
        for x, y, z in zip(of_a, of_b, of_c, strict=True):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(x, z)


@each_world
def test_links_do_not_disturb_the_traffic(name: str) -> None:
    assert_traffic_is_undisturbed(lambda comms: make(name, 3, comms), draw, steps=15)


TOWN = "road-v0"


def make_town(connected: bool | float, comms: str = "range", **options: Any) -> RoadMultiAgentVectorEnv:
    """Four agents in the town, among 12 vehicles that come and go, whose rows are in metres."""
    config = {
        "duration": 60,
        "vehicles_count": 12,
        "observation": {
            "type": "Kinematics",
            "features": ["presence", "x", "y"],
            "vehicles_count": 20,
            "absolute": True,
            "normalize": False,
            "see_behind": True,
        },
    }
    links_of = {"connected": connected, **options} if comms != "perfect" else {}
    return make(TOWN, 1, comms, config=config, comms_options=links_of, autoreset_mode="disabled")


def test_vehicles_that_come_have_the_radios_of_those_that_have_gone() -> None:
    """With every message delivered agents see what is; with few, nothing that has gone is taken for what has come."""
    perfect, received, lossy = (
        make_town(False, "perfect"),
        make_town(True, range=1e4),
        make_town(True, delivery=0.2, range=1e4, max_age=3.0),
    )
    _, alive = perfect.reset(seed=4)
    # Of each vehicle the message that was its first.
    began: dict[int, int] = {}
    old = message = 0
    received.reset(seed=4)
    lossy.reset(seed=4)
    while alive.any():
        cars, links = lossy.scene(0).cars(), lossy.links(0)
        for number, x, y in zip(cars["id"].tolist(), cars["x"], cars["y"], strict=True):
            # Those that have come since the message have sent none.
            began.setdefault(number, message + (message > 0))
            here = np.flatnonzero((links["places"] == (x, y)).all(axis=1))
            assert len(here) == (began[number] <= message)
            for age, known in zip(
                links["age"][:, here].ravel(), links["known"][:, here].ravel(), strict=True
            ):
                assert not known or age - 1 <= message - began[number]
                old += known and age > 1
        message += 1
        a, *_ = perfect.step(np.ones((1, 4), np.int64))
        b, *_ = received.step(np.ones((1, 4), np.int64))
        *_, alive, _ = lossy.step(np.ones((1, 4), np.int64))
        rows = b.reshape(1, 4, 20, 4)
        np.testing.assert_array_equal(rows[..., :-1].reshape(a.shape).view(np.int32), a.view(np.int32))
        assert not rows[..., -1].any()
    assert len(began) > 20 and old > 100


def test_radios_of_the_traffic_load_the_channel() -> None:
    busy, senders = [], []
    for connected in (False, 0.5, True):
        env = make(
            "merge-generic-v0",
            16,
            comms_options={"connected": connected, "slots": 5, "busy_threshold": -110.0},
        )
        env.reset(seed=0)
        *_, info = env.step(np.ones((16, 6), np.int64))
        busy.append(np.nanmean(info["comms"]["channel_busy_ratio"]))
        senders.append(np.mean([env.links(i)["places"].any(axis=1).sum() for i in range(16)]))
    agents, others = senders[0], senders[2] - senders[0]
    assert agents == 6 and others >= 3
    assert abs(senders[1] - agents - 0.5 * others) < 0.2 * others
    assert busy[0] < busy[1] < busy[2]


def test_agents_know_what_they_have_received() -> None:
    """Tables, followed by hand: of agents the last state that arrived, of a vehicle of the traffic what is."""
    features = ["x", "y", "vx", "vy", "cos_h", "sin_h", "heading", "lat_off", "presence"]
    config = {
        "observation": {
            "type": "Kinematics",
            "features": features,
            "vehicles_count": 15,
            "absolute": True,
            "normalize": False,
            "see_behind": True,
        },
        "initial_vehicle_count": 0,
        "spawn_probability": 0,
        "duration": 40,
    }
    links_of = {"delivery": 0.4, "range": 80.0, "max_age": 3.0}
    env = make(SINGLE, comms="range", config=config, comms_options=links_of, autoreset_mode="disabled")
    obs, alive = env.reset(seed=2)
    history: list[NDArray[np.float64]] = []
    ages = set()
    for step in range(10):
        cars, links = env.scene(0).cars(), env.links(0)
        state = np.stack(
            [cars["x"], cars["y"], cars["speed"], np.cos(cars["heading"]), np.sin(cars["heading"])], axis=-1
        )
        order = np.argsort(np.where(cars["agent"] < 0, 99, cars["agent"]))
        history.append(state[order])
        for a in np.flatnonzero(alive[0]):
            expected = [(*history[-1][a], 0)]
            for s in range(4):
                if s != a and links["known"][a, s]:
                    age = int(links["age"][a, s]) - 1
                    ages.add(age)
                    expected.append((*history[-1 - age][s], age / 3.0))
            expected += [(*other, 0) for other in history[-1][4:]]
            rows = obs[0, a].reshape(15, len(features) + 1)
            shown = rows[rows[:, -2] == 1]
            assert len(shown) == len(expected)
            for row in shown:
                x, y, vx, vy, cos, sin, heading, lat_off, _, age = row
                other = min(expected, key=lambda e: abs(e[0] - x) + abs(e[1] - y) + abs(e[5] - age))
                speed = other[2]
                np.testing.assert_allclose([x, y, cos, sin, age], np.array(other)[[0, 1, 3, 4, 5]], atol=1e-4)
                np.testing.assert_allclose([vx, vy], [speed * other[3], speed * other[4]], atol=1e-4)
                np.testing.assert_allclose(np.exp(1j * heading), cos + 1j * sin, atol=1e-5)
                assert abs(lat_off) < 6
        # Agent 3 stands still, the others drive on.
        obs, _, _, _, alive, _ = env.step(np.array([[1, 0, 1, 0]]) if step % 2 else np.array([[0, 1, 0, 0]]))
    assert {0, 1, 2} <= ages


@pytest.mark.parametrize("seed", range(4))
def test_rewards_and_statistics_are_those_of_the_links(seed: int) -> None:
    plain, paid = (
        make(autoreset_mode="disabled", **terms)
        for terms in ({}, {"age_reward": -0.2, "delivery_reward": 0.5})
    )
    _, alive = plain.reset(seed=seed)
    paid.reset(seed=seed)
    rng = np.random.default_rng(seed)
    arrived: list[bool] = []

    def collect(listening: NDArray[np.bool_]) -> None:
        links = paid.links(0)
        for a in np.flatnonzero(listening):
            for s in range(4):
                near = np.hypot(*(links["places"][a] - links["places"][s])) <= 150
                if s != a and near and not np.isnan(links["success"][a, s]):
                    arrived.append(links["age"][a, s] == 1 and links["known"][a, s])

    collect(alive[0])
    while alive.any():
        actions = draw(plain, rng)
        _, a, _, _, after, _ = plain.step(actions)
        _, b, _, _, _, info = paid.step(actions)
        collect(alive[0])
        comms = info["comms"]
        assert list(comms) == list(STATISTICS)
        age, share = (np.nan_to_num(comms[key]) for key in ("age_of_information", "delivery_ratio"))
        np.testing.assert_allclose(b[alive], (a - 0.2 * age + 0.5 * share)[alive], atol=1e-5)
        alive = after
    np.testing.assert_allclose(info["episode"]["delivery_ratio"], np.mean(arrived))
    assert info["episode"]["age_of_information"] >= 1


@pytest.mark.parametrize("continuous", [False, True])
def test_agents_choose_resources_and_powers(continuous: bool) -> None:
    chosen = {"selection": "agent", "slots": 5, "subchannels": 2, "tx_power": (23.0, 3.0, -50.0)}
    config = {"action": {"type": "ContinuousAction"}} if continuous else {}
    env, plain = (
        make(SINGLE, config=config, comms_options=chosen),
        make(SINGLE, config=config, comms="perfect"),
    )
    table = plain.single_observation_space.shape[0] // 7 * 8
    assert env.single_observation_space.shape == (table + 10,)
    resources, powers = np.array([0, 7, 7, 9]), np.array([2, 0, 1, 0])
    if continuous:
        assert env.single_action_space == Box(-1, 1, (4,), np.float32)
        driving: Any = np.full((1, 4, 2), 0.25, np.float32)
        more = np.stack([2 * (resources + 0.5) / 10 - 1, 2 * (powers + 0.5) / 3 - 1], axis=-1)
        actions: Any = np.concatenate([driving, more[None].astype(np.float32)], axis=-1)
    else:
        assert env.single_action_space == Discrete(3 * 10 * 3)
        driving = np.array([[0, 1, 2, 1]])
        actions = driving + 3 * (resources + 10 * powers)
    env.reset(seed=0)
    plain.reset(seed=0)
    obs, *_ = env.step(actions)
    plain.step(driving)
    for key, values in plain.scene(0).cars().items():
        np.testing.assert_array_equal(values, env.scene(0).cars()[key])
    links = env.links(0)
    np.testing.assert_array_equal(links["resources"], resources)
    np.testing.assert_array_equal(links["powers"], np.array([23.0, 3.0, -50.0])[powers])
    assert links["success"][1, 2] == links["success"][2, 1] == 0, "both send in slot 2"
    sensed = links["sensed"][0]
    expected = np.clip((10 * np.log10(np.maximum(sensed, 1e-300)) + 80) / 40, -1, 1)
    np.testing.assert_allclose(obs[0, 0, -10:], np.where(np.isnan(sensed), 1, expected), atol=1e-6)
    bad = actions.copy()
    bad[0, 1] = [0, 0, 0, 1.01] if continuous else 90
    with pytest.raises(ValueError, match="numbers from -1 to 1" if continuous else "an integer from 0 to 89"):
        env.step(bad)


@pytest.mark.parametrize("name", [CROSSING, "roundabout-v0", TOWN])
def test_seeds_fix_links_and_states_restore_them(name: str) -> None:
    options: dict[str, Any] = {
        "age_reward": -0.1,
        "comms_options": {"selection": "sensing", "surroundings": "urban", "connected": 0.7},
    }

    def play(env: RoadMultiAgentVectorEnv, seed: int) -> list[Any]:
        rng, results = np.random.default_rng(seed), []
        for _ in range(20):
            *arrays, _ = env.step(draw(env, rng))
            results += [*arrays, *env.comms().values(), *env.episodes().values()]
        return results

    env, other = make(name, 3, **options), make(name, 3, num_threads=1, **options)
    env.reset(seed=7)
    other.reset(seed=[7, 8, 9])
    for a, b in zip(play(env, 0), play(other, 0), strict=True):
        np.testing.assert_array_equal(a, b)
    third = make(name, 3, **options)
    third.load_state(env.save_state())
    for a, b in zip(play(env, 1), play(third, 1), strict=True):
        np.testing.assert_array_equal(a, b)
    assert third.save_state() == env.save_state()
    without = make(name, 3, "perfect")
    with pytest.raises(ValueError, match="cannot be restored"):
        without.load_state(env.save_state())


def test_links_are_drawn_and_told() -> None:
    env = make(num_envs=1)
    env.reset(seed=0)
    scene = env.scene(0)
    cars, drawn = scene.cars(), scene.links()
    numbers = {int(i) for i in cars["id"][cars["agent"] >= 0]}
    assert set(drawn["sender"].tolist()) == set(drawn["receiver"].tolist()) == numbers
    quiet = make(num_envs=1, comms="perfect")
    quiet.reset(seed=0)
    assert (env.render()[0] != quiet.render()[0]).any()
    team = parallel_env(f"fastrl/{CROSSING}", comms="37885", config={"controlled_vehicles": 3})
    team.reset(seed=0)
    while team.agents:
        *_, infos = team.step(dict.fromkeys(team.agents, 1))
        assert all(set(info["comms"]) == set(STATISTICS) for info in infos.values())
    assert all("delivery_ratio" in info["episode"] for info in infos.values())


def test_one_agent_hears_nobody() -> None:
    env = make_multi("fastrl/roundabout-v0", 2, comms="37885")
    env.reset(seed=0)
    *_, info = env.step(np.ones((2, 1), np.int64))
    assert (
        np.isnan(info["comms"]["delivery_ratio"]).all() and (info["comms"]["channel_busy_ratio"] == 0).all()
    )


@pytest.mark.parametrize("name", [CROSSING, "roundabout-v0"])
def test_success_and_collisions_are_counted(name: str) -> None:
    """Agents of an intersection have done well when they have arrived, those of a roundabout when they are whole."""
    env = make(name, 1, "perfect", autoreset_mode="disabled")
    rng = np.random.default_rng(0)
    all_crashed, all_whole = [], []
    for seed in range(20):
        _, alive = env.reset(seed=seed)
        crashed, whole = np.zeros((2, env.num_agents), np.bool_)
        driven = np.zeros(env.num_agents)
        while alive.any():
            driven += alive[0]
            *_, terminations, truncations, after, _ = env.step(draw(env, rng))
            cars = env.scene(0).cars()
            agents = np.argsort(np.where(cars["agent"] < 0, 999, cars["agent"]))[: env.num_agents]
            ended = (alive & ~after)[0]
            crashed |= ended & cars["crashed"][agents]
            done_well = terminations[0] if name == CROSSING else truncations[0]
            whole |= ended & done_well & ~cars["crashed"][agents]
            alive = after
        episodes = env.episodes()
        assert episodes["collision_rate"][0] == crashed.mean() and episodes["success"][0] == whole.mean()
        assert episodes["mean_speed"][0] > 1
        # A step is a second.
        assert episodes["driving_time"][0] == driven.sum()
        if name == CROSSING:
            arrivals = driven[whole]
            np.testing.assert_allclose(
                episodes["throughput"][0], 3600 * len(arrivals) / episodes["length"][0]
            )
            np.testing.assert_allclose(
                episodes["arrival_time"][0], arrivals.mean() if len(arrivals) else np.nan
            )
        else:
            assert np.isnan([episodes[key][0] for key in ("throughput", "arrival_time")]).all()
        all_crashed.append(crashed.mean())
        all_whole.append(whole.mean())
    assert 0 < np.mean(all_crashed) < 1 and 0 < np.mean(all_whole) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"comms": "perfct"}, "did you mean perfect?"),
        ({"comms_options": {"slot": 3}}, "there is no 'slot'; did you mean slots?"),
        ({"comms_options": {"connected": 1.5}}, "connected: expected 0 to 1, got 1.5"),
        ({"comms": "perfect", "age_reward": -1.0}, "age_reward: expected 0 with comms='perfect'"),
        ({"delivery_reward": float("inf")}, "delivery_reward: expected a number from -1e6 to 1e6"),
        (
            {"name": SINGLE, "config": {"observation": {"type": "OccupancyGrid"}}},
            "comms: '37885' needs an observation of the type Kinematics or ExitObservation, got OccupancyGrid",
        ),
    ],
)
def test_unusable_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        make(num_envs=2, **options)
    assert message in str(error.value)


def test_perfect_worlds_have_no_links() -> None:
    assert_no_links(make(comms="perfect"))
