from __future__ import annotations

import time
from contextlib import closing

import pytest
from small_runs import gym_settings

from fastrl.autotune.trial import Trial, Turn, trial_settings
from fastrl.tasks import find
from fastrl.utils.config import to_tree

SMALL = ("--num-steps=16", "--hidden=8", "--num-epochs=1", "--minibatch-size=32")


def test_a_trial_never_ends_and_learns_from_the_start() -> None:
    settings = gym_settings("CartPole-v1", "--algo=dqn", "--replay.learning-starts=5000")
    own = trial_settings(find("gym"), settings)
    assert own.run.total_timesteps > 1e15
    assert own.replay.learning_starts == 2 * settings.dqn.batch_size
    assert own.collect == settings.collect
    assert to_tree(own)["dqn"] == to_tree(settings)["dqn"]


@pytest.mark.parametrize(
    "options", [SMALL, pytest.param(("--algo=dqn", "--replay.updates-per-step=0.5"), marks=pytest.mark.slow)]
)
def test_a_trial_takes_turns(options: tuple[str, ...]) -> None:
    settings = gym_settings("CartPole-v1", *options, "--num-envs=4", "--collector=sequential")
    with closing(Trial(find("gym"), settings)) as trial:
        trial.turn()
        assert trial.trainer.iteration >= 1
        for _ in range(2):
            time.sleep(0.1)
            before, start = trial.trainer.steps, time.perf_counter()
            turn = trial.turn()
            passed = time.perf_counter() - start
            assert 0 < turn.steps <= trial.trainer.steps - before + 16
            # The pause does not count.
            assert passed >= 0.2 and 0 < turn.seconds <= passed
            assert turn.rate == turn.steps / turn.seconds
            assert 0 < turn.waiting < 1


def test_a_learner_that_waits_would_be_faster_alone() -> None:
    turn = Turn(100, 2.0, waiting=0.75)
    assert (turn.rate, turn.learner_rate) == (50, 200)
    assert Turn(100, 2.0, waiting=1.0).learner_rate == 5000
