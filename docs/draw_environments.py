"""Draws the pictures of the environments' pages: python docs/draw_environments.py

Each picture is an environment's own, after some steps from a seed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastrl.envs import make_multi
from fastrl.utils.video import text_picture, text_shape

FOLDER = Path(__file__).parent / "environments" / "pictures"
# Pictures have few colours: a palette makes the files several times smaller.
COLOURS = 64

Picture = NDArray[np.uint8]


def single(env_id: str, steps: int, action: Any, seed: int = 0, **options: Any) -> Picture:
    """A picture of a Gymnasium environment after steps of one action."""
    env = gymnasium.make(env_id, render_mode="rgb_array", **options)
    env.reset(seed=seed)
    for _ in range(steps):
        env.step(action)
    picture: Picture = np.asarray(env.render())
    env.close()
    return picture


def multi(env_id: str, steps: int, action: int, seed: int = 0, **options: Any) -> Picture:
    """A picture of an environment of several agents after steps in which all take one action."""
    envs = make_multi(env_id, 1, **options)
    envs.reset(seed=seed)
    for _ in range(steps):
        envs.step(np.full((1, envs.num_agents), action))
    picture: Picture = envs.render()[0]
    return picture


def cage2(steps: int = 12, seed: int = 1) -> Picture:
    """The text that a game of CAGE Challenge 2 shows, with a defender that waits."""
    env = gymnasium.make("fastrl/Cage2-v0", render_mode="ansi")
    env.reset(seed=seed)
    for _ in range(steps):
        env.step(0)
    text = str(env.render())
    return text_picture(text, text_shape(text))


def catch(steps: int = 4, seed: int = 0) -> Picture:
    """The observation of Catch, enlarged."""
    env = gymnasium.make("fastrl/Catch-v0")
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        obs, *_ = env.step(2)
    return np.kron(obs, np.ones((20, 20), np.uint8))


# A view of most of the track.
TRACK = {
    "other_vehicles": 12,
    "screen_width": 760,
    "screen_height": 420,
    "scaling": 4.6,
    "centering_position": [0.52, 0.75],
}
PICTURES: dict[str, Callable[[], Picture]] = {
    "cage2": cage2,
    "highway": lambda: single("fastrl/highway-v0", 6, 1),
    "merge": lambda: single("fastrl/merge-v1", 3, 1),
    "roundabout": lambda: single("fastrl/roundabout-v1", 3, 1),
    "intersection": lambda: single("fastrl/intersection-v2", 4, 1),
    "racetrack": lambda: single("fastrl/racetrack-v1", 4, np.zeros(1, np.float32), 5, config=TRACK),
    "coop": lambda: multi("fastrl/coop-highway-v0", 4, 1, max_agents=8),
    "coop-merge": lambda: multi("fastrl/coop-merge-v0", 5, 1, max_agents=8),
    "v2x": lambda: multi("fastrl/v2x-resource-v0", 3, 0),
    "ring": lambda: single("fastrl/ring-v0", 300, np.zeros(1, np.float32), drive="humans"),
    "catch": catch,
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        image = Image.fromarray(draw())
        image.convert("RGB").quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
