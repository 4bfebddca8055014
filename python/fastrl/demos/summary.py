"""Summary of a data set: a table of facts, and a picture of returns and lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.replay.episodes import EpisodeDataset
from fastrl.utils.files import save_figure
from fastrl.utils.output import figure_text

# Bins of a histogram, and characters of a space that are shown.
_BINS, _SPACE = 40, 160


def describe(demos: EpisodeDataset) -> dict[str, str]:
    """Facts of a data set by name, as text."""
    meta = demos.meta
    env = meta.get("env") or {}
    terminated, truncated = _ends(demos)
    facts = {
        "episodes": f"{len(demos):,}",
        "steps": f"{demos.num_steps:,}",
        "return": _moments(demos.returns),
        "length": _moments(demos.lengths),
        "ends": f"{terminated:,} terminated, {truncated:,} truncated",
        "environment": _words({"id": env.get("id", "unknown"), **(env.get("options") or {})}),
        "expert": _words(meta.get("expert") or {"kind": "unknown"}),
        "noise": _words(meta["noise"]) if meta.get("noise") else "none",
        "seed": "unknown" if meta.get("seed") is None else str(meta["seed"]),
        "observations": _short(demos.obs_space),
        "actions": _short(demos.action_space),
        **_agents(demos),
        "infos": ", ".join(demos.info_names) or "none",
    }
    if meta.get("source"):
        facts["taken from"] = _words(meta["source"])
    return facts


def _agents(demos: EpisodeDataset) -> dict[str, str]:
    """Names of the agents of an environment of many, by group."""
    groups: dict[str, list[str]] = {}
    for each in demos.meta.get("agents") or ():
        groups.setdefault(each["group"], []).append(each["name"])
    return {f"agents, {group}": ", ".join(names) for group, names in groups.items()}


def draw(demos: EpisodeDataset, path: Path) -> None:
    """Draws returns and lengths of the episodes, and both in the order of recording, into a PNG or SVG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6), layout="constrained")
    axes = figure.subplots(2, 2, width_ratios=(2, 1), sharey="row", sharex="col")
    for row, (name, values) in zip(axes, (("return", demos.returns), ("length", demos.lengths)), strict=True):
        left, right = row
        numbers = np.arange(len(values))
        left.plot(numbers, values, ".", markersize=3 if len(values) > 100 else 6, color="C0", alpha=0.6)
        left.axhline(values.mean(), color="C1")
        left.set_title(f"{name}, mean {values.mean():.6g}", loc="left", fontsize="medium")
        left.margins(x=0.02)
        left.grid(alpha=0.3)
        right.hist(
            values, bins=min(_BINS, max(len(np.unique(values)), 1)), orientation="horizontal", color="C0"
        )
        right.grid(alpha=0.3)
    axes[1, 0].set_xlabel("episode")
    axes[1, 1].set_xlabel("episodes")
    env = (demos.meta.get("env") or {}).get("id", "")
    title = f"{env}: {len(demos):,} episodes, {demos.num_steps:,} steps".removeprefix(": ")
    figure.suptitle(figure_text(title))
    save_figure(path, figure, dpi=150)


def _ends(demos: EpisodeDataset) -> tuple[int, int]:
    """Numbers of episodes that were terminated, and of those that were truncated only."""
    terminated = truncated = first = 0
    for shard, starts in demos.parts():
        last = starts + demos.lengths[first : first + len(starts)] - 1
        first += len(starts)
        ended = shard.values("terminated")[last]
        terminated += int(ended.sum())
        truncated += int((shard.values("truncated")[last] & ~ended).sum())
    return terminated, truncated


def _moments(values: NDArray[Any]) -> str:
    return f"mean {values.mean():.6g}, deviation {values.std():.4g}, from {values.min():.6g} to {values.max():.6g}"


def _words(facts: Any) -> str:
    """Facts in one line; the first two, such as kind and name, without their keys."""
    if not isinstance(facts, Mapping):
        return str(facts)
    return ", ".join(
        str(value) if i == 0 or key == "name" else f"{key} {value}"
        for i, (key, value) in enumerate(facts.items())
        if not isinstance(value, Mapping)
    )


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= _SPACE else f"{text[:_SPACE]} ..."
