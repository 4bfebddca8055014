"""`examples/compiled-env`, a crate of a user's own, is built and trained on; the package is not touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import quick_build
from gymnasium.error import ResetNeeded
from small_runs import differences, learnt, rows_of

from fastrl.cli.main import main
from fastrl.envs import AsyncNativeVectorEnv
from fastrl.testing import check_vector_env
from fastrl.utils.seeding import env_seed

pytest.importorskip("maturin", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow

CRATE = Path(__file__).resolve().parent.parent / "examples" / "compiled-env"
ENV = "ferry:ferry/Ferry-v0"


@pytest.fixture(scope="module")
def ferry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the example, in a folder of its own."""
    if not CRATE.exists():
        pytest.skip("a source distribution has no examples")
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    folder = tmp_path_factory.mktemp("ferry")
    build = [
        "build",
        "--locked",
        *quick_build.CARGO,
        "--compatibility=linux",
        "--interpreter",
        sys.executable,
    ]
    where = ["--manifest-path", CRATE / "Cargo.toml", "--out", folder]
    done = subprocess.run(
        [sys.executable, "-m", "maturin", *build, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("ferry-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import ferry

        yield ferry
        for name in ("ferry", "ferry._ferry"):
            del sys.modules[name]


def train(run: Path, *options: object, steps: int = 384) -> dict[str, Any]:
    """Trains with PPO in updates of 128 environment steps; returns the run's summary."""
    sizes = ["--num-envs=8", "--ppo.num-steps=16", "--ppo.minibatch-size=64", "--run.row-seconds=0"]
    # Schedules that end elsewhere would be another run.
    constant = ["--ppo.final-learning-rate=0.01", "--ppo.final-entropy-coef=0.01", "--ppo.learning-rate=0.01"]
    command = [
        "train",
        ENV,
        *sizes,
        *constant,
        f"--total-timesteps={steps}",
        f"--run-dir={run}",
    ]
    assert main([*command, *map(str, options)]) == 0
    return json.loads((run / "summary.json").read_text())


def test_it_keeps_the_contract_of_vector_environments(ferry: ModuleType) -> None:
    def make(num_envs: int, autoreset_mode: Any, num_threads: int = 0) -> Any:
        return ferry.FerryVectorEnv(
            num_envs, limit=12, autoreset_mode=autoreset_mode, num_threads=num_threads
        )

    check_vector_env(make, time_limit=12, terminates=True)


def test_a_crossing_straight_ahead(ferry: ModuleType) -> None:
    env = ferry.FerryEnv()
    obs, _ = env.reset(seed=3)
    row, dock = obs[1:3] * 8
    for column in range(8):
        assert obs[0] == column / 8
        row = np.clip(row + obs[3], 0, 8)
        obs, reward, terminated, truncated, _ = env.step(0)
        assert obs[1] * 8 == row
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(0.99 - abs(row - dock) / 8)
    with pytest.raises(ResetNeeded):
        env.step(0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": 0}, "limit: expected at least 1 step, got 0"),
        ({"num_envs": 0}, "num_envs: expected 1 to 16777216, got 0"),
        ({"num_threads": 2000}, "num_threads: expected 0 (all cores) to 1024, got 2000"),
    ],
)
def test_a_wrong_option_is_refused(ferry: ModuleType, options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError) as error:
        ferry.FerryVectorEnv(**options)
    assert str(error.value) == text


def test_a_wrong_action_or_state_is_refused(ferry: ModuleType) -> None:
    env = ferry.FerryVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action of environment 1: expected 0 \(ahead\), 1 "):
        env.step([0, 3])
    with pytest.raises(ValueError, match="cannot be restored"):
        ferry.FerryVectorEnv(2, limit=9).load_state(env.save_state())


@pytest.mark.usefixtures("ferry")
def test_it_is_trained_on_by_threads_and_one_by_one_alike(tmp_path: Path) -> None:
    options = ["--env.options", "limit=12", "--run.eval-episodes=5"]
    native = train(tmp_path / "auto", *options)
    single = train(tmp_path / "sequential", *options, "--collector=sequential")
    assert (native["collector"], single["collector"]) == ("native", "sequential")
    assert native["steps"] == single["steps"] == 384
    assert differences(learnt(tmp_path / "auto")["learner"], learnt(tmp_path / "sequential")["learner"]) == []
    assert native["evaluation"] == single["evaluation"]


@pytest.mark.usefixtures("ferry")
def test_its_runs_are_resumed_exactly(tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(straight, "--run.eval-episodes=0")
    train(stopped, "--run.eval-episodes=0", steps=128)
    resume = ["train", f"--resume={stopped}", "--total-timesteps=384"]
    # The run names code, which only the user's word imports.
    assert main(resume) == 2
    assert main([*resume, "--env", ENV]) == 0
    assert differences(learnt(straight), learnt(stopped)) == []
    assert rows_of(straight) == rows_of(stopped)


def test_it_is_stepped_asynchronously(ferry: ModuleType) -> None:
    envs = AsyncNativeVectorEnv(ferry.FerryVectorEnv(6, limit=12), seed=5, num_threads=2)
    single = ferry.FerryEnv(limit=12)
    envs.reset()
    first = envs.recv()
    envs.send(first.env_ids % 3, first.env_ids)
    second = envs.recv()
    envs.close()
    for env_id, obs in zip(first.env_ids, first.obs, strict=True):
        np.testing.assert_array_equal(obs, single.reset(seed=env_seed(5, int(env_id), 0))[0])
        after, reward, *_ = single.step(env_id % 3)
        (row,) = np.flatnonzero(second.env_ids == env_id)
        np.testing.assert_array_equal(second.obs[row], after)
        assert second.rewards[row] == np.float32(reward)
