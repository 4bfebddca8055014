"""Figures of a search: its history, its trials in parallel coordinates, what their settings matter, its population."""

import importlib.util
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fastrl.runs.metrics import mean_and_error
from fastrl.tuning.phases import Candidate
from fastrl.tuning.population import members, parent_of
from fastrl.tuning.progress import brief_value, short_name
from fastrl.tuning.space import Parameter, Space
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, best_first
from fastrl.utils.files import save_figure

# Trials from which importances can be told, and trees, repetitions of the permutations and seed of the model.
_LEAST, _TREES, _REPEATS, _SEED = 10, 200, 20, 0
_COLOURS = "viridis"


class Importance(NamedTuple):
    """The importance of a setting: the share of the scores' variance that a model loses when its values are shuffled.

    Attributes:
        name: of the parameter.
        mean, error: of that share, over shuffles, and its standard error.
    """

    name: str
    mean: float
    error: float


def draw_history(trials: Sequence[Trial], candidates: Sequence[Candidate], path: Path) -> None:
    """Draws the scores of trials in their order, the best so far, and what candidates had when trained again."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    complete = [trial for trial in trials if not math.isnan(trial.score)]
    stopped = [trial for trial in trials if trial.result is not None and trial.result.state == "pruned"]
    if stopped:
        scores = [trial.result.score for trial in stopped if trial.result is not None]
        axes.plot([trial.number for trial in stopped], scores, "x", color="0.6", label="stopped early")
    axes.plot(
        [trial.number for trial in complete],
        [trial.score for trial in complete],
        "o",
        color="C0",
        markersize=5,
        label="search",
    )
    if complete:
        best = np.maximum.accumulate([trial.score for trial in complete])
        axes.step([trial.number for trial in complete], best, where="post", color="C0", alpha=0.5)
    if candidates:
        axes.errorbar(
            [each.trial.number for each in candidates],
            [each.mean for each in candidates],
            [0.0 if math.isnan(each.error) else each.error for each in candidates],
            fmt="D",
            color="C3",
            capsize=4,
            markersize=5,
            label="trained again, mean and standard error",
        )
    axes.set_xlabel("trial")
    axes.set_ylabel("score")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save_figure(path, figure, dpi=150)


def draw_parallel(space: Space, trials: Sequence[Trial], path: Path) -> None:
    """Draws each complete trial as a line through its settings, the best ones on top; grey ones were stopped early."""
    parameters, scored = space.parameters, best_first(trials)[::-1]
    figure = Figure(figsize=(max(1.15 * len(parameters) + 1.5, 6), 5), layout="constrained")
    axes = figure.subplots()
    scores = np.array([trial.score for trial in scored])
    # By rank: a few bad trials would take all colours otherwise.
    ranks = (np.searchsorted(np.sort(scores), scores, side="right") - 1) / max(len(scores) - 1, 1)
    colours = mpl.colormaps[_COLOURS]
    places = np.arange(len(parameters))
    for trial in trials:
        if trial.result is not None and trial.result.state == "pruned":
            shares = [each.share(trial.point[each.name]) for each in parameters]
            axes.plot(places, shares, color="0.8", linewidth=0.7, zorder=1)
    for trial, rank in zip(scored, ranks, strict=True):
        shares = [each.share(trial.point[each.name]) for each in parameters]
        axes.plot(places, shares, color=colours(rank), alpha=0.25 + 0.6 * rank, linewidth=1 + rank, zorder=2)
    for place, each in enumerate(parameters):
        axes.axvline(place, color="0.7", linewidth=0.8, zorder=0)
        for share, text in _ticks(each):
            axes.annotate(
                text,
                (place, share),
                xytext=(3, 2 if share < 0.5 else -8),
                textcoords="offset points",
                fontsize=7,
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
            )
    axes.set_xticks(places, [short_name(each.name) for each in parameters], rotation=35, ha="right")
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(parameters) - 0.4)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    mappable = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, 1), colours)
    bar = figure.colorbar(mappable, ax=axes, fraction=0.03, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels([brief_value(float(np.quantile(scores, share))) for share in (0, 0.5, 1)])
    bar.set_label("score, by rank")
    save_figure(path, figure, dpi=150)


def _ticks(parameter: Parameter) -> list[tuple[float, str]]:
    """Places on an axis and what is there."""
    if parameter.choices:
        return [(parameter.share(value), brief_value(value)) for value in parameter.choices]
    return [(parameter.share(value), brief_value(value)) for value in (parameter.low, parameter.high)]


def importances(space: Space, trials: Sequence[Trial]) -> list[Importance]:
    """Importances of all settings for the score, largest first: a random forest is fitted to the trials, and
    each setting's values are shuffled in trials that it has not seen, over and over. Empty with too few trials.

    Trials that were stopped early count with their last score.
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]
    from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    known = [trial for trial in trials if trial.result is not None and not math.isnan(trial.result.score)]
    if len(known) < _LEAST or not space.parameters:
        return []
    inputs = np.array([[each.share(trial.point[each.name]) for each in space.parameters] for trial in known])
    scores = np.array([trial.result.score for trial in known if trial.result is not None])
    # Ranks: returns of failures may be a thousand times as large as differences among good trials.
    targets = (rankdata(scores) - 1) / (len(scores) - 1)
    if not np.ptp(targets):
        return []
    generator = np.random.default_rng(_SEED)
    half = np.arange(len(known)) % 2 == 0
    losses = np.zeros((_REPEATS, len(space.parameters)))
    with threadpool_limits(1):
        for repeat in range(_REPEATS):
            seen = generator.permutation(half)
            forest = RandomForestRegressor(
                _TREES // _REPEATS, random_state=repeat, min_samples_leaf=2, max_features=0.6
            )
            forest.fit(inputs[seen], targets[seen])
            tested, true = inputs[~seen], targets[~seen]
            error = np.mean((forest.predict(tested) - true) ** 2)
            for column in range(inputs.shape[1]):
                shuffled = tested.copy()
                shuffled[:, column] = generator.permutation(shuffled[:, column])
                losses[repeat, column] = np.mean((forest.predict(shuffled) - true) ** 2) - error
    losses /= targets.var()
    found = [
        Importance(each.name, *mean_and_error(loss))
        for each, loss in zip(space.parameters, losses.T, strict=True)
    ]
    return sorted(found, key=lambda each: each.mean, reverse=True)


def draw_importances(found: Sequence[Importance], path: Path) -> None:
    """Draws bars of importances with their standard errors."""
    figure = Figure(figsize=(7, 0.32 * len(found) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = [short_name(each.name) for each in found][::-1]
    axes.barh(
        names,
        [each.mean for each in found][::-1],
        xerr=[each.error for each in found][::-1],
        color="C0",
        ecolor="0.3",
        capsize=2,
    )
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_xlabel("share of the variance of ranks that is lost when it is shuffled")
    axes.grid(axis="x", alpha=0.3)
    save_figure(path, figure, dpi=150)


def population_figure(study: Study) -> Figure:
    """Draws a panel of scores and one of each setting, over generations. A line leads from each part of a member to the
    part that it continues from, so that copies of the best are seen to branch off.

    Args:
        study: of method "pbt", with at least one generation that has ended.
    """
    counted = itertools.takewhile(bool, (members(study, generation) for generation in itertools.count()))
    generations = [trials for trials in counted if all(trial.result is not None for trial in trials)]
    parameters = study.space.parameters
    panels = 1 + len(parameters)
    figure = Figure(figsize=(7, 2.2 * panels), layout="constrained")
    axes = np.atleast_1d(figure.subplots(panels, 1, sharex=True))
    names = ["score", *(short_name(parameter.name) for parameter in parameters)]
    for name, panel, parameter in zip(names, axes, (None, *parameters), strict=True):
        values = [
            [
                trial.score if parameter is None else parameter.share(trial.point[parameter.name])
                for trial in trials
            ]
            for trials in generations
        ]
        for generation, row in enumerate(values):
            for member, value in enumerate(row):
                if generation:
                    parent = parent_of(study, generation, member)
                    copied = parent != member
                    panel.plot(
                        [generation - 1, generation],
                        [values[generation - 1][parent], value],
                        color=f"C{parent % 10}",
                        linewidth=1,
                        linestyle="--" if copied else "-",
                    )
                panel.plot(generation, value, "o", color=f"C{member % 10}", markersize=3)
        panel.set_ylabel(name)
        if parameter is not None:
            panel.set_ylim(-0.05, 1.05)
            panel.set_yticks([0, 1], [brief_value(parameter.at(share)) for share in (0, 1)])
        panel.grid(alpha=0.3)
    axes[-1].set_xlabel("generation (dashed: copied from another member)")
    axes[-1].set_xticks(range(len(generations)))
    return figure


def draw(study: Study, candidates: Sequence[Candidate]) -> list[Path]:
    """Draws all figures that the trials of a search suffice for; returns their files. Importances need
    scikit-learn."""
    space, trials, directory = study.space, study.of_search(), study.directory
    files = []
    if best_first(trials):
        files += [directory / "history.png", directory / "parallel.png"]
        draw_history(trials, candidates, files[0])
        draw_parallel(space, trials, files[1])
        if importlib.util.find_spec("sklearn") and (found := importances(space, trials)):
            files.append(directory / "importances.png")
            draw_importances(found, files[-1])
    if study.config.method == "pbt":
        files.append(directory / "population.png")
        save_figure(files[-1], population_figure(study), dpi=150)
    return files
