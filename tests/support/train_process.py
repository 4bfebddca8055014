"""Runs of ``fastrl train`` in processes of their own, which tests interrupt and kill."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def start_training(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Starts ``fastrl train``; further options are those of `subprocess.Popen`. Its output and errors are pipes."""
    command = [sys.executable, "-m", "fastrl", "train", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes | options)


def wait_for_rows(run: Path, count: int, process: "subprocess.Popen[Any]") -> None:
    """Waits until a run has so many rows of metrics.

    Raises:
        AssertionError: its process ends before; with what it printed.
    """
    path = run / "metrics.jsonl"

    def are_there() -> bool:
        return path.exists() and path.read_bytes().count(b"\n") >= count

    while not are_there():
        assert process.poll() is None or are_there(), process.communicate()
        time.sleep(0.01)
