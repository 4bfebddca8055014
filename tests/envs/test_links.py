"""Radio links in the cooperative worlds: formulas, a slow model of every link, ages, rewards, actions, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from link_cases import assert_no_links, assert_traffic_is_undisturbed
from link_model import slow_model
from numpy.typing import NDArray

from fastrl.envs import CoopVectorEnv, make_multi
from fastrl.envs.adapters.pettingzoo import parallel_env
from fastrl.envs.traffic.links import STATISTICS, LinkOptions, path_loss

IDS = ["fastrl/coop-highway-v0", "fastrl/coop-merge-v0"]
each_id = pytest.mark.parametrize("env_id", IDS)
IDLE = 1
VEHICLES = 8


def make(env_id: str = IDS[0], num_envs: int = 1, comms: str = "37885", **options: Any) -> CoopVectorEnv:
    env = make_multi(env_id, num_envs, comms=comms, **options)
    assert isinstance(env, CoopVectorEnv)
    return env


def draw(env: CoopVectorEnv, rng: np.random.Generator) -> NDArray[Any]:
    shape = (env.num_envs, env.num_agents)
    if isinstance(env.single_action_space, Discrete):
        # Often idle, so that agents live long.
        free = rng.random(shape) < 0.3
        actions = rng.integers(env.single_action_space.n, size=shape)
        return np.where(free, actions, actions - actions % 5 + IDLE)
    return rng.uniform(-0.1, 0.1, (*shape, *env.single_action_space.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("condition", "rounded"), [("los-highway", 87.96), ("los-urban", 86.33), ("nlos", 111.56)]
)
def test_path_loss_at_100_m_and_6_ghz(condition: Any, rounded: float) -> None:
    assert round(path_loss(condition, 100, 6), 2) == rounded


@given(st.floats(1, 2000), st.floats(0.5, 60))
def test_path_loss_is_that_of_the_formulas(distance: float, frequency: float) -> None:
    d, f = np.log10(distance), np.log10(frequency)
    assert abs(path_loss("los-highway", distance, frequency) - (32.4 + 20 * d + 20 * f)) < 1e-9
    assert abs(path_loss("los-urban", distance, frequency) - (38.77 + 16.7 * d + 18.2 * f)) < 1e-9
    assert abs(path_loss("nlos", distance, frequency) - (36.85 + 30 * d + 18.9 * f)) < 1e-9


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    env_id=st.sampled_from(IDS),
    steps=st.integers(0, 6),
    surroundings=st.sampled_from(["highway", "urban"]),
    blockage=st.sampled_from(["none", "vehicles"]),
    antenna=st.sampled_from([0.75, 1.6, 2.0]),
    slots=st.integers(1, 6),
    subchannels=st.integers(1, 3),
    selection=st.sampled_from(["random", "sensing", "agent"]),
    powers=st.sampled_from([23.0, (23.0, 10.0, -20.0)]),
    connected=st.sampled_from([False, True, 0.4]),
)
def test_every_link_is_what_the_slow_model_says(
    seed: int, env_id: str, steps: int, antenna: float, connected: bool | float, powers: Any, **other: Any
) -> None:
    given_options = other | {"antenna_height": antenna, "tx_power": powers, "connected": connected}
    env = make(env_id, max_agents=6, background=6, comms_options=given_options)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        env.step(draw(env, rng))
    links, cars = env.links(0), env.scene(0).cars()
    here = np.isin(np.arange(links["sinr"].shape[1]), cars["id"])
    sinr, success = slow_model(links, cars, here, LinkOptions(**given_options))
    np.testing.assert_allclose(links["sinr"], sinr, rtol=0, atol=1e-9)
    np.testing.assert_allclose(links["success"], success, rtol=0, atol=1e-9)
    env.close()


def test_shadowing_follows_the_way_of_both_vehicles() -> None:
    """Innovations, recovered from two messages in a row, are standard normal and unrelated."""
    env = make(num_envs=1, max_agents=12, background=0, policy_frequency=5, duration=60)
    env.reset(seed=3)
    found = []
    before = env.links(0)
    for _ in range(250):
        env.step(np.full((1, 12), IDLE))
        after = env.links(0)
        way = np.hypot(*(after["places"] - before["places"]).T)
        r = np.exp(-(way[:, None] + way[None, :]) / 25.0)
        rows = np.tril_indices(12, -1)
        fresh = (after["shadowing"] - r * before["shadowing"])[rows] / np.sqrt(1 - r[rows] ** 2)
        found.append(fresh[(way[rows[0]] > 1) & (way[rows[1]] > 1)])
        before = after
    flat = np.concatenate(found)
    assert len(flat) > 8000
    assert abs(flat.mean()) < 0.04 and abs(flat.std() - 1) < 0.03
    assert abs((np.abs(flat) < 1).mean() - 0.6827) < 0.02
    np.testing.assert_array_equal(before["shadowing"], before["shadowing"].T)


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_a_delivery_probability_p_gives_a_mean_age_of_1_over_p(probability: float) -> None:
    """Slow traffic without background does not crash: all links live for the whole episode."""
    env = make(
        num_envs=8,
        comms="range",
        max_agents=8,
        background=0,
        duration=300,
        comms_options={"range": 1e5, "delivery": probability, "max_age": 1e6},
    )
    env.reset(seed=0)
    ages, delivered = [], []
    for step in range(250):
        env.step(np.full((8, 8), IDLE if step > 12 else 4))
        if step >= 50:
            for i in range(8):
                links = env.links(i)
                one = ~np.isnan(links["success"])
                ages.append(links["age"][one])
                delivered.append(links["age"][one] == 1)
    age, share = np.concatenate(ages).mean(), np.concatenate(delivered).mean()
    assert abs(share - probability) < 0.02
    assert abs(age - 1 / probability) < 0.03 / probability
    info = env.episodes()
    assert (info["finished"] == 0).all()


@each_id
def test_perfect_observations_have_the_bits_of_before_there_were_links(env_id: str) -> None:
    """The recorded arrays were made by the last build without links."""
    golden = np.load(Path(__file__).parents[1] / "support" / "golden" / "coop_perfect.npz")
    name = env_id.split("-")[1]
    env = make(env_id, 2, "perfect", max_agents=6)
    obs, _ = env.reset(seed=11)
    seen, rewards = [obs], []
    for step in range(6):
        obs, reward, *_ = env.step((np.arange(12).reshape(2, 6) + step) % 5)
        seen.append(obs)
        rewards.append(reward)
    np.testing.assert_array_equal(np.stack(seen), golden[f"{name}_obs"])
    np.testing.assert_array_equal(np.stack(rewards), golden[f"{name}_rewards"])


@each_id
@pytest.mark.parametrize("connected", [True, False, 0.5])
def test_what_is_received_at_once_is_what_is_seen(env_id: str, connected: bool | float) -> None:
    """With every message delivered, observations have the bits of the perfect ones, and ages of 0."""
    options: dict[str, Any] = {"max_agents": 7, "background": 9, "duration": 20}
    perfect = make(env_id, 4, "perfect", **options)
    received = make(env_id, 4, "range", comms_options={"range": 1e5, "connected": connected}, **options)
    rng = np.random.default_rng(0)
    own = perfect.single_observation_space.shape[0] - 7 * VEHICLES
    (a, _), (b, _) = perfect.reset(seed=1), received.reset(seed=1)
    compared = 0
    for _ in range(40):
        others = b[..., own:].reshape(4, 7, VEHICLES, 8)
        np.testing.assert_array_equal(a[..., :own], b[..., :own])
        # What an agent remembers of those who have left the road is not in sight.
        left = (others[..., 7] > 0).any(axis=(1, 2))
        same = a[..., own:].reshape(4, 7, VEHICLES, 7)
        for i in np.nonzero(~left)[0]:
            np.testing.assert_array_equal(same[i].view(np.int32), others[i, ..., :7].view(np.int32))
            compared += 1
        actions = draw(perfect, rng)
        a, *rewards_a, _ = perfect.step(actions)
        b, *rewards_b, _ = received.step(actions)
        for x, y in zip(rewards_a, rewards_b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert compared > 40


@each_id
def test_links_do_not_disturb_the_traffic(env_id: str) -> None:
    assert_traffic_is_undisturbed(
        lambda comms: make(env_id, 3, comms, max_agents=6, duration=15), draw, steps=30
    )


@each_id
@pytest.mark.parametrize("comms", ["range", "37885"])
@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_seeds_fix_links_and_states_restore_them(env_id: str, comms: str, mode: str) -> None:
    chosen = {"selection": "sensing", "blockage": "probability"} if comms == "37885" else {"delivery": 0.6}
    options: dict[str, Any] = {
        "autoreset_mode": mode,
        "max_agents": 6,
        "duration": 12,
        "age_reward": -0.1,
        "comms_options": chosen,
    }

    def play(env: CoopVectorEnv, steps: int, seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        results = []
        for _ in range(steps):
            step = env.step(draw(env, rng))
            results.append([*step[:5], *env.comms().values()])
            over = ~step[4].any(axis=1)
            if mode == "disabled" and over.any():
                env.reset(reset_mask=over)
        return results

    def assert_same(ours: list[Any], theirs: list[Any]) -> None:
        for a, b in zip(ours, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)

    env, other = make(env_id, 4, comms, **options), make(env_id, 4, comms, num_threads=1, **options)
    env.reset(seed=7)
    other.reset(seed=[7, 8, 9, 10])
    assert_same(play(env, 30, 0), play(other, 30, 0))
    state = env.save_state()
    future = play(env, 30, 5)
    third = make(env_id, 4, comms, **options)
    third.load_state(state)
    np.testing.assert_array_equal(third.observe()[0], other.observe()[0])
    assert_same(future, play(third, 30, 5))
    assert third.save_state() == env.save_state() != state
    other.reset(seed=[8, 8, 9, 10])
    env.reset(seed=7)
    assert not np.array_equal(other.links(0)["success"], env.links(0)["success"])


def test_the_neighbours_are_those_that_were_heard() -> None:
    """The table, followed by hand: a state is replaced when a message arrives, grows older, and is forgotten."""
    env = make(
        num_envs=1,
        comms="range",
        max_agents=5,
        background=0,
        duration=60,
        comms_options={"delivery": 0.3, "range": 100.0, "max_age": 4.0},
    )
    obs, _ = env.reset(seed=4)
    known: dict[tuple[int, int], tuple[NDArray[np.float64], int]] = {}
    forgotten = 0
    for step in range(50):
        links = env.links(0)
        for a in range(5):
            for s in range(5):
                if a == s:
                    continue
                if links["age"][a, s] == 1 and links["known"][a, s]:
                    known[a, s] = (links["places"][s].copy(), 0)
                elif (a, s) in known:
                    place, age = known.pop((a, s))
                    if age + 1 <= 4:
                        known[a, s] = (place, age + 1)
                    else:
                        forgotten += 1
                assert bool(links["known"][a, s]) == ((a, s) in known)
            own = links["places"][a]
            near = [(np.hypot(*(p - own)), p, age) for (r, _), (p, age) in known.items() if r == a]
            expected = sorted((x for x in near if x[0] < 150), key=lambda x: x[0])
            rows = obs[0, a, 9:].reshape(VEHICLES, 8)
            assert int(rows[:, 0].sum()) == len(expected)
            for row, (_, place, age) in zip(rows, expected, strict=False):
                np.testing.assert_allclose(row[1], np.clip((place - own)[0] / 150, -1, 1), atol=1e-6)
                np.testing.assert_allclose(row[7], age / 4, atol=1e-6)
        obs, _, terminations, *_ = env.step(np.full((1, 5), 4 if step < 5 else IDLE))
        assert not terminations.any()
    assert forgotten > 0


@each_id
def test_rewards_and_statistics_are_those_of_the_links(env_id: str) -> None:
    options: dict[str, Any] = {
        "max_agents": 6,
        "duration": 15,
        "cooperation": 0.0,
        "autoreset_mode": "disabled",
    }
    plain = make(env_id, 1, **options)
    paid = make(env_id, 1, age_reward=-0.2, delivery_reward=0.5, **options)
    _, alive = plain.reset(seed=2)
    paid.reset(seed=2)
    rng = np.random.default_rng(3)
    first = paid.links(0)
    sums: dict[str, list[float]] = {name: [] for name in STATISTICS}

    def collect(links: dict[str, Any], listening: NDArray[np.bool_]) -> None:
        for a in np.nonzero(listening)[0]:
            for s in range(6):
                if np.isnan(links["success"][a, s]):
                    continue
                if np.hypot(*(links["places"][a] - links["places"][s])) > 150:
                    continue
                sums["delivery_ratio"].append(links["age"][a, s] == 1 and links["known"][a, s])
                sums["age_of_information"].append(links["age"][a, s])
                if np.isfinite(links["sinr"][a, s]):
                    sums["sinr"].append(links["sinr"][a, s])
            heard = links["sensed"][a][~np.isnan(links["sensed"][a])]
            sums["channel_busy_ratio"].append((heard > 10**-9.4).mean())

    collect(first, alive[0])
    info: dict[str, Any] = {}
    while alive.any():
        actions = draw(plain, rng)
        _, a, _, _, after, _ = plain.step(actions)
        _, b, _, _, _, info = paid.step(actions)
        collect(paid.links(0), alive[0])
        comms = info["comms"]
        assert list(comms) == list(STATISTICS)
        extra = -0.2 * np.nan_to_num(comms["age_of_information"]) + 0.5 * np.nan_to_num(
            comms["delivery_ratio"]
        )
        np.testing.assert_allclose(b[alive], (a + extra)[alive], atol=1e-5)
        assert (comms["delivery_ratio"][~np.isnan(comms["delivery_ratio"])] <= 1).all()
        alive = after
    for name in STATISTICS:
        np.testing.assert_allclose(info["episode"][name], np.mean(sums[name]), rtol=1e-9)


@pytest.mark.parametrize("action_type", ["meta", "continuous"])
def test_agents_choose_resources_and_powers(action_type: str) -> None:
    options = {"selection": "agent", "slots": 5, "subchannels": 2, "tx_power": (23.0, 3.0, -50.0)}
    env = make(max_agents=4, num_agents=4, background=0, action_type=action_type, comms_options=options)
    plain = make(max_agents=4, num_agents=4, background=0, action_type=action_type)
    assert env.single_observation_space.shape[0] == plain.single_observation_space.shape[0] + 10
    if action_type == "meta":
        assert env.single_action_space == Discrete(5 * 10 * 3)
    else:
        assert env.single_action_space == Box(-1, 1, (4,), np.float32)
    env.reset(seed=0)
    resources, powers = np.array([0, 7, 7, 9]), np.array([2, 0, 1, 0])
    if action_type == "meta":
        actions: Any = (IDLE + 5 * (resources + 10 * powers))[None]
    else:
        share = lambda index, count: 2 * (index + 0.5) / count - 1  # noqa: E731
        rows = [np.zeros(4), np.zeros(4), share(resources, 10), share(powers, 3)]
        actions = np.stack(rows, axis=-1)[None].astype(np.float32)
    obs, *_ = env.step(actions)
    links = env.links(0)
    np.testing.assert_array_equal(links["resources"], resources)
    np.testing.assert_array_equal(links["powers"], np.array([23.0, 3.0, -50.0])[powers])
    # Slot 2: both send in it and hear nothing in it; slot 4: 9 is alone there.
    assert np.isnan(links["sinr"][1, 2]) and np.isnan(links["sinr"][2, 1])
    assert links["success"][1, 2] == links["success"][2, 1] == 0
    sensed = links["sensed"][0]
    assert np.isnan(sensed[[0, 5]]).all() and (sensed[[1, 2, 3, 4, 6, 8]] == 0).all()
    assert (sensed[[7, 9]] > 0).all()
    shown = obs[0, 0, -10:]
    expected = np.clip((10 * np.log10(np.maximum(sensed, 1e-300)) + 80) / 40, -1, 1)
    np.testing.assert_allclose(shown, np.where(np.isnan(sensed), 1, expected), atol=1e-6)
    bad = actions.copy()
    bad[0, 1] = 150 if action_type == "meta" else [0, 0, 0, 1.01]
    expected_text = "an integer from 0 to 149" if action_type == "meta" else "4 numbers from -1 to 1"
    with pytest.raises(ValueError, match=expected_text):
        env.step(bad)


def mean_delivery(**options: Any) -> float:
    env = make(num_envs=32, max_agents=15, background=0, comms_options=options)
    env.reset(seed=0)
    shares = []
    for step in range(38):
        env.step(np.full((32, 15), 4 if step < 4 else IDLE))
        if step > 5:
            shares.append(np.nanmean(env.comms()["delivery_ratio"]))
    return float(np.mean(shares))


def test_more_resources_sensing_and_power_deliver_more() -> None:
    crowded = mean_delivery(slots=5, subchannels=2)
    assert 0.3 < crowded < 0.9
    assert mean_delivery(slots=50, subchannels=2) > crowded + 0.1
    assert mean_delivery(slots=20, selection="sensing") > mean_delivery(slots=20) + 0.02
    assert mean_delivery(slots=50, tx_power=-30.0) < 0.3


def test_busy_ratios_and_losses_behave() -> None:
    env = make(max_agents=15, background=0, comms_options={"slots": 4, "subchannels": 1})
    env.reset(seed=0)
    env.step(np.full((1, 15), 4))
    assert (env.comms()["channel_busy_ratio"] > 0.5).mean() > 0.5
    quiet = make(max_agents=2, num_agents=1, background=0)
    quiet.reset(seed=0)
    _, _, _, _, _, info = quiet.step(np.full((1, 2), IDLE))
    comms = info["comms"]
    assert comms["channel_busy_ratio"][0, 0] == 0 and np.isnan(comms["channel_busy_ratio"][0, 1])
    assert np.isnan(comms["delivery_ratio"]).all(), "nobody is there to hear it"


def test_pettingzoo_has_the_links_in_its_infos() -> None:
    env = parallel_env(IDS[1], comms="37885", max_agents=3)
    env.reset(seed=0)
    while env.agents:
        *_, infos = env.step(dict.fromkeys(env.agents, IDLE))
        assert all(set(info["comms"]) == set(STATISTICS) for info in infos.values())
    assert all("delivery_ratio" in info["episode"] for info in infos.values())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"comms": "perfct"},
            ValueError,
            "comms: expected 'perfect', 'range' or '37885', got 'perfct'; did you mean perfect?",
        ),
        ({"comms": 37886}, ValueError, "did you mean 37885"),
        ({"comms": None}, TypeError, "comms: expected"),
        ({"comms_options": {"slot": 3}}, ValueError, "there is no 'slot'; did you mean slots?"),
        ({"comms_options": {"blockage": "vehicle"}}, ValueError, "did you mean vehicles"),
        ({"comms_options": {"selection": "sense"}}, ValueError, "did you mean sensing"),
        ({"comms_options": {"slots": 0}}, ValueError, "slots"),
        ({"comms_options": {"slots": 101}}, ValueError, "slots: expected 1 to 100, got 101"),
        ({"comms_options": {"slots": 2.5}}, TypeError, "slots: expected an integer"),
        ({"comms_options": {"range": -1}}, ValueError, "range: expected 1 to 100000, got -1"),
        ({"comms_options": {"tx_power": []}}, ValueError, "tx_power: expected one power or up to 16, got 0"),
        ({"comms_options": {"tx_power": "loud"}}, TypeError, "tx_power"),
        ({"comms_options": {"tx_power": 99}}, ValueError, "tx_power: expected -150 to 60"),
        ({"comms_options": {"sinr_slope": 0}}, ValueError, "sinr_slope"),
        ({"comms_options": {"frequency": float("nan")}}, ValueError, "frequency"),
        ({"comms_options": {"delivery": 0.5}}, ValueError, "delivery has no effect with comms='37885'"),
        (
            {"comms": "range", "comms_options": {"slots": 5}},
            ValueError,
            "slots has no effect with comms='range'",
        ),
        ({"comms": "range", "comms_options": {"delivery": 1.5}}, ValueError, "delivery: expected 0 to 1"),
        ({"comms": "perfect", "comms_options": {"range": 50}}, ValueError, "no effect with comms='perfect'"),
        ({"comms": "perfect", "age_reward": -1.0}, ValueError, "age_reward: expected 0 with comms='perfect'"),
        ({"comms_options": {"connected": "all"}}, TypeError, "connected: expected a number, got 'all'"),
        ({"comms_options": {"connected": -0.1}}, ValueError, "connected: expected 0 to 1, got -0.1"),
        (
            {"comms_options": {"connected": True}, "background": 100},
            ValueError,
            "at most 256 vehicles with radios",
        ),
        ({"comms_options": [1]}, TypeError, "comms_options: expected a dict"),
        ({"delivery_reward": float("inf")}, ValueError, "delivery_reward"),
    ],
)
def test_unusable_options_are_named(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind) as error:
        make(num_envs=2, **options)
    assert message in str(error.value)


def test_perfect_worlds_have_no_links() -> None:
    env = make(comms="perfect")
    assert_no_links(env)
    assert env.scene(0).links()["quality"].size == 0
    assert "comms" not in env.step(np.full((1, 15), IDLE))[-1]
    assert not set(STATISTICS) & env.episodes().keys()


def test_states_of_other_links_are_refused() -> None:
    env = make(num_envs=2)
    env.reset(seed=0)
    before = env.save_state()
    for other in (make(num_envs=2, comms="perfect"), make(num_envs=2, comms_options={"slots": 11})):
        other.reset(seed=0)
        with pytest.raises(ValueError, match="cannot be restored"):
            env.load_state(other.save_state())
    assert env.save_state() == before
