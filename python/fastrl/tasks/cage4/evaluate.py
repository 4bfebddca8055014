"""The protocol of CAGE Challenge 4: 100 episodes of 500 steps, one after the other on one generator of random numbers.

The challenge's evaluation makes a network with its seed, which is not played; then each episode starts with a reset
without a seed. Of an episode's 499 steps it counts the rewards of all but the last.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from rich.console import Console

from fastrl.collectors.team_spec import CompiledTeamSpec, TeamSpec
from fastrl.envs.cage4.baselines import BASELINES, baseline_act
from fastrl.envs.cage4.env import Cage4VectorEnv
from fastrl.envs.record_episodes import Act
from fastrl.tasks import cage4
from fastrl.tasks.cage4.scores import Evaluation, parts_table, score_table
from fastrl.training.comparison import Comparison, check_baseline, modes
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.utils.tables import print_lines, show

STEPS = 500
# Episodes of an evaluation of the challenge; more are further evaluations, with the next seeds.
EPISODES = 100
GAMES = CompiledTeamSpec("fastrl/Cage4-v0")


def evaluate(
    make_act: Callable[[Any], Act], options: EvaluationOptions, games: TeamSpec = GAMES
) -> Evaluation:
    """Scores a team by the challenge's protocol.

    Args:
        make_act: called at the start of episodes with their environment, of one game for each 100 episodes; it acts for
            the agents that learn.
        options: the first 100 episodes are those of the challenge's evaluation with their seed, the next 100 those with
            the next one.
        games: of `Cage4VectorEnv`, or of it with opponents; the protocol has its own length of episodes, random numbers
            and rewards.
    """
    episodes = options.episodes
    num_envs = -(-episodes // EPISODES)
    games = games.with_options({"episode_length": STEPS, "random": "numpy", "rewards": "team"})
    with contextlib.closing(games.make_team(num_envs)) as env:
        whole = cast(Cage4VectorEnv, getattr(env, "unopposed", env))
        size, rounds = num_envs * env.num_agents, []
        rewards, ends = np.empty(size, np.float32), np.empty((2, size), np.bool_)
        env.reset(seed=options.seed)
        for number in range(min(episodes, EPISODES)):
            env.reset()
            (obs, alive), act, states = env.observe(), make_act(env), None
            for step in range(STEPS - 1):
                if step == STEPS - 2:
                    rounds.append(whole.ledger())
                actions, states = act(obs, alive, states)
                env.step_into(actions, obs, rewards, ends[0], ends[1], alive)
            options.advance(len(range(number, episodes, EPISODES)))
    ledgers = np.stack(rounds, axis=1).reshape(-1, *rounds[0].shape[1:])
    return Evaluation.from_ledgers(ledgers[:episodes], options.seed, options.mode)


class Cage4Scoring:
    """The part of the task that ``fastrl eval`` needs for baselines, which loads no PyTorch. Its methods are those of
    `fastrl.training.task.Task`."""

    name: ClassVar[str] = cage4.NAME
    evaluation_options: ClassVar[Sequence[str]] = ("mode",)
    has_protocol: ClassVar[bool] = True

    def evaluation_variants(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{**options, "mode": mode} for mode in modes(options, default="deterministic")]

    def evaluation_work(self, episodes: int) -> int:
        return episodes

    def evaluate_baseline(self, name: str, options: EvaluationOptions) -> Evaluation:
        check_baseline(name, BASELINES)
        draws = np.random.SeedSequence(options.seed)

        def make_act(env: Cage4VectorEnv) -> Act:
            return baseline_act(name, env, int(draws.spawn(1)[0].generate_state(1)[0]))

        return evaluate(make_act, dataclasses.replace(options, mode="scripted"))

    def scores_tree(self, name: str, scores: Any) -> dict[str, Any]:
        return {"run": name, **scores.to_tree()}

    def show_scores(self, comparison: Comparison, console: Console) -> None:
        scores: list[tuple[str, Any]] = [(each.name, each.scores) for each in comparison.scored]
        show(console, score_table(scores), *(parts_table(*each) for each in scores))
        print_lines(console, *comparison.lines())


SCORING = Cage4Scoring()
