"""Scores of CAGE 2 policies by the challenge's protocol, with the compliance with a workflow."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv, Workflow, parse_workflow, workflow_name
from fastrl.play.policy import Policy
from fastrl.runs.metrics import counted, fixed, mean_and_error, plus_minus
from fastrl.runs.row import Number
from fastrl.tasks.cage2.evaluate import Act, Contender, run_protocol
from fastrl.tasks.cage2.scores import RED_TITLES, Evaluation, Score, bounds
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.utils.tables import show


@dataclass(frozen=True)
class Compliance(Score):
    """Compliance in episodes against one red agent over one horizon, instead of their returns.

    An episode without a fix has compliance 0.5; so has a defender against Sleep that sees nothing to fix.

    Attributes:
        fixes: of an episode, in the mean.
    """

    fixes: float


@dataclass(frozen=True)
class WorkflowEvaluation:
    """Scores of one policy on one ruleset, as of `fastrl.tasks.cage2.evaluate.evaluate`, and its compliance.

    Attributes:
        workflow: by which compliance is measured.
        evaluation: the scores.
        compliance: one for each of ``evaluation.scores``.
    """

    workflow: Workflow
    evaluation: Evaluation
    compliance: tuple[Compliance, ...]

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return self.evaluation.to_tree() | {
            "workflow": workflow_name(self.workflow),
            "compliance": [asdict(compliance) for compliance in self.compliance],
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "WorkflowEvaluation":
        """The inverse of `to_tree`."""
        compliance = tuple(Compliance(**each) for each in tree["compliance"])
        return cls(parse_workflow(tree["workflow"]), Evaluation.from_tree(tree), compliance)


@dataclass(frozen=True)
class WorkflowScores:
    """Scores of the best workflow's policy and, if there is one, of PPO without workflows. See
    `fastrl.training.evaluation.Scores`.

    Attributes:
        best: return and compliance of the best workflow's policy in the run's own games, without exploration.
        plain: the same of PPO without workflows; None without it.
        evaluations: of both policies by the challenge's protocol, on each ruleset.
    """

    best: Outcome
    plain: Outcome | None
    evaluations: tuple[WorkflowEvaluation, ...]

    @property
    def mean_return(self) -> float:
        """Mean return of the best workflow's policy."""
        return self.best.mean_return

    @property
    def std_return(self) -> float:
        return self.best.return_stderr * math.sqrt(self.best.episodes)

    def metrics(self) -> dict[str, Number]:
        totals = {
            f"{each.evaluation.contender.replace(' ', '_')}_{each.evaluation.ruleset}": each.evaluation.total
            for each in self.evaluations
        }
        return {"compliance": self.best.compliance, **totals}

    def to_tree(self) -> dict[str, Any]:
        return {
            "best": self.best.to_tree(),
            "plain": None if self.plain is None else self.plain.to_tree(),
            "protocol": [each.to_tree() for each in self.evaluations],
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "WorkflowScores":
        """The inverse of `to_tree`."""
        return cls(
            Outcome.from_tree(tree["best"]),
            None if tree["plain"] is None else Outcome.from_tree(tree["plain"]),
            tuple(WorkflowEvaluation.from_tree(each) for each in tree["protocol"]),
        )

    def show(self, console: Console) -> None:
        for name, outcome in (("the best policy", self.best), ("PPO without workflows", self.plain)):
            if outcome is not None:
                show(
                    console,
                    f"{name}, {outcome.episodes:,} episodes without exploration: return"
                    f" {plus_minus(outcome.mean_return, outcome.return_stderr)}, compliance {outcome.compliance:.3f}",
                )
        console.print()
        show(console, self.protocol_table())
        console.print()

    def protocol_table(self) -> Group:
        """Scores by the challenge's protocol, with a column for each policy on each ruleset."""
        table = Table(
            title="by the challenge's protocol", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
        )
        table.add_column("red agent")
        table.add_column("steps", justify="right")
        for each in self.evaluations:
            table.add_column(f"{each.evaluation.contender}\n{each.evaluation.ruleset}", justify="right")
        scored = [each.evaluation for each in self.evaluations]
        for i, score in enumerate(scored[0].scores):
            cells = (
                f"{fixed(each.evaluation.scores[i].mean)} ({each.compliance[i].mean:.2f})"
                for each in self.evaluations
            )
            table.add_row(RED_TITLES[score.red_agent], str(score.horizon), *cells)
        table.add_section()
        table.add_row("total", "", *(fixed(each.total) for each in scored))
        table.add_row("", "", *(f"± {each.total_standard_error:.2f}" for each in scored))
        notes = (
            f"Means of {counted(scored[0].scores[0].episodes, 'episode')} each;"
            " in brackets the compliance with the workflow, 0.5 without any fix."
        )
        return Group(table, notes, *bounds(scored))


def score_by_protocol(
    policy: Policy,
    workflow: Workflow,
    name: str,
    *,
    ruleset: Ruleset,
    episodes: int = 1000,
    seed: int = 0,
    deterministic: bool = True,
    **options: Any,
) -> WorkflowEvaluation:
    """Scores a policy as `fastrl.tasks.cage2.evaluate.evaluate` does, in the same episodes, and its compliance.

    Args:
        policy: of a workflow (`fastrl.tasks.workflow.folding.fold`), or one that does not observe workflows.
        workflow: by which compliance is measured.
        name: of the policy, for tables.
        deterministic: the most probable actions are taken; otherwise actions are drawn.
        options: further ones of `run_protocol`.
    """
    plain = Contender.from_policy(policy, name, deterministic=deterministic)

    def make_act(env: Any, seed: int) -> Act:
        act = plain.make_act(env, seed)
        # Observations end with the order's code, which the policy does not take.
        return lambda obs: act(obs[:, : policy.obs_dim])

    scores, compliance = [], []
    for red_agent, horizon, facts in run_protocol(
        dataclasses.replace(plain, make_act=make_act),
        ruleset=ruleset,
        episodes=episodes,
        seed=seed,
        make_env=partial(Cage2WorkflowVectorEnv, workflow=workflow),
        facts=Cage2WorkflowVectorEnv.episodes,
        **options,
    ):
        cell = red_agent, horizon, episodes
        scores.append(Score(*cell, *mean_and_error(facts["return"])))
        fixes = float(facts["fixes"].mean())
        compliance.append(Compliance(*cell, *mean_and_error(facts["compliance"]), fixes))
    evaluation = Evaluation(name, ruleset, seed, tuple(scores), plain.mode, plain.observe)
    return WorkflowEvaluation(workflow, evaluation, tuple(compliance))
