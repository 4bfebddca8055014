"""An expert for `bench_demos`, in a module that loads nothing, as workers import it."""

from typing import Any


def lean(obs: Any) -> int:
    """Pushes CartPole where the pole leans."""
    return int(obs[2] > 0)
