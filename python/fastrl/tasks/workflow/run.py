"""One run that searches CAGE Challenge 2 for the best workflow: an order of priority, and a policy that keeps to it."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastrl.algorithms.ppo import PPO, PPOConfig
from fastrl.envs.cage2.env import ACTIONS, action_indices
from fastrl.envs.cage2.workflow import WORKFLOWS, parse_workflow, workflow_name
from fastrl.tasks.cage2 import run as cage2
from fastrl.tasks.cage2.evaluate import RULESETS, protocol_steps
from fastrl.tasks.cage2.settings import GameConfig
from fastrl.tasks.summary import WorkflowSummary, peak_gpu_memory_mib, peak_memory_mib, with_other
from fastrl.tasks.workflow.report import report_of
from fastrl.tasks.workflow.scores import WorkflowEvaluation, score_by_protocol
from fastrl.tasks.workflow.search import make_search, outcome_from
from fastrl.tasks.workflow.settings import WorkflowConfig
from fastrl.tasks.workflow.training import Games, Outcome, WorkflowTrainer
from fastrl.training.checkpoint import save_checkpoint
from fastrl.training.gpu import GpuMeter
from fastrl.training.metrics import Number, WorkflowRow
from fastrl.training.policy import Policy
from fastrl.training.profiler import Profile
from fastrl.training.run_directory import RunDirectory, new_directory
from fastrl.training.session import Goal, check_games, choose_device, going_on, play, resumed_settings
from fastrl.utils.config import Values, to_tree
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.progress import Progress
from fastrl.utils.tables import show

# The checkpoint of the best workflow's policy, which no newer one pushes out.
BEST = "best.safetensors"

# Of the last measurement of the best policy's return and compliance.
_FINAL_EPISODES = 1000

# Updates between rows while a shared network learns all workflows.
_UPDATES = 10


@dataclasses.dataclass(frozen=True)
class Kept:
    """The policy of the best workflow, as it was when it did best.

    Attributes:
        outcome: by which it is judged.
        policy: a network over the game's observations, of `WorkflowTrainer.policy_state`.
    """

    outcome: Outcome
    policy: dict[str, Any]


class Training:
    """The parts of a run, and its loop: all workflows together, the search, plain PPO.

    Args:
        config: settings.

    Attributes:
        config: as given.
        trainer, search: what trains workflows, and what says which.
        together: episodes for which a shared network learns all workflows before the search.
        kept: the best policy so far; None while no workflow counts.
        plain: PPO without workflows; None before its turn.
        seconds: spent so far in the loop, earlier sessions included; ``parts`` says on what, and ``search_seconds``
            is without plain PPO.
        profile: where the time of this session goes.

    Raises:
        ConfigError: too few episodes for what is to be done with them.
    """

    def __init__(self, config: WorkflowConfig) -> None:
        self.config = config
        if config.run.torch_threads:
            torch.set_num_threads(config.run.torch_threads)
        self.device = choose_device(config.run.device)
        games = Games(**config.env.options(), num_threads=threads_of(config))
        self.trainer = WorkflowTrainer(
            config.inner,
            games,
            total_episodes=config.run.total_episodes,
            seed=config.run.seed,
            device=self.device,
        )
        self.together = _episodes_together(config)
        orders = WORKFLOWS if config.run.workflow is None else [parse_workflow(config.run.workflow)]
        self.search = make_search(
            config.search,
            orders,
            config.run.total_episodes - self.together,
            # What a shared network has learnt before need only be measured.
            least=config.inner.measured_episodes if self.together else self.trainer.least,
            learns=self.trainer.least,
            seed=config.run.seed,
        )
        self.kept: Kept | None = None
        self.plain: cage2.Training | None = None
        self.seconds = self.search_seconds = 0.0
        self.parts: dict[str, float] = {}
        self.profile = Profile(GpuMeter(self.device).use)
        self._clock = 0.0

    @property
    def episodes(self) -> int:
        """Played so far, those of plain PPO included."""
        plain = 0 if self.plain is None else self.plain.steps // self.config.env.episode_length
        return self.trainer.episodes + plain

    @property
    def steps(self) -> int:
        return self.episodes * self.config.env.episode_length

    @property
    def total_episodes(self) -> int:
        """Those of the search and, if it is wanted, of plain PPO."""
        return self.config.run.total_episodes * (2 if self.config.run.plain_ppo else 1)

    def show_between_rows(self, show: Callable[[int], object]) -> None:
        """Calls ``show`` with the episodes played so far after every update: an order may take as long as the run."""
        self.trainer.on_update = lambda: show(self.episodes)

    def rows(self) -> Iterator[WorkflowRow]:
        """Trains; a row after every training of an order. Between rows the state may be saved."""
        self._clock = time.perf_counter()
        for row in self._search_rows():
            self.search_seconds = self.seconds
            yield row
        if self.config.run.plain_ppo:
            yield from self._plain_rows()

    def _search_rows(self) -> Iterator[WorkflowRow]:
        games = self.config.inner.episodes_per_update
        while (left := self.together - self.trainer.episodes) > 0:
            episodes = min(left, _UPDATES * games)
            outcomes = self.trainer.train(WORKFLOWS, episodes)
            yield self._row("all workflows together", episodes, _mean_of(outcomes), self._take_parts())
        while (proposal := self.search.ask()) is not None:
            outcome = self.trainer.play(proposal.workflow, proposal.episodes, proposal.warm_start)
            self.search.tell(outcome)
            self._keep(outcome)
            name = workflow_name(proposal.workflow).replace(",", " > ")
            label = f"{name}, to the end" if proposal.final else name
            yield self._row(label, outcome.episodes, outcome, self._take_parts())

    def _plain_rows(self) -> Iterator[WorkflowRow]:
        if self.plain is None:
            self.plain = cage2.Training(plain_config(self.config))
        before = self.episodes
        for row in self.plain.rows():
            outcome = Outcome((), 0, row.mean_return, math.nan, math.nan, math.nan)
            yield self._row("PPO without workflows", self.episodes - before, outcome, row.parts, row.losses)
            before = self.episodes

    def _take_parts(self) -> dict[str, float]:
        """What the trainer's time went to since the last call."""
        parts = self.trainer.watch.seconds
        self.trainer.watch.reset()
        if "measuring" in parts:
            parts["evaluation"] = parts.pop("measuring")
        return parts

    def _row(
        self,
        label: str,
        played: int,
        outcome: Outcome,
        parts: Mapping[str, float],
        losses: Mapping[str, Number] | None = None,
    ) -> WorkflowRow:
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.seconds += passed
        for name, seconds in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds
        return WorkflowRow(
            steps=self.steps,
            episodes=self.episodes,
            played=played,
            label=label,
            mean_return=outcome.mean_return,
            return_stderr=outcome.return_stderr,
            compliance=outcome.compliance,
            compliance_stderr=outcome.compliance_stderr,
            search={} if losses is not None else self._progress(),
            losses=losses or {},
            seconds=self.seconds,
            episodes_per_second=played / passed,
            parts=parts,
            shares=self.profile.lap(passed, parts, played * self.config.env.episode_length, played).shares,
        )

    def _progress(self) -> dict[str, Number]:
        standings = self.search.standings()
        kept = self.kept
        return {
            "trainings": len(self.search.outcomes),
            "tried": len(standings),
            "counting": sum(standing.counts for standing in standings),
            "best_return": math.nan if kept is None else kept.outcome.mean_return,
            "best_compliance": math.nan if kept is None else kept.outcome.compliance,
            "best_workflow": -1 if kept is None else WORKFLOWS.index(kept.outcome.workflow),
        }

    def _keep(self, outcome: Outcome) -> None:
        """Keeps the policy of the best workflow when it does better than before."""
        best = self.search.best()
        if best is None:
            self.kept = None
            return
        kept = self.kept
        if kept is None or kept.outcome.workflow != best.workflow:
            self.kept = Kept(best.outcome, self.trainer.policy_state(best.workflow))
        elif outcome.workflow == best.workflow and outcome.mean_return >= kept.outcome.mean_return:
            self.kept = Kept(outcome, self.trainer.policy_state(outcome.workflow))

    def policy_state(self) -> dict[str, Any] | None:
        """All that `fastrl.training.policy.Policy` needs of the best workflow's policy; if none counts, of that
        which is kept
        to most; None before one was tried."""
        kept = self.kept
        if kept is None:
            closest = self.search.closest()
            if closest is None:
                return None
            kept = Kept(closest.outcome, self.trainer.policy_state(closest.workflow))
        return {
            "config": to_tree(self.config),
            "steps": self.trainer.episodes * self.config.env.episode_length,
            "policy": kept.policy,
            "actions": list(action_indices(self.config.env.actions)),
            "num_actions": len(ACTIONS),
            "workflow": workflow_name(kept.outcome.workflow),
        }

    def state(self) -> dict[str, Any]:
        """All that `restore` and `Policy` need, for a checkpoint."""
        kept = self.kept
        return {
            "kind": "workflow",
            "config": to_tree(self.config),
            "search": self.search.state_dict(),
            "trainer": self.trainer.state(),
            "kept": None if kept is None else {"outcome": vars(kept.outcome), "policy": kept.policy},
            "plain": None if self.plain is None else self.plain.state(),
            "seconds": self.seconds,
            "search_seconds": self.search_seconds,
            "parts": self.parts,
            **(self.policy_state() or {"steps": self.steps}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the run that saved the state stood."""
        self.search.load_state_dict(state["search"])
        self.trainer.restore(state["trainer"])
        kept = state["kept"]
        self.kept = None if kept is None else Kept(outcome_from(kept["outcome"]), kept["policy"])
        if state["plain"] is not None:
            self.plain = cage2.Training(plain_config(self.config))
            self.plain.restore(state["plain"])
        self.seconds = state["seconds"]
        self.search_seconds = state["search_seconds"]
        self.parts = dict(state["parts"])


def _episodes_together(config: WorkflowConfig) -> int:
    """How many a shared network spends on all workflows together: whole updates."""
    if config.inner.network == "separate" or config.run.workflow is not None:
        return 0
    games = config.inner.episodes_per_update
    return int(config.inner.pretrain_share * config.run.total_episodes) // games * games


def _mean_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Of all orders that had a turn."""
    told = [outcome for outcome in outcomes if not math.isnan(outcome.mean_return)]
    returns, compliance = [o.mean_return for o in told], [o.compliance for o in told]
    return Outcome((), 0, statistics.fmean(returns), math.nan, statistics.fmean(compliance), math.nan)


def threads_of(config: WorkflowConfig) -> int:
    """Of the simulators; 0: one a core."""
    return 0 if config.env.n_workers == "auto" else config.env.n_workers


def plain_config(config: WorkflowConfig) -> cage2.TrainConfig:
    """The settings of PPO on the same games for as many episodes: its own defaults, as of ``fastrl train cage2``."""
    run, env = config.run, config.env
    return cage2.TrainConfig(
        run=cage2.RunConfig(
            seed=run.seed,
            device=run.device,
            total_steps=run.total_episodes * env.episode_length,
            torch_threads=run.torch_threads,
        ),
        env=cage2.EnvConfig(
            # Rollouts of whole episodes, of as many as fit the budget.
            num_envs=min(cage2.EnvConfig().num_envs, run.total_episodes),
            num_threads=threads_of(config),
            **{field.name: getattr(env, field.name) for field in dataclasses.fields(GameConfig)},
        ),
        ppo=PPOConfig(num_steps=env.episode_length),
    )


def new_run(config: WorkflowConfig, path: Path | None, console: Console) -> WorkflowSummary:
    """Searches from the beginning, in a new run directory.

    Raises:
        TrainError, RunDirectoryError, ConfigError: it cannot begin; nothing has been written then.
    """
    training = Training(config)
    with new_directory(path, "cage2-workflow") as directory:
        return _train(training, directory, console)


def resume_run(
    path: Path, changes: Values, new_path: Path | None, console: Console, *, trust: bool = False
) -> WorkflowSummary:
    """Goes on exactly where a checkpoint stands, in its own run directory or in a new one.

    Args and errors: as of ``fastrl.tasks.cage2.run.resume_run``.
    """

    def restore(file: Path, state: dict[str, Any]) -> Training:
        config = resumed_settings(WorkflowConfig, file, state, changes, trust=trust)
        PPO.check_state(config.inner, state["trainer"]["ppo"])
        check_games(bytes(len(state["trainer"]["numbers"])), config.inner.episodes_per_update)
        training = Training(config)
        training.restore(state)
        return training

    with going_on(path, new_path, "cage2-workflow", restore, console) as (training, directory):
        return _train(training, directory, console)


def _train(training: Training, directory: RunDirectory, console: Console) -> WorkflowSummary:
    """The loop, and what it came to."""
    goal = Goal(training.total_episodes, training.episodes, "episodes")
    if training.config.run.plain_ppo:
        show(
            console,
            f"{training.config.run.total_episodes:,} episodes for workflows, then as many for PPO without workflows,"
            " to compare with (--plain-ppo false: none)",
        )
    checkpoint, stopped_by = play(training, directory, console, goal, show_between=training.show_between_rows)
    policy = training.policy_state()
    best = directory.checkpoints / BEST
    if policy is not None:
        save_checkpoint(best, policy)
    report = report_of(training.search, training.together)
    final: Outcome | None = None
    plain: Outcome | None = None
    evaluations: tuple[WorkflowEvaluation, ...] = ()
    if stopped_by is None and policy is not None and training.config.run.eval_episodes:
        console.print("evaluating ...", highlight=False)
        final = _final_outcome(training, policy["workflow"], policy["policy"])
        if training.plain is not None:
            plain = _final_outcome(training, policy["workflow"], training.plain.ppo.policy_state())
        evaluations = _scores(training, policy, console)
    summary = WorkflowSummary(
        status="complete" if stopped_by is None else "interrupted",
        signal=None if stopped_by is None else stopped_by.name,
        run=str(directory.path),
        checkpoint=str(checkpoint),
        best_checkpoint=None if policy is None else str(best),
        picture=str(report.write(directory.path, plain)) if report.steps else None,
        steps=training.steps,
        episodes=training.episodes,
        seconds=training.seconds,
        search_seconds=training.search_seconds,
        device=training.device,
        parts=with_other(training.parts, training.seconds),
        peak_memory_mib=peak_memory_mib(),
        peak_gpu_memory_mib=peak_gpu_memory_mib(training.device),
        report=report,
        final=final,
        plain=plain,
        evaluations=evaluations,
    )
    write_atomically(directory.summary, to_json(summary.to_tree(), indent=2).encode())
    summary.print(console)
    return summary


def _final_outcome(training: Training, workflow: str, policy: dict[str, Any]) -> Outcome:
    """Measures a policy without exploration, in other games than those that it was chosen by."""
    seed = training.config.run.seed + 1
    return training.trainer.evaluate(parse_workflow(workflow), policy, _FINAL_EPISODES, seed=seed)


def _scores(training: Training, policy: dict[str, Any], console: Console) -> tuple[WorkflowEvaluation, ...]:
    """By the challenge's protocol on both rulesets, beside plain PPO's."""
    contenders = {"workflow": policy}
    if training.plain is not None:
        contenders["plain PPO"] = training.plain.state()
    episodes = training.config.run.eval_episodes
    total = protocol_steps(episodes) * len(RULESETS) * len(contenders)
    with Progress("evaluating", total, console) as progress:
        return tuple(
            score_by_protocol(
                Policy(state),
                parse_workflow(policy["workflow"]),
                name,
                ruleset=ruleset,
                episodes=episodes,
                num_threads=threads_of(training.config),
                advance=progress.advance,
            )
            for ruleset in RULESETS
            for name, state in contenders.items()
        )
