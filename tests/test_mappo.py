"""MAPPO and independent PPO: learning to a known optimum, dead rows, mixed teams, exact resumption, refusals."""

import pytest
import torch

from fastrl.algorithms.mappo import MAPPO, MAPPOConfig
from fastrl.stopwatch import Stopwatch
from team_env import TeamEnv

SMALL = {"num_steps": 16, "hidden": (32, 32), "minibatch_size": 512}


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small gain nothing from more, and threads that wait for each other suffer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mappo_for(env, *, seed=0, total_updates=60, partners=None, **config):
    return MAPPO(
        MAPPOConfig(**{**SMALL, **config}),
        env.single_observation_space,
        env.single_action_space,
        env.num_envs,
        env.num_agents,
        total_updates=total_updates,
        seed=seed,
        partners=partners,
    )


def train(learner, env, updates=None):
    """Until total_updates, or so many; the last rollout's statistics and the metrics of all updates."""
    rows = []
    for _ in range(learner.total_updates if updates is None else updates):
        stats = learner.collect(env, Stopwatch())
        rows.append(learner.update(Stopwatch()))
    return stats, rows


class TestLearns:
    @pytest.mark.parametrize("critic", ["own", "central"])
    @pytest.mark.parametrize("box", [False, True])
    def test_to_the_known_optimum(self, critic, box):
        env = TeamEnv(32, 3, box=box)
        stats, _ = train(mappo_for(env, critic=critic), env)
        assert stats.returns.mean() == pytest.approx(env.best_return(), abs=0.06)
