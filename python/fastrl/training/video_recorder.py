"""A callback that films episodes."""

import contextlib
from pathlib import Path

from fastrl.collectors.protocol import CollectError
from fastrl.play.film import Films
from fastrl.runs.errors import HookError, TrainError
from fastrl.training.callbacks import Callback, Run
from fastrl.utils.video import check_video


class VideoRecorder(Callback):
    """Films an episode of the policy without exploration from time to time, and one at the end, as
    ``step-000000100000.mp4``. For environments that draw themselves: with the render mode ``rgb_array``, and traffic.

    Args:
        every: environment steps between films.
        folder: where films go; a relative one lies in the run directory.
        suffix: ``.mp4`` or ``.gif``.
        seed: of the episode, the same in each film.
    """

    def __init__(
        self, every: int = 100_000, *, folder: str | Path = "videos", suffix: str = ".mp4", seed: int = 0
    ) -> None:
        self.every, self.folder, self.suffix, self.seed = every, Path(folder), suffix, seed
        self._filmed_at = -1
        self._films: Films | None = None
        self._is_made = False

    def on_start(self, run: Run) -> None:
        if run.training.open_films is None:
            raise TrainError(f"VideoRecorder: {run.algorithm} on {run.env} has no task that films it")
        self._folder = self.folder if run.directory is None else run.directory / self.folder
        self._is_made = not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        check_video(self._folder / f"step{self.suffix}")
        self._filmed_at = -1
        self._open(run)

    def _open(self, run: Run) -> None:
        self._open_films = run.training.open_films
        assert self._open_films is not None, "checked at the start"
        try:
            self._films = self._open_films()
        except TrainError as error:
            raise TrainError(f"VideoRecorder: {error}") from None

    def on_update(self, run: Run) -> None:
        if self._filmed_at < 0 or run.timesteps - self._filmed_at >= self.every:
            self._film(run)

    def on_end(self, run: Run) -> None:
        if self._films is not None:
            try:
                # A run that fails before its first update has no film.
                if 0 <= self._filmed_at < run.timesteps:
                    self._film(run)
            finally:
                self._films.close()
                self._films = None
        if self._is_made:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _film(self, run: Run) -> None:
        assert self._films is not None, "a run starts before its updates"
        if run.training.open_films is not self._open_films:
            # A new stage of the run has another environment.
            self._films.close()
            self._open(run)
        state = run.training.policy_checkpoint()
        if "policy" not in state:
            # A search has none before it has tried something.
            return
        self._filmed_at = run.timesteps
        path = self._folder / f"step-{run.timesteps:012d}{self.suffix}"
        try:
            self._films.film(state, path, seed=self.seed)
        except CollectError as error:
            # The environment of the film has failed, not those of the run, which is saved.
            raise HookError(f"callback {self.name}", error) from error
