"""The outer loop of a search for the best workflow, which trains many times, and then PPO without workflows."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from fastrl.envs.cage2.workflow import WORKFLOWS, parse_workflow, workflow_name
from fastrl.runs.checkpoint import save_checkpoint
from fastrl.runs.directory import RunDirectory
from fastrl.runs.metrics import brief, duration
from fastrl.runs.row import Number, Row
from fastrl.tasks.workflow.figure import save_picture
from fastrl.tasks.workflow.learner import ENV_ID, WorkflowLearner
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.report import report_of
from fastrl.tasks.workflow.scores import WorkflowScores
from fastrl.tasks.workflow.strategies import make_search
from fastrl.training.evaluation import BEST, Evaluation
from fastrl.training.trainer import Training
from fastrl.utils.interrupts import Interrupted

# Updates between rows while a shared network learns all workflows.
_UPDATES_PER_ROW = 10


@dataclass(frozen=True)
class BestPolicy:
    """Policy of the best workflow, from after its best training.

    Attributes:
        outcome: of that training.
        policy: a network over the game's observations, of `WorkflowLearner.policy_state`.
    """

    outcome: Outcome
    policy: dict[str, Any]


class SearchTrainer(Training):
    """Trains all workflows together, then those that a search proposes, then PPO without workflows.

    Args:
        settings: of the run.
        make_plain: makes the trainer of PPO without workflows.
        options: of `Training`.

    Attributes:
        learner, search: train workflows, and propose which.
        joint_episodes: in which a shared network learns all workflows together before the search.
        best: the best policy so far; None while no workflow counts.
        plain: the trainer of PPO without workflows; None before it starts.
        search_seconds: of `seconds` those before PPO without workflows.

    Raises:
        ConfigError: too few episodes for the search.
    """

    algorithm_name = "ppo"
    collector = "native"
    env_id = ENV_ID
    finishes_updates = True

    def __init__(self, settings: Any, *, make_plain: Callable[[], Training], **options: Any) -> None:
        super().__init__(settings.run, **options)
        self.settings = settings
        self._make_plain = make_plain
        self._total_episodes = self.run.total_episodes or 0
        inner = settings.inner
        self.learner = WorkflowLearner(
            inner,
            settings.env,
            total_episodes=self._total_episodes,
            seed=self.run.seed,
            device=self.device,
        )
        self.learner.on_update = lambda: self.on_progress(self.done)
        self.learner.should_stop = lambda: self.should_stop()
        given = settings.search.workflow
        together = inner.networks == "shared" and given is None
        per_update = inner.episodes_per_update
        share = inner.pretrain_share if together else 0.0
        self.joint_episodes = int(share * self._total_episodes) // per_update * per_update
        self.search = make_search(
            settings.search,
            WORKFLOWS if given is None else [parse_workflow(given)],
            self._total_episodes - self.joint_episodes,
            # After the joint training a trial of a shared network is a measurement.
            min_episodes=inner.measured_episodes if self.joint_episodes else self.learner.min_episodes,
            min_learning_episodes=self.learner.min_episodes,
            seed=self.run.seed,
        )
        self.best: BestPolicy | None = None
        self.plain: Training | None = None
        self.search_seconds = 0.0
        self._clock = 0.0

    @property
    def steps(self) -> int:
        plain = 0 if self.plain is None else self.plain.steps
        return self.learner.episodes * self.learner.games.episode_length + plain

    @property
    def episodes(self) -> int:
        return self.learner.episodes + (0 if self.plain is None else self.plain.episodes)

    @property
    def iteration(self) -> int:
        return self.learner.updates + (0 if self.plain is None else self.plain.iteration)

    @property
    def goal(self) -> tuple[int, str]:
        return self._total_episodes * (2 if self.settings.search.plain_ppo else 1), "episodes"

    def rows(self) -> Iterator[Row]:
        """Trains; a row after every training of an order, and those of PPO without workflows."""
        self._clock = time.perf_counter()
        self.notify(lambda callback: callback.on_start(self.view))
        for row in itertools.chain(self._search_rows(), self._plain_rows()):
            self.view.numbers = row.record()
            self.notify(lambda callback: callback.on_update(self.view))
            yield row
            if self.stopped_by is not None:
                return

    def _search_rows(self) -> Iterator[Row]:
        per_update = self.settings.inner.episodes_per_update
        while (left := self.joint_episodes - self.learner.episodes) > 0:
            before = self.learner.episodes
            outcomes = self.learner.train(WORKFLOWS, min(left, _UPDATES_PER_ROW * per_update))
            yield self._row("all workflows together", self.learner.episodes - before, _mean_of(outcomes))
        while (proposal := self.search.ask()) is not None:
            before = self.learner.episodes
            outcome = self.learner.train_one(proposal.workflow, proposal.episodes, proposal.warm_start)
            if outcome is None:
                self._time_numbers(self.learner.episodes - before)
                return
            self.search.tell(outcome)
            self._update_best(outcome)
            name = workflow_name(proposal.workflow).replace(",", " > ")
            yield self._row(f"{name}, to the end" if proposal.final else name, outcome.episodes, outcome)

    def _time_numbers(self, episodes: int) -> dict[str, Number]:
        """See `time_numbers`, of so many episodes since the last call."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        steps = episodes * self.learner.games.episode_length
        numbers = self.time_numbers(
            passed, self.learner.watch.seconds, steps, episodes, self.learner.report()
        )
        self.search_seconds = self.seconds
        self.learner.watch.reset()
        return numbers

    def _row(self, label: str, episodes: int, outcome: Outcome) -> Row:
        time_numbers = self._time_numbers(episodes)
        self.mean_return = outcome.mean_return
        search = self._search_numbers()
        numbers: dict[str, Number] = {
            "rollout/ep_rew_mean": outcome.mean_return,
            "rollout/ep_rew_stderr": outcome.return_stderr,
            "rollout/compliance": outcome.compliance,
            "rollout/compliance_stderr": outcome.compliance_stderr,
            "rollout/episodes": episodes,
            **{f"search/{name}": number for name, number in search.items()},
            **time_numbers,
        }
        highlights = [
            f"return {brief(outcome.mean_return)}",
            f"compliance {brief(outcome.compliance)}",
            f"best {brief(search['best_return'])}",
            f"{search['counting']} of {search['tried']} orders count",
            label,
        ]
        return Row(self.steps, self.done, numbers, highlights)

    def _search_numbers(self) -> dict[str, Number]:
        standings, best = self.search.standings(), self.best
        return {
            "trainings": len(self.search.outcomes),
            "tried": len(standings),
            "counting": sum(standing.counts for standing in standings),
            "best_return": math.nan if best is None else best.outcome.mean_return,
            "best_compliance": math.nan if best is None else best.outcome.compliance,
            "best_workflow": -1 if best is None else WORKFLOWS.index(best.outcome.workflow),
        }

    def _plain_rows(self) -> Iterator[Row]:
        if not self.settings.search.plain_ppo or self.should_stop():
            return
        plain = self._started_plain()
        self.profile.change_collector()
        plain.profile = self.profile
        plain.on_progress = lambda done: self.on_progress(self.done)
        plain.should_stop = lambda: self.should_stop()
        try:
            for row in plain.rows():
                self.seconds, self.parts = plain.seconds, plain.parts
                # Numbers of PPO without workflows have a prefix; those of the whole run keep their names.
                numbers = {
                    name if name.startswith("time/") else f"plain_{name}": number
                    for name, number in row.numbers.items()
                }
                numbers |= {"time/episodes": self.episodes, "time/iterations": self.iteration}
                yield Row(self.steps, self.done, numbers, [*row.highlights, "PPO without workflows"])
        except Interrupted:
            # Before its first update: there is nothing of it to keep.
            self.plain = None

    def _started_plain(self) -> Training:
        if self.plain is None:
            self.plain = self._make_plain()
            # Its account of time continues that of the search.
            self.plain.seconds, self.plain.parts = self.seconds, self.parts
        return self.plain

    def _update_best(self, outcome: Outcome) -> None:
        """Keeps the policy of the best workflow after a training with this outcome, if it is better than before."""
        standing = self.search.best()
        if standing is None:
            self.best = None
            return
        best = self.best
        if best is None or best.outcome.workflow != standing.workflow:
            self.best = BestPolicy(standing.outcome, self.learner.policy_state(standing.workflow))
        elif outcome.workflow == standing.workflow and outcome.mean_return >= best.outcome.mean_return:
            self.best = BestPolicy(outcome, self.learner.policy_state(outcome.workflow))

    def policy_checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint that inference needs: the best workflow's policy, or if none counts that of the most
        compliant one, and PPO without workflows to compare with. Before a workflow was tried there is no policy."""
        best = self.best
        if best is None and (standing := self.search.most_compliant()) is not None:
            best = BestPolicy(standing.outcome, self.learner.policy_state(standing.workflow))
        own: dict[str, Any] = {}
        if best is not None:
            own = {"policy": best.policy, "workflow": workflow_name(best.outcome.workflow)}
        return {
            **self.header,
            "steps": self.steps,
            "plain": None if self.plain is None else self.plain.policy_checkpoint(),
            **own,
        }

    def state_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            **super().state_dict(),
            "search_seconds": self.search_seconds,
            "search": self.search.state_dict(),
            "learner": self.learner.state_dict(),
            "best": None if best is None else {"outcome": best.outcome.to_tree(), "policy": best.policy},
            "plain": None if self.plain is None else self.plain.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.search_seconds = state["search_seconds"]
        self.search.load_state_dict(state["search"])
        self.learner.load_state_dict(state["learner"])
        best = state["best"]
        self.best = None if best is None else BestPolicy(Outcome.from_tree(best["outcome"]), best["policy"])
        if state["plain"] is not None:
            self._started_plain().load_state_dict(state["plain"])

    def write_report(self, directory: RunDirectory) -> None:
        """Writes the report, its picture and the best policy."""
        report = report_of(self.search, self.joint_episodes)
        if not report.steps:
            return
        evaluation = self.callback(Evaluation)
        scores = None if evaluation is None else evaluation.scores
        report.write(directory.path)
        plain = scores.plain if isinstance(scores, WorkflowScores) else None
        save_picture(report, directory.path / "workflows.png", plain)
        directory.checkpoints.mkdir(exist_ok=True)
        save_checkpoint(directory.checkpoints / BEST, self.policy_checkpoint())

    def summary(self) -> dict[str, Any]:
        report = report_of(self.search, self.joint_episodes).to_tree()
        # Steps are written to files of their own.
        del report["steps"]
        return {"search_seconds": self.search_seconds, **report}

    def lines(self) -> list[RenderableType]:
        report = report_of(self.search, self.joint_episodes)
        if not report.steps:
            return []
        return [
            "",
            report.table(),
            "",
            report.verdict(),
            f"the search took {duration(self.search_seconds)}; picture: workflows.png, best policy: checkpoints/{BEST}",
        ]


def _mean_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean outcome of the orders that had episodes."""
    had = [outcome for outcome in outcomes if not math.isnan(outcome.mean_return)]
    returns, compliance = [each.mean_return for each in had], [each.compliance for each in had]
    return Outcome((), 0, statistics.fmean(returns), math.nan, statistics.fmean(compliance), math.nan)
