"""A run that was stopped and resumed is the run that never stopped, stopped anywhere and how often; `test_matrix` stops
once, with all that goes."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import differences, untimed_state
from small_runs import untimed as untimed_record
from test_gym_run import UPDATE
from test_gym_run import training_of as small_training_of

from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.training.trainer import Trainer

UPDATES = 6
CARTPOLE = ["--collector=sequential"]
HIGHWAY = [
    "--collector=native",
    "--n-workers=2",
    "--env=fastrl/highway-fast-v0",
    "--env.options",
    'config={"action": {"type": "ContinuousAction"}}',
]


def training_of(options: list[str], console: Console | None = None) -> Trainer:
    # Schedules that depend on how far the run is, and all that an algorithm keeps beside its parameters.
    return small_training_of(*options, f"--total-timesteps={UPDATES * UPDATE}", console=console)


def untimed(row: Any) -> dict[str, Any]:
    # NaN is not equal to itself.
    return {name: repr(value) for name, value in untimed_record(row.record()).items()}


def end_of(training: Trainer) -> dict[str, Any]:
    return untimed_state(training.state_dict())


@pytest.mark.parametrize("env", [CARTPOLE, HIGHWAY], ids=["CartPole", "highway"])
@pytest.mark.parametrize(
    "algorithm",
    [["--algo=ppo", "--ppo.normalize-obs"], ["--algo=impala", "--impala.memory=lstm", "--impala.burn-in=3"]],
    ids=["ppo", "impala with a memory"],
)
def test_stopped_in_the_middle_of_episodes_it_ends_as_if_never_stopped(
    env: list[str], algorithm: list[str], tmp_path: Path
) -> None:
    # Sequential collection plays when it is asked, however far behind policies may be; native collection plays ahead.
    is_native = "--collector=native" in env
    options = [
        *env,
        *algorithm,
        *(["--max-staleness=0"] if is_native and algorithm[0] != "--algo=ppo" else []),
    ]
    straight = training_of(options)
    expected = list(map(untimed, straight.rows()))
    assert float(expected[-1]["time/episodes"]) > 0
    found = []
    training = training_of(options)
    for stop in (1, 3, UPDATES):
        rows = training.rows()
        found += map(untimed, islice(rows, stop - len(found)))
        # As at a checkpoint that is due by time, and as at the end of a session.
        save_checkpoint(tmp_path / "running", training.state_dict())
        rows.close()  # type: ignore[attr-defined]
        save_checkpoint(tmp_path / "stopped", training.state_dict())
        state = load_checkpoint(tmp_path / "stopped")
        assert differences(load_checkpoint(tmp_path / "running"), state) == []
        assert state["source"]["collector"]["running"]["actions"]
        training = training_of(options)
        training.load_state_dict(state)
    assert found == expected
    assert differences(end_of(training), end_of(straight)) == []


def test_it_goes_on_to_the_bit_with_another_collector() -> None:
    """Those that wait for the learner are alike."""
    straight = training_of(CARTPOLE)
    list(straight.rows())
    first = training_of(CARTPOLE)
    list(islice(first.rows(), 2))
    second = training_of(["--collector=sync", "--n-workers=2"])
    second.load_state_dict(first.state_dict())
    list(islice(second.rows(), 2))
    third = training_of(CARTPOLE)
    third.load_state_dict(second.state_dict())
    list(third.rows())
    ours, theirs = end_of(third), end_of(straight)
    assert differences(ours, theirs) == []


def test_episodes_that_cannot_continue_are_reported() -> None:
    first = training_of(CARTPOLE)
    list(islice(first.rows(), 2))
    state = first.state_dict()
    source = state["source"]
    running = source["collector"]["running"]

    def output_of(changed: dict[str, Any]) -> str:
        out = io.StringIO()
        console = Console(file=out, width=200)
        training = training_of(CARTPOLE, console)
        changed_source = source | {"collector": source["collector"] | {"running": changed}}
        training.load_state_dict(state | {"source": changed_source})
        list(training.rows())
        return out.getvalue()

    assert "restarted" not in output_of(running)
    line = "4 of 4 running episodes were restarted: the same seed and actions led elsewhere than before, so CartPole-v1"
    assert output_of(running | {"obs": bytes(len(running["obs"]))}).count(line) == 1
    assert "4 of 4 running episodes are restarted: the checkpoint does not have their actions" in output_of(
        dict.fromkeys(running, b"")
    )
    with pytest.raises(ValueError, match="the state's running episodes have"):
        output_of(running | {"actions": b"\2" * len(running["actions"])})
    with pytest.raises(ValueError, match="the state's running episodes have"):
        output_of(running | {"obs": running["obs"][:-1]})
