"""A stopwatch for the parts of a run."""

from time import perf_counter


class Stopwatch:
    """Adds up wall-clock seconds under names.

    ::

        watch = Stopwatch()
        with watch("environment"):
            env.step(actions)
        watch.seconds["environment"]

    The trainers use the names of ``fastrl.training.profiler.LEARNER_ACTIVITIES``. Blocks should not nest: the time of
    a block inside another one counts for both, and a block inside one of its own name restarts the outer one. A block
    costs 0.2 microseconds.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, _Block] = {}

    def __call__(self, name: str) -> "_Block":
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block()
        return block

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name, as a copy."""
        return {name: block.seconds for name, block in self._blocks.items()}

    def reset(self) -> None:
        """Removes all names and their times."""
        self._blocks = {}


class _Block:
    """The time of one name. A generator-based context manager would cost five times as much."""

    __slots__ = ("_start", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += perf_counter() - self._start
