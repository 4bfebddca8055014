"""`fastrl/parking-v0` and its kin; `tests/conformance` compares them with highway-env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict
from gymnasium.utils.env_checker import check_env

from fastrl.envs.registration import make_multi
from fastrl.envs.traffic.parking import ParkingVectorEnv
from fastrl.envs.traffic.roads_config import KINDS

gymnasium.logger.min_level = gymnasium.logger.ERROR
GOAL = KINDS["parking-v0"].defaults["observation"]
TEAM = {
    "controlled_vehicles": 2,
    "observation": {"type": "MultiAgentObservation", "observation_config": GOAL},
    "action": {"type": "MultiAgentAction", "action_config": {"type": "ContinuousAction"}},
}
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
AHEAD = np.array([0.8, 0.0], np.float32)


def make(id: str = "parking-v0", **options: Any) -> Any:  # noqa: A002
    return gymnasium.make(f"fastrl/{id}", **options)


@pytest.mark.parametrize(
    "config", [{}, {"observation": {"type": "AttributesObservation", "attributes": ["time"]}}]
)
def test_gymnasium_accepts_it(config: dict[str, Any]) -> None:
    check_env(make(config=config).unwrapped, skip_render_check=True)


def test_rewards_can_be_computed_for_any_goal() -> None:
    env = make().unwrapped
    obs, _ = env.reset(seed=0)
    achieved, desired, rewards = [], [], []
    for _ in range(6):
        obs, reward, _, _, info = env.step(AHEAD)
        assert reward == pytest.approx(env.compute_reward(obs["achieved_goal"], obs["desired_goal"], info))
        achieved.append(obs["achieved_goal"])
        desired.append(obs["desired_goal"])
        rewards.append(reward)
    many = env.compute_reward(np.array(achieved), np.array(desired), [{}] * 6)
    np.testing.assert_allclose(many, rewards, rtol=1e-12)
    # sqrt(0.3 * 0.14 + 0.26): 26 m along x and 14 m along y.
    goal = np.array([0.26, 0.14, 0, 0, 0, 1])
    assert env.compute_reward(np.array([0, 0, 9, 9, 0, 1]), goal, {}) == pytest.approx(-np.sqrt(0.302))
    with pytest.raises(
        ValueError, match=r"expected 6 numbers each, as many as reward_weights, got shape \(5,\)"
    ):
        env.compute_reward(goal[:5], goal[:5], {})


def test_ends_can_be_computed_for_any_goal() -> None:
    env = make(config={"success_goal_reward": 0.3}).unwrapped
    env.reset(seed=4)
    achieved, desired, ends = [], [], []
    while not any(ends):
        obs, _, terminated, _, info = env.step(np.array([0.5, 0.0], np.float32))
        assert not info["crashed"]
        assert terminated == env.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info)
        achieved.append(obs["achieved_goal"])
        desired.append(obs["desired_goal"])
        ends.append(terminated)
    assert len(ends) > 1, "the start is too far from the goal"
    assert env.compute_terminated(np.array(achieved), np.array(desired), {}).tolist() == ends


def test_attributes_are_those_of_the_episode() -> None:
    names = ["time", "steps"]
    env = make("merge-v0", config={"observation": {"type": "AttributesObservation", "attributes": names}})
    env.reset(seed=0)
    obs, *_ = env.step(1)
    assert list(obs.values()) == [15, 1] and env.observation_space.contains(obs)


def test_rows_are_the_observations_in_single_precision() -> None:
    vector, twin = (ParkingVectorEnv(3, id="parking-v0", autoreset_mode="disabled") for _ in range(2))
    vector.reset(seed=7)
    rows, rewards, ends = np.empty((3, 18), np.float32), np.empty(3), np.empty((2, 3), np.bool_)
    twin.reset_into(rows, seed=7)
    actions = np.tile(AHEAD, (3, 1))
    for _ in range(4):
        obs, *_ = vector.step(actions)
        twin.step_into(actions, rows, rewards, *ends)
        assert isinstance(vector.single_observation_space, Dict)
        whole = np.concatenate([obs[key] for key in vector.single_observation_space], axis=1)
        assert whole.dtype == np.float64
        np.testing.assert_array_equal(whole.astype(np.float32), rows)


@pytest.mark.parametrize("info", [True, False])
def test_last_observations_are_whole(info: bool) -> None:
    """The last observation before a reset in the same step has the digits of a float64, whoever resets."""
    env = ParkingVectorEnv(16, id="parking-parked-v0", autoreset_mode="same_step", info=info)
    twin = ParkingVectorEnv(16, id="parking-parked-v0", autoreset_mode="disabled")
    env.reset(seed=1)
    twin.reset(seed=1)
    actions = np.tile(AHEAD, (16, 1))
    for _ in range(60):
        obs, rewards, ended, *_, infos = env.step(actions)
        last, own, crashed, *_ = twin.step(actions)
        np.testing.assert_array_equal(rewards, own)
        if ended.any():
            break
    assert ended.any() and not ended.all()
    for key in GOAL_KEYS:
        np.testing.assert_array_equal(infos["final_obs"][key][ended], last[key][crashed])
        np.testing.assert_array_equal(obs[key][~ended], last[key][~ended])
    assert (obs["observation"][ended][:, 2:4] == 0).all(), "new episodes begin at rest"


def test_reaching_the_place_is_success() -> None:
    easy = {"success_goal_reward": 2.0}
    env = make(config=easy)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(AHEAD)
    assert terminated and not truncated and info["is_success"] is True and reward > -2
    env = make()
    _, info = env.reset(seed=0)
    assert info["is_success"] is False and "rewards" not in info


def test_parked_vehicles_leave_places_free() -> None:
    full = make(config={"vehicles_count": 40}).unwrapped
    full.reset(seed=0)
    vehicles = full.vehicles()
    # 28 places, of which one is the agent's and one its goal.
    assert len(vehicles["x"]) == 27 and len(set(vehicles["lane"][1:])) == 26
    assert not vehicles["speed"].any()


def test_agents_share_or_have_their_own() -> None:
    team = make(config=TEAM)
    each = make_multi("fastrl/parking-v0", 1, config={"controlled_vehicles": 2}, autoreset_mode="disabled")
    obs, info = team.reset(seed=2)
    rows, _ = each.reset(seed=2)
    assert info["is_success"] == (False, False) and team.observation_space.contains(obs)
    for i in range(2):
        flat = np.concatenate([obs[i][key] for key in sorted(GOAL_KEYS)])
        np.testing.assert_array_equal(rows[0, i], flat.astype(np.float32))
    for _ in range(30):
        # The second one drives into a wall.
        obs, reward, terminated, _, _ = team.step((np.zeros(2, np.float32), AHEAD))
        rows, rewards, ends, _, alive, _ = each.step(np.array([[[0, 0], AHEAD]], np.float32))
        if terminated:
            break
    first, second = (team.unwrapped.compute_reward(o["achieved_goal"], o["desired_goal"], {}) for o in obs)
    assert reward == pytest.approx(first - 5), "of the first, and the crashes of all"
    np.testing.assert_allclose(rewards[0], [first, second - 5], rtol=1e-6)
    assert ends.tolist() == [[False, True]] and alive.tolist() == [[True, False]]


def test_pictures_show_the_place_until_it_is_reached() -> None:
    def blue(env: Any) -> int:
        return int((env.render() == [100, 200, 255]).all(axis=-1).sum())

    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (300, 600, 3)
    # 26 m to the right and 14 m down, 2 m wide, 7 pixels a metre.
    assert blue(env) == pytest.approx(14 * 14, abs=30)


def test_stable_baselines_relabels_goals() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

    env = DummyVecEnv([make])
    buffer = HerReplayBuffer(500, env.observation_space, env.action_space, env=env, n_sampled_goal=4)
    obs = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(400):
        actions = rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        after, rewards, ended, infos = env.step(actions)
        buffer.add(obs, after, actions, rewards, ended, infos)
        obs = after
    batch = buffer.sample(256)
    next_obs = {key: value.numpy() for key, value in batch.next_observations.items()}
    near = -np.sqrt(np.abs(next_obs["achieved_goal"] - next_obs["desired_goal"]) @ [1, 0.3, 0, 0, 0.02, 0.02])
    found = batch.rewards.numpy()[:, 0]
    crashed = found < near - 4
    np.testing.assert_allclose(found[~crashed], near[~crashed], atol=1e-4)
    assert (found > -0.1).any(), "some goals are those that were reached"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"reward_weights": [1, 2]}, "expected 6 numbers"),
        ({"reward_weights": [1, 2, 3, 4, 5, -1]}, r"\[5\].*at least 0"),
        ({"reward_weight": [1]}, "did you mean reward_weights"),
        ({"controlled_vehicles": 8}, "expected 1 to 7"),
        ({"add_walls": 1}, "True or False"),
        ({"observation": {"type": "KinematicsGoal", "features": ["heading"], "scales": [1]}}, "'heading'"),
        ({"observation": {"type": "KinematicsGoal", "features": ["x"]}}, "a divisor for each feature"),
        ({"observation": {"type": "KinematicsGoal", "features": ["x"], "scales": [0]}}, "other than 0"),
        ({"observation": {"type": "AttributesObservation", "attributes": ["tme"]}}, "did you mean time"),
        ({"observation": {"type": "AttributesObservation"}}, "time, steps"),
        (
            TEAM
            | {
                "observation": {"type": "MultiAgentObservation", "observation_config": {"type": "Kinematics"}}
            },
            "KinematicsGoal with 6 features",
        ),
    ],
)
def test_a_wrong_config_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(config=config)


def test_goals_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="'KinematicsGoal' is not supported"):
        make("merge-v0", config={"observation": GOAL})
