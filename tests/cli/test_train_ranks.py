"""``fastrl train --ranks``: a rank that is killed or hangs ends all, and the run resumes without it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import run_cli
from train_process import start_training
from waiting import TIMEOUT

from fastrl.cli import ranks
from fastrl.cli.main import main
from fastrl.runs.checkpoint import BEST, load_checkpoint, load_newest

OPTIONS = [
    "CartPole-v1",
    "--collector=sequential",
    "--num-envs=4",
    "--ppo.num-steps=16",
    "--ppo.hidden=8",
    "--run.eval-episodes=0",
    "--run.row-seconds=0",
    "--run.checkpoint-seconds=0",
    "--device=cpu",
]


def children(pid: int) -> dict[int, int]:
    """Processes that a process has started, by their rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [int(each[5:]) for each in variables if each.startswith(b"RANK=")]
        found |= dict.fromkeys(ranks, int(child))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def after_a_signal(run: Path, rank: int, number: signal.Signals, *options: str) -> str:
    """Errors that a run of two ranks prints after one of them gets a signal. It ends within 30 seconds, with
    exit code 1, and leaves no process."""
    process = start_training(
        *OPTIONS,
        *("--ranks=2", "--total-timesteps=100000000", f"--run-dir={run}", *options),
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        until = time.monotonic() + TIMEOUT
        while not list(run.glob("checkpoints/step-*")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        processes = children(process.pid)
        assert processes.keys() == {0, 1}
        os.kill(processes[rank], number)
        _, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert not any(map(is_running, processes.values()))
    return errors


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_run_resumes_without_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    errors = after_a_signal(run, 1, signal.SIGKILL)
    assert re.search(r"^fastrl train: error: rank 1 of 2 was killed by SIGKILL, so all have ended", errors)
    steps = load_newest(run)[1]["steps"]
    assert main(["train", f"--resume={run}", f"--total-timesteps={steps + 64}"]) == 0
    assert load_newest(run)[1]["steps"] == steps + 64
    # What ranks decide about shards stays.
    assert "shards = 2" in (run / "config.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_is_named_and_all_end(tmp_path: Path, rank: int) -> None:
    errors = after_a_signal(tmp_path / "run", rank, signal.SIGSTOP, "--run.rank-timeout=5")
    assert errors.startswith(f"fastrl train: error: rank {rank} of 2 does not answer any more")
    assert load_newest(tmp_path / "run")[1]["steps"] > 0


@pytest.mark.slow
def test_ranks_keep_the_best_policy_of_evaluations_on_the_way(tmp_path: Path) -> None:
    options = ["--run.shards=2", "--run.eval-freq=2", "--run.eval-episodes=2", "--total-timesteps=256"]
    evaluations = []
    for ranks_of in (1, 2):
        run = tmp_path / f"run-{ranks_of}"
        assert main(["train", *OPTIONS, *options, f"--ranks={ranks_of}", f"--run-dir={run}"]) == 0
        state = load_checkpoint(run / "checkpoints" / BEST)
        evaluations.append((state["steps"], state["callbacks"]["evaluation"]))
        assert main(["train", f"--resume={run / 'checkpoints' / BEST}", f"--run-dir={run}-on"]) == 0
    assert evaluations[0] == evaluations[1]
    assert evaluations[0][1]["best"]["episodes"] == 2


def test_ranks_that_end_without_training_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "module_command", lambda *_: [sys.executable, "-c", ""])
    assert main(["train", *OPTIONS, "--ranks=2", "--total-timesteps=64"]) == 1
    assert "rank 0 of 2 ended without training, so all have ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ranks=two"], "argument --ranks: should be an integer of at least 1, got 'two'"),
        (["--ranks=0"], "argument --ranks: should be an integer of at least 1, got '0'"),
        (["--ranks=2", "--seeds=0,1"], "--seeds does not go with --ranks 2"),
        (["--ranks=1025"], "argument --ranks: should be an integer of at most 1024, got '1025'"),
        (["--ranks=2", "--auto"], "--auto does not go with --ranks 2"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_cli(capsys, "train", "CartPole-v1", *options)
    assert code == 2
    assert line in err


@pytest.mark.slow
def test_commands_for_a_run_of_ranks_repeat_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", *OPTIONS, f"--run-dir={run}", "--ranks=2", "--total-timesteps=64"]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == f"To train it further: fastrl train --resume {run} --total-timesteps 128 --ranks 2"
