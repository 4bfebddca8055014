"""One training run: builds the parts, loops, evaluates, saves."""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console

from fastrl.algorithms.ppo import PPO, PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.fragment_stream import FragmentStream
from fastrl.collectors.protocol import Collector, Plan, Report
from fastrl.envs.cage2.env import ACTIONS, OBS_BITS, RED_AGENTS, SCAN_HOSTS, Cage2VectorEnv, action_indices
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.fragment import Fragment
from fastrl.tasks.cage2.evaluate import Evaluation, evaluate, of_policy, protocol_steps
from fastrl.tasks.cage2.settings import GameConfig
from fastrl.tasks.summary import Summary, about_workers, peak_gpu_memory_mib, peak_memory_mib, with_other
from fastrl.training.collecting import (
    CollectConfig,
    FailureReporter,
    Publisher,
    check_collected,
    collector_state,
    load_collected,
    make_plan,
    open_collector,
    print_diverged,
    spent,
)
from fastrl.training.gpu import GpuMeter
from fastrl.training.metrics import TrainRow
from fastrl.training.policy import Policy
from fastrl.training.profiler import Profile
from fastrl.training.run_directory import RunDirectory, new_directory
from fastrl.training.session import (
    Goal,
    TrainError,
    begin_with,
    check_games,
    choose_device,
    going_on,
    play,
    resumed_settings,
)
from fastrl.utils.config import InitFrom, Preset, Setting, Values, section, to_tree
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.progress import Progress
from fastrl.utils.timer import Stopwatch


@section
class RunConfig:
    """How long, where and from which random numbers."""

    seed: Annotated[
        int,
        Field(ge=0, lt=2**63, description="fixes everything random in the run"),
        Setting(option="--seed", common=True),
    ] = 0
    init_from: InitFrom = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="where the network lives; auto: cuda if there is one, else cpu"),
        Setting(resumable=True, option="--device", common=True),
    ] = "auto"
    total_steps: Annotated[
        int,
        Field(ge=1, description="environment steps in all; the last update may go beyond"),
        Setting(resumable=True, option="--total-steps", common=True),
    ] = 20_000_000
    torch_threads: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="threads of PyTorch; 0: chosen by PyTorch, for large networks on idle cores",
        ),
        Setting(resumable=True),
    ] = 1
    checkpoint_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between checkpoints; 0: one after every update"),
        Setting(resumable=True),
    ] = 30.0
    keep_checkpoints: Annotated[
        int, Field(ge=1, description="how many of the newest checkpoints are kept"), Setting(resumable=True)
    ] = 3
    eval_episodes: Annotated[
        int,
        Field(
            ge=0,
            description="episodes of the final evaluation, against each red agent over each horizon; 0: no evaluation",
        ),
        Setting(resumable=True),
    ] = 200


@section
class EnvConfig(GameConfig):
    """CAGE Challenge 2, see fastrl.envs.Cage2VectorEnv."""

    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="games that are played at a time"),
        Setting(option="--num-envs", common=True),
    ] = 256
    num_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of the simulator; 0: one a core"),
        Setting(resumable=True),
    ] = 0


@section
class TrainConfig:
    """All of a run's settings."""

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    collect: CollectConfig = CollectConfig()
    ppo: PPOConfig = PPOConfig()


PRESETS: dict[str, Preset] = {
    "smoke": Preset(
        "a few seconds, to see that everything works; learns little",
        {
            "run": {"total_steps": 100_000, "eval_episodes": 20},
            "env": {"num_envs": 64},
            "ppo": {"minibatch_size": 1600, "hidden": [32, 32]},
        },
    ),
    "challenge": Preset(
        "as the challenge played it: 52 observation bits, all 145 actions, leaderboard's ruleset",
        {"env": {"ruleset": "leaderboard", "scan_memory": False, "actions": "none"}},
    ),
}


# Fills the rollout with fragments, and gives these and the collector's report.
_Collect = Callable[[Stopwatch], tuple[list[Fragment], Report]]


class Training:
    """The parts of a run, and its loop.

    Args:
        config: settings.
        console: where it is told how experience is collected, and what fails; None: nowhere.

    Attributes:
        config: as given.
        steps, iteration, episodes: done so far.
        mean_return: of the last iteration in which episodes ended; NaN if none did so far.
        seconds: spent so far in the loop, earlier sessions included; ``parts`` says on what.
        profile: where the time of this session goes.
    """

    def __init__(self, config: TrainConfig, console: Console | None = None) -> None:
        self.config = config
        self._console = console or Console(quiet=True)
        if config.run.torch_threads:
            torch.set_num_threads(config.run.torch_threads)
        self.device = choose_device(config.run.device)
        _check_memory(config)
        self.env = Cage2VectorEnv(1, **config.env.options(), num_threads=1)
        self.ppo = PPO(
            config.ppo,
            Problem(
                self.env.single_observation_space,
                self.env.single_action_space,
                config.env.num_envs,
                total_steps=config.run.total_steps,
                seed=config.run.seed,
                device=self.device,
            ),
        )
        self.iteration = 0
        self.episodes = 0
        self.mean_return = math.nan
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self.profile = Profile(GpuMeter(self.device).use)
        self._collector: Collector | None = None
        self._collected: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        return self.ppo.steps

    def rows(self) -> Iterator[TrainRow]:
        """Trains; a row after every iteration. Between rows the state may be saved."""
        if self.steps >= self.config.run.total_steps:
            return
        settings = self.config.collect
        if settings.method == "native" and settings.n_workers == "auto" and self.config.env.num_threads:
            settings = dataclasses.replace(settings, n_workers=self.config.env.num_threads)
        with open_collector(settings, self._plan(), self._console) as collector:
            if self._collected is not None:
                load_collected(collector, self._collected, self._console)
            self._collector = collector
            try:
                yield from self._loop(self._from(collector))
            finally:
                self._collected, self._collector = collector_state(collector.state_dict()), None
                report = collector.report()
                if report.workers:
                    line = about_workers(report.memory_mib, report.cold_start, report.seconds)
                    self._console.print(line, highlight=False, soft_wrap=True)

    def _plan(self) -> Plan:
        config = self.config.env
        return make_plan(
            self.config.collect,
            EnvSpec("fastrl/Cage2-v0", config.options()),
            self.ppo.actor_spec(),
            obs_space=self.env.single_observation_space,
            action_space=self.env.single_action_space,
            num_envs=config.num_envs,
            num_steps=self.config.ppo.num_steps,
            episode_steps=config.episode_length,
            seed=self.config.run.seed,
            action_masks=self.config.ppo.action_masks,
            episode_info=("red_agent",),
        )

    def _from(self, collector: Collector) -> _Collect:
        """Fills the rollout with what the collector collects."""
        intake, publisher = FragmentStream(collector), Publisher(self.ppo, collector)
        before = Report()
        teller = FailureReporter(self._console)

        def collect(watch: Stopwatch) -> tuple[list[Fragment], Report]:
            nonlocal before
            with watch("publishing"):
                publisher.publish()
            fragments = intake.next(watch)
            self.ppo.load_rollout(fragments, watch)
            report = collector.report()
            teller.tell(report.failures)
            print_diverged(collector.plan, before, report, self._console)
            before = report
            return fragments, report

        return collect

    def _loop(self, collect: _Collect) -> Iterator[TrainRow]:
        watch = Stopwatch()
        clock = time.perf_counter()
        before = Report()
        while self.steps < self.config.run.total_steps:
            watch.reset()
            fragments, report = collect(watch)
            returns = np.concatenate([fragment.returns for fragment in fragments])
            lengths = np.concatenate([fragment.lengths for fragment in fragments])
            red_agents = np.concatenate([fragment.episode_info["red_agent"] for fragment in fragments])
            steps = sum(len(fragment) for fragment in fragments)
            losses = self.ppo.learn(watch)
            now = time.perf_counter()
            passed, clock = now - clock, now
            self.iteration += 1
            self.episodes += len(returns)
            if len(returns):
                self.mean_return = _mean(returns)
            self.seconds += passed
            parts, _ = spent(watch.seconds, before, report)
            before = report
            for name, seconds in parts.items():
                self.parts[name] = self.parts.get(name, 0.0) + seconds
            yield TrainRow(
                steps=self.steps,
                iteration=self.iteration,
                episodes=self.episodes,
                mean_return=_mean(returns),
                mean_length=_mean(lengths),
                returns={
                    RED_AGENTS[int(i)]: float(returns[red_agents == i].mean()) for i in np.unique(red_agents)
                },
                losses=dataclasses.asdict(losses),
                seconds=self.seconds,
                steps_per_second=steps / passed,
                parts=parts,
                shares=self.profile.lap(passed, watch.seconds, steps, len(returns), report),
            )

    def state(self) -> dict[str, Any]:
        """All that `restore` and `Policy` need, for a checkpoint."""
        collected = (
            self._collected if self._collector is None else collector_state(self._collector.state_dict())
        )
        return {
            "config": to_tree(self.config),
            "steps": self.steps,
            "iteration": self.iteration,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "seconds": self.seconds,
            "parts": self.parts,
            "collector": collected,
            "ppo": self.ppo.state_dict(),
            "policy": self.ppo.policy_state(),
            "actions": list(self.env.actions),
            "num_actions": len(ACTIONS),
        }

    def take_weights(self, state: dict[str, Any]) -> None:
        """Begins with the weights in another run's state.

        Raises:
            ValueError: they are of another network, or of other actions.
        """
        if list(self.env.actions) != state["actions"]:
            raise ValueError("it chooses among other actions: env.actions should be the same")
        self.ppo.load_policy(state["ppo"])

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the run that saved the state stood."""
        self.ppo.load_state_dict(state["ppo"])
        self._collected = state["collector"]
        if self._collected is not None:
            check_collected(self._plan(), self._collected)
        self.iteration = state["iteration"]
        self.episodes = state["episodes"]
        self.mean_return = state["mean_return"]
        self.seconds = state["seconds"]
        self.parts = dict(state["parts"])


def _check_memory(config: TrainConfig) -> None:
    """Refuses what can only end in a process that the system kills for its memory."""
    obs_dim = OBS_BITS + (len(SCAN_HOSTS) if config.env.scan_memory else 0)
    num_actions = len(action_indices(config.env.actions))
    # Of each step an observation, perhaps a mask, and ten numbers.
    row = 4 * obs_dim + (num_actions if config.ppo.action_masks else 0) + 40
    sizes = [obs_dim, *config.ppo.hidden, num_actions]
    # Actor and critic; weights, gradients and Adam's two moments, of 4 bytes each.
    network = 2 * 16 * sum(a * b for a, b in itertools.pairwise(sizes))
    needed = row * config.env.num_envs * config.ppo.num_steps + network
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise TrainError(
            f"this takes at least {needed / 1e9:,.0f} GB of memory, the machine has {there / 1e9:,.0f}:"
            " choose a smaller --num-envs, --ppo.num_steps or --ppo.hidden"
        )


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def new_run(config: TrainConfig, path: Path | None, console: Console) -> Summary:
    """Trains from the beginning, in a new run directory.

    Raises:
        TrainError, RunDirectoryError: it cannot begin; nothing has been written then.
    """
    training = Training(config, console)
    begin_with(config.run.init_from, "cage2", training.take_weights, console)
    with new_directory(path, "cage2") as directory:
        return _train(training, directory, console)


def resume_run(
    path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> Summary:
    """Goes on exactly where a checkpoint stands, in its own run directory or in a new one.

    Args:
        path: a run directory, of which the newest checkpoint is meant, or a checkpoint file.
        changes: other values for settings, of those that are resumable.
        new_path: a run directory for what follows; needed only for a checkpoint that lies in none.
        trust: the checkpoint may import code, connect to a Ray cluster and write files, as it says.

    Raises:
        CheckpointError, TrainError, TrustError, RunDirectoryError, ConfigError: it cannot go on; nothing has changed.
    """

    def restore(file: Path, state: dict[str, Any]) -> Training:
        config = resumed_settings(TrainConfig, file, state, changes, trust=trust)
        PPO.check_state(config.ppo, state["ppo"])
        if state["collector"] is not None and not config.collect.episodes_per_update:
            check_games(bytes(len(state["collector"]["lanes"])), config.env.num_envs)
        training = Training(config, console)
        training.restore(state)
        return training

    with going_on(path, new_path, "cage2", restore, console) as (training, directory):
        return _train(training, directory, console)


def _train(training: Training, directory: RunDirectory, console: Console) -> Summary:
    """The loop, and what it came to."""
    goal = Goal(training.config.run.total_steps, training.steps)
    checkpoint, stopped_by = play(training, directory, console, goal)
    summary = Summary(
        status="complete" if stopped_by is None else "interrupted",
        signal=None if stopped_by is None else stopped_by.name,
        run=str(directory.path),
        checkpoint=str(checkpoint),
        steps=training.steps,
        episodes=training.episodes,
        iterations=training.iteration,
        seconds=training.seconds,
        mean_return=training.mean_return,
        device=training.device,
        parts=with_other(training.parts, training.seconds),
        peak_memory_mib=peak_memory_mib(),
        peak_gpu_memory_mib=peak_gpu_memory_mib(training.device),
        evaluation=_scores(training, directory, console) if stopped_by is None else None,
    )
    write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())
    summary.print(console)
    return summary


def _scores(training: Training, directory: RunDirectory, console: Console) -> Evaluation | None:
    config = training.config
    if not config.run.eval_episodes:
        return None
    console.print("evaluating ...", highlight=False)
    with Progress("evaluating", protocol_steps(config.run.eval_episodes), console) as progress:
        return evaluate(
            of_policy(Policy(training.state()), directory.path.name),
            ruleset=config.env.ruleset,
            episodes=config.run.eval_episodes,
            num_threads=config.env.num_threads,
            advance=progress.advance,
        )
