"""The command ``fastrl bench``: measures this machine beside other libraries."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fastrl.cli.arguments import at_least, path, positive
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from fastrl.benchmarks.results import Benchmark


def bench(prog: str, arguments: list[str]) -> int:
    """Measures topics, prints tables and writes results as JSON."""
    from fastrl.benchmarks.suite import TOPICS, measure
    from fastrl.benchmarks.tables import speed_table

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [TOPIC ...] [--out DIR] [options]",
        description="Measures this machine: fastrl beside other libraries, as far as they are installed, in several"
        " rounds in turns.",
        epilog="pip install 'fastrl[bench]' installs the other libraries. Other work on the machine changes rates;"
        " ratios of contenders that are measured in turns suffer less.",
    )
    parser.add_argument(
        "topics",
        nargs="*",
        metavar="TOPIC",
        type=_topic,
        help=f"what to measure: {', '.join(TOPICS)} [all]",
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
    parser.add_argument(
        "--note",
        default="",
        metavar="TEXT",
        help="a remark that is stored, such as what else the machine does",
    )
    options = parser.parse_args(arguments)
    out: Path | None = options.out
    console = plain_console()
    command = shlex.join([*prog.split(), *arguments])

    def done(result: Benchmark) -> None:
        result = result.stamped(command, options.note)
        for case in result.cases:
            show(console, speed_table(result, case))
        for name, reason in result.left_out.items():
            console.print(f"{name} is left out: {reason}")
        if out is not None:
            console.print(f"Written: {result.write(out)}")

    # Lines, not a bar: a bar's thread would hold a lock while the queue's producers are forked.
    lines = plain_console(stderr=True, force_terminal=False)
    with Progress("measuring", None, lines) as progress:
        measure(options.topics or list(TOPICS), options.rounds, options.seconds, progress, done)
    return 0


def _topic(text: str) -> str:
    from argparse import ArgumentTypeError

    from fastrl.benchmarks.suite import TOPICS
    from fastrl.utils.names import nearest

    if text not in TOPICS:
        raise ArgumentTypeError(
            f"unknown topic {text}; did you mean {nearest(text, TOPICS)}? There are {', '.join(TOPICS)}"
        )
    return text
