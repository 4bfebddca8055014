"""Exports act as the policies that they came from, and need numpy and onnxruntime alone."""

import json
import pickle
import random
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import cartpole_expert, played
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from mutations import damaged, mutated, refuses
from parallel_toys import Leavers
from small_runs import stir, train_small

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import fastrl
from fastrl.cli.main import main
from fastrl.envs.record_episodes import run_episodes
from fastrl.exports.compare import in_team_episodes, on_samples
from fastrl.exports.graph import ExportError
from fastrl.networks.acting_network import saved_network
from fastrl.runtime import RuntimePolicyError

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "collector": "sequential", "eval_episodes": 0}
OFF: dict[str, Any] = {"num_envs": 2, "collector": "sequential", "eval_episodes": 0}


class Steered(gymnasium.Env[Any, Any]):
    """Five steps with spaces that are given."""

    def __init__(self, obs: str = "box", actions: str = "discrete") -> None:
        self.observation_space = OBS[obs]
        self.action_space = ACTIONS[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {}


OBS: dict[str, Any] = {
    "box": Box(-2, 2, (3,), np.float32),
    "image": Box(0, 255, (12, 12, 3), np.uint8),
    "dict": gymnasium.spaces.Dict(
        {
            "picture": Box(0, 255, (12, 12, 3), np.uint8),
            "card": Discrete(3, start=4),
            "dials": MultiDiscrete([2, 3]),
            "noise": Box(-1, 1, (2, 2), np.float64),
        }
    ),
    "text": gymnasium.spaces.Dict({"say": gymnasium.spaces.Text(12), "x": Box(-1, 1, (2,), np.float32)}),
}
ACTIONS: dict[str, Any] = {
    "discrete": Discrete(4, start=2),
    "dials": MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]),
    "box": Box(np.array([-1, -3], np.float32), np.array([2, 1], np.float32)),
    "matrix": Box(-2, 5, (2, 2), np.float64),
    # 0.1 as float32 lies outside.
    "tenth": Box(np.array([-1, 0.1]), np.array([1, 0.1]), dtype=np.float64),
}


def steered(obs: str = "box", actions: str = "discrete") -> Any:
    return Steered(obs, actions)


def model_of(algo: str, obs: str, actions: str, **settings: Any) -> Any:
    common = SMALL if algo in ("PPO", "AsyncPPO", "IMPALA", "PQN") else OFF
    model = getattr(fastrl, algo)(
        steered, env__options=(f"obs={obs}", f"actions={actions}"), **common, **settings
    )
    return stir(model)


CASES: dict[str, tuple[Any, ...]] = {
    "ppo": ("PPO", "box", "discrete", {"normalize_obs": True}),
    "ppo text": ("PPO", "text", "discrete", {"shared_trunk": True}),
    "ppo mixed": ("PPO", "dict", "dials", {}),
    "ppo gru": ("PPO", "box", "discrete", {"memory": "gru", "normalize_obs": True}),
    "dqn mixed": ("DQN", "dict", "discrete", {}),
    "pqn mixed": ("PQN", "dict", "discrete", {}),
    "pqn gru": ("PQN", "box", "discrete", {"memory": "gru", "normalize_obs": True}),
    "sac": ("SAC", "box", "matrix", {}),
    "sac simba": ("SAC", "box", "matrix", {"encoder": "simba_v2", "hidden": (8, 8)}),
    "sac gru": ("SAC", "box", "matrix", {"memory": "gru"}),
    "crossq": ("CrossQ", "box", "matrix", {"policy_every": 1}),
}


def test_a_check_plays_episodes(tmp_path: Path) -> None:
    for name in ("ppo mixed", "ppo gru", "sac", "sac gru", "sac simba", "crossq"):
        algo, obs, actions, settings = CASES[name]
        model = model_of(algo, obs, actions, **settings)
        found = fastrl.export(model, tmp_path / "policy.onnx", check=True, episodes=3)
        assert (found.actions, found.different) == (15, 0)


def test_sampled_actions_have_the_policys_probabilities(tmp_path: Path) -> None:
    model = model_of("PPO", "box", "discrete")
    fastrl.export(model, tmp_path / "policy.onnx")
    policy = fastrl.runtime.load(tmp_path / "policy.onnx", seed=5)
    obs = np.repeat(np.array([[0.5, -1, 2]], np.float32), 20_000, 0)
    mask = np.repeat(np.array([[True, False, True, True]]), len(obs), 0)
    logits = policy.outputs(obs[:1], action_masks=mask[:1])[0].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    drawn = policy.act(obs, deterministic=False, action_masks=mask)
    found = np.bincount(drawn - 2, minlength=4) / len(obs)
    assert expected[1] == 0 and found[1] == 0
    assert np.abs(found - expected).max() < 0.015


def test_greedy_actions_are_equal_on_100_000_observations(tmp_path: Path) -> None:
    model = model_of("PPO", "box", "discrete", normalize_obs=True)
    fastrl.export(model, tmp_path / "policy.onnx")
    policy = fastrl.runtime.load(tmp_path / "policy.onnx")
    found = on_samples(model, policy, OBS["box"], 100_000, batch=10_000)
    assert (found.actions, found.different) == (100_000, 0)
    rows = np.random.default_rng(0).uniform(-2, 2, (10_000, 3)).astype(np.float32)
    with torch.no_grad():
        expected = saved_network(model.trainer.policy_checkpoint()["policy"]).outputs(torch.from_numpy(rows))
    assert np.abs(policy.outputs(rows) - expected.numpy()).max() < 1e-5
    # A graph of other weights is seen.
    other = model_of("PPO", "box", "discrete", normalize_obs=False)
    assert on_samples(other, policy, OBS["box"], 1000).different > 0


@pytest.mark.parametrize("algo", ["IPPO", "MAPPO", "REINFORCE"])
def test_agents_with_one_policy(algo: str, tmp_path: Path) -> None:
    model = getattr(fastrl, algo)("fastrl/coop-merge-v0", num_envs=2, eval_episodes=0)
    found = fastrl.export(model, tmp_path / "team.onnx", check=True, episodes=2)
    assert found.actions > 10 and found.different == 0 and found.episodes == 2
    policy = fastrl.runtime.load(tmp_path / "team.onnx")
    agents, size = policy.metadata["obs"][0]["shape"]
    assert policy.act(np.zeros((agents, size), np.float32)).shape == (agents,)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["Present", "Transformer", "DotProduct"])
def test_attention_of_ones_own(network: str, tmp_path: Path) -> None:
    model = fastrl.PPO("CartPole-v1", network=f"own_networks:{network}", seed=2, **SMALL).learn(32)
    fastrl.export(model, tmp_path / "a.onnx")
    policy = fastrl.runtime.load(tmp_path / "a.onnx")
    obs = np.random.default_rng(0).normal(0, 3, (9, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs), model.predict(obs)[0])
    assert torch.backends.mha.get_fastpath_enabled()


def test_operators_that_onnx_lacks_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = fastrl.PPO("CartPole-v1", network="own_networks:Decomposed", seed=2, **SMALL)
    with pytest.raises(ExportError, match=r"'aten::linalg_qr' .*; write that part of forward\(\)") as caught:
        fastrl.export(model, tmp_path / "a.onnx")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
    assert capfd.readouterr().out == ""


def test_a_clone(tmp_path: Path) -> None:
    demos: Any = played(gymnasium.make("CartPole-v1"), cartpole_expert, 5, steps=60)
    model = fastrl.BC("CartPole-v1", demos=demos, epochs=2, eval_episodes=0)
    model.learn()
    found = fastrl.export(model, tmp_path / "clone.onnx", check=True, episodes=2)
    assert found.actions > 2 and found.different == 0


def test_agents_with_names(tmp_path: Path) -> None:
    model = fastrl.IPPO(Leavers, num_envs=2, eval_episodes=0)
    found = fastrl.export(model, tmp_path / "team.onnx", check=True, episodes=4)
    # "a" acts 3 times in an episode, "b" 6 times, "late" 4 times.
    assert (found.actions, found.different, found.episodes) == (4 * 13, 0, 4)
    policy = fastrl.runtime.load(tmp_path / "team.onnx")
    env = Leavers()
    obs, _ = env.reset(seed=0)
    assert policy.act(obs) == model.predict(obs)[0]
    some = dict(list(obs.items())[:1])
    assert policy.act(some) == model.predict(some)[0]


def test_episodes_of_a_team_are_those_of_its_policy_and_show_another_one(tmp_path: Path) -> None:
    for env, options in ((Leavers, {}), ("fastrl/coop-merge-v0", {"num_envs": 2})):
        models = [fastrl.IPPO(env, eval_episodes=0, seed=seed, **options) for seed in range(2)]
        fastrl.export(models[0], tmp_path / "team.onnx")
        policy, (task, settings) = fastrl.runtime.load(tmp_path / "team.onnx"), _play(models[0])
        own = in_team_episodes(models[0], task, settings, policy, 3)
        other = in_team_episodes(models[1], *_play(models[1]), policy, 3)
        assert own.different == 0 < other.different < other.actions
        assert own.mean_return != other.mean_return
    # The mean return is that of an evaluation in the same episodes.
    seeds = [int(number) >> 1 for number in np.random.SeedSequence([0, 1]).generate_state(3)]
    returns = []
    for seed in seeds:
        env = task.team_env(settings)
        act = models[0].policy.act_in(env, action_masks=False)
        returns.append(run_episodes(env, act, [seed])["return_mean"][0])
    assert own.mean_return == pytest.approx(np.mean(returns))


def _play(model: Any) -> tuple[Any, Any]:
    return model.task, model.stage_settings


def test_frames_and_masks_are_played_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fastrl.DQN("fastrl/Catch-v0", num_envs=2, eval_episodes=0, capacity=2000).save(tmp_path / "catch")
    train_small(tmp_path / "cage", "--ppo.action-masks", iterations=1)
    capsys.readouterr()
    for name in ("catch", "cage"):
        out = tmp_path / f"{name}.onnx"
        assert main(["export", str(tmp_path / name), "--out", str(out), "--check", "--episodes=2"]) == 0
        assert "in 2 episodes" in capsys.readouterr().out
        policy = fastrl.runtime.load(out)
        assert [each["name"] for each in policy.metadata["states"]] == (["frames"] if name == "catch" else [])


ALONE = """
import sys, json
class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "gymnasium", "onnx", "rich", "psutil", "pydantic", "safetensors"}:
            raise ModuleNotFoundError(name)
        if name.startswith("fastrl._native"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Only())
import fastrl.runtime
import numpy as np
policy = fastrl.runtime.load(sys.argv[1])
actions = policy.act(np.array(json.loads(sys.argv[2]), np.float32)).tolist()
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "fastrl")
print(json.dumps([actions, loaded]))
"""


def test_numpy_and_onnxruntime_are_enough(tmp_path: Path) -> None:
    model = model_of("PPO", "box", "discrete", normalize_obs=True)
    fastrl.export(model, tmp_path / "policy.onnx")
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "policy.onnx"), json.dumps(obs.tolist())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    actions, loaded = json.loads(done.stdout)
    assert actions == model.predict(obs)[0].tolist()
    assert loaded == ["fastrl", "fastrl.runtime"]


FRESH = """
import importlib.util, pickle, sys
for name in ("torch", "gymnasium", "onnx", "pydantic", "psutil", "rich", "safetensors"):
    assert importlib.util.find_spec(name) is None, f"{name} is here"
if sys.argv[1] == "package":
    import fastrl.runtime as runtime
else:
    import runtime
with open("given.pickle", "rb") as file:
    given = pickle.load(file)
found = {}
for path, obs in given.items():
    policy = runtime.load(path)
    found[path] = [policy.act(each) for each in obs]
    policy.reset()
    found[path].append(policy.act(obs[0]))
print(runtime.__file__)
with open("found.pickle", "wb") as file:
    pickle.dump(found, file)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with numpy and onnxruntime alone."""
    where = tmp_path_factory.mktemp("bare")
    venv.create(where, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(where / "bin" / "python"), "install", "--quiet"]
    patience = ["--retries=1", "--timeout=20"]
    done = subprocess.run([*pip, *patience, "numpy", "onnxruntime"], capture_output=True, text=True)
    unreachable = ("No matching distribution found", "Failed to establish a new connection", "Read timed out")
    if done.returncode and any(each in done.stderr for each in unreachable):
        pytest.skip(f"pip reaches no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return where


@pytest.mark.slow
@pytest.mark.parametrize("form", ["package", "module"])
def test_a_fresh_environment_of_numpy_and_onnxruntime(form: str, bare: Path, tmp_path: Path) -> None:
    given: dict[str, list[Any]] = {}
    expected: dict[str, list[Any]] = {}
    for name in CASES:
        algo, space, actions, settings = CASES[name]
        model = model_of(algo, space, actions, **settings)
        fastrl.export(model, tmp_path / f"{name}.onnx")
        env, state, file = steered(space, actions), None, f"{name}.onnx"
        given[file], expected[file] = [env.reset(seed=seed)[0] for seed in range(20)], []
        for obs in given[file]:
            action, state = model.predict(obs, state)
            expected[file].append(action)
        expected[file].append(model.predict(given[file][0])[0])
    (tmp_path / "given.pickle").write_bytes(pickle.dumps(given))
    (site,) = bare.glob("lib/python*/site-packages")
    source = Path(fastrl.runtime.__file__)
    if form == "package":
        # As pip install --no-deps does.
        target = site / "fastrl"
        shutil.copytree(source.parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target = site / "runtime.py"
        shutil.copyfile(source, target)
    command = [str(bare / "bin" / "python"), "-I", "-c", FRESH, form]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(target)
    found = pickle.loads((tmp_path / "found.pickle").read_bytes())
    assert found.keys() == expected.keys()
    for file in expected:
        for ours, theirs in zip(found[file], expected[file], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=file)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none"), "--out", str(tmp_path / "x.onnx")]) == 2
    assert main(["export", str(tmp_path / "none"), "--out", str(tmp_path / "x.txt")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "expected a name that ends with .onnx" in lines[1]
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimePolicyError, match=r"bad\.onnx cannot be used"):
        fastrl.runtime.load(tmp_path / "bad.onnx")
    with pytest.raises(RuntimePolicyError, match="there is no such file"):
        fastrl.runtime.load(tmp_path / "none.onnx")
    model = model_of("PPO", "box", "discrete")
    fastrl.export(model, tmp_path / "policy.onnx")
    policy = fastrl.runtime.load(tmp_path / "policy.onnx")
    with pytest.raises(RuntimePolicyError, match=r"obs: expected shape \[3\] for one observation"):
        policy.act(np.zeros(4, np.float32))
    with pytest.raises(RuntimePolicyError, match="got NaN or infinity"):
        policy.act(np.full(3, np.nan, np.float32))
    with pytest.raises(RuntimePolicyError, match=r"action_masks: expected bool \[1, 4\]"):
        policy.act(np.zeros(3, np.float32), action_masks=np.ones(3, np.bool_))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExportError, match=r"pip install 'fastrl\[export\]'"):
        fastrl.export(tmp_path, tmp_path / "policy.onnx")


def test_damaged_exports_are_refused_or_act(tmp_path: Path) -> None:
    """Neither changes to the metadata nor to bytes of the file end in another error than its own."""
    import onnx

    model = fastrl.PPO("CartPole-v1", **SMALL)
    file, changed = tmp_path / "good.onnx", tmp_path / "changed.onnx"
    fastrl.export(model, file)
    data, graph = file.read_bytes(), onnx.load(file)
    metadata = json.loads(graph.metadata_props[0].value)
    described = ("obs", "states", "agents", "actions", "noise", "action_masks")
    chance = random.Random(0)

    def act() -> None:
        policy = fastrl.runtime.load(changed)
        for obs in (np.zeros(4, np.float32), np.zeros((2, 4), np.float32)):
            policy.act(obs)
            policy.act(obs, deterministic=False)

    texts = ["", "{", "[" * 100_000, "null", "[]"]
    refused = 0
    for i in range(200):
        if i % 2:
            own, what = mutated({name: metadata[name] for name in described}, chance)
            text = texts[i // 2] if i // 2 < len(texts) else json.dumps({"format": 1, **own})
            graph.metadata_props[0].value = text.encode("utf-8", "replace").decode()
            changed.write_bytes(graph.SerializeToString())
        else:
            spoilt, what = damaged(data, chance)
            changed.write_bytes(spoilt)
        refused += refuses(act, what, RuntimePolicyError)
    assert 80 < refused < 190
