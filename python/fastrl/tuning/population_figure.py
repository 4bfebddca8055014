"""Figure of a population: scores and settings of its members from generation to generation."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from fastrl.tuning.population import members, parent_of
from fastrl.tuning.progress import brief_value, short_name
from fastrl.tuning.study import Study


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
