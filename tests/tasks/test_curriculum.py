"""The curriculum: bounded, monotone where it should be, with a gap between thresholds, resumable."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.collectors.protocol import Difficulty
from fastrl.tasks.traffic.curriculum import Curriculum, CurriculumConfig
from fastrl.utils.config import ConfigError

FULL = Difficulty(8, 1.0)
few = settings(max_examples=50, deadline=None)


def curriculum(full: Difficulty = FULL, episodes: int = 100, **options: Any) -> Curriculum:
    return Curriculum(CurriculumConfig(**options), full, episodes)


rates = st.floats(0, 1) | st.just(math.nan)
batches = st.lists(st.lists(rates, max_size=12), max_size=30)
settings_of_auto = st.fixed_dictionaries(
    {
        "start_vehicles": st.integers(1, 20),
        "levels": st.integers(1, 6),
        "window": st.integers(1, 10),
        "up": st.floats(0.5, 1),
        "down": st.floats(0, 0.49),
    }
)


@few
@given(settings_of_auto, st.integers(1, 15), st.floats(0.1, 3), batches)
def test_it_stays_within_its_bounds_and_changes_by_one(
    options: dict[str, Any], vehicles: int, density: float, ended: list[list[float]]
) -> None:
    full = Difficulty(vehicles, density)
    it = curriculum(full, mode="auto", **options)
    easiest = Difficulty(min(options["start_vehicles"], vehicles), density / 2)
    assert it.difficulty() == easiest
    for batch in ended:
        before = it.level
        changed = it.take(0, batch)
        assert changed == (it.level != before)
        assert abs(it.level - before) <= 1
        assert 0 <= it.level <= it.levels
        now = it.difficulty()
        assert easiest.num_agents <= now.num_agents <= vehicles
        assert easiest.density <= now.density <= density
    assert it.level == it.rises - it.falls
    assert it.difficulty(it.levels) == full


@few
@given(st.integers(1, 15), st.integers(1, 15), st.integers(1, 20))
def test_harder_levels_are_harder(start: int, vehicles: int, levels: int) -> None:
    it = curriculum(Difficulty(vehicles, 2.0), mode="auto", start_vehicles=start, levels=levels)
    steps = [it.difficulty(level) for level in range(levels + 1)]
    assert all(a.num_agents <= b.num_agents and a.density < b.density for a, b in itertools.pairwise(steps))
    assert steps[-1] == Difficulty(vehicles, 2.0)


@few
@given(settings_of_auto, batches)
def test_auto_is_a_plain_rule_over_a_window(options: dict[str, Any], ended: list[list[float]]) -> None:
    """Against a slow model that keeps everything."""
    it = curriculum(mode="auto", **options)
    level, seen = 0, []  # type: ignore[var-annotated]
    for batch in ended:
        it.take(0, batch)
        seen += [rate for rate in batch if not math.isnan(rate)]
        if len(seen) >= options["window"]:
            newest = seen[-options["window"] :]
            mean = math.fsum(newest) / len(newest)
            if mean >= options["up"] and level < options["levels"]:
                level, seen = level + 1, []
            elif mean <= options["down"] and level > 0:
                level, seen = level - 1, []
        assert it.level == level


def test_between_the_thresholds_nothing_changes() -> None:
    it = curriculum(mode="auto", window=4, up=0.8, down=0.4)
    assert it.take(4, [1.0] * 4)
    for _ in range(20):
        assert not it.take(0, [0.5, 0.7])
    assert it.level == 1
    assert it.take(0, [0.1] * 4)
    assert (it.level, it.rises, it.falls) == (0, 1, 1)
    assert not it.take(0, [0.0] * 20)  # it cannot get easier


def test_a_new_level_is_judged_by_its_own_episodes() -> None:
    it = curriculum(mode="auto", window=10)
    assert it.take(10, [1.0] * 10)
    assert math.isnan(it.success_rate)
    assert not it.take(19, [1.0] * 9)
    assert it.take(20, [1.0])
    assert it.level == 2


@few
@given(st.lists(st.integers(0, 40), max_size=40), st.integers(1, 8), st.floats(0.05, 1))
def test_a_schedule_rises_with_the_episodes_and_is_full_in_time(
    ended: list[int], levels: int, until: float
) -> None:
    it = curriculum(mode="schedule", levels=levels, until=until, episodes=100)
    total = 0
    for count in ended:
        before, total = it.level, total + count
        it.take(total, [0.0] * count)
        assert it.level >= before
        assert it.level <= levels
        if total > until * 100 + 1e-6:
            assert it.level == levels
        elif total < until * 100 - 1e-6:
            assert it.level < levels


def test_off_is_full_from_the_start_and_stays() -> None:
    it = curriculum(mode="off")
    assert it.difficulty() == FULL
    assert not it.take(50, [0.0] * 100)
    assert it.difficulty() == FULL


@few
@given(settings_of_auto, batches, st.integers(0, 30))
def test_a_restored_curriculum_continues_as_if_it_had_not_stopped(
    options: dict[str, Any], ended: list[list[float]], at: int
) -> None:
    whole, first, second = (curriculum(mode="auto", **options) for _ in range(3))
    for batch in ended[:at]:
        whole.take(0, batch)
        first.take(0, batch)
    second.load_state_dict(first.state_dict())
    for batch in ended[at:]:
        assert whole.take(0, batch) == second.take(0, batch)
    assert whole.state_dict() == second.state_dict()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"up": 0.5, "down": 0.5}, "--curriculum.up 0.5 should be more than --curriculum.down 0.5"),
        ({"start_density": 1.5}, "--curriculum.start-density 1.5 is more than --density 1, where it ends"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        curriculum(**options)
