"""Loggers that write files into the run directory, and how loggers are found by name."""

import contextlib
import importlib
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fastrl.runs.errors import HookError
from fastrl.runs.logger import Flushing, LoggedRun, Logger, LoggerError, is_logger
from fastrl.runs.row import STEPS, Row
from fastrl.runs.tracking import MLflowLogger, WandbLogger  # noqa: F401 - found by their names
from fastrl.utils.errors import UserError
from fastrl.utils.files import append_file, parse_json, read_lines, to_json, write_atomically


def start_loggers(names: Sequence[str], run: LoggedRun) -> list[Logger]:
    """Starts loggers by name, or import path such as ``my_module:MyLogger``.

    Raises:
        LoggerError: there is no such logger, or its library is missing.
        HookError: a logger of the user's own cannot be constructed.
    """
    started: list[Logger] = []
    for name in names:
        logger = find_logger(name)
        try:
            started.append(logger(run))
        except BaseException as error:
            for other in started:
                other.close()
            if ":" in name and isinstance(error, Exception) and not isinstance(error, UserError):
                raise HookError(f"logger {name}", error) from error
            raise
    return started


def find_logger(name: str) -> Callable[[LoggedRun], Logger]:
    """The class of a logger.

    Raises:
        LoggerError: there is none.
    """
    known = {each.name: each for each in globals().values() if is_logger(each) and hasattr(each, "name")}
    path, colon, attribute = name.partition(":")
    if name in known or not colon:
        if name not in known:
            raise LoggerError(
                f"run.loggers should be of {', '.join(sorted(known))}, or module:Class of your own; got {name!r}"
            )
        return known[name]
    try:
        found: Callable[[LoggedRun], Logger] = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError) as error:
        raise LoggerError(f"run.loggers {name}: {error}") from None
    if not is_logger(found):
        raise LoggerError(f"run.loggers {name}: should be a class with the methods log(row) and close()")
    return found


class Loggers:
    """Several loggers as one.

    Raises:
        HookError: by each method, if a logger of the user's own has raised.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers

    def log(self, row: Row) -> None:
        for logger in self._loggers:
            with _blaming(logger):
                logger.log(row)

    def flush(self) -> None:
        """Makes sure that what was logged survives a crash."""
        for logger in self._loggers:
            if isinstance(logger, Flushing):
                with _blaming(logger):
                    logger.flush()

    def close(self) -> None:
        """Closes all of them, also if one raises."""
        with contextlib.ExitStack() as stack:
            for logger in self._loggers:
                stack.enter_context(_blaming(logger))
                stack.callback(logger.close)


@contextlib.contextmanager
def _blaming(logger: Logger) -> Iterator[None]:
    try:
        yield
    except (UserError, HookError, MemoryError):
        raise
    except Exception as error:
        # A full disk is no fault of the logger.
        if isinstance(error, OSError) and type(logger).__module__.startswith("fastrl."):
            raise
        raise HookError(f"logger {type(logger).__name__}", error) from error


class _LinesLogger(Logger):
    """A file of lines that grows. A resumed run first drops the lines after its checkpoint, and a half-written last
    one."""

    def __init__(self, path: Path, kept: Iterator[str]) -> None:
        write_atomically(path, "".join(kept).encode())
        self._file = io.TextIOWrapper(append_file(path), encoding="utf-8")

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class JsonlLogger(_LinesLogger):
    """One JSON object a line, in ``metrics.jsonl``; every run with a directory has it."""

    def __init__(self, run: LoggedRun) -> None:
        path = run.files.metrics
        super().__init__(path, _lines_until(path, run.after, lambda line: parse_json(line)[STEPS]))

    def log(self, row: Row) -> None:
        self._file.write(to_json(row.record()) + "\n")
        self._file.flush()


class EpisodesLogger(_LinesLogger):
    """A line for each episode of training, in ``episodes.csv``: environment steps of the run when it had ended, return,
    length. Every run with a directory has it."""

    HEADER = f"{STEPS},return,length\n"

    def __init__(self, run: LoggedRun) -> None:
        path = run.files.episodes
        lines = _lines_until(path, run.after, lambda line: 0, header=True)
        super().__init__(path, itertools.chain([self.HEADER], itertools.islice(lines, run.episodes)))

    def log(self, row: Row) -> None:
        if row.ended is not None and len(row.ended):
            ended = row.ended
            episodes = zip(ended.steps.tolist(), ended.returns.tolist(), ended.lengths.tolist(), strict=True)
            self._file.writelines([f"{steps},{total!r},{length}\n" for steps, total, length in episodes])
            self._file.flush()


class CsvLogger(_LinesLogger):
    """A table in ``metrics.csv``, for spreadsheets. It is rewritten where a row has a column that none had before."""

    name = "csv"

    def __init__(self, run: LoggedRun) -> None:
        self._path = path = run.files.table
        kept = list(_lines_until(path, run.after, lambda line: int(line.partition(",")[0]), header=True))
        header = next(read_lines(path)) if kept else ""
        self._columns = header.strip().split(",") if kept else [STEPS]
        super().__init__(path, iter([header, *kept]))

    def log(self, row: Row) -> None:
        record = row.record()
        new = [name for name in record if name not in self._columns]
        if new or self._file.tell() == 0:
            self._widen(new)
        cells = (record.get(name) for name in self._columns)
        self._file.write(
            ",".join("" if cell is None or cell != cell else repr(cell) for cell in cells) + "\n"
        )
        self._file.flush()

    def _widen(self, new: Sequence[str]) -> None:
        """Rewrites the file with further columns."""
        self._file.close()
        self._columns = [*self._columns, *new]
        lines = itertools.islice(read_lines(self._path), 1, None)
        filled = [f"{line.rstrip()}{',' * len(new)}\n" for line in lines]
        super().__init__(self._path, iter([",".join(self._columns) + "\n", *filled]))


def _lines_until(
    path: Path, steps: int, steps_of: Callable[[str], int], *, header: bool = False
) -> Iterator[str]:
    """The lines of a file up to those of later steps, or to a damaged one."""
    if not path.exists() or steps == 0:
        return
    for line in itertools.islice(read_lines(path), int(header), None):
        try:
            if not line.endswith("\n") or steps_of(line) > steps:
                return
        except (ValueError, KeyError, TypeError):
            return
        yield line


class TensorBoardLogger(Logger):
    """Event files for TensorBoard, with the settings as hyper-parameters. What was logged there before is hidden if it
    came after the checkpoint."""

    name = "tensorboard"

    def __init__(self, run: LoggedRun) -> None:
        # It takes a quarter of a second to import.
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import hparams

        self._summary = Summary

        self._writer = SummaryWriter(
            str(run.files.tensorboard), purge_step=run.after + 1, write_to_disk=True, flush_secs=10
        )
        if settings := run.hyper_parameters():
            for summary in hparams(settings, dict.fromkeys(_COMPARED, 0.0)):
                self._writer.file_writer.add_summary(summary)

    def log(self, row: Row) -> None:
        # One event of all numbers: an event for each, as of `add_scalar`, takes ten times as long.
        values = [
            self._summary.Value(tag=name, simple_value=number)
            for name, number in row.metrics.items()
            if math.isfinite(number)
        ]
        self._writer.file_writer.add_summary(self._summary(value=values), row.steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


# Metrics by which TensorBoard compares hyper-parameters.
_COMPARED = ("rollout/ep_rew_mean", "eval/mean_reward")
