import time

import pytest

from fastrl.utils.timer import Stopwatch


def test_adds_up_by_name():
    watch = Stopwatch()
    before = time.perf_counter()
    for _ in range(2):
        with watch("a"):
            time.sleep(0.01)
    with watch("b"):
        time.sleep(0.01)
    assert watch.seconds["a"] >= 0.02
    assert watch.seconds["b"] >= 0.01
    assert watch.seconds["a"] + watch.seconds["b"] <= time.perf_counter() - before


def test_counts_blocks_that_fail():
    watch = Stopwatch()
    with pytest.raises(RuntimeError), watch("a"):
        raise RuntimeError
    assert "a" in watch.seconds


def test_reset_removes_all_times():
    watch = Stopwatch()
    with watch("a"):
        pass
    watch.reset()
    assert watch.seconds == {}
