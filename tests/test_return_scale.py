import numpy as np
import pytest

from fastrl.algorithms.return_scale import ReturnScale
from fastrl.rollout import Rollout


def test_is_one_over_the_deviation_of_discounted_returns():
    rng = np.random.default_rng(0)
    rollout = Rollout(50, 3, 1, 2)
    scale = ReturnScale(3, gamma=0.9)
    sums, all_sums = np.zeros(3), []
    for _ in range(2):  # sums go on from one rollout to the next
        rollout.rewards[:] = rng.normal(size=(50, 3)) * 100
        rollout.terminations[:] = rng.random((50, 3)) < 0.05
        rollout.truncations[:] = rng.random((50, 3)) < 0.05
        factor = scale.update(rollout)
        for t in range(50):
            sums = 0.9 * sums + rollout.rewards[t]
            all_sums.append(sums)
            sums = np.where(rollout.terminations[t] | rollout.truncations[t], 0, sums)
    assert factor == pytest.approx(1 / np.std(all_sums), rel=1e-5)


def test_saved_and_restored_it_goes_on_exactly():
    rng = np.random.default_rng(0)
    rollout = Rollout(5, 3, 1, 2)
    first, second = ReturnScale(3, gamma=0.9), ReturnScale(3, gamma=0.9)
    for scale in (first, first, second):
        rollout.rewards[:] = rng.normal(size=(5, 3))
        scale.update(rollout)
    second.load_state_dict(first.state_dict())
    assert second.update(rollout) == first.update(rollout)
