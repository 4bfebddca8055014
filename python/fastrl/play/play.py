"""Episodes of a policy, one after another: evaluations, films, checks of exports and replays play them here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from fastrl.collectors.failures import failed
from fastrl.collectors.protocol import CollectError
from fastrl.envs import contract
from fastrl.runs.errors import HookError
from fastrl.utils.errors import UserError
from fastrl.utils.forks import end_copy

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv
    from fastrl.envs.record_episodes import Act as TeamAct

# Gives the action for an observation, an info and a state of memory, and the state after it. An episode starts with the
# state None.
Act = Callable[[Any, Mapping[str, Any], Any], tuple[Any, Any]]


class Playable(Protocol):
    """An environment of Gymnasium, or one that is stepped like it."""

    def reset(self, *, seed: Any) -> tuple[Any, Any]: ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]: ...


class Step(NamedTuple):
    """A step of an episode, or the reset that starts it.

    Attributes:
        episode: number of the episode, from 0 on.
        seed: of the episode.
        number: of the step; 0: the reset. Of the last step it is the length of the episode.
        obs, reward, terminated, truncated, info: of the environment; at the reset the reward is 0.
        action: that was taken; None at the reset.
        total: sum of the rewards so far. Of the last step it is the return of the episode.
        is_last: the episode ends, or is cut off.
        drawn: what ``draw`` gave.
    """

    episode: int
    seed: int | None
    number: int
    obs: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    total: float
    is_last: bool
    drawn: Any


def play(
    act: Act,
    env: Playable,
    seeds: Iterable[int | None],
    num_steps: int = 0,
    *,
    name: str,
    draw: Callable[[], Any] | None = None,
) -> Iterator[Step]:
    """Plays an episode of each seed, and yields its reset and its steps.

    Args:
        act: chooses the actions.
        seeds: of resets; None: the environment's generators continue.
        num_steps: after which an episode is cut off; 0: it ends by itself.
        name: of the environment, for errors.
        draw: called after each reset and step, for `Step.drawn`.

    Raises:
        CollectError: the environment raised, or broke its interface.
        UserError, HookError: as `act` and `draw` raise them.
    """
    owner = os.getpid()
    for episode, seed in enumerate(seeds):
        number, total, is_last, state = 0, 0.0, False, None
        try:
            obs, info = env.reset(seed=seed)
            drawn = None if draw is None else draw()
            end_copy(owner)
            yield Step(episode, seed, 0, obs, None, 0.0, False, False, info, 0.0, False, drawn)
            while not is_last:
                number += 1
                action, state = act(obs, info, state)
                obs, reward, terminated, truncated, info = env.step(action)
                drawn = None if draw is None else draw()
                end_copy(owner)
                reward = float(reward)
                total += reward
                is_last = bool(terminated or truncated or number == num_steps)
                ends = terminated, truncated
                yield Step(episode, seed, number, obs, action, reward, *ends, info, total, is_last, drawn)
        except GeneratorExit:
            raise
        except BaseException as error:
            end_copy(owner, error)
            if isinstance(error, contract.ContractError):
                raise CollectError(str(error)) from None
            if isinstance(error, UserError | CollectError | HookError) or not isinstance(
                error, Exception | SystemExit
            ):
                raise
            # Whatever an environment raises.
            where = f"at step {number} of the episode that reset(seed={seed}) started"
            raise failed(f"{name} failed {where}", error) from error


def episode_returns(
    act: Act,
    env: Playable,
    episodes: int,
    seed: int,
    num_steps: int,
    advance: Callable[[int], object],
    *,
    name: str,
) -> tuple[float, ...]:
    """The returns of episodes, on seeds that follow from one; arguments and errors as of `play`.

    Args:
        advance: called with 1 after each episode.
    """
    returns = []
    for step in play(act, env, episode_seeds(episodes, seed, 1), num_steps, name=name):
        if step.is_last:
            returns.append(step.total)
            advance(1)
    return tuple(returns)


def episode_seeds(episodes: int, *seed: int) -> list[int]:
    """Seeds of 31 bits for so many episodes, derived from the numbers of ``seed``."""
    return [int(each) >> 1 for each in np.random.SeedSequence(seed).generate_state(episodes)]


def team_seeds(seed: int, episodes: int) -> list[int]:
    """Seeds of the episodes of several agents that every policy is evaluated on; training has others."""
    return [int(each) for each in np.random.SeedSequence([seed, 1]).generate_state(episodes, np.uint64)]


class TeamEnv:
    """One environment of several agents. The reward is the mean of theirs. The info has ``alive`` bool [A], the agents
    that act next, and after a step ``rewards`` float32 [A] and ``ended`` bool [A], the agents whose episodes it ended.

    Args:
        env: a vector environment of one.
    """

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        self._env, space = env, env.single_observation_space
        self._obs_shape, self._obs_dtype = (env.num_agents, *(space.shape or ())), space.dtype
        self._terminated, self._truncated = np.empty((2, env.num_agents), np.bool_)

    def reset(self, *, seed: int | None) -> tuple[Any, Any]:
        obs, alive = self._env.reset(seed=seed)
        self._finished = self._env.episodes()["finished"][0]
        return obs[0], {"alive": alive[0]}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        agents = self._env.num_agents
        obs, rewards = np.empty(self._obs_shape, self._obs_dtype), np.empty(agents, np.float32)
        alive = np.empty(agents, np.bool_)
        self._env.step_into(action, obs, rewards, self._terminated, self._truncated, alive)
        is_over = not alive.any()
        if self._env.autoreset_mode is not AutoresetMode.DISABLED:
            # The next episode may have started.
            is_over = self._env.episodes()["finished"][0] != self._finished
        # As mean(), at a third of its cost.
        reward = rewards.sum() / agents
        info = {"alive": alive, "rewards": rewards, "ended": self._terminated | self._truncated}
        return obs, reward, is_over, False, info

    def mean_return(self) -> float:
        """The mean over the agents of their returns in the last episode."""
        return float(self._env.episodes()["return_mean"][0])


def team_act(act: TeamAct) -> Act:
    """Chooses the actions of all agents of a `TeamEnv`."""

    def chosen(obs: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        if state is not None:
            state[info["ended"]] = 0
        return act(obs, info["alive"], state)

    return chosen
