"""Every episode is recorded with the level at its start; an evaluation runs one episode in each environment."""

import numpy as np
import pytest
from numpy.typing import NDArray
from team_env import TeamEnv

from fastrl.envs.record_episodes import MEASURES, RecordEpisodeStatistics, finite_mean, run_episodes
from fastrl.tasks.traffic.scores import score, score_table
from fastrl.training.play import team_seeds


class Stepper:
    """Steps an environment with random actions and counts the expected records in a plain loop."""

    def __init__(self, env: TeamEnv, recorder: RecordEpisodeStatistics, seed: int = 0) -> None:
        self.env, self.recorder = env, recorder
        self.rng = np.random.default_rng(seed)
        self.arrays = env.empty()
        self.alive = np.zeros(env.num_envs * env.num_agents, np.bool_)
        self.expected: list[tuple[float, ...]] = []
        recorder.reset_into(self.arrays[0], self.alive, seed=3)
        self.start_levels = [recorder.level] * env.num_envs

    def step(self) -> None:
        before = self.env.episodes()["finished"]
        obs, rewards, terminations, truncations, _, final_obs = self.arrays
        actions = self.rng.integers(0, 3, len(rewards))
        self.recorder.step_into(actions, obs, rewards, terminations, truncations, self.alive, final_obs)
        statistics = self.env.episodes()
        for k in np.flatnonzero(statistics["finished"] > before):
            self.expected.append((*(float(statistics[name][k]) for name in MEASURES), self.start_levels[k]))
            self.start_levels[k] = self.recorder.level

    def recorded(self) -> list[tuple[float, ...]]:
        return [tuple(map(float, row)) for row in self.recorder.take().tolist()]


def test_every_episode_is_recorded_once_with_its_level() -> None:
    env = TeamEnv(5, 3, horizon=4)
    recorder = RecordEpisodeStatistics(env)  # type: ignore[arg-type]
    stepper = Stepper(env, recorder)
    recorded = []
    for step in range(60):
        stepper.step()
        if step % 7 == 0:
            recorded += stepper.recorded()
        if step in (20, 40):
            recorder.level += 1
    recorded += stepper.recorded()
    assert recorded == stepper.expected
    assert len(recorded) > 60
    assert {row[-1] for row in recorded} == {0, 1, 2}
    assert stepper.recorded() == []


def test_a_restored_recorder_continues_like_the_saved_one() -> None:
    a, b = TeamEnv(4, 2, horizon=5), TeamEnv(4, 2, horizon=5)
    first, second = RecordEpisodeStatistics(a), RecordEpisodeStatistics(b)  # type: ignore[arg-type]
    stepper = Stepper(a, first)
    for step in range(13):
        stepper.step()
        first.level = step // 6
    first.take()
    second.load_state(first.save_state())
    other = Stepper(b, second)
    second.load_state(first.save_state())
    stepper.rng, other.rng = np.random.default_rng(9), np.random.default_rng(9)
    other.alive[:] = stepper.alive
    for _ in range(11):
        stepper.step()
        other.step()
    assert stepper.recorded() == other.recorded() != []


def walk(obs: NDArray[np.float32], alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Moves straight to the goal."""
    return np.where(alive, np.sign(obs[:, 0]) + 1, 1).astype(np.int64)


def make(num_envs: int) -> TeamEnv:
    return TeamEnv(num_envs, 3)


def test_scores_are_those_of_the_seeds() -> None:
    scores = score(make, walk, episodes=300, seed=1)  # type: ignore[arg-type, return-value]
    ended: list[int] = []
    again = score(make, walk, episodes=300, seed=1, advance=ended.append)  # type: ignore[arg-type, return-value]
    assert sum(ended) == 300
    assert repr(again) == repr(scores)
    assert scores.mean_return == pytest.approx(make(1).best_return(), abs=5 * scores.standard_error)
    assert scores.success_rate == 1
    assert scores.collision_rate == 0
    assert 1 < scores.mean_length <= 3
    assert np.isnan(scores.min_ttc)
    other = score(make, walk, episodes=300, seed=2)  # type: ignore[arg-type, return-value]
    assert other.mean_return != scores.mean_return
    assert score_table([("walk", scores)], "scores").row_count == 1


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    seeds = team_seeds(0, 12)
    together = run_episodes(make(12), walk, seeds)  # type: ignore[arg-type]
    alone = [run_episodes(make(1), walk, [seed])[0] for seed in seeds]  # type: ignore[arg-type]
    assert together.tolist() == [row.tolist() for row in alone]


def test_means_leave_out_values_that_are_not_finite() -> None:
    assert finite_mean(np.array([1.0, np.nan, np.inf, 3.0])) == 2
    assert np.isnan(finite_mean(np.array([np.nan])))
    assert np.isnan(finite_mean(np.empty(0)))
