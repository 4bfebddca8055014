"""Curriculum: traffic begins easy, and gets as hard as its agents can bear.

A level from 0 to ``levels`` stands for a number of vehicles and a density, which rise together from the start to the
environment's own. A schedule raises it by the number of episodes played; ``auto`` raises it when enough episodes
succeed and lowers it when too few do, with a gap between the two thresholds, so that it does not swing.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.utils.config import ConfigError, section


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


@dataclass(frozen=True)
class Difficulty:
    """What an episode is played with: agents, and the density of the traffic around them."""

    vehicles: int
    density: float


class Curriculum:
    """Says how hard the next episodes are.

    Args:
        config: settings.
        full: the hardest, where it ends.
        episodes: that the run is to have, for the schedule.

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
                f"--curriculum.start_density {density:g} is more than --density {full.density:g}, where it ends"
            )
        self.config = config
        self.full = full
        self.start = Difficulty(min(config.start_vehicles, full.vehicles), density)
        self.episodes = episodes
        self.levels = config.levels
        self.level = self.levels if config.mode == "off" else 0
        self.rises = self.falls = 0
        self._successes: deque[float] = deque(maxlen=config.window)

    def difficulty(self, level: int | None = None) -> Difficulty:
        """Of a level; None: the present one."""
        share = (self.level if level is None else level) / self.levels
        if share == 1:
            return self.full
        vehicles = self.start.vehicles + (self.full.vehicles - self.start.vehicles) * share
        density = self.start.density + (self.full.density - self.start.density) * share
        # Halves go up; round() would send them to even numbers.
        return Difficulty(math.floor(vehicles + 0.5), density)

    def take(self, episodes: int, successes: Sequence[float]) -> bool:
        """Takes in what was played; whether the level has changed, by one at most with ``auto``.

        Args:
            episodes: that have ended since the run began.
            successes: of episodes of the present level that have ended since the last call, in order: the share of
                the agents that ended well; NaN where that is not known, which counts for nothing.
        """
        before = self.level
        if self.config.mode == "schedule":
            # Never down: a run that goes on with more episodes keeps what it has reached.
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
        """Over the newest episodes of the present level; NaN without any."""
        count = len(self._successes)
        return math.fsum(self._successes) / count if count else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "rises": self.rises,
            "falls": self.falls,
            "successes": list(self._successes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other one stood."""
        self.level = min(state["level"], self.levels)
        self.rises, self.falls = state["rises"], state["falls"]
        self._successes.clear()
        self._successes.extend(state["successes"])
