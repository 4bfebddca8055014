"""The protocol of CAGE Challenge 2: scores of a defender against each red agent over each horizon."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fastrl.envs.cage2.baselines import BASELINES, make_baseline
from fastrl.envs.cage2.env import ACTIONS, RED_AGENTS, Cage2Games, Cage2VectorEnv
from fastrl.envs.cage2.memory import Memory, Observe, Ruleset
from fastrl.envs.cage2.scenario import load_scenario
from fastrl.play.own_agent import OwnAgent
from fastrl.runs.metrics import mean_and_error
from fastrl.tasks import cage2
from fastrl.tasks.cage2.defence import Defence, WatchedGames
from fastrl.tasks.cage2.scores import (
    HORIZONS,
    Evaluation,
    Score,
    comparison_table,
    defence_tables,
    score_table,
)
from fastrl.training.comparison import Comparison, Mode, check_baseline, modes
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.utils.config import ConfigError
from fastrl.utils.files import save_figure
from fastrl.utils.tables import print_lines, show

if TYPE_CHECKING:
    from fastrl.play.policy import Policy

# The challenge's own.
RULESETS: tuple[Ruleset, ...] = ("main", "leaderboard")

# Games that are stepped together: enough to be fast, few enough to stay in caches.
BATCH = 1024

# Chooses actions int64 [N] among the 145 for observations float32 [N, obs_dim].
Act = Callable[[NDArray[np.float32]], NDArray[np.int64]]

# Facts of E episodes by name, [E] each.
Facts = Mapping[str, NDArray[Any]]

E = TypeVar("E", bound=Cage2Games)


@dataclass(frozen=True)
class Contender:
    """Something that can be evaluated.

    Attributes:
        name: for tables.
        memory: values of blue's memory in its observations.
        make_act: makes its `Act` for an environment whose episodes start, from a seed of its own draws.
        mode: choice of actions.
        observe: "truth": it observes the true state of the game, which no defender can see.
        batch: games that it plays at a time.
    """

    name: str
    memory: Memory
    make_act: Callable[[Any, int], Act]
    mode: Mode = "scripted"
    observe: Observe = "blue"
    batch: int = BATCH

    @classmethod
    def from_policy(cls, policy: "Policy", name: str, *, deterministic: bool = True) -> "Contender":
        """A trained policy."""

        def make_act(env: Any, seed: int) -> Act:
            # Episodes of all environments start with the first observation.
            states = np.zeros((env.num_envs, policy.state_size), np.float32) if policy.state_size else None
            return lambda obs: policy.act(
                obs.reshape(len(obs), -1),
                deterministic,
                env.action_masks() if policy.needs_action_mask else None,
                states,
            )

        mode: Mode = "deterministic" if deterministic else "stochastic"
        return cls(name, cast(Memory, policy.memory), make_act, mode, cast(Observe, policy.observe))

    @classmethod
    def from_baseline(cls, name: str) -> "Contender":
        """A scripted defender, one of ``fastrl.envs.cage2.baselines.BASELINES``.

        Raises:
            ValueError: there is no such baseline.
        """
        make_baseline(name, 1)

        def make_act(env: Any, seed: int) -> Act:
            blue = make_baseline(name, env.num_envs, seed)
            return lambda obs: blue.act(env.alerts())

        return cls(f"baseline:{name}", "none", make_act)

    @classmethod
    def from_agent(cls, path: str, num_actions: int = len(ACTIONS)) -> "Contender":
        """An agent of the user's own, see `OwnAgent`; its observations are the challenge's 52 numbers, its actions the
        indices of the challenge's 145, whose number is its action space. In another scenario it has that one's.

        Raises:
            ConfigError: there is none.
        """
        agent = OwnAgent(path, num_actions)

        def make_act(env: Any, seed: int) -> Act:
            agent.start()
            return lambda obs: np.array([agent.act_index(obs[0])], np.int64)

        return cls(path, "none", make_act, batch=1)


def evaluate(
    contender: Contender,
    *,
    ruleset: Ruleset,
    episodes: int = 1000,
    seed: int = 0,
    scenario: Path | None = None,
    rows: int | None = None,
    **options: Any,
) -> Evaluation:
    """Scores a contender on ``episodes`` against each red agent over each horizon.

    With the same seed scores are the same again, and all contenders play the same episodes: the random draws of the
    game and of red in episode i of a red agent and horizon come from one stream with a seed of its own. As long as
    contenders choose actions of equal effect, they see the same game to the bit. After they have chosen differently,
    each reads on in the stream where its own game is: single draws do not decide the same any more. Draws of a
    stochastic policy have their own stream, the same for all contenders.

    Args:
        scenario: file whose network is played against the red agents that can play there; None: the challenge's own.
        rows: that the contender observes, see `fastrl.envs.cage2.rows`, in networks of several hosts, without measures
            beside the scores; None: bits.
        options: further ones of `run_protocol`.
    """
    network = None
    if scenario is not None and rows is not None:
        options |= _games_by_rows(scenario, rows)
    else:
        options |= {"make_env": WatchedGames, "facts": WatchedGames.facts}
        if scenario is not None:
            network = load_scenario(scenario)
            make_env = functools.partial(WatchedGames, scenario=network)
            options |= {"make_env": make_env, "red_agents": network.red_agents}
    cells = list(run_protocol(contender, ruleset=ruleset, episodes=episodes, seed=seed, **options))
    scores = tuple(
        Score(
            red_agent,
            horizon,
            episodes,
            *mean_and_error(facts["return"]),
            defence=Defence.of(facts, network) if "held" in facts else None,
        )
        for red_agent, horizon, facts in cells
    )
    returns = tuple(facts["return"] for _, _, facts in cells)
    name = "" if scenario is None else scenario.name
    how = (contender.mode, contender.observe, name)
    return Evaluation(contender.name, ruleset, seed, scores, *how, returns)


def _games_by_rows(path: Path, rows: int) -> dict[str, Any]:
    """Options of `run_protocol` for the networks of a scenario file, by rows."""
    from fastrl.envs.cage2.random_scenario import load_networks
    from fastrl.envs.cage2.rows import Cage2RowsVectorEnv

    networks = load_networks(path)

    def make_env(num_envs: int, *, memory: Memory, observe: Observe, **options: Any) -> Cage2RowsVectorEnv:
        return Cage2RowsVectorEnv(num_envs, scenario=networks, rows=rows, **options)

    everywhere = set.intersection(*({*network.red_agents} for network in networks))
    return {"make_env": make_env, "red_agents": [name for name in RED_AGENTS if name in everywhere]}


def protocol_steps(episodes: int) -> int:
    """Steps of an evaluation with so many episodes against each red agent over each horizon."""
    return episodes * len(RED_AGENTS) * sum(HORIZONS)


def run_protocol(
    contender: Contender,
    *,
    ruleset: Ruleset,
    episodes: int,
    seed: int,
    horizons: Sequence[int] = HORIZONS,
    red_agents: Sequence[str] = RED_AGENTS,
    num_threads: int = 0,
    advance: Callable[[int], object] = lambda steps: None,
    make_env: Callable[..., E] = Cage2VectorEnv,  # type: ignore[assignment]
    facts: Callable[[E], Facts] = lambda env: {},
) -> Iterator[tuple[str, int, Facts]]:
    """Yields each red agent and horizon with the facts of the episodes against it; see `run_episodes`.

    Args:
        num_threads: of the simulators; 0: one per core.
        advance: called again and again with how many steps were taken since the last call, of `protocol_steps`.
        make_env: makes the games, from their number and options of `Cage2VectorEnv`.
    """
    for red_agent in red_agents:
        for horizon in horizons:
            draw_seed, seeds = episode_seeds(seed, red_agent, horizon, episodes)
            make = functools.partial(
                make_env,
                ruleset=ruleset,
                red_agent=red_agent,
                episode_length=horizon,
                memory=contender.memory,
                observe=contender.observe,
                num_threads=num_threads,
                autoreset_mode="disabled",
            )

            def make_act(env: E, first: int, draw_seed: int = draw_seed) -> Act:
                return contender.make_act(env, draw_seed + first)

            played = run_episodes(
                make, make_act, seeds, facts=facts, advance=advance, batch_size=contender.batch
            )
            yield red_agent, horizon, played


def episode_seeds(seed: int, red_agent: str, horizon: int, episodes: int) -> tuple[int, list[int]]:
    """A seed for the contender's own random draws, and one for each episode against a red agent over a horizon."""
    stream = np.random.SeedSequence([seed, RED_AGENTS.index(red_agent), horizon])
    draw_seed, *seeds = map(int, stream.generate_state(episodes + 1, np.uint64))
    return draw_seed, seeds


def run_episodes(
    make_env: Callable[[int], E],
    make_act: Callable[[E, int], Act],
    seeds: Sequence[int],
    *,
    facts: Callable[[E], Facts] = lambda env: {},
    advance: Callable[[int], object] = lambda steps: None,
    batch_size: int = BATCH,
) -> Facts:
    """Runs one episode of a game for each seed.

    Args:
        make_env: makes a vector environment of so many games, which does not reset itself.
        make_act: makes what chooses actions in it, from the environment and the place of its first seed.
        seeds: of the E episodes.
        facts: reads further facts, [N] each by name, of an environment whose episodes have ended.
        advance: called after each step with the number of games that took it.
        batch_size: games that are played at a time, at most.

    Returns:
        "return", float64 [E], sums of rewards unless ``facts`` has others, and all facts, [E] each.
    """
    results = []
    # Not by `fastrl.play.play`: here one compiled call steps a thousand games.
    for first in range(0, len(seeds), batch_size):
        batch = seeds[first : first + batch_size]
        env = make_env(len(batch))
        act = make_act(env, first)
        obs, _ = env.reset(seed=list(batch))
        rewards, returns, ends = (
            np.empty(len(batch)),
            np.zeros(len(batch)),
            np.empty((2, len(batch)), np.bool_),
        )
        for _ in range(env.episode_length):
            env.step_into(act(obs), obs, rewards, *ends)
            returns += rewards
            advance(len(batch))
        results.append({"return": returns, **facts(env)})
        env.close()
    return {name: np.concatenate([each[name] for each in results]) for name in results[0]}


class Cage2Scoring:
    """The part of the task that ``fastrl eval`` needs for baselines, which loads no PyTorch. Its methods are those of
    `fastrl.training.task.Task`."""

    name: ClassVar[str] = cage2.NAME
    evaluation_options: ClassVar[Sequence[str]] = ("ruleset", "mode", "device")
    has_protocol: ClassVar[bool] = True

    def evaluation_variants(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        ruleset = options.get("ruleset", "both")
        rulesets = RULESETS if ruleset == "both" else [ruleset]
        return [
            {**options, "ruleset": each, "mode": mode}
            for each in rulesets
            for mode in modes(options, default="both")
        ]

    def evaluate_baseline(self, name: str, options: EvaluationOptions) -> Evaluation:
        check_baseline(name, BASELINES)
        return self._evaluate(Contender.from_baseline(name), options)

    def evaluate_agent(self, path: str, settings: Any, options: EvaluationOptions) -> Evaluation:
        scenario = None if settings is None else settings.env.own_scenario()
        if scenario is None:
            return self._evaluate(Contender.from_agent(path), options)
        contender = Contender.from_agent(path, len(scenario.actions))
        return self._evaluate(contender, options, scenario=settings.env.scenario)

    def _evaluate(
        self, contender: Contender, options: EvaluationOptions, ruleset: Ruleset = "main", **where: Any
    ) -> Evaluation:
        """Scores a contender; ``ruleset``: of the games, unless options have another; others as of `evaluate`."""
        return evaluate(
            contender,
            ruleset=options.ruleset or ruleset,
            episodes=options.episodes,
            seed=options.seed,
            advance=options.advance,
            **where,
        )

    def scores_tree(self, name: str, scores: Any) -> dict[str, Any]:
        return {"run": name, **dataclasses.replace(scores, contender=name).to_tree()}

    def show_scores(self, comparison: Comparison, console: Console) -> None:
        by_title: dict[str, list[Evaluation]] = {}
        for evaluation in _named(comparison):
            by_title.setdefault(evaluation.title, []).append(evaluation)
        for evaluations in by_title.values():
            if len({each.contender for each in evaluations}) == 1:
                show(console, score_table(evaluations))
            else:
                show(console, comparison_table(evaluations, comparison))
            console.print()
            if evaluations[0].scores[0].defence is not None:
                show(console, defence_tables(evaluations))
                console.print()
        print_lines(console, *(spread.line() for spread in comparison.spreads))

    def draw_scores(self, comparison: Comparison, path: Path) -> None:
        """Draws the measures of the contenders beside their scores, .png or .svg."""
        from fastrl.tasks.cage2.defence_figure import draw

        hosts = {
            tuple(it.defence.held) if it.defence else () for each in _named(comparison) for it in each.scores
        }
        if len(hosts) > 1 or () in hosts:
            raise ConfigError(
                "the picture shows the hosts of one network: leave it out for several, and for --rows"
            )
        save_figure(path, draw(_named(comparison)))

    def evaluation_work(self, episodes: int) -> int:
        return protocol_steps(episodes)


def _named(comparison: Comparison) -> Iterator[Evaluation]:
    """The evaluations, each with the name that its contender has beside the others."""
    for scored in comparison.scored:
        assert isinstance(scored.scores, Evaluation)
        yield dataclasses.replace(scored.scores, contender=scored.name)


SCORING = Cage2Scoring()
