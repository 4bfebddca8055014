"""Search for the best workflow of CAGE 2: a whole one, and the regret of searches by their number of trials.

Run: ``pytest benches/bench_workflow_search.py -s`` on an otherwise idle machine. The whole search, 100,000 episodes,
and plain PPO with as many to compare with, take minutes on two cores; its picture stays in the folder that is named.
"""

import json

import numpy as np
import pytest

from fastrl.cli.main import main_train
from fastrl.envs.cage2.workflow import WORKFLOWS
from fastrl.tasks.workflow.learner import WorkflowLearner, measure
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig, SearchConfig
from fastrl.tasks.workflow.strategies import make_search
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from rounds import number_table

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
    assert steps[-1]["used"] == 100_000
    assert summary["search_seconds"] < 600
    assert summary["chosen"]["counts"]
    assert summary["evaluation"]["best"]["compliance"] >= THRESHOLD


def outcomes_of_all(learner, episodes, seed):
    return {
        workflow: measure(learner.games, workflow, learner.policy_state(workflow), episodes, seed)
        for workflow in WORKFLOWS
    }


@pytest.mark.usefixtures("one_thread")
def test_regret_by_the_number_of_trials():
    """Measures all orders twice: as in trials of a search, in 200 episodes, and for the truth. Searches then look
    outcomes up in that table. The regret is that of the order that they would choose."""
    learner = WorkflowLearner(InnerConfig(), EnvConfig(memory="scan"), total_episodes=2 * TOGETHER, seed=0)
    learner.train(WORKFLOWS, TOGETHER)
    trials_of, truth = outcomes_of_all(learner, 200, 0), outcomes_of_all(learner, 500, 1)
    returns = np.array([truth[workflow].mean_return for workflow in WORKFLOWS])
    counting = np.array([truth[workflow].compliance >= THRESHOLD for workflow in WORKFLOWS])
    best = returns[counting].max()
    table = number_table("regret", f"trials, mean of {SEEDS} searches", *map(str, TRIALS))
    regrets = {}
    for method in ("bayes", "random"):
        found = np.zeros((SEEDS, len(TRIALS)))
        for seed in range(SEEDS):
            config = SearchConfig(method=method, trial_share=1.0, trial_episodes=200)
            search = make_search(
                config, WORKFLOWS, 200 * 120, min_episodes=200, min_learning_episodes=201, seed=seed
            )
            last = np.nan
            for trial in range(1, max(TRIALS) + 1):
                proposal = search.ask()
                if proposal is not None and not proposal.final:
                    search.tell(trials_of[proposal.workflow])
                    chosen = search.best()
                    last = np.nan if chosen is None else best - truth[chosen.workflow].mean_return
                if trial in TRIALS:
                    found[seed, TRIALS.index(trial)] = last
        regrets[method] = np.nanmean(found, axis=0)
        table.add_row(method, *(f"{regret:.2f}" for regret in regrets[method]))
    print()
    print(
        f"{counting.sum()} of 120 orders count; their returns: best {best:.2f}, mean {returns[counting].mean():.2f},"
        f" deviation {returns[counting].std():.2f}, worst {returns[counting].min():.2f};"
        f" standard error of a trial {np.mean([o.return_stderr for o in trials_of.values()]):.2f}"
    )
    show(plain_console(), table)
    # Better than any of them at random.
    assert regrets["bayes"][-1] < best - returns[counting].mean()
