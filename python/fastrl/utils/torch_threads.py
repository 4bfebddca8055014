"""PyTorch's number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which PyTorch computes on one thread: with several, last bits may differ."""
    # Not at the top: modules that seldom need it load without PyTorch.
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
