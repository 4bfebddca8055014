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
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

import fastrl
from fastrl.envs import Cage2VectorEnv
from fastrl.envs.cage2.env import ACTIONS, HOSTS
from fastrl.play.play import team_seeds
from fastrl.tasks.traffic.render import moments, pictures
from fastrl.tasks.traffic.run_env import run_env

IMAGES = Path(__file__).resolve().parent / "images"
COLUMNS = (
    ("User", ("User0", "User1", "User2", "User3", "User4")),
    ("Enterprise", ("Enterprise0", "Enterprise1", "Enterprise2", "Defender")),
    ("Operational", ("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")),
)
PLACES = {
    host: (column, 4 - row) for column, (_, hosts) in enumerate(COLUMNS) for row, host in enumerate(hosts)
}
# Colours of a host by red's access: none, user, root.
COLOURS = ("#e8edf2", "#f4b942", "#d1495b")
LEGEND = ("#9aa5b1", *COLOURS[1:])
BLUE, GREY = "#2274a5", "#5b6770"


def cage2_moments(run: Path | None, seed: int, steps: int) -> Iterator[dict[str, Any]]:
    """The state after each step of a game against B_line, defended by the policy of a run, or by nobody."""
    policy = None if run is None else fastrl.load_policy(run)
    env = Cage2VectorEnv(
        1, red_agent="bline", memory="none" if policy is None else policy.memory, info_state=True
    )
    obs, info = env.reset(seed=seed)
    score = 0.0
    for _ in range(steps):
        actions = np.zeros(1, np.int64)
        if policy is not None:
            actions = policy.act(obs, deterministic=True, action_mask=env.action_masks())
        obs, rewards, _, _, info = env.step(actions)
        score += float(rewards[0])
        yield {"access": info["red_access"][0], "blue": ACTIONS[env.actions[int(actions[0])]], "score": score}
    env.close()


def draw_network(axes: Any, title: str, moment: dict[str, Any]) -> None:
    """One network: hosts coloured by red's access, and what blue did in this step."""
    axes.set(xlim=(-0.55, 2.55), ylim=(-1.6, 5.5))
    axes.axis("off")
    axes.text(-0.42, 5.15, title, fontsize=10, weight="bold")
    axes.text(2.42, 5.15, f"return {round(moment['score'])}", fontsize=10, weight="bold", ha="right")
    for column, (subnet, _) in enumerate(COLUMNS):
        axes.text(column, 4.55, subnet, fontsize=8, ha="center", color=GREY)
    kind, _, target = moment["blue"].partition(" ")
    for host, (column, row) in PLACES.items():
        access = int(moment["access"][HOSTS.index(host)])
        edge, width = (BLUE, 2.5) if host == target else ("#9aa5b1", 0.8)
        axes.add_patch(
            FancyBboxPatch(
                (column - 0.42, row - 0.28),
                0.84,
                0.5,
                boxstyle="round,pad=0.02,rounding_size=0.08",
                facecolor=COLOURS[access],
                edgecolor=edge,
                linewidth=width,
            )
        )
        colour = "white" if access == 2 else "#22303c"
        axes.text(column, row - 0.03, host, fontsize=7.5, ha="center", va="center", color=colour)
    said = f"{kind} {target}".strip() if target else kind
    axes.text(-0.42, -0.85, "defender: " + said, fontsize=9, color=BLUE)


def cage2_pictures(run: Path, seed: int, steps: int) -> Iterator[Image.Image]:
    """The same attack twice: nobody defends on the left, the trained policy on the right."""
    games = zip(cage2_moments(None, seed, steps), cage2_moments(run, seed, steps), strict=True)
    for step, (left, right) in enumerate(games, 1):
        figure = Figure(figsize=(7.2, 3.2), dpi=100, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        for place, title, moment in ((0, "nobody defends", left), (1, "trained by fastrl", right)):
            axes = figure.add_axes((0.01 + 0.5 * place, 0.0, 0.48, 0.97))
            draw_network(axes, title, moment)
        figure.text(0.03, 0.04, f"step {step} of CAGE Challenge 2", fontsize=8.5, color=GREY)
        for place, access in enumerate(("free", "attacker: user", "root")):
            figure.text(
                0.64 + 0.1 * place + 0.06 * (place == 2),
                0.04,
                f"■ {access}",
                fontsize=8.5,
                color=LEGEND[place],
            )
        canvas.draw()
        yield Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])


def traffic_pictures(run: Path, seed: int, fps: float, seconds: float) -> Iterator[Image.Image]:
    """The vehicles of a run: those that learn are drawn as `render` draws them."""
    env, act = run_env(run, {})
    view = replace(env.view, screen_width=900, screen_height=100)
    seen = moments(env, act, team_seeds(seed, 1))
    for step in itertools.islice(pictures(seen, view, fps=fps, speed=1.0), round(fps * seconds)):
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
