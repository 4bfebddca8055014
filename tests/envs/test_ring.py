"""Flow's ring road: contract, formulas, controllers, errors, and learning."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastrl._native._rust import IdmPlatoon
from fastrl.envs import RingMultiAgentVectorEnv, RingVectorEnv, make_multi
from fastrl.envs.traffic.ring import equilibrium_speed
from fastrl.testing import check_vector_env

LENGTH = 13


def quick(num_envs: int = 1, **options: Any) -> RingVectorEnv:
    return RingVectorEnv(num_envs, **({"warmup_steps": 20, "horizon": LENGTH} | options))


def push(num_envs: int, value: float) -> NDArray[np.float32]:
    return np.full((num_envs, 1), value, np.float32)


class TestContract:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            pytest.param({"ballistic": True, "sims_per_step": 3, "memory": 10.0}, marks=pytest.mark.slow),
            pytest.param({"drive": "pi_saturation", "noise": 0.0}, marks=pytest.mark.slow),
            pytest.param(
                {"num_vehicles": 9, "ring_length": (120.0, 140.0), "dt": 0.5}, marks=pytest.mark.slow
            ),
        ],
        ids=str,
    )
    def test_it_passes_the_kit(self, options: dict[str, Any]) -> None:
        def make(**kwargs: Any) -> VectorEnv:
            return quick(**options, **kwargs)

        # Controllers ignore the actions.
        check_vector_env(make, steps=4 * LENGTH, time_limit=LENGTH, terminates=False)

    @pytest.mark.slow
    def test_it_passes_the_kit_made_by_gymnasium(self) -> None:
        def make(**kwargs: Any) -> VectorEnv:
            return gymnasium.make_vec(
                "fastrl/ring-v0",
                vectorization_mode="vector_entry_point",
                warmup_steps=5,
                horizon=LENGTH,
                **kwargs,
            )

        check_vector_env(make, num_envs=2, steps=2 * LENGTH, time_limit=LENGTH, terminates=False)

    @pytest.mark.slow
    def test_it_passes_the_kit_if_agents_may_collide(self) -> None:
        def make(**kwargs: Any) -> VectorEnv:
            return quick(
                safe_speed=False, max_accel=3.0, max_decel=0.5, sims_per_step=4, horizon=60, **kwargs
            )

        check_vector_env(make, num_envs=2, steps=130, terminates=True)

    def test_a_single_one_passes_gymnasium_s_checker(self) -> None:
        with gymnasium.make("fastrl/ring-v0", warmup_steps=5, horizon=50) as env:
            check_env(env.unwrapped, skip_render_check=True)

    @pytest.mark.parametrize("agents", [1, 3, 22])
    def test_episode_statistics_agree_with_the_steps(self, agents: int) -> None:
        env = make_multi(
            "fastrl/ring-v0", 4, num_agents=agents, warmup_steps=20, horizon=LENGTH, num_threads=1
        )
        rng = np.random.default_rng(0)
        obs, alive = env.reset(seed=0)
        assert obs.shape == (4, agents, 3) and alive.all()
        total = np.zeros(4)
        for step in range(1, LENGTH + 1):
            obs, rewards, terminations, truncations, alive, info = env.step(
                rng.uniform(-1, 1, (4, agents, 1))
            )
            assert (rewards == rewards[:, :1]).all() and not terminations.any()
            assert (truncations == (step == LENGTH)).all() and alive.all(), "reset within the step"
            total += rewards[:, 0]
        episode = info["episode"]
        assert episode["finished"].tolist() == [1] * 4 and episode["length"].tolist() == [LENGTH] * 4
        assert episode["num_agents"].tolist() == [agents] * 4 and episode["success"].tolist() == [1] * 4
        assert episode["collision_rate"].tolist() == [0] * 4
        np.testing.assert_allclose(episode["driving_time"], LENGTH * 0.1 * agents)
        assert np.isnan(episode["arrival_time"]).all()
        np.testing.assert_allclose(episode["return_mean"], total, rtol=1e-5)
        assert (episode["throughput"] > 0).all() and (episode["min_ttc"] > 0).all()

    def test_one_agent_is_the_same_with_both_interfaces(self) -> None:
        alone = quick(3, num_threads=1, autoreset_mode="same_step")
        multi = make_multi("fastrl/ring-v0", 3, warmup_steps=20, horizon=LENGTH)
        np.testing.assert_array_equal(alone.reset(seed=5)[0], multi.reset(seed=5)[0][:, 0])
        for step in range(2 * LENGTH):
            actions = np.sin(np.arange(3) + step)[:, None]
            ours, theirs = alone.step(actions), multi.step(actions[:, None])
            np.testing.assert_array_equal(ours[0], theirs[0][:, 0])
            np.testing.assert_allclose(ours[1], theirs[1][:, 0], rtol=1e-6)
            np.testing.assert_array_equal(ours[3], theirs[3][:, 0])


class TestFormulas:
    def test_observation_and_reward_agree_with_flow(self) -> None:
        env = make_multi("fastrl/ring-v0", 5, num_agents=2, warmup_steps=300, horizon=100)
        assert isinstance(env, RingMultiAgentVectorEnv) and env.agent_vehicles == (10, 21)
        env.reset(seed=1)
        rng = np.random.default_rng(2)
        for _ in range(50):
            actions = rng.uniform(-1, 1, (5, 2, 1)).astype(np.float32)
            obs, rewards, *_ = env.step(actions)
            x, v, _, lengths = env.vehicles()
            for k, (driver, leader) in enumerate([(10, 11), (21, 0)]):
                expected = [
                    v[:, driver] / 15,
                    (v[:, leader] - v[:, driver]) / 15,
                    (x[:, leader] - x[:, driver]) % lengths / 270,
                ]
                np.testing.assert_allclose(obs[:, k], np.stack(expected, 1), atol=1e-6)
            effort = np.abs(actions).mean(axis=(1, 2))
            np.testing.assert_allclose(rewards[:, 0], 4 * v.mean(1) / 20 - 4 * effort, rtol=1e-5)

    def test_an_action_is_an_acceleration_unless_it_comes_too_close(self) -> None:
        env = quick(2, warmup_steps=0, horizon=1000)
        env.reset(seed=0)
        for _ in range(10):  # a free stretch of 50 m lies ahead
            before = env.vehicles().speeds[:, -1]
            env.step(push(2, 0.5))
            np.testing.assert_allclose(env.vehicles().speeds[:, -1], before + 0.05)
        for _ in range(600):
            env.step(push(2, 1.0))
        state = env.vehicles()
        assert ((state.positions[:, 0] - state.positions[:, -1]) % state.ring_lengths > 5.0).all()

    def test_distance_scale_reproduces_the_observations_of_a_range(self) -> None:
        one, range_ = quick(ring_length=220.0), quick(ring_length=220.0, distance_scale=270.0)
        one.reset(seed=0), range_.reset(seed=0)
        distances = [env.step(push(1, 0.5))[0][0, 2] for env in (one, range_)]
        assert distances[0] * 220 == pytest.approx(distances[1] * 270)

    def test_lengths_are_drawn_from_the_range(self) -> None:
        env = quick(500, warmup_steps=0)
        env.reset(seed=0)
        lengths = env.vehicles().ring_lengths
        assert lengths.min() >= 220 and lengths.max() <= 270 and abs(lengths.mean() - 245) < 3
        env = quick(3, ring_length=233.5)
        env.reset(seed=0)
        assert env.vehicles().ring_lengths.tolist() == [233.5] * 3

    def test_noise_has_flow_s_deviation(self) -> None:
        noisy, calm = (quick(400, noise=noise, warmup_steps=0, horizon=9) for noise in (0.2, 0.0))
        x, v = np.arange(22) * 11.0, np.full(22, 1.0)
        for env in (noisy, calm):
            env.reset(seed=3)
            for i in range(400):
                env.place(i, 242.0, x, v)
            env.step(push(400, 0.0))
        difference = (noisy.vehicles().accelerations - calm.vehicles().accelerations)[:, :-1]
        assert abs(difference.std() - 0.2 * math.sqrt(0.1)) < 0.002 and abs(difference.mean()) < 0.003
        assert np.all(noisy.vehicles().accelerations[:, -1] == 0.0), "the agent's own is as it says"

    def test_memory_is_the_mean_of_the_agents_speed(self) -> None:
        env = quick(2, memory=5.0, warmup_steps=0, horizon=400)
        obs, _ = env.reset(seed=0)
        mean = np.zeros(2)
        assert obs.shape == (2, 4)
        for step in range(300):
            obs, *_ = env.step(push(2, math.sin(step / 20)))
            mean += (env.vehicles().speeds[:, -1] - mean) * 0.1 / 5.0
            np.testing.assert_allclose(obs[:, 3], mean / 15, atol=1e-6)

    def test_equilibrium_speeds_agree_with_the_paper(self) -> None:
        speeds = [equilibrium_speed(length) for length in (220, 230, 240, 250, 260, 270)]
        np.testing.assert_allclose(speeds, [3.00, 3.45, 3.91, 4.36, 4.82, 5.27], atol=0.006)


def slow_idm(
    v: float, gap: float, lead_speed: float, dt: float, ballistic: bool, free: bool = False
) -> float:
    """SUMO's IDM of one driver by its formulas, written plainly."""
    a, b, headway, min_gap, desired, emergency = 1.0, 1.5, 1.0, 2.0, 30.0, 9.0
    parts = max(1, int(dt / 0.25 + 0.5))
    if free:
        gap, lead_speed, min_gap = 1e6, desired, 0.0
    u = v
    for _ in range(parts):
        s = max(0.0, u * headway + u * (u - lead_speed) / (2 * math.sqrt(a * b))) + min_gap
        gap = max(1e-3, gap)
        u_next = max(0.0, u + a * (1 - (u / desired) ** 4 - (s / gap) ** 2) * dt / parts)
        gap -= max(0.0, (u_next - lead_speed) * dt / parts)
        u = u_next
    safe = min(v + a * dt, desired, u)
    slowest = [v - max(b, min(emergency, 1.5)) * dt, v - emergency * dt]
    if not ballistic:
        slowest = [max(speed, 0.0) for speed in slowest]
    speed = max(min(slowest[0], max(safe, slowest[1])), safe)
    return 0.0 if speed < 1e-4 * dt else speed


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    gaps=st.lists(st.floats(1e-6, 60), min_size=1, max_size=12),
    speeds=st.lists(st.floats(0, 30), min_size=12, max_size=12),
    dt=st.sampled_from([0.1, 0.5, 1.0]),
    ballistic=st.booleans(),
    ring=st.booleans(),
)
def test_a_platoon_agrees_with_a_slow_model(
    gaps: list[float], speeds: list[float], dt: float, ballistic: bool, ring: bool
) -> None:
    n = len(gaps)
    x = [sum(gaps[:i]) + 5.0 * i for i in range(n)]
    length = sum(gaps) + 5.0 * n
    v = speeds[:n]
    platoon = IdmPlatoon(x, v, ring_length=length if ring else None, dt=dt, ballistic=ballistic)
    platoon.step()
    for i in range(n):
        alone = not ring and i == n - 1
        expected = slow_idm(v[i], gaps[i], v[(i + 1) % n], dt, ballistic, alone)
        assert platoon.speeds[i] == pytest.approx(expected, abs=1e-9)
        way = (v[i] + expected) / 2 * dt if ballistic else expected * dt
        moved = platoon.positions[i] - x[i]
        assert (moved % length if ring else moved) == pytest.approx(way % length if ring else way, abs=1e-9)


class TestControllers:
    @staticmethod
    def ratio(drive: str, length: float, **options: Any) -> float:
        """The mean speed of two minutes after the first five, relative to the equilibrium speed."""
        env = RingVectorEnv(
            4, drive=drive, ring_length=length, warmup_steps=25, sims_per_step=30, horizon=1000, **options
        )
        env.reset(seed=0)
        speeds = []
        for step in range(140):
            env.step(push(4, 0.0))
            if step >= 100:
                speeds.append(env.vehicles().speeds.mean())
        return float(np.mean(speeds) / equilibrium_speed(length))

    @pytest.mark.parametrize("length", [220.0, 245.0, 270.0])
    def test_controllers_dissolve_the_wave_of_humans(self, length: float) -> None:
        assert self.ratio("humans", length) < 0.72
        assert self.ratio("follower_stopper", length, bunching=0.0, safe_speed=False) > 0.98
        assert self.ratio("pi_saturation", length) > 0.95

    def test_a_desired_speed_is_kept(self) -> None:
        env = RingVectorEnv(1, drive="follower_stopper", desired_speed=2.0, ring_length=260.0, bunching=0.0)
        env.reset(seed=0)
        for _ in range(1500):
            env.step(push(1, 0.0))
        assert env.vehicles().speeds[0, -1] == pytest.approx(2.0)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"num_vehicles": 1}, ValueError, "num_vehicles: expected 2"),
            ({"num_vehicles": 2.0}, TypeError, "num_vehicles: expected an integer"),
            ({"num_vehicles": -4}, ValueError, "num_vehicles"),
            ({"warmup_steps": 2**31}, ValueError, "warmup_steps and sims_per_step: expected at most 1000000"),
            ({"ring_length": 150.0}, ValueError, "need more than 204 m, got 150"),
            ({"ring_length": (270.0, 220.0)}, ValueError, "shortest before the longest"),
            ({"ring_length": (220.0, 230.0, 240.0)}, ValueError, "a number or two"),
            ({"ring_length": "long"}, TypeError, "ring_length: expected a number"),
            ({"ring_length": math.nan}, ValueError, "ring_length: expected a positive number"),
            ({"dt": 0.0}, ValueError, "dt: expected a positive number"),
            ({"noise": math.nan}, ValueError, "noise: expected a number from 0"),
            ({"noise": True}, TypeError, "noise: expected a number"),
            ({"horizon": 0}, ValueError, "horizon: expected at least 1"),
            ({"max_decel": -1.0}, ValueError, "max_decel: expected a positive number"),
            ({"desired_speed": -3.0}, ValueError, "desired_speed: expected a number from 0"),
            ({"distance_scale": 0.0}, ValueError, "distance_scale: expected a positive number"),
            ({"safe_speed": 1}, TypeError, "safe_speed: expected True or False"),
            ({"drive": "robots"}, ValueError, "drive: expected 'agents', 'humans'"),
            ({"drive": None}, TypeError, "drive: expected a name"),
            ({"lenght": 3}, TypeError, "lenght"),
            ({"num_agents": 2}, ValueError, "make_multi"),
        ],
        ids=lambda value: str(value) if isinstance(value, dict) else "",
    )
    def test_invalid_options_are_named(
        self, options: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            RingVectorEnv(2, **options)

    def test_more_agents_than_vehicles(self) -> None:
        with pytest.raises(
            ValueError, match="num_agents: expected 1 to 22, which is the number of vehicles, got 23"
        ):
            make_multi("fastrl/ring-v0", 2, num_agents=23)

    @pytest.mark.parametrize("wrong", [math.nan, math.inf, 1.5, -1.01])
    def test_invalid_actions_change_nothing(self, wrong: float) -> None:
        env, other = quick(3), quick(3)
        for each in (env, other):
            each.reset(seed=0)
        with pytest.raises(ValueError, match="environment 1: expected an acceleration from -1 to 1"):
            env.step(np.array([[0.0], [wrong], [0.0]]))
        np.testing.assert_array_equal(env.step(push(3, 0.5))[0], other.step(push(3, 0.5))[0])

    @pytest.mark.parametrize(("seed", "error"), [("0", TypeError), (1.5, TypeError), (-1, ValueError)])
    def test_invalid_seeds(self, seed: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="seed"):
            quick().reset(seed=seed)

    def test_overlapping_or_reversing_vehicles_are_not_placed(self) -> None:
        env = quick(2)
        x, v = np.arange(22) * 11.0, np.zeros(22)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.place(0, 242.0, x, v)
        env.reset(seed=0)
        before = env.vehicles()
        for wrong_x, wrong_v, length, words in [
            (x, v - 1, 242.0, "speeds: expected numbers from 0"),
            (x, v, 230.0, "behind the first's next lap"),
            (x[::-1], v, 242.0, "expected ascending"),
            (np.where(x == 0, np.nan, x), v, 242.0, "positions: expected numbers"),
            (x, v, math.inf, "ring_length: expected a positive"),
            (x[:5], v[:5], 242.0, "shape"),
        ]:
            with pytest.raises(ValueError, match=words):
                env.place(0, length, wrong_x, wrong_v)
        with pytest.raises(IndexError):
            env.place(2, 242.0, x, v)
        np.testing.assert_array_equal(env.vehicles().positions, before.positions)

    def test_invalid_platoons(self) -> None:
        for arguments, words in [
            (([0.0, 4.0], [1.0, 1.0]), "ascending"),
            (([0.0, 9.0], [1.0]), "as many speeds"),
            (([], []), "at least one"),
            (([0.0, 9.0], [1.0, math.nan]), "speeds"),
        ]:
            with pytest.raises(ValueError, match=words):
                IdmPlatoon(*arguments)
        with pytest.raises(ValueError, match="dt"):
            IdmPlatoon([0.0], [1.0], dt=-1.0)
        with pytest.raises(ValueError, match="commands: expected 1 speeds"):
            IdmPlatoon([0.0], [1.0]).step(commands=[-1.0])


@pytest.mark.learning
def test_an_agent_learns_to_dissolve_the_wave() -> None:
    """A sixth of the preset removes most of the wave of humans (0.70 of the equilibrium speed)."""
    from fastrl.play.team_policy import TeamPolicy
    from fastrl.tasks.traffic.task import TASK
    from fastrl.utils.config import build

    config_type = TASK.settings_type("ippo")
    changes = {"run.total_episodes": 900, "run.eval_episodes": 0, "env.num_threads": 1}
    settings = build(config_type, TASK.preset_values(config_type, "ring"), changes)
    trainer = TASK.make_trainer(settings)
    for _ in trainer.rows():
        pass
    policy = TeamPolicy(trainer.policy_checkpoint()["policy"])
    options = {"ring_length": 240.0, "sims_per_step": 10, "horizon": 301, "warmup_steps": 75, "memory": 20.0}
    options["distance_scale"] = 270.0
    held_out = RingVectorEnv(8, **options)
    obs, _ = held_out.reset(seed=1_000_000)
    speeds = []
    for step in range(300):
        obs, *_ = held_out.step(policy.act(obs, np.ones(8, np.bool_)))
        if step >= 200:
            speeds.append(held_out.vehicles().speeds.mean())
    assert np.mean(speeds) / equilibrium_speed(240.0) > 0.85
