"""Statistics over seeds and environments, against known answers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fastrl.runs.statistics import (
    CONFIDENCE,
    bootstrap,
    improvement,
    interquartile_mean,
    mean,
    performance_profile,
)


def test_the_interquartile_mean_is_the_trimmed_mean() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((1,), (2,), (3,), (4,), (10, 7), (5, 5, 1)):
        scores = [rng.normal(size=(6, size)) for size in sizes]
        pooled = np.concatenate(scores, axis=1)
        np.testing.assert_allclose(interquartile_mean(*scores), stats.trim_mean(pooled, 0.25, axis=1))
        np.testing.assert_allclose(mean(*scores), pooled.mean(axis=1))
    assert interquartile_mean(np.array([-1000.0, 1, 2, 1000])) == 1.5


def test_the_probability_of_improvement_is_that_of_mann_and_whitney() -> None:
    rng = np.random.default_rng(0)
    # Whole numbers, so that there are ties.
    ours, theirs = rng.integers(0, 5, (2, 9)).astype(float), rng.integers(0, 5, (2, 7)).astype(float)
    single = [improvement(a, b) for a, b in zip(ours, theirs, strict=True)]
    expected = [
        stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(ours, theirs, strict=True)
    ]
    np.testing.assert_allclose(single, expected)
    np.testing.assert_allclose(improvement(*ours, *theirs), np.mean(expected))
    assert improvement(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0.5


def test_resamples_keep_the_size_of_each_environment() -> None:
    seen: list[tuple[int, ...]] = []

    def note(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
        seen.append((low.shape[-1], high.shape[-1]))
        assert set(low.flat) <= {1.0, 2.0, 3.0} and set(high.flat) <= {10.0, 20.0}
        return mean(low, high)

    estimate = bootstrap(note, [1.0, 2.0, 3.0], [10.0, 20.0])
    assert seen == [(3, 2), (3, 2)]
    # The least and the largest mean that resamples of these sizes can have.
    assert (3 * 1 + 2 * 10) / 5 <= estimate.low < estimate.value < estimate.high <= (3 * 3 + 2 * 20) / 5


def test_the_interval_of_a_share_is_that_of_the_binomial_distribution() -> None:
    for wins in (4, 20, 33):
        estimate = bootstrap(mean, [1.0] * wins + [0.0] * (40 - wins))
        expected = stats.binom.ppf([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], 40, wins / 40) / 40
        # A step of the distribution, by chance.
        np.testing.assert_allclose(estimate, [wins / 40, *expected], atol=1 / 40 + 1e-9)


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_intervals_cover_the_truth_and_stay_within_the_data(
    statistic: Callable[..., NDArray[np.float64]],
) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        scores = rng.normal(size=(2, 15))
        estimate = bootstrap(statistic, *scores)
        covered += estimate.low <= 0 <= estimate.high
        assert scores.min() <= estimate.low <= estimate.value <= estimate.high <= scores.max()
    # Percentile intervals of few values are a little narrow.
    assert 0.88 <= covered / 200 <= 0.98


def test_one_value_has_no_interval() -> None:
    for estimate in (bootstrap(mean, [3.0]), bootstrap(mean, [3.0], [3.0, 3.0])):
        assert estimate.value == 3 and math.isnan(estimate.low) and math.isnan(estimate.high)


def test_profiles_are_the_shares_above_thresholds() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 6.0])
    shares = performance_profile(np.array([0.0, 2.0, 6.0]), *scores)
    np.testing.assert_allclose(shares[:, 0], [1, 3 / 6, 0])
    assert (shares[:, 1] <= shares[:, 0]).all() and (shares[:, 0] <= shares[:, 2]).all()
    assert ((shares >= 0) & (shares <= 1)).all()
