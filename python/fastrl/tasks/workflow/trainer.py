"""The trainer of a search for the best workflow, and then of PPO without workflows to compare with."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from fastrl.envs.cage2.workflow import workflow_name
from fastrl.runs.checkpoint import BEST, save_checkpoint
from fastrl.runs.directory import RunDirectory
from fastrl.runs.metrics import duration
from fastrl.runs.row import Row
from fastrl.tasks.workflow.figure import save_picture
from fastrl.tasks.workflow.learner import WorkflowPPO
from fastrl.tasks.workflow.report import Report, report_of
from fastrl.tasks.workflow.scores import WorkflowScores
from fastrl.tasks.workflow.source import WorkflowSource
from fastrl.training.evaluation import Evaluation
from fastrl.training.trainer import Trainer
from fastrl.utils.interrupts import Interrupted


class SearchTrainer(Trainer):
    """Trains all workflows together, then those that a search proposes, then PPO without workflows.

    Args:
        settings: of the run.
        algorithm, source: of the search.
        make_plain: makes the trainer of PPO without workflows.
        options: of `Trainer`.

    Attributes:
        plain: the trainer of PPO without workflows; None before it starts.
        search_seconds: of `seconds` those before PPO without workflows.
    """

    algorithm: WorkflowPPO
    source: WorkflowSource

    def __init__(
        self,
        settings: Any,
        algorithm: WorkflowPPO,
        source: WorkflowSource,
        *,
        make_plain: Callable[[], Trainer],
        **options: Any,
    ) -> None:
        super().__init__(settings.run, algorithm, source, **options)
        self._compares: bool = settings.search.plain_ppo
        self._make_plain = make_plain
        self.plain: Trainer | None = None
        self.search_seconds = 0.0

    @property
    def steps(self) -> int:
        return self.source.steps + (0 if self.plain is None else self.plain.steps)

    @property
    def goal(self) -> tuple[int, str]:
        total, unit = super().goal
        return total * (2 if self._compares else 1), unit

    def ends_stage(self) -> bool:
        return self.plain is None and self.source.is_over

    def rows(self) -> Iterator[Row]:
        """Trains; a row after each update and each measurement, and those of PPO without workflows."""
        self.notify(lambda callback: callback.on_start(self.view))
        if not self.source.is_over:
            yield from self._rows_of_stage()
        if not self.is_over():
            yield from self._plain_rows()

    def _row(self, *arguments: Any) -> Row:
        row = super()._row(*arguments)
        self.search_seconds = self.seconds
        return row

    def _plain_rows(self) -> Iterator[Row]:
        plain = self._started_plain()
        updates, episodes = self.iteration - plain.iteration, self.episodes - plain.episodes
        self.profile.change_collector()
        plain.profile = self.profile
        plain.should_stop = lambda: self.should_stop()
        try:
            for row in plain.rows():
                self.iteration, self.episodes = updates + plain.iteration, episodes + plain.episodes
                self.seconds, self.activities = plain.seconds, plain.activities
                # Metrics of PPO without workflows have a prefix; those of the whole run keep their names.
                metrics = {
                    name if name.startswith("time/") else f"plain_{name}": number
                    for name, number in row.metrics.items()
                }
                metrics |= {"time/episodes": self.episodes, "time/iterations": self.iteration}
                shown = Row(self.steps, self.done, metrics, row.ended)
                assert row.ended is not None, "rows of trainers have their episodes"
                self.view.row, self.view.ended = shown.record(), row.ended
                self.notify(lambda callback: callback.on_update(self.view))
                yield shown
                if self.stopped_by is not None:
                    return
        except Interrupted:
            # Before its first update: there is nothing of it to keep.
            self.plain = None

    def _started_plain(self) -> Trainer:
        if self.plain is None:
            self.plain = self._make_plain()
            # Its account of time continues that of the search.
            self.plain.seconds, self.plain.activities = self.seconds, self.activities
        return self.plain

    def policy_checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint that inference needs: the best workflow's policy, or if none counts that of the most
        compliant one, and PPO without workflows to compare with. Before a workflow was tried there is no policy."""
        chosen = self.source.chosen()
        entries: dict[str, Any] = {}
        if chosen is not None:
            entries = {"policy": chosen.policy, "workflow": workflow_name(chosen.outcome.workflow)}
        return {
            **self.header,
            "steps": self.steps,
            "plain": None if self.plain is None else self.plain.policy_checkpoint(),
            **entries,
        }

    def state_dict(self) -> dict[str, Any]:
        plain = None if self.plain is None else self.plain.state_dict()
        return {**super().state_dict(), "search_seconds": self.search_seconds, "plain": plain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.search_seconds = state["search_seconds"]
        if state["plain"] is not None:
            self._started_plain().load_state_dict(state["plain"])

    def _report(self) -> Report:
        return report_of(self.source.search, self.source.joint_episodes)

    def write_report(self, directory: RunDirectory) -> None:
        """Writes the report, its picture and the best policy."""
        super().write_report(directory)
        report = self._report()
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
        report = self._report().to_tree()
        # Steps are written to files of their own.
        del report["steps"]
        return {**super().summary(), "search_seconds": self.search_seconds, **report}

    def lines(self) -> list[RenderableType]:
        report = self._report()
        if not report.steps:
            return super().lines()
        return [
            *super().lines(),
            "",
            report.table(),
            "",
            report.verdict(),
            f"the search took {duration(self.search_seconds)}; picture: workflows.png, best policy: checkpoints/{BEST}",
        ]
