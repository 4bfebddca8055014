"""One run that learns from pixels: collectors play, a learner trains DQN, each as fast as it can."""

import dataclasses
import functools
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.actor_process import Job, Stacks
from fastrl.collectors.counters import Game, SharedCounters, Times
from fastrl.collectors.failures import failed
from fastrl.collectors.pool import CONTEXT, Pool
from fastrl.collectors.protocol import CollectError, Report
from fastrl.collectors.transport import QueueTransport
from fastrl.collectors.weights import Weights
from fastrl.envs import contract
from fastrl.envs.pixels import PixelEnv, make_pixels
from fastrl.envs.process_pool import WorkerError
from fastrl.replay import Replay, ReplayError
from fastrl.tasks.pixels.settings import EnvConfig, PixelConfig
from fastrl.tasks.pixels.turns import Turns
from fastrl.tasks.summary import PixelSummary, peak_gpu_memory_mib, peak_memory_mib
from fastrl.training.gpu import GpuMeter
from fastrl.training.metrics import PixelRow
from fastrl.training.off_policy import Inflow, Learner, make_sampler
from fastrl.training.profiler import Profile
from fastrl.training.run_directory import RunDirectory, new_directory
from fastrl.training.session import (
    Goal,
    TrainError,
    begin_with,
    choose_device,
    going_on,
    play,
    resumed_settings,
)
from fastrl.utils.config import Values, to_tree
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.progress import Progress

# Environment steps between rows where collectors and learner take turns.
ROW_STEPS = 1000

# Seconds between looks at whether collectors are alive.
LOOK = 0.25


def make_env(config: EnvConfig) -> PixelEnv:
    """The game that the settings describe.

    Raises:
        ValueError, ImportError, TypeError: see `make_pixels`.
    """
    return make_pixels(config.id, **env_options(config))


def env_options(config: EnvConfig) -> dict[str, Any]:
    """Keyword arguments of `make_pixels`."""
    options: dict[str, Any] = {}
    if config.sticky is not None:
        options["repeat_action_probability"] = config.sticky
    if config.id.startswith("SuperMarioBros"):
        options["actions"] = config.actions
    return options | {
        "size": config.size,
        "frame_skip": config.frame_skip,
        "max_of_two": config.max_of_two,
        "noop_max": config.noop_max,
        "life_loss_ends": config.life_loss_ends,
        "clip_reward": config.clip_reward,
        "reward_scale": config.reward_scale,
    }


def obs_space(shape: tuple[int, ...]) -> gymnasium.spaces.Box:
    """Of stacked frames, [stack, h, w]."""
    return gymnasium.spaces.Box(0, 255, shape, np.uint8)


def new_replay(config: PixelConfig, frame: tuple[int, ...]) -> Replay:
    """An empty one for single frames [h, w]."""
    return Replay(
        config.replay.capacity,
        frame if config.env.stack > 1 else (1, *frame),
        np.uint8,
        num_envs=config.collect.collectors * config.collect.envs,
        stack=config.env.stack,
        extra={"version": (np.uint32, ())},
        path=config.replay.path,
    )


def jobs_for(config: PixelConfig, row: np.dtype[Any], dqn: DQN) -> list[Job]:
    """One for each collector."""
    count, each = config.collect.collectors, config.collect.envs
    powers = powers_of(config)
    return [
        Job(
            index=i,
            envs=range(i * each, (i + 1) * each),
            make_env=functools.partial(make_env, config.env),
            tells_games=True,
            make_actor=dqn.actor_spec(),
            row=row,
            stack=config.env.stack if config.env.stack > 1 else 0,
            epsilon=dqn.exploration(),
            powers=powers[i * each : (i + 1) * each],
            fragment=config.collect.fragment,
            weights_every=config.collect.weights_every,
            seed=config.run.seed,
        )
        for i in range(count)
    ]


def powers_of(config: PixelConfig) -> NDArray[np.float64]:
    """To which the epsilon of each game is raised."""
    games = config.collect.collectors * config.collect.envs
    return 1 + config.collect.epsilon_spread * np.linspace(0, 1, games)


class Training:
    """The parts of a run, and its loop.

    Args:
        config: settings.
        console: where a line goes when a collector is restarted.
        replay: to go on with; None: an empty one.

    Attributes:
        games, batches, restarts, dropped: so far.
        returns: of the last games, up to 100.
        seconds: spent so far in the loop, earlier sessions included.
    """

    def __init__(self, config: PixelConfig, console: Console, replay: Replay | None = None) -> None:
        self.config = config
        if config.run.torch_threads:
            torch.set_num_threads(config.run.torch_threads)
        self.device = choose_device(config.run.device)
        self._console = console
        if config.run.deterministic and config.collect.prefetch == "on":
            raise TrainError("--collect.prefetch on does not go with --run.deterministic")
        try:
            env = make_env(config.env)
        except (ValueError, ImportError, TypeError) as error:
            raise TrainError(f"--env {config.env.id}: {error}") from error
        except (Exception, SystemExit) as error:
            raise failed(f"--env {config.env.id}: it could not be built", error) from error
        frame = env.observation_space.shape
        assert frame is not None
        self.obs_shape = (config.env.stack, *frame)
        self.num_actions = int(env.action_space.n)
        contract.close(env)
        _check_memory(config, frame)
        try:
            self.dqn = DQN(
                config.dqn,
                Problem(
                    obs_space(self.obs_shape),
                    gymnasium.spaces.Discrete(self.num_actions),
                    num_envs=config.collect.collectors * config.collect.envs,
                    total_steps=config.run.total_steps,
                    seed=config.run.seed,
                    device=self.device,
                ),
            )
        except ValueError as error:
            raise TrainError(str(error)) from error
        self.replay = new_replay(config, frame) if replay is None else replay
        self.sampler = make_sampler(self.dqn.replay_spec(), self.replay, config.run.seed)
        self.games = self.batches = self.restarts = self.dropped = 0
        self.returns: deque[float] = deque(maxlen=100)
        self.seconds = 0.0
        self.session = Session()
        self.profile = Profile(GpuMeter(self.device).use)
        self._steps = 0
        self._inflow: Inflow | None = None
        self._turns: Turns | None = None
        # Of turns, where the run stood when there were some.
        self._turned: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        if self._turns is not None:
            return self._turns.steps
        return self._steps if self._inflow is None else self._inflow.steps

    def rows(self) -> Iterator[PixelRow]:
        """Starts the collectors and trains; a row every ``run.row_seconds``, or every `ROW_STEPS` steps where
        collectors and learner take turns. The collectors end with the iterator."""
        config = self.config
        if self.steps >= config.run.total_steps:
            return
        if config.run.deterministic:
            yield from self._rows_in_turns()
            return
        board = SharedCounters(CONTEXT, config.collect.collectors)
        feed = QueueTransport(self.replay.dtype, config.collect.queue, config.collect.collectors)
        weights = Weights(self.dqn.weights_nbytes)
        jobs = jobs_for(config, self.replay.dtype, self.dqn)
        inflow = self._inflow = Inflow(feed, self.replay.append, board, self._steps)
        learner = pool = None
        try:
            learner = Learner(
                self.dqn,
                self.replay,
                self.sampler,
                inflow,
                weights,
                starts=config.replay.starts,
                updates_per_step=config.collect.updates_per_step,
                min_updates_per_step=config.collect.min_updates_per_step,
                publish_every=config.collect.publish_every,
                prefetch=self._prefetches(),
            )
            senders = [feed.sender() for _ in jobs]
            pool = Pool(jobs, senders, board, weights, [feed.name, weights.name])
            yield from self._loop(learner, inflow, pool, board, feed)
        finally:
            feed.shutdown()
            if pool is not None:
                pool.close()
            inflow.close()
            if learner is not None:
                learner.close()
            self._steps, self._inflow = inflow.steps, None
            feed.close()
            weights.close()

    def _prefetches(self) -> bool:
        choice = self.config.collect.prefetch
        return choice == "on" or (choice == "auto" and self.device == "cuda")

    def _loop(
        self, learner: Learner, inflow: Inflow, pool: Pool, board: SharedCounters, feed: QueueTransport
    ) -> Iterator[PixelRow]:
        config = self.config
        batches_before, dropped_before = self.batches, self.dropped
        clock = looked = time.perf_counter()
        mark = _Mark(inflow.steps, self.batches, board.times(), 0.0, {})
        # What was taken in while the last row was written has a row too.
        while mark.steps < config.run.total_steps:
            now = time.perf_counter()
            while now - clock < config.run.row_seconds and inflow.steps < config.run.total_steps:
                learner.learn()
                now = time.perf_counter()
                if now - looked > LOOK:
                    looked = now
                    self._replace_dead(pool, inflow)
            passed, clock = now - clock, now
            self.seconds += passed
            self.batches = batches_before + learner.batches
            self.dropped = dropped_before + feed.dropped()
            ended = board.new_games()
            self.games += len(ended)
            self.returns.extend(game.value for game in ended)
            before = mark
            mark = _Mark(inflow.steps, self.batches, board.times(), feed.waited(), learner.watch.seconds)
            yield self._row(before, mark, passed, ended, feed.depth(), inflow.take_lag())

    def _row(
        self,
        before: "_Mark",
        mark: "_Mark",
        passed: float,
        ended: list[Game],
        queue_depth: int = 0,
        policy_lag: float = 0.0,
    ) -> PixelRow:
        """The row of metrics of the ``passed`` seconds between two marks, in which these games have ended."""
        waited = mark.waited - before.waited
        times = mark.times.since(before.times)
        spent = {name: seconds - before.spent.get(name, 0.0) for name, seconds in mark.spent.items()}
        self.session.add(
            passed, mark.steps - before.steps, mark.batches - before.batches, times, waited, spent
        )
        collected = Report(
            workers=self.config.collect.collectors,
            seconds={
                "environment": mark.times.environment,
                "inference": mark.times.inference,
                # Collectors tell of their time now and then, the queue at once.
                "buffer": max(mark.times.queue - mark.waited, 0.0),
                "waiting": min(mark.waited, mark.times.queue),
            },
        )
        shares = self.profile.lap(passed, spent, mark.steps - before.steps, len(ended), collected).shares
        return PixelRow(
            steps=mark.steps,
            games=self.games,
            batches=self.batches,
            mean_return=_mean([game.value for game in ended]),
            mean_length=_mean([game.length for game in ended]),
            epsilon=self.dqn.exploration()(mark.steps),
            losses=self.dqn.metrics(),
            seconds=self.seconds,
            experience_per_second=(mark.steps - before.steps) / passed,
            batches_per_second=(mark.batches - before.batches) / passed,
            queue_depth=queue_depth,
            dropped=self.dropped,
            replay_fill=len(self.replay) / self.config.replay.capacity,
            policy_lag=policy_lag,
            collectors=times.shares() | {"waiting": waited / times.seconds if times.seconds else 0.0},
            learner={name: seconds / passed for name, seconds in spent.items()},
            restarts=self.restarts,
            gpu_use=self.profile.gpu_use,
            shares=shares,
        )

    def _rows_in_turns(self) -> Iterator[PixelRow]:
        turns = None
        try:
            turns = self._turns = Turns(
                self.config,
                {"env_id": self.config.env.id} | env_options(self.config.env),
                self.dqn,
                self.replay,
                self.sampler,
                powers_of(self.config),
                self._steps,
                self.batches,
            )
            if self._turned is None:
                turns.begin()
            else:
                self._restore_turns(turns, self._turned)
            yield from self._take_turns(turns)
        except WorkerError as error:
            death = error.deaths[0]
            raise CollectError(
                f"collector {death.worker} died ({death.cause}): a deterministic run ends then; --resume goes on from"
                " its last checkpoint",
                death.traceback,
            ) from error
        finally:
            if turns is not None:
                self._steps, self._turned = turns.steps, turns.state()
                turns.close()
            self._turns = None

    def _restore_turns(self, turns: Turns, state: dict[str, Any]) -> None:
        try:
            lacking = turns.restore(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise TrainError(f"the checkpoint's games are not those of this run: {error!r}") from None
        if lacking:
            line = f"not to the bit as if it had never stopped: {lacking}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def _take_turns(self, turns: Turns) -> Iterator[PixelRow]:
        total = self.config.run.total_steps
        clock = time.perf_counter()
        mark = _Mark(turns.steps, turns.batches, Times(), 0.0, {})
        while turns.steps < total:
            ended: list[Game] = []
            end = min((turns.steps // ROW_STEPS + 1) * ROW_STEPS, total)
            while turns.steps < end:
                ended += turns.round()
            now = time.perf_counter()
            passed, clock = now - clock, now
            self.seconds += passed
            self.batches = turns.batches
            self.games += len(ended)
            self.returns.extend(game.value for game in ended)
            spent, waited = turns.worker_seconds
            times = Times(spent + waited, environment=spent, queue=waited)
            before, mark = mark, _Mark(turns.steps, turns.batches, times, waited, turns.watch.seconds)
            yield self._row(before, mark, passed, ended)

    def _replace_dead(self, pool: Pool, inflow: Inflow) -> None:
        for death in pool.dead():
            # What it had handed over comes first; then its environments begin anew.
            inflow.flush()
            for env in death.envs:
                self.replay.cut(env)
            pool.restart(death)
            self.restarts += 1
            self._console.print(
                f"collector {death.index} died ({death.cause}): started again",
                highlight=False,
                soft_wrap=True,
            )

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, for a checkpoint; the replay is saved apart."""
        return {
            "kind": "pixels",
            "config": to_tree(self.config),
            "steps": self.steps,
            "games": self.games,
            "batches": self.batches,
            "restarts": self.restarts,
            "dropped": self.dropped,
            "returns": list(self.returns),
            "seconds": self.seconds,
            "obs_shape": list(self.obs_shape),
            "num_actions": self.num_actions,
            "dqn": self.dqn.state_dict(),
            "policy": self.dqn.policy_state(),
            "turns": self._turned if self._turns is None else self._turns.state(),
        }

    def take_weights(self, state: dict[str, Any]) -> None:
        """Begins with the weights in another run's state.

        Raises:
            ValueError: they are of another network.
        """
        self.dqn.load_policy(state["dqn"])

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the run that saved the state stood; but collectors begin new games, unless they take turns with
        the learner."""
        self._turned = state.get("turns")
        self.dqn.load_state_dict(state["dqn"])
        self._steps = state["steps"]
        self.games, self.batches = state["games"], state["batches"]
        self.restarts, self.dropped = state["restarts"], state["dropped"]
        self.returns.extend(state["returns"])
        self.seconds = state["seconds"]

    def evaluate(self) -> tuple[float, ...] | None:
        """Returns of whole games, before clipping, played without exploration."""
        games = self.config.run.eval_episodes
        if not games:
            return None
        self._console.print("evaluating ...", highlight=False)
        env = make_env(self.config.env)
        env.life_loss_ends = False
        seeds = np.random.SeedSequence([self.config.run.seed, 1]).generate_state(games)
        returns = []
        with Progress("evaluating", games, self._console) as progress:
            for seed in seeds:
                try:
                    returns.append(play_game(self.dqn, env, self.config.env.stack, int(seed)))
                except (Exception, SystemExit) as error:
                    where = f"in the game that reset(seed={seed}) began"
                    raise failed(f"{self.config.env.id} failed {where}", error) from error
                progress.advance()
        contract.close(env)
        return tuple(returns)


@dataclasses.dataclass(frozen=True)
class _Mark:
    """How far everything was when a row was made."""

    steps: int
    batches: int
    times: Times
    waited: float
    spent: dict[str, float]


@dataclasses.dataclass
class Session:
    """Sums over the rows of this session, for its summary."""

    seconds: float = 0.0
    steps: int = 0
    batches: int = 0
    times: Times = dataclasses.field(default_factory=Times)
    waited: float = 0.0
    spent: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(
        self, seconds: float, steps: int, batches: int, times: Times, waited: float, spent: dict[str, float]
    ) -> None:
        self.seconds += seconds
        self.steps += steps
        self.batches += batches
        self.times = self.times.plus(times)
        self.waited += waited
        for name, value in spent.items():
            self.spent[name] = self.spent.get(name, 0.0) + value

    def collectors(self) -> dict[str, float]:
        """Shares of the collectors' time."""
        waiting = self.waited / self.times.seconds if self.times.seconds else 0.0
        return self.times.shares() | {"waiting": waiting}

    def per_second(self, number: float) -> float:
        return number / self.seconds if self.seconds else 0.0


def play_game(dqn: DQN, env: PixelEnv, stack: int, seed: int) -> float:
    """The return of one game, before clipping, in which the best action is always chosen."""
    frame, info = env.reset(seed=seed)
    stacks = Stacks(1, stack, frame.shape, frame.dtype)  # of one frame, [1, 1, h, w]
    stacks.begin(0, frame)
    while "episode" not in info:
        frame, _, _, _, info = env.step(dqn.greedy(stacks.obs)[0])
        stacks.push(0, frame)
    return float(info["episode"]["r"])


def _check_memory(config: PixelConfig, frame: tuple[int, ...]) -> None:
    """Refuses what can only end in a process that the system kills for its memory."""
    needed = config.replay.capacity * (math.prod(frame) + 40)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.replay.path is None and needed > there:
        raise TrainError(
            f"a replay of {config.replay.capacity:,} frames takes {needed / 1e9:,.0f} GB of memory, the machine has"
            f" {there / 1e9:,.0f}: choose a smaller --replay.capacity, or --replay.path for a file"
        )
    if config.replay.starts > config.replay.capacity:
        raise TrainError(
            f"--replay.starts {config.replay.starts:,} is more than --replay.capacity {config.replay.capacity:,}:"
            " learning would never begin"
        )


def _mean(values: list[float] | list[int]) -> float:
    return statistics.fmean(values) if values else math.nan


def new_run(config: PixelConfig, path: Path | None, console: Console) -> PixelSummary:
    """Trains from the beginning, in a new run directory.

    Raises:
        TrainError, RunDirectoryError: it cannot begin; nothing has been written then.
        CollectError: collectors die again and again.
    """
    training = Training(config, console)
    begin_with(config.run.init_from, "pixels", training.take_weights, console)
    with new_directory(path, "pixels") as directory:
        return _train(training, directory, console)


def resume_run(
    path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> PixelSummary:
    """Goes on from a checkpoint, in its own run directory or in a new one: with the network, the optimiser, the
    counters, and the replay if that was saved. Collectors begin new games, unless they take turns with the learner.

    Args and errors: as of ``fastrl.tasks.cage2.run.resume_run``.
    """

    def restore(file: Path, state: dict[str, Any]) -> Training:
        config = resumed_settings(PixelConfig, file, state, changes, trust=trust)
        DQN.check_state(config.dqn, state["dqn"])
        training = Training(config, console, _saved_replay(file.parent.parent, config))
        training.restore(state)
        return training

    with going_on(path, new_path, "pixels", restore, console) as (training, directory):
        return _train(training, directory, console)


def _saved_replay(run: Path, config: PixelConfig) -> Replay | None:
    file = run / "replay"
    if not file.exists():
        return None
    try:
        replay = Replay.load(file)
    except (ReplayError, FileNotFoundError) as error:
        raise TrainError(f"{error}; remove {file} to go on without it") from None
    envs = config.collect.collectors * config.collect.envs
    if replay.num_envs != envs:
        raise TrainError(
            f"{file} holds {replay.num_envs} environments, this run would have {envs}: choose the same"
            " --collect.collectors and --collect.envs, or remove the file"
        )
    if not config.run.deterministic:
        for env in range(envs):
            replay.cut(env)
    return replay


def _train(training: Training, directory: RunDirectory, console: Console) -> PixelSummary:
    """The loop, and what it came to."""
    goal = Goal(training.config.run.total_steps, training.steps)
    checkpoint, stopped_by = play(training, directory, console, goal)
    if training.config.run.save_replay:
        training.replay.save(directory.path / "replay")
    session = training.session
    summary = PixelSummary(
        status="complete" if stopped_by is None else "interrupted",
        signal=None if stopped_by is None else stopped_by.name,
        run=str(directory.path),
        checkpoint=str(checkpoint),
        env=training.config.env.id,
        steps=training.steps,
        games=training.games,
        batches=training.batches,
        seconds=training.seconds,
        experience_per_second=session.per_second(session.steps),
        batches_per_second=session.per_second(session.batches),
        mean_return=_mean(list(training.returns)),
        device=training.device,
        collectors=session.collectors(),
        learner={name: session.per_second(seconds) for name, seconds in session.spent.items()},
        dropped=training.dropped,
        restarts=training.restarts,
        peak_memory_mib=peak_memory_mib(),
        peak_gpu_memory_mib=peak_gpu_memory_mib(training.device),
        evaluation=None,
    )
    # Before the evaluation, which the environment may break off.
    _write(summary, directory)
    if stopped_by is None:
        summary = dataclasses.replace(summary, evaluation=training.evaluate())
        _write(summary, directory)
    summary.print(console)
    return summary


def _write(summary: PixelSummary, directory: RunDirectory) -> None:
    write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())
