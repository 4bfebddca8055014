"""Evaluations on the way and at the end, the checkpoint of the best policy, and how both resume."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import trainer_of as trainer_of_task
from test_trainer import STEPS, FakeSource, trainer_of

from fastrl.callbacks import BestCheckpoint
from fastrl.play.play import episode_seeds
from fastrl.runs.checkpoint import BEST, load_checkpoint
from fastrl.tasks.gym.task import GymTask
from fastrl.training.evaluation import Evaluation, Returns
from fastrl.training.evaluation_options import Advance, EvaluationOptions


def evaluation_of(scores: Mapping[int, float], eval_freq: int) -> tuple[Evaluation, list[int]]:
    """An evaluation whose scores are given by environment steps, and the steps that it was asked at."""
    asked: list[int] = []

    def evaluate(state: Mapping[str, Any], advance: Advance, *, on_the_way: bool) -> Returns:
        asked.append(state["steps"])
        advance(1)
        return Returns((scores[state["steps"]],))

    return Evaluation(evaluate, Returns.from_tree, 1, eval_freq), asked


SCORES = {10: 1.0, 20: 5.0, 30: 3.0, 40: 4.0, 50: 6.0}


def test_evaluations_are_due_by_episodes_and_after_the_last_update(tmp_path: Path) -> None:
    # Two episodes end in each update.
    evaluation, asked = evaluation_of(SCORES, 4)
    evaluation.best_file = tmp_path / "checkpoints" / BEST
    trainer = trainer_of(FakeSource(), evaluation, total_timesteps=5 * STEPS)
    rows = [row.record() for row in trainer.rows()]
    assert asked == [20, 40, 50]
    assert [row.get("eval/mean_reward") for row in rows] == [None, 5.0, None, 4.0, 6.0]
    assert (evaluation.scores, evaluation.best, evaluation.best_at) == (Returns((6.0,)), Returns((6.0,)), 10)
    # The end has one of its own, although the last update was followed by one.
    evaluation.at_end(trainer, Console(quiet=True))
    assert asked == [20, 40, 50, 50]


def test_the_best_policy_is_kept_in_a_checkpoint(tmp_path: Path) -> None:
    evaluation, _ = evaluation_of(SCORES, 2)
    evaluation.best_file = tmp_path / "checkpoints" / BEST
    list(trainer_of(FakeSource(), evaluation, total_timesteps=4 * STEPS).rows())
    state = load_checkpoint(evaluation.best_file)
    assert (state["steps"], state["callbacks"]["evaluation"]["best_at"]) == (20, 4)
    summary = evaluation.summary()
    assert (summary["best"]["mean"], summary["best_at"]) == (5.0, 4)
    assert summary["best_checkpoint"] == str(evaluation.best_file)
    out = io.StringIO()
    evaluation.show(Console(file=out, width=200))
    assert "mean return 4.00" in out.getvalue()
    assert (
        "best evaluation on the way, after 4 episodes:\nwithout exploration, 1 episode: mean return 5.00"
        in out.getvalue()
    )


@pytest.mark.parametrize("seed", [0, 7])
def test_the_best_policy_is_chosen_on_other_seeds_than_it_is_scored_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation on the way has one set of seeds, the end that of ``fastrl eval --seed``."""
    options = (
        "--total-timesteps=64",
        "--num-envs=2",
        "--num-steps=16",
        "--run.eval-episodes=2",
        f"--seed={seed}",
    )
    trainer = trainer_of_task("gym", "--env=CartPole-v1", *options, "--run.eval-points=2")
    asked: list[int] = []

    def evaluate(task: GymTask, state: Any, settings: Any, options: EvaluationOptions) -> Returns:
        asked.append(options.seed)
        # Worse on the way, so that the end would be the best.
        return Returns((float(len(asked)),))

    monkeypatch.setattr(GymTask, "evaluate", evaluate)
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    list(trainer.rows())
    evaluation.at_end(trainer, Console(quiet=True))
    on_the_way, again, end = asked
    assert on_the_way == again != end == seed
    assert not set(episode_seeds(1000, on_the_way, 1)) & set(episode_seeds(1000, end, 1))
    assert (evaluation.best, evaluation.scores) == (Returns((2.0,)), Returns((3.0,)))


def test_callbacks_choose_by_evaluations_on_the_way(tmp_path: Path) -> None:
    evaluation, _ = evaluation_of({10: 1.0, 20: 2.0, 30: 9.0}, 4)
    best = BestCheckpoint(tmp_path / "best.safetensors")
    trainer = trainer_of(FakeSource(), evaluation, best, eval_freq=4, total_timesteps=2 * STEPS)
    list(trainer.rows())
    evaluation.evaluate = lambda *_, **__: Returns((9.0,))
    evaluation.at_end(trainer, Console(quiet=True))
    assert (best.best, trainer.view.scores) == (2.0, Returns((9.0,)))


def test_without_a_frequency_there_is_one_at_the_end() -> None:
    evaluation, asked = evaluation_of(SCORES, 0)
    trainer = trainer_of(FakeSource(), evaluation)
    list(trainer.rows())
    assert (asked, evaluation.summary()) == ([], {})
    out = io.StringIO()
    evaluation.at_end(trainer, Console(file=out, width=200))
    evaluation.show(Console(file=out, width=200))
    assert asked == [30]
    assert "without exploration, 1 episode: mean return 3.00" in out.getvalue()


def test_scores_are_resumed() -> None:
    first, asked = evaluation_of(SCORES, 2)
    trainer = trainer_of(FakeSource(), first)
    rows = trainer.rows()
    next(rows), next(rows)
    second, asked_later = evaluation_of(SCORES, 2)
    resumed = trainer_of(FakeSource(), second)
    resumed.load_state_dict(trainer.state_dict())
    assert (second.scores, second.best, second.best_at) == (first.scores, first.best, 4)
    list(resumed.rows())
    assert (asked, asked_later) == ([10, 20], [30])
    # A worse score does not replace the best one.
    assert (second.scores, second.best) == (Returns((3.0,)), Returns((5.0,)))
