"""The trainer: drives an algorithm with experience from a source, and yields rows of metrics."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import RenderableType

from fastrl.algorithms.protocol import Algorithm
from fastrl.training.callbacks import Callback
from fastrl.training.experience import Episodes, Source
from fastrl.training.metrics import brief
from fastrl.training.profiler import Lap, Profile
from fastrl.training.row import Number, Row
from fastrl.training.run_directory import RunDirectory
from fastrl.training.settings import RunConfig
from fastrl.utils.timer import Stopwatch

C = TypeVar("C", bound=Callback)

# Metrics of algorithms that a console shows.
_SHOWN = ("loss", "value_loss", "entropy", "approx_kl")


class Training(Protocol):
    """Protocol of what a run drives: a `Trainer`, or an outer loop that trains several times.

    Attributes:
        run: settings of the run.
        device: where networks learn, for people.
        profile: of this session.
        on_progress: called between rows that are far apart, with how much of the goal is reached.
        env_id, algorithm_name, collector: what is trained on what, collected by whom.
        steps, episodes, iteration: environment steps, episodes that have ended, updates, by earlier sessions too.
        mean_return: of the last row with a return; NaN before.
        seconds: wall-clock time in `rows`, by earlier sessions too; ``parts`` says what the learner spent it on.
        goal: how far the run goes, and its unit, "steps" or "episodes"; ``done``: how much of it is reached.
    """

    run: RunConfig
    device: str
    profile: Profile
    on_progress: Callable[[int], object]

    @property
    def env_id(self) -> str: ...
    @property
    def algorithm_name(self) -> str: ...
    @property
    def collector(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def episodes(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def mean_return(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def parts(self) -> Mapping[str, float]: ...
    @property
    def goal(self) -> tuple[int, str]: ...
    @property
    def done(self) -> int: ...

    def rows(self) -> Iterator[Row]:
        """Trains until the goal is reached; between rows the state may be saved."""
        ...

    def callback(self, kind: type[C]) -> C | None:
        """The callback of a type; None without one."""
        ...

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Starts from the weights in another run's checkpoint; see `Algorithm.load_policy`."""
        ...

    def policy_checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint that inference needs. Weights are not copies."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs. Call it between rows."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes where the training stood that gave the state.

        Raises:
            ValueError, KeyError: it had other settings, or the state is damaged.
        """
        ...

    def write_report(self, directory: RunDirectory) -> None:
        """Writes files for people at the end of a session, before and after the final evaluation."""
        ...

    def save_files(self, directory: Path) -> None:
        """Saves what is too large for checkpoints, once at the end of a session."""
        ...

    def load_files(self, directory: Path) -> None:
        """Loads what `save_files` has saved, if there is anything; called before `load_state_dict`."""
        ...

    def summary(self) -> dict[str, Any]:
        """Details of the run's summary, JSON values by name."""
        ...

    def lines(self) -> Sequence[RenderableType]:
        """The same for people, lines or tables."""
        ...


class Trainer:
    """Trains an algorithm on what a source of experience brings, until the run's goal is reached.

    It knows neither environment, nor algorithm, nor collector by name::

        source = RolloutSource(spec, num_envs, CollectConfig(), seed=0)
        algorithm = PPO(PPOConfig(), source.problem(total_steps=100_000, seed=0, device="cpu"))
        for row in Trainer(RunConfig(total_steps=100_000), algorithm, source).rows():
            print(row.record())

    Args:
        run: how long, and how often a row is due.
        algorithm: learns.
        source: brings what it learns from; not attached to another algorithm.
        callbacks: called after each update, in this order.
        profile: adds up where the time goes.
        header: what checkpoints say of the run: its kind, environment, settings.
        device: where networks learn, for people.

    Attributes:
        iteration, episodes: updates made, episodes ended, by earlier sessions too.
        mean_return: of the last row in which episodes ended; NaN if none did so far.
        seconds: wall-clock time in `rows` so far, by earlier sessions too; ``parts`` says what the learner spent it on.
        watch: measures the parts of the present row; callbacks may use it.
    """

    def __init__(
        self,
        run: RunConfig,
        algorithm: Algorithm[Any],
        source: Source,
        *,
        callbacks: Sequence[Callback] = (),
        profile: Profile | None = None,
        header: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self.run = run
        self.algorithm = algorithm
        self.source = source
        self.callbacks = list(callbacks)
        self.profile = profile or Profile()
        self.header = dict(header or {})
        self.device = device
        # Shows people how much is done between rows that are far apart.
        self.on_progress: Callable[[int], object] = lambda done: None
        self.iteration = self.episodes = 0
        self.mean_return = math.nan
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self.watch = Stopwatch()
        source.attach(algorithm)

    @property
    def steps(self) -> int:
        """Environment steps so far, by earlier sessions too."""
        return self.source.steps

    @property
    def goal(self) -> tuple[int, str]:
        """Length of the run, and its unit, "steps" or "episodes"."""
        if self.run.total_episodes is not None:
            return self.run.total_episodes, "episodes"
        assert self.run.total_steps is not None, "a run has a goal"
        return self.run.total_steps, "steps"

    @property
    def done(self) -> int:
        """Part of the goal that is reached, in its unit."""
        return self.episodes if self.goal[1] == "episodes" else self.steps

    def is_done(self) -> bool:
        return self.done >= self.goal[0]

    @property
    def env_id(self) -> str:
        return self.source.env_id

    @property
    def algorithm_name(self) -> str:
        return self.algorithm.name

    @property
    def collector(self) -> str:
        """Name of who steps the environments."""
        return self.source.collector

    def summary(self) -> dict[str, Any]:
        """Entries of source and callbacks for a run's summary, JSON values by name."""
        details = dict(self.source.summary())
        for callback in self.callbacks:
            details |= callback.summary()
        return details

    def lines(self) -> list[str]:
        """The same in lines for people."""
        return [*self.source.lines(), *(line for callback in self.callbacks for line in callback.lines())]

    def write_report(self, directory: RunDirectory) -> None:
        """Has callbacks write their files for people."""
        for callback in self.callbacks:
            callback.write_report(directory)

    def save_files(self, directory: Path) -> None:
        """Has the source save what is too large for checkpoints."""
        self.source.save_files(directory)

    def load_files(self, directory: Path) -> None:
        """Has the source load what it has saved."""
        self.source.load_files(directory)

    def callback(self, kind: type[C]) -> C | None:
        """The callback of a type; None without one."""
        return next((each for each in self.callbacks if isinstance(each, kind)), None)

    def rows(self) -> Iterator[Row]:
        """Trains; a row every ``run.row_seconds``. Between rows the state may be saved. The source runs until the
        iterator ends or is closed.

        Raises:
            CollectError: environments or workers fail again and again.
            FloatingPointError: the network, or what it was given, is not finite.
        """
        if self.is_done():
            return
        for callback in self.callbacks:
            callback.on_start(self)
        self.watch.reset()
        with self.source as source:
            clock = time.perf_counter()
            steps, ended = self.steps, list[Episodes]()
            while not self.is_done():
                experience = source.next(self.watch)
                if experience is not None:
                    result = self.algorithm.update(experience, self.watch)
                    with self.watch("update"):
                        source.feedback(result)
                    self.iteration += 1
                new = source.take_episodes()
                if len(new):
                    self.episodes += len(new)
                    ended.append(new)
                for callback in self.callbacks:
                    callback.on_update(self, new)
                now = time.perf_counter()
                if now - clock < self.run.row_seconds and not self.is_done():
                    continue
                passed, clock = now - clock, now
                yield self._row(passed, self.steps - steps, Episodes.concatenated(ended))
                self.watch.reset()
                steps, ended = self.steps, []

    def _row(self, passed: float, steps: int, ended: Episodes) -> Row:
        mean_return = math.fsum(ended.returns) / len(ended) if len(ended) else math.nan
        if len(ended):
            self.mean_return = mean_return
        self.seconds += passed
        lap = self.profile.lap(passed, self.watch.seconds, steps, len(ended), self.source.report())
        for name, seconds in lap.learner.items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds
        groups: dict[str, dict[str, Number]] = {
            "episode": {
                "episodes": self.episodes,
                "mean_return": mean_return,
                "mean_length": math.fsum(ended.lengths) / len(ended) if len(ended) else math.nan,
            },
            "algorithm": dict(self.algorithm.metrics()) if self.iteration else {},
            "collect": dict(self.source.numbers()),
        }
        highlights = [f"return {brief(self.mean_return)}"]
        highlights += [
            f"{name} {brief(groups['algorithm'][name])}" for name in _SHOWN if name in groups["algorithm"]
        ]
        highlights += self.source.highlights()
        for callback in self.callbacks:
            for group, numbers in callback.groups(ended).items():
                groups[group] = {**groups.get(group, {}), **numbers}
            highlights += callback.highlights()
        groups["time"] = time_numbers(self.iteration, self.seconds, passed, steps, len(ended), lap)
        return Row(self.steps, self.done, groups, highlights)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Starts from the weights in another run's checkpoint; see `Algorithm.load_policy`."""
        return self.algorithm.load_policy(state["learner"])

    def policy_checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint that inference needs. Weights are not copies."""
        return {**self.header, "steps": self.steps, "policy": self.algorithm.policy_state()}

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs. Call it between rows."""
        return {
            **self.policy_checkpoint(),
            "iteration": self.iteration,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "seconds": self.seconds,
            "parts": self.parts,
            "learner": self.algorithm.state_dict(),
            "source": self.source.state_dict(),
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes where the trainer stood that gave the state.

        Raises:
            ValueError, KeyError: it had other settings, or the state is damaged.
        """
        self.algorithm.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        for callback in self.callbacks:
            callback.load_state_dict(state["callbacks"][callback.name])
        self.iteration, self.episodes = state["iteration"], state["episodes"]
        self.mean_return = state["mean_return"]
        self.seconds, self.parts = state["seconds"], dict(state["parts"])


def time_numbers(
    iteration: int, seconds: float, passed: float, steps: int, episodes: int, lap: Lap
) -> dict[str, Number]:
    """The group "time" of a row: progress and speed, and what time went to since the row before.

    Args:
        iteration, seconds: of the whole run.
        passed, steps, episodes, lap: since the row before.
    """
    return {
        "iteration": iteration,
        "seconds": seconds,
        "steps_per_second": steps / passed,
        "episodes_per_second": episodes / passed,
        **{f"seconds_{name}": part for name, part in lap.learner.items()},
        **{f"seconds_workers_{name}": part for name, part in lap.workers.items()},
        **{f"share_{name}": share for name, share in lap.shares.items()},
    }
