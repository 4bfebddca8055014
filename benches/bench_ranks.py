"""Two ranks beside one: PPO on a network large enough that gradients matter.

    python benches/bench_ranks.py [--seconds 20] [--hidden 512,512] [--rounds 3] [--json FILE]

Runs of one rank and of two take turns, each a process or two of its own with one thread for PyTorch, started by the
command line. A run's speed is that of its rows of metrics after the first ones, so starts are not counted. One rank
runs twice: with whole minibatches by the fastest backend that there is (PPO's compiled update, or PyTorch) and in two
shards by PyTorch, which is the arithmetic that two ranks share out. Ratios are of medians; other load on the machine
lowers them, as two ranks need two cores at once. Shares are those of the time in which rank 0 exchanged gradients and
experience, the wait for the slower rank included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# A network of 0.6 million parameters and a cheap environment: what is measured is learning.
ENVIRONMENT = ("Acrobot-v1", "--collector=sequential", "--num-envs=16")
RUNS = {
    "one rank, whole minibatches, compiled": ("--ppo.update-backend=compiled",),
    "one rank, whole minibatches, PyTorch": ("--ppo.update-backend=torch",),
    "one rank, two shards": ("--run.shards=2",),
    "two ranks": ("--ranks=2", "--run.shards=2"),
}


def measured(options: tuple[str, ...], hidden: str, seconds: float, minibatch: int) -> tuple[float, float]:
    """Environment steps a second and the share of exchange of a run, medians over its rows after the first two."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "fastrl", "train", *ENVIRONMENT, f"--ppo.hidden={hidden}", *options]
        command += ["--ppo.num-steps=128", f"--ppo.minibatch-size={minibatch}", "--ppo.num-epochs=4"]
        command += ["--run.torch-threads=1", "--run.row-seconds=0", "--run.eval-episodes=0", "--device=cpu"]
        command += ["--total-timesteps=100000000", f"--run-dir={run}", "--run.checkpoint-seconds=1000000"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            rows = wait_for_rows(run / "metrics.jsonl", process, seconds)
        finally:
            # Ctrl-C ends it after the present update.
            process.send_signal(2)
            process.wait()
    speeds = [row["time/fps"] for row in rows]
    return statistics.median(speeds), statistics.median(row.get("time/share_exchange", 0.0) for row in rows)


def wait_for_rows(file: Path, process: subprocess.Popen[bytes], seconds: float) -> list[dict[str, float]]:
    """The rows after the first two, once they are of so many seconds."""
    rows: list[dict[str, float]] = []
    while len(rows) < 4 or rows[-1]["time/time_elapsed"] - rows[1]["time/time_elapsed"] < seconds:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            continue
        raise SystemExit("the run ended by itself")
    return rows[2:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run, after its start")
    parser.add_argument("--hidden", default="512,512", help="widths of the networks' layers")
    parser.add_argument("--minibatch", type=int, default=1024, help="samples of a minibatch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    for _ in range(options.rounds):
        for name, own in RUNS.items():
            found[name].append(measured(own, options.hidden, options.seconds, options.minibatch))
            print(f"{name}: {found[name][-1][0]:,.0f} steps/s", flush=True)
    speeds = {name: statistics.median(speed for speed, _ in each) for name, each in found.items()}
    share = statistics.median(share for _, share in found["two ranks"])
    for name, speed in speeds.items():
        print(f"{name}: {speed:,.0f} steps/s; two ranks {speeds['two ranks'] / speed:.2f} times as fast")
    load = os.getloadavg()[0]
    print(f"exchange: {share:.1%} of the time; load of the machine {load:.1f}, {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({"speeds": speeds, "share": share, "load": load}, indent=2))


if __name__ == "__main__":
    main()
