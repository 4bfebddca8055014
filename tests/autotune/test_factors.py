from __future__ import annotations

import pytest
from small_runs import gym_settings, settings_of

from fastrl.autotune.factors import check_may_change, factors_of
from fastrl.tasks import find
from fastrl.utils.config import ConfigError


def test_what_changes_learning_is_tried_only_if_it_is_named() -> None:
    task, settings = find("gym"), gym_settings("CartPole-v1")
    plain = {"num_cores": 1, "has_gpu": False, "has_collectors": True}
    assert factors_of(task, settings, **plain) == []
    [threads] = factors_of(task, settings, **{**plain, "num_cores": 6})
    assert [way.values for way in threads] == [{"run.torch_threads": count} for count in (1, 2, 4, 6)]
    named = factors_of(task, settings, may_change=("num-envs", "batch-size", "updates-per-step"), **plain)
    assert [[way.values for way in factor] for factor in named] == [
        [{"env.num_envs": count} for count in (16, 32, 64)],
        [{"ppo.minibatch_size": size} for size in (256, 512, 1024)],
    ]
    # The run's own is the simplest.
    assert [way.effort for way in named[0]] == [0, 1, 2]
    assert factors_of(task, settings, may_change=("num-envs",), fixed=("env.num_envs",), **plain) == []
    dqn = gym_settings("CartPole-v1", "--algo=dqn", "--replay.updates-per-step=0.5")
    [updates] = factors_of(task, dqn, may_change=("updates-per-step",), **plain)
    assert [way.label for way in updates] == ["replay.updates_per_step 0.5", "replay.updates_per_step 0.25"]
    with pytest.raises(ConfigError, match="--may-change: unknown name num-env; did you mean num-envs"):
        check_may_change(("num-env",))


def test_a_gpu_adds_its_settings() -> None:
    task, settings = find("gym"), gym_settings("CartPole-v1")
    gpu = {"num_cores": 1, "has_gpu": True, "has_collectors": True}
    assert [[way.label for way in factor] for factor in factors_of(task, settings, **gpu)] == [
        ["run.device auto", "run.device cpu"],
        ["ppo.compile false", "ppo.compile true"],
    ]
    named = factors_of(task, settings, may_change=("precision",), **gpu)
    assert [way.values for way in named[-1]] == [{"ppo.precision": "fp32"}, {"ppo.precision": "bf16"}]
    # Minibatches are drawn ahead where experience comes in meanwhile.
    games = settings_of("pixels", "--algo=dqn", "--env=fastrl/Catch-v0", "--num-envs=3")
    found = factors_of(find("pixels"), games, **{**gpu, "num_cores": 4, "has_collectors": False})
    assert [[way.label for way in factor] for factor in found] == [
        ["run.device auto", "run.device cpu"],
        ["dqn.compile false", "dqn.compile true"],
        ["replay.prefetch auto", "replay.prefetch on", "replay.prefetch off"],
        ["run.torch_threads 1", "run.torch_threads 2", "run.torch_threads 4"],
    ]
