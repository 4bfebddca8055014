"""The command line: ``fastrl train | tune | autotune | eval | explain | exploit | league | export | render | demos |
pipeline | runs | plot | compare | report | verify``, and ``fastrl-train`` for the first.

Each command imports what it needs when it runs: PyTorch takes seconds, ``fastrl --help`` should not.
"""

import atexit
import errno
import gc
import re
import signal
import sys
from collections.abc import Callable, Sequence

from fastrl.cli.arguments import Commands, GroupParser, print_error
from fastrl.cli.autotune import autotune
from fastrl.cli.compare import compare
from fastrl.cli.demos import demos
from fastrl.cli.eval import evaluate
from fastrl.cli.explain import explain
from fastrl.cli.exploit import exploit
from fastrl.cli.export import export
from fastrl.cli.league import league
from fastrl.cli.pipeline import pipeline
from fastrl.cli.plot import plot
from fastrl.cli.ranks import is_launched
from fastrl.cli.render import render
from fastrl.cli.report import report
from fastrl.cli.runs import runs
from fastrl.cli.train import train
from fastrl.cli.tune import tune
from fastrl.cli.verify import verify
from fastrl.utils.errors import UserError
from fastrl.utils.heartbeat import EXIT_LOST
from fastrl.utils.output import ignoring_write_errors, redirect_to_null, repair_streams
from fastrl.utils.processes import require_main_guard


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl``.

    Args:
        argv: what follows the command's name; None for that of this process.

    Returns:
        The exit code: 0; 1 for a failure; 2 for a user's mistake; 128 + n where signal n ended it. It is that of the
        run itself where training outlives its stdout; other commands fail with it.
    """
    arguments = [str(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    if arguments and arguments[0] in COMMANDS:
        return run_command(COMMANDS[arguments[0]][0], f"fastrl {arguments[0]}", arguments[1:])
    return run_command(_umbrella, "fastrl", arguments)


def main_train(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl-train``, which is ``fastrl train``."""
    return run_command(train, "fastrl-train", [str(a) for a in (sys.argv[1:] if argv is None else argv)])


def run_command(command: Callable[[str, list[str]], int], prog: str, arguments: list[str]) -> int:
    """Runs a command; errors that a user can correct end in one line, not in a traceback.

    Args:
        command: gets ``prog`` and ``arguments``, and returns the exit code.
        prog: name of the command in messages.

    Returns:
        The exit code.
    """
    require_main_guard()
    repair_streams()
    atexit.register(_skip_garbage)
    with ignoring_write_errors("stderr"):
        try:
            return _code_of(command, prog, arguments)
        finally:
            # Python flushes again at exit, and would fail there.
            try:
                sys.stdout.flush()
            except OSError:
                redirect_to_null(sys.stdout.fileno())


def _skip_garbage() -> None:
    # At exit Python looks for garbage in all that PyTorch has made, several times: more than half a second. Triton
    # prints a page of leaks where this is left out.
    if "triton" not in sys.modules:
        gc.freeze()


def _code_of(command: Callable[[str, list[str]], int], prog: str, arguments: list[str]) -> int:
    try:
        code = command(prog, arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(prog, error, 2)
    except KeyboardInterrupt:
        return _fail(prog, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of the output, such as head, has closed it.
        return 128 + signal.SIGPIPE
    except MemoryError as error:
        return _fail(
            prog, f"not enough memory: {error}; a smaller --num-envs or --replay.capacity needs less", 1
        )
    except ImportError as error:
        # A library that does not fit into `ulimit -v`.
        if not re.search("failed to map|allocate memory", str(error)):
            raise
        return _fail(prog, f"not enough memory to load a library: {error}", 1)
    except FloatingPointError as error:
        return _fail(prog, error, 1)
    except RuntimeError as error:
        from fastrl.collectors.protocol import CollectError
        from fastrl.runs.errors import HookError
        from fastrl.utils.ranks import LostRankError

        if isinstance(error, LostRankError):
            # The process that has started the ranks says which one it was.
            return EXIT_LOST if is_launched() else _fail(prog, error, EXIT_LOST)
        if not isinstance(error, CollectError | HookError):
            raise
        # First the traceback of the user's code, then one line.
        if error.traceback:
            print(error.traceback.rstrip(), file=sys.stderr)
        return _fail(prog, str(error).splitlines()[0], 1)
    except OSError as error:
        if error.errno is None:
            raise
        where = "on a disk, or in /dev/shm, which processes share" if error.errno == errno.ENOSPC else ""
        name = error.filename or where
        return _fail(prog, f"{error.strerror}{f': {name}' if name else ''}", 1)


def _fail(prog: str, message: object, code: int) -> int:
    print_error(prog, message)
    return code


def _umbrella(prog: str, arguments: list[str]) -> int:
    parser = GroupParser(
        prog, COMMANDS, "Trains reinforcement-learning agents in compiled simulators.", "[-h] [--version]"
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    if parser.parse_args(arguments).version:
        from fastrl._native._rust import __version__

        print(f"fastrl {__version__}")
    else:
        parser.print_help()
    return 0


COMMANDS: Commands = {
    "train": (train, "train on CAGE Challenge 2, traffic or any environment"),
    "tune": (tune, "search for hyper-parameters, and confirm the best by training them again"),
    "autotune": (autotune, "measure how a run is fastest on this machine, and write its settings"),
    "eval": (evaluate, "score runs, checkpoints or baselines"),
    "explain": (explain, "say what a defender of CAGE 2 might have done better at each step of a game"),
    "exploit": (exploit, "train attackers against a defender of CAGE Challenge 2, and say what they cost it"),
    "league": (league, "play defenders against attackers of CAGE Challenge 2: a table, ratings, priorities"),
    "export": (export, "write a policy to a file that needs no PyTorch"),
    "render": (render, "film episodes of a run; of traffic also a log and a diagram"),
    "demos": (demos, "record, replay and inspect episodes of an expert"),
    "pipeline": (pipeline, "record an expert, clone it, improve the clone"),
    "runs": (runs, "list run directories: environment, algorithm, steps, last return, state"),
    "plot": (plot, "draw learning curves of runs, with intervals over seeds"),
    "compare": (
        compare,
        "compare groups of runs: interquartile means, intervals, probability of improvement",
    ),
    "report": (report, "make one table of results: settings that differ, seeds, time, score with interval"),
    "verify": (verify, "check the simulator of CAGE 2 against traces of CybORG"),
}
