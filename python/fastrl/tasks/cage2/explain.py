"""Explanations of a game of CAGE Challenge 2: at each step, the returns that other actions would have brought."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import HOSTS, RED_AGENTS, RED_KINDS, Cage2VectorEnv
from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.scenario import Cage2Scenario, challenge
from fastrl.runs.metrics import mean_and_error
from fastrl.tasks.cage2.defence import restored_hosts
from fastrl.utils.tables import print_lines, show

if TYPE_CHECKING:
    from rich.console import Console

    from fastrl.play.policy import Policy

# A regret is clear where it is above so many standard errors: the best of eight actions that are worth the same is
# about once in a hundred steps.
CLEAR = 3.0

_RESTORE_COST = 1.0
# Words for the two bits of a host's activity, as a number, and for those of blue's belief, the worst first.
_ACTIVITY = {0b10: "scan of", 0b11: "exploit on"}
_BELIEF = {0b11: "root", 0b01: "user", 0b10: "unknown"}


@dataclass(frozen=True)
class Alternative:
    """An action that might have been taken, and what followed in continuations of the game.

    Attributes:
        action: its name.
        probability: that the policy gives it; of a policy that learns values of actions, 1 for the best.
        mean, error: return from this step to the end of the episode, and its standard error.
        gain, gain_error: mean difference to the return of the action that was taken, in the same continuations.
        costs: float64 [hosts], mean cost by host from this step to the end; see `costs_by_host`.
    """

    action: str
    probability: float
    mean: float
    error: float
    gain: float
    gain_error: float
    costs: NDArray[np.float64]

    def to_tree(self, hosts: tuple[str, ...]) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "costs": _named(self.costs, hosts)}


@dataclass(frozen=True)
class ExplainedStep:
    """A step of the game.

    Attributes:
        number: from 1 on.
        seen: what the defender saw before it, in words.
        action: that it took.
        red: what red did in this step, which the defender does not see; "" where it slept.
        reward: of the step.
        red_access: uint8 [hosts], of each host after the step: 0 none, 1 user, 2 root.
        costs: float64 [hosts], of the step by host.
        alternatives: the actions that were compared, with the one that was taken first; none: the step was left out.
    """

    number: int
    seen: str
    action: str
    red: str
    reward: float
    red_access: NDArray[np.uint8]
    costs: NDArray[np.float64]
    alternatives: Sequence[Alternative]

    @property
    def best(self) -> Alternative | None:
        """The alternative with the highest mean return: the action that was taken, unless another one has more."""
        return max(self.alternatives, key=lambda each: each.gain, default=None)

    @property
    def regret(self) -> float:
        """The gain of the best alternative; 0 where it was taken."""
        return self.best.gain if self.best else 0.0

    @property
    def is_clear(self) -> bool:
        """True if the regret is above `CLEAR` standard errors."""
        return self.best is not None and self.best.gain > CLEAR * self.best.gain_error

    @property
    def saved(self) -> NDArray[np.float64]:
        """The regret by host, float64 [hosts]: what each would have cost less after the best alternative."""
        if self.best is None:
            return np.zeros(len(self.costs))
        return self.alternatives[0].costs - self.best.costs

    def to_tree(self, hosts: tuple[str, ...]) -> dict[str, Any]:
        return {
            "step": self.number,
            "seen": self.seen,
            "action": self.action,
            "red": self.red,
            "reward": self.reward,
            "red_access": dict(zip(hosts, self.red_access.tolist(), strict=True)),
            "costs": _named(self.costs, hosts),
            "best": None if self.best is None else self.best.action,
            "regret": self.regret,
            "regret_error": None if self.best is None else self.best.gain_error,
            "is_clear": self.is_clear,
            "regret_by_host": _named(self.saved, hosts),
            "alternatives": [each.to_tree(hosts) for each in self.alternatives],
        }


@dataclass(frozen=True)
class Explanation:
    """A game, step by step.

    Attributes:
        seed: of the game.
        red_agent: that attacked.
        continuations: of each alternative.
        steps: all of the episode.
        network: in which it was played.
    """

    seed: int
    red_agent: str
    continuations: int
    steps: Sequence[ExplainedStep]
    network: Cage2Scenario

    @property
    def total(self) -> float:
        """The return of the game."""
        return sum(step.reward for step in self.steps)

    def costs(self) -> NDArray[np.float64]:
        """The cost of the game by host, float64 [hosts]."""
        return np.sum([step.costs for step in self.steps], axis=0)

    def regrets(self) -> NDArray[np.float64]:
        """The sum of the clear regrets by host, float64 [hosts]."""
        return np.sum([step.saved * step.is_clear for step in self.steps], axis=0)

    def to_tree(self) -> dict[str, Any]:
        """Values of JSON."""
        hosts = self.network.hosts
        return {
            "seed": self.seed,
            "red_agent": self.red_agent,
            "continuations": self.continuations,
            "return": self.total,
            "costs": _named(self.costs(), hosts),
            "clear_regret_by_host": _named(self.regrets(), hosts),
            "steps": [step.to_tree(hosts) for step in self.steps],
        }

    def show(self, console: Console) -> None:
        """Prints a table of the steps that were explained, and one of the hosts that mattered."""
        from rich.table import Table

        steps = Table(title=f"seed {self.seed}, attacker {self.red_agent}: return {self.total:.1f}")
        for name, justify in (("step", "right"), ("seen", "left"), ("action", "left"), ("reward", "right")):
            steps.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name, justify in (("best alternative", "left"), ("regret", "right"), ("most of it", "left")):
            steps.add_column(name, justify=justify)  # type: ignore[arg-type]
        for step in self.steps:
            if step.best is None:
                continue
            last = ("", "", "")
            if step.regret:
                regret = f"{step.regret:.2f} ± {step.best.gain_error:.2f}"
                host = self.network.hosts[int(step.saved.argmax())]
                last = step.best.action, regret, host if step.is_clear else ""
            cells = str(step.number), step.seen, step.action, f"{step.reward:.1f}", *last
            steps.add_row(*cells, style="bold" if step.is_clear else None)
        hosts = Table(title="hosts that mattered")
        hosts.add_column("host")
        for name in ("cost", "clear regret"):
            hosts.add_column(name, justify="right")
        costs, regrets = self.costs(), self.regrets()
        for host in np.argsort(-costs - np.abs(regrets), kind="stable"):
            if abs(costs[host]) >= 0.05 or abs(regrets[host]) >= 0.05:
                hosts.add_row(self.network.hosts[host], f"{costs[host]:.1f}", f"{regrets[host]:.1f}")
        show(console, steps, hosts)
        explained = [step for step in self.steps if step.alternatives]
        clear = [step for step in explained if step.is_clear]
        print_lines(
            console,
            f"{len(clear)} of {len(explained)} steps have a regret above {CLEAR:g} standard errors,"
            f" {sum(step.regret for step in clear):.1f} in all; {self.continuations} continuations of each alternative",
        )


def costs_by_host(
    red_access: NDArray[np.uint8],
    actions: NDArray[np.int64],
    rewards: NDArray[np.float64],
    ruleset: Ruleset = "main",
    network: Cage2Scenario | None = None,
) -> NDArray[np.float64]:
    """The costs of one step of N games by the host that each comes from, float64 [N, hosts]. They add up to rewards.

    A host on which red is root costs its value, 1 or 0.1 in the challenge, on the ruleset plusplus also one on which it
    is a user. A Restore costs 1 on its host. What is left is the price of Impact, on Op_Server0.

    Args:
        red_access: [N, hosts], after the step: 0 none, 1 user, 2 root.
        actions: [N], indices into those of the network.
        rewards: [N].
        network: None for the challenge's.
    """
    network = network or challenge()
    costs = np.where(red_access >= (1 if ruleset == "plusplus" else 2), network.native.root_costs, 0.0)
    restored = restored_hosts(network)[actions]
    restores = np.flatnonzero(restored >= 0)
    costs[restores, restored[restores]] += _RESTORE_COST
    costs[:, network.native.target] += np.round(-rewards - costs.sum(axis=1), 6)
    return costs


def in_words(bits: NDArray[np.float32], hosts: tuple[str, ...] = HOSTS) -> str:
    """The four bits of each host in words: the activity of the last step, and the hosts that the defender holds for
    red's."""
    activity, belief = (bits[: 4 * len(hosts)].astype(np.int64).reshape(-1, 2, 2) @ (2, 1)).T
    words = [f"{_ACTIVITY[int(activity[host])]} {hosts[host]}" for host in np.flatnonzero(activity)]
    for code, name in _BELIEF.items():
        if (belief == code).any():
            words.append(f"{name}: {', '.join(hosts[host] for host in np.flatnonzero(belief == code))}")
    return "; ".join(words) or "nothing"


def explain(
    policy: Policy,
    options: Mapping[str, Any],
    seed: int,
    *,
    continuations: int = 200,
    most: int = 8,
    steps: range | None = None,
    num_threads: int = 0,
    advance: Callable[[int], object] = lambda done: None,
) -> Explanation:
    """Plays a game with the policy's most probable actions, and compares them with others.

    An alternative is taken in the true state of the game, red's plans included, which the defender cannot see; the
    policy then plays to the end of the episode. Continuation k of all alternatives of a step has one random stream.

    Args:
        options: of the games, as of `fastrl.envs.Cage2VectorEnv`.
        seed: of the game, as of `reset`, and of the streams.
        most: alternatives that are compared, the most probable ones, the chosen one among them; 0: all that the
            game's masks allow.
        steps: numbers of the steps that are explained; None: all.
        advance: called with 1 after each step of the game.

    Raises:
        PredictError: the policy does not fit, or gives actions no probabilities.
    """
    own = {"memory": policy.memory, "observe": policy.observe, "actions": None, "num_threads": num_threads}
    env = Cage2VectorEnv(1, **{**options, **own, "autoreset_mode": "disabled"})
    network = env.network
    obs, _ = env.reset(seed=seed)
    memory = np.zeros((1, policy.state_size), np.float32) if policy.state_size else None
    played = []
    for number in range(1, env.episode_length + 1):
        state, before = env.save_state(0), None if memory is None else memory.copy()
        chosen = int(_act(policy, env, obs, memory)[0])
        alternatives: Sequence[Alternative] = ()
        if steps is None or number in steps:
            ranked = _ranked(policy, env, obs, before, chosen)
            compared = ranked[: most or None]
            streams = np.random.SeedSequence([seed, number]).generate_state(continuations, np.uint64)
            games = env.branch(state, len(compared) * continuations, seed=np.tile(streams, len(compared)))
            found = continued(policy, games, memory, np.repeat([a for a, _ in compared], continuations))
            alternatives = _alternatives(compared, network.actions, *found)
            games.close()
        seen = in_words(obs[0], network.hosts)
        obs, rewards, *_ = env.step([chosen])
        truth = env.truth()
        costs = costs_by_host(truth["red_access"], np.array([chosen]), rewards, env.ruleset, network)[0]
        red, access = _red_action(network, *truth["red_action"][0]), truth["red_access"][0]
        reward = float(rewards[0])
        played.append(
            ExplainedStep(number, seen, network.actions[chosen], red, reward, access, costs, alternatives)
        )
        advance(1)
    red_agent = RED_AGENTS[env.red_agents()[0]]
    env.close()
    return Explanation(seed, red_agent, continuations, played, network)


def _act(
    policy: Policy, env: Cage2VectorEnv, obs: Any, memory: NDArray[np.float32] | None
) -> NDArray[np.int64]:
    actions: NDArray[np.int64] = policy.act(
        obs, True, env.action_masks() if policy.needs_action_mask else None, memory
    )
    return actions


def _ranked(
    policy: Policy, env: Cage2VectorEnv, obs: Any, memory: NDArray[np.float32] | None, chosen: int
) -> list[tuple[int, float]]:
    """The actions that the game's masks allow with their probabilities: the chosen one, then by the policy's order."""
    mask = env.action_masks()[:, policy.actions]
    found = policy.distribution(obs, memory, mask if policy.needs_action_mask else None)
    chances: NDArray[np.float32] = found.distribution.probs[0].numpy()  # type: ignore[attr-defined]
    order = chances if found.action_values is None else found.action_values[0].numpy()
    places = [int(i) for i in np.argsort(-order, kind="stable") if mask[0, i] or policy.actions[i] == chosen]
    ranked = [(int(policy.actions[i]), float(chances[i])) for i in places]
    return sorted(ranked, key=lambda each: each[0] != chosen)


def continued(
    policy: Policy, games: Cage2VectorEnv, memory: NDArray[np.float32] | None, actions: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns [N] and costs by host [N, hosts] of games that take these actions [N], then the policy's, to the end.

    Args:
        memory: [1, state_size], of the policy at the first of them.
    """
    n = games.num_envs
    states = None if memory is None else np.repeat(memory, n, axis=0)
    obs, rewards, ends = np.empty((n, policy.obs_dim), np.float32), np.empty(n), np.zeros((2, n), np.bool_)
    returns, costs = np.zeros(n), np.zeros((n, len(games.hosts)))
    network = games.network
    while not ends[1].all():
        games.step_into(actions, obs, rewards, *ends)
        returns += rewards
        costs += costs_by_host(games.truth()["red_access"], actions, rewards, games.ruleset, network)
        if not ends[1].all():
            actions = _act(policy, games, obs, states)
    return returns, costs


def _alternatives(
    compared: Sequence[tuple[int, float]],
    names: Sequence[str],
    returns: NDArray[np.float64],
    costs: NDArray[np.float64],
) -> list[Alternative]:
    """The compared actions with their statistics, the taken one first, from returns [A * K] and costs of as many games
    by host."""
    each = returns.reshape(len(compared), -1)
    by_host = costs.reshape(*each.shape, -1).mean(axis=1)
    return [
        Alternative(names[action], chance, *mean_and_error(mine), *mean_and_error(mine - each[0]), lost)
        for (action, chance), mine, lost in zip(compared, each, by_host, strict=True)
    ]


def _red_action(network: Cage2Scenario, kind: int, target: int, success: int) -> str:
    """Red's action in words; "" where it slept."""
    if not kind:
        return ""
    names = network.subnets if RED_KINDS[kind] == "DiscoverRemoteSystems" else network.hosts
    failed = " failed" if success == 0 else ""
    return f"{RED_KINDS[kind]} {names[target] if target >= 0 else ''}".rstrip() + failed


def _named(by_host: NDArray[np.float64], hosts: tuple[str, ...]) -> dict[str, float]:
    """Numbers by host, without those of hosts that have none."""
    return {hosts[host]: round(float(by_host[host]), 4) for host in np.flatnonzero(np.abs(by_host) >= 5e-5)}
