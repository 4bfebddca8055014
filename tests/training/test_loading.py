"""A model of a file acts without its environment, and asks for it where it learns or is evaluated."""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import differences

import fastrl
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.utils.trust import TrustError

SMALL: dict[str, Any] = {"num_envs": 2, "eval_episodes": 0}

MODULE = """
from pathlib import Path
import gymnasium
from parallel_toys import Leavers
from space_cases import AnySpaces
Path(__file__).with_name("imported").touch()
def make_env(obs="vector", actions="discrete", num=1):
    return AnySpaces(obs, actions)
def make_team():
    return Leavers()
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's own; its file ``imported`` is there if it has been imported since `forget`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_module.py").write_text(MODULE)
    their_module = importlib.import_module("their_module")

    yield their_module
    sys.modules.pop("their_module", None)


def forget(folder: Path) -> None:
    """Takes the module away."""
    sys.modules.pop("their_module", None)
    (folder / "imported").unlink()


@pytest.mark.parametrize(
    ("algo", "options"),
    [
        ("PPO", {"obs": "dict", "actions": "matrix of multi-discrete"}),
        ("PPO", {"obs": "dict with image", "actions": "box"}),
        ("SAC", {"obs": "matrix of float64", "actions": "integers"}),
        ("DQN", {"obs": "image", "actions": "discrete from 3"}),
    ],
)
def test_an_environment_of_ones_own_is_not_imported_to_act(
    algo: str, options: dict[str, str], theirs: Any, tmp_path: Path
) -> None:
    env = functools.partial(theirs.make_env, **options, num=3)
    model = getattr(fastrl, algo)(env, **SMALL)
    obs, _ = env().reset(seed=0)
    expected = [model.predict(obs)[0]] + [model.predict(obs, None, False)[0] for _ in range(9)]
    file = tmp_path / "model.safetensors"
    model.save(file)
    forget(tmp_path)
    loaded = fastrl.load(file)
    found = [loaded.predict(obs)[0]] + [loaded.predict(obs, None, False)[0] for _ in range(9)]
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)
    assert (loaded.steps, loaded.settings, repr(loaded)) == (model.steps, model.settings, repr(model))
    loaded.save(tmp_path / "copy.safetensors")
    assert not list(differences(load_checkpoint(file), load_checkpoint(tmp_path / "copy.safetensors")))
    needs = [lambda: loaded.learn(8), lambda: loaded.evaluate(1), lambda: loaded.env_spec]
    for use in needs:
        with pytest.raises(TrustError, match=r"env.id would import .*\(in Python, env=... or trust=True\)\Z"):
            use()
    assert not (tmp_path / "imported").exists() and "their_module" not in sys.modules
    their_module = importlib.import_module("their_module")

    for allowed in ({"env": functools.partial(their_module.make_env, **options)}, {"trust": True}):
        assert np.isfinite(fastrl.load(file, **allowed).evaluate(2)).all()


def test_agents_of_ones_own_environment_act_too(theirs: Any, tmp_path: Path) -> None:
    model = fastrl.IPPO(theirs.make_team, **SMALL)
    obs, _ = theirs.make_team().reset(seed=0)
    expected = [model.predict(obs, None, deterministic)[0] for deterministic in (True, False)]
    model.save(tmp_path / "team")
    forget(tmp_path)
    loaded = fastrl.load(tmp_path / "team")
    found = [loaded.predict(obs, None, deterministic)[0] for deterministic in (True, False)]
    assert found == expected
    with pytest.raises(TrustError, match=r"env\.id would import"):
        loaded.evaluate(1)
    assert not (tmp_path / "imported").exists()
    assert np.isfinite(fastrl.load(tmp_path / "team", trust=True).evaluate(2)).all()


def test_files_of_older_versions_have_no_spaces(theirs: Any, tmp_path: Path) -> None:
    """Their environment says them, if it may be imported."""
    for name, model, make in (
        ("one", fastrl.PPO(theirs.make_env, **SMALL), theirs.make_env),
        ("team", fastrl.IPPO(theirs.make_team, **SMALL), theirs.make_team),
    ):
        obs, _ = make().reset(seed=0)
        model.save(tmp_path / name)
        state = load_checkpoint(tmp_path / name)
        for key in ("obs_space", "agents"):
            state.pop(key, None)
        save_checkpoint(tmp_path / name, state)
        with pytest.raises(TrustError, match=r"env\.id would import"):
            fastrl.load(tmp_path / name).predict(obs)
        assert fastrl.load(tmp_path / name, trust=True).predict(obs)[0] == model.predict(obs)[0]


def test_exports_need_no_environment_unless_they_are_played(theirs: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model = fastrl.PPO(theirs.make_env, **SMALL)
    model.save(tmp_path / "model")
    forget(tmp_path)
    for suffix in (".onnx", ".npz"):
        out = tmp_path / f"policy{suffix}"
        assert fastrl.export(tmp_path / "model", out).different == 0
        with pytest.raises(TrustError, match=r"env\.id would import"):
            fastrl.export(tmp_path / "model", out, check=True)
    assert not (tmp_path / "imported").exists()
