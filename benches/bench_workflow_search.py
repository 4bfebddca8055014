"""Search for the best workflow of CAGE 2: a whole one, and what searches find with how many trials.

Run: ``pytest benches/bench_workflow_search.py -s`` on an otherwise idle machine. The whole search, 100,000 episodes,
and plain PPO with as many to compare with, take minutes on two cores; its picture stays in the folder that is named.
"""

import json

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fastrl.cli.main import main_train
from fastrl.envs.cage2.workflow import WORKFLOWS
from fastrl.tasks.workflow.search import SearchConfig, make_search
from fastrl.tasks.workflow.training import Games, InnerConfig, WorkflowTrainer

TRIALS = (10, 20, 40)
SEEDS = 8
TOGETHER = 20_480
THRESHOLD = 0.9


def test_a_whole_search_within_ten_minutes(tmp_path_factory):
    """As a user runs it; the tables are the run's own."""
    run = tmp_path_factory.mktemp("workflow") / "run"
    assert main_train(["cage2-workflow", f"--run-dir={run}", "--profile"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    steps = json.loads((run / "workflows.json").read_text())["steps"]
    print(f"search: {summary['search_seconds']:.0f} s; picture: {run / 'workflows.png'}")
    assert steps[-1]["spent"] == 100_000
    assert summary["search_seconds"] < 600
    assert summary["chosen"]["counts"]
    assert summary["final"]["compliance"] >= THRESHOLD


def outcomes_of_all(trainer, episodes, seed):
    return {
        workflow: trainer.evaluate(workflow, trainer.policy_state(workflow), episodes, seed=seed)
        for workflow in WORKFLOWS
    }


def test_regret_by_the_number_of_trials():
    """All orders are measured, twice: once as a search sees them, in 200 episodes, once for the truth. Then searches
    play on the table, which costs them nothing. The regret is that of the order that they would choose."""
    torch.set_num_threads(1)
    trainer = WorkflowTrainer(InnerConfig(), Games(scan_memory=True), total_episodes=2 * TOGETHER, seed=0)
    trainer.train(WORKFLOWS, TOGETHER)
    seen, truth = outcomes_of_all(trainer, 200, 0), outcomes_of_all(trainer, 500, 1)
    returns = np.array([truth[workflow].mean_return for workflow in WORKFLOWS])
    counting = np.array([truth[workflow].compliance >= THRESHOLD for workflow in WORKFLOWS])
    best = returns[counting].max()
    table = Table(title="regret", title_justify="left")
    table.add_column(f"trials, mean of {SEEDS} searches")
    for trials in TRIALS:
        table.add_column(str(trials), justify="right")
    regrets = {}
    for method in ("bayes", "random"):
        told = np.zeros((SEEDS, len(TRIALS)))
        for seed in range(SEEDS):
            config = SearchConfig(method=method, trial_share=1.0, trial_episodes=200)
            search = make_search(config, WORKFLOWS, 200 * 120, least=200, learns=201, seed=seed)
            last = np.nan
            for trial in range(1, max(TRIALS) + 1):
                proposal = search.ask()
                if proposal is not None and not proposal.final:
                    search.tell(seen[proposal.workflow])
                    chosen = search.best()
                    last = np.nan if chosen is None else best - truth[chosen.workflow].mean_return
                if trial in TRIALS:
                    told[seed, TRIALS.index(trial)] = last
        regrets[method] = np.nanmean(told, axis=0)
        table.add_row(method, *(f"{regret:.2f}" for regret in regrets[method]))
    print()
    print(
        f"{counting.sum()} of 120 orders count; their returns: best {best:.2f}, mean {returns[counting].mean():.2f},"
        f" deviation {returns[counting].std():.2f}, worst {returns[counting].min():.2f};"
        f" standard error of a trial {np.mean([o.return_stderr for o in seen.values()]):.2f}"
    )
    Console().print(table)
    # Better than any of them at random.
    assert regrets["bayes"][-1] < best - returns[counting].mean()
