import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import train_small

import fastrl
from fastrl.envs.cage2.env import ACTIONS, EFFECTIVE_ACTIONS, Cage2VectorEnv
from fastrl.envs.cage2.memory import BlueMemory
from fastrl.play.policy import Policy, load_policy
from fastrl.runs.checkpoint import CheckpointError, Checkpoints, load_newest, save_checkpoint
from fastrl.utils.config import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "run"
    train_small(path, "--env.actions=effective", "--ppo.learning-rate=0.1", iterations=4)
    return path


@pytest.fixture(scope="module")
def policy(run: Path) -> Policy:
    return load_policy(run)


def observations(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(2, size=(count, 52)).astype(np.float32)


def test_it_acts_as_the_trained_network_would(run: Path, policy: Policy) -> None:
    _, state = load_newest(run)
    weights = state["policy"]["weights"]
    obs = observations(50)
    hidden = (torch.from_numpy(obs) @ weights["actor.0.weight"].T + weights["actor.0.bias"]).relu()
    logits = hidden @ weights["actor.1.weight"].T + weights["actor.1.bias"]
    actions = policy.act(obs)
    assert actions.dtype == np.int64
    assert actions.shape == (50,)
    assert np.array_equal(actions, np.array(EFFECTIVE_ACTIONS)[logits.argmax(1).numpy()])
    assert np.array_equal(actions, policy.act(obs))


def test_fastrl_offers_it(run: Path, policy: Policy) -> None:
    assert np.array_equal(fastrl.load_policy(str(run)).act(observations(9)), policy.act(observations(9)))


@pytest.mark.slow
def test_it_needs_one_file_and_no_more(run: Path, tmp_path: Path, policy: Policy) -> None:
    shutil.copy(Checkpoints(run / "checkpoints").paths()[-1], tmp_path / "carried")
    code = (
        "import sys, numpy as np, fastrl\n"
        "obs = np.random.default_rng(0).integers(2, size=(20, 52)).astype(np.float32)\n"
        "print(*fastrl.load_policy(sys.argv[1]).act(obs, deterministic=True))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "carried")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert [int(word) for word in done.stdout.split()] == policy.act(observations(20)).tolist()


def test_it_knows_what_it_was_trained_for(policy: Policy) -> None:
    assert (policy.obs_dim, policy.num_actions, policy.steps) == (52, 145, 320)
    assert policy.actions.tolist() == list(EFFECTIVE_ACTIONS)
    assert policy.memory == "none"
    assert policy.needs_action_mask
    assert policy.environment["ruleset"] == "main"


def test_a_policy_that_was_trained_without_masks_needs_none(tmp_path: Path) -> None:
    train_small(tmp_path, "--no-ppo.action-masks")
    assert not load_policy(tmp_path).needs_action_mask


def test_drawn_actions_follow_the_policy_and_the_seed(run: Path, policy: Policy) -> None:
    obs = np.repeat(observations(1), 4000, axis=0)
    drawn = load_policy(run, seed=3).act(obs, deterministic=False)
    assert np.array_equal(drawn, load_policy(run, seed=3).act(obs, deterministic=False))
    assert not np.array_equal(drawn, load_policy(run, seed=4).act(obs, deterministic=False))
    assert set(drawn) <= set(EFFECTIVE_ACTIONS)
    values, counts = np.unique(drawn, return_counts=True)
    assert len(values) > 1
    # The likeliest action is drawn most often, unless there is a near tie.
    likeliest = policy.act(obs[:1])[0]
    assert counts[values == likeliest][0] > 0.8 * counts.max()


def test_masks_are_over_all_actions_of_the_environment(policy: Policy) -> None:
    obs = observations(30)
    free = policy.act(obs)
    mask = np.ones((30, 145), np.bool_)
    mask[np.arange(30), free] = False
    for deterministic in (True, False):
        assert mask[np.arange(30), policy.act(obs, deterministic, mask)].all()
    only = np.zeros((30, 145), np.bool_)
    only[:, ACTIONS.index("Restore User1")] = True
    assert (policy.act(obs, action_mask=only) == ACTIONS.index("Restore User1")).all()


def test_masked_policies_play_by_the_rules(tmp_path: Path) -> None:
    train_small(tmp_path, "--env.actions=none")
    policy = load_policy(tmp_path)
    assert policy.needs_action_mask
    assert policy.actions.tolist() == list(range(145))
    env = Cage2VectorEnv(8, red_agent="mix")
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        mask = env.action_masks()
        actions = policy.act(obs, action_mask=mask)
        assert mask[np.arange(8), actions].all()
        obs, *_ = env.step(actions)


@pytest.mark.parametrize(("memory", "obs_dim"), [("scan", 62), ("full", 240)])
def test_blue_memory_makes_of_plain_observations_what_it_was_trained_on(
    tmp_path: Path, memory: Any, obs_dim: int
) -> None:
    train_small(tmp_path, f"--env.memory={memory}")
    policy = load_policy(tmp_path)
    assert (policy.memory, policy.obs_dim) == (memory, obs_dim)
    plain = Cage2VectorEnv(4, red_agent="meander")
    trained_on = Cage2VectorEnv(4, red_agent="meander", memory=memory)
    blue = BlueMemory(4, memory)
    obs, expected = plain.reset(seed=1)[0], trained_on.reset(seed=1)[0]
    actions = None
    for _ in range(60):
        fed = blue.observe(obs, actions)
        assert np.array_equal(fed, expected)
        actions = policy.act(fed)
        obs, expected = plain.step(actions)[0], trained_on.step(actions)[0]
    with pytest.raises(ValueError, match="BlueMemory"):
        policy.act(obs)


@pytest.mark.parametrize(
    ("obs", "error", "message"),
    [
        (np.zeros(62, np.float32), ValueError, r"shape \[N, 52\] or \[52\], got \[62\]"),
        (np.zeros((4, 13), np.float32), ValueError, r"got \[4, 13\]; .* obs.reshape\(-1, 52\)"),
        (np.full((1, 52), 1e39), ValueError, "row 0 has NaN or infinity"),
        (np.float32(1), TypeError, "numpy array, got float32"),
        (np.zeros((2, 62), np.float32), ValueError, r"got \[2, 62\]"),
        (np.zeros((1, 2, 52), np.float32), ValueError, r"got \[1, 2, 52\]"),
        (np.zeros((2, 52), np.float16), TypeError, "float32 or float64, got float16"),
        (np.zeros((2, 52), np.int64), TypeError, "float32 or float64, got int64"),
        (np.zeros((2, 52), ">f4"), TypeError, "float32 or float64, got >f4"),
        ([[0.0] * 52], TypeError, "numpy array, got list"),
        (torch.zeros(2, 52), TypeError, "numpy array, got Tensor"),
        (np.full((1, 52), np.nan, np.float32), ValueError, "row 0 has NaN or infinity"),
        (
            np.vstack([np.zeros((2, 52)), np.full((1, 52), np.inf)]).astype(np.float32),
            ValueError,
            "row 2 has NaN",
        ),
    ],
)
def test_wrong_observations_are_refused(
    policy: Policy, obs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        policy.act(obs)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.ones((2, 145)), TypeError, "bool array, got float64"),
        ([[True] * 145] * 2, TypeError, "bool array, got list"),
        (np.ones((2, len(EFFECTIVE_ACTIONS)), np.bool_), ValueError, r"shape \[2, 145\]"),
        (np.ones((3, 145), np.bool_), ValueError, r"shape \[2, 145\], got \[3, 145\]"),
        (np.zeros((2, 145), np.bool_), ValueError, "row 0 does not"),
        (np.arange(145)[None].repeat(2, 0) == ACTIONS.index("Monitor"), ValueError, "row 0 does not"),
    ],
)
def test_wrong_masks_are_refused(policy: Policy, mask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        policy.act(observations(2), action_mask=mask)


def test_unusual_arrays_are_fine(policy: Policy) -> None:
    obs = observations(6)
    expected = policy.act(obs)
    frozen = obs.copy()
    frozen.flags.writeable = False
    assert np.array_equal(policy.act(frozen), expected)
    assert np.array_equal(policy.act(np.asfortranarray(obs)), expected)
    assert np.array_equal(policy.act(np.repeat(obs, 2, axis=0)[::2]), expected)
    assert policy.act(obs[:0]).shape == (0,)


def test_one_observation_gives_one_action_and_float64_is_converted(policy: Policy) -> None:
    obs = observations(5)
    expected = policy.act(obs)
    assert np.array_equal(policy.act(obs.astype(np.float64)), expected)
    for row, action in zip(obs, expected, strict=True):
        one = policy.act(row.astype(np.float64))
        assert one == action
        assert isinstance(one, np.int64)
    mask = np.zeros(145, np.bool_)
    mask[ACTIONS.index("Restore User1")] = True
    assert policy.act(obs[0], action_mask=mask) == ACTIONS.index("Restore User1")
    with pytest.raises(ValueError, match=r"shape \[1, 145\], got \[1, 1, 145\]"):
        policy.act(obs[0], action_mask=mask[None])


def with_architecture(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    policy = {**state["policy"], "architecture": {**state["policy"]["architecture"], **changes}}
    return state | {"policy": policy}


@pytest.mark.slow
def test_what_a_forged_checkpoint_claims_is_compared_before_memory_is_taken(
    run: Path, tmp_path: Path
) -> None:
    """Each of these would take terabytes, or minutes for layers without end."""
    path = tmp_path / "c.safetensors"
    _, state = load_newest(run)
    for changes in (
        {"hidden": [10**7, 10**7]},
        {"hidden": [1] * 10**6},
        {"obs_dim": 10**12},
        {"num_actions": 10**12},
        {"obs_dim": 10**12, "normalize_obs": True},
    ):
        save_checkpoint(path, with_architecture(state, **changes))
        with pytest.raises(CheckpointError, match="is claimed, the weights are 8 arrays of"):
            load_policy(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": [-1, *range(1, len(EFFECTIVE_ACTIONS))]},
        {"actions": [*range(len(EFFECTIVE_ACTIONS) - 1), 145]},
        {"actions": [2**70] * len(EFFECTIVE_ACTIONS)},
        {"num_actions": 3},
        {"config": {"env": []}},
        {"config": {"env": torch.zeros(3, 3)}},
        {
            "policy": {
                "architecture": {"obs_dim": float("nan"), "num_actions": 1, "hidden": []},
                "weights": {},
            }
        },
    ],
)
def test_forged_values_are_refused(changes: dict[str, Any], run: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, load_newest(run)[1] | changes)
    with pytest.raises(CheckpointError, match="holds no policy that this fastrl can use") as error:
        load_policy(path)
    assert "\n" not in str(error.value)


def test_a_device_that_is_not_there_is_no_fault_of_the_checkpoint(run: Path) -> None:
    with pytest.raises(ConfigError, match="device 'nothing' cannot be used"):
        load_policy(run, device="nothing")


def test_what_holds_no_policy_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(CheckpointError, match="no such"):
        load_policy(path)
    _, state = load_newest(run)
    nan = {name: tensor * float("nan") for name, tensor in state["policy"]["weights"].items()}
    for changes in (
        {"policy": {}},
        {"policy": {**state["policy"], "weights": nan}},
        {"policy": {**state["policy"], "weights": {}}},
        {"actions": [1, 2, 3]},
        {"config": {}},
    ):
        save_checkpoint(path, state | changes)
        with pytest.raises(CheckpointError, match="holds no policy") as error:
            load_policy(path)
        assert "\n" not in str(error.value)
    save_checkpoint(path, {"state": "of something else"})
    with pytest.raises(CheckpointError, match="holds no policy"):
        load_policy(path)


def test_a_memory_is_carried_from_step_to_step(tmp_path: Path) -> None:
    """By states of the caller's; and an evaluation by the challenge's protocol carries them too."""
    train_small(tmp_path / "run", "--ppo.memory=gru", "--ppo.memory-size=9", iterations=1)
    policy = load_policy(tmp_path / "run")
    assert policy.state_size == 9
    states, obs = np.zeros((6, 9), np.float32), observations(6)
    first = policy.act(obs, states=states)
    assert first.shape == (6,) and states.any(axis=1).all()
    one = np.zeros(9, np.float32)
    for step in (obs, observations(6, seed=1)):
        if step is not obs:
            policy.act(step, states=states)
        policy.act(step[2], states=one)
        np.testing.assert_allclose(one, states[2], atol=1e-6)
    for wrong in (None, states[:2], states.astype(np.float64)):
        with pytest.raises(ValueError, match=r"states should be float32 \[6, 9\], zeros at the start"):
            policy.act(obs, states=wrong)


def test_a_policy_without_memory_takes_no_states(policy: Policy) -> None:
    assert policy.state_size == 0
    with pytest.raises(ValueError, match=r"states should be None, got float32 \[2, 3\]"):
        policy.act(observations(2), states=np.zeros((2, 3), np.float32))


def test_values_of_an_encoder_choose_the_best_action(tmp_path: Path) -> None:
    model = fastrl.DQN("fastrl/roundabout-v1", encoder="rows", hidden=(8,), num_envs=2, seed=0)
    model.save(tmp_path / "model")
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 25)).astype(np.float32)
    values = model.trainer.algorithm.network(torch.from_numpy(obs))
    assert np.array_equal(load_policy(tmp_path / "model").act(obs), values.argmax(1).numpy())
