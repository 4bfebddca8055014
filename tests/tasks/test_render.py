"""Films, logs and diagrams of traffic, by the command line and from Python."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from small_runs import run_cli

import fastrl.tasks.traffic.render as render_module
from fastrl._native._rust import TrafficScene
from fastrl.cli.main import main
from fastrl.envs.traffic.link_figure import ages_over_time, draw_ages
from fastrl.envs.traffic.trajectories import Recorder, Trajectories, TrajectoryError, time_space_lines
from fastrl.play.film import drawn_scenes
from fastrl.tasks.traffic.render import Outputs, RenderError, make_env, moments, render, scripted
from fastrl.utils.video import VideoError, write_video

SMALL = {"warmup_steps": 5, "horizon": 40}
RING = ["--env", "fastrl/ring-v0", "--env-options", "warmup_steps=5", "horizon=40"]


def record(env_id: str, policy: str = "idle", episodes: int = 1, **options: object) -> Trajectories:
    env = make_env(env_id, options)
    recorder = Recorder(env.name, env.num_agents)
    for step in moments(env, scripted(policy, env, 0), list(range(episodes))):
        recorder.add(step.drawn, step.episode, step.info["alive"], step.info.get("rewards"))
    env.close()
    return recorder.trajectories()


def test_the_log_says_where_everybody_was(tmp_path: Path) -> None:
    seen = record("fastrl/ring-v0", episodes=2, **SMALL)
    assert seen.env == "fastrl/ring-v0" and seen.closed
    assert len(seen.time) == 2 * 41 and seen.x.shape == (82, 22)
    assert seen.episode.tolist() == [0] * 41 + [1] * 41
    np.testing.assert_allclose(seen.time[:3], [0.0, 0.1, 0.2])
    assert (
        seen.present.all() and (seen.lane == 0).all() and (seen.agent >= 0).sum(axis=1).tolist() == [1] * 82
    )
    # Between two moments cars go as far as their speeds say.
    moved = np.diff(seen.along[:41], axis=0)
    near = np.abs(moved) < 50
    np.testing.assert_allclose(moved[near], 0.1 * seen.speed[1:41][near], atol=1e-9)
    assert seen.alive[:40].all() and not seen.alive[40].any()
    assert seen.reward[0] == 0 and (seen.reward[1:41] > 0).all()
    path = tmp_path / "log.npz"
    seen.save(path)
    again = Trajectories.load(path)
    for name, value in vars(seen).items():
        np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)


def test_cars_that_leave_are_absent_from_the_log() -> None:
    seen = record("fastrl/coop-merge-v0", "random", max_agents=6)
    gone = ~seen.present[-1] & seen.present[0]
    assert gone.any(), "agents that crash or arrive are taken away"
    assert np.isnan(seen.x[-1, gone]).all() and (seen.lane[-1, gone] == -1).all()
    assert seen.crashed.any()
    assert set(np.unique(seen.agent[0])) == {-1, 0, 1, 2, 3, 4, 5}
    assert (seen.length == 5.0).all() and (seen.width == 2.0).all()


def test_the_highways_log_is_what_the_environment_says() -> None:
    env = make_env("fastrl/highway-v0", {})
    first = next(iter(moments(env, scripted("idle", env, 0), [7])))
    cars = first.drawn.cars()
    assert len(cars["x"]) == 51 and cars["agent"].tolist() == [0] + [-1] * 50
    np.testing.assert_array_equal(cars["along"], cars["x"])
    np.testing.assert_array_equal(cars["lane"], cars["y"] / 4)


@pytest.mark.parametrize("content", [b"", b"no log", b"PK\x03\x04 nearly"])
def test_what_is_no_log_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    path.write_bytes(content)
    with pytest.raises(TrajectoryError, match="is no trajectory log"):
        Trajectories.load(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(TrajectoryError, match="is no trajectory log"):
        Trajectories.load(path)
    np.savez(path, version=99)
    with pytest.raises(TrajectoryError, match="another version"):
        Trajectories.load(path)


def test_lines_of_the_diagram_join_what_belongs_together() -> None:
    seen = record("fastrl/ring-v0", drive="humans", warmup_steps=5, horizon=400)
    pieces, speeds, driven = time_space_lines(seen, 0, 0)
    slopes = (pieces[:, 1, 1] - pieces[:, 0, 1]) / (pieces[:, 1, 0] - pieces[:, 0, 0])
    np.testing.assert_allclose(slopes, speeds, atol=0.3)
    assert (pieces[..., 1] >= 0).all() and (pieces[..., 1] <= seen.lane_lengths[0]).all()
    passed = int((np.diff(seen.along, axis=0) < -100).sum())
    assert passed > 0 and len(pieces) == 22 * 400 - passed
    assert driven.sum() == pytest.approx(len(pieces) / 22, abs=3)


def test_cars_move_evenly_through_a_film() -> None:
    env = make_env("fastrl/highway-v0", {"config": {"duration": 3}})
    seen = list(moments(env, scripted("idle", env, 0), [3]))
    assert [step.drawn.time for step in seen] == [0.0, 1.0, 2.0, 3.0]
    film = [step.drawn for step in drawn_scenes(iter(seen), env.view, fps=10, speed=1)]
    # Three seconds, and the end for one.
    assert len(film) == 30 + 10
    assert all(np.array_equal(picture, film[-1]) for picture in film[30:])
    changes = [float((a != b).any(axis=-1).mean()) for a, b in itertools.pairwise(film[:30])]
    assert min(changes) > 0.002 and max(changes) < 0.3, "something moves in each, and nothing jumps"
    assert len(list(drawn_scenes(iter(seen), env.view, fps=10, speed=3))) == 10 + 10


def test_a_film_of_several_episodes_shows_each_end() -> None:
    env = make_env("fastrl/ring-v0", SMALL)
    film = list(drawn_scenes(moments(env, scripted("idle", env, 0), [0, 1]), env.view, fps=10, speed=1))
    assert len(film) == 2 * (40 + 10)


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_film_can_be_read_back(suffix: str, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v2", reason="imageio, of the extra render, is not installed")
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg, of the extra render, is not installed")
    shades = [np.full((31, 61, 3), shade, np.uint8) for shade in (0, 120, 250)]
    shades = [np.concatenate([shade, shade // 2], axis=1)[:, :61] for shade in shades]
    path = tmp_path / f"film{suffix}"
    assert write_video(path, iter(shades), fps=10) == 3
    film = [np.asarray(picture) for picture in imageio.get_reader(path)]
    assert len(film) == 3
    for picture, shade in zip(film, (0, 120, 250), strict=True):
        assert abs(float(picture[10:20, 10:40, :3].mean()) - shade) < 12
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "nothing else is left"


def test_a_film_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pillow, of the extra render, is not installed")

    def broken():  # type: ignore[no-untyped-def]
        yield np.zeros((8, 8, 3), np.uint8)
        raise RuntimeError("the simulator is gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_video(tmp_path / "film.gif", broken(), fps=10)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VideoError, match="no picture"):
        write_video(tmp_path / "film.gif", iter([]), fps=10)


def test_the_command_makes_all_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL", reason="PIL, of the extra render, is not installed")
    film, log, diagram = (tmp_path / name for name in ("a.gif", "a.npz", "a.png"))
    outputs = ["--out", str(film), "--log", str(log), "--time-space", str(diagram)]
    assert main(["render", *RING, *outputs, "--size", "120x120", "--fps", "10", "--episodes", "2"]) == 0
    assert film.read_bytes().startswith(b"GIF8") and diagram.read_bytes().startswith(b"\x89PNG")
    seen = Trajectories.load(log)
    assert seen.episode.tolist() == [0] * 41 + [1] * 41
    assert str(film) in capsys.readouterr().err
    # The same seed, the same episodes; another seed, others.
    main(["render", *RING, "--log", str(log), "--episodes", "2"])
    np.testing.assert_array_equal(Trajectories.load(log).x, seen.x)
    main(["render", *RING, "--log", str(log), "--seed", "5"])
    assert not np.array_equal(Trajectories.load(log).x, seen.x[:41])


def test_a_run_is_shown_with_its_best_policy(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log.npz"
    small = [
        "--env=fastrl/coop-merge-v0",
        "--vehicles=3",
        "--num-envs=4",
        "--env.num-threads=1",
        "--total-episodes=8",
    ]
    small += ["--ippo.hidden=8", "--ippo.num-steps=16", "--device=cpu", f"--run-dir={run}"]
    assert main(["train", "traffic", *small, "--eval-freq=4", "--run.eval-episodes=2"]) == 0
    assert (run / "checkpoints" / "best.safetensors").exists()
    assert main(["render", str(run), "--log", str(log)]) == 0
    seen = Trajectories.load(log)
    assert seen.env == "fastrl/coop-merge-v0" and seen.alive.shape[1] == 3
    assert main(["render", str(run), "--log", str(log), "--env-options", "max_agents=5", "num_agents=5"]) == 0
    assert Trajectories.load(log).alive.shape[1] == 5, "one policy for all drives any number"
    assert main(["render", str(run / "checkpoints" / "best.safetensors"), "--log", str(log)]) == 0
    np.testing.assert_array_equal(Trajectories.load(log).x, seen.x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either a run or --env ID"),
        (
            ["some", "--env", "fastrl/ring-v0", "--log", "a.npz"],
            "expected either a run or --env ID",
        ),
        (["some", "--policy", "idle", "--log", "a.npz"], "--policy does not go with a run"),
        (["nowhere", "--log", "a.npz"], "nowhere: no such run directory"),
        (RING, "there is nothing to write"),
        ([*RING, "--out", "a.avi"], "expected a name that ends in .mp4 or .gif"),
        ([*RING, "--log", "a.csv"], "expected a name that ends in .npz"),
        ([*RING, "--log", "nowhere/a.npz"], "there is no folder nowhere"),
        ([*RING, "--time-space", "a.doc"], "expected a name that ends in"),
        (["--env", "fastrl/rink-v0", "--log", "a.npz"], "expected one of"),
        (["--env", "fastrl/ring-v0", "--env-options", "horizn=3", "--log", "a.npz"], "horizn"),
        (
            ["--env", "fastrl/ring-v0", "--env-options", "horizon", "--log", "a.npz"],
            "--env-options should be KEY=VALUE such as lanes=3, got ['horizon']",
        ),
        ([*RING, "--log", "a.npz", "--speed", "0"], "should be a number from 0.001 to 1000000, got '0'"),
        ([*RING, "--log", "a.npz", "--speed", "1e-300"], "should be a number from 0.001 to 1000000"),
        ([*RING, "--out", "a.gif", "--fps", "0.001"], "--fps should be at least 0.01, got 0.001"),
        ([*RING, "--log", "a.npz", "--size", "600"], "should be two numbers"),
        ([*RING, "--log", "a.npz", "--episodes", "0"], "at least 1"),
        ([*RING, "--log", "a.npz", "--sed", "1"], "did you mean --seed?"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, printed = run_cli(capsys, "render", *arguments)
    assert code == 2 and message in printed and "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ([], "fastrl/ring-v0, horizon=3, idle"),
        (["--policy", "random"], "fastrl/ring-v0, horizon=3, random"),
        (["drive=humans"], "fastrl/ring-v0, horizon=3, drive=humans"),
    ],
)
def test_a_diagram_says_who_drives(
    options: list[str], title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def draw(trajectories: Trajectories, path: Path, title: str) -> None:
        titles.append(title)

    monkeypatch.setattr(render_module, "draw_time_space", draw)
    arguments = [
        "--env",
        "fastrl/ring-v0",
        "--time-space",
        str(tmp_path / "a.png"),
        "--env-options",
        "horizon=3",
    ]
    assert main(["render", *arguments, *options]) == 0
    assert titles == [title]


def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("fastrl/ring-v0", SMALL)
    for name in ("PIL", "imageio", "imageio.v2"):
        monkeypatch.setitem(sys.modules, name, None)
    for outputs in (
        Outputs(video=tmp_path / "a.gif"),
        Outputs(video=tmp_path / "a.mp4"),
    ):
        with pytest.raises((RenderError, VideoError), match=r"fastrl\[render\]"):
            render(env, scripted("idle", env, 0), outputs, title="")


def test_random_actions_are_legal_and_fixed_by_the_seed() -> None:
    for env_id in ("fastrl/ring-v0", "fastrl/coop-highway-v0"):
        env = make_env(env_id, {})
        obs = np.zeros((env.num_agents, *env.single_observation_space.shape), np.float32)
        alive = np.ones(env.num_agents, np.bool_)
        first, second = (scripted("random", env, 3) for _ in range(2))
        for _ in range(20):
            actions, _ = first(obs, alive, None)
            np.testing.assert_array_equal(actions, second(obs, alive, None)[0])
            assert all(env.single_action_space.contains(action) for action in actions)
    with pytest.raises(RenderError, match="expected idle or random, got 'best'"):
        scripted("best", env, 0)


def test_ages_of_links_are_drawn(tmp_path: Path) -> None:
    options = ["max_agents=5", "comms=37885", "duration=10"]
    path = tmp_path / "ages.png"
    command = ["render", "--env", "fastrl/coop-highway-v0", "--env-options", *options, "--ages", str(path)]
    assert main(command) == 0
    assert path.read_bytes()[:4] == b"\x89PNG"
    env = make_env("fastrl/coop-highway-v0", {"max_agents": 5, "comms": "37885", "duration": 10})
    scenes = [step.drawn for step in moments(env, scripted("idle", env, 0), [3])]
    times, pairs, ages = ages_over_time(scenes)
    assert (
        times.tolist() == list(range(len(scenes)))
        and 4 < len(pairs) <= 20
        and ages.shape == (len(scenes), len(pairs))
    )
    assert np.nanmin(ages) == 1
    steps = np.diff(ages, axis=0)
    # A second older, or as young as can be.
    assert ((steps == 1) | (ages[1:] == 1) | np.isnan(steps)).all()
    with pytest.raises(TrajectoryError, match="there are no radio links to show"):
        draw_ages([make_scene()], tmp_path / "none.png")


def make_scene() -> TrafficScene:
    env = make_env("fastrl/coop-highway-v0", {"max_agents": 2})
    env.reset(seed=0)
    return env.scene(0)


def test_links_are_in_the_pictures() -> None:
    def picture(comms: str) -> NDArray[np.uint8]:
        env = make_env("fastrl/coop-highway-v0", {"max_agents": 6, "comms": comms})
        env.reset(seed=1)
        return env.render()[0]

    assert (picture("perfect") != picture("37885")).any(axis=-1).sum() > 200
