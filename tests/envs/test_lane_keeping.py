"""`fastrl/lane-keeping-v0`; `tests/conformance/test_roads_lockstep.py` compares it with highway-env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from fastrl.envs.traffic.config_interfaces import LATERAL
from fastrl.envs.traffic.roads import RoadVectorEnv
from fastrl.envs.traffic.roads_config import KINDS

ID = "lane-keeping-v0"
EXACT = {"state_noise": 0, "derivative_noise": 0}
LEFT = np.array([-0.5], np.float32)


def make(**config: Any) -> Any:
    return gymnasium.make(f"fastrl/{ID}", config=config)


def vector(count: int = 3, **options: Any) -> RoadVectorEnv:
    return RoadVectorEnv(count, id=ID, **{"autoreset_mode": "disabled", "num_threads": 1} | options)


def steer(obs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Steering [N, 1] towards the middle of the lane, by the offset from it and from its direction."""
    state, middle = obs["state"][..., 0], obs["reference_state"][..., 0]
    wanted = middle[:, 1] - np.clip(0.2 * (state[:, 0] - middle[:, 0]), -1.2, 1.2)
    return np.clip(1.2 * (wanted - state[:, 1]) / (np.pi / 3), -1, 1).astype(np.float32)[:, None]


def test_gymnasium_accepts_it() -> None:
    env = make()
    check_env(env.unwrapped, skip_render_check=True)
    column = Box(-np.inf, np.inf, (4, 1), np.float64)
    assert env.observation_space == Dict(dict.fromkeys(LATERAL, column))
    assert env.action_space == Box(-1.0, 1.0, (1,), np.float32)
    assert env.spec.max_episode_steps == 200


def test_a_step_shows_the_state_before_its_frames() -> None:
    env = make(**EXACT).unwrapped
    env.reset(seed=0)
    before = env.vehicle
    obs, _, terminated, truncated, _ = env.step(LEFT)
    assert obs["state"][:, 0].tolist() == [before.position[1], before.heading, 0, 0]
    assert env.vehicle.position[1] != before.position[1] and not terminated and not truncated
    # The new steering acts on what has not moved yet.
    angle = np.float64(np.float32(-0.5 * np.pi / 3))
    assert obs["derivative"][2, 0] == pytest.approx(30 * angle) and obs["derivative"][1, 0] == 0


def test_states_are_measured_with_errors_and_places_of_the_lane_are_not() -> None:
    env, exact = make(state_noise=0.2, derivative_noise=0.01), make(**EXACT)
    (noisy, _), (plain, _) = env.reset(seed=3), exact.reset(seed=3)
    errors = {"state": [], "derivative": []}
    for _ in range(100):
        for key, most in (("state", 0.2), ("derivative", 0.01)):
            errors[key].append(np.abs(noisy[key] - plain[key]).max())
            assert errors[key][-1] <= most + 1e-12
        np.testing.assert_array_equal(noisy["reference_state"], plain["reference_state"])
        noisy, plain = env.step(LEFT)[0], exact.step(LEFT)[0]
    assert max(errors["state"]) > 0.19 and max(errors["derivative"]) > 0.0095


def test_looks_later_on_show_the_same() -> None:
    env = vector()
    env.reset(seed=1)
    obs, *_ = env.step(np.tile(LEFT, (3, 1)))
    rows = np.empty((3, 12), np.float32)
    env.observe_into(rows)
    whole = np.concatenate([obs[key].reshape(3, 4) for key in sorted(LATERAL)], axis=1)
    np.testing.assert_array_equal(rows, whole.astype(np.float32))


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_episodes_last_two_hundred_steps(mode: str) -> None:
    env, twin = vector(autoreset_mode=mode, max_episode_steps=200), vector()
    env.reset(seed=1)
    obs, _ = twin.reset(seed=1)
    actions = np.tile(LEFT, (3, 1))
    for step in range(200):
        seen, _, terminated, truncated, info = env.step(actions)
        obs, *_ = twin.step(actions)
        assert not terminated.any() and truncated.all() == (step == 199)
    np.testing.assert_equal(info["final_obs"] if mode == "same_step" else seen, obs)


def test_the_rule_keeps_to_both_lanes_and_straight_on_leaves_them() -> None:
    totals = {}
    for name in ("rule", "straight"):
        env = vector(8)
        obs, _ = env.reset(seed=0)
        totals[name] = np.zeros(8)
        for _ in range(200):
            action = steer(obs) if name == "rule" else np.zeros((8, 1), np.float32)
            obs, rewards, *_ = env.step(action)
            totals[name] += rewards
        lanes = {env.lane_indices()[lane] for lane in env.vehicles()["target_lane"]}
        assert lanes == {("a", "b", 0)}
    assert totals["rule"].min() > 196 and totals["straight"].max() < -1400


def test_clocks_stand_still_and_frames_count() -> None:
    names = ["steps", "state", "time"]
    env = make(observation={"type": "AttributesObservation", "attributes": names}, policy_frequency=5)
    env.reset(seed=0)
    env.step(LEFT)
    obs, *_ = env.step(LEFT)
    assert obs["time"] == 0 and obs["steps"] == 2 and env.observation_space.contains(obs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"action": {"type": "DiscreteMetaAction"}}, "'dynamical': True"),
        (
            {"action": {"type": "ContinuousAction"}},
            "'dynamical': True, because highway-env's lane keeping fails",
        ),
        ({"state_noise": -0.1}, "state_noise"),
        ({"derivative_noise": "much"}, "derivative_noise"),
        ({"duration": 10}, "unknown key 'duration'"),
        ({"observation": {"type": "AttributesObservation", "attributes": ["lpv"]}}, "reference_state"),
    ],
)
def test_a_wrong_config_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make(**config)
    assert "\n" not in str(caught.value)


def test_other_environments_have_no_such_attributes() -> None:
    nested = {"type": "AttributesObservation", "attributes": ["state"]}
    with pytest.raises(ValueError, match=r"attributes.*'time', 'steps'"):
        KINDS["merge-v0"].check({"observation": nested})
