"""The process that trains trials, one after the other; `fastrl.tuning.pool` starts it.

It reads a job a line from its standard input, and answers with a line on its standard output. What training prints goes
into a log beside the run directory. It ends with the process that started it.
"""

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fastrl.collectors.protocol import CollectError
from fastrl.runs.directory import is_run, never_saved
from fastrl.tasks import find
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.run import evaluate_run, resume_run, start_run
from fastrl.tuning.fork import fork
from fastrl.utils.config import load_toml
from fastrl.utils.errors import UserError
from fastrl.utils.files import append_file
from fastrl.utils.output import plain_console


def main() -> None:
    """Does jobs until its input ends."""
    # SIGINT comes from the pool alone, and stops a trial. It may be ignored where the search runs, in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a job prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        with io.TextIOWrapper(append_file(Path(job["log"])), encoding="utf-8") as log:
            answer = do(job, log)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def do(job: Mapping[str, Any], log: TextIO) -> dict[str, Any]:
    """Does a job: trains a run or scores its policy.

    Returns:
        Attributes of a `fastrl.tuning.pool.Answer`; its status is that of the run's summary, or "failed".
    """
    try:
        if "episodes" in job:
            scores = evaluate_run(
                find(job["kind"]),
                Path(job["run"]),
                EvaluationOptions(job["episodes"], job["seed"]),
                trust=job["trust"],
            )
            return {"status": "complete", "score": scores.mean_return}
        return {"status": train(job, log)}
    except KeyboardInterrupt:
        return {"status": "interrupted"}
    except BaseException as error:
        if not isinstance(error, UserError | CollectError | FloatingPointError | OSError | MemoryError):
            traceback.print_exc(file=log)
        line = " ".join(str(error).split()) or type(error).__name__
        return {
            "status": "failed",
            "error": line[:500],
            "disk_full": isinstance(error, OSError) and error.errno in (28, 122),
        }


def train(job: Mapping[str, Any], log: TextIO) -> str:
    """Trains a run, or resumes it where it has a checkpoint; returns the status of its summary."""
    task, path, console = find(job["kind"]), Path(job["run"]), plain_console(file=log, width=120)
    if "fork" in job:
        fork(Path(job["fork"]), path, Path(job["config"]))
    if is_run(path) and not never_saved(path):
        return resume_run(task, path, {}, None, console, trust=job["trust"]).status
    settings = task.make_settings(tree=load_toml(job["config"]), source=job["config"], trust=job["trust"])
    return start_run(task, settings, path, console).status


if __name__ == "__main__":
    main()
