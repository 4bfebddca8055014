"""Ranks that this process starts, to train a model of the Python API together with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from fastrl.runs.errors import TrainError
from fastrl.training.run import load_weights, train
from fastrl.training.task import Task
from fastrl.training.trainer import Trainer
from fastrl.utils import child_process
from fastrl.utils.child_process import Child
from fastrl.utils.config import build, check, to_tree
from fastrl.utils.heartbeat import EXIT_LOST, LAUNCHED
from fastrl.utils.output import quiet_console
from fastrl.utils.processes import init_worker, require_main_guard
from fastrl.utils.ranks import ALONE, LostRankError, Ranks, connected_here, disconnect

if TYPE_CHECKING:
    from rich.console import Console

# Seconds in which a rank that has lost another one ends by itself.
_GRACE = 10.0


@contextlib.contextmanager
def started(
    count: int, task: Task, settings: Any, stage: int, state: Mapping[str, Any] | None
) -> Iterator[Ranks]:
    """A context of so many ranks: this process, as rank 0, and others that it starts. They train what `train_rank`
    describes, so this process must do the same.

    Args:
        task: of the run, without ranks.
        settings: of the run, with a number of shards that suits the ranks.
        stage: of the run.
        state: of a training from which they continue; None: they start.

    Raises:
        TrainError: a rank cannot be started, such as for an environment that no other process can build.
        LostRankError: a rank has ended; one line says which one, and why.
    """
    require_main_guard()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    # Tensors would share memory with this process.
    saved = None if state is None else pickle.dumps(dict(state))
    others: list[Child] = []
    try:
        try:
            for rank in range(1, count):
                arguments = (rank, count, port, task, to_tree(settings), stage, saved)
                name = f"fastrl-rank-{rank}"
                others.append(Child.worker(context, _run, *arguments, name=name, one_thread=False))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TrainError(f"ranks={count}: other processes cannot be given this run: {error}") from None
        for rank, child in enumerate(others, 1):
            _wait_until_ready(rank, count, child)
        silent: list[int] = []

        def end(lost: int) -> None:
            silent.append(lost)
            others[lost - 1].kill()

        ranks = connected_here(0, count, port, end)
        try:
            yield ranks
        except LostRankError:
            if silent:
                line = f"rank {silent[0]} of {count} has not answered for {settings.run.rank_timeout:g} s"
                raise LostRankError(f"{line} (run.rank_timeout)") from None
            raise LostRankError(_cause(count, others)) from None
        finally:
            disconnect()
        child_process.end(others, _GRACE)
    finally:
        child_process.end(others, 0.0)


def train_rank(ranks: Ranks, task: Task, settings: Any, stage: int, saved: bytes | None) -> None:
    """Trains as one of several ranks, which writes nothing."""
    task, console = task.with_ranks(ranks), quiet_console()
    trainer = task.make_trainer(settings, console, stage=stage)
    if saved is not None:
        trainer.load_state_dict(pickle.loads(saved))  # from the process that has started this one
    elif settings.run.init_from is not None:
        load_weights(trainer, settings, task, console)
    train(task, trainer, settings, None, console)
    # Rank 0 gathers its state.
    trainer.state_dict()


def without_ranks(task: Task, trainer: Trainer, settings: Any, console: Console) -> Trainer:
    """Returns the training for this process alone; all ranks must take part."""
    state = trainer.state_dict()
    alone = task.with_ranks(ALONE).make_trainer(settings, console, stage=trainer.stage)
    alone.source.take_over(trainer.source)
    alone.load_state_dict(state)
    alone.seconds, alone.stopped_by = trainer.seconds, trainer.stopped_by
    alone.has_ended = trainer.has_ended
    return alone


def _run(
    rank: int,
    count: int,
    port: int,
    task: Task,
    tree: Mapping[str, Any],
    stage: int,
    saved: bytes | None,
    sender: connection.Connection,
) -> None:
    """Main function of a rank. It sends None once it is ready, and a text if it fails."""
    init_worker()
    os.environ[LAUNCHED] = "1"
    try:
        sender.send(None)
        ranks = connected_here(rank, count, port)
        config_type = task.settings_type(tree["run"]["algo"])
        settings = build(config_type, check(config_type, tree, "settings"))
        train_rank(ranks, task, settings, stage, saved)
        disconnect()
    except LostRankError:
        os._exit(EXIT_LOST)
    except BaseException:
        sender.send(traceback.format_exc())
        os._exit(1)


def _wait_until_ready(rank: int, count: int, child: Child) -> None:
    try:
        child.pipe.recv()
    except EOFError:
        child.wait()
        raise TrainError(f"rank {rank} of {count} has ended before it trained: {child.cause}") from None


def _cause(count: int, others: Sequence[Child]) -> str:
    """One line on the rank that ended first, and not because of another one."""
    # A pipe has something to read where the rank has failed, and an end where it has ended.
    connection.wait([child.pipe for child in others], _GRACE)
    for rank, child in enumerate(others, 1):
        try:
            if child.pipe.poll():
                return f"rank {rank} of {count} has failed: {child.pipe.recv().strip().splitlines()[-1]}"
        except (EOFError, OSError):
            # The end of its pipe comes before that of the process.
            child.wait(_GRACE)
        if child.code not in (None, 0, EXIT_LOST):
            return f"rank {rank} of {count} has ended: {child.cause}"
    return f"one of {count} ranks has ended, or cannot be reached"
