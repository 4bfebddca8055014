"""The trainer: drives an algorithm with experience from a source, and yields rows of metrics."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.protocol import CollectError, Report
from fastrl.runs.checkpoint import SNAPSHOTS, checksum
from fastrl.runs.directory import RunDirectory
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import HookError, TrainError
from fastrl.runs.row import Number, Row
from fastrl.runs.settings import RunConfig
from fastrl.sources.source import Source
from fastrl.training.callbacks import WINDOW, Callback, Run, by_name
from fastrl.training.profiler import Profile, add_seconds
from fastrl.utils.errors import UserError
from fastrl.utils.interrupts import Interrupted
from fastrl.utils.ranks import ALONE, Ranks
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fastrl.algorithms.intrinsic import RND
    from fastrl.play.film import Films
    from fastrl.training.evaluation import Scores

C = TypeVar("C", bound=Callback)


class Trainer:
    """Trains an algorithm on what a source of experience brings, until the run's goal is reached.

    It knows neither environment, nor algorithm, nor collector by name::

        source = RolloutSource(spec, num_envs, CollectConfig(), seed=0)
        algorithm = PPO(PPOConfig(), source.problem(total_timesteps=100_000, seed=0))
        for row in Trainer(RunConfig(total_timesteps=100_000), algorithm, source).rows():
            print(row.record())

    It stops after any update, with a state that may be saved, once `should_stop` says so.

    Args:
        run: length of the run, and how often a row is due.
        algorithm: learns.
        source: brings what it learns from; not attached to another algorithm.
        stage: of the run.
        stage_end: environment steps at which it ends; None: at the end of the run.
        next_stage: makes the trainer of the next stage.
        callbacks: called after each update, in this order.
        profile: adds up where the time goes.
        header: entries of checkpoints that describe the run: its kind, environment, settings.
        ranks: that train together.
        device: where networks learn, for people.
        open_films: makes films of its policy, see `fastrl.training.task.Task.films`; None: there are no films.
        intrinsic: adds intrinsic rewards to experience; None: rewards are those of the environment.

    Attributes:
        env_id, algorithm_name: of the run.
        episodes: that have ended, by earlier sessions too.
        iteration: updates so far, by earlier sessions too.
        watch: measures what the time of the present row goes to; callbacks may use it.
        view: what callbacks see of it.
        should_stop: True once a signal has asked the process to stop.
        has_ended: no more updates of this session follow.
        stopped_by: the callback that has stopped this session; None: none has.
        stage: of the run that it is in, see `fastrl.training.stages`.
        has_new_scores: True if an evaluation has ended since the last row.
        recent_returns: of the newest `WINDOW` episodes.
        seconds: wall-clock time in `rows` so far, by earlier sessions too.
        activities: these seconds, by activity of the learner.
    """

    episodes: int = 0
    iteration: int = 0

    def __init__(
        self,
        run: RunConfig,
        algorithm: Algorithm[Any],
        source: Source,
        *,
        stage: int = 0,
        stage_end: int | None = None,
        next_stage: Callable[[], Trainer] | None = None,
        callbacks: Sequence[Callback] = (),
        profile: Profile | None = None,
        header: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
        device: str = "cpu",
        open_films: Callable[[], Films] | None = None,
        intrinsic: RND | None = None,
    ) -> None:
        self.run = run
        self.stage, self._stage_end, self._next_stage = stage, stage_end, next_stage
        self.algorithm, self.algorithm_name = algorithm, algorithm.name
        self.source, self.env_id = source, source.env_id
        self.callbacks = list(callbacks)
        self.profile = profile or Profile()
        self.header = dict(header or {})
        self.ranks = ranks
        self.device = device
        self.open_films, self.intrinsic = open_films, intrinsic
        self.watch = Stopwatch()
        self.view = Run(self)
        self.should_stop: Callable[[], bool] = lambda: False
        self.has_ended = False
        self.stopped_by: str | None = None
        self.has_new_scores = False
        self.recent_returns: deque[float] = deque(maxlen=WINDOW)
        self.seconds = 0.0
        self.activities: dict[str, float] = {}
        # Last word of rank 0, if there are several ranks.
        self._is_stopped = False
        # Seconds of exchange at the last row.
        self._exchanged = 0.0
        source.attach(algorithm)

    @property
    def collector(self) -> str:
        """Name of what steps the environments."""
        return self.source.collector

    @property
    def steps(self) -> int:
        """Environment steps so far, by earlier sessions too."""
        return self.source.steps

    @property
    def goal(self) -> tuple[int, str]:
        """Length of the run, and its unit, "steps", "episodes" or, of a data set, "samples"."""
        if self.source.goal is not None:
            return self.source.goal
        if self.run.total_episodes is not None:
            return self.run.total_episodes, "episodes"
        assert self.run.total_timesteps is not None, "a run has a goal"
        return self.run.total_timesteps, "steps"

    @property
    def done(self) -> int:
        """Part of the goal that is reached, in its unit."""
        return self.episodes if self.goal[1] == "episodes" else self.steps

    @property
    def mean_return(self) -> float:
        """Mean return of the newest `WINDOW` episodes; NaN before any."""
        recent = self.recent_returns
        return math.fsum(recent) / len(recent) if recent else math.nan

    @property
    def rounds(self) -> tuple[int, str]:
        """Count by which evaluations are due, see ``run.eval_freq``, and its unit, "episodes" or "epochs"."""
        return self.source.rounds or (self.episodes, "episodes")

    def is_done(self) -> bool:
        return self.done >= self.goal[0]

    def is_over(self) -> bool:
        """True if the goal is reached, or a callback or a signal has stopped this session."""
        wants_to_stop = self._is_stopped if self.ranks.count > 1 else self._wants_to_stop()
        return self.is_done() or wants_to_stop

    def _wants_to_stop(self) -> bool:
        return self.stopped_by is not None or self.should_stop()

    def ends_stage(self) -> bool:
        """True between the last update of a stage and the first one of the next."""
        return self._stage_end is not None and self.steps >= self._stage_end

    def notify(self, event: Callable[[Callback], bool | None]) -> None:
        """Calls a method of all callbacks, ``lambda callback: callback.on_update(view)``.

        Raises:
            HookError: a callback has raised what is no error of the user's, the machine's or the environment's.
        """
        for callback in self.callbacks:
            try:
                result = event(callback)
            except (UserError, CollectError, HookError, MemoryError, FloatingPointError):
                raise
            except Exception as error:
                raise HookError(f"callback {callback.name}", error) from error
            if result is False and self.stopped_by is None:
                self.stopped_by = callback.name

    def evaluated(self, scores: Scores) -> None:
        """Calls the callbacks with an evaluation."""
        self.view.scores = scores
        self.has_new_scores = True
        self.notify(lambda callback: callback.on_evaluation(self.view))

    def callback(self, kind: type[C]) -> C | None:
        """The callback of a type; None without one."""
        return next((each for each in self.callbacks if isinstance(each, kind)), None)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Starts from the weights in another run's checkpoint; see `Algorithm.load_policy`."""
        return self.algorithm.load_policy(state["learner"])

    def policy_checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint that inference needs. Weights are not copies."""
        return {**self.header, "steps": self.steps, "policy": self.algorithm.policy_state()}

    def state_dict(self) -> dict[str, Any]:
        """State that `load_state_dict` needs. Call it between rows; with several ranks all of them have to call it."""
        if self.ranks.count > 1:
            self._check_ranks()
        return {
            **self.policy_checkpoint(),
            "iteration": self.iteration,
            "episodes": self.episodes,
            "recent_returns": list(self.recent_returns),
            "seconds": self.seconds,
            "parts": self.activities,
            "learner": self.algorithm.state_dict(),
            "source": self.source.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in by_name(self.callbacks)},
            **({} if self.intrinsic is None else {"intrinsic": self.intrinsic.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes where the training stood that gave the state.

        Raises:
            ValueError, KeyError: it had other settings, or the state is damaged.
        """
        if SNAPSHOTS in state:
            self.header[SNAPSHOTS] = state[SNAPSHOTS]
        self.algorithm.load_state_dict(state["learner"])
        self.source.load_state_dict(state["source"])
        if self.intrinsic is not None:
            self.intrinsic.load_state_dict(state["intrinsic"])
        for name, callback in by_name(self.callbacks):
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
        self.iteration, self.episodes = state["iteration"], state["episodes"]
        self.recent_returns.clear()
        self.recent_returns.extend(state["recent_returns"])
        self.seconds, self.activities = state["seconds"], dict(state["parts"])

    def write_report(self, directory: RunDirectory) -> None:
        """Writes files for people at the end of a session, before and after the final evaluation."""
        for callback in self.callbacks:
            callback.write_report(directory)

    def summary(self) -> dict[str, Any]:
        """Details of the run's summary, JSON values by name."""
        found = dict(self.source.summary())
        for callback in self.callbacks:
            found |= callback.summary()
        return found

    def lines(self) -> list[RenderableType]:
        """Lines or tables for people with what `summary` has."""
        return [*self.source.lines(), *(line for callback in self.callbacks for line in callback.lines())]

    def time_metrics(
        self, passed: float, activities: Mapping[str, float], steps: int, episodes: int, report: Report
    ) -> dict[str, Number]:
        """Numbers of the group ``time`` of a row: progress and speed, and what time went to since the row before. Adds
        that time to the account of the run.

        Args:
            passed: seconds since the row before; ``activities``: the same, by activity of the learner.
            steps, episodes: since the row before.
            report: of the collector.
        """
        self.seconds += passed
        lap = self.profile.lap(passed, activities, steps, episodes, report)
        self.activities = add_seconds(self.activities, lap.learner)
        return {
            "time/episodes": self.episodes,
            "time/iterations": self.iteration,
            "time/time_elapsed": self.seconds,
            "time/fps": steps / passed,
            "time/episodes_per_second": episodes / passed,
            **{f"time/seconds_{name}": part for name, part in lap.learner.items()},
            **{f"time/seconds_workers_{name}": part for name, part in lap.workers.items()},
            **{f"time/share_{name}": share for name, share in lap.shares.items()},
        }

    def rows(self) -> Iterator[Row]:
        """Trains; a row every ``run.row_seconds``, and ``run.min_rows`` of them at least. Between rows the state may be
        saved. The source runs until the iterator ends or is closed.

        Raises:
            CollectError: environments or workers fail again and again.
            FloatingPointError: the network, or what it was given, is not finite.
        """
        if self.is_done():
            return
        self.notify(lambda callback: callback.on_start(self.view))
        self._agree(is_due=False)
        while not self.is_over():
            if self.ends_stage():
                self._start_stage()
            yield from self._rows_of_stage()

    def _agree(self, *, is_due: bool) -> bool:
        """True where a row is due. Rank 0 decides it, and the end of the session, by its own clock and signals."""
        if self.ranks.count == 1:
            return is_due
        is_due, self._is_stopped = self.ranks.lead(is_due, self._wants_to_stop())
        return is_due

    def _start_stage(self) -> None:
        """Continues with the settings of the next stage; running episodes end here."""
        assert self._next_stage is not None, "a stage that ends has a next one"
        new = self._next_stage()
        new.algorithm.start_stage(self.algorithm.state_dict())
        new.source.start_stage(self.source.state_dict())
        self.algorithm, self.source, self.header = new.algorithm, new.source, new.header
        self.stage, self._stage_end, self._next_stage = new.stage, new._stage_end, new._next_stage
        self.env_id, self.open_films = new.env_id, new.open_films
        self.profile.change_collector()

    def _rows_of_stage(self) -> Iterator[Row]:
        """Trains until the end of the stage, or of the run."""
        self.watch.reset()
        # Workers may collect while the source starts.
        steps, done, ended = self.steps, self.done, list[Episodes]()
        with self.source as source:
            clock, is_over = time.perf_counter(), self.is_over() or self.ends_stage()
            while not is_over:
                try:
                    self._learn(source, ended)
                except Interrupted:
                    # The state is that after the last update; before the first there is nothing to keep.
                    if not self.iteration or self.ranks.count > 1:
                        raise
                    if self.steps == steps and not ended:
                        break
                now = time.perf_counter()
                is_due = self._agree(is_due=self._is_row_due(now - clock, done))
                is_over = self.is_over() or self.ends_stage()
                if not (is_due or is_over):
                    continue
                passed, clock = now - clock, now
                row = self._row(passed, steps, Episodes.concatenated(ended))
                yield row
                self.watch.reset()
                steps, done, ended = row.steps, row.done, []
                is_over = self.is_over() or self.ends_stage()
            if self.steps > steps:
                # A source that collects meanwhile brought them after the last row, and so the end of the run.
                yield self._row(time.perf_counter() - clock, steps, Episodes.concatenated(ended))

    def _is_row_due(self, passed: float, done: int) -> bool:
        """True if a row is due by time, by its share of the run, or since there was an evaluation.

        Args:
            passed: seconds since the row before.
            done: what was done of the goal at that row.
        """
        # An evaluation has a row of its own: the next one would replace its scores.
        if self.has_new_scores or passed >= self.run.row_seconds:
            return True
        return (self.done - done) * self.run.min_rows >= self.goal[0] > 0

    def _learn(self, source: Source, ended: list[Episodes]) -> None:
        """Learns from the source's next experience, if there is some.

        Args:
            ended: gets the episodes that have ended.

        Raises:
            Interrupted: before the update, or after it.
        """
        experience = source.next(self.watch)
        if experience is not None:
            if self.intrinsic is not None:
                with self.watch("update"):
                    experience = self.intrinsic.rewarded(experience)
            result = self.algorithm.update(experience, self.watch)
            with self.watch("update"):
                source.feedback(result)
            self.iteration += source.updates
        new = source.take_episodes()
        if len(new):
            self.episodes += len(new)
            self.recent_returns.extend(new.returns[-WINDOW:].tolist())
            ended.append(new)
        self.view.ended = new
        self.notify(lambda callback: callback.on_update(self.view))

    def _row(self, passed: float, steps_before: int, ended: Episodes) -> Row:
        """A row of metrics.

        Args:
            passed: seconds since the row before.
            steps_before: environment steps at that row.
            ended: episodes since then.
        """
        steps, done = self.steps, self.done
        self.has_new_scores = False
        report = self.source.report()
        time_metrics = self.time_metrics(passed, self.watch.seconds, steps - steps_before, len(ended), report)
        of_update = dict(self.algorithm.metrics()) if self.iteration else {}
        if self.intrinsic is not None:
            of_update |= self.intrinsic.metrics()
        metrics: dict[str, Number] = {
            "rollout/ep_rew_mean": math.fsum(ended.returns) / len(ended) if len(ended) else math.nan,
            "rollout/ep_len_mean": math.fsum(ended.lengths) / len(ended) if len(ended) else math.nan,
            "rollout/episodes": len(ended),
            **{f"train/{name}": number for name, number in of_update.items()},
            **self.source.metrics(),
            **self._exchange_metrics(passed),
        }
        for callback in self.callbacks:
            metrics |= callback.metrics(ended)
        row = Row(steps, done, metrics | time_metrics, ended)
        self.view.row = row.record()
        return row

    def _exchange_metrics(self, passed: float) -> dict[str, Number]:
        """The share of the time since the last row in which ranks exchanged gradients and experience."""
        if self.ranks.count == 1:
            return {}
        seconds, self._exchanged = self.ranks.exchange.seconds - self._exchanged, self.ranks.exchange.seconds
        return {"time/share_exchange": seconds / passed}

    def _check_ranks(self) -> None:
        """Compares the parameters of all ranks.

        Raises:
            TrainError: they differ.
        """
        if len(set(self.ranks.gather(checksum(self.algorithm.policy_state())))) > 1:
            raise TrainError(
                "ranks have come to different parameters: they should run on processors of one kind, with one version"
                " of PyTorch and as many threads (run.torch_threads)"
            )
