"""Comparison of an exported policy with the policy that it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.training.episodes import build_any
from fastrl.training.task import Task

# Actions may differ where two are as good as equally good.
MARGIN = 1e-5

# Relative and absolute difference of continuous actions that rounding may make.
TOLERANCE = 1e-5


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

    def add(self, ours: Any, theirs: Any, outputs: NDArray[np.float32], is_box: bool) -> None:
        """Counts actions [N, ...] of both, and the network's outputs for them."""
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        count = len(ours)
        self.actions += count
        if is_box:
            gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).reshape(count, -1).max(1)
            self.largest = max(self.largest, float(gap.max()))
            scale = np.abs(theirs.astype(np.float64)).reshape(count, -1).max(1)
            self.different += int((gap > TOLERANCE * (1 + scale)).sum())
            return
        wrong = (ours != theirs).reshape(count, -1).any(1)
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
            obs = {agent: value_of(own, _sample(own, 1, seed)) for agent, own in space.items()}
            seed += 1
            theirs, ours = model.predict(obs)[0], policy.predict(obs)[0]
            outputs = policy.outputs(obs)
            for a, agent in enumerate(obs):
                is_box = np.asarray(theirs[agent]).dtype.kind == "f"
                found.add([ours[agent]], [theirs[agent]], outputs[:, a], is_box)
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
        found.add(ours, theirs, policy.outputs(given, state), np.asarray(theirs).dtype.kind == "f")
    return found


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
    env = build_any(task.play_spec(settings), 1)
    has_masks, limit = task.has_action_masks(settings), task.play_steps(settings) or 10_000
    found, returns = Comparison(), []
    is_vector, frames = isinstance(env, VectorEnv), stacks(policy)
    for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
        obs, info = env.reset(seed=int(number) >> 1)
        policy.reset()
        state, total = None, 0.0
        for _ in range(limit):
            masks = masks_of(env, info) if has_masks else None
            theirs, state = model.predict(obs, state, action_masks=masks)
            given = obs[..., -1] if frames else obs
            before = policy._state
            ours = policy.act(given, action_masks=masks)
            outputs = policy.outputs(given, before, action_masks=masks)
            is_box = np.asarray(theirs).dtype.kind == "f"
            if is_vector:
                found.add(ours, theirs, outputs, is_box)
            else:
                found.add([ours], [theirs], outputs, is_box)
            obs, reward, terminated, truncated, info = env.step(theirs)
            total += float(np.asarray(reward).sum())
            if np.any(terminated) or np.any(truncated):
                break
        returns.append(total)
    env.close()
    found.episodes, found.mean_return = episodes, float(np.mean(returns))
    return found


def in_team_episodes(
    model: Any, task: Task, settings: Any, policy: Any, episodes: int, *, seed: int = 0
) -> Comparison:
    """As `in_episodes`, of several agents: compares the actions of those that act in each step.

    The mean return is that of episodes, of each the mean over its agents.
    """
    env = task.team_env(settings)
    play = _team_of_rows if isinstance(env, MultiAgentVectorEnv) else _team_of_names
    found = Comparison()
    try:
        seeds = np.random.SeedSequence([seed, 1]).generate_state(episodes)
        limit = task.play_steps(settings) or 10_000
        returns = [play(model, policy, env, int(number) >> 1, limit, found) for number in seeds]
    finally:
        env.close()
    found.episodes, found.mean_return = episodes, float(np.mean(returns))
    return found


def _team_of_rows(
    model: Any, policy: Any, env: MultiAgentVectorEnv, seed: int, limit: int, found: Comparison
) -> float:
    """Plays an episode of agents that observe rows, which the environment itself ends; returns the agents' mean
    return."""
    obs, alive = (each[0] for each in env.reset(seed=seed))
    before = int(env.episodes()["finished"][0])
    while int(env.episodes()["finished"][0]) == before:
        theirs, ours = model.predict(obs)[0], policy.predict(obs)[0]
        outputs = policy.outputs(obs)[0]
        found.add(ours[alive], theirs[alive], outputs[alive], theirs.dtype.kind == "f")
        after = env.step(theirs[None])
        obs, alive = after[0][0], after[4][0]
    return float(env.episodes()["return_mean"][0])


def _team_of_names(model: Any, policy: Any, env: Any, seed: int, limit: int, found: Comparison) -> float:
    """Plays an episode of a parallel environment of PettingZoo; returns the mean return of the agents that acted."""
    obs, _ = env.reset(seed=seed)
    places = {name: a for a, name in enumerate(policy.metadata["agents"])}
    returns: dict[Any, float] = {}
    for _ in range(limit):
        acting = {agent: obs[agent] for agent in env.agents}
        if not acting:
            break
        theirs, ours = model.predict(acting)[0], policy.predict(acting)[0]
        outputs = policy.outputs(acting)
        for agent, action in theirs.items():
            is_box = np.asarray(action).dtype.kind == "f"
            found.add([ours[agent]], [action], outputs[:, places[str(agent)]], is_box)
        obs, rewards, *_ = env.step(theirs)
        for agent in theirs:
            returns[agent] = returns.get(agent, 0.0) + float(rewards[agent])
    return float(np.mean(list(returns.values())))


def masks_of(env: Any, info: Mapping[str, Any]) -> Any:
    """The action masks of the environment."""
    if isinstance(env, VectorEnv):
        return env.action_masks()  # type: ignore[attr-defined]
    method = contract.mask_method(env)
    return np.asarray(info["action_mask"] if method is None else method(), np.bool_)
