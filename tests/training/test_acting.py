"""Every way of acting takes the same actions: predict, load_policy, exports, evaluations and films."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from demo_sets import played
from gymnasium.spaces import Box, Discrete
from small_runs import stir
from space_cases import ACTION_SPACES, OBS_SPACES, AnySpaces

import fastrl
from fastrl.cli.main import main
from fastrl.envs.rows import ObsRows
from fastrl.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

COMMON: dict[str, Any] = {"num_envs": 2, "collector": "sequential", "eval_episodes": 0, "hidden": (16,)}

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))

# Episodes of environments of this process: of each step the observation, the masks and the action.
EPISODES: list[list[tuple[Any, Any, Any]]] = []


class Recorded(AnySpaces):
    """Keeps its steps in `EPISODES`; its pictures are black."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode: str | None = "rgb_array"

    def reset(self, **options: Any) -> Any:
        EPISODES.append([])
        self.obs, info = super().reset(**options)
        return self.obs, info

    def step(self, action: Any) -> Any:
        masks = self.allowed() if hasattr(self, "action_masks") else None
        EPISODES[-1].append((self.obs, masks, np.array(action)))
        self.obs, *rest = super().step(action)
        return self.obs, *rest

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


def recorded(**options: Any) -> gymnasium.Env[Any, Any]:
    return Recorded(**options)


def model_of(algo: str, obs: str, actions: str, **settings: Any) -> Any:
    masks = ("masks=true",) if settings.get("action_masks") else ()
    options = (f"obs={obs}", f"actions={actions}", *masks)
    return stir(getattr(fastrl, algo)("test_acting:recorded", env__options=options, **(COMMON | settings)))


NUMBERS = ("box", "matrix of float64", "integers")
MASKED = [actions for actions in ACTION_SPACES if actions not in NUMBERS]
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    **{f"ppo {actions}": ("PPO", "vector", actions, {}) for actions in ACTION_SPACES},
    **{f"ppo {actions} masked": ("PPO", "dict", actions, {"action_masks": True}) for actions in MASKED},
    "ppo squashed": ("PPO", "vector", "matrix of float64", {"squash_actions": True, "normalize_obs": True}),
    "ppo gru": ("PPO", "vector", "matrix of multi-discrete", {"memory": "gru", "action_masks": True}),
    "ppo lstm": ("PPO", "dict", "integers", {"memory": "lstm"}),
    "async ppo rows": (
        "AsyncPPO",
        "matrix of float64",
        "multi-discrete",
        {"encoder": "rows", "normalize_obs": False},
    ),
    "impala": ("IMPALA", "multi-discrete", "multi-binary", {}),
    "dqn": ("DQN", "integers", "discrete from 3", {"dueling": True, "quantiles": 3}),
    "dqn masked": ("DQN", "vector", "discrete from 3", {"action_masks": True}),
    "dqn rows": ("DQN", "matrix of float64", "discrete from 3", {"encoder": "rows"}),
    "sac": ("SAC", "vector", "integers", {}),
    "sac masked": ("SAC", "dict", "discrete from 3", {"action_masks": True}),
    "td3": ("TD3", "vector", "matrix of float64", {}),
    "iql": ("IQL", "vector", "integers", {}),
    "iql discrete": ("IQL", "integers", "discrete from 3", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_all_ways_take_the_same_actions(name: str, tmp_path: Path) -> None:
    algo, obs, actions, settings = CASES[name]
    model, space = model_of(algo, obs, actions, **settings), ACTION_SPACES[actions]
    file = tmp_path / "model.safetensors"
    model.save(file)
    loaded, policy = fastrl.load(file, trust=True), fastrl.load_policy(file)
    exported = None
    if HAS_ONNX:
        fastrl.export(model, tmp_path / "policy.onnx")
        exported = fastrl.runtime.load(tmp_path / "policy.onnx")

    EPISODES.clear()
    assert main(["eval", str(file), "--trust", "--episodes=6", "--json"]) == 0
    assert main(["render", str(file), "--trust", "--episodes=6", f"--out={tmp_path / 'film.gif'}"]) == 0
    episodes = [episode for episode in EPISODES if episode]
    assert len(episodes) == 12
    rows = ObsRows(OBS_SPACES[obs])
    for episode in episodes:
        state, states = None, np.zeros(policy.state_size, np.float32) if policy.state_size else None
        if exported is not None:
            exported.reset()
        for seen, masks, action in episode:
            assert space.contains(action if action.ndim else action[()])
            row = np.zeros(rows.size, np.float32)
            rows.write(seen, row)
            found, state = loaded.predict(seen, state, action_masks=masks)
            ours = policy.act(row, action_mask=masks, states=states)
            for each in (found, ours):
                assert space.contains(each)
                np.testing.assert_array_equal(each, action)
            if exported is not None:
                theirs = exported.act(seen, action_masks=masks)
                assert space.contains(theirs)
                np.testing.assert_allclose(theirs, action, rtol=1e-4, atol=1e-4)
    assert policy.action_space == space
    taken = {action.tobytes() for episode in episodes for _, _, action in episode}
    assert len(taken) > 1
    # Draws are of the space, too; a batch is drawn as one is.
    seen = np.stack([row] * 40)
    own = {} if masks is None else {"action_mask": np.stack([masks] * 40)}
    if policy.state_size:
        own["states"] = np.zeros((40, policy.state_size), np.float32)
    drawn = policy.act(seen, deterministic=False, **own)
    assert all(space.contains(each) for each in drawn)


# The second number has one value.
ONE_VALUED: dict[str, Box] = {
    "float32": Box(np.float32([-1, 3]), np.float32([1, 3])),
    "float64": Box(np.array([[-1.0, 0.1]]), np.array([[1.0, 0.1]]), dtype=np.float64),
    "integers": Box(np.array([-3, 7]), np.array([3, 7]), dtype=np.int32),
    "all": Box(np.float32([0.5, 3]), np.float32([0.5, 3])),
}
LEARNS: dict[str, dict[str, Any]] = {
    "PPO": {"num_steps": 8},
    "AsyncPPO": {"num_steps": 8, "squash_actions": True},
    "IMPALA": {"num_steps": 8, "squash_actions": True},
    "SAC": {"learning_starts": 16, "batch_size": 4},
    "TD3": {"learning_starts": 16, "batch_size": 4},
    "IQL": {"learning_starts": 16, "batch_size": 4},
    "BC": {"batch_size": 4, "epochs": 2},
}


def one_valued(name: str) -> Any:
    return AnySpaces("vector", ONE_VALUED[name])


@pytest.mark.parametrize("name", ONE_VALUED)
@pytest.mark.parametrize("algo", LEARNS)
def test_a_number_whose_bounds_are_equal_is_that_number(algo: str, name: str, tmp_path: Path) -> None:
    space, settings = ONE_VALUED[name], COMMON | LEARNS[algo]
    demos = played(one_valued(name), lambda _: space.sample(), 12)
    if algo == "BC":
        settings = {key: value for key, value in settings.items() if key != "collector"}
    takes_demos = {"demos": demos} if algo in ("SAC", "TD3", "IQL", "BC") else {}
    env: dict[str, Any] = {"env": "test_acting:one_valued", "env__options": (f"name={name}",)}
    model = getattr(fastrl, algo)(**env, **settings, **takes_demos)
    model.learn(None if algo == "BC" else 64)
    model.save(tmp_path / "model")
    policy = fastrl.load_policy(tmp_path / "model")
    constant = space.low == space.high
    for deterministic in (True, False):
        obs = np.float32([[0, 0, 0], [1, -1, 1]])
        actions = np.concatenate([model.predict(obs, None, deterministic)[0], policy.act(obs, deterministic)])
        assert all(space.contains(action) for action in actions)
        np.testing.assert_array_equal(actions[:, constant], np.stack([space.low[constant]] * 4))


# Networks whose best action is compiled code's, and PyTorch's.
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "compiled": ("vector", {}),
    "compiled quantiles": ("vector", {"dueling": True, "quantiles": 3}),
    "batch norm": ("vector", {"batch_norm": True}),
    "encoded": ("matrix of float64", {"encoder": "rows"}),
    "own": ("vector", {"network": "own_networks:Alone"}),
    "image": ("image", {"encoder": "impala"}),
}
COUNT = 20_000
FALLING = {"epsilon": 0.9, "final_epsilon": 0.4, "epsilon_steps": 40, "learning_starts": 10_000}


def check_shares(actions: Any, best: int, allowed: Any, epsilon: float) -> None:
    """Random actions, in a share epsilon, are equally probable if they are allowed."""
    found = np.bincount(actions - 3, minlength=3) / len(actions)
    expected = epsilon * allowed / allowed.sum() + (1 - epsilon) * (np.arange(3) == best - 3)
    assert not found[~allowed].any()
    np.testing.assert_allclose(found, expected, atol=0.015)


@pytest.mark.parametrize("name", BACKENDS)
def test_values_of_actions_draw_with_the_last_epsilon(name: str, tmp_path: Path) -> None:
    obs_name, network = BACKENDS[name]
    model = model_of("DQN", obs_name, "discrete from 3", **network, **FALLING)
    model.save(tmp_path / "first")
    assert load_checkpoint(tmp_path / "first")["policy"]["epsilon"] == 0.9
    stir(model.learn(64))
    model.save(tmp_path / "model")
    ways: dict[str, Any] = {
        "model": lambda obs, masks: model.predict(obs, None, False, action_masks=masks)[0],
        "file": lambda obs, masks: loaded.predict(obs, None, False, action_masks=masks)[0],
    }
    loaded = fastrl.load(tmp_path / "model", trust=True)
    if name not in ("own", "image"):
        policy = fastrl.load_policy(tmp_path / "model")
        ways["policy"] = lambda obs, masks: policy.act(obs.reshape(len(obs), -1), False, masks)
    if HAS_ONNX:
        fastrl.export(model, tmp_path / "policy.onnx")
        exported = fastrl.runtime.load(tmp_path / "policy.onnx")
        ways["export"] = lambda obs, masks: exported.act(obs, False, action_masks=masks)
    space = OBS_SPACES[obs_name]
    space.seed(0)
    obs = np.stack([space.sample()] * COUNT)
    for allowed in (np.array([True, True, True]), np.array([True, False, True])):
        masks = None if allowed.all() else np.stack([allowed] * COUNT)
        best = int(model.predict(obs[0], action_masks=None if masks is None else allowed)[0])
        for act in ways.values():
            check_shares(act(obs, masks), best, allowed, 0.4)


def drawn_share(policy: Any) -> float:
    """The share of draws that are not the best action, of three."""
    obs = np.zeros((COUNT, 3), np.float32)
    return float((policy.act(obs, False) != policy.act(obs)).mean())


def test_files_of_older_versions_draw_by_their_settings(tmp_path: Path) -> None:
    model = model_of("DQN", "vector", "discrete from 3", **FALLING).learn(20)
    model.save(tmp_path / "model")
    state = load_checkpoint(tmp_path / "model")
    del state["policy"]["epsilon"]
    # Of three actions two are not the best.
    expected = (0.9 - 0.5 * state["steps"] / 40) * 2 / 3
    del state["action_space"]
    save_checkpoint(tmp_path / "old", state)
    with pytest.warns(UserWarning, match="is of an older version, which did not save the action space"):
        policy = fastrl.load_policy(tmp_path / "old")
    # It cannot know that they start at 3.
    assert policy.action_space == Discrete(3)
    assert drawn_share(policy) == pytest.approx(expected, abs=0.015)
    if HAS_ONNX:
        onnx = pytest.importorskip("onnx")
        fastrl.export(model, tmp_path / "policy.onnx")
        file = onnx.load(tmp_path / "policy.onnx")
        facts = json.loads(file.metadata_props[0].value)
        del facts["noise"]["epsilon"]
        file.metadata_props[0].value = json.dumps(facts)
        onnx.save(file, tmp_path / "old.onnx")
        assert drawn_share(fastrl.runtime.load(tmp_path / "old.onnx")) == pytest.approx(expected, abs=0.015)


def test_a_noisy_network_draws_its_best_action(tmp_path: Path) -> None:
    model_of("DQN", "vector", "discrete from 3", noisy=True).save(tmp_path / "model")
    assert drawn_share(fastrl.load_policy(tmp_path / "model")) == 0


def test_a_forged_epsilon_is_refused(tmp_path: Path) -> None:
    model_of("DQN", "vector", "discrete").save(tmp_path / "model")
    state = load_checkpoint(tmp_path / "model")
    for wrong in (1.5, -0.5, float("nan"), "much", [0.5]):
        state["policy"]["epsilon"] = wrong
        save_checkpoint(tmp_path / "model", state)
        with pytest.raises(CheckpointError, match="holds no policy that this fastrl can use"):
            fastrl.load_policy(tmp_path / "model")
