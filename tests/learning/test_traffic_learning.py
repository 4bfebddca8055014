"""Traffic presets learn within their own budgets."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from v2x_baselines import greedy_actions, random_actions

from fastrl.envs import make_multi
from fastrl.envs.record_episodes import run_episodes
from fastrl.play.team_policy import TeamPolicy
from fastrl.tasks import find
from fastrl.training.evaluation import Evaluation

pytestmark = pytest.mark.learning


@pytest.mark.parametrize(
    ("preset", "changes", "least"),
    [
        ("fast", {}, 0.5),
        ("performance", {"env.vehicles": 12, "run.total_episodes": 800}, 0.8),
    ],
)
def test_most_vehicles_get_through(preset: str, changes: dict[str, int], least: float) -> None:
    task = find("traffic")
    trainer = task.make_trainer(task.make_settings({"run.eval_freq": 0, **changes}, preset=preset))
    assert list(trainer.rows())
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    evaluation.at_end(trainer, Console(quiet=True))
    scores = evaluation.scores
    assert scores is not None
    assert scores.metrics()["success_rate"] >= least


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_links_learn_to_share_spectrum(algorithm: str) -> None:
    """Above what random and greedy actions return, from a quarter of the preset's episodes."""
    task = find("traffic")
    settings = task.make_settings(
        {
            "run.algo": algorithm,
            "env.id": "fastrl/v2x-resource-v0",
            "run.total_episodes": 1600,
            "run.eval_freq": 0,
        }
    )
    trainer = task.make_trainer(settings)
    assert list(trainer.rows())
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    evaluation.at_end(trainer, Console(quiet=True))
    assert evaluation.scores is not None
    scores = evaluation.scores.metrics()

    def returned(policy: Callable[[NDArray[np.float32]], NDArray[np.int64]]) -> float:
        env = make_multi("fastrl/v2x-resource-v0", 256)
        obs, _ = env.reset(seed=0)
        for _ in range(100):
            obs, *_ = env.step(policy(obs.reshape(256 * 4, -1)).reshape(256, 4))
        return float(env.episodes()["return_mean"].mean())

    rng = np.random.default_rng(0)
    baselines = [returned(lambda obs: random_actions(rng, len(obs))), returned(greedy_actions)]
    assert baselines[1] > baselines[0] + 10
    assert evaluation.scores.mean_return > baselines[1] + 1, (scores, baselines)


@pytest.mark.parametrize("net", ["crossing", "grid"])
def test_lights_learn_to_beat_their_programs(net: str) -> None:
    """Vehicles wait less than two thirds as long as with the programs of the file, after a quarter of the preset's
    episodes."""
    task = find("traffic")
    changes = {"env.id": "fastrl/lights-v0", "env.options": (f"net={net}",), "run.total_episodes": 160}
    trainer = task.make_trainer(task.make_settings({**changes, "run.eval_freq": 0}))
    assert list(trainer.rows())
    policy = TeamPolicy(trainer.algorithm.policy_state())

    def waiting(fixed: bool) -> float:
        env = make_multi("fastrl/lights-v0", 32, net=net, fixed=fixed)
        run_episodes(env, policy.act_in(env, action_masks=False), range(32))
        return float(env.episodes()["waiting_time"].mean())

    assert waiting(fixed=False) < 0.67 * waiting(fixed=True)
