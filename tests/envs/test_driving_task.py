"""Tasks of users on compiled roads: `fastrl.envs.DrivingTask`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving_tasks import CoopMerge, Highway, Merge
from numpy.typing import ArrayLike, NDArray
from saved_states import assert_a_state_continues

import fastrl
from fastrl.envs import DrivingTask, DrivingWorld, HighwayVectorEnv, make_multi
from fastrl.envs.contract import ContractError
from fastrl.envs.traffic.roads import RoadVectorEnv

gymnasium.logger.min_level = gymnasium.logger.ERROR
MODES = ("next_step", "same_step", "disabled")
COOP = "fastrl/coop-highway-v0"
ONE_LINE = r"^[^\n]*$"


def rewards_of(env: Any, steps: int) -> list[NDArray[Any]]:
    """Rewards, ends and observations of random play."""
    env.reset(seed=7)
    env.action_space.seed(0)
    return [array for _ in range(steps) for array in env.step(env.action_space.sample())[:4]]


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize(("id", "task"), [("highway-v0", Highway), ("merge-v0", Merge), ("merge-v1", Merge)])
def test_a_reward_written_again_is_the_built_in_one(id: str, task: Any, mode: str) -> None:  # noqa: A002
    make: Callable[..., Any] = HighwayVectorEnv
    options: dict[str, Any] = {"num_threads": 1, "autoreset_mode": mode}
    if id != "highway-v0":
        make, options = RoadVectorEnv, {**options, "id": id}
    plain, changed = make(16, **options), make(16, **options, task=task())
    for ours, theirs in zip(rewards_of(changed, 120), rewards_of(plain, 120), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize(
    ("id", "task", "options"),
    [
        ("fastrl/merge-v0", Merge, {"config": {"controlled_vehicles": 2}}),
        ("fastrl/coop-merge-v0", CoopMerge, {"max_agents": 5, "num_agents": 4}),
    ],
)
def test_so_it_is_with_several_agents(id: str, task: Any, options: dict[str, Any], mode: str) -> None:  # noqa: A002
    options = {**options, "num_threads": 1, "autoreset_mode": mode}
    plain, changed = make_multi(id, 8, **options), make_multi(id, 8, task=task(), **options)
    rng = np.random.default_rng(0)
    for env in (plain, changed):
        env.reset(seed=3)
    ends = 0
    for _ in range(150):
        actions = rng.integers(5, size=(8, plain.num_agents))
        theirs, ours = plain.step(actions), changed.step(actions)
        for a, b in zip(ours[:5], theirs[:5], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        ends += "episode" in theirs[5]
        assert ("final_obs" in ours[5]) == ("final_obs" in theirs[5])
    assert ends > 5
    for key, values in changed.episodes().items():
        np.testing.assert_allclose(values, plain.episodes()[key], rtol=1e-5)


class Slow(DrivingTask):
    """Ends the episodes of slow agents, and shows gap and clock."""

    terms = 2

    def reward(self, world: DrivingWorld) -> ArrayLike:
        return world.time

    def terminated(self, world: DrivingWorld) -> ArrayLike:
        return world.speed[:, : world.num_agents] < 22

    def observe(self, world: DrivingWorld) -> ArrayLike:
        time = np.broadcast_to(world.time[:, np.newaxis], world.gap.shape)
        return np.stack([np.minimum(world.gap, 100), time], axis=2)


SLOWER = 4


def slow(mode: str, **options: Any) -> HighwayVectorEnv:
    return HighwayVectorEnv(
        3, config={"vehicles_count": 5}, num_threads=1, autoreset_mode=mode, task=Slow(), **options
    )


@pytest.mark.parametrize("info", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_an_episode_ends_by_the_task(mode: str, info: bool) -> None:
    env = slow(mode, info=info)
    first, _ = env.reset(seed=0)
    assert first.shape == (3, 27) and env.single_observation_space.contains(first[0])
    assert (first[:, 26] == 0).all() and (first[:, 25] > 0).all()
    for step in range(1, 5):
        obs, rewards, terminations, truncations, infos = env.step(np.array([SLOWER, 1, 1]))
        np.testing.assert_array_equal(rewards, [step] * 3)
        assert not truncations.any() and not terminations[1:].any()
        if terminations[0]:
            break
    assert terminations[0]
    last = infos["final_obs"] if mode == "same_step" else obs
    assert last[0, 26] == step
    if mode == "same_step":
        assert infos["_final_obs"].tolist() == [True, False, False] and obs[0, 26] == 0
    elif mode == "next_step":
        obs, rewards, terminations, *_ = env.step(np.array([SLOWER, 1, 1]))
        assert rewards.tolist() == [0, step + 1, step + 1] and not terminations.any() and obs[0, 26] == 0
    else:
        with pytest.raises(gymnasium.error.ResetNeeded, match="environment 0"):
            env.step(np.array([1, 1, 1]))
        obs, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
        assert obs[:, 26].tolist() == [0, step, step]
    again = np.empty((3, 27), np.float32)
    env.observe_into(again)
    np.testing.assert_array_equal(again, obs)


def test_time_that_is_up_is_no_end_of_the_task() -> None:
    env = HighwayVectorEnv(2, config={"duration": 3}, num_threads=1, autoreset_mode="same_step", task=Slow)
    env.reset(seed=0)
    for _ in range(3):
        _, rewards, terminations, truncations, infos = env.step(np.array([1, 1]))
    assert truncations.all() and not terminations.any() and rewards.tolist() == [3, 3]
    assert infos["final_obs"][:, 26].tolist() == [3, 3]


def test_each_agent_ends_by_itself() -> None:
    options = {"max_agents": 3, "num_agents": 3, "background": 0, "num_threads": 1}
    env = make_multi(COOP, 2, task=Slow(), **options)
    obs, alive = env.reset(seed=1)
    assert obs.shape[2] == make_multi(COOP, 2, **options).reset(seed=1)[0].shape[2] + 2
    actions = np.ones((2, 3), np.int64)
    actions[0, 1] = SLOWER
    for _ in range(6):
        before = alive
        obs, rewards, terminations, truncations, alive, infos = env.step(actions)
        assert (rewards[~before] == 0).all() and (obs[~before] == 0).all()
        if terminations.any():
            break
    assert terminations[0].tolist() == [False, True, False] and not truncations.any()
    assert alive[0].tolist() == [True, False, True] and obs[0, 1, -1] > 0
    actions[0] = SLOWER
    while "episode" not in infos:
        *_, infos = env.step(actions)
    assert infos["_episode"].tolist() == [True, False] and infos["episode"]["finished"].tolist() == [1, 0]
    assert infos["episode"]["collision_rate"][0] == 0


@pytest.mark.parametrize("action_type", ["meta", "continuous"])
def test_a_vehicle_without_its_agent_keeps_its_speed(action_type: str) -> None:
    speeds: list[float] = []

    class First(DrivingTask):
        def terminated(self, world: DrivingWorld) -> ArrayLike:
            speeds.append(world.speed[0, 0])
            return np.array([[True, False]]) & (world.time > 0.5)[:, np.newaxis]

    env = make_multi(COOP, 1, task=First, max_agents=2, background=0, action_type=action_type, num_threads=1)
    env.reset(seed=0)
    actions: Any = np.array([[1, 1]]) if action_type == "meta" else np.array([[[1.0, 0], [0, 0]]], np.float32)
    alive = np.ones((1, 2), np.bool_)
    while alive[0, 0]:
        *_, alive, _ = env.step(actions)
    for _ in range(3):
        env.step(actions)
    assert np.ptp(speeds[-3:]) < 0.1 and env.observe()[1].tolist() == [False, True]


@pytest.mark.parametrize("mode", MODES)
def test_states_continue_with_a_task(mode: str) -> None:
    assert_a_state_continues(slow(mode), slow(mode), steps=24, before=8)


def test_worlds_agree_with_the_vehicles_of_environments() -> None:
    worlds: list[DrivingWorld] = []

    class Watch(DrivingTask):
        def reward(self, world: DrivingWorld) -> ArrayLike:
            worlds.append(world)
            for name in ("x", "speed", "crashed", "lane", "present", "along", "gap", "arrived"):
                getattr(world, name)
            return np.zeros(4)

    env = RoadVectorEnv(
        4, id="intersection-v0", config={"spawn_probability": 1.0}, autoreset_mode="disabled", task=Watch
    )
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.ones(4, np.int64))
        world = worlds[-1]
        for i in range(4):
            vehicles = env.vehicles(i)
            own = np.flatnonzero(vehicles["agent"] == 0)
            order = [*own, *np.flatnonzero(vehicles["agent"] != 0)]
            assert world.present[i].sum() == len(order)
            for name in ("x", "y", "heading", "speed", "crashed", "lane", "target_lane", "acceleration"):
                np.testing.assert_array_equal(getattr(world, name)[i, : len(order)], vehicles[name][order])
            assert (world.x[i, len(order) :] == 0).all() and (world.lane[i, len(order) :] == -1).all()


def test_a_gap_is_from_bumper_to_bumper() -> None:
    env = HighwayVectorEnv(8, config={"lanes_count": 1, "vehicles_count": 3}, num_threads=1, task=Slow)
    obs, _ = env.reset(seed=0)
    world = DrivingWorld(env.roads, {})
    ahead = np.where(world.x > world.x[:, :1], world.x, np.inf).min(axis=1) - world.x[:, 0] - 5
    np.testing.assert_allclose(world.gap[:, 0], ahead)
    np.testing.assert_allclose(obs[:, 25], np.minimum(ahead, 100), rtol=1e-6)
    assert (world.leader_speed[np.isfinite(world.gap)] > 0).all()


def one(method: str, value: Any, terms: int = 0) -> DrivingTask:
    return type("One", (DrivingTask,), {method: lambda self, world: value, "terms": terms})()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            one("reward", np.zeros(2)),
            r"One.reward should give numbers of shape \(3, 1\) or \(3,\), got shape \(2,\)",
        ),
        (one("reward", None), "One.reward should give numbers of shape .* got dtype object"),
        (one("reward", [0, np.nan, 0]), "finite numbers, got nan in environment 1, agent 0"),
        (one("terminated", np.zeros(3)), "One.terminated should give bool of shape .* got dtype float64"),
        (
            one("observe", np.zeros((3, 1)), 2),
            r"One.observe .* shape \(3, 1, 2\) or \(3, 2\), got shape \(3, 1\)",
        ),
        (one("observe", np.full((3, 2), np.inf), 2), "One.observe should give finite numbers"),
    ],
)
def test_what_a_task_gives_is_checked(task: DrivingTask, message: str) -> None:
    env = HighwayVectorEnv(3, num_threads=1, task=task)

    def play() -> None:
        env.reset(seed=0)
        env.step(np.ones(3, np.int64))

    with pytest.raises(ContractError, match=ONE_LINE) as caught:
        play()
    assert caught.match(message)


def test_arrays_of_another_form_are_refused() -> None:
    env = slow("disabled")
    arrays: list[Any] = [np.empty(3), *np.empty((2, 3), np.bool_)]
    for obs, error in ((np.empty((3, 25), np.float32), ValueError), (np.empty((3, 27)), TypeError)):
        with pytest.raises(error, match=r"^obs: expected a float32 array of shape \(3, 27\), got"):
            env.reset_into(obs, seed=0)
    obs = np.empty((3, 27), np.float32)
    env.reset_into(obs, seed=0)
    with pytest.raises(ValueError, match="final_obs: expected None unless"):
        env.step_into(np.ones(3, np.int64), obs, *arrays, obs.copy())


def test_an_unknown_array_is_named_beside_those_that_there_are() -> None:
    class Typo(DrivingTask):
        def reward(self, world: DrivingWorld) -> ArrayLike:
            return world.velocity  # type: ignore[attr-defined, no-any-return]

    env = HighwayVectorEnv(1, num_threads=1, task=Typo)
    env.reset(seed=0)
    with pytest.raises(
        ContractError, match=r"^world.velocity: these environments have num_agents, x, y, .*truncated"
    ):
        env.step(np.ones(1, np.int64))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            3,
            "task: expected a fastrl.envs.DrivingTask, an import path such as my_module:MyTask, or 'passing', got 3",
        ),
        ("os:path", "task: expected a fastrl.envs.DrivingTask"),
        ("os", "task: expected a fastrl.envs.DrivingTask, an import path"),
        ("no_module:Task", "task: No module named 'no_module'"),
        (one("observe", 0), "One.terms: expected at least 1, the numbers that observe gives, got 0"),
        (one("reward", 0, 2), "One.terms: expected 0 without a method observe, got 2"),
    ],
)
def test_no_task_is_refused(task: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=ONE_LINE) as caught:
        HighwayVectorEnv(1, task=task)
    assert caught.match(message)


def test_images_have_no_room_for_terms() -> None:
    image = {"observation": {"type": "GrayscaleObservation", "observation_shape": (8, 8), "stack_size": 1}}
    image["observation"] |= {"weights": [0.3, 0.6, 0.1], "scaling": 2}
    with pytest.raises(ValueError, match="task: expected terms 0"):
        HighwayVectorEnv(1, config=image, task=Slow)
    assert HighwayVectorEnv(1, config=image, task=Highway).num_envs == 1


def test_a_single_environment_plays_as_a_vector_does() -> None:
    env = gymnasium.make("fastrl/merge-v0", task=Slow()).unwrapped
    vector = RoadVectorEnv(1, id="merge-v0", task=Slow(), autoreset_mode="disabled")
    np.testing.assert_array_equal(env.reset(seed=0)[0], vector.reset(seed=0)[0][0])
    for _ in range(4):
        ours, theirs = env.step(1), vector.step(np.ones(1, np.int64))
        np.testing.assert_array_equal(ours[0], theirs[0][0])
        assert ours[1:3] == (theirs[1][0], theirs[2][0])


@pytest.mark.parametrize("id", ["parking-v0", "road-v0", "racetrack-v0", "lane-keeping-v0", "u-turn-v0"])
def test_roads_of_any_shape_have_worlds(id: str) -> None:  # noqa: A002
    seen: list[DrivingWorld] = []

    class All(DrivingTask):
        def reward(self, world: DrivingWorld) -> ArrayLike:
            for name in DrivingWorld.__annotations__:
                getattr(world, name)
            seen.append(world)
            return world.speed[:, 0]

    env = gymnasium.make_vec(f"fastrl/{id}", 3, "vector_entry_point", task=All())
    assert isinstance(env, RoadVectorEnv)
    env.reset(seed=0)
    _, rewards, *_ = env.step(env.action_space.sample())
    (world,) = seen
    np.testing.assert_array_equal(rewards, world.speed[:, 0])
    assert (
        world.present[:, 0].all()
        and (world.lane_number[:, 0] >= 0).all()
        and world.lanes == env.lane_indices()
    )


def test_teams_of_gymnasium_and_lone_steps_take_no_task() -> None:
    with pytest.raises(ValueError, match=r"task: Gymnasium's interface takes none with several agents"):
        RoadVectorEnv(1, id="intersection-multi-agent-v0", task=Slow)
    env = HighwayVectorEnv(2, task=Slow)
    assert env.compiled_rollout is None
    with pytest.raises(ValueError, match="task: expected none"):
        env.asynchronous(0, same_step=True)


def test_hindsight_knows_no_rewards_of_a_task() -> None:
    env: Any = gymnasium.make("fastrl/parking-v0", task=one("terminated", np.zeros(1, np.bool_))).unwrapped
    obs, _ = env.reset(seed=0)
    for parking in (env, env.vector):
        with pytest.raises(ValueError, match="compute_reward: hindsight knows no rewards of a task"):
            parking.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})


def test_a_task_goes_to_other_processes() -> None:
    from fastrl.envs.spec import as_spec

    spec = pickle.loads(pickle.dumps(as_spec("fastrl/merge-v0", task=Slow())))
    assert spec.build().observation_space.shape == (27,)


@pytest.mark.parametrize(
    ("algo", "id"),
    [
        (fastrl.PPO, "fastrl/merge-v1"),
        (fastrl.IPPO, "fastrl/merge-v1"),
        (fastrl.IPPO, "fastrl/coop-highway-v0"),
    ],
)
def test_collectors_train_alike_with_a_task(algo: Any, id: str) -> None:  # noqa: A002
    settings: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "hidden": (8,)}
    if algo is fastrl.IPPO:
        settings["env__vehicles"] = 2
    returns = []
    for collector in ("native", "sequential"):
        model = algo(
            id,
            env_options={"task": f"{__name__}:Slow"},
            seed=0,
            eval_episodes=0,
            collector=collector,
            **settings,
        )
        model.learn(256, progress=False)
        returns.append(model.metrics[-1]["rollout/ep_rew_mean"])
        assert model.evaluate(2)[0] > 0
    # The sum of the seconds of each step.
    assert returns[0] == returns[1] > 1
