"""Curriculum: traffic starts easy, and gets harder as its agents learn.

A level from 0 to ``levels`` stands for a number of vehicles and a density, which rise together from the start to the
environment's own. A schedule raises it by the number of episodes that have ended; ``auto`` raises it when enough
episodes succeed and lowers it when too few do, with a gap between the two thresholds against oscillation.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rich.console import Console

from fastrl.collectors.protocol import Difficulty
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.metrics import counted
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback, Run
from fastrl.utils.config import ConfigError, section
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from fastrl.sources.team_rollouts import MultiAgentSource


@section
class CurriculumConfig:
    """Easy traffic first: fewer vehicles and less density, rising to --vehicles and --density."""

    mode: Annotated[
        Literal["off", "schedule", "auto"],
        Field(
            description="off: full traffic from the start; schedule: harder with the number of episodes; auto: harder"
            " or easier by the success rate"
        ),
    ] = "off"
    start_vehicles: Annotated[
        int, Field(ge=1, description="vehicles at the start, or --vehicles if that is less")
    ] = 2
    start_density: Annotated[
        float | None, Field(gt=0, description="density at the start; none: half of --density")
    ] = None
    levels: Annotated[int, Field(ge=1, le=1000, description="steps from the start to the full traffic")] = 4
    until: Annotated[
        float, Field(gt=0, le=1, description="schedule: share of the episodes after which traffic is full")
    ] = 0.5
    up: Annotated[float, Field(gt=0, le=1, description="auto: success rate from which it gets harder")] = 0.8
    down: Annotated[float, Field(ge=0, lt=1, description="auto: success rate up to which it gets easier")] = (
        0.4
    )
    window: Annotated[
        int, Field(ge=1, description="auto: newest episodes of a level that the success rate is taken over")
    ] = 50


class Curriculum:
    """Chooses the difficulty of the next episodes.

    Args:
        config: settings.
        full: the difficulty of the highest level.
        episodes: of the whole run, for the schedule.

    Attributes:
        level: 0 to ``levels``.
        rises, falls: how often it went up and down.

    Raises:
        ConfigError: thresholds without a gap, or a start that is harder than the end.
    """

    def __init__(self, config: CurriculumConfig, full: Difficulty, episodes: int) -> None:
        if config.up <= config.down:
            raise ConfigError(
                f"--curriculum.up {config.up:g} should be more than --curriculum.down {config.down:g}"
            )
        density = full.density / 2 if config.start_density is None else config.start_density
        if density > full.density:
            raise ConfigError(
                f"--curriculum.start-density {density:g} is more than --density {full.density:g}, where it ends"
            )
        self.config = config
        self.full = full
        self.start = Difficulty(min(config.start_vehicles, full.num_agents), density)
        self.episodes = episodes
        self.levels = config.levels
        self.level = self.levels if config.mode == "off" else 0
        self.rises = self.falls = 0
        self._successes: deque[float] = deque(maxlen=config.window)

    def difficulty(self, level: int | None = None) -> Difficulty:
        """The difficulty of a level; None: of the present one."""
        share = (self.level if level is None else level) / self.levels
        if share == 1:
            return self.full
        vehicles = self.start.num_agents + (self.full.num_agents - self.start.num_agents) * share
        density = self.start.density + (self.full.density - self.start.density) * share
        # Halves are rounded up; round() would round them to even numbers.
        return Difficulty(math.floor(vehicles + 0.5), density)

    def take(self, episodes: int, successes: Sequence[float]) -> bool:
        """Adjusts the level to the episodes that have ended, by one at most with ``auto``; true if it has changed.

        Args:
            episodes: that have ended since the start of the run.
            successes: share of the agents that reached their goal, of each episode of the present level that has ended
                since the last call, in order. NaN where it is not known: these are ignored.
        """
        before = self.level
        if self.config.mode == "schedule":
            # Never down: a run that is resumed with more episodes keeps its level.
            done = self.levels * episodes / (self.config.until * self.episodes)
            self.level = max(self.level, min(math.floor(done), self.levels))
        elif self.config.mode == "auto":
            self._successes.extend(success for success in successes if not math.isnan(success))
            rate = self.success_rate
            if len(self._successes) == self.config.window:
                if rate >= self.config.up and self.level < self.levels:
                    self.level += 1
                elif rate <= self.config.down and self.level > 0:
                    self.level -= 1
        self.rises += self.level > before
        self.falls += self.level < before
        if self.level != before:
            self._successes.clear()
        return self.level != before

    @property
    def success_rate(self) -> float:
        """The mean over the newest episodes of the present level; NaN without any."""
        count = len(self._successes)
        return math.fsum(self._successes) / count if count else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "rises": self.rises,
            "falls": self.falls,
            "successes": list(self._successes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.level = min(state["level"], self.levels)
        self.rises, self.falls = state["rises"], state["falls"]
        self._successes.clear()
        self._successes.extend(state["successes"])


class CurriculumCallback(Callback):
    """Gives the environments of a source the difficulty that a curriculum chooses.

    Args:
        curriculum: chooses.
        source: of the run's experience.
        console: gets a line when the level changes.

    Raises:
        TrainError: the difficulty of these environments is fixed.
    """

    name = "curriculum"

    def __init__(self, curriculum: Curriculum, source: "MultiAgentSource", console: Console) -> None:
        self.curriculum, self._source, self._console = curriculum, source, console
        self.set_difficulty()

    def set_difficulty(self) -> None:
        mode = self.curriculum.config.mode
        difficulty = None if mode == "off" else self.curriculum.difficulty()
        try:
            self._source.set_difficulty(self.curriculum.level, difficulty)
        except NotImplementedError as error:
            raise TrainError(f"--curriculum.mode {mode}: {error}") from None

    def on_update(self, run: Run) -> None:
        curriculum, ended = self.curriculum, run.ended
        successes = ended.info["success"][ended.info["level"] == curriculum.level]
        rate = curriculum.success_rate
        if not curriculum.take(run.episodes, successes.tolist()):
            return
        self.set_difficulty()
        difficulty = curriculum.difficulty()
        reason = "" if math.isnan(rate) else f" (success rate was {rate:.0%})"
        print_lines(
            self._console,
            f"curriculum: level {curriculum.level} of {curriculum.levels} after {run.episodes:,} episodes:"
            f" {counted(int(difficulty.num_agents), 'vehicle')}, density {difficulty.density:.2g}{reason}",
        )

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        curriculum, difficulty = self.curriculum, self.curriculum.difficulty()
        return {
            "curriculum/vehicles": difficulty.num_agents,
            "curriculum/density": difficulty.density,
            "curriculum/level": curriculum.level,
            "curriculum/rises": curriculum.rises,
            "curriculum/falls": curriculum.falls,
        }

    def state_dict(self) -> dict[str, Any]:
        return self.curriculum.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.curriculum.load_state_dict(state)
        self.set_difficulty()
