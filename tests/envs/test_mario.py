"""The real Super Mario Bros., in an environment of its own: on Python 3.11 and 3.12 it needs numpy 1."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

import fastrl

ROOT = Path(__file__).resolve().parents[2]
OLD = sys.version_info < (3, 13)

# Messages of pip where it cannot reach packages, which is no fault of fastrl's.
UNREACHABLE = r"No matching distribution|Failed to establish|Temporary failure|timed out|No such host|403|407"


def run(*command: str | Path, cwd: Path) -> tuple[int, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the extra ``mario``, and the rest from this one."""
    where = tmp_path_factory.mktemp("mario") / "venv"
    venv.create(where, with_pip=False)
    interpreter = where / "bin" / "python"
    with (ROOT / "pyproject.toml").open("rb") as file:
        extra = tomllib.load(file)["project"]["optional-dependencies"]["mario"]
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    code, output = run(*pip, *extra, cwd=where)
    if code and re.search(UNREACHABLE, output):
        pytest.skip(f"pip could not get the packages of the extra mario: {output.strip().splitlines()[-1]}")
    assert code == 0, output
    (site,) = where.glob("lib/python*/site-packages")
    # A folder with this fastrl only: packages beside it, such as numpy 2, must not precede the environment's own.
    (site / "fastrl").symlink_to(Path(fastrl.__file__).parent)
    # After its own packages, so that its numpy is used.
    (site / "zzz_outer.pth").write_text(sysconfig.get_path("purelib"))
    return interpreter


def play(python: Path, code: str) -> Any:
    """Runs a script in that environment and parses its last line as JSON."""
    exit_code, output = run(python, "-c", textwrap.dedent(code), cwd=python.parent)
    assert exit_code == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_the_real_game_is_collected_from(python: Path) -> None:
    output = play(
        python,
        """
        import hashlib, json
        import numpy as np
        from fastrl.envs.pixels import make_pixels

        def episode(seed):
            env = make_pixels("SuperMarioBros-1-1-v0", env_options={"actions": "right"}, clip_reward=False)
            frames, rewards = [env.reset(seed=seed)[0]], []
            for t in range(400):
                frame, reward, terminated, truncated, info = env.step(3 if t % 5 else 4)
                frames.append(frame)
                rewards.append(reward)
                if terminated:
                    break
            env.close()
            return np.stack(frames), rewards, terminated, info

        (frames, rewards, terminated, info), (again, *_) = episode(1), episode(1)
        print(json.dumps({
            "numpy": np.__version__,
            "shape": frames.shape[1:],
            "different": len({hashlib.sha1(frame).digest() for frame in frames}) / len(frames),
            "same": bool((frames == again).all()),
            "terminated": terminated,
            "total": sum(rewards),
            "episode": info["episode"]["r"],
        }))
        """,
    )
    assert output["numpy"].startswith("1.") == OLD
    assert output["shape"] == [84, 84]
    assert output["different"] > 0.5
    assert output["same"]
    assert output["terminated"]
    # Holding right, Mario gets some way before the first obstacle; noops count too.
    assert output["total"] > 100
    assert abs(output["episode"] - output["total"]) <= 30


@pytest.mark.slow
def test_its_interface_is_gymnasiums(python: Path) -> None:
    output = play(
        python,
        """
        import json
        import gymnasium
        from fastrl.envs.adapters.mario import MarioEnv
        from fastrl.envs.pixels import make_pixels

        env = MarioEnv("SuperMarioBros-v0", actions="complex")
        obs, info = env.reset(seed=0)
        inside = [env.observation_space.contains(obs.copy())]
        lives = [info["lives"]]
        while True:
            obs, reward, terminated, truncated, info = env.step(1)
            if info["lives"] != lives[-1] or terminated:
                lives.append(info["lives"])
            if terminated:
                break
        inside.append(env.observation_space.contains(obs.copy()))
        sizes = [MarioEnv(actions=name).action_space.n for name in ("right", "simple", "complex")]
        errors = []
        for wrong in (lambda: make_pixels("SuperMarioBros-v9"), lambda: MarioEnv(actions="left")):
            try:
                wrong()
            except ValueError as error:
                errors.append(str(error))
        print(json.dumps({
            "gymnasium": isinstance(env, gymnasium.Env), "inside": inside, "lives": lives,
            "sizes": [int(size) for size in sizes], "truncated": truncated, "errors": errors,
        }))
        """,
    )
    assert output["gymnasium"] and output["inside"] == [True, True]
    # Walking into the first enemy, three times.
    assert output["lives"] == [2, 1, 0, 0]
    assert output["sizes"] == [5, 7, 12]
    assert output["truncated"] is False
    unknown, actions = output["errors"]
    assert re.fullmatch(
        r"there is no environment SuperMarioBros-v9; did you mean SuperMarioBros-v\d\?", unknown
    )
    assert actions == "actions should be right, simple, complex, got 'left'"


@pytest.mark.slow
def test_the_pipeline_collects_from_it(python: Path, tmp_path: Path) -> None:
    """`fastrl-train pixels --env SuperMarioBros-v0`, for a few hundred steps: collectors, queue, replay, learner."""
    run_dir = tmp_path / "run"
    settings = ["--n-workers=2", "--num-envs=2", "--replay.capacity=2000", "--replay.learning-starts=200"]
    small = ["--dqn.hidden=16", "--dqn.batch-size=8", "--run.eval-episodes=0", "--device=cpu"]
    code, output = run(
        *(python, "-m", "fastrl", "train", "SuperMarioBros-v0", "--total-timesteps=500"),
        *settings,
        *small,
        f"--run-dir={run_dir}",
        cwd=tmp_path,
    )
    assert code == 0, output
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "complete" and summary["env"] == "SuperMarioBros-v0"
    assert summary["steps"] >= 500 and summary["iterations"] > 0
    assert summary["dropped"] == summary["restarts"] == 0
    workers = summary["workers"]
    assert workers["environment"] > 0.05 * sum(workers.values())
