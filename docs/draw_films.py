"""Draws the films of the README, docs/images/cage2.gif and docs/images/traffic.gif, from two run directories:

fastrl-train cage2 --run-dir runs/cage2
fastrl-train traffic --preset performance --vehicles 12 --total-episodes 800 --eval-freq 0 --run-dir runs/traffic
python docs/draw_films.py --cage2 runs/cage2 --traffic runs/traffic
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import fastrl
from fastrl.envs import Cage2VectorEnv
from fastrl.envs.cage2.env import ACTIONS
from fastrl.envs.cage2.network_picture import NetworkState, network_picture
from fastrl.play.film import drawn_scenes
from fastrl.play.play import team_seeds
from fastrl.tasks.traffic.render import moments
from fastrl.tasks.traffic.run_env import run_env

IMAGES = Path(__file__).resolve().parent / "images"


def cage2_states(run: Path | None, seed: int, steps: int) -> Iterator[NetworkState]:
    """The state after each step of a game against B_line, defended by the policy of a run, or by nobody."""
    policy = None if run is None else fastrl.load_policy(run)
    title = "nobody defends" if run is None else "trained by fastrl"
    env = Cage2VectorEnv(
        1, red_agent="bline", memory="none" if policy is None else policy.memory, info_state=True
    )
    obs, info = env.reset(seed=seed)
    total = 0.0
    for _ in range(steps):
        actions = np.zeros(1, np.int64)
        if policy is not None:
            actions = policy.act(obs, deterministic=True, action_mask=env.action_masks())
        obs, rewards, _, _, info = env.step(actions)
        total += float(rewards[0])
        yield NetworkState(title, info["red_access"][0], ACTIONS[env.actions[int(actions[0])]], total)
    env.close()


def cage2_pictures(run: Path, seed: int, steps: int) -> Iterator[Image.Image]:
    """The same attack twice: nobody defends on the left, the trained policy on the right."""
    games = zip(cage2_states(None, seed, steps), cage2_states(run, seed, steps), strict=True)
    for step, states in enumerate(games, 1):
        yield Image.fromarray(network_picture(*states, note=f"step {step} of CAGE Challenge 2"))


def traffic_pictures(run: Path, seed: int, fps: float, seconds: float) -> Iterator[Image.Image]:
    """The vehicles of a run: those that learn are drawn as `render` draws them."""
    env, act = run_env(run, {})
    view = replace(env.view, screen_width=900, screen_height=100)
    seen = moments(env, act, team_seeds(seed, 1))
    for step in itertools.islice(drawn_scenes(seen, view, fps=fps, fill=False), round(fps * seconds)):
        yield Image.fromarray(step.drawn)
    env.close()


def save_gif(path: Path, frames: Iterator[Image.Image], fps: float, colours: int, hold: float) -> None:
    """A GIF with one palette, whose last picture stays for `hold` seconds."""
    found = list(frames)
    # Colours of small areas count as much as those of large ones.
    seen = sorted({colour for frame in found for _, colour in frame.getcolors(1 << 24) or ()})
    palette = Image.new("RGB", (len(seen), 1))
    palette.putdata(seen)
    chart = palette.quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    reduced = [frame.quantize(palette=chart, dither=Image.Dither.NONE) for frame in found]
    times = [round(1000 / fps)] * (len(reduced) - 1) + [round(1000 * hold)]
    reduced[0].save(path, save_all=True, append_images=reduced[1:], duration=times, loop=0, optimize=True)
    print(f"{path}: {len(reduced)} pictures, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cage2", type=Path, required=True, help="run directory of the task cage2")
    parser.add_argument("--traffic", type=Path, required=True, help="run directory of the task traffic")
    parser.add_argument("--seed", type=int, default=1, help="of both episodes")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the films")
    options = parser.parse_args()
    save_gif(
        options.out / "traffic.gif", traffic_pictures(options.traffic, options.seed, 10, 16), 10, 64, 1.5
    )
    save_gif(options.out / "cage2.gif", cage2_pictures(options.cage2, options.seed, 40), 3, 48, 3.0)
