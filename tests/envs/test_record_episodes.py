"""Every episode is noted, with the level that it began with; evaluations play each world once."""

import numpy as np
import pytest
from numpy.typing import NDArray
from team_env import TeamEnv

from fastrl.envs.record_episodes import MEASURES, WatchedWorlds, mean_of, play
from fastrl.tasks.traffic.scores import evaluation_seeds, score, score_table


class Stepper:
    """Steps worlds with actions drawn from a seed, and keeps what episodes must be noted, by a slow count."""

    def __init__(self, env: TeamEnv, worlds: WatchedWorlds, seed: int = 0) -> None:
        self.env, self.worlds = env, worlds
        self.rng = np.random.default_rng(seed)
        self.arrays = env.empty()
        self.alive = np.zeros(env.num_envs * env.num_agents, np.bool_)
        self.expected: list[tuple[float, ...]] = []
        worlds.reset_into(self.arrays[0], self.alive, seed=3)
        self.began = [worlds.level] * env.num_envs

    def step(self) -> None:
        before = self.env.episodes()["finished"]
        obs, rewards, terminations, truncations, _, final_obs = self.arrays
        actions = self.rng.integers(0, 3, len(rewards))
        self.worlds.step_into(actions, obs, rewards, terminations, truncations, self.alive, final_obs)
        account = self.env.episodes()
        for k in np.flatnonzero(account["finished"] > before):
            self.expected.append((*(float(account[name][k]) for name in MEASURES), self.began[k]))
            self.began[k] = self.worlds.level

    def noted(self) -> list[tuple[float, ...]]:
        return [tuple(map(float, row)) for row in self.worlds.take().tolist()]


def test_every_episode_is_noted_once_with_its_level() -> None:
    env = TeamEnv(5, 3, horizon=4)
    worlds = WatchedWorlds(env)  # type: ignore[arg-type]
    it = Stepper(env, worlds)
    noted = []
    for step in range(60):
        it.step()
        if step % 7 == 0:
            noted += it.noted()
        if step in (20, 40):
            worlds.level += 1
    noted += it.noted()
    assert noted == it.expected
    assert len(noted) > 60
    assert {row[-1] for row in noted} == {0, 1, 2}
    assert it.noted() == []


def test_restored_worlds_note_what_the_others_would_have() -> None:
    a, b = TeamEnv(4, 2, horizon=5), TeamEnv(4, 2, horizon=5)
    first, second = WatchedWorlds(a), WatchedWorlds(b)  # type: ignore[arg-type]
    it = Stepper(a, first)
    for step in range(13):
        it.step()
        first.level = step // 6
    first.take()
    second.load_state(first.save_state())
    other = Stepper(b, second)
    second.load_state(first.save_state())
    it.rng, other.rng = np.random.default_rng(9), np.random.default_rng(9)
    other.alive[:] = it.alive
    for _ in range(11):
        it.step()
        other.step()
    assert it.noted() == other.noted() != []


def walk(obs: NDArray[np.float32], alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Straight to the goal."""
    return np.where(alive, np.sign(obs[:, 0]) + 1, 1).astype(np.int64)


def make(num_envs: int) -> TeamEnv:
    return TeamEnv(num_envs, 3)


def test_scores_are_those_of_the_seeds() -> None:
    scores = score(make, walk, name="walk", episodes=300, seed=1)  # type: ignore[arg-type, return-value]
    ended: list[int] = []
    again = score(make, walk, name="walk", episodes=300, seed=1, advance=ended.append)  # type: ignore[arg-type, return-value]
    assert sum(ended) == 300
    assert repr(again) == repr(scores)
    assert scores.mean_return == pytest.approx(make(1).best_return(), abs=5 * scores.standard_error)
    assert scores.success_rate == 1
    assert scores.collision_rate == 0
    assert 1 < scores.mean_length <= 3
    assert np.isnan(scores.min_ttc)
    other = score(make, walk, name="walk", episodes=300, seed=2)  # type: ignore[arg-type, return-value]
    assert other.mean_return != scores.mean_return
    assert score_table([scores], "scores").row_count == 1


def test_episodes_do_not_depend_on_how_many_are_played_at_a_time() -> None:
    seeds = evaluation_seeds(0, 12)
    together = play(make(12), walk, seeds)  # type: ignore[arg-type]
    alone = [play(make(1), walk, [seed])[0] for seed in seeds]  # type: ignore[arg-type]
    assert together.tolist() == [row.tolist() for row in alone]


def test_means_are_of_what_is_known() -> None:
    assert mean_of(np.array([1.0, np.nan, np.inf, 3.0])) == 2
    assert np.isnan(mean_of(np.array([np.nan])))
    assert np.isnan(mean_of(np.empty(0)))
