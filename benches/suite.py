"""Measurement of this machine: fastrl beside other libraries, as far as they are installed, in rounds in turns.

    python benches/suite.py replay --out results

`pip install '.[bench]'` installs the other libraries. Other work on the machine changes rates; ratios of contenders
that are measured in turns suffer less.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence

from fastrl.cli.arguments import at_least, path, positive, print_error
from fastrl.utils.errors import UserError
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from recording import show_and_write

# Modules are imported when their topic is measured: some need PyTorch. Each has `measure`.
TOPICS = {"envs": "vector_envs", "queue": "queues", "replay": "replays", "collectors": "collecting"}
PROG = "python benches/suite.py"


def main(arguments: Sequence[str]) -> int:
    """Measures topics, prints tables and writes results as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help=f"what to measure: {', '.join(TOPICS)} [all]"
    )
    parser.add_argument(
        "--out", type=path, metavar="DIR", help="folder into which the results are written as JSON"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=5,
        metavar="INT",
        help="measurements of each contender, in turns [5]",
    )
    parser.add_argument(
        "--seconds", type=positive, default=0.2, metavar="FLOAT", help="seconds of each measurement [0.2]"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="a remark that the results keep")
    options = parser.parse_args(arguments)
    for topic in options.topics:
        if topic not in TOPICS:
            parser.error(f"unknown topic {topic}; there are {', '.join(TOPICS)}")
    how = [f"--rounds={options.rounds}", f"--seconds={options.seconds}"]
    # Lines, not a bar: a bar's thread would hold a lock while the queue's producers are forked.
    lines = plain_console(stderr=True, force_terminal=False)
    try:
        with Progress("measuring", None, lines) as progress:
            for topic in options.topics or TOPICS:
                module = importlib.import_module(TOPICS[topic])
                for result in module.measure(options.rounds, options.seconds, progress):
                    show_and_write(
                        result.stamped(shlex.join([*PROG.split(), topic, *how]), options.note), options.out
                    )
    except UserError as error:
        print_error(PROG, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
