"""``fastrl render`` of runs of one agent."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from fastrl.cli.main import main
from fastrl.tasks import find

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


def test_an_agent_defends_in_the_film_of_a_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Defender:\n    def get_action(self, observation, action_space):\n        return action_space - 1\n"
    (tmp_path / "film_agents.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    task = find("cage2")
    settings = task.make_settings({"env.episode_length": 3, "env.memory": "full"})
    with contextlib.closing(task.agent_films("film_agents:Defender", settings)) as films:
        count, returns = films.film({}, tmp_path / "game.gif")
    assert count == 4 and -4 < returns[0] < -2, "each step restores a host, which costs 1"
    with Image.open(tmp_path / "game.gif") as film:
        assert film.size == (576, 512)


def test_agents_of_ones_own_are_filmed_where_they_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    (tmp_path / "film_agents_left.py").write_text("def left(obs):\n    return 0\n")
    monkeypatch.chdir(tmp_path)
    agent, out = "film_agents_left:left", "--out=a.gif"
    assert main(["render", agent, "--env=CartPole-v1", out, "--episodes=2"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    returns = [float(each) for each in line.rpartition("returns ")[2].split(", ")]
    assert int(line.split()[1]) == sum(returns) + 2
    for arguments, error in (
        ([out], f"{agent}: say where it plays: --env cage2, --env CartPole-v1"),
        (
            [out, "--env=CartPole-v1", "--policy=idle"],
            "--policy does not go with an agent, which has its own",
        ),
        (
            [out, "--env=CartPole-v1", "--size=99x99"],
            "--size does not go with an agent of gym, only with traffic",
        ),
        (
            [out, "--env=fastrl/coop-merge-v0"],
            "an agent of your own plays CAGE 2, or environments of one agent",
        ),
    ):
        assert main(["render", agent, *arguments]) == 2
        printed = capsys.readouterr().err
        assert error in printed and printed.count("\n") == 1


def test_a_road_with_one_agent_is_filmed_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "film_agents_idle.py").write_text("def idle(obs):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    given = "film_agents_idle:idle", "--env=fastrl/merge-v1", "--out=a.gif"
    counts = []
    for fps in ([], ["--fps=10"]):
        assert main(["render", *given, *fps]) == 0
        counts.append(int(capsys.readouterr().out.splitlines()[-1].split()[1]))
    # In real time: a second of steps, 25 pictures or as many as are asked for.
    assert counts[0] % 25 == 0 and counts[1] * 25 == counts[0] * 10 and counts[0] >= 50


@pytest.mark.slow
def test_films_complain_about_no_display(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    (tmp_path / "film_agents_quiet.py").write_text("def left(obs):\n    return 0\n")
    lacking = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in lacking}
    command = [sys.executable, "-m", "fastrl", "render", "film_agents_quiet:left"]
    command += ["--env=CartPole-v1", "--out=a.gif"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_environment_that_does_not_draw_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "fastrl.envs.toys.uneven:UnevenEnv"
    assert main(["train", env, *SMALL, f"--run-dir={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["render", str(tmp_path / "run"), "--trust", "--out", str(tmp_path / "a.gif")]) == 2
    assert "rgb_array" in capsys.readouterr().err
    assert not (tmp_path / "a.gif").exists()
