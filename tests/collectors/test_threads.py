"""The number of threads of compiled code."""

from collections.abc import Iterator

import pytest

from fastrl.collectors.resources import cores, use_cores
from fastrl.collectors.threads import choose_threads, reason, threads


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    choose_threads(1024)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    if cores() != 4:
        pytest.skip("the container has less than four cores' time")


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("seconds", "chosen", "faster"),
    [({1: 3.0, 4: 1.0}, 4, "3.0"), ({1: 1.0, 4: 1.25}, 1, "0.8"), ({1: 1.0, 4: 1.0}, 1, "1.0")],
)
def test_all_cores_are_used_where_they_are_faster(
    seconds: dict[int, float], chosen: int, faster: str
) -> None:
    choose_threads("auto", seconds.__getitem__)
    assert threads() == chosen
    assert reason() == f"threads: {chosen} of 4 cores, as all of them are {faster} times as fast as one here"


@pytest.mark.usefixtures("four_cores")
def test_one_slow_turn_does_not_decide() -> None:
    turns = iter([1.0, 9.0, *[1.0, 0.5] * 4])
    choose_threads("auto", lambda num_threads: next(turns))
    assert threads() == 4


@pytest.mark.usefixtures("four_cores")
def test_what_is_asked_for_is_limited_by_cores() -> None:
    choose_threads(3)
    assert reason() == "threads: 3, as asked for"
    assert threads() == 3
    choose_threads(7)
    assert reason() == "threads: 4, as asked for, of 7"
    use_cores(2)
    assert threads() == 2
    use_cores(1)
    choose_threads("auto")
    assert reason() == "threads: 1, the only core that this process may use"


def test_gradient_steps_are_measured() -> None:
    choose_threads("auto")
    assert reason().startswith("threads: ")
    assert 1 <= threads() <= cores()


@pytest.mark.usefixtures("four_cores")
def test_a_measurement_is_used_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("time.monotonic", lambda: now)
    choose_threads("auto")
    first = reason()
    seconds = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    choose_threads("auto")
    assert reason() == first and next(seconds) == 0
    now += 61
    choose_threads("auto")
    assert next(seconds) > 1
