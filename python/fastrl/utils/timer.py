"""Where the time of a run goes."""

from time import perf_counter


class Stopwatch:
    """Adds up wall-clock seconds under names.

    ::

        watch = Stopwatch()
        with watch("environment"):
            env.step(actions)
        watch.seconds["environment"]

    The trainers use the names of ``fastrl.training.profiler.PARTS``. Times do not nest: inside another block, a
    block is counted
    twice; inside one of its own name, the outer one only from there on. A block costs a fifth of a microsecond.
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
        """By name, a copy."""
        return {name: block.seconds for name, block in self._blocks.items()}

    def reset(self) -> None:
        """Forgets all times, and so all names."""
        self._blocks = {}


class _Block:
    """One name's time. A generator-based context manager would cost five times as much."""

    __slots__ = ("_start", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += perf_counter() - self._start
