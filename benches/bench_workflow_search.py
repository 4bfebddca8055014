"""Search for the best workflow of CAGE 2: a whole one, and the regret of searches by their number of trials.

Run: ``pytest benches/bench_workflow_search.py -s`` on an otherwise idle machine. The whole search, 100,000 episodes,
and plain PPO with as many to compare with, take minutes on two cores; its picture stays in the folder that is named.
"""

import json

import numpy as np
import pytest

from fastrl.cli.main import main_train
from fastrl.envs.cage2.workflow import WORKFLOWS
from fastrl.tasks.workflow.settings import SearchConfig
from fastrl.tasks.workflow.source import measure
from fastrl.tasks.workflow.strategies import make_search
from fastrl.tasks.workflow.task import TASK
from fastrl.utils.config import build
from results import Case

TRIALS = (10, 20, 40)
SEEDS = 8
TOGETHER = 20_480
EPISODES = 200, 500  # of an order, in a trial and for the truth
THRESHOLD = 0.9


def test_a_whole_search_within_ten_minutes(tmp_path_factory, record):
    """As a user runs it; the tables are the run's own."""
    run = tmp_path_factory.mktemp("workflow") / "run"
    assert main_train(["cage2-workflow", f"--run-dir={run}", "--profile"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    steps = json.loads((run / "workflows.json").read_text())["steps"]
    print(f"picture: {run / 'workflows.png'}")
    case = Case("100,000 episodes", {"fastrl": [summary["search_seconds"]]})
    record("Search for a workflow of CAGE 2", "s", [case], ["fastrl"], lower_is_better=True)
    assert steps[-1]["used"] == 100_000
    assert summary["search_seconds"] < 600
    assert summary["chosen"]["counts"]
    assert summary["evaluation"]["best"]["compliance"] >= THRESHOLD


def outcomes_of_all(trainer, episodes, seed):
    games, policy_of = trainer.source.games, trainer.algorithm.policy_of
    return {
        workflow: measure(games, workflow, policy_of(workflow), episodes, seed, action_masks=True)
        for workflow in WORKFLOWS
    }


@pytest.mark.usefixtures("one_thread")
def test_regret_by_the_number_of_trials(record):
    """Measures all orders twice: as in trials of a search, in 200 episodes, and for the truth. Searches then look
    outcomes up in that table. The regret is that of the order that they would choose."""
    values = {"run.total_episodes": 2 * TOGETHER, "run.device": "cpu", "inner.pretrain_share": 0.5}
    trainer = TASK.make_trainer(build(TASK.settings_type("ppo"), values | {"env.memory": "scan"}))
    next(row for row in trainer.rows() if row.done >= TOGETHER)
    trials_of, truth = (outcomes_of_all(trainer, episodes, i) for i, episodes in enumerate(EPISODES))
    returns = np.array([truth[workflow].mean_return for workflow in WORKFLOWS])
    counting = np.array([truth[workflow].compliance >= THRESHOLD for workflow in WORKFLOWS])
    best = returns[counting].max()
    regrets, episodes = {}, EPISODES[0]
    for method in ("bayes", "random"):
        found = np.zeros((SEEDS, len(TRIALS)))
        for seed in range(SEEDS):
            config = SearchConfig(method=method, trial_share=1.0, trial_episodes=episodes)
            search = make_search(
                config,
                WORKFLOWS,
                episodes * len(WORKFLOWS),
                min_episodes=episodes,
                min_learning_episodes=episodes + 1,
                seed=seed,
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
        regrets[method] = found
    record(
        "Regret of searches for a workflow",
        "return",
        [
            Case(
                f"{trials} trials",
                {name: found[~np.isnan(found[:, i]), i].tolist() for name, found in regrets.items()},
            )
            for i, trials in enumerate(TRIALS)
        ],
        [],
        about=f"{SEEDS} searches. {counting.sum()} of {len(WORKFLOWS)} orders count; their returns: best {best:.2f},"
        f" mean {returns[counting].mean():.2f}, deviation {returns[counting].std():.2f}, worst"
        f" {returns[counting].min():.2f}; standard error of a trial"
        f" {np.mean([o.return_stderr for o in trials_of.values()]):.2f}.",
        lower_is_better=True,
    )
    # Better than any of them at random.
    assert np.nanmean(regrets["bayes"][:, -1]) < best - returns[counting].mean()
