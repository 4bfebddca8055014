"""One run that trains agents in traffic: many-agent worlds, a curriculum, evaluations on the way."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.mappo import IPPO, MAPPO
from fastrl.algorithms.multi_agent import MultiAgentLearner
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.reinforce import REINFORCE
from fastrl.collectors.multi_agent import TeamCollector
from fastrl.collectors.pool import CollectorError
from fastrl.collectors.protocol import CollectError
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import EPISODE, MEANS, RecordEpisodeStatistics, finite_mean, run_episodes
from fastrl.envs.registration import make_multi
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.tasks.summary import TrafficSummary, peak_gpu_memory_mib, peak_memory_mib, with_other
from fastrl.tasks.traffic.curriculum import Curriculum
from fastrl.tasks.traffic.online import OnlineWorlds
from fastrl.tasks.traffic.scores import Scores, evaluation_seeds, score, scores_of
from fastrl.tasks.traffic.settings import (
    EnvConfig,
    TrafficConfig,
    environment_options,
    expected_steps,
    full_traffic,
    rollout_steps,
    settled,
    step_seconds,
)
from fastrl.training.checkpoint import CheckpointError, load_newest, save_checkpoint, unusable
from fastrl.training.gpu import GpuMeter
from fastrl.training.metrics import TrafficRow, counted
from fastrl.training.profiler import Profile
from fastrl.training.run_directory import RunDirectory, new_directory
from fastrl.training.session import (
    Goal,
    TrainError,
    begin_with,
    check_games,
    choose_device,
    going_on,
    resumed_settings,
)
from fastrl.training.session import play as play_run
from fastrl.utils.config import Values, build, to_tree
from fastrl.utils.errors import UserError
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.progress import Progress
from fastrl.utils.timer import Stopwatch
from fastrl.utils.trust import from_file

# The checkpoint of the best evaluation, which no newer one pushes out.
BEST = "best.safetensors"


def make_worlds(config: EnvConfig, num_envs: int) -> MultiAgentVectorEnv:
    """The traffic that the settings describe, at its full difficulty.

    Raises:
        TrainError: there is no such environment, or it refuses an option.
    """
    options = environment_options(config)
    try:
        return make_multi(config.id, num_envs, **options)
    except (ValueError, TypeError, OverflowError) as error:
        raise TrainError(f"--env {config.id}: {error}") from None


def make_learner(config: TrafficConfig, env: MultiAgentVectorEnv, device: str) -> MultiAgentLearner:
    """The algorithm that the settings name.

    Raises:
        TrainError: settings that it refuses.
    """
    problem = Problem(
        env.single_observation_space,
        env.single_action_space,
        env.num_envs,
        total_steps=expected_steps(config),
        num_agents=env.num_agents,
        seed=config.run.seed,
        device=device,
    )
    try:
        if config.run.algorithm == "reinforce":
            return REINFORCE(config.reinforce, problem)
        return (IPPO if config.run.algorithm == "ippo" else MAPPO)(config.mappo, problem)
    except ValueError as error:
        raise TrainError(str(error)) from None


class Training:
    """The parts of a run, and its loop.

    Args:
        config: settings.
        console: where a line goes when the curriculum changes.

    Attributes:
        config: with what was left open decided.
        steps, iteration, episodes: done so far; a step is one of a world with all its agents.
        scores: of the last evaluation; best: of the best one, and best_at, the episodes it was made after.
        best_file: where the checkpoint of the best evaluation goes; None: nowhere.
        seconds: spent so far in the loop, earlier sessions included; ``parts`` says on what.
    """

    def __init__(self, config: TrafficConfig, console: Console) -> None:
        self.config = config = settled(config)
        if config.run.torch_threads:
            torch.set_num_threads(config.run.torch_threads)
        self.device = choose_device(config.run.device)
        self._console = console
        assert config.env.num_envs is not None
        _check_memory(config)
        self.curriculum = Curriculum(config.curriculum, full_traffic(config.env), config.run.episodes)
        env = make_worlds(config.env, config.env.num_envs)
        self.learner = make_learner(config, env, self.device)
        self.worlds = RecordEpisodeStatistics(env)
        self._collector = TeamCollector(self.worlds, self.learner.act_into, self.learner.env_seeds)
        self._set_difficulty()
        self.iteration = self.episodes = 0
        self.scores: Scores | None = None
        self.best: Scores | None = None
        self.best_at = self.evaluated_at = 0
        self.best_file: Path | None = None
        self._evaluation_env: MultiAgentVectorEnv | None = None
        self.mean_return = math.nan
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self.profile = Profile(GpuMeter(self.device).use)

    @property
    def steps(self) -> int:
        return self.learner.steps

    def rows(self) -> Iterator[TrafficRow]:
        """Trains; a row after every update, and with --online also while there is nothing to learn from. Between
        rows the state may be saved. What ``rows`` has started ends with it."""
        if self.config.online.enabled:
            yield from self._online_rows()
        else:
            yield from self._rows(None)

    def _online_rows(self) -> Iterator[TrafficRow]:
        config = self.config
        assert config.env.num_envs is not None
        online = OnlineWorlds(
            self.learner,
            partial(make_worlds, config.env, config.env.num_envs),
            config.env.num_envs,
            period=step_seconds(config.env) / config.online.speed if config.online.speed else 0.0,
            queue=config.online.queue,
            adjusts=config.curriculum.mode != "off",
            # A run that goes on sees other episodes.
            seed=config.run.seed + self.steps,
            console=self._console,
        )
        try:
            online.start(self.curriculum.level, self.curriculum.difficulty())
            yield from self._rows(online)
        except CollectorError as error:
            raise CollectError(f"the simulation keeps dying: {error}", error.traceback) from None
        finally:
            online.close()

    def _rows(self, online: OnlineWorlds | None) -> Iterator[TrafficRow]:
        watch = Stopwatch()
        clock = time.perf_counter()
        latest: dict[str, float] = {}
        while self.episodes < self.config.run.episodes:
            watch.reset()
            before = self.steps
            came = True
            if online is None:
                self._collector.collect(self.learner.rollout, watch)
                ended = self.worlds.take()
            else:
                rollout = online.collect(watch, self.config.online.row_seconds)
                came, ended = rollout is not None, np.empty(0, EPISODE) if rollout is None else rollout
            if came:
                self.learner.update(self.learner.rollout, watch)
            losses = self.learner.metrics() if came else {}
            self.iteration += came
            self.episodes += len(ended)
            played = {name: finite_mean(ended[field]) for name, field in MEANS.items()}
            if len(ended):
                self.mean_return = played["mean_return"]
                latest = played
            self._adjust(ended)
            if online is not None and came:
                with watch("publishing"):
                    online.publish(self.curriculum.level, self.curriculum.difficulty())
            scores = self._evaluate_if_due(watch) if came else None
            now = time.perf_counter()
            passed, clock = now - clock, now
            self.seconds += passed
            for name, seconds in watch.seconds.items():
                self.parts[name] = self.parts.get(name, 0.0) + seconds
            difficulty = self.curriculum.difficulty()
            yield TrafficRow(
                steps=self.steps,
                iteration=self.iteration,
                episodes=self.episodes,
                ended=len(ended),
                played=played,
                latest=latest,
                vehicles=difficulty.vehicles,
                density=difficulty.density,
                level=self.curriculum.level,
                rises=self.curriculum.rises,
                falls=self.curriculum.falls,
                losses=losses,
                evaluation={} if scores is None else scores.numbers(),
                online={} if online is None else online.numbers(),
                seconds=self.seconds,
                episodes_per_minute=60 * len(ended) / passed,
                steps_per_second=(self.steps - before) / passed,
                memory_mib=peak_memory_mib(),
                parts=watch.seconds,
                shares=self.profile.lap(
                    passed,
                    watch.seconds,
                    self.steps - before,
                    len(ended),
                    None if online is None else online.report(),
                ).shares,
            )

    def _adjust(self, ended: NDArray[Any]) -> None:
        """The curriculum sees what was played; the next episodes follow it."""
        here = ended[ended["level"] == self.curriculum.level]
        rate = self.curriculum.success_rate
        if not self.curriculum.take(self.episodes, here["success"].tolist()):
            return
        self._set_difficulty()
        difficulty = self.curriculum.difficulty()
        vehicles = counted(difficulty.vehicles, "vehicle")
        why = "" if math.isnan(rate) else f" (success rate was {rate:.0%})"
        self._console.print(
            f"curriculum: level {self.curriculum.level} of {self.curriculum.levels} after"
            f" {self.episodes:,} episodes: {vehicles}, density {difficulty.density:.2g}{why}",
            highlight=False,
            soft_wrap=True,
        )

    def _set_difficulty(self) -> None:
        """From each world's next reset on."""
        self.worlds.level = self.curriculum.level
        if self.config.curriculum.mode == "off":
            return
        difficulty = self.curriculum.difficulty()
        try:
            self.worlds.env.set_difficulty(num_agents=difficulty.vehicles, density=difficulty.density)
        except NotImplementedError as error:
            raise TrainError(f"--curriculum.mode {self.config.curriculum.mode}: {error}") from None

    def _evaluate_if_due(self, watch: Stopwatch) -> Scores | None:
        """Scores where it is time for them; the best ones' checkpoint is kept apart."""
        run = self.config.run
        if not (run.eval_freq and run.eval_episodes):
            return None
        if self.episodes - self.evaluated_at < run.eval_freq and self.episodes < run.episodes:
            return None
        with watch("evaluation"):
            self.evaluated_at = self.episodes
            scores = self.evaluate()
            if self.best is None or scores.mean_return > self.best.mean_return:
                self.best, self.best_at = dataclasses.replace(scores, name="best"), self.episodes
                if self.best_file is not None:
                    self.best_file.parent.mkdir(exist_ok=True)
                    save_checkpoint(self.best_file, self.state())
        return scores

    def evaluate(self, advance: Callable[[int], object] = lambda episodes: None) -> Scores:
        """The policy as it is, on the run's fixed seeds in full traffic, without exploration.

        Args:
            advance: as of `fastrl.envs.record_episodes.run_episodes`.
        """
        run = self.config.run
        if self._evaluation_env is None:
            self._evaluation_env = make_worlds(self.config.env, run.eval_episodes)
        seeds = evaluation_seeds(run.seed, run.eval_episodes)
        played = run_episodes(self._evaluation_env, self.learner.act, seeds, advance)
        self.scores = scores_of(played, "last", run.seed)
        return self.scores

    def state(self) -> dict[str, Any]:
        """All that `restore` and `load_actor` need, for a checkpoint."""
        return {
            "kind": "traffic",
            "config": to_tree(self.config),
            "steps": self.steps,
            "iteration": self.iteration,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "seconds": self.seconds,
            "parts": self.parts,
            "curriculum": self.curriculum.state_dict(),
            "evaluated_at": self.evaluated_at,
            "scores": None if self.scores is None else self.scores.to_tree(),
            "best": None if self.best is None else self.best.to_tree(),
            "best_at": self.best_at,
            "worlds": self.worlds.save_state(),
            "collector": self._collector.state_dict(),
            "learner": self.learner.state_dict(),
            "policy": self.learner.policy_state(),
        }

    def take_weights(self, state: dict[str, Any]) -> None:
        """Begins with the weights in another run's state: of the actors, and of critics that are alike.

        Raises:
            ValueError: they are of other actors.
        """
        if differing := self.learner.load_policy(state["learner"]):
            self._console.print(
                f"{', '.join(differing)} begin anew: those of that run are others", highlight=False
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the run that saved the state stood."""
        self.curriculum.load_state_dict(state["curriculum"])
        self.learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        self.worlds.load_state(state["worlds"])
        self.iteration = state["iteration"]
        self.episodes = state["episodes"]
        self.mean_return = state["mean_return"]
        self.seconds = state["seconds"]
        self.parts = dict(state["parts"])
        self.evaluated_at, self.best_at = state["evaluated_at"], state["best_at"]
        self.scores = None if state["scores"] is None else Scores(**state["scores"])
        self.best = None if state["best"] is None else Scores(**state["best"])


def _check_memory(config: TrafficConfig) -> None:
    """Refuses what can only end in a process that the system kills for its memory."""
    assert config.env.num_envs is not None
    # Of each agent's step two observations of about 70 numbers, and some more.
    needed = config.env.num_envs * config.env.vehicles * rollout_steps(config) * 600
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise TrainError(
            f"this takes at least {needed / 1e9:,.0f} GB of memory, the machine has {there / 1e9:,.0f}:"
            " choose a smaller --num-envs, --vehicles or --mappo.num_steps"
        )


def new_run(config: TrafficConfig, path: Path | None, console: Console) -> TrafficSummary:
    """Trains from the beginning, in a new run directory.

    Raises:
        TrainError, RunDirectoryError, ConfigError: it cannot begin; nothing has been written then.
    """
    training = Training(config, console)
    begin_with(config.run.init_from, "traffic", training.take_weights, console)
    with new_directory(path, "traffic") as directory:
        return _train(training, directory, console)


def resume_run(
    path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> TrafficSummary:
    """Goes on exactly where a checkpoint stands, in its own run directory or in a new one.

    Args and errors: as of ``fastrl.tasks.cage2.run.resume_run``.
    """

    def restore(file: Path, state: dict[str, Any]) -> Training:
        config = resumed_settings(TrafficConfig, file, state, changes, trust=trust)
        settings = config.reinforce if config.run.algorithm == "reinforce" else config.mappo
        MultiAgentLearner.check_state(settings, state["learner"])
        check_games(state["worlds"]["env"], settled(config).env.num_envs or 1)
        training = Training(config, console)
        training.restore(state)
        return training

    with going_on(path, new_path, "traffic", restore, console) as (training, directory):
        return _train(training, directory, console)


def _train(training: Training, directory: RunDirectory, console: Console) -> TrafficSummary:
    """The loop, and what it came to."""
    run = training.config.run
    training.best_file = directory.checkpoints / BEST
    saved_at = training.episodes

    def due() -> bool:
        nonlocal saved_at
        is_due = bool(run.save_freq) and training.episodes - saved_at >= run.save_freq
        if is_due:
            saved_at = training.episodes
        return is_due

    began_at, seconds_before = training.episodes, training.seconds
    goal = Goal(run.episodes, training.episodes, "episodes")
    checkpoint, stopped_by = play_run(training, directory, console, goal, due)
    if stopped_by is None and run.eval_episodes and training.evaluated_at != training.episodes:
        console.print("evaluating ...", highlight=False)
        with Progress("evaluating", run.eval_episodes, console) as progress:
            training.evaluate(progress.advance)
    seconds = training.seconds - seconds_before
    best_file = training.best_file if training.best is not None and training.best_file.exists() else None
    summary = TrafficSummary(
        status="complete" if stopped_by is None else "interrupted",
        signal=None if stopped_by is None else stopped_by.name,
        run=str(directory.path),
        checkpoint=str(checkpoint),
        best_checkpoint=None if best_file is None else str(best_file),
        env=training.config.env.id,
        algorithm=run.algorithm,
        steps=training.steps,
        episodes=training.episodes,
        iterations=training.iteration,
        seconds=training.seconds,
        episodes_per_minute=60 * (training.episodes - began_at) / seconds if seconds else 0.0,
        mean_return=training.mean_return,
        device=training.device,
        parts=with_other(training.parts, training.seconds),
        peak_memory_mib=peak_memory_mib(),
        peak_gpu_memory_mib=peak_gpu_memory_mib(training.device),
        evaluation=None if training.scores is None else training.scores,
        best=training.best,
        best_at=training.best_at,
    )
    write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())
    summary.print(console)
    return summary


def load_policy(path: Path) -> tuple[TrafficConfig, MultiAgentPolicy]:
    """The settings of a run (its newest checkpoint) or of a checkpoint file, and the policy that it has learnt.

    Raises:
        CheckpointError: there is no checkpoint, or one of another kind of run.
    """
    file, state = load_newest(path)
    if state.get("kind") != "traffic":
        raise CheckpointError(f"{file} is of no run in traffic")
    try:
        config = build(TrafficConfig, from_file(TrafficConfig, state["config"], str(file)))
        return config, MultiAgentPolicy.from_state(state["policy"])
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise unusable(file, "holds no policy that this fastrl can use", error) from None


def evaluate_run(
    path: Path, *, episodes: int, seed: int, advance: Callable[[int], object] = lambda episodes: None
) -> Scores:
    """Scores of a run (its newest checkpoint) or a checkpoint file, on fixed seeds in the run's full traffic.

    Args:
        advance: as of `fastrl.envs.record_episodes.run_episodes`.

    Raises:
        CheckpointError: there is no checkpoint, or one of another kind of run.
        TrainError: its environment is not there.
    """
    config, policy = load_policy(path)

    def worlds(num_envs: int) -> MultiAgentVectorEnv:
        env = make_worlds(config.env, num_envs)
        obs_dim, takes = env.single_observation_space.shape, Actions(env.single_action_space).state()
        theirs = {(actor.obs_dim,) for actor in policy.policies.values() if isinstance(actor, PolicyNetwork)}
        if theirs != {obs_dim} or policy.num_agents != env.num_agents or policy.actions.state() != takes:
            raise CheckpointError(f"{path}: its policy does not fit its environment, {config.env.id!r}")
        return env

    return score(
        worlds,
        policy.act,
        name=str(path),
        episodes=episodes,
        seed=seed,
        advance=advance,
    )
