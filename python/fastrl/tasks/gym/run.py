"""One run on any environment of Gymnasium: a collector plays it, PPO or IMPALA learns, in turns or at the same time."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.actor_critic import ActorCriticConfig, ActorCriticLearner
from fastrl.algorithms.async_ppo import AsyncPPO, AsyncPPOConfig
from fastrl.algorithms.impala import Impala
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.fragment_stream import FragmentStream, Lag
from fastrl.collectors.protocol import CollectError, Collector, Report, check_spaces
from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import MlpActor
from fastrl.tasks.gym.settings import GymConfig
from fastrl.tasks.summary import GymSummary, peak_gpu_memory_mib, peak_memory_mib, with_other
from fastrl.training.checkpoint import CheckpointError, load_newest, unusable
from fastrl.training.collecting import (
    FailureReporter,
    Publisher,
    build_env,
    check_collected,
    collector_state,
    episode_steps,
    load_collected,
    make_plan,
    open_collector,
    print_diverged,
    spent,
)
from fastrl.training.gpu import GpuMeter
from fastrl.training.metrics import GymRow
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
from fastrl.utils.config import ConfigError, Values, build, to_tree
from fastrl.utils.env_options import parse_options
from fastrl.utils.errors import UserError
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.progress import Progress
from fastrl.utils.timer import Stopwatch
from fastrl.utils.trust import from_file

# The widest input of a compiled actor.
MAX_OBS_DIM = 2**16


class Training:
    """The parts of a run, and its loop.

    Args:
        config: settings.
        console: where it is told how experience is collected, and what fails.

    Attributes:
        iteration, episodes: done so far.
        mean_return: of the last row in which episodes ended; NaN if none did so far.
        lag: of the policies that acted, so far.
        failures, restarts: of workers, so far.
        seconds: spent so far in the loop, earlier sessions included; ``parts`` says on what.
        profile: where the time of this session goes.
        report: of the collector, when it was last asked; ``collector_name`` is what it is called.
    """

    def __init__(self, config: GymConfig, console: Console) -> None:
        self.config = config
        if config.run.torch_threads:
            torch.set_num_threads(config.run.torch_threads)
        self.device = choose_device(config.run.device)
        self._console = console
        self.spec = EnvSpec(config.env.id, parse_options(config.env.options))
        env = build_env(self.spec)
        self.learner = _learner(config, env, self.device)
        self._episode_steps = episode_steps(config.collect, env)
        self.plan = make_plan(
            config.collect,
            self.spec,
            self.learner.actor_spec(),
            obs_space=env.observation_space,
            action_space=env.action_space,
            num_envs=config.env.num_envs,
            num_steps=_algorithm_config(config).num_steps,
            episode_steps=self._episode_steps,
            seed=config.run.seed,
        )
        contract.close(env)
        self.iteration = self.episodes = self.failures = self.restarts = 0
        self.mean_return = math.nan
        self.lag = Lag()
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self.report = Report()
        self.profile = Profile(GpuMeter(self.device).use)
        self.collector_name: str = config.collect.method
        self._collector: Collector | None = None
        self._collected: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        return self.learner.steps

    @property
    def max_lag(self) -> int:
        """How far behind the policies that acted may be."""
        return self.learner.max_staleness

    def rows(self) -> Iterator[GymRow]:
        """Starts the collector and trains; a row every ``run.row_seconds``. The collector ends with the iterator."""
        if self.steps >= self.config.run.total_steps:
            return
        collect = self.config.collect
        with open_collector(
            collect, self.plan, self._console, self.max_lag, collect.asynchronous
        ) as collector:
            if self._collected is not None:
                load_collected(collector, self._collected, self._console)
            self._collector, self.collector_name = collector, collector.name
            try:
                yield from self._loop(collector)
            finally:
                self._collected = collector_state(collector.state_dict())
                self._collector = None

    def _loop(self, collector: Collector) -> Iterator[GymRow]:
        intake = FragmentStream(collector, self.max_lag)
        publisher, teller = Publisher(self.learner, collector), FailureReporter(self._console)
        watch = Stopwatch()
        failures, restarts = self.failures, self.restarts
        returns: list[NDArray[np.float64]] = []
        lengths: list[NDArray[np.int64]] = []
        steps_before = self.steps
        clock = time.perf_counter()
        while self.steps < self.config.run.total_steps:
            with watch("publishing"):
                publisher.publish()
            fragments = intake.next(watch)
            returns += [fragment.returns for fragment in fragments]
            lengths += [fragment.lengths for fragment in fragments]
            self.learner.update(fragments, watch)
            self.iteration += 1
            now = time.perf_counter()
            if now - clock < self.config.run.row_seconds and self.steps < self.config.run.total_steps:
                continue
            before, self.report = self.report, collector.report()
            teller.tell(self.report.failures)
            print_diverged(self.plan, before, self.report, self._console)
            passed, clock = now - clock, now
            ended = np.concatenate(returns)
            self.episodes += len(ended)
            if len(ended):
                self.mean_return = float(ended.mean())
            lag = intake.take_lag()
            self.lag = self.lag.plus(lag)
            self.failures = failures + len(self.report.failures)
            self.restarts = restarts + self.report.restarts
            self.seconds += passed
            parts, workers = spent(watch.seconds, before, self.report)
            for name, seconds in parts.items():
                self.parts[name] = self.parts.get(name, 0.0) + seconds
            yield GymRow(
                steps=self.steps,
                iteration=self.iteration,
                episodes=self.episodes,
                mean_return=_mean(ended),
                mean_length=_mean(np.concatenate(lengths)),
                losses=self.learner.metrics(),
                policy_lag=lag.mean,
                max_policy_lag=lag.highest,
                dropped=self.lag.dropped,
                failures=self.failures,
                restarts=self.restarts,
                worker_memory_mib=max(self.report.memory_mib, default=0.0),
                seconds=self.seconds,
                steps_per_second=(self.steps - steps_before) / passed,
                parts=parts,
                workers=workers,
                shares=self.profile.lap(
                    passed, watch.seconds, self.steps - steps_before, len(ended), self.report
                ),
            )
            watch.reset()
            returns, lengths, steps_before = [], [], self.steps

    def state(self) -> dict[str, Any]:
        """All that `restore` and ``fastrl.training.policy.Policy`` need, for a checkpoint."""
        return {
            "kind": "gym",
            "config": to_tree(self.config),
            "steps": self.steps,
            "iteration": self.iteration,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "lag": dataclasses.asdict(self.lag),
            "failures": self.failures,
            "restarts": self.restarts,
            "seconds": self.seconds,
            "parts": self.parts,
            "collector": (
                self._collected if self._collector is None else collector_state(self._collector.state_dict())
            ),
            "learner": self.learner.state_dict(),
            "policy": self.learner.policy_state(),
            "action_space": self.learner.actions.state(),
            "actions": [] if self.learner.actions.is_box else list(range(self.learner.actions.size)),
            "num_actions": self.learner.actions.size,
        }

    def take_weights(self, state: dict[str, Any]) -> None:
        """Begins with the weights in another run's state.

        Raises:
            ValueError: they are of another network, or of other actions.
        """
        self.learner.load_policy(state["learner"])

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the run that saved the state stood; running episodes are played again up to there."""
        self.learner.load_state_dict(state["learner"])
        self._collected = state["collector"]
        if self._collected is not None:
            check_collected(self.plan, self._collected)
        self.iteration, self.episodes = state["iteration"], state["episodes"]
        self.mean_return = state["mean_return"]
        self.lag = Lag(**state["lag"])
        self.failures, self.restarts = state["failures"], state["restarts"]
        self.seconds = state["seconds"]
        self.parts = dict(state["parts"])

    def evaluate(self) -> tuple[float, ...] | None:
        """Returns of episodes without exploration."""
        episodes = self.config.run.eval_episodes
        if not episodes:
            return None
        self._console.print("evaluating ...", highlight=False)
        with Progress("evaluating", episodes, self._console) as progress:
            return play_episodes(
                self.spec,
                self.learner.policy,
                self.learner.actions,
                episodes,
                self.config.run.seed,
                self._episode_steps,
                progress.advance,
            )


def _algorithm_config(config: GymConfig) -> ActorCriticConfig:
    return config.impala if config.run.algorithm == "impala" else config.ppo


def _learner(config: GymConfig, env: gymnasium.Env[Any, Any], device: str) -> ActorCriticLearner:
    """Of the algorithm that the settings name, for flattened observations."""
    try:
        check_spaces(env.observation_space, env.action_space)
        obs_dim = int(np.prod(env.observation_space.shape or ()))
        if obs_dim > MAX_OBS_DIM:
            raise ValueError(
                f"its observations have {obs_dim:,} numbers each, and {MAX_OBS_DIM:,} is the most that a network of"
                f" this kind of run takes; fastrl-train pixels --env {config.env.id.rpartition(':')[2]} learns from"
                " images"
            )
        obs_space = gymnasium.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        problem = Problem(
            obs_space,
            env.action_space,
            config.env.num_envs,
            total_steps=config.run.total_steps,
            seed=config.run.seed,
            device=device,
        )
        lag = config.collect.max_policy_lag
        if config.run.algorithm == "impala":
            return Impala(dataclasses.replace(config.impala, max_staleness=lag), problem)
        if config.ppo.action_masks:
            raise ValueError(
                "--ppo.action_masks needs an environment that is compiled, see fastrl-train cage2"
            )
        if config.run.algorithm == "ppo":
            return PPO(config.ppo, problem)
        corrects = config.collect.correct_off_policy
        return AsyncPPO(
            AsyncPPOConfig(**vars(config.ppo), max_staleness=lag, correct_off_policy=corrects), problem
        )
    except ValueError as error:
        raise TrainError(f"--env {config.env.id}: {error}") from None


def play_episodes(
    spec: EnvSpec,
    policy: ActorCritic,
    takes: Actions,
    episodes: int,
    seed: int,
    num_steps: int,
    advance: Callable[[int], object] = lambda episodes: None,
) -> tuple[float, ...]:
    """The returns of episodes in which the likeliest action is always chosen.

    Args:
        takes: what the environment gets of what the policy draws.
        seed: of the episodes, others than those of a run with that seed.
        num_steps: after which an episode ends at the latest.
        advance: called after each episode, with 1.

    Raises:
        TrainError, CollectError: the environment cannot be built or played.
    """
    actor = MlpActor(policy.actor_architecture())
    weights = np.zeros(actor.weights_nbytes // 4, np.float32)
    policy.actor_weights(weights)
    actor.load(weights.data)
    draws = np.zeros((1, takes.size), np.float32) if takes.is_box else np.zeros(1, np.int64)
    log_probs = np.zeros(1, np.float32)
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    env = build_env(spec)
    form = contract.form_of(spec.id, env.observation_space.shape or (), env.observation_space.dtype)
    returns = []
    for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
        episode_seed, total, step = int(number) >> 1, 0.0, 0
        try:
            obs, _ = contract.reset(env, form, episode_seed)
            for _ in range(num_steps):
                step += 1
                actor.act(obs.astype(np.float32).reshape(1, -1), *nothing, draws, log_probs, greedy=True)
                action = takes.to_env(draws)[0] if takes.is_box else int(draws[0])
                obs, reward, terminated, truncated, _ = contract.step(env, form, action)
                total += float(reward)
                if not (np.isfinite(total) and np.isfinite(obs).all()):
                    what = (
                        f"a reward of {reward}"
                        if np.isfinite(obs).all()
                        else "NaN or infinity as observation"
                    )
                    raise ValueError(f"it gave {what}")
                if terminated or truncated:
                    break
        except contract.ContractError as error:
            raise CollectError(str(error)) from None
        except (Exception, SystemExit) as error:  # whatever an environment raises
            told = own_traceback(error)
            cause = last_line(told) if told else str(error)
            where = f"at step {step} of the episode that reset(seed={episode_seed}) began"
            raise CollectError(f"{spec.id} failed {where}: {cause}", told) from error
        returns.append(total)
        advance(1)
    contract.close(env)
    return tuple(returns)


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def new_run(config: GymConfig, path: Path | None, console: Console) -> GymSummary:
    """Trains from the beginning, in a new run directory.

    Raises:
        TrainError, RunDirectoryError: it cannot begin; nothing has been written then.
        CollectError: workers fail again and again.
    """
    training = Training(config, console)
    begin_with(config.run.init_from, "gym", training.take_weights, console)
    with new_directory(path, "gym") as directory:
        return _train(training, directory, console)


def resume_run(
    path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> GymSummary:
    """Goes on from a checkpoint, in its own run directory or in a new one: with the network, the optimiser, versions,
    the numbers of episodes, and the actions of those that ran, which are played again.

    Args and errors: as of ``fastrl.tasks.cage2.run.resume_run``.
    """

    def restore(file: Path, state: dict[str, Any]) -> Training:
        config = resumed_settings(GymConfig, file, state, changes, trust=trust)
        ActorCriticLearner.check_state(_algorithm_config(config), state["learner"])
        training = Training(config, console)
        training.restore(state)
        return training

    with going_on(path, new_path, "gym", restore, console) as (training, directory):
        return _train(training, directory, console)


def _train(training: Training, directory: RunDirectory, console: Console) -> GymSummary:
    """The loop, and what it came to."""
    config = training.config
    before, seconds_before = training.steps, training.seconds
    checkpoint, stopped_by = play(training, directory, console, Goal(config.run.total_steps, before))
    seconds = training.seconds - seconds_before
    summary = GymSummary(
        status="complete" if stopped_by is None else "interrupted",
        signal=None if stopped_by is None else stopped_by.name,
        run=str(directory.path),
        checkpoint=str(checkpoint),
        env=config.env.id,
        algorithm=config.run.algorithm,
        collector=training.collector_name,
        steps=training.steps,
        episodes=training.episodes,
        iterations=training.iteration,
        seconds=training.seconds,
        steps_per_second=(training.steps - before) / seconds if seconds else 0.0,
        mean_return=training.mean_return,
        device=training.device,
        parts=with_other(training.parts, training.seconds),
        workers=dict(training.report.seconds) if training.report.workers else {},
        worker_memory_mib=training.report.memory_mib,
        cold_start=training.report.cold_start,
        policy_lag=training.lag.mean,
        max_policy_lag=training.lag.highest,
        dropped=training.lag.dropped,
        failures=training.failures,
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


def _write(summary: GymSummary, directory: RunDirectory) -> None:
    write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())


def evaluate_run(
    path: Path,
    *,
    episodes: int,
    seed: int,
    env: str | None = None,
    trust: bool = False,
    advance: Callable[[int], object] = lambda episodes: None,
) -> tuple[float, ...]:
    """Returns of a run's newest policy, or of a checkpoint's, without exploration.

    Args:
        env: the id of its environment, which may then import code without `trust`.
        trust: the checkpoint may import code, as it says.
        advance: called after each episode, with 1.

    Raises:
        CheckpointError: there is none, or not one of a run of this kind.
        TrustError: the environment would import code.
        ConfigError: its environment is another one than ``env``.
        TrainError, CollectError: the environment cannot be built or played.
    """
    file, state = load_newest(path)
    try:
        named = {} if env is None else {"env.id": env}
        config = build(GymConfig, from_file(GymConfig, state["config"], str(file), trust=trust, named=named))
        if env not in (None, config.env.id):
            raise ConfigError(f"--env {env}: {file} is of a run on {config.env.id!r}")
        policy, takes = ActorCritic.from_state(state["policy"]), Actions.from_state(state["action_space"])
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise unusable(file, "holds no policy that this fastrl can use", error) from None
    spec = EnvSpec(config.env.id, parse_options(config.env.options))
    made = build_env(spec)
    num_steps = episode_steps(config.collect, made)
    obs_dim, drives = math.prod(made.observation_space.shape or ()), Actions(made.action_space)
    contract.close(made)
    is_box = policy.log_std is not None
    ours = policy.obs_dim, policy.num_actions, is_box, takes.state()
    if ours != (obs_dim, drives.size, drives.is_box, drives.state()):
        raise CheckpointError(
            f"{file}: its policy takes {policy.obs_dim} numbers for {takes.state()}, {spec.id} has {obs_dim} for"
            f" {drives.state()}"
        )
    return play_episodes(spec, policy, takes, episodes, seed, num_steps, advance)
