from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from collect_cases import plan
from small_runs import settings_of

from fastrl.cli.train import Command
from fastrl.collectors.protocol import CollectError
from fastrl.envs.toys import uneven
from fastrl.tasks import find
from fastrl.training import load_meter
from fastrl.training.autotune import Tuner, autotune, worker_counts
from fastrl.training.errors import TrainError
from fastrl.training.factors import factors_of
from fastrl.training.load_meter import kinds_for, measure_steps
from fastrl.training.speed_model import Load
from fastrl.training.trials import Trial, Turn, trial_settings
from fastrl.training.tuning import Candidate, Result, Variant, Way, best_of
from fastrl.utils.config import ConfigError, to_tree

LOAD = Load(
    num_envs=8,
    num_steps=32,
    durations=np.full(100, 0.01),
    busy=1.0,
    act_call=1e-5,
    act_row=0.0,
    learn={1: 0.01},
    cores=4,
)
UNEVEN = ("fastrl/Uneven-v0", "--env-options", "step_seconds=0.01", "distribution=constant")
SMALL = ("--num-steps=16", "--hidden=8", "--num-epochs=1", "--minibatch-size=32")


def gym_settings(*options: object) -> Any:
    return Command(find("gym"), "fastrl train", [*map(str, options)]).settings()


def result(kind: Any, workers: int, *rates: float, threads: int = 1) -> Result:
    return Result(Candidate(kind, workers, threads), 1.0, list(rates))


def test_workers_are_as_many_as_cores_or_more_where_steps_sleep() -> None:
    assert worker_counts(LOAD) == [1, 2, 3, 4, 8]
    assert worker_counts(replace(LOAD, num_envs=100)) == [1, 2, 3, 4, 8]
    assert worker_counts(replace(LOAD, num_envs=24, busy=0.01)) == [1, 2, 3, 4, 8, 16, 24]
    assert worker_counts(replace(LOAD, num_envs=2)) == [1, 2]
    assert worker_counts(replace(LOAD, cores=1, num_envs=1)) == [1]


def test_rounds_are_compared_not_their_rates() -> None:
    # The machine is ten times as slow in the second round.
    first, second = result("executor", 4, 100, 12, 110), result("sequential", 1, 90, 9, 100)
    assert best_of([first, second]) is first
    # A single outlier decides nothing.
    lucky = result("executor", 8, 300, 10, 95)
    assert best_of([first, second, lucky]) is first


def test_of_those_that_are_as_good_the_simplest_is_chosen() -> None:
    assert best_of([result("executor", 8, 101, 101), result("executor", 2, 100, 100)]).way.workers == 2
    assert best_of([result("executor", 2, 100.0), result("sequential", 1, 99.0)]).way.kind == "sequential"
    assert best_of([result("executor", 2, 100.0, threads=4), result("executor", 2, 99.5)]).way.threads == 1
    assert best_of([result("executor", 8, 110.0), result("executor", 2, 100.0)]).way.workers == 8


def test_kinds_are_those_that_suit_the_environment() -> None:
    assert kinds_for(plan()) == ["sequential", "sync", "executor"]
    compiled = find("cage2").make_trainer(settings_of("cage2", "--num-envs=8"))
    assert kinds_for(compiled.source.plan) == ["native"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("busy", [False, True])
def test_steps_that_sleep_are_told_from_those_that_compute(busy: bool) -> None:
    # An episode has ended after the first step, however late that comes.
    options = ("step_seconds=0.004", "distribution=constant", "length=1", f"busy={str(busy).lower()}")
    trainer = find("gym").make_trainer(gym_settings("fastrl/Uneven-v0", "--env-options", *options, *SMALL))
    durations, share, length = measure_steps(trainer.source.plan, 0.4)  # type: ignore[attr-defined]
    # Other programs may delay a sleeper.
    assert durations.min() >= 0.004 and length == 1
    assert (share == 1.0) == busy


def test_other_programs_cost_a_step_that_computes_no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Passes at half the speed for a process as for the wall."""

        wall = computed = 0.0
        perf_counter = staticmethod(lambda: Clock.wall)
        thread_time = process_time = staticmethod(lambda: Clock.computed)

    def compute(seconds: float) -> None:
        Clock.computed += seconds
        Clock.wall += 2 * seconds

    monkeypatch.setattr(load_meter, "time", Clock)
    monkeypatch.setattr(uneven, "compute", compute)
    options = ("step_seconds=0.004", "distribution=constant", "length=20", "busy=true")
    trainer = find("gym").make_trainer(gym_settings("fastrl/Uneven-v0", "--env-options", *options, *SMALL))
    durations, share, length = measure_steps(trainer.source.plan, 0.4)  # type: ignore[attr-defined]
    assert durations == pytest.approx([0.004] * 50) and share == 1.0 and length == 20


def test_environments_that_cannot_be_stepped_are_refused() -> None:
    with pytest.raises((CollectError, TrainError)):
        autotune(find("gym"), gym_settings("test_autotune:broken"), seconds=1.0)


def broken() -> Any:
    raise RuntimeError("this one cannot be built")


def test_a_trial_never_ends_and_learns_from_the_start() -> None:
    settings = gym_settings("CartPole-v1", "--algo=dqn", "--replay.learning-starts=5000")
    own = trial_settings(find("gym"), settings, {"collect.collector": "sequential"})
    assert own.run.total_timesteps > 1e15
    assert own.replay.learning_starts == 2 * settings.dqn.batch_size
    assert own.collect.collector == "sequential"
    assert to_tree(own)["dqn"] == to_tree(settings)["dqn"]


@pytest.mark.parametrize("options", [SMALL, ("--algo=dqn", "--replay.updates-per-step=0.5")])
def test_a_trial_takes_turns(options: tuple[str, ...]) -> None:
    settings = gym_settings("CartPole-v1", *options, "--num-envs=4")
    with Trial(find("gym"), settings, {"collect.collector": "sequential"}) as trial:
        trial.turn()
        assert trial.trainer.iteration >= 1
        for _ in range(2):
            time.sleep(0.3)
            before = trial.trainer.steps
            turn = trial.turn()
            assert 0 < turn.steps <= trial.trainer.steps - before + 16
            # The pause does not count.
            assert turn.passed >= 0.2 and 0 < turn.seconds <= turn.passed
            assert turn.rate == turn.steps / turn.seconds
            assert 0 < turn.waiting < 1


@pytest.mark.slow
def test_workers_are_chosen_for_steps_that_sleep() -> None:
    settings = gym_settings(*UNEVEN, *SMALL, "--num-envs=4")
    told: list[tuple[str, float]] = []
    tuning = autotune(
        find("gym"), settings, seconds=1.0, advance=lambda what, share: told.append((what, share))
    )
    [found] = tuning.chosen
    chosen = found.way
    assert isinstance(chosen, Candidate)
    assert chosen.kind in ("executor", "sync")
    assert tuning.settings.collect.n_workers == 4
    assert tuning.settings.collect.collector == chosen.kind
    # Nothing else has changed.
    before, after = to_tree(settings), to_tree(tuning.settings)
    for table in before:
        for name in before[table].keys() - {"collector", "n_workers", "torch_threads"}:
            assert before[table][name] == after[table][name]
    assert tuning.reasons.keys() == {"collect.collector", "collect.n_workers", "run.torch_threads"}
    checked = [each for each in tuning.results if each.rates]
    assert len(checked) >= 3 and tuning.chosen[0] in checked
    assert all(len(each.rates) >= 3 for each in checked)
    shares = [share for _, share in told]
    assert shares == sorted(shares) and told[0] == ("measuring the environment", shares[0])


def test_settings_that_are_fixed_stay() -> None:
    settings = gym_settings("CartPole-v1", *SMALL, "--num-envs=4", "--collector=executor", "--n-workers=2")
    fixed = ["collect.collector", "collect.n_workers", "run.torch_threads"]
    tuning = autotune(find("gym"), settings, fixed=fixed, seconds=0.5)
    assert to_tree(tuning.settings) == to_tree(settings)
    assert [each.way for each in tuning.results] == [Candidate("executor", 2, 1)]
    assert not tuning.reasons


def test_short_rollouts_stand_for_long_ones() -> None:
    tuner = Tuner(find("gym"), gym_settings("CartPole-v1"), (), (), 1.0, lambda what, share: None)
    slow = replace(LOAD, num_steps=1000)
    # A minibatch of 256 needs 32 steps of 8 environments, which take four workers 0.64 s.
    assert tuner.short_steps(slow, Candidate("executor", 4, 1)) == 32
    cheap = replace(slow, durations=np.full(9, 1e-4))
    assert tuner.short_steps(cheap, Candidate("sequential", 1, 1)) == pytest.approx(
        1000 * 0.4 / 0.82, rel=0.02
    )
    assert tuner.short_steps(replace(LOAD, durations=np.full(9, 1e-5)), Candidate("sequential", 1, 1)) is None


def test_runs_without_collectors_choose_their_threads() -> None:
    settings = settings_of("traffic", "--num-envs=2", "--env.num-threads=1", "--ippo.num-steps=8")
    told: list[str] = []
    tuning = autotune(find("traffic"), settings, seconds=0.5, advance=lambda what, share: told.append(what))
    keys = {each.way.key for each in tuning.results if isinstance(each.way, Variant)}
    # On a single core there is nothing else.
    assert keys <= {"env.num_threads", "run.torch_threads"} and keys == tuning.reasons.keys()
    assert {each.way.key for each in tuning.chosen if isinstance(each.way, Variant)} == keys
    assert all(len(each.rates) >= 3 and each.predicted is None for each in tuning.results)
    same_but = to_tree(tuning.settings) | {name: to_tree(settings)[name] for name in ("env", "run")}
    assert same_but == to_tree(settings)


def test_what_changes_learning_is_tried_only_if_it_is_named() -> None:
    task, settings = find("gym"), gym_settings("CartPole-v1")
    plain = {"num_cores": 4, "has_gpu": False, "has_collectors": True}
    assert factors_of(task, settings, **plain) == []
    named = factors_of(task, settings, may_change=("num-envs", "batch-size", "updates-per-step"), **plain)
    assert [[(each.key, each.value) for each in factor] for factor in named] == [
        [("env.num_envs", 16), ("env.num_envs", 32), ("env.num_envs", 64)],
        [("ppo.minibatch_size", 256), ("ppo.minibatch_size", 512), ("ppo.minibatch_size", 1024)],
    ]
    assert [each.own for each in named[0]] == [True, False, False]
    assert factors_of(task, settings, may_change=("num-envs",), fixed=("env.num_envs",), **plain) == []
    dqn = gym_settings("CartPole-v1", "--algo=dqn", "--replay.updates-per-step=0.5")
    [updates] = factors_of(task, dqn, may_change=("updates-per-step",), **plain)
    assert [each.value for each in updates] == [0.5, 0.25]
    with pytest.raises(ConfigError, match="--may-change: unknown name num-env; did you mean num-envs"):
        autotune(task, settings, may_change=("num-env",))


def test_a_gpu_adds_its_settings() -> None:
    task, settings = find("gym"), gym_settings("CartPole-v1")
    gpu = {"num_cores": 4, "has_gpu": True, "has_collectors": True}
    assert [[each.value for each in factor] for factor in factors_of(task, settings, **gpu)] == [
        ["auto", "cpu"],
        [False, True],
    ]
    named = factors_of(task, settings, may_change=("precision",), **gpu)
    assert [each.value for each in named[-1]] == ["fp32", "bf16"]
    games = settings_of("pixels", "--algo=dqn", "--env=fastrl/Catch-v0", "--num-envs=3")
    found = factors_of(find("pixels"), games, **{**gpu, "has_collectors": False})
    assert {factor[0].key: [each.value for each in factor] for factor in found} == {
        "run.device": ["auto", "cpu"],
        "dqn.compile": [False, True],
        "collect.prefetch": ["auto", "on", "off"],
        "collect.n_workers": [2, 1],
        "run.torch_threads": [1, 2, 4],
    }


def test_settings_are_tried_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates of a machine with a GPU, with made-up speeds."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    speeds = {
        "run.device auto": 100,
        "run.device cpu": 150,
        "ppo.compile false": 150,
        "ppo.compile true": 151,
    }
    tuner = Tuner(find("gym"), gym_settings("CartPole-v1"), (), ("num-envs",), 0.1, lambda what, share: None)

    def turn(way: Way) -> Turn:
        if way.label == "env.num_envs 64":
            raise TrainError("not enough memory\nfor them")
        steps = speeds[way.label] if way.label in speeds else int(way.label.rpartition(" ")[2])
        return Turn(steps, 1.0)

    monkeypatch.setattr(tuner, "turn", turn)
    assert tuner.vary(Candidate("executor", 2, 1), has_collectors=True)
    chosen = [each.way.label for each in tuner.varied if each.is_chosen]
    # Of two that are as fast the run's own value stays.
    assert chosen == ["run.device cpu", "ppo.compile false", "env.num_envs 32"]
    assert (tuner.settings.run.device, tuner.settings.env.num_envs) == ("cpu", 32)
    assert [each.note for each in tuner.varied if each.note] == ["default"] * 3 + [
        "cannot run: not enough memory"
    ]
    assert tuner.reasons["run.device"] == "150 steps/s; run.device auto: 100"


@pytest.mark.slow
def test_more_environments_are_chosen_if_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the costs of steps that sleep for 4 ms, and of a learner that is called for each step of all environments:
    what a busy machine measures of them is left out, trials run as ever."""
    learn = 0.004
    sleeping = replace(LOAD, num_envs=2, num_steps=16, durations=np.full(100, 0.004), busy=0.02, cores=2)

    def costs(of_run: Any, *arguments: Any, **options: Any) -> Load:
        return replace(sleeping, num_envs=of_run.num_envs, num_steps=of_run.num_steps)

    def turn(trial: Trial, threads: int | None = None) -> Turn:
        source = trial.trainer.source  # type: ignore[attr-defined]
        workers = source.collect.n_workers if source.collect.collector in ("sync", "executor") else 1
        of_step = 0.004 * math.ceil(source.num_envs / workers) + learn
        before = trial.trainer.steps
        measured(trial, threads)
        assert trial.trainer.steps > before
        return Turn(source.num_envs, of_step, 1 - learn / of_step, 0.01)

    measured = Trial.turn
    monkeypatch.setattr("fastrl.training.autotune.measure_parts", costs)
    monkeypatch.setattr(Trial, "turn", turn)
    settings = gym_settings(*UNEVEN, *SMALL, "--num-envs=2")
    tuning = autotune(find("gym"), settings, may_change=("num-envs",), seconds=1.0)
    # They sleep side by side: 250, 333 and 400 steps a second on two workers, and then as many workers as environments.
    assert tuning.settings.env.num_envs == 8
    assert tuning.settings.collect.n_workers == 8
    assert "env.num_envs" in tuning.reasons
