"""Every way of acting takes the same actions: predict, load_policy, exports, evaluations and films."""

import importlib.util
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import played
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Text
from gymnasium.vector.utils import batch_space
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_runs import stir
from space_cases import OBS_SPACES, AnySpaces

import fastrl
from fastrl.cli.main import main
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.exports.compare import Comparison
from fastrl.exports.graph import ExportError
from fastrl.networks import encoded, off_policy, q_network
from fastrl.networks.acting_network import saved_network
from fastrl.play.policy import Policy
from fastrl.runs.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

COMMON: dict[str, Any] = {"num_envs": 2, "collector": "sequential", "eval_episodes": 0, "hidden": (16,)}


def with_common(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings on top of `COMMON`; a network of one's own has no hidden layers of ours."""
    found = COMMON | settings
    return {key: value for key, value in found.items() if key != "hidden" or "network" not in found}


HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))

# Gives actions and the next state for a batch of observations, a state, and masks; deterministic or not.
Way = Callable[[Any, Any, bool, Any], tuple[Any, Any]]

INPUTS: dict[str, Space[Any]] = {
    **OBS_SPACES,
    "text": gymnasium.spaces.Dict(say=Text(12), number=Box(-1, 1, (2,))),
    "picture": Box(0, 255, (12, 12, 2), np.uint8),
}
SIZES = st.integers(1, 4)
SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)


@st.composite
def choices(draw: Any) -> Space[Any]:
    """Spaces of choices of one number or several, from any number on."""
    kind = draw(st.sampled_from([MultiDiscrete, MultiBinary]))
    shape = draw(SHAPES)
    if kind is MultiBinary:
        return MultiBinary(shape[0] if len(shape) == 1 else shape)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return MultiDiscrete(1 + (numbers + draw(SIZES)) % 4, start=draw(st.integers(-3, 3)) - numbers)


DISCRETE = st.builds(lambda n, start: Discrete(n + 1, start=start), SIZES, st.integers(-3, 3))


@st.composite
def boxes(draw: Any, *, bounded: bool = True) -> Space[Any]:
    """Boxes of any shape and dtype, also with numbers that have one value, and without bounds."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from([np.float32, np.float64, np.int32]))
    numbers = np.arange(np.prod(shape)).reshape(shape)
    low = (-numbers - draw(st.integers(0, 2))).astype(dtype)
    high = (low + (numbers + draw(st.integers(0, 2))) * 1.5).astype(dtype)
    if not bounded and dtype != np.int32 and draw(st.booleans()):
        high[...] = np.inf
    return Box(low, high, shape, dtype)


BOOLS = st.booleans()
ENCODERS = st.sampled_from(["auto", "rows"])
BOUNDED = boxes()
MEMORIES = st.sampled_from(["none", "gru", "lstm"])
OF_POLICIES = {
    "normalize_obs": BOOLS,
    "memory": MEMORIES,
    "activation": st.sampled_from(["relu", "tanh"]),
    "encoder": ENCODERS,
    "network": st.sampled_from([None, None, "own_networks:Net"]),
}
OF_VALUES = {
    "dueling": BOOLS,
    "quantiles": st.sampled_from([0, 3]),
    "noisy": BOOLS,
    "batch_norm": BOOLS,
    "epsilon": st.sampled_from([0.0, 0.4]),
    "encoder": ENCODERS,
    "memory": MEMORIES,
}
FAMILIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("PPO", st.one_of(DISCRETE, choices()), OF_POLICIES),
    "ppo of boxes": ("PPO", boxes(bounded=False), OF_POLICIES),
    "ppo squashed": ("PPO", BOUNDED, {**OF_POLICIES, "squash_actions": st.just(True)}),
    "impala": ("IMPALA", st.one_of(DISCRETE, choices(), boxes(bounded=False)), OF_POLICIES),
    "dqn": ("DQN", DISCRETE, OF_VALUES),
    "pqn": ("PQN", DISCRETE, {**OF_POLICIES, "epsilon": st.sampled_from([0.0, 0.4]), "layer_norm": BOOLS}),
    "sac": ("SAC", st.one_of(DISCRETE, BOUNDED), {"encoder": ENCODERS, "memory": MEMORIES}),
    "td3": ("TD3", BOUNDED, {"memory": MEMORIES}),
    "td3 simba": ("TD3", BOUNDED, {"encoder": st.sampled_from(["simba", "simba_v2"])}),
    "iql": ("IQL", st.one_of(DISCRETE, BOUNDED), {}),
}


def fitting(obs: str, space: Space[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that go together and with the spaces."""
    is_image = ObsRows(INPUTS[obs]).dtype == np.uint8
    kept = {name: value for name, value in options.items() if value is not None}
    if kept.get("encoder") == "rows" and obs != "matrix of float64":
        del kept["encoder"]
    if is_image and str(kept.get("encoder")).startswith("simba"):
        del kept["encoder"]
    flat = ActionRows(space).flat_space
    if "network" in kept and (obs != "vector" or isinstance(flat, MultiDiscrete)):
        del kept["network"]
    if "network" in kept or kept.get("encoder") == "rows":
        kept.pop("memory", None)
    if kept.get("memory", "none") != "none":
        kept.pop("batch_norm", None)
    if is_image or kept.get("encoder") == "rows":
        kept |= {name: False for name in ("normalize_obs", "batch_norm") if name in kept}
    if "network" in kept:
        for name in ("activation", "encoder"):
            kept.pop(name, None)
    return kept


def sampled(space: Space[Any], count: int, seed: int) -> Any:
    """Observations, [count, ...]."""
    batched: Any = batch_space(space, count)
    batched.seed(seed)
    return batched.sample()


def repeated(obs: Any, count: int) -> Any:
    """The first observation of a batch, many times."""
    if isinstance(obs, dict):
        return {key: repeated(child, count) for key, child in obs.items()}
    if isinstance(obs, tuple) and not isinstance(obs[0], str):
        return tuple(repeated(child, count) for child in obs)
    return (obs[0],) * count if isinstance(obs, tuple) else np.repeat(obs[:1], count, 0)


def by_torch(model: Any) -> Policy:
    """The policy without compiled actors, where PyTorch has one."""
    with pytest.MonkeyPatch.context() as patch:
        for networks in (encoded, off_policy, q_network):
            patch.setattr(networks, "MAX_OBS_DIM", 0)
        return Policy(
            model.policy_checkpoint, spaces=(model.policy.obs_space, model.policy.action_space), seed=1
        )


def by_rows(policy: Policy, obs_space: Space[Any]) -> Way:
    """`Policy.act`."""
    obs_rows = ObsRows(obs_space)

    def act(obs: Any, state: Any, is_best: bool, masks: Any) -> tuple[Any, Any]:
        count = len(masks)
        rows = np.zeros((count, obs_rows.size), obs_rows.dtype)
        obs_rows.write_batch(obs, rows)
        if state is None and policy.state_size:
            state = np.zeros((count, policy.state_size), np.float32)
        own = None if policy.continuous else masks
        return policy.act(rows, is_best, own, state), state

    return act


def ways_of(model: Any, folder: Path, network: Any) -> tuple[dict[str, Way], Any]:
    """All ways to act with a model's policy, and its ONNX export if there is one."""
    is_box = model.policy.continuous

    def way(policy: Any) -> Way:
        return lambda obs, state, is_best, masks: policy.predict(
            obs, state, is_best, action_masks=None if is_box else masks
        )

    file, exported = folder / "model", None
    model.save(file)
    ways = {"loaded": way(fastrl.load(file, network=network)), "torch": way(by_torch(model))}
    if network is None:
        ways["rows"] = by_rows(fastrl.load_policy(file, seed=2), model.policy.obs_space)
    if HAS_ONNX:
        fastrl.export(model, folder / "policy.onnx")
        exported = fastrl.runtime.load(folder / "policy.onnx", seed=3)
        ways["onnx"] = way(exported)
    return ways, exported


def masks_for(space: Space[Any], count: int, seed: int) -> Any:
    """At least one allowed choice for each number, [count, size]."""
    flat, random = ActionRows(space).flat_space, np.random.default_rng(seed)
    if isinstance(flat, Box):
        return np.ones((count, 1), np.bool_)
    nvec = [flat.n] if isinstance(flat, Discrete) else flat.nvec  # type: ignore[attr-defined]
    parts = [np.eye(n, dtype=np.bool_)[random.integers(n, size=count)] for n in nvec]
    return np.concatenate([part | (random.random(part.shape) < 0.5) for part in parts], 1)


def check_same(ours: Any, theirs: Any, outputs: Any, where: str) -> None:
    """Actions are the same, but for rounding and for two that are as good as equally good."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, where
    if ours.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=where)
        return
    found = Comparison()
    found.add(ours, theirs, outputs)
    assert not found.different, where


def distance(ours: Any, theirs: Any) -> float:
    """The largest distance between the distributions of a number in two samples (Kolmogorov and Smirnov's)."""
    found = 0.0
    for number in zip(
        *(np.asarray(each, np.float64).reshape(DRAWS, -1).T for each in (ours, theirs)), strict=True
    ):
        one, other = (np.sort(np.round(each, 4)) for each in number)
        points = np.union1d(one, other)
        ranks = (np.searchsorted(each, points, side="right") for each in (one, other))
        found = max(found, float(np.abs(np.subtract(*ranks)).max()) / DRAWS)
    return found


DRAWS = 12_000
# That two samples of one distribution are further apart has a probability of 2 exp(-DRAWS * 0.05**2) = 2e-13.
APART = 0.05


def check_all_ways(algo: str, obs: str, space: Space[Any], options: dict[str, Any], seed: int) -> None:
    obs_space, network = INPUTS[obs], options.get("network")
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        # The environment has no name.
        warnings.simplefilter("ignore", UserWarning)
        made = getattr(fastrl, algo)(lambda: AnySpaces(obs_space, space), **with_common(options))
        model = stir(made)
        ways, exported = ways_of(model, Path(folder), network)
        state, states = None, dict.fromkeys(ways)
        for step in range(3):
            seen, masks = sampled(obs_space, 40, seed + step), masks_for(space, 40, seed + step)
            own = None if model.policy.continuous else masks
            outputs = (
                np.zeros((40, 1))
                if exported is None
                else exported.outputs(seen, states["onnx"], action_masks=own)
            )
            best, state = model.predict(seen, state, action_masks=own)
            assert all(space.contains(action) for action in best)
            for name, way in ways.items():
                found, states[name] = way(seen, states[name], True, masks)
                check_same(found, best, outputs, f"{name}, step {step}")
        many, masks = repeated(seen, DRAWS), np.repeat(masks[:1], DRAWS, 0)
        own = None if model.policy.continuous else masks
        drawn = model.predict(many, None, False, action_masks=own)[0]
        assert all(space.contains(action) for action in drawn[:50])
        for name, way in ways.items():
            found = way(many, None, False, masks)[0]
            assert all(space.contains(action) for action in found[:50]), name
            assert distance(found, drawn) < APART, name
        if exported is not None:
            check_arrays(model, seen, exported, Path(folder))


def check_arrays(model: Any, obs: Any, exported: Any, folder: Path) -> None:
    """The code of a .npz file, of the policies that can be one."""
    try:
        code = fastrl.export(model, folder / "policy.npz").code
    except ExportError as error:
        if not str(error).startswith("plain numpy is for multi-layer perceptrons"):
            raise
        return
    names: dict[str, Any] = {}
    exec(code, names)
    check_same(names["act"](obs), model.predict(obs)[0], exported.outputs(obs), "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_all_ways_take_the_same_actions(name: str) -> None:
    """Any spaces and network: model, file, rows, PyTorch, ONNX and numpy, of the best actions and of draws."""
    algo, space, options = FAMILIES[name]

    # An example is read as it is, and takes seconds.
    @settings(max_examples=10, phases=[Phase.generate])
    @given(st.sampled_from(sorted(INPUTS)), space, st.fixed_dictionaries(options), st.integers(0, 1000))
    def check(obs: str, space: Space[Any], options: dict[str, Any], seed: int) -> None:
        check_all_ways(algo, obs, space, fitting(obs, space, options), seed)

    check()


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
    return stir(getattr(fastrl, algo)("test_acting:recorded", env__options=options, **with_common(settings)))


PLAYED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "ppo masked": ("PPO", "dict", "multi-discrete", {"action_masks": True}),
    "ppo squashed": ("PPO", "vector", "matrix of float64", {"squash_actions": True, "normalize_obs": True}),
    "ppo gru": ("PPO", "vector", "matrix of multi-discrete", {"memory": "gru", "action_masks": True}),
    "dqn masked": ("DQN", "image", "discrete from 3", {"encoder": "impala", "action_masks": True}),
    "sac": ("SAC", "vector", "integers", {}),
    "sac lstm": ("SAC", "vector", "box", {"memory": "lstm"}),
}


@pytest.mark.parametrize("name", PLAYED)
def test_evaluations_and_films_take_the_actions_of_predict(name: str, tmp_path: Path) -> None:
    algo, obs, actions, settings = PLAYED[name]
    model, file = model_of(algo, obs, actions, **settings), tmp_path / "model.safetensors"
    model.save(file)
    EPISODES.clear()
    assert main(["eval", str(file), "--trust", "--episodes=6", "--json"]) == 0
    assert main(["render", str(file), "--trust", "--episodes=6", f"--out={tmp_path / 'film.gif'}"]) == 0
    episodes = [episode for episode in EPISODES if episode]
    assert len(episodes) == 12
    for episode in episodes:
        state = None
        for seen, masks, action in episode:
            found, state = model.predict(seen, state, action_masks=masks)
            np.testing.assert_array_equal(found, action)
    assert len({action.tobytes() for episode in episodes for _, _, action in episode}) > 1


@pytest.mark.parametrize("stack", [2, 10])
@pytest.mark.parametrize("algo", ["DQN", "PPO"])
def test_files_act_on_frames_alone(algo: str, stack: int, tmp_path: Path) -> None:
    """Frames are stacked last where they are played, and first where a replay stacks them; of 10 x 10 pixels and 10
    frames both have one shape."""
    model = stir(getattr(fastrl, algo)("fastrl/Catch-v0", num_envs=2, eval_episodes=0, env__stack=stack))
    model.save(tmp_path / "model")
    env, policy = model.env_spec.make(), fastrl.load_policy(tmp_path / "model")
    assert env.observation_space == policy.obs_space == Box(0, 255, (10, 10, stack), np.uint8)
    obs = sampled(env.observation_space, 40, 0)
    obs[0] = env.reset(seed=0)[0]
    found = policy.predict(obs)[0]
    np.testing.assert_array_equal(found, model.predict(obs)[0])
    np.testing.assert_array_equal(found, policy.act(obs.reshape(40, -1)))
    assert policy.act(obs[3].ravel()) == found[3]
    if algo == "DQN":
        state = load_checkpoint(tmp_path / "model")["policy"]
        frames = torch.from_numpy(np.ascontiguousarray(np.moveaxis(obs, -1, 1)))
        with torch.no_grad():
            values = saved_network(state)(frames)
        np.testing.assert_array_equal(found, values.argmax(1))
    with pytest.raises(TypeError, match="obs should be uint8, got float32"):
        policy.act(np.zeros((1, 100 * stack), np.float32))


def test_a_file_that_names_code_of_the_users_does_not_load_alone(tmp_path: Path) -> None:
    model_of("PPO", "vector", "discrete from 3", network="own_networks:Net").save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="policies of ppo cannot be loaded; fastrl eval scores the run"):
        fastrl.load_policy(tmp_path / "model")


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
    loaded = fastrl.load(tmp_path / "model", network=network.get("network"))
    space = OBS_SPACES[obs_name]
    space.seed(0)
    obs = np.stack([space.sample()] * COUNT)
    for allowed in (np.array([True, True, True]), np.array([True, False, True])):
        masks = None if allowed.all() else np.stack([allowed] * COUNT)
        best = int(model.predict(obs[0], action_masks=None if masks is None else allowed)[0])
        check_shares(loaded.predict(obs, None, False, action_masks=masks)[0], best, allowed, 0.4)


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
