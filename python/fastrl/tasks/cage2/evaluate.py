"""The protocol of CAGE Challenge 2: scores of a defender against each red agent over each horizon."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from fastrl.envs.cage2.baselines import BASELINES, make_baseline
from fastrl.envs.cage2.env import RED_AGENTS, Cage2Games, Cage2VectorEnv, Ruleset
from fastrl.tasks import cage2
from fastrl.training.metrics import counted, mean_and_error, plus_minus
from fastrl.utils.config import ConfigError, nearest
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from fastrl.training.policy import Policy

HORIZONS = (30, 50, 100)
RULESETS: tuple[Ruleset, ...] = get_args(Ruleset)
RED_TITLES = {"bline": "B_line", "meander": "Meander", "sleep": "Sleep"}

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
        scan_memory: its observations have 62 values.
        make_act: makes its `Act` for an environment whose episodes start, from a seed of its own draws.
    """

    name: str
    scan_memory: bool
    make_act: Callable[[Any, int], Act]

    @classmethod
    def from_policy(cls, policy: "Policy", name: str, *, deterministic: bool = True) -> "Contender":
        """A trained policy."""

        def make_act(env: Any, seed: int) -> Act:
            # Episodes of all environments start with the first observation.
            states = np.zeros((env.num_envs, policy.state_size), np.float32) if policy.state_size else None
            return lambda obs: policy.act(
                obs, deterministic, env.action_masks() if policy.needs_action_mask else None, states
            )

        return cls(name, policy.needs_scan_memory, make_act)

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

        return cls(f"baseline:{name}", False, make_act)


@dataclass(frozen=True)
class Score:
    """Returns of episodes against one red agent over one horizon."""

    red_agent: str
    horizon: int
    episodes: int
    mean: float
    standard_error: float


@dataclass(frozen=True)
class Evaluation:
    """The scores of one contender on one ruleset."""

    contender: str
    ruleset: Ruleset
    seed: int
    scores: tuple[Score, ...]

    @property
    def total(self) -> float:
        """Sum of the means, the challenge's final score where all nine are there."""
        return sum(score.mean for score in self.scores)

    @property
    def total_standard_error(self) -> float:
        return math.sqrt(sum(score.standard_error**2 for score in self.scores))

    @property
    def mean_return(self) -> float:
        """The total, by which evaluations are compared."""
        return self.total

    @property
    def std_return(self) -> float:
        """Standard deviation of the total of one episode of each score."""
        return math.hypot(*(score.standard_error * math.sqrt(score.episodes) for score in self.scores))

    def numbers(self) -> dict[str, float]:
        """Scores by red agent and horizon, for a row of metrics."""
        return {f"{score.red_agent}_{score.horizon}": score.mean for score in self.scores}

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"total": self.total, "total_standard_error": self.total_standard_error}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_tree`."""
        scores = tuple(Score(**score) for score in tree["scores"])
        return cls(tree["contender"], tree["ruleset"], tree["seed"], scores)

    def show(self, console: Console) -> None:
        """Prints the table of scores."""
        show(console, score_table(self))
        console.print()


@dataclass(frozen=True)
class Published:
    """A result that others published. Scores by red agent and horizon, as far as they are known."""

    name: str
    ruleset: Ruleset
    scores: dict[tuple[str, int], float]
    total: float | None


def _published(name: str, ruleset: Ruleset, total: float | None, **scores: Sequence[float]) -> Published:
    cells = {
        (red, horizon): s for red, row in scores.items() for horizon, s in zip(HORIZONS, row, strict=True)
    }
    return Published(name, ruleset, cells, total)


# The challenge's final leaderboard, and known results on today's repository.
PUBLISHED = (
    _published(
        "CardiffUni (winner)",
        "leaderboard",
        -54.57,
        bline=(-3.47, -6.41, -13.76),
        meander=(-5.64, -8.69, -16.6),
        sleep=(0.0, 0.0, 0.0),
    ),
    _published("second place", "leaderboard", -56.9),
    _published("third place", "leaderboard", -57.05),
    _published("CardiffUni (winner)", "main", None, bline=(-5.05, -12.1, -36.0)),
    _published("best known, a graph network", "main", -58.2),
)


def evaluate(
    contender: Contender,
    *,
    ruleset: Ruleset,
    episodes: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Evaluation:
    """Scores a contender on ``episodes`` against each red agent over each horizon.

    With the same seed all contenders meet the same draws of the opponents, and scores are the same again.

    Args:
        options: further ones of `run_protocol`.
    """
    cells = run_protocol(contender, ruleset=ruleset, episodes=episodes, seed=seed, **options)
    scores = tuple(
        Score(red_agent, horizon, episodes, *mean_and_error(facts["return"]))
        for red_agent, horizon, facts in cells
    )
    return Evaluation(contender.name, ruleset, seed, scores)


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
            own_seed, seeds = episode_seeds(seed, red_agent, horizon, episodes)
            make = functools.partial(
                make_env,
                ruleset=ruleset,
                red_agent=red_agent,
                episode_length=horizon,
                scan_memory=contender.scan_memory,
                num_threads=num_threads,
                autoreset_mode="disabled",
            )

            def make_act(env: E, first: int, own_seed: int = own_seed) -> Act:
                return contender.make_act(env, own_seed + first)

            yield red_agent, horizon, run_episodes(make, make_act, seeds, facts=facts, advance=advance)


def episode_seeds(seed: int, red_agent: str, horizon: int, episodes: int) -> tuple[int, list[int]]:
    """A seed for the contender's own random draws, and one for each episode against a red agent over a horizon."""
    stream = np.random.SeedSequence([seed, RED_AGENTS.index(red_agent), horizon])
    own_seed, *seeds = map(int, stream.generate_state(episodes + 1, np.uint64))
    return own_seed, seeds


def run_episodes(
    make_env: Callable[[int], E],
    make_act: Callable[[E, int], Act],
    seeds: Sequence[int],
    *,
    facts: Callable[[E], Facts] = lambda env: {},
    advance: Callable[[int], object] = lambda steps: None,
) -> Facts:
    """Runs one episode of a game for each seed.

    Args:
        make_env: makes a vector environment of so many games, which does not reset itself.
        make_act: makes what chooses actions in it, from the environment and the place of its first seed.
        seeds: of the E episodes.
        facts: reads further facts, [N] each by name, of an environment whose episodes have ended.
        advance: called after each step with the number of games that took it.

    Returns:
        "return", float64 [E], sums of rewards unless ``facts`` has others, and all facts, [E] each.
    """
    parts = []
    for first in range(0, len(seeds), BATCH):
        batch = seeds[first : first + BATCH]
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
        parts.append({"return": returns, **facts(env)})
        env.close()
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def score_table(evaluation: Evaluation) -> Group:
    """The scores beside the winner's on the same ruleset, and the other published totals."""
    others = [other for other in PUBLISHED if other.ruleset == evaluation.ruleset]
    beside = [other for other in others if other.scores]
    table = Table(
        title=f"{evaluation.contender} on ruleset {evaluation.ruleset!r}",
    )
    table.add_column("red agent")
    table.add_column("steps", justify="right")
    table.add_column("score", justify="right")
    for other in beside:
        table.add_column(other.name, justify="right")
    for score in evaluation.scores:
        cells = (other.scores.get((score.red_agent, score.horizon)) for other in beside)
        table.add_row(
            RED_TITLES[score.red_agent],
            str(score.horizon),
            plus_minus(score.mean, score.standard_error),
            *("" if cell is None else f"{cell:.2f}" for cell in cells),
            end_section=score.horizon == HORIZONS[-1],
        )
    total = plus_minus(evaluation.total, evaluation.total_standard_error)
    table.add_row(
        "total", "", total, *("" if other.total is None else f"{other.total:.2f}" for other in beside)
    )
    episodes = evaluation.scores[0].episodes
    notes = f"Means of {counted(episodes, 'episode')} each ± their standard errors; seed {evaluation.seed}."
    totals = [f"{other.name} {other.total:.2f}" for other in others if not other.scores]
    return Group(table, notes, f"Published totals: {', '.join(totals)}.")


class Cage2Scoring:
    """The part of the task that ``fastrl eval`` needs for baselines, which loads no PyTorch. Its methods are those of
    `fastrl.training.task.Task`."""

    name: ClassVar[str] = cage2.NAME
    evaluation_options: ClassVar[Sequence[str]] = ("ruleset", "stochastic", "device")

    def evaluation_variants(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        ruleset = options.get("ruleset", "both")
        rulesets = RULESETS if ruleset == "both" else [ruleset]
        return [{**options, "ruleset": each} for each in rulesets]

    def evaluate_baseline(
        self,
        name: str,
        *,
        episodes: int,
        seed: int,
        advance: Callable[[int], object],
        ruleset: Ruleset | None = None,
        **options: Any,
    ) -> Evaluation:
        if name not in BASELINES:
            raise ConfigError(f"unknown baseline {name}; did you mean {nearest(name, BASELINES)}?")
        contender = Contender.from_baseline(name)
        return evaluate(contender, ruleset=ruleset or "main", episodes=episodes, seed=seed, advance=advance)

    def scores_tree(self, name: str, scores: Any) -> dict[str, Any]:
        return {"run": name, **dataclasses.replace(scores, contender=name).to_tree()}

    def show_scores(self, scores: Sequence[tuple[str, Any]], console: Console) -> None:
        for name, each in scores:
            dataclasses.replace(each, contender=name).show(console)

    def evaluation_work(self, episodes: int) -> int:
        return protocol_steps(episodes)
