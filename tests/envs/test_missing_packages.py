"""Environments whose packages are not installed: one line that says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

# Packages that look as if they were not installed, and commands.
PROGRAM = """
import sys
for name in ("Box2D", "mujoco", "ale_py", "minigrid", "pettingzoo", "mpe2", "ray"):
    sys.modules[name] = None
from fastrl.cli.main import main
for words in sys.argv[1:]:
    print(main(["train", *words.split()]), file=sys.stderr)
"""

CASES = {
    "LunarLander-v3": 'pip install "gymnasium[box2d]"',
    "LunarLander-v3 --algo dqn": 'pip install "gymnasium[box2d]"',
    "Hopper-v5": 'pip install "gymnasium[mujoco]"',
    "ALE/Pong-v5": "pip install 'fastrl[atari]'",
    "ALE/Pong-v5 --algo ppo": "pip install 'fastrl[atari]'",
    "MiniGrid-Empty-5x5-v0": "pip install minigrid",
    "pettingzoo.butterfly.pistonball_v6:parallel_env --algo mappo": "pip install 'fastrl[pettingzoo]'",
    "mpe2.simple_spread_v3:parallel_env --algo mappo": "pip install 'fastrl[pettingzoo]'",
    "CartPole-v1 --collector ray": "pip install 'fastrl[ray]'",
}


@pytest.mark.slow
def test_a_package_that_is_not_installed_is_named_with_its_cure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *CASES], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading")]
    assert done.returncode == 0, done.stderr
    assert len(lines) == 2 * len(CASES), done.stderr
    for cure, line, code in zip(CASES.values(), lines[::2], lines[1::2], strict=True):
        assert line.startswith("fastrl train: error: ") and cure in line
        assert code == "2"
    assert not any((tmp_path / "runs").glob("*"))
