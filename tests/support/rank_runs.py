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


class RankProcesses:
    """Processes of ranks that remain between calls, since each imports PyTorch; connections are new with each call."""

    def __init__(self) -> None:
        self._started: dict[int, list[tuple[Any, Any]]] = {}

    def __call__(self, count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results of ``work(ranks, *arguments)`` on each rank, with one thread of PyTorch: bits may depend on their
        number. One rank works in this process."""
        if count == 1:
            with one_thread():
                return [work(ALONE, *arguments)]
        if count not in self._started:
            self._started[count] = [_start() for _ in range(count)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pipes = [pipe for _, pipe in self._started[count]]
        for rank, pipe in enumerate(pipes):
            pipe.send((rank, count, port, work, arguments))
        found = [pipe.recv() if pipe.poll(TIMEOUT) else "no answer" for pipe in pipes]
        failures = [each for each in found if isinstance(each, str)]
        if failures:
            self._end(count)
            raise AssertionError("\n".join(failures))
        return [result for (result,) in found]

    def close(self) -> None:
        for count in list(self._started):
            self._end(count)

    def _end(self, count: int) -> None:
        ended = self._started.pop(count)
        for _, pipe in ended:
            pipe.close()
        for process, _ in ended:
            process.join(10)
            if process.is_alive():
                process.kill()


def _start() -> tuple[Any, Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "fastrl.training.task"])
    pipe, other = context.Pipe()
    process = context.Process(target=_serve, args=(other,), daemon=True)
    process.start()
    other.close()
    return process, pipe


def _serve(pipe: Any) -> None:
    """Works until the other end of the pipe is closed, or until a failure, after which a rank would wait for others."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            rank, count, port, work, arguments = pipe.recv()
        except EOFError:
            return
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        try:
            ranks: Ranks = connected()
            result = work(ranks, *arguments)
            disconnect()
            pipe.send((result,))
        except BaseException:
            pipe.send(traceback.format_exc())
            return
