"""Draws the pictures of the environments' pages: python docs/draw_environments.py

A picture is an environment's own, after some steps from a seed; environments without one are drawn here.
Names choose some: python docs/draw_environments.py links workflow
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from fastrl.envs import Cage2VectorEnv, Cage4VectorEnv, make_multi
from fastrl.envs.cage2.env import ACTIONS, HOSTS
from fastrl.envs.cage2.workflow import TYPE_OF_HOST, UNIT_TYPES, parse_workflow
from fastrl.envs.cage4.baselines import make_baseline

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
    """The network of a game of CAGE Challenge 2, with a defender that removes red from its hosts in turn."""
    env = gymnasium.make("fastrl/Cage2-v0", render_mode="rgb_array")
    env.reset(seed=seed)
    for step in range(steps):
        env.step(ACTIONS.index(f"Remove {HOSTS[step]}"))
    picture: Picture = np.asarray(env.render())
    return picture


def cage4(steps: int = 191, seed: int = 34) -> Picture:
    """The network of a game of CAGE Challenge 4 that a scripted team defends."""
    games = Cage4VectorEnv(1)
    obs, _ = games.reset(seed=seed)
    team = make_baseline("react", 1)
    for _ in range(steps):
        obs, *_ = games.step(team.act(obs, games.action_masks(), games.busy()))
    picture: Picture = games.render()[0]
    return picture


def catch(steps: int = 4, seed: int = 0) -> Picture:
    """The observation of Catch, enlarged."""
    env = gymnasium.make("fastrl/Catch-v0")
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        obs, *_ = env.step(2)
    return np.kron(obs, np.ones((20, 20), np.uint8))


def plot(draw: Callable[[Axes], None], size: tuple[float, float]) -> Picture:
    """A chart of Matplotlib.

    Args:
        size: width and height, inches.
    """
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def workflow(steps: int = 36, seed: int = 1) -> Picture:
    """The hosts of each type that red holds in a game whose defender fixes one of them at random, and which of these
    fixes comply with an order."""
    order = parse_workflow("op_server,enterprise,op_host,user,defender")
    games = Cage2VectorEnv(1, red_agent="meander", info_state=True)
    _, info = games.reset(seed=seed)
    random = np.random.default_rng(seed)
    held = np.zeros((len(order), steps), np.int64)
    fixes = []
    for step in range(steps):
        # Red's foothold does not count.
        hosts = [h for h in np.flatnonzero(info["red_access"][0]) if HOSTS[h] != "User0"]
        for host in hosts:
            held[order.index(TYPE_OF_HOST[host]), step] += 1
        action = 0
        if hosts and random.random() < 0.35:
            host = random.choice(hosts)
            place = order.index(TYPE_OF_HOST[host])
            fixes.append((step, place, not held[:place, step].any()))
            action = ACTIONS.index(f"Restore {HOSTS[host]}")
        _, _, _, _, info = games.step(np.array([action]))

    def draw(axes: Axes) -> None:
        axes.imshow(held, cmap="Reds", vmin=0, vmax=4, aspect="auto")
        axes.set_yticks(range(len(order)), [UNIT_TYPES[each].replace("_", " ") for each in order])
        for step, place, complies in fixes:
            colour = "#1a7f37" if complies else "black"
            axes.text(step, place, "✓" if complies else "✗", color=colour, ha="center", va="center")
        for (place, step), count in np.ndenumerate(held):
            if count and (step, place) not in {fix[:2] for fix in fixes}:
                axes.text(step, place, str(count), color="0.35", ha="center", va="center", fontsize=7)
        axes.set(xlabel="step", ylabel="most urgent first")

    return plot(draw, (7.6, 2.4))


def bit_flip(bits: int = 12, seed: int = 4) -> Picture:
    """An episode of bit flipping by the best policy: the bits after each step, the goal below them."""
    env = gymnasium.make("fastrl/BitFlip-v0", bits=bits)
    obs, _ = env.reset(seed=seed)
    goal, rows, over = obs["desired_goal"], [obs["observation"]], False
    while not over:
        obs, _, terminated, truncated, _ = env.step(int(np.argmax(obs["observation"] != goal)))
        rows.append(obs["observation"])
        over = terminated or truncated

    def draw(axes: Axes) -> None:
        shown = np.vstack([*rows, np.full(bits, np.nan), goal])
        wrong = np.vstack([np.stack(rows) != goal, np.zeros((2, bits), np.bool_)])
        colours = ListedColormap(["0.92", "#9ecae1", "#f4a582"])  # 0, 1, another than the goal's
        axes.pcolormesh(np.where(wrong, 2, shown), cmap=colours, vmin=0, vmax=2, edgecolors="white")
        for (row, bit), value in np.ndenumerate(shown):
            if np.isfinite(value):
                axes.text(bit + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=8)
        steps = [f"step {number}" if number else "start" for number in range(len(rows))]
        axes.set_yticks(np.arange(len(shown)) + 0.5, [*steps, "", "goal"])
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    return plot(draw, (4.6, 0.26 * (len(rows) + 2)))


def uneven(num_envs: int = 8, steps: int = 5) -> Picture:
    """Steps of some environments behind a barrier, which all wait for the slowest."""
    durations = np.zeros((num_envs, steps))
    for number in range(num_envs):
        env = gymnasium.make("fastrl/Uneven-v0", step_seconds=0.002, length=steps)
        env.reset(seed=number)
        durations[number] = 1e3 * env.unwrapped.durations
    starts = np.cumsum([0, *durations.max(0)])

    def draw(axes: Axes) -> None:
        for step in range(steps):
            axes.barh(range(num_envs), durations[:, step], left=starts[step], color="#2274a5", height=0.7)
            waits = durations[:, step].max() - durations[:, step]
            left = starts[step] + durations[:, step]
            axes.barh(range(num_envs), waits, left=left, color="0.88", height=0.7)
        for end in starts[1:]:
            axes.axvline(end, color="black", linewidth=0.8)
        axes.set(xlabel="ms", ylabel="environment", xlim=(0, starts[-1]))
        axes.set_yticks(range(num_envs))
        axes.legend(
            handles=[Patch(color="#2274a5", label="steps"), Patch(color="0.88", label="waits")],
            loc="lower right",
            ncols=2,
            bbox_to_anchor=(1, 1),
            frameon=False,
        )

    return plot(draw, (7, 2.6))


# A view of most of the track.
TRACK = {
    "other_vehicles": 12,
    "screen_width": 760,
    "screen_height": 420,
    "scaling": 4.6,
    "centering_position": [0.52, 0.75],
}
# A view of the whole town.
TOWN = {"vehicles_count": 40, "screen_width": 620, "screen_height": 460, "scaling": 1.6}
PICTURES: dict[str, Callable[[], Picture]] = {
    "cage2": cage2,
    "cage4": cage4,
    "highway": lambda: single("fastrl/highway-v0", 6, 1),
    "merge": lambda: single("fastrl/merge-v1", 3, 1),
    "roundabout": lambda: single("fastrl/roundabout-v1", 3, 1),
    "intersection": lambda: single("fastrl/intersection-v2", 4, 1),
    "racetrack": lambda: single("fastrl/racetrack-v1", 4, np.zeros(1, np.float32), 5, config=TRACK),
    "coop": lambda: multi("fastrl/coop-highway-v0", 4, 1, max_agents=8),
    "coop-merge": lambda: multi("fastrl/coop-merge-v0", 5, 1, max_agents=8),
    "links": lambda: multi("fastrl/coop-highway-v0", 8, 1, max_agents=8, comms="37885"),
    "v2x": lambda: multi("fastrl/v2x-resource-v0", 3, 0),
    "lights": lambda: multi("fastrl/lights-v0", 30, 0, net="grid", fixed=True),
    "town": lambda: single("fastrl/road-v0", 8, 1, config=TOWN),
    "ring": lambda: single("fastrl/ring-v0", 300, np.zeros(1, np.float32), drive="humans"),
    "classic": lambda: single("fastrl/CartPole-v1", 8, 1),
    "catch": catch,
    "bit-flip": bit_flip,
    "uneven": uneven,
    "workflow": workflow,
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        image = Image.fromarray(PICTURES[name]())
        image.convert("RGB").quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
