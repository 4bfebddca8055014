"""PPO and DQN learn on highway-env's roads, from a part of the presets' budgets."""

import pytest
from rich.console import Console
from small_runs import trainer_of

from fastrl.training.evaluation import Evaluation

pytestmark = pytest.mark.learning


@pytest.mark.parametrize(
    ("road", "algorithm", "total_timesteps", "least"),
    [
        # Random actions return 7.5, driving on as it is 5.9; a crash costs about half of 15.
        ("merge-v0", "ppo", 100_000, 12.5),
        ("merge-v0", "dqn", 30_000, 12.5),
        # By the reward of the preset's task random actions return about -9: they leave the road after 2 s.
        ("racetrack-v0", "ppo", 500_000, 200),
        # A rule that follows the lane returns 197, random steering -3,445.
        ("lane-keeping-v0", "ppo", 100_000, 180),
    ],
)
def test_drives_well(road: str, algorithm: str, total_timesteps: int, least: float) -> None:
    trainer = trainer_of(
        "gym",
        f"--env=fastrl/{road}",
        f"--algo={algorithm}",
        f"--total-timesteps={total_timesteps}",
        "--run.eval-episodes=32",
        "--run.torch-threads=1",
    )
    assert list(trainer.rows())
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    evaluation.at_end(trainer, Console(quiet=True))
    assert evaluation.scores is not None
    assert evaluation.scores.mean_return > least
