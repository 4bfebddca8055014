"""Trajectories of vehicles as arrays, to save, load and draw.

A time-space diagram shows each car as a line, coloured by its speed: waves of slow traffic run backwards through it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.errors import UserError
from fastrl.utils.files import atomic_file, open_file, save_figure
from fastrl.utils.output import figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastrl._native._rust import TrafficScene

VERSION = 1
# The colours of speeds in the pictures (rust/core/src/traffic/raster), with the middle darker for white paper.
COLOURS = ("#e2402c", "#fa9654", "#e3c04a", "#5fb0d8", "#2f6fd0")
# The most lanes that get a panel each.
MOST_PANELS = 6
# The approximate limit of the points of each car's line.
MOST_POINTS = 2000


class TrajectoryError(UserError):
    """A log that cannot be read, or that lacks what is asked for."""


@dataclass(frozen=True)
class Trajectories:
    """F moments of one or several episodes, C cars, A agents, L lanes. The first moment of an episode is its reset.

    Attributes:
        env: id of the environment.
        time: float64 [F], s since the episode's beginning. episode: int64 [F], counts from 0.
        present: bool [F, C], the car is on the road. Where it is not, the numbers below are NaN or -1.
        x, y: float64 [F, C], m, the car's centre. heading: float64 [F, C], rad, from x to y.
        speed: float64 [F, C], m/s.
        lane: int64 [F, C]. along: float64 [F, C], m along the lane.
        crashed: bool [F, C].
        agent: int64 [F, C], the index of the agent that drives the car, -1 for other traffic.
        length, width: float64 [C], m.
        alive: bool [F, A], the agent acts after this moment. reward: float32 [F, A], of the step before this moment, 0
            at resets.
        lane_lengths: float64 [L], m, of the last episode. closed: the lanes are rings.
        speeds: float64 [2], m/s: the range of the colours.
    """

    env: str
    time: NDArray[np.float64]
    episode: NDArray[np.int64]
    present: NDArray[np.bool_]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    heading: NDArray[np.float64]
    speed: NDArray[np.float64]
    lane: NDArray[np.int64]
    along: NDArray[np.float64]
    crashed: NDArray[np.bool_]
    agent: NDArray[np.int64]
    length: NDArray[np.float64]
    width: NDArray[np.float64]
    alive: NDArray[np.bool_]
    reward: NDArray[np.float32]
    lane_lengths: NDArray[np.float64]
    closed: bool
    speeds: NDArray[np.float64]

    def save(self, path: Path) -> None:
        """Writes a compressed .npz: an array by the name of each attribute, and `version`. `numpy.load` reads it."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        with atomic_file(path) as file:
            np.savez_compressed(file, version=VERSION, **arrays)

    @classmethod
    def load(cls, path: Path) -> Trajectories:
        """Reads a file of `save`.

        Raises:
            TrajectoryError: the file is none of `save`.
        """
        try:
            with open_file(path) as opened, np.load(opened, allow_pickle=False) as file:
                arrays: dict[str, Any] = {name: file[name] for name in file.files}
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            raise TrajectoryError(f"{path} is no trajectory log: {error}") from None
        if "version" not in arrays:
            raise TrajectoryError(f"{path} is no trajectory log")
        if arrays.pop("version") != VERSION:
            raise TrajectoryError(f"{path} was written by another version of fastrl")
        names = {field.name for field in fields(cls)}
        if set(arrays) != names:
            raise TrajectoryError(
                f"{path} is no trajectory log: {sorted(names ^ set(arrays))} are missing or unknown"
            )
        return cls(**arrays | {"env": str(arrays["env"]), "closed": bool(arrays["closed"])})


class Recorder:
    """A recorder that collects `Trajectories`, one moment at a time.

    Args:
        env: id of the environment.
        num_agents: A.
    """

    def __init__(self, env: str, num_agents: int) -> None:
        self._env = env
        self._num_agents = num_agents
        self._scenes: list[TrafficScene] = []
        self._episodes: list[int] = []
        self._alive: list[NDArray[np.bool_]] = []
        self._rewards: list[NDArray[np.float32]] = []

    def add(
        self, scene: TrafficScene, episode: int, alive: NDArray[np.bool_], reward: NDArray[np.float32] | None
    ) -> None:
        """Records a moment; `alive` and `reward` are [A] and are kept, not copied."""
        self._scenes.append(scene)
        self._episodes.append(episode)
        self._alive.append(alive)
        self._rewards.append(np.zeros(self._num_agents, np.float32) if reward is None else reward)

    def trajectories(self) -> Trajectories:
        """All recorded moments."""
        cars = [scene.cars() for scene in self._scenes]
        frames = len(cars)
        count = 1 + max((int(moment["id"].max()) for moment in cars if len(moment["id"])), default=-1)

        def table(name: str, fill: Any, dtype: type) -> NDArray[Any]:
            values: NDArray[Any] = np.full((frames, count), fill, dtype)
            for row, moment in zip(values, cars, strict=True):
                row[moment["id"]] = moment[name]
            return values

        sizes = {
            name: np.fmax.reduce(table(name, np.nan, np.float64), axis=0, initial=np.nan)
            for name in ("length", "width")
        }
        last = self._scenes[-1] if self._scenes else None
        return Trajectories(
            env=self._env,
            time=np.array([scene.time for scene in self._scenes], np.float64),
            episode=np.array(self._episodes, np.int64),
            present=table("id", -1, np.int64) >= 0,
            crashed=table("crashed", False, np.bool_),
            **{name: table(name, np.nan, np.float64) for name in ("x", "y", "heading", "speed", "along")},
            **{name: table(name, -1, np.int64) for name in ("lane", "agent")},
            **sizes,
            alive=np.array(self._alive, np.bool_).reshape(frames, self._num_agents),
            reward=np.array(self._rewards, np.float32).reshape(frames, self._num_agents),
            lane_lengths=np.array([] if last is None else last.lane_lengths, np.float64),
            closed=last is not None and last.closed,
            speeds=np.array((0.0, 1.0) if last is None else last.speeds, np.float64),
        )


def time_space_lines(
    trajectories: Trajectories, episode: int, lane: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """The line segments of one lane's diagram: ends float64 [S, 2, 2] as (s, m), speeds float64 [S], and bool [S], an
    agent drives. A line is interrupted where its car passes the end of a closed lane."""
    rows = trajectories.episode == episode
    step = max(int(rows.sum()) // MOST_POINTS, 1)
    time = trajectories.time[rows][::step]
    along, speed, here, agent = (
        getattr(trajectories, name)[rows][::step] for name in ("along", "speed", "lane", "agent")
    )
    on = here == lane
    joined = on[:-1] & on[1:]
    if trajectories.closed:
        jump = np.abs(np.diff(along, axis=0)) > trajectories.lane_lengths[lane] / 2
        joined &= ~jump
    moment, car = np.nonzero(joined)
    starts = np.stack([time[moment], along[moment, car]], axis=-1)
    ends = np.stack([time[moment + 1], along[moment + 1, car]], axis=-1)
    speeds = (speed[moment, car] + speed[moment + 1, car]) / 2
    return np.stack([starts, ends], axis=1), speeds, agent[moment, car] >= 0


def draw_time_space(trajectories: Trajectories, path: Path, *, episode: int = 0, title: str = "") -> None:
    """Writes the time-space diagram as a picture in the format of the suffix (PNG without one): a panel for each lane,
    a line for each car, coloured by speed; agents have a black edge.

    Raises:
        TrajectoryError: the format is not known, or the episode has no cars.
    """
    # The import is slow and needed for drawing only.
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    lanes = lanes_with_traffic(trajectories, episode)
    if not lanes:
        raise TrajectoryError(f"episode {episode} has no cars")
    height = 5.0 if len(lanes) == 1 else 2.2 * len(lanes) + 0.8
    figure = Figure(figsize=(11, height), layout="constrained", dpi=110)
    panels = figure.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    colours = LinearSegmentedColormap.from_list("speed", COLOURS)
    slow, fast = trajectories.speeds
    wide = 1.3 if trajectories.present.shape[1] < 60 else 0.9
    times = trajectories.time[trajectories.episode == episode]
    lines = None
    for panel, lane in zip(panels, lanes, strict=True):
        pieces, speeds, driven = time_space_lines(trajectories, episode, lane)
        panel.add_collection(
            LineCollection(list(pieces[driven]), colors="black", linewidths=wide + 2.0, capstyle="round")
        )
        lines = LineCollection(list(pieces), cmap=colours, linewidths=wide, capstyle="round")
        lines.set_array(speeds)
        lines.set_clim(slow, fast)
        panel.add_collection(lines)
        panel.set_xlim(times.min(), max(times.max(), times.min() + 1e-3))
        if trajectories.closed:
            panel.set_ylim(0, trajectories.lane_lengths[lane])
        else:
            panel.autoscale(axis="y")
        where = "position on the ring" if trajectories.closed else f"lane {lane}, position"
        panel.set_ylabel(f"{where} (m)")
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time (s)")
    edges = " (black edge: agents' vehicles)" if (trajectories.agent >= 0).any() else ""
    figure.suptitle(figure_text(f"{title or trajectories.env}{edges}"), fontsize=11)
    assert lines is not None
    figure.colorbar(lines, ax=list(panels), label="speed (m/s)", pad=0.01, aspect=30)
    save_diagram(path, figure)


def lanes_with_traffic(trajectories: Trajectories, episode: int) -> Sequence[int]:
    """The lanes that get a panel: those with traffic, the busiest ones if there are too many."""
    lane = trajectories.lane[(trajectories.episode == episode)]
    lanes, counts = np.unique(lane[lane >= 0], return_counts=True)
    return sorted(lanes[np.argsort(-counts, kind="stable")][:MOST_PANELS].tolist())


def save_diagram(path: Path, figure: Figure) -> None:
    """Writes a figure in the format that the suffix names.

    Raises:
        TrajectoryError: the format is not known.
    """
    known = figure.canvas.get_supported_filetypes()
    if (path.suffix.lower().removeprefix(".") or "png") not in known:
        raise TrajectoryError(
            f"{path}: expected a name that ends in {', '.join('.' + name for name in known)}"
        )
    save_figure(path, figure)
