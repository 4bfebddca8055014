"""Failures of workers: kept for the report, counted by episode, and the end of the run where one fails too often."""

import time
import traceback
from collections import Counter
from collections.abc import Iterable

from fastrl.collectors.protocol import CollectError, Failure

Episode = tuple[int, int]


class Failures:
    """The failures of one collector's workers.

    Repeated failures at the same episode stop the run, as it would fail for ever. Failures count by episode, not by
    fragment: with unit "steps" the fragments before the failure may arrive each time.

    Args:
        most: failures of the same episode that stop the run.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_failures should be at least 1, got {most}")
        self.most = most
        self.started_at = time.monotonic()
        self.all: list[Failure] = []
        self._of_episode: Counter[Episode] = Counter()

    def elapsed(self) -> float:
        """Seconds since the collector was made."""
        return time.monotonic() - self.started_at

    def add(self, worker: int, task: str, cause: str, traceback: str, episodes: Iterable[Episode]) -> None:
        """A worker failed.

        Args:
            worker, task, cause, traceback: as in `fastrl.collectors.protocol.Failure`.
            episodes: environment indices and numbers of those that it ran or was to run.

        Raises:
            CollectError: too often.
        """
        self.all.append(Failure(worker, task, cause, traceback, self.elapsed()))
        self._of_episode.update(episodes := list(episodes))
        times = max((self._of_episode[episode] for episode in episodes), default=0)
        if times >= self.most:
            raise CollectError(
                f"worker {worker} failed {_times(times)} at {task}: {cause}\n\n{traceback}".rstrip(),
                traceback,
            )

    def over(self, episodes: Iterable[Episode]) -> None:
        """Episodes arrived."""
        if self._of_episode:
            for episode in episodes:
                self._of_episode.pop(episode, None)


def last_line(traceback: str) -> str:
    """Last line of a traceback: what was raised."""
    return traceback.strip().splitlines()[-1]


def own_traceback(error: BaseException) -> str:
    """The traceback without frames of fastrl and Gymnasium, that is, of the environment's own code; empty if there is
    none."""
    frames = [
        summary
        for (frame, _), summary in zip(
            traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True
        )
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("fastrl", "gymnasium", "importlib")
    ]
    if not frames:
        return ""
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "Traceback (most recent call last):\n" + "".join(lines)


def failed(what: str, error: BaseException) -> CollectError:
    """The error to raise for an environment's: ``what`` and its last line, with `own_traceback`."""
    trace = own_traceback(error)
    cause = last_line(trace) if trace else str(error).removeprefix("env: ") or type(error).__name__
    return CollectError(f"{what}: {cause}", trace)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
