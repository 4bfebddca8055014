"""A team of CAGE Challenge 4 learns within seconds."""

import pytest

import fastrl
from fastrl.tasks.cage4.evaluate import SCORING
from fastrl.training.evaluation_options import EvaluationOptions

pytestmark = pytest.mark.learning


def test_defenders_learn() -> None:
    """They score far above an untrained team of the same kind, which beats the weaker scripts already."""
    model = fastrl.IPPO(
        "fastrl/Cage4-v0",
        num_envs=16,
        hidden=(32,),
        learning_rate=1e-3,
        eval_episodes=0,
        torch_threads=1,
        seed=0,
    )
    before, _ = model.evaluate(20, mode="stochastic")
    model.learn(400_000)
    after, _ = model.evaluate(20, mode="stochastic")
    sleep, random = (
        SCORING.evaluate_baseline(name, EvaluationOptions(10)).mean_return for name in ("sleep", "random")
    )
    assert after > before + 120, (after, before)
    assert after > max(sleep, random) / 5, (sleep, random)
