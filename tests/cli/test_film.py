"""``fastrl render`` of runs of one agent."""

from pathlib import Path

import pytest
from PIL import Image

from fastrl.cli.main import main

SMALL = [
    *(
        "--num-envs=2",
        "--total-timesteps=64",
        "--ppo.num-steps=16",
        "--ppo.minibatch-size=16",
        "--ppo.hidden=8",
    ),
    *("--collector=sequential", "--run.eval-episodes=0", "--device=cpu"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on CartPole."""
    pytest.importorskip("pygame")
    path = tmp_path_factory.mktemp("film") / "run"
    assert main(["train", "CartPole-v1", *SMALL, f"--run-dir={path}"]) == 0
    return path


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_run_is_filmed(suffix: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / f"episode{suffix}"
    assert main(["render", str(run), "--out", str(out), "--episodes=2", "--seed=3"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"{out}: ") and "pictures, returns" in line
    # CartPole gives a reward of 1 each step, and each episode starts with a picture.
    returns = [float(each) for each in line.rpartition("returns ")[2].split(", ")]
    assert int(line.split()[1]) == sum(returns) + 2
    if suffix == ".gif":
        with Image.open(out) as film:
            assert film.size == (600, 400)
    else:
        assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "expected --out FILE, such as --out episode.mp4"),
        (["--out=a.avi"], "a.avi: expected a name that ends in .mp4 or .gif"),
        (["--out=a.gif", "--log=a.npz"], "--log does not go with a run of gym, only with traffic"),
        (["--out=a.gif", "--size=100x100"], "--size does not go with a run of gym, only with traffic"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], line: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["render", str(run), *options]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_an_environment_that_does_not_draw_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "fastrl.envs.toys.uneven:UnevenEnv"
    assert main(["train", env, *SMALL, f"--run-dir={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["render", str(tmp_path / "run"), "--trust", "--out", str(tmp_path / "a.gif")]) == 2
    assert "rgb_array" in capsys.readouterr().err
    assert not (tmp_path / "a.gif").exists()
