"""The device and the threads that PyTorch learns with."""

import torch

from fastrl.collectors.resources import cores
from fastrl.runs.errors import TrainError

# Physical cores, or fewer by OMP_NUM_THREADS; runs of this process change what PyTorch says later.
_MOST_THREADS = torch.get_num_threads()


def use_threads(count: int, processes: int = 1) -> None:
    """Sets the number of PyTorch's threads; 0: one for each core, or as OMP_NUM_THREADS says, divided among some
    processes."""
    torch.set_num_threads(count or max(min(cores(), _MOST_THREADS) // processes, 1))


def choose_device(name: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        TrainError: CUDA was asked for and is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu")
    return name
