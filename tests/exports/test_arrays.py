"""Arrays and the printed numpy code act as the policies that they came from."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_export import ACTIONS, OBS, model_of

import fastrl
from fastrl.cli.main import main
from fastrl.exports.graph import ExportError

CASES = {
    "ppo squashed": ("PPO", "box", "box", {"squash_actions": True, "normalize_obs": True}),
    "dqn": ("DQN", "box", "discrete", {"dueling": True, "quantiles": 5}),
    "crossq": ("CrossQ", "box", "matrix", {"policy_every": 1}),
}

# Nothing but numpy and Python's own modules is found.
ALONE = """
import sys
import numpy
sys.path[:] = [p for p in sys.path if "site-packages" not in p and "fastrl" not in p]
{code}
obs = np.load({obs!r})
np.save({out!r}, act(obs))
assert not any(name in sys.modules for name in ("torch", "onnxruntime", "fastrl", "gymnasium"))
"""


@pytest.mark.parametrize("name", CASES)
def test_printed_code_acts_as_the_policy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algo, obs_name, actions, settings = CASES[name]
    model = model_of(algo, obs_name, actions, **settings)
    found = fastrl.export(model, tmp_path / "policy.npz", check=True, episodes=2)
    assert (found.actions, found.different) == (10, 0)
    fastrl.export(model, tmp_path / "policy.onnx")
    graph = fastrl.runtime.load(tmp_path / "policy.onnx")
    assert 10 < len(found.code.splitlines()) <= 30
    obs = np.random.default_rng(1).uniform(-2, 2, (10_000, *OBS[obs_name].shape)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    program = ALONE.format(code=found.code, obs=str(tmp_path / "obs.npy"), out=str(tmp_path / "out.npy"))
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env={})
    ours, theirs = np.load(tmp_path / "out.npy"), model.predict(obs)[0]
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if ours.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    else:
        different = np.flatnonzero((ours != theirs).reshape(len(obs), -1).any(1))
        best = np.sort(graph.outputs(obs[[*different, 0]])[:-1], -1)
        assert (best[:, -1] - best[:, -2] < 1e-5).all()


def test_the_command_prints_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "cart"
    fastrl.PPO("CartPole-v1", num_envs=2, eval_episodes=0).save(run)
    out = tmp_path / "cart.npz"
    assert main(["export", str(run), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    names: dict[str, object] = {}
    exec(printed[printed.index("import numpy") :], names)
    assert set(np.load(out).files) == {f"{kind}{i}" for kind in "wb" for i in range(3)}
    assert names["act"](np.zeros((5, 4))).shape == (5,)  # type: ignore[operator]


def test_other_policies_are_refused_in_one_line(tmp_path: Path) -> None:
    for algo, obs, actions, settings in (
        ("PPO", "box", "discrete", {"memory": "gru"}),
        ("PPO", "dict", "discrete", {}),
        ("PPO", "box", "dials", {}),
        ("DQN", "image", "discrete", {}),
    ):
        with pytest.raises(ExportError, match=r"^plain numpy is for multi-layer perceptrons .*\Z") as caught:
            fastrl.export(model_of(algo, obs, actions, **settings), tmp_path / "policy.npz")
        assert "\n" not in str(caught.value)
    with pytest.raises(ExportError, match=r"int8 is for files \.onnx"):
        fastrl.export(tmp_path, tmp_path / "policy.npz", quantize="int8")
    assert not any(tmp_path.iterdir())


def test_actions_stay_within_bounds_that_float32_does_not_have(tmp_path: Path) -> None:
    found = fastrl.export(model_of("PPO", "box", "tenth"), tmp_path / "policy.npz")
    names: dict[str, Any] = {}
    exec(found.code, names)
    taken = names["act"](np.float32([[300, 300, 300], [-300, -300, -300]]))
    assert all(ACTIONS["tenth"].contains(action) for action in taken)
