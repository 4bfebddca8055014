from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_runs import gym_settings, settings_of

from fastrl.autotune import tuner as module
from fastrl.autotune.trial import Turn
from fastrl.autotune.tuner import Tuner
from fastrl.autotune.tuning import Tuning
from fastrl.autotune.way import Way
from fastrl.collectors.probe import Probe
from fastrl.collectors.protocol import CollectError
from fastrl.runs.errors import TrainError
from fastrl.tasks import find
from fastrl.utils.config import ConfigError, to_tree

UNEVEN = ("fastrl/Uneven-v0", "--env-options", "step_seconds=0.01", "distribution=constant")
SMALL = ("--num-steps=16", "--hidden=8", "--num-epochs=1", "--minibatch-size=32")


class Machine:
    """Two cores, and in place of trials what steps that sleep for 4 ms cost, and a learner that is called for each step
    of all environments.

    Attributes:
        learning: seconds of the learner in a step of all environments, by its threads.
        computing: steps compute, so that more workers than cores are of no use.
        started: settings of all trials, and steps of their rollouts, in order.
        running: trials that have not been closed.
    """

    def __init__(self) -> None:
        self.learning: Callable[[int], float] = lambda threads: 0.004
        self.computing = False
        self.started: list[tuple[Any, int | None]] = []
        self.running = 0

    def trial(self, task: object, settings: Any, num_steps: int | None) -> StandIn:
        self.started.append((settings, num_steps))
        self.running += 1
        return StandIn(self, settings)


class StandIn:
    """A trial on such a machine."""

    def __init__(self, machine: Machine, settings: Any) -> None:
        self.machine, self.settings = machine, settings

    def turn(self, threads: int) -> Turn:
        collect, num_envs = self.settings.collect, self.settings.env.num_envs
        workers = collect.n_workers if collect.collector in ("sync", "executor") else 1
        stepping = 0.004 * math.ceil(num_envs / (min(workers, 2) if self.machine.computing else workers))
        seconds = stepping + self.machine.learning(threads)
        return Turn(num_envs, seconds, stepping / seconds)

    def close(self) -> None:
        self.machine.running -= 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(module, "Trial", made.trial)
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module, "measure", lambda plan: Probe(0.004, 1.0, 0, sleeps=not made.computing))
    return made


def tune(settings: Any, **options: Any) -> Tuning:
    return Tuner(find("gym"), settings, **{"seconds": 60.0, **options}).tune()


def test_environments_that_cannot_be_stepped_are_refused() -> None:
    with pytest.raises((CollectError, TrainError)):
        tune(gym_settings("test_tuner:broken"))


def broken() -> Any:
    raise RuntimeError("this one cannot be built")


def test_steps_that_sleep_get_a_worker_for_each_environment(machine: Machine) -> None:
    settings = gym_settings(*UNEVEN, *SMALL, "--num-envs=8")
    told: list[tuple[str, float]] = []
    tuning = tune(settings, advance=lambda what, share: told.append((what, share)))
    assert tuning.label == "run.torch_threads 1; executor, 8 workers"
    assert (tuning.settings.collect.collector, tuning.settings.collect.n_workers) == ("executor", 8)
    # Nothing else has changed.
    before, after = to_tree(settings), to_tree(tuning.settings)
    assert {**after, "collect": None} == {**before, "collect": None}
    assert tuning.reasons == {
        "run.torch_threads": "2,000 steps/s of the learner; run.torch_threads 2: 2,000",
        "collect.collector": (reason := tuning.reasons["collect.n_workers"]),
        "collect.n_workers": reason,
    }
    assert reason == "1,000 steps/s; sync, 8 workers: 1,000; executor, 4 workers: 667; sync, 4 workers: 667"
    assert tuning.facts == ["a step of the environment: 4 ms, in which it sleeps"]
    shares = [share for _, share in told]
    assert shares == sorted(shares) and told[0] == ("measuring the environment", shares[0])
    assert machine.running == 0


def test_steps_that_compute_get_a_worker_for_each_core(machine: Machine) -> None:
    machine.computing = True
    tuning = tune(gym_settings(*UNEVEN, *SMALL, "--num-envs=8"))
    assert tuning.label == "run.torch_threads 1; executor, 2 workers"
    assert tuning.chosen[1].notes == ["default"]


@pytest.mark.parametrize(("saved", "threads"), [(0.15, 2), (0.05, 1)])
def test_more_threads_are_taken_if_they_save_a_tenth_of_the_learners_time(
    saved: float, threads: int, machine: Machine
) -> None:
    # Little beside the steps.
    machine.learning = lambda threads: 0.001 * (1 - saved * (threads == 2))
    settings = gym_settings(*UNEVEN, *SMALL, "--num-envs=8")
    assert tune(settings).settings.run.torch_threads == threads
    assert tune(settings, fixed=["run.torch_threads"]).settings.run.torch_threads == 1


def test_settings_that_are_fixed_stay(machine: Machine) -> None:
    settings = gym_settings("CartPole-v1", *SMALL, "--num-envs=4", "--collector=executor", "--n-workers=1")
    fixed = ["collect.collector", "collect.n_workers", "run.torch_threads"]
    tuning = tune(settings, fixed=fixed)
    assert to_tree(tuning.settings) == to_tree(settings)
    assert [each.way.label for each in tuning.results] == ["executor, 1 worker"]
    assert not tuning.reasons


def test_trials_are_started_once_and_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(gym_settings(*UNEVEN, *SMALL, "--num-envs=2"))
    labels = [f"{own.collect.collector} {own.collect.n_workers}" for own, _ in machine.started]
    assert sorted(labels) == ["executor 1", "executor 2", "sequential auto", "sync 2"]
    machine.started.clear()
    tune(gym_settings(*UNEVEN, *SMALL, "--num-envs=2", "--collector=sequential"), fixed=["collect.collector"])
    # Its rollouts are short enough, and threads change between turns.
    assert len(machine.started) == 1

    def interrupted(*_: object) -> Turn:
        raise KeyboardInterrupt

    monkeypatch.setattr(StandIn, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(gym_settings(*UNEVEN, *SMALL))
    assert machine.running == 0


def test_short_rollouts_stand_for_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # Minibatches of 256 are 32 steps of 8 environments.
    tuner = Tuner(find("gym"), gym_settings("CartPole-v1", "--num-steps=1000"))
    for rate, expected in ((100, 32), (5_000, 187), (1e6, 512)):
        monkeypatch.setattr(tuner, "turn", lambda way, rate=rate: Turn(rate, 1.0))
        assert tuner.short_steps(Way("", {}), 8) == expected
    tuner.settings = gym_settings("CartPole-v1", "--num-steps=200")
    assert tuner.short_steps(Way("", {}), 8) is None
    tuner.settings = gym_settings("CartPole-v1", "--algo=dqn")
    assert tuner.short_steps(Way("", {}), 8) is None


@pytest.mark.slow
def test_runs_of_many_agents_choose_their_threads(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("traffic", "--num-envs=2", "--ippo.num-steps=8")
    tuner = Tuner(find("traffic"), settings)
    monkeypatch.setattr(tuner, "turn", lambda way: Turn(float("2" in way.label) + 1, 1.0))
    tuning = tuner.tune()
    assert tuning.label == "run.torch_threads 2; native, 2 threads"
    same_but = to_tree(tuning.settings) | {name: to_tree(settings)[name] for name in ("collect", "run")}
    assert same_but == to_tree(settings)


@pytest.mark.slow
def test_runs_of_many_agents_train_in_turns() -> None:
    settings = settings_of("traffic", "--num-envs=2", "--ippo.num-steps=32")
    tuning = Tuner(find("traffic"), settings, seconds=0.1).tune()
    keys = {key for each in tuning.results for key in each.way.values}
    assert keys == {"collect.collector", "collect.n_workers", "run.torch_threads"} == tuning.reasons.keys()
    assert all(each.rates for each in tuning.chosen)


def test_settings_are_tried_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates of a machine with a GPU, with made-up speeds."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    speeds = {
        "run.device auto": 100,
        "run.device cpu": 150,
        "ppo.compile false": 150,
        "ppo.compile true": 151,
    }
    settings = gym_settings("CartPole-v1")
    tuner = Tuner(find("gym"), settings, ("run.torch_threads",), ("num-envs",))

    def turn(way: Way) -> Turn:
        if way.label == "env.num_envs 64":
            raise TrainError("not enough memory\nfor them")
        steps = speeds[way.label] if way.label in speeds else int(way.label.rpartition(" ")[2])
        return Turn(steps, 1.0)

    monkeypatch.setattr(tuner, "turn", turn)
    assert tuner.vary(has_collectors=True)
    chosen = [each.way.label for each in tuner.results if each.is_chosen]
    # Of two that are as fast the run's own value stays.
    assert chosen == ["run.device cpu", "ppo.compile false", "env.num_envs 32"]
    assert (tuner.settings.run.device, tuner.settings.env.num_envs) == ("cpu", 32)
    notes = {each.way.label: each.notes for each in tuner.results if each.notes}
    assert notes == {
        "run.device auto": ["default"],
        "ppo.compile false": ["default"],
        "env.num_envs 16": ["default"],
        "env.num_envs 64": ["cannot run: not enough memory"],
    }
    assert tuner.reasons["run.device"] == "150 steps/s; run.device auto: 100"


def test_more_environments_are_chosen_if_they_may_be(machine: Machine) -> None:
    settings = gym_settings(*UNEVEN, *SMALL, "--num-envs=2")
    tuning = tune(settings, may_change=("num-envs",))
    # They sleep side by side: 250, 333 and 400 steps a second on two workers, and then as many workers as environments.
    assert tuning.settings.env.num_envs == 8
    assert tuning.settings.collect.n_workers == 8
    assert tuning.reasons["env.num_envs"] == "400 steps/s; env.num_envs 4: 333; env.num_envs 2: 250"
    with pytest.raises(ConfigError, match="--may-change: unknown name num-env; did you mean num-envs"):
        Tuner(find("gym"), settings, may_change=("num-env",))


@pytest.mark.slow
def test_workers_are_chosen_for_steps_that_sleep() -> None:
    tuning = tune(gym_settings(*UNEVEN, *SMALL, "--num-envs=8"), seconds=3.0)
    assert tuning.settings.collect.collector in ("executor", "sync")
    assert tuning.settings.collect.n_workers == 8
    assert tuning.chosen[-1].rates
