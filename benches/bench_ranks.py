"""Two ranks beside one: PPO on a network large enough that gradients matter.

Run: ``pytest benches/bench_ranks.py -s`` on an otherwise idle machine; five minutes. Runs of one rank and of two take
turns, each a process or two of its own with one thread for PyTorch, started by the command line. A run's speed is that
of its rows of metrics after the first ones, so starts are not counted. One rank runs twice: with whole minibatches by
the fastest backend that there is (PPO's compiled update, or PyTorch) and in two shards by PyTorch, which is the
arithmetic that two ranks share out. Other load on the machine lowers the ratios, as two ranks need two cores at once.
The share of exchange is that of the time in which rank 0 exchanged gradients and experience, the wait for the slower
rank included.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from recording import Record
from results import Case
from rounds import measure_in_turns

SECONDS, ROUNDS = 20.0, 3  # of each run, after its start
HIDDEN, MINIBATCH = "512,512", 1024
# A network of 0.6 million parameters and a cheap environment: what is measured is learning.
ENVIRONMENT = ("Acrobot-v1", "--collector=sequential", "--num-envs=16")
RUNS = {
    "one rank, whole minibatches, compiled": ("--ppo.update-backend=compiled",),
    "one rank, whole minibatches, PyTorch": ("--ppo.update-backend=torch",),
    "one rank, two shards": ("--run.shards=2",),
    "two ranks": ("--ranks=2", "--run.shards=2"),
}


def measured(options: tuple[str, ...]) -> tuple[float, float]:
    """Environment steps a second and the share of exchange of a run, medians over its rows after the first two."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "fastrl", "train", *ENVIRONMENT, f"--ppo.hidden={HIDDEN}", *options]
        command += ["--ppo.num-steps=128", f"--ppo.minibatch-size={MINIBATCH}", "--ppo.num-epochs=4"]
        command += ["--run.torch-threads=1", "--run.row-seconds=0", "--run.eval-episodes=0", "--device=cpu"]
        command += ["--total-timesteps=100000000", f"--run-dir={run}", "--run.checkpoint-seconds=1000000"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            rows = wait_for_rows(run / "metrics.jsonl", process)
        finally:
            # Ctrl-C ends it after the present update.
            process.send_signal(2)
            process.wait()
    speeds = [row["time/fps"] for row in rows]
    return statistics.median(speeds), statistics.median(row.get("time/share_exchange", 0.0) for row in rows)


def wait_for_rows(file: Path, process: subprocess.Popen[bytes]) -> list[dict[str, float]]:
    """The rows after the first two, once they are of `SECONDS`."""
    rows: list[dict[str, float]] = []
    while len(rows) < 4 or rows[-1]["time/time_elapsed"] - rows[1]["time/time_elapsed"] < SECONDS:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            continue
        raise RuntimeError("the run ended by itself")
    return rows[2:]


def test_two_ranks_beside_one(record: Record) -> None:
    found = measure_in_turns({name: lambda own=own: measured(own) for name, own in RUNS.items()}, ROUNDS)
    share = statistics.median(share for _, share in found["two ranks"])
    record(
        "Two ranks beside one",
        "steps/s",
        [
            Case(
                f"PPO on Acrobot-v1, networks of {HIDDEN}", {n: [s for s, _ in of] for n, of in found.items()}
            )
        ],
        ["two ranks"],
        about=f"Minibatches of {MINIBATCH:,}, one thread a rank. Two ranks exchange for {share:.1%} of the time.",
    )
