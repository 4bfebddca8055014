"""Trajectories of the environments of a batch, in the same form for every autoreset mode."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array


class Event(NamedTuple):
    """A reset, or a step with its true next observation."""

    kind: str
    obs: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


Trajectory = list[list[Event]]  # of each environment


class Driver:
    """A driver that steps a vector environment and records the events of each environment index.

    Each environment has its own list of random actions and takes one from it for each step that counts, so its actions
    depend neither on the autoreset mode nor on the other environments.

    Args:
        env: the vector environment; its attribute ``autoreset_mode`` is not used.
        mode: its autoreset mode.
        seed: list k is drawn with ``seed + k``.
        num_actions: length of each list, which is repeated.
        lists: the list of each environment; by default list i for environment i.
    """

    def __init__(
        self,
        env: VectorEnv,
        mode: AutoresetMode,
        seed: int,
        num_actions: int,
        lists: Sequence[int] | None = None,
    ) -> None:
        self.env = env
        self.mode = mode
        self.events: Trajectory = [[] for _ in range(env.num_envs)]
        self.ended = np.zeros(env.num_envs, np.bool_)
        self.other_actions_at_resets = False
        self._taken = [0] * env.num_envs
        self._actions = [
            sample(env.single_action_space, seed + i, num_actions) for i in lists or range(env.num_envs)
        ]

    def reset(self, seed: Any = None) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(seed=seed)
        self.record_reset(result[0], range(self.env.num_envs))
        return result

    def step(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Calls ``step``, in DISABLED mode after a reset of the environments that ended; returns its result."""
        if self.mode == AutoresetMode.DISABLED and self.ended.any():
            obs, _ = self.env.reset(options={"reset_mask": self.ended.copy()})
            self.record_reset(obs, np.flatnonzero(self.ended))
        resetting = self.ended if self.mode == AutoresetMode.NEXT_STEP else np.zeros_like(self.ended)
        result = self.env.step(self._next_actions(resetting))
        obs, rewards, terminations, truncations, info = result
        self.ended = np.logical_or(terminations, truncations) & ~resetting
        same_step = self.mode == AutoresetMode.SAME_STEP
        for i in np.flatnonzero(~resetting):
            self._taken[i] += 1
            in_info = same_step and self.ended[i] and "final_obs" in info
            last = member(info["final_obs"] if in_info else obs, i)
            flags = bool(terminations[i]), bool(truncations[i])
            self.events[i].append(Event("step", copy.deepcopy(last), float(rewards[i]), *flags))
        if not same_step:
            self.record_reset(obs, np.flatnonzero(resetting))
        else:
            for i in np.flatnonzero(self.ended):
                self.events[i].append(Event("reset", copy.deepcopy(member(obs, i))))
        return result

    def run(self, steps: int) -> Trajectory:
        for _ in range(steps):
            self.step()
        return self.events

    def run_to_an_end(self, limit: int) -> None:
        """Steps until some episode has ended.

        Raises:
            AssertionError: no episode has ended within ``limit`` steps.
        """
        for _ in range(limit):
            self.step()
            if self.ended.any():
                return
        raise AssertionError(f"expected some episode to end within {limit} steps, got none")

    def record_reset(self, obs: Any, indices: Iterable[Any]) -> None:
        for i in indices:
            self.events[i].append(Event("reset", copy.deepcopy(member(obs, i))))
            self.ended[i] = False

    def bookmark(self) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """The driver's own state, which belongs to a saved state of the environment."""
        return list(self._taken), self.ended.copy()

    def future(self, bookmark: tuple[list[int], npt.NDArray[np.bool_]], steps: int) -> Trajectory:
        """The trajectory from the bookmark on, in an environment whose state was saved or restored at it."""
        taken, ended = bookmark
        self._taken, self.ended = list(taken), ended.copy()
        self.events = [[] for _ in self._taken]
        return self.run(steps)

    def _next_actions(self, resetting: npt.NDArray[np.bool_]) -> Any:
        actions = []
        for acts, taken, is_resetting in zip(self._actions, self._taken, resetting, strict=True):
            action = acts[taken % len(acts)]
            if is_resetting and self.other_actions_at_resets:
                action = next((other for other in acts if not equal(other, action)), action)
            actions.append(action)
        return batch(self.env.single_action_space, actions)


def expect_same(expected: Trajectory, got: Trajectory, what: str) -> None:
    """Compares two trajectories up to the end of the shorter one.

    Raises:
        AssertionError: they differ; the message names the first difference.
    """
    for i, (expected_events, events) in enumerate(zip(expected, got, strict=True)):
        steps = 0
        for event, other in zip(expected_events, events, strict=False):
            steps += event.kind == "step"
            for name in Event._fields:
                difference = first_difference(getattr(event, name), getattr(other, name))
                if difference:
                    when = f"step {steps}" if event.kind == "step" else f"the reset after {steps} steps"
                    raise AssertionError(f"{what}: environment {i}, {when}, {name}{difference}")


def differ(a: Trajectory, b: Trajectory) -> bool:
    try:
        expect_same(a, b, "")
    except AssertionError:
        return True
    return False


def sample(space: Space, seed: int, n: int) -> list[Any]:
    """Draws n members of a space without advancing its own generator."""
    space = copy.deepcopy(space)
    space.seed(seed)
    return [space.sample() for _ in range(n)]


def batch(space: Space, members: Sequence[Any]) -> Any:
    """Concatenates members of a space into a member of the batched space."""
    empty: Any = create_empty_array(space, len(members))
    return concatenate(space, members, empty)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of an observation (dicts and tuples may be nested) with their paths."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, tuple):
        for i, part in enumerate(tree):
            yield from leaves(part, f"{path}[{i}]")
    else:
        yield path, np.asarray(tree)


def member(tree: Any, i: Any) -> Any:
    """Entry i of a batch of observations, or of an array of objects."""
    if isinstance(tree, dict):
        return {key: member(part, i) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(member(part, i) for part in tree)
    return tree[i]


def equal(a: Any, b: Any) -> bool:
    """Finds out whether two trees have the same arrays: paths, shapes, dtypes and every bit, NaN included."""
    return first_difference(a, b) == ""


def first_difference(expected: Any, got: Any) -> str:
    """Describes the first difference of two trees of arrays; empty if they are equal to the bit."""
    expected_leaves, got_leaves = dict(leaves(expected)), dict(leaves(got))
    if list(expected_leaves) != list(got_leaves):
        return f": expected the parts {list(expected_leaves)}, got {list(got_leaves)}"
    for path, x in expected_leaves.items():
        y = got_leaves[path]
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{path}: expected {x.dtype} {x.shape}, got {y.dtype} {y.shape}"
        if x.tobytes() != y.tobytes():
            differs = [index for index in np.ndindex(x.shape) if x[index].tobytes() != y[index].tobytes()]
            element = str(list(differs[0])) if x.shape else ""
            return f"{path}{element}: expected {x[differs[0]]}, got {y[differs[0]]}"
    return ""


def shapes(tree: Any) -> str:
    return ", ".join(f"{path} {leaf.dtype} {leaf.shape}".lstrip() for path, leaf in leaves(tree))
