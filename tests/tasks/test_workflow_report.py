import math

import pytest
from workflow_fakes import ORDERS, Hidden

from fastrl.tasks.workflow.figure import draw
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.report import Report, report_of
from fastrl.tasks.workflow.settings import SearchConfig
from fastrl.tasks.workflow.strategies import make_search

PLAIN = Outcome((), 1000, -15.0, 0.1, 0.4, 0.01)


def report(orders: int = 120, **hidden: object) -> Report:
    search = make_search(
        SearchConfig(method="random"), ORDERS[:orders], 4000, min_episodes=20, min_learning_episodes=20
    )
    return report_of(Hidden(**hidden).run(search))  # type: ignore[arg-type]


def drawn(picture: Report, plain: Outcome | None = None) -> tuple[list[str], list[str]]:
    """The panels' labels, and the entries of the first panel's legend."""
    figure = draw(picture, plain)
    return (
        [axes.get_ylabel().partition(":")[0] for axes in figure.axes],
        [text.get_text() for text in figure.axes[0].get_legend().get_texts()],
    )


def test_a_search_is_drawn_with_its_regret_and_plain_ppo() -> None:
    panels, legend = drawn(report(), PLAIN)
    assert panels == ["return of an episode", "regret", "compliance"]
    assert legend == [
        "trial, counts",
        "trained to the end, counts",
        "best so far",
        "PPO without workflows, after as many episodes",
    ]
    figure = draw(report(), PLAIN)
    for axes, value in ((figure.axes[0], PLAIN.mean_return), (figure.axes[2], PLAIN.compliance)):
        lines = [line.get_ydata() for line in axes.get_lines() if line.get_linestyle() == "--"]
        assert lines == [[value, value]]


@pytest.mark.parametrize("most", [0.0, 0.5])
def test_what_does_not_count_has_no_regret_and_no_best(most: float) -> None:
    picture = report(most=most)
    assert all(math.isnan(step.best) for step in picture.steps)
    panels, legend = drawn(picture)
    assert panels == ["return of an episode", "compliance"]
    assert legend == ["trial, does not count", "trained to the end, does not count"]


def test_a_single_point_that_counts_makes_no_line() -> None:
    picture = report(most=0.5)
    last = picture.steps[-1]
    outcome = Outcome(**(vars(last.outcome) | {"compliance": 1.0}))
    counting = type(last)(last.number, last.used, outcome, True, True, outcome.mean_return)
    picture = Report(**(vars(picture) | {"steps": (*picture.steps[:-1], counting)}))
    panels, legend = drawn(picture)
    assert panels == ["return of an episode", "compliance"]
    assert "best so far" not in legend


def test_one_given_order_is_no_search() -> None:
    picture = report(orders=1)
    panels, legend = drawn(picture)
    assert panels == ["return of an episode", "compliance"]
    assert legend[0] == "measured, counts" and not any("trial" in text for text in legend)
    assert draw(picture).axes[0].get_title().startswith("training of one workflow\n")
    assert picture.table().renderables[0].title == "the workflow that was given"  # type: ignore[attr-defined]
    assert picture.to_tree()["method"] == ""
