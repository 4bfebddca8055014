"""Comparison of an exported policy with the policy that it came from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.adapters.parallel_copy import mask_of
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.play.episodes import build_any
from fastrl.play.play import Step, TeamEnv, episode_seeds, play
from fastrl.training.task import Task

# Actions may differ where two are as good as equally good.
MARGIN = 1e-5

# Relative and absolute difference of continuous actions that rounding may make.
TOLERANCE = 1e-5

# Steps after which episodes are cut off where there is no other limit.
_STEPS = 10_000


@dataclass
class Comparison:
    """Actions of both for the same observations.

    Attributes:
        actions: how many were compared.
        different: those that differ where the best action is better by `MARGIN`, or by more than `TOLERANCE`.
        ties: those that differ where it is not.
        largest: difference of two numbers of continuous actions.
        episodes, mean_return: of the environment in which both were played; 0 if they were not.
        quantization: what int8 was measured with, if it was asked for.
        code: numpy that acts with the arrays of a .npz file.
    """

    actions: int = 0
    different: int = 0
    ties: int = 0
    largest: float = 0.0
    episodes: int = 0
    mean_return: float = 0.0
    quantization: Any = None
    code: str = ""

    def add(self, ours: Any, theirs: Any, outputs: NDArray[np.float32]) -> None:
        """Counts actions of both, one or [N, ...], and the network's outputs [N, ...] for them."""
        count = len(outputs)
        ours, theirs = np.asarray(ours).reshape(count, -1), np.asarray(theirs).reshape(count, -1)
        self.actions += count
        if theirs.dtype.kind == "f":
            gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(1)
            self.largest = max(self.largest, float(gap.max()))
            scale = np.abs(theirs.astype(np.float64)).max(1)
            self.different += int((gap > TOLERANCE * (1 + scale)).sum())
            return
        wrong = (ours != theirs).any(1)
        if not wrong.any():
            return
        best = np.sort(outputs.reshape(count, -1).astype(np.float64), 1)
        close = np.diff(best, axis=1).min(1) < MARGIN if best.shape[1] > 1 else np.ones(count, np.bool_)
        self.different += int((wrong & ~close).sum())
        self.ties += int((wrong & close).sum())

    def __str__(self) -> str:
        played = f" in {self.episodes} episodes, mean return {self.mean_return:.6g}" if self.episodes else ""
        ties = f", {self.ties} more where two are equally good" if self.ties else ""
        return (
            f"{self.actions:,} actions{played}: {self.different} differ{ties}; the largest difference of a number is"
            f" {self.largest:.1e}"
        )


def on_samples(
    model: Any, policy: Any, space: Any, count: int, *, seed: int = 0, batch: int = 256
) -> Comparison:
    """Compares greedy actions on observations that are drawn from the space, each the start of an episode.

    Args:
        model: has `predict`, see `fastrl.model.Model`.
        policy: a `fastrl.runtime.Policy`, or one with its methods.
        space: the observation space; of agents with names a dict of them by agent.
        count: observations.
    """
    found = Comparison()
    frames = stacks(policy)
    for size in _batches(count, batch):
        obs: Any
        if isinstance(space, Mapping) and not isinstance(space, gymnasium.spaces.Dict):
            obs = {agent: value_of(child, _sample(child, 1, seed)) for agent, child in space.items()}
            seed += 1
            _add_team(found, model, policy, obs)
            continue
        obs = _sample(space, size, seed)
        seed += 1
        given, state = obs, None
        if frames:
            given, state = (
                obs[..., -1],
                tuple(
                    np.concatenate([obs[..., :1], obs[..., :-1]], -1)
                    if each["name"] == "frames"
                    else np.zeros((size, *each["shape"]), each["dtype"])
                    for each in policy.metadata["states"]
                ),
            )
        theirs, ours = model.predict(obs)[0], policy.predict(given, state)[0]
        found.add(ours, theirs, policy.outputs(given, state))
    return found


def _add_team(
    found: Comparison,
    model: Any,
    policy: Any,
    obs: Any,
    alive: Any = None,
    states: Any = (None, None),
    masks: Any = None,
) -> tuple[Any, tuple[Any, Any]]:
    """Counts the actions of agents for their observations, and returns the model's, and the states after them.

    Args:
        alive: agents that act, bool [A]; None for agents with names.
        states: of the model and of the export.
    """
    (theirs, model_state), (ours, policy_state) = (
        each.predict(obs, state, action_masks=masks)
        for each, state in zip((model, policy), states, strict=True)
    )
    outputs = policy.outputs(obs, states[1], action_masks=masks)
    if alive is not None:
        found.add(ours[alive], theirs[alive], outputs[0][alive])
        return theirs, (model_state, policy_state)
    for agent, action in theirs.items():
        found.add(ours[agent], action, outputs[:, policy.metadata["agents"].index(str(agent))])
    return theirs, (model_state, policy_state)


def value_of(space: Any, batch: Any) -> Any:
    """The first observation of a batch."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: value_of(child, batch[key]) for key, child in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(value_of(child, each) for child, each in zip(space.spaces, batch, strict=True))
    return batch[0]


def _sample(space: Any, count: int, seed: int) -> Any:
    batched: Any = batch_space(space, count)
    batched.seed(seed)
    sampled = batched.sample()
    if isinstance(space, Discrete | MultiDiscrete):
        return np.asarray(sampled, np.int64)
    return sampled


def _batches(count: int, batch: int) -> Iterator[int]:
    # One alone and an odd number show graphs that are for one size of a batch.
    sizes = [1, min(7, count)]
    while sum(sizes) < count:
        sizes.append(min(batch, count - sum(sizes)))
    return iter(sizes)


def newest(policy: Any, obs: Any) -> Any:
    """The part of an observation that an export takes: the newest frame, or all of it."""
    return obs[..., -1] if stacks(policy) else obs


def stacks(policy: Any) -> bool:
    """True for an export that takes the newest frame alone and keeps those before."""
    return any(each["name"] == "frames" for each in policy.metadata["states"])


def in_episodes(
    model: Any, task: Task, settings: Any, policy: Any, episodes: int, *, seed: int = 0
) -> Comparison:
    """Plays the policy, and compares the export's greedy actions for the same observations and memory of its own.

    Args:
        model: has `predict`, see `fastrl.model.Model`.
        task, settings: of the run.
        policy: a `fastrl.runtime.Policy`, or one with its methods.
        seed: of the episodes.

    Raises:
        TrainError, CollectError: the environment cannot be built.
    """
    found, returns = Comparison(), []

    def act(obs: Any, masks: Any, state: Any) -> tuple[Any, Any]:
        theirs, state = model.predict(obs, state, action_masks=masks)
        given, before = newest(policy, obs), policy._state
        ours = policy.act(given, action_masks=masks)
        found.add(ours, theirs, policy.outputs(given, before, action_masks=masks))
        return theirs, state

    for step in play_run(act, task, settings, episode_seeds(episodes, seed, 1)):
        if step.number == 0:
            policy.reset()
        if step.is_last:
            returns.append(step.total)
    found.episodes, found.mean_return = episodes, float(np.mean(returns))
    return found


def play_run(
    act: Callable[[Any, Any, Any], tuple[Any, Any]], task: Task, settings: Any, seeds: list[int]
) -> Iterator[Step]:
    """Plays episodes in the environment of a run, see `fastrl.play.play.play`; of a vector environment in all of
    its environments until one ends, where the reward is their mean.

    Args:
        act: is given the action masks, None if there are none, in place of infos.
        task, settings: of the run.
    """
    spec, has_masks = task.play_spec(settings), task.has_action_masks(settings)
    env = build_any(spec, 1)
    limit = task.play_steps(settings) or _STEPS
    try:
        yield from play(
            lambda obs, info, state: act(obs, _masks_of(env, info) if has_masks else None, state),
            _Together(env) if isinstance(env, VectorEnv) else env,
            seeds,
            limit,
            name=spec.id,
        )
    finally:
        env.close()


class _Together:
    """A vector environment whose environments end together."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.reset: Callable[..., tuple[Any, Any]] = env.reset
        self._env = env

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        obs, rewards, terminated, truncated, info = self._env.step(action)
        return obs, rewards.mean(), terminated.any(), truncated.any(), info


def in_team_episodes(
    model: Any, task: Task, settings: Any, policy: Any, episodes: int, *, seed: int = 0
) -> Comparison:
    """Compares actions of several agents as `in_episodes` does; in each step of those that act.

    The mean return is that of episodes, of each the mean over its agents.
    """
    env, found, has_masks = task.team_env(settings), Comparison(), task.has_action_masks(settings)
    is_rows = isinstance(env, MultiAgentVectorEnv)
    team: TeamEnv | _NamedTeam = TeamEnv(env) if is_rows else _NamedTeam(env)

    def act(obs: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        states = state or (None, None)
        if isinstance(team, _NamedTeam):
            named = None
            if has_masks:
                named = {agent: np.asarray(mask_of(agent, obs, info), np.bool_) for agent in obs}
            return _add_team(found, model, policy, obs, None, states, named)
        model_state, policy_state = states
        if model_state is not None and policy_state is not None:
            model_state[info["ended"]] = 0
            policy_state[0][:, info["ended"]] = 0
        masks = env.action_masks() if has_masks else None
        return _add_team(found, model, policy, obs, info["alive"], states, masks)

    # An environment of rows ends its episodes itself.
    limit = 0 if isinstance(team, TeamEnv) else task.play_steps(settings) or _STEPS
    try:
        steps = play(
            act, team, episode_seeds(episodes, seed, 1), limit, name=model.policy_checkpoint["environment"]
        )
        returns = [team.mean_return() for step in steps if step.is_last]
    finally:
        env.close()
    found.episodes, found.mean_return = episodes, float(np.mean(returns))
    return found


class _NamedTeam:
    """A parallel environment of PettingZoo, whose observations are those of the agents that act."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, *, seed: int | None) -> tuple[Any, Any]:
        self._returns: dict[Any, float] = {}
        obs, infos = self._env.reset(seed=seed)
        return {agent: obs[agent] for agent in self._env.agents}, infos

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        obs, rewards, _, _, infos = self._env.step(action)
        for agent in action:
            self._returns[agent] = self._returns.get(agent, 0.0) + float(rewards[agent])
        acting = {agent: obs[agent] for agent in self._env.agents}
        return acting, 0.0, not acting, False, infos

    def mean_return(self) -> float:
        """Mean return of the agents that acted, see `TeamEnv`."""
        return float(np.mean(list(self._returns.values())))


def _masks_of(env: Any, info: Mapping[str, Any]) -> Any:
    """The action masks of the environment."""
    if isinstance(env, VectorEnv):
        return env.action_masks()  # type: ignore[attr-defined]
    method = contract.mask_method(env)
    return np.asarray(info["action_mask"] if method is None else method(), np.bool_)
