"""DQN flips ten bits to a goal with hindsight, and does not without."""

import numpy as np
import pytest
from small_runs import trainer_of

pytestmark = pytest.mark.learning

BITS = 10


def late_return(*options: str) -> float:
    """Mean return of the last episodes of a run; an episode that fails has -10."""
    trainer = trainer_of(
        "gym",
        "--env=fastrl/BitFlip-v0",
        "--env.options",
        f"bits={BITS}",
        "--algo=dqn",
        "--dqn.n-step=1",
        "--dqn.hidden=128",
        "--total-timesteps=15000",
        "--run.row-seconds=0",
        "--run.eval-episodes=0",
        "--run.torch-threads=1",
        "--device=cpu",
        "--collector=sequential",
        *options,
    )
    returns = [row.record()["rollout/ep_rew_mean"] for row in trainer.rows()]
    return float(np.nanmean(returns[-200:]))


def test_hindsight_solves_what_dqn_alone_does_not() -> None:
    assert late_return() < -9
    assert late_return("--replay.hindsight=0.8") > -6
