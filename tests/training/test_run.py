"""Signals that stop a run, and settings of a resumed one."""

import os
import signal
from pathlib import Path

import pytest
from small_runs import settings_of

from fastrl.tasks import find
from fastrl.training.run import resumed_settings
from fastrl.utils.config import ConfigError, to_tree
from fastrl.utils.interrupts import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_asked_to_stop_it_is_noted(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        # Asked again it stops at once.
        assert signal.getsignal(signal.SIGINT) is before[0]
        assert signal.getsignal(signal.SIGTERM) is before[1]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_terminal_that_closes_may_say_so_twice() -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is signal.SIGHUP


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("finishes", [False, True])
def test_what_is_ignored_under_nohup_or_in_the_background_stays_ignored(
    number: signal.Signals, finishes: bool
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals(finishes=finishes) as stop:
            os.kill(os.getpid(), number)
            assert stop.received is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received is signal.SIGTERM
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_run_resumed_with_another_collector_drops_what_that_lacks() -> None:
    own = to_tree(settings_of("gym", "--collector=sync", "--n-workers=2", "--task-timeout=5"))

    def collect(**changes: object) -> tuple[object, ...]:
        given = {f"collect.{name}": value for name, value in changes.items()}
        found = resumed_settings(find("gym"), Path("checkpoint"), own, given, trust=True).collect
        return found.collector, found.n_workers, found.task_timeout

    assert collect() == collect(n_workers=2) == ("sync", 2, 5)
    assert collect(collector="executor") == ("executor", 2, 5)
    assert collect(collector="sequential") == ("sequential", "auto", 300)
    # One that is asked for is kept, and refused by the collector.
    assert collect(collector="sequential", n_workers=3) == ("sequential", 3, 300)


def test_a_resumed_run_keeps_the_end_of_a_schedule_whose_start_is_named_again() -> None:
    own = to_tree(settings_of("gym", "--algo=ppo"))
    given = {"ppo.learning_rate": own["ppo"]["learning_rate"]}
    found = resumed_settings(find("gym"), Path("checkpoint"), own, given, trust=True).ppo
    assert own["ppo"]["final_learning_rate"] == found.final_learning_rate == 0.0
    with pytest.raises(ConfigError, match=r"ppo\.learning_rate cannot change"):
        resumed_settings(find("gym"), Path("checkpoint"), own, {"ppo.learning_rate": 0.5}, trust=True)
