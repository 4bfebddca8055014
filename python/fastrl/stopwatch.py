"""Where the time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds under names.

    ::

        watch = Stopwatch()
        with watch("environment"):
            env.step(actions)
        watch.seconds["environment"]

    The trainers use the names ``environment``, ``inference``, ``returns`` and ``update``. Times do not nest:
    inside another block, a block is counted twice.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def reset(self) -> None:
        """Forgets all times, and so all names."""
        self.seconds = {}
