"""Traffic presets learn within their own budgets."""

import pytest
from rich.console import Console

from fastrl.tasks import find
from fastrl.training.evaluation import Evaluation

pytestmark = pytest.mark.learning


@pytest.mark.parametrize(
    ("preset", "changes", "least"),
    [
        ("fast", {}, 0.5),
        ("performance", {"env.vehicles": 12, "run.total_episodes": 800}, 0.8),
    ],
)
def test_most_vehicles_get_through(preset: str, changes: dict[str, int], least: float) -> None:
    task = find("traffic")
    trainer = task.make_trainer(task.make_settings({"run.eval_freq": 0, **changes}, preset=preset))
    assert list(trainer.rows())
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    evaluation.at_end(trainer, Console(quiet=True))
    scores = evaluation.scores
    assert scores is not None
    assert scores.numbers()["success_rate"] >= least
