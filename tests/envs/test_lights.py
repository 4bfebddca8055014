"""`fastrl/lights-v0`: a slow model of observations and rewards, phases, queues beside SUMO's, faces, states, errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from sumo_lights import record

from fastrl.envs import make_multi
from fastrl.envs.adapters.pettingzoo import parallel_env
from fastrl.envs.roads import from_sumo
from fastrl.envs.traffic.lights import NETWORKS, LightsVectorEnv, files_of
from fastrl.envs.traffic.sumo_config import TOWN

ID = "fastrl/lights-v0"
SUMO = Path(__file__).parents[1] / "support" / "golden" / "sumo"


class Model:
    """Observations and rewards of all lights from what can be seen of the cars, and the rules of phases."""

    def __init__(self, env: LightsVectorEnv, amber: int, min_green: int) -> None:
        self.env, self.wait = env, amber + min_green
        network = env.network
        names = {name: i for i, name in enumerate(network.lane_indices)}
        self.lanes: list[list[int]] = []
        for light in network.lights:
            links = sorted(
                (one.light[1], one.start)
                for one in network.connections
                if one.light and one.light[0] == light
            )
            starts = dict.fromkeys(start for _, start in links)
            self.lanes.append([names[edge, edge, i] for edge, i in starts])
        self.edges = [name[:2] for name in network.lane_indices]
        self.green = [0] * len(self.lanes)
        self.since = [0] * len(self.lanes)
        self.waited: dict[int, tuple[Any, int]] = {}
        self.last = [0.0] * len(self.lanes)

    def act(self, actions: Any) -> None:
        for light, action in enumerate(actions):
            if action != self.green[light] and self.since[light] >= self.wait:
                self.green[light], self.since[light] = int(action), 0

    def second(self) -> tuple[Any, list[float]]:
        """Observations and rewards after a second."""
        scene = self.env.scene(0)
        cars, lengths = scene.cars(), scene.lane_lengths
        now: dict[int, tuple[Any, int]] = {}
        for car, lane, speed in zip(cars["id"], cars["lane"], cars["speed"], strict=True):
            edge = self.edges[lane]
            before = self.waited.get(car, (edge, 0))
            now[car] = (edge, (before[1] if before[0] == edge else 0) + int(abs(speed) < 0.1))
        self.waited = now
        rows, rewards = [], []
        for light, lanes in enumerate(self.lanes):
            self.since[light] += 1
            row = [float(phase == self.green[light]) for phase in range(4)]
            row.append(float(self.since[light] >= self.wait))
            for slow in (False, True):
                for lane in lanes:
                    on = (cars["lane"] == lane) & (~slow | (np.abs(cars["speed"]) < 0.1))
                    row.append(min(on.sum() / (lengths[lane] / 7.5), 1.0))
            rows.append(row)
            here = np.isin(cars["lane"], lanes)
            total = sum(now[car][1] for car in cars["id"][here]) / 100
            rewards.append(self.last[light] - total)
            self.last[light] = total
        return np.array(rows), rewards


@pytest.mark.parametrize("net", NETWORKS)
def test_observations_and_rewards_are_those_of_a_slow_model(net: str) -> None:
    options: dict[str, Any] = {"delta_time": 1, "yellow_time": 3, "min_green": 6, "duration": 301}
    env = LightsVectorEnv(1, net=net, autoreset_mode="disabled", **options)
    obs, alive = env.reset(seed=1)
    model, rng = Model(env, 3, 6), np.random.default_rng(0)
    waited = 0.0
    for _ in range(300):
        # Seldom, so that queues form.
        actions = np.where(
            rng.random(env.num_agents) < 0.1, rng.integers(4, size=env.num_agents), model.green
        )
        model.act(actions)
        obs, rewards, terminations, truncations, alive, _ = env.step(actions[None])
        expected, returns = model.second()
        np.testing.assert_allclose(obs[0], expected, atol=1e-5)
        np.testing.assert_allclose(rewards[0], returns, atol=1e-5)
        waited = max(waited, max(model.last))
        assert alive.all() and not terminations.any() and not truncations.any()
    assert waited > 0.5, "somebody waited"
    *_, truncations, alive, info = env.step(actions[None])
    assert truncations.all() and not alive.any()
    episode = {name: values[0] for name, values in info["episode"].items()}
    assert episode["length"] == 301 and episode["num_agents"] == env.num_agents
    assert episode["waiting_time"] > 0 and episode["arrived"] > 20 and episode["crashes"] <= 4


def test_a_step_of_five_seconds_is_five_of_one_second() -> None:
    options: dict[str, Any] = {"net": "arterial", "autoreset_mode": "disabled", "duration": 300}
    one, five = LightsVectorEnv(1, delta_time=1, **options), LightsVectorEnv(1, **options)
    one.reset(seed=2)
    five.reset(seed=2)
    rng = np.random.default_rng(1)
    for _ in range(60):
        actions = rng.integers(4, size=(1, 3))
        obs, rewards, *_ = five.step(actions)
        # The phase that was chosen is kept, as a later choice could be taken.
        total, kept = np.zeros((1, 3)), actions
        for _ in range(5):
            seen, part, *_ = one.step(kept)
            total += part
            kept = seen[..., :4].argmax(-1)
        np.testing.assert_array_equal(obs, seen)
        np.testing.assert_allclose(rewards, total, atol=1e-5)


def test_fixed_lights_follow_their_programs() -> None:
    """Whatever the actions are; amber counts as the phase before it."""
    env = LightsVectorEnv(1, fixed=True, delta_time=1, autoreset_mode="disabled")
    env.reset(seed=0)
    program = env.network.lights["A0"].phases
    rng, seen = np.random.default_rng(0), []
    for _ in range(2 * 96):
        obs, *_ = env.step(rng.integers(4, size=(1, 1)))
        seen.append(int(obs[0, 0, :4].argmax()))
    expected = [k // 2 for k, (duration, _) in enumerate(program) for _ in range(int(duration))] * 3
    assert seen == expected[1 : len(seen) + 1]


def timetable(folder: Path, period: int, end: int) -> Path:
    """Vehicles at even times, most of them straight on."""
    ways = {
        "left0A0": ("A0right0", "A0top0"),
        "right0A0": ("A0left0", "A0bottom0"),
        "bottom0A0": ("A0top0", "A0left0"),
        "top0A0": ("A0bottom0", "A0right0"),
    }
    flows = [
        f'<flow id="{start}{k}" from="{start}" to="{to}" begin="{5 * k}" end="{end}" period="{period * (1 + 3 * k)}"'
        ' departLane="best" departSpeed="max"/>'
        for k in range(2)
        for start, to in ((start, ends[k]) for start, ends in ways.items())
    ]
    path = folder / "x.rou.xml"
    path.write_text(f"<routes>{''.join(flows)}</routes>")
    return path


def crossings(env: LightsVectorEnv, seconds: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Of each edge before a light the seconds at which vehicles left it, and the queue after each second."""
    names = env.network.lane_indices
    edges = sorted({one.start[0] for one in env.network.connections if one.light})
    left: dict[str, list[int]] = {edge: [] for edge in edges}
    queues: dict[str, list[int]] = {edge: [] for edge in edges}
    on: dict[int, str] = {}
    env.reset(seed=0)
    for second in range(1, seconds + 1):
        env.step(np.zeros((1, env.num_agents), np.int64))
        cars = env.scene(0).cars()
        place = [names[lane][0] if names[lane][0] == names[lane][1] else "" for lane in cars["lane"]]
        now = {int(car): edge for car, edge in zip(cars["id"], place, strict=True)}
        for car, edge in on.items():
            if edge in left and now.get(car) != edge:
                left[edge].append(second)
        for edge in edges:
            queues[edge].append(sum(e == edge and v < 0.1 for e, v in zip(place, cars["speed"], strict=True)))
        on = now
    return left, queues


@pytest.mark.skipif(importlib.util.find_spec("libsumo") is None, reason="libsumo is not installed")
@pytest.mark.parametrize(("period", "tolerance"), [(12, 1), (5, 3)])
def test_departures_at_a_fixed_light_are_near_sumos(tmp_path: Path, period: int, tolerance: int) -> None:
    """Vehicles over each stop line in each cycle, and mean queues, without and with queues that outlast green."""
    cycle, seconds = 96, 6 * 96
    net, demand = files_of("crossing")[0], timetable(tmp_path, period, seconds)
    theirs = record(tmp_path, net, demand, seconds)
    times: dict[str, Any] = {"delta_time": 1, "duration": seconds}
    env = LightsVectorEnv(1, net=net, demand=demand, fixed=True, autoreset_mode="disabled", **times)
    ours, queues = crossings(env, seconds)
    ends = np.arange(0, seconds + 1, cycle)
    for edge, wanted in theirs["crossings"].items():
        a, b = (np.diff(np.searchsorted(each, ends, "right")) for each in (wanted, ours[edge]))
        assert np.abs(a - b).max() <= tolerance, f"{edge}: {a} and {b}"
        assert 1 < np.mean(queues[edge]) / np.mean(theirs["queues"][edge]) < 1.6
    assert env.episodes()["crashes"] == 0


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_seeds_fix_episodes_and_states_restore_them(mode: str) -> None:
    options: dict[str, Any] = {"net": "grid", "autoreset_mode": mode, "duration": 42}
    env, other = make_multi(ID, 3, **options), make_multi(ID, 3, num_threads=1, **options)

    def play(env: Any, steps: int, seed: int) -> list[Any]:
        rng, results = np.random.default_rng(seed), []
        for _ in range(steps):
            results.append(env.step(rng.integers(4, size=(3, 4)))[:5])
            if mode == "disabled" and not results[-1][4].any():
                env.reset()
        return results

    np.testing.assert_equal(env.reset(seed=4), other.reset(seed=[4, 5, 6]))
    np.testing.assert_equal(play(env, 30, 0), play(other, 30, 0))
    state = env.save_state()
    future = play(env, 20, 1)
    third = make_multi(ID, 3, **options)
    third.load_state(state)
    np.testing.assert_equal(future, play(third, 20, 1))
    assert third.save_state() == env.save_state() != state
    with pytest.raises(ValueError, match="cannot be restored"):
        make_multi(ID, 3, **{**options, "fixed": True}).load_state(state)


def test_networks_of_ones_own_and_random_trips() -> None:
    """The town of `fastrl/road-v0`: a file, a network, and lights of fewer phases."""
    town = from_sumo(TOWN)
    env = LightsVectorEnv(2, net=town, vehicles_count=30, duration=60)
    assert env.num_agents == len(town.lights) == 4
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, LightsVectorEnv(2, net=TOWN, vehicles_count=30).reset(seed=0)[0])
    greens = env.single_action_space.n  # type: ignore[union-attr]
    assert (obs[..., :greens].sum(-1) == 1).all() and obs[..., greens + 1 :].any()
    assert len(env.scene(1).cars()["id"]) > 20


def test_pettingzoo_and_pictures() -> None:
    env = parallel_env(ID, net="arterial", duration=20, render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    assert len(obs) == 3 and env.action_space("agent_0") == Discrete(4)
    while env.agents:
        *_, truncations, infos = env.step(dict.fromkeys(env.agents, 0))
    assert all(truncations.values()) and infos["agent_0"]["episode"]["length"] == 4
    picture = env.render()
    assert picture is not None and picture.shape == (600, 600, 3) and picture.std() > 10


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"net": "nowhere"}, ValueError, "nowhere"),
        ({"net": 3}, TypeError, "net: expected"),
        ({"net": SUMO / "spider.net.xml"}, ValueError, "net: expected traffic lights"),
        ({"demand": "nowhere.rou.xml"}, ValueError, "nowhere.rou.xml"),
        ({"delta_time": 0}, ValueError, "delta_time: expected 1 to 3600, got 0"),
        ({"yellow_time": 0}, ValueError, "yellow_time: expected 1 to 3600, got 0"),
        ({"min_green": 2.5}, TypeError, "min_green: expected an integer"),
        ({"duration": 0}, ValueError, "duration: expected 1 to 1000000, got 0"),
        ({"simulation_frequency": 1000}, ValueError, "simulation_frequency: expected 1 to 100, got 1000"),
        ({"fixed": 3}, TypeError, "fixed"),
        ({"vehicles_count": -1}, ValueError, "vehicles_count"),
        ({"num_envs": 0}, ValueError, "num_envs"),
        ({"autoreset_mode": "never"}, ValueError, "autoreset_mode"),
    ],
)
def test_unusable_options_are_named(options: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        make_multi(ID, **{"num_envs": 2, **options})


def test_unusable_actions_change_nothing() -> None:
    env = make_multi(ID, 2, net="arterial")
    env.reset(seed=0)
    before = env.save_state()
    actions = np.zeros((2, 3), np.int64)
    actions[1, 2] = 4
    with pytest.raises(
        ValueError, match="action of agent 2 of environment 1: expected an integer from 0 to 3"
    ):
        env.step(actions)
    assert env.save_state() == before
