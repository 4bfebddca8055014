"""The loop in which evaluations, films, checks of exports and replays play episodes."""

import os
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastrl.collectors.protocol import CollectError
from fastrl.envs.contract import ContractError
from fastrl.envs.record_episodes import run_episodes
from fastrl.envs.registration import make_multi
from fastrl.play.episodes import EnvEpisodes
from fastrl.play.play import Step, TeamEnv, episode_seeds, play, team_act, team_seeds
from fastrl.runs.errors import TrainError


class Counter(gymnasium.Env[Any, Any]):
    """Counts to its seed; the rewards are the counts."""

    observation_space, action_space = Box(-1, 99, (), np.float32), Discrete(2)
    fails: BaseException | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.end = 0, seed
        return self._obs(), {"t": 0}

    def _obs(self) -> Any:
        return np.asarray(self.t, np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 3 and self.fails is not None:
            raise self.fails
        return self._obs(), self.t, self.t == self.end, False, {"t": self.t}


def remember(obs: Any, info: Any, state: Any) -> Any:
    """The steps of the episode before this one, as action and memory."""
    past = 0 if state is None else state + 1
    return past, past


def counted(seeds: list[int], num_steps: int = 0, fails: BaseException | None = None) -> Iterator[Step]:
    env = Counter()
    env.fails = fails
    return play(remember, env, seeds, num_steps, name="counter", draw=lambda: -env.t)


def test_each_seed_is_an_episode_that_starts_with_its_reset() -> None:
    steps = list(counted([2, 3]))
    assert [(step.episode, step.seed, step.number) for step in steps] == [
        *((0, 2, number) for number in range(3)),
        *((1, 3, number) for number in range(4)),
    ]
    assert [step.action for step in steps] == [None, 0, 1, None, 0, 1, 2]
    assert [step.reward for step in steps] == [0, 1, 2, 0, 1, 2, 3]
    assert [step.total for step in steps] == [0, 1, 3, 0, 1, 3, 6]
    assert [step.info["t"] for step in steps] == [-step.drawn for step in steps]
    assert [step.is_last for step in steps] == [step.terminated for step in steps]
    assert [step.number for step in steps if step.is_last] == [2, 3]


def test_an_episode_is_cut_off_at_the_limit() -> None:
    last = [step for step in counted([2, 9], 4) if step.is_last]
    assert [(step.number, step.total, step.terminated, step.truncated) for step in last] == [
        (2, 3, True, False),
        (4, 10, False, False),
    ]


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            KeyError("x"),
            CollectError,
            "counter failed at step 3 of the episode that reset(seed=7) started: KeyError: 'x'",
        ),
        (
            SystemExit(2),
            CollectError,
            "counter failed at step 3 of the episode that reset(seed=7) started: SystemExit: 2",
        ),
        (ContractError("counter: no reward"), CollectError, "counter: no reward"),
        (TrainError("one line"), TrainError, "one line"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_errors_of_an_environment_are_one_line(error: Any, kind: Any, line: str) -> None:
    with pytest.raises(kind) as caught:
        list(counted([2, 7], fails=error))
    assert str(caught.value) == line


def test_steps_before_an_error_are_there_and_a_loop_may_end_early() -> None:
    steps = counted([7], fails=KeyError("x"))
    assert [next(steps).number for _ in range(3)] == [0, 1, 2]
    early = counted([9])
    next(early)
    early.close()
    assert not list(early)


def test_a_copy_of_the_process_ends_with_the_step() -> None:
    class Forks(Counter):
        def step(self, action: Any) -> Any:
            self.copy = os.fork()
            return super().step(action)

    env = Forks()
    steps = list(play(remember, env, [1], name="forks"))
    assert len(steps) == 2 and env.copy > 0
    assert os.waitpid(env.copy, 0)[1] == 0


@pytest.mark.parametrize(("obs", "reward"), [(np.nan, 1.0), (-np.inf, 1.0), (1.0, np.inf), (1.0, np.nan)])
def test_numbers_that_are_not_finite_are_refused(obs: float, reward: float) -> None:
    class Odd(Counter):
        def step(self, action: Any) -> Any:
            return np.asarray(obs, np.float32), reward, False, False, {}

    actor: Any = type("Actor", (), {"state_size": 0, "act": lambda *others, **options: None})()
    odd = EnvEpisodes(Odd(), "odd", actor)
    what = f"a reward of {reward}" if np.isfinite(obs) else "NaN or infinity as observation"
    with pytest.raises(CollectError, match=rf"^odd failed at step 1 of .* started: it gave {what}$"):
        list(play(odd.act, odd, [0], name="odd"))


def test_large_finite_observations_are_no_error() -> None:
    class Large(Counter):
        def _obs(self) -> Any:
            return np.asarray(3e38, np.float32)

    actor: Any = type("Actor", (), {"state_size": 0, "act": lambda *others, **options: None})()
    large = EnvEpisodes(Large(), "large", actor)
    assert [step.number for step in play(large.act, large, [2], name="large")] == [0, 1, 2]


@pytest.mark.parametrize("mode", ["disabled", "same_step"])
def test_a_team_plays_the_episodes_of_its_records(mode: str) -> None:
    def act(obs: Any, alive: Any, state: Any) -> tuple[Any, Any]:
        return np.where(obs[:, 0] > 0, 2, 1).astype(np.int64), None

    seeds, name = team_seeds(3, 2), "fastrl/coop-merge-v0"
    team = TeamEnv(make_multi(name, 1, autoreset_mode=mode))
    steps, lengths, returns = [], [], []
    for step in play(team_act(act), team, seeds, name=name):
        steps.append(step)
        if step.is_last:
            lengths.append(step.number)
            returns.append(team.mean_return())
    records = [run_episodes(make_multi(name, 1), act, [seed])[0] for seed in seeds]
    assert lengths == [record["length"] for record in records]
    assert returns == [record["return_mean"] for record in records]
    assert [step.total for step in steps if step.is_last] == pytest.approx(returns)
    assert all(step.info["alive"].any() for step in steps if not step.is_last)


def test_seeds_are_those_of_numpy() -> None:
    words = np.random.SeedSequence([5, 1]).generate_state(3)
    assert episode_seeds(3, 5, 1) == [int(word) >> 1 for word in words]
    assert team_seeds(5, 3) == np.random.SeedSequence([5, 1]).generate_state(3, np.uint64).tolist()
