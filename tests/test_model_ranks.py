"""``model.learn(ranks=N)``: other processes share the work, and learn what one process learns."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from waiting import TIMEOUT

import fastrl
from fastrl.callbacks import Callback
from fastrl.runs.checkpoint import checksum
from fastrl.utils.errors import UserError
from fastrl.utils.ranks import LostRankError

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "collector": "sequential",
    "num_steps": 16,
    "hidden": (8,),
    "run__torch_threads": 1,
    "device": "cpu",
}

PROGRAM = """
import gymnasium
import fastrl
from fastrl.runs.checkpoint import checksum

def make():
    return gymnasium.make("CartPole-v1")

def main():
    for ranks in (1, 2):
        model = fastrl.PPO(
            make, num_envs=4, collector="sequential", num_steps=16, hidden=(8,), device="cpu", run__shards=2
        )
        # The second call continues; the third one in this process alone.
        model.learn(64, ranks=ranks).learn(64, ranks=ranks).learn(64)
        print(model.steps, checksum(model.trainer.algorithm.state_dict()), model.evaluate(2), len(model.metrics))

"""


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_program_learns_the_same_on_several_ranks(tmp_path: Path) -> None:
    done = run(tmp_path, f'{PROGRAM}if __name__ == "__main__":\n    main()\n')
    assert done.returncode == 0, done.stderr
    one, two = done.stdout.splitlines()
    assert one == two
    assert one.startswith("192 ")


@pytest.mark.slow
def test_a_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    done = run(tmp_path, f"{PROGRAM}main()\n")
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if "rank 1 of 2" in line]
    assert 'put the code that starts them under `if __name__ == "__main__":`' in line
    assert done.stdout.count("\n") == 1


class Ending(Callback):
    """Sends the other rank a signal after the first update."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def on_update(self, run: Any) -> None:
        [other] = [each for each in multiprocessing.active_children() if each.name == "fastrl-rank-1"]
        assert other.pid is not None
        if self.number:
            os.kill(other.pid, self.number)
        self.number = 0  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGKILL, "rank 1 of 2 has ended: killed by SIGKILL"),
        (signal.SIGSTOP, "rank 1 of 2 has not answered for 4 s"),
    ],
)
def test_a_rank_that_is_lost_ends_the_call_and_leaves_the_model(number: signal.Signals, line: str) -> None:
    model = fastrl.PPO("CartPole-v1", **SMALL, run__shards=2, run__rank_timeout=4)
    model.learn(64)
    before = checksum(model.trainer.algorithm.state_dict())
    with pytest.raises(LostRankError, match=line) as caught:
        model.learn(10_000_000, ranks=2, callbacks=[Ending(number)])
    assert "\n" not in str(caught.value)
    assert model.steps == 64
    assert checksum(model.trainer.algorithm.state_dict()) == before
    assert not [each for each in multiprocessing.active_children() if each.name.startswith("fastrl-rank")]
    assert model.learn(64).steps == 128


def test_what_ranks_cannot_do_is_refused_before_any_starts() -> None:
    model = fastrl.PPO("CartPole-v1", **SMALL, run__shards=3)
    with pytest.raises(UserError, match="ranks should be a whole number from 1 on, got 0"):
        model.learn(64, ranks=0)
    with pytest.raises(UserError, match=r"run\.shards 3 cannot be shared out evenly among 2 ranks"):
        model.learn(64, ranks=2)
    own = fastrl.PPO(lambda: gymnasium.make("CartPole-v1"), **SMALL)
    with pytest.raises(UserError, match="can be built by one process alone"):
        own.learn(64, ranks=2)
    dqn = fastrl.DQN("CartPole-v1", num_envs=2, collector="sequential", device="cpu", learning_starts=20)
    dqn.learn(40)
    with pytest.raises(UserError, match="ranks=2 cannot continue with the replay in this process"):
        dqn.learn(40, ranks=2)
    assert not multiprocessing.active_children()
