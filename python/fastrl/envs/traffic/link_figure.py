"""A diagram of the age of information on radio links over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.trajectories import TrajectoryError, save_diagram

if TYPE_CHECKING:
    from fastrl._native._rust import TrafficScene


def ages_over_time(
    scenes: Sequence[TrafficScene],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Ages of information at moments of one episode: times float64 [F] in s, the links int64 [L, 2] (ids of sender and
    receiver), and ages float64 [F, L] in s, NaN where the link was not there."""
    times = np.array([scene.time for scene in scenes], np.float64)
    links = [scene.links() for scene in scenes]
    ends = [np.stack([each["sender"], each["receiver"]], axis=1) for each in links]
    pairs, place = np.unique(np.concatenate([np.empty((0, 2), np.int64), *ends]), axis=0, return_inverse=True)
    ages = np.full((len(scenes), len(pairs)), np.nan)
    frames = np.repeat(np.arange(len(scenes)), [len(each) for each in ends])
    ages[frames, place.ravel()] = np.concatenate([np.empty(0), *(each["age"] for each in links)])
    return times, pairs, ages


def draw_ages(scenes: Sequence[TrafficScene], path: Path, *, title: str = "") -> None:
    """Writes the diagram as a picture in the format of the suffix (PNG without one): a faint line for each link, the
    mean over the links, and the age that nine tenths of them do not exceed.

    Raises:
        TrajectoryError: the format is not known, or the episode has no links.
    """
    # The import is slow and needed for drawing only.
    from matplotlib.figure import Figure

    times, pairs, ages = ages_over_time(scenes)
    if not len(pairs):
        raise TrajectoryError(f"{path}: there are no radio links to show; choose comms=37885 or comms=range")
    figure = Figure(figsize=(9, 4.2), layout="constrained", dpi=110)
    axes = figure.subplots()
    axes.plot(times, ages, color="0.45", linewidth=0.5, alpha=0.25, drawstyle="steps-post")
    some = np.isfinite(ages).any(axis=1)
    axes.plot(times[some], np.nanmean(ages[some], axis=1), color="#2f6fd0", linewidth=2.2, label="mean")
    axes.plot(
        times[some],
        np.nanquantile(ages[some], 0.9, axis=1),
        color="#e2402c",
        linewidth=1.5,
        linestyle="--",
        label="nine tenths are below",
    )
    axes.set_xlabel("time (s)")
    axes.set_ylabel("age of information (s)")
    axes.set_ylim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    axes.set_title(title or f"{len(pairs)} links", fontsize=11)
    save_diagram(path, figure)
