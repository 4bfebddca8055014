"""Commands of fastrl in processes of their own."""

import os
import signal
import threading
from pathlib import Path

import pytest
from waiting import TIMEOUT

from fastrl.utils import child_process


def test_a_command_says_what_it_took(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        ended = child_process.run(["--version"], log)
    assert (ended.code, ended.signal) == (0, None)
    assert 0 < ended.seconds < TIMEOUT and 5 < ended.memory_mib < 2000
    assert (tmp_path / "log").read_text().startswith("fastrl ")


def test_a_mistake_has_its_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        assert child_process.run(["runs", "--no-such-option"], log).code == 2
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        "train",
        "CartPole-v1",
        "--preset=smoke",
        "--collector=sequential",
        "--total-timesteps=100000000",
    ]
    run = tmp_path / "run"
    found: list[Path] = []

    def stop() -> None:
        # The file is there before the command takes signals, its first row after that.
        while not (found or done.wait(0.1)):
            found.extend(path for path in run.glob("metrics.jsonl") if path.stat().st_size)
        os.kill(os.getpid(), number)

    done = threading.Event()
    thread = threading.Thread(target=stop)
    thread.start()
    with (tmp_path / "log").open("wb") as log:
        ended = child_process.run([*command, f"--run-dir={run}"], log)
    done.set()
    thread.join()
    assert (ended.code, ended.signal) == (128 + number, number)
    assert list((run / "checkpoints").iterdir())
