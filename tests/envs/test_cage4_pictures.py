"""Texts, pictures and films of games of CAGE Challenge 4 show what is true."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl.cli.main import main
from fastrl.envs.adapters import parallel_env
from fastrl.envs.cage4.baselines import baseline_act
from fastrl.envs.cage4.env import ACTIONS, HOSTS, RED_KINDS, SUBNETS, Cage4VectorEnv
from fastrl.envs.cage4.game_state import GameState
from fastrl.envs.cage4.network_picture import network_picture
from fastrl.tasks import find
from fastrl.utils.config import ConfigError

HOST = HOSTS.index("operational_zone_b_subnet_user_host_3")
CAUSES = {"work_failed": -7.0, "access_failed": 0.0, "impact": -2.0, "action_cost": -1.0}


def game(phase: int = 1, **changes: Any) -> GameState:
    """A small network in which nothing happens, but for entries of the truth: place and value."""
    hosts = np.zeros(len(HOSTS), np.bool_)
    hosts[[slot for slot in range(len(HOSTS)) if slot % 17 in (0, 1, 2, 4, 11, 16)]] = True
    truth: dict[str, NDArray[Any]] = {
        "hosts": hosts,
        "red_access": np.zeros(len(HOSTS), np.uint8),
        "alerts": np.zeros(len(HOSTS), np.uint8),
        "blocked": np.zeros(8, np.uint16),
        "red_action": np.array([[-1, -1, 0]] * 6, np.int16),
        "blue_action": np.array([[-1, 0]] * 5, np.int16),
    }
    for name, (place, value) in changes.items():
        truth[name][place] = value
    return GameState(230, 500, phase, CAUSES, truth)


# Changes of the truth in operational zone B, and what the text then says.
ZONE, RESTORE = SUBNETS.index("operational_zone_b"), ACTIONS[3].index(f"Restore {HOSTS[HOST]}")
EXPLOIT, SWEEP = RED_KINDS.index("ExploitRemoteService"), RED_KINDS.index("DiscoverRemoteSystems")
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "user": ({"red_access": (HOST, 1)}, ".. u"),
    "root": ({"red_access": (HOST, 2)}, ".. #"),
    "process": ({"alerts": (HOST, 1)}, ".. p"),
    "connection": ({"alerts": (HOST, 2)}, ".. c"),
    "last server": ({"alerts": (17 * ZONE + 16, 1)}, ".    p"),
    "both": ({"alerts": (HOST, 3)}, ".. b"),
    "block": ({"blocked": (ZONE, 1 << 4 | 1 << 8)}, "contractor_network, internet"),
    "blue": ({"blue_action": (3, (RESTORE, 4))}, f"blue_agent_3: Restore {HOSTS[HOST]}, 4 more steps"),
    "red": (
        {"red_action": (2, (EXPLOIT, HOST, 1))},
        f"red_agent_2: ExploitRemoteService {HOSTS[HOST]}, 1 more step",
    ),
    "sweep": (
        {"red_action": (2, (SWEEP, ZONE, 1))},
        "red_agent_2: DiscoverRemoteSystems operational_zone_b, 1 more",
    ),
}


@functools.cache
def drawn(case: str) -> NDArray[np.uint8]:
    return network_picture(game(**CHANGES[case][0]) if case in CHANGES else game())


@pytest.mark.parametrize("case", CHANGES)
def test_a_text_and_a_picture_show_each_change_in_its_place(case: str) -> None:
    changes, said = CHANGES[case]
    before, after = game().text().splitlines(), game(**changes).text().splitlines()
    assert before[0] == "step 230, return -10 (work -7, access 0, impact -2, cost -1), phase 1: mission A"
    (line,) = [new for old, new in zip(before, after, strict=True) if old != new]
    assert said in line and line.startswith(("operational_zone_b ", "blue_agent_3", "red_agent_2"))

    rows, columns = np.nonzero((drawn("nothing") != drawn(case)).any(axis=-1))
    # The box of the subnet, in the second row and column.
    assert len(rows) > 20 and rows.min() >= 296 and rows.max() < 460
    # Hosts stand above the lines.
    assert (rows.min() < 380) == (case not in ("block", "sweep"))
    assert columns.min() >= 276 and columns.max() < 516


def test_pictures_of_changes_differ() -> None:
    later = network_picture(game(phase=2), dpi=50)
    assert len({drawn(case).tobytes() for case in (*CHANGES, "nothing")}) == len(CHANGES) + 1
    assert later.shape == (248, 525, 3) and (later != network_picture(game(), dpi=50)).any()


def test_an_environment_draws_its_games() -> None:
    env = Cage4VectorEnv(2, episode_length=50, num_threads=1)
    env.reset(seed=1)
    act = baseline_act("react", env)
    obs, alive, memory = *env.observe(), None
    for _ in range(20):
        actions, memory = act(obs, alive, memory)
        obs = env.step(actions.reshape(2, 5))[0].reshape(10, -1)
    pictures, texts, truth = env.render(), env.render("ansi"), env.truth()
    assert [picture.shape for picture in pictures] == [(496, 1050, 3)] * 2
    assert (pictures[0] != pictures[1]).any()
    for text, access, causes in zip(texts, truth["red_access"], env.causes()["work_failed"], strict=True):
        assert text.startswith("step 20, return ") and f"work {causes:.0f}," in text
        table = "\n".join(line[20:50] for line in text.splitlines()[2:10])
        assert table.count("u") == (access == 1).sum() and table.count("#") == (access == 2).sum()
    with pytest.raises(ValueError, match=r"^mode: expected 'rgb_array' or 'ansi', got 'human'$"):
        env.render("human")


def test_pettingzoo_draws_in_both_modes() -> None:
    drawn = {}
    for mode in (None, "ansi", "rgb_array"):
        env = parallel_env("fastrl/Cage4-v0", render_mode=mode)
        env.reset(seed=1)
        drawn[mode] = env.render()
        assert env.metadata["render_modes"] == ["rgb_array", "ansi"] and env.metadata["render_fps"] == 4
    assert drawn[None] is None and drawn["ansi"].startswith("step 0") and drawn["rgb_array"].ndim == 3
    message = r"^render_mode: expected None, 'rgb_array', 'ansi'; got 'human'$"
    with pytest.raises(ValueError, match=message):
        parallel_env("fastrl/Cage4-v0", render_mode="human")


def test_a_film_of_a_baseline_ends_with_the_teams_return(tmp_path: Path) -> None:
    task = find("cage4")
    settings = task.make_settings({"env.episode_length": 8})
    with contextlib.closing(task.agent_films("baseline:guard", settings)) as films:
        count, returns = films.film({}, tmp_path / "game.gif", episodes=2, seed=3)
    assert count == 2 * 8 and (tmp_path / "game.gif").stat().st_size > 0
    expected = []
    env = Cage4VectorEnv(1, episode_length=8, autoreset_mode="disabled")
    act = baseline_act("guard", env)
    for seed in (3, 4):
        obs, memory = env.reset(seed=seed)[0], None
        for _ in range(7):
            actions, memory = act(obs[0], np.ones(5, np.bool_), memory)
            obs, *_ = env.step(actions.reshape(1, 5))
        expected.append(sum(causes[0] for causes in env.causes().values()))
    assert returns == expected


def test_films_of_others_are_refused_in_one_line() -> None:
    task = find("cage4")
    settings = task.make_settings({})
    with pytest.raises(ConfigError, match=r"^unknown baseline gard; did you mean guard\?$"):
        task.agent_films("baseline:gard", settings)
    with pytest.raises(ConfigError, match=r"^my_agent:Agent: [^\n]*$"):
        task.agent_films("my_agent:Agent", settings)


@pytest.mark.slow
def test_a_film_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, film = tmp_path / "run", tmp_path / "game.gif"
    options = ["--preset", "smoke", "--total-timesteps", "512", "--env.episode-length", "6"]
    assert main(["train", "cage4", *options, "--run.eval-episodes", "1", "--run-dir", str(run)]) == 0
    capsys.readouterr()
    assert main(["render", str(run), "--out", str(film)]) == 0
    assert capsys.readouterr().out.startswith(f"{film}: 6 pictures, return ")
