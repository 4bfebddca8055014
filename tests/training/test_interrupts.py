"""One, two and three Ctrl-C: what a run keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import same, untimed_state
from waiting import TIMEOUT

import fastrl
from fastrl.algorithms.ppo import PPO
from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_newest
from fastrl.utils.interrupts import Interrupted, Interruptible, StopSignals

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "minibatch_size": 8,
    "hidden": [8],
    "collector": "sequential",
    "eval_episodes": 0,
}

# An environment that stops after 40 steps, and an algorithm whose second update ends after two signals, or never, if
# they are asked to.
SLOW = """
import os
import signal
import time
from gymnasium.envs.classic_control import CartPoleEnv
from fastrl.algorithms.ppo import PPO

handled = 0

def say(word):
    # A handler may not print while a print is under way.
    os.write(1, f"{word}\\n".encode())

def notice_signals():
    handler = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        global handled
        try:
            handler(number, frame)
        finally:
            handled += 1
            say("handled")

    signal.signal(signal.SIGINT, handle)

class Env(CartPoleEnv):
    steps = 0

    def step(self, action):
        Env.steps += 1
        if os.environ.get("SLOW") == "env" and Env.steps > 40:
            notice_signals()
            say("waiting")
            while True:
                time.sleep(1)
        return super().step(action)

class Slow(PPO):
    name = "slow"
    updates = 0

    def update(self, experience, watch):
        self.updates += 1
        if "update" in os.environ.get("SLOW", "") and self.updates == 2:
            notice_signals()
            say("updating")
            while os.environ["SLOW"] == "endless update" or handled < 2:
                time.sleep(0.01)
        return super().update(experience, watch)
"""


class Run:
    """A run in a process of its own."""

    def __init__(self, folder: Path, slow: str, *arguments: str) -> None:
        (folder / "slow.py").write_text(SLOW)
        self.run = folder / "run"
        small = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items() if key != "hidden"]
        options = [
            *small,
            "--algo=slow:Slow",
            "--hidden=8",
            "--run.row-seconds=0",
            "--run.checkpoint-seconds=0",
        ]
        self.command = [
            *(sys.executable, "-m", "fastrl", "train", "slow:Env", *options, *arguments),
            f"--run-dir={self.run}",
        ]
        self.process = subprocess.Popen(
            self.command,
            cwd=folder,
            env={**os.environ, "SLOW": slow},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def interrupt_at(self, word: str, times: int) -> tuple[str, str]:
        """Sends so many signals once it prints a word; returns what it prints after that."""
        self._wait_for(word)
        for left in reversed(range(times)):
            self.process.send_signal(signal.SIGINT)
            if left:
                self._wait_for("handled")
        out, err = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 128 + signal.SIGINT, err
        return out, err

    def _wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()).strip() != word:
            assert line, f"it has ended, and not printed {word}"


@pytest.mark.slow
def test_a_second_one_ends_the_collection_with_the_state_after_the_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "env", "--total-timesteps=80")
    out, err = run.interrupt_at("waiting", 2)
    assert "Interrupted; to resume" in out and not err
    state = load_newest(run.run)[1]
    assert (state["steps"], state["iteration"]) == (32, 2)
    # Resumed, it ends as one that was never stopped.
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["train", "--resume", str(run.run), "--trust"]) == 0
    assert main([*run.command[3:-1], f"--run-dir={tmp_path / 'whole'}"]) == 0
    ends = [load_newest(folder)[1] for folder in (run.run, tmp_path / "whole")]
    assert same(untimed_state(ends[0]["learner"]), untimed_state(ends[1]["learner"]))
    assert [end["steps"] for end in ends] == [80, 80]


@pytest.mark.slow
def test_a_second_one_in_an_update_lets_it_end(tmp_path: Path) -> None:
    run = Run(tmp_path, "update", "--total-timesteps=80")
    out, err = run.interrupt_at("updating", 2)
    assert "Interrupted; to resume" in out and not err
    assert load_newest(run.run)[1]["iteration"] == 2


@pytest.mark.slow
def test_a_third_one_ends_at_once_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    run = Run(tmp_path, "endless update", "--total-timesteps=80")
    _, err = run.interrupt_at("updating", 3)
    assert err == "fastrl train: error: interrupted\n"
    assert load_newest(run.run)[1]["iteration"] == 1


def test_from_python_two_in_an_update_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = fastrl.PPO("CartPole-v1", **SMALL), fastrl.PPO("CartPole-v1", **SMALL)
    update = PPO.update

    def interrupted(self: PPO, *arguments: Any) -> Any:
        if self.steps == 32:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(10**6)
    steps = model.steps
    assert 32 <= steps <= 64

    class Stop(fastrl.callbacks.Callback):
        def on_update(self, run: fastrl.callbacks.Run) -> bool:
            return run.timesteps < steps

    other.learn(10**6, callbacks=[Stop()])
    assert same(*(each.trainer.policy_checkpoint()["policy"] for each in (model, other)))
    assert model.learn(16).steps == steps + 16


def test_waits_end_at_the_second_signal_and_nothing_else_does() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(finishes=True) as stop:
        with Interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received is signal.SIGINT and signal.getsignal(signal.SIGINT) is not before
        with pytest.raises(Interrupted), Interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(Interrupted), Interruptible():
            pytest.fail("there is nothing to wait for any more")
    with Interruptible():
        pass
    with StopSignals(finishes=True):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
