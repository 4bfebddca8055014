"""Runs of several ranks, each in a process of its own that talks to the others by gloo."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

from waiting import TIMEOUT

from fastrl.utils.ranks import ALONE, Ranks, connected, disconnect
from fastrl.utils.torch_threads import one_thread


def on_ranks(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of ``work(ranks, *arguments)`` on each rank, with one thread of PyTorch: bits may depend on their number.
    One rank works in this process."""
    if count == 1:
        with one_thread():
            return [work(ALONE, *arguments)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "fastrl.training.task"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_work, args=(pipe[1], rank, count, port, work, arguments), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        found = [receiver.recv() if receiver.poll(TIMEOUT) else "no answer" for receiver, _ in pipes]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    failures = [each for each in found if isinstance(each, str)]
    if failures:
        raise AssertionError("\n".join(failures))
    return [result for (result,) in found]


def _work(
    pipe: Any, rank: int, count: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        ranks: Ranks = connected()
        result = work(ranks, *arguments)
        disconnect()
        pipe.send((result,))
    except BaseException:
        pipe.send(traceback.format_exc())
