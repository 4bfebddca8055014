"""The device and the threads that PyTorch learns with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fastrl.collectors.resources import cores
from fastrl.runs.errors import TrainError

if TYPE_CHECKING:
    from fastrl.algorithms.protocol import Algorithm, Problem

A = TypeVar("A", bound="Algorithm[Any]")

# Numbers of the largest weight matrix of networks that learn faster by compiled steps on the CPU than on a GPU.
CPU_WEIGHTS = 2**17


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


def make_algorithm(name: str, problem: Problem, make: Callable[[Problem], A]) -> tuple[A, str]:
    """Makes an algorithm on the device where it learns. Returns both.

    With ``auto`` that is the GPU if there is one, unless gradient steps are compiled and networks small: those are done
    on the CPU before a GPU has started its kernels.

    Args:
        name: of the device, "auto", "cpu" or "cuda".
        problem: on any device.
        make: makes the algorithm for a problem.

    Raises:
        TrainError: CUDA was asked for and is not there.
        ValueError: as `make`.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise TrainError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu")
    device = "cuda" if torch.cuda.is_available() and name != "cpu" else "cpu"
    if name == "auto" and device == "cuda":
        # Settings that only a GPU takes are refused.
        with contextlib.suppress(ValueError):
            algorithm = make(dataclasses.replace(problem, device="cpu"))
            if algorithm.update_backend == "compiled" and _largest_weight(algorithm) <= CPU_WEIGHTS:
                return algorithm, "cpu"
    return make(dataclasses.replace(problem, device=device)), device


def _largest_weight(algorithm: Algorithm[Any]) -> int:
    """Numbers of the largest parameter of its networks."""
    return max(
        (values.numel() for network in algorithm.networks() for values in network.parameters()), default=0
    )
