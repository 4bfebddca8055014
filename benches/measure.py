"""Measurement of everything that the documentation says of speed, on an otherwise idle machine.

    python benches/measure.py docs/benchmarks/data          # 22 minutes on two cores
    python docs/draw_speed.py                               # page, charts and README's figures from it

Replaces the results (``*.json``) in the folder. A bench that misses a bar of its own has written its results all the
same; its name is printed at the end. `pip install '.[bench,export]'` brings the peers, but for these: CybORG of CAGE
Challenge 2 (a checkout on PYTHONPATH), that of CAGE Challenge 4 (FASTRL_CYBORG4 names its checkout), EnvPool and VMAS
(`bench_traffic` says how). What is not there is left out, with the reason; the README's figures need both CybORGs,
highway-env and Stable-Baselines3.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BENCHES = Path(__file__).resolve().parent
# Benches and which of their tests, as for `pytest -k`.
SELECTION = {
    "actor": "",
    "async_vec": "highway",
    "bc": "",
    "cage2": "",
    "cage4": "steps_per_second",
    "cage4_cyborg": "",
    "classic": "",
    "collect": "lognormal",
    "coop": "",
    "dqn": "gradient_steps",
    "export": "",
    "growth": "",
    "lights": "",
    "links": "",
    "masks": "",
    "ppo": "relu and (beside or 64x64-batch-64)",
    "profile": "",
    "returns": "",
    "roads": "",
    "sac": "",
    "sync": "effective or lockstep",
    "town": "",
    "traffic": "",
}


def commands(folder: Path, note: str) -> list[list[str]]:
    """The commands that measure, each of which writes into the folder."""
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", "-p", "no:cacheprovider"]
    benches = [
        [
            *pytest,
            str(BENCHES / f"bench_{name}.py"),
            *(["-k", tests] if tests else []),
            f"--bench-out={folder}",
            f"--bench-note={note}",
        ]
        for name, tests in SELECTION.items()
    ]
    return [[sys.executable, str(BENCHES / "suite.py"), "--out", str(folder), "--note", note], *benches]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--note", default="", metavar="TEXT", help="a remark that the results keep")
    options = parser.parse_args(arguments)
    for file in options.folder.glob("*.json"):
        file.unlink()
    missed, begin = [], time.perf_counter()
    for command in commands(options.folder, options.note):
        start = time.perf_counter()
        if subprocess.run(command, check=False).returncode:
            missed.append(" ".join(command[2:]))
        print(
            f"== {time.perf_counter() - start:.0f} s, {(time.perf_counter() - begin) / 60:.1f} min in all",
            flush=True,
        )
    print(*(f"failed, or a bar was missed: {command}" for command in missed), sep="\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
