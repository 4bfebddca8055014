"""The device and the threads that PyTorch learns with."""

import functools

from fastrl.collectors.resources import cores
from fastrl.runs.errors import TrainError


def use_threads(count: int, processes: int = 1) -> None:
    """Sets the number of PyTorch's threads; 0: one for each core, or as OMP_NUM_THREADS says, divided among some
    processes."""
    import torch

    torch.set_num_threads(count or max(min(cores(), _most_threads()) // processes, 1))


@functools.cache
def _most_threads() -> int:
    """Physical cores, or fewer by OMP_NUM_THREADS; runs of this process change what PyTorch says later."""
    import torch

    return torch.get_num_threads()


def choose_device(name: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        TrainError: CUDA was asked for and is not there.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu")
    return name
