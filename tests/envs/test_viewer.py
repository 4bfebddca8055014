"""Pictures of traffic from the environments, and the window."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl.envs import make_multi
from fastrl.envs.traffic.ring import RingVectorEnv
from fastrl.envs.viewer import View

GREEN = np.array((40, 240, 90))


def places(picture: NDArray[np.uint8], colour: NDArray[np.int64], tolerance: int = 3) -> NDArray[np.int64]:
    """The pixels of about that colour: (row, column), int64 [P, 2]."""
    return np.argwhere((np.abs(picture.astype(int) - colour) <= tolerance).all(axis=-1))


def ring(**options: Any) -> RingVectorEnv:
    return RingVectorEnv(num_threads=1, warmup_steps=20, **options)


def test_a_vector_environment_renders_a_picture_of_each_environment() -> None:
    env = ring(num_envs=3, render_mode="rgb_array")
    env.reset(seed=4)
    pictures = env.render()
    assert pictures is not None and len(pictures) == 3
    assert all(picture.shape == (600, 600, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert not np.array_equal(pictures[0], pictures[1]), "each ring has its own length"
    assert env.metadata["render_fps"] == 10.0
    env.close()


def test_the_agent_is_drawn_at_its_position() -> None:
    env = make_multi("fastrl/ring-v0", 1, num_threads=1, warmup_steps=0)
    env.reset(seed=1)
    cars = env.scene().cars()
    (row,) = np.flatnonzero(cars["agent"] == 0)
    whole = np.array([(cars["x"].min() + cars["x"].max()) / 2, (cars["y"].min() + cars["y"].max()) / 2])
    green = places(env.render()[0], GREEN).mean(axis=0)
    offset = green[::-1] - 300
    expected = np.array([cars["x"][row], cars["y"][row]]) - whole
    cosine = offset @ expected / np.linalg.norm(offset) / np.linalg.norm(expected)
    assert cosine > 0.95, (offset, expected)
    env.close()


def test_a_picture_changes_only_if_cars_move() -> None:
    env = ring(num_envs=1, render_mode="rgb_array")
    env.reset(seed=4)
    before = env.render()
    again = env.render()
    env.step(np.zeros((1, 1), np.float32))
    after = env.render()
    assert before is not None and again is not None and after is not None
    assert np.array_equal(before[0], again[0])
    assert not np.array_equal(before[0], after[0])
    env.close()


def test_gymnasium_makes_it_with_a_render_mode() -> None:
    env = gymnasium.make("fastrl/ring-v0", render_mode="rgb_array", warmup_steps=0)
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray) and picture.shape == (600, 600, 3)
    env.close()


@pytest.mark.parametrize("env_id", ["fastrl/highway-v0", "fastrl/highway-fast-v0"])
def test_the_highways_picture_follows_its_config(env_id: str) -> None:
    config = {"screen_width": 700, "screen_height": 200, "scaling": 6.0, "centering_position": [0.5, 0.5]}
    env = gymnasium.make(env_id, render_mode="rgb_array", config=config)
    env.reset(seed=3)
    env.step(1)
    picture = env.render()
    assert isinstance(picture, np.ndarray) and picture.shape == (200, 700, 3)
    green = places(picture, GREEN)
    assert abs(green[:, 1].mean() - 350) < 6, "the agent is where centering_position says"
    # Five metres by two at six pixels a metre, with its outline.
    assert 30 <= np.ptp(green[:, 1]) <= 40 and 12 <= np.ptp(green[:, 0]) <= 22
    env.close()


def test_the_highways_picture_moves_with_its_config() -> None:
    env = gymnasium.make("fastrl/highway-v0", render_mode="rgb_array")
    env.reset(seed=3)
    small = env.render()
    env.reset(seed=3, options={"config": {"screen_width": 300, "show_trajectories": True}})
    first = env.render()
    env.step(1)
    second = env.render()
    assert isinstance(small, np.ndarray) and isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    assert [picture.shape for picture in (small, first, second)] == [
        (150, 600, 3),
        (150, 300, 3),
        (150, 300, 3),
    ]
    env.close()


@pytest.mark.parametrize("env_id", ["fastrl/coop-highway-v0", "fastrl/coop-merge-v0"])
def test_all_agents_are_in_the_picture(env_id: str) -> None:
    env = make_multi(env_id, 2, num_threads=1, max_agents=6)
    env.reset(seed=1)
    for picture, i in zip(env.render(), range(2), strict=True):
        green = np.unique(places(picture, GREEN)[:, 1])
        assert green.min() > 0 and green.max() < picture.shape[1] - 1
        assert np.count_nonzero(env.scene(i).cars()["agent"] >= 0) == 6
        groups = 1 + np.count_nonzero(np.diff(green) > 3)
        assert 2 <= groups <= 12
    env.close()


def test_pettingzoo_renders_its_environment() -> None:
    pettingzoo = pytest.importorskip("fastrl.envs.adapters.pettingzoo")

    def make() -> Any:
        return make_multi("fastrl/coop-merge-v0", 1, num_threads=1, max_agents=4, autoreset_mode="disabled")

    env = pettingzoo.PettingZooEnv(make(), render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.step(dict.fromkeys(env.agents, 1))
    second = env.render()
    assert first.shape == second.shape == (160, 1000, 3) and not np.array_equal(first, second)
    env.close()
    assert pettingzoo.PettingZooEnv(make()).render() is None
    with pytest.raises(ValueError, match="render_mode"):
        pettingzoo.PettingZooEnv(make(), render_mode="ansi")


def test_an_unknown_render_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="expected None or 'rgb_array', 'human', got 'ascii'"):
        ring(num_envs=1, render_mode="ascii")


def test_scenes_have_columns_of_cars() -> None:
    env = make_multi("fastrl/ring-v0", 2, num_threads=1, warmup_steps=0, num_vehicles=9, num_agents=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.scene()
    env.reset(seed=0)
    scene = env.scene(1)
    cars = scene.cars()
    assert cars["id"].tolist() == list(range(9))
    assert sorted(cars["agent"].tolist()) == [-1] * 6 + [0, 1, 2]
    assert scene.closed and len(scene.lane_lengths) == 1 and 220 <= scene.lane_lengths[0] <= 270
    assert scene.time == 0.0 and not cars["crashed"].any()
    with pytest.raises(IndexError, match="expected 0 to 1, got 2"):
        env.scene(2)
    env.close()


def test_a_scene_is_interpolated_between_two() -> None:
    env = make_multi("fastrl/ring-v0", 1, num_threads=1, warmup_steps=100)
    env.reset(seed=0)
    first = env.scene()
    env.step(np.zeros((1, 1, 1), np.float32))
    second = env.scene()
    middle = first.between(second, 0.5)
    assert middle.time == pytest.approx((first.time + second.time) / 2)
    a, m, b = (scene.cars() for scene in (first, middle, second))
    for axis in "xy":
        np.testing.assert_allclose(m[axis], (a[axis] + b[axis]) / 2, atol=0.01)
    np.testing.assert_allclose(m["speed"], (a["speed"] + b["speed"]) / 2)
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="share: expected 0 to 1"):
            first.between(second, share)
    env.close()


def test_a_view_has_any_size() -> None:
    env = make_multi("fastrl/ring-v0", 1, num_threads=1, warmup_steps=0)
    env.reset(seed=0)
    for width, height in ((1, 1), (33, 200), (640, 17)):
        env.view = View(screen_width=width, screen_height=height)
        assert env.render()[0].shape == (height, width, 3)
    with_legend = View().draw(env.scene())
    without = View(legend=False).draw(env.scene())
    changed = np.argwhere((with_legend != without).any(axis=-1))[:, 0]
    assert changed.min() >= 130, "the legend is a strip along the lower edge"
    env.close()


def test_a_road_fills_a_view_of_its_own_height() -> None:
    view = View(screen_width=1000, screen_height=160)
    heights = {}
    for lanes in (2, 3, 4):
        env = make_multi("fastrl/coop-highway-v0", 1, max_agents=2, lanes=lanes)
        env.reset(seed=0)
        filled = view.filled(env.scene())
        heights[lanes] = filled.screen_height
        assert filled == View(screen_width=1000, screen_height=heights[lanes])
        assert filled.draw(env.scene()).shape == (heights[lanes], 1000, 3)
        assert View(screen_width=1000, screen_height=40).filled(env.scene()).screen_height == 40
    assert heights[2] < heights[3] < heights[4] < 160
    assert all(height % 2 == 0 for height in heights.values())


def test_trajectories_leave_a_trace() -> None:
    env = make_multi("fastrl/ring-v0", 1, num_threads=1, warmup_steps=200)
    env.reset(seed=0)
    first = env.scene()
    for _ in range(20):
        env.step(np.zeros((1, 1, 1), np.float32))
    view = View(screen_width=300, screen_height=300, legend=False)
    assert not np.array_equal(view.draw(env.scene()), view.draw(env.scene(), [first]))
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"screen_width": 0}, "screen_width: expected 1 to 16384, got 0"),
        ({"screen_height": 10**6}, "screen_height"),
        ({"scaling": 0}, "scaling: expected pixels a metre above 0"),
        ({"scaling": np.nan}, "scaling"),
        ({"centering_position": (0.5,)}, "centering_position: expected two numbers"),
        ({"centering_position": (np.inf, 0)}, "centering_position"),
    ],
)
def test_an_invalid_view_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View(**options)


def test_a_view_is_read_from_highway_envs_config() -> None:
    config = {"screen_width": 800, "scaling": 4.0, "centering_position": [0.5, 0.5], "lanes_count": 4}
    view = View.of_config(config)
    assert (view.screen_width, view.screen_height, view.scaling) == (800, 150, 4.0)
    with pytest.raises(TypeError, match="screen_width: expected an integer, got '800'"):
        View.of_config({"screen_width": "800"})


def run(code: str) -> str:
    """Runs Python with SDL's dummy display, in a process of its own, because pygame's state is global."""
    environment = os.environ | {"SDL_VIDEODRIVER": "dummy"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip().splitlines()[-1]


def test_the_window_shows_each_step() -> None:
    pytest.importorskip("pygame", reason="pygame, of the extra render, is not installed")
    shown = run(
        """
        import numpy as np, pygame
        from fastrl.envs.traffic.ring import RingVectorEnv
        from fastrl.envs.viewer import Window
        shown = []
        show = Window.show
        Window.show = lambda self, picture: (shown.append(picture.copy()), show(self, picture))
        env = RingVectorEnv(1, num_threads=1, warmup_steps=0, render_mode="human")
        env.reset(seed=0)
        for _ in range(2):
            env.step(np.zeros((1, 1), np.float32))
        surface = pygame.display.get_surface()
        same = np.array_equal(pygame.surfarray.array3d(surface).swapaxes(0, 1), shown[-1])
        env.close()
        env.close()
        print(len(shown), same, pygame.display.get_init())
        """
    )
    assert shown == "3 True False"


@pytest.mark.slow
def test_the_window_shows_road_networks() -> None:
    pytest.importorskip("pygame", reason="pygame, of the extra render, is not installed")
    shown = run(
        """
        import gymnasium, numpy as np, pygame
        import fastrl
        sizes = []
        for name in ("racetrack-v0", "intersection-multi-agent-v0", "parking-v0"):
            env = gymnasium.make(f"fastrl/{name}", render_mode="human")
            env.reset(seed=0)
            env.step(env.action_space.sample())
            pixels = pygame.surfarray.array3d(pygame.display.get_surface()).reshape(-1, 3)
            sizes.append(len(np.unique(pixels, axis=0)) > 50)
            env.close()
        print(sizes, pygame.display.get_init())
        """
    )
    assert shown == "[True, True, True] False"


def test_without_pygame_the_extra_is_named() -> None:
    printed = run(
        """
        import sys
        sys.modules["pygame"] = None
        from fastrl.envs.traffic.ring import RingVectorEnv
        try:
            RingVectorEnv(1, render_mode="human")
        except ImportError as error:
            print(error)
        """
    )
    assert 'pip install "fastrl[render]"' in printed
