"""Arrays of a plan's fragments: allocated, made into fragments, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import RunningEpisodes
from fastrl.envs.serial_envs import StepArrays
from fastrl.rollout.fragment import (
    STATE_ARRAYS,
    Fragment,
    all_finite,
    allocate,
    ended_steps,
    first_not_finite,
    first_steps,
    steps_between,
)
from fastrl.utils.seeding import NO_ENV, env_seed

Arrays = dict[str, NDArray[Any]]

_NO_ENDS: Arrays = {
    "returns": np.zeros(0),
    "lengths": np.zeros(0, np.int64),
    "episodes": np.zeros((0, 2), np.int64),
}


class Step(NamedTuple):
    """Views of step ``t`` of arrays of `arrays_for`, without those that the arrays lack.

    Attributes:
        env: what environments write.
    """

    arrays: Arrays
    t: int
    obs: NDArray[Any]
    actions: NDArray[Any]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.floating]
    env: StepArrays
    masks: NDArray[np.bool_] | None
    values: NDArray[np.float32] | None


def step_of(arrays: Arrays, t: int) -> Step:
    """Views of step ``t`` of arrays of `arrays_for`."""
    obs, rewards = arrays["obs"], arrays["rewards"][t]
    env = (
        obs[t + 1],
        rewards,
        arrays["terminations"][t],
        arrays["truncations"][t],
        arrays["final_obs"][t],
        arrays["final_masks"][t] if "final_masks" in arrays else None,
    )
    masks = arrays["masks"][t] if "masks" in arrays else None
    values = arrays["values"][t] if "values" in arrays else None
    return Step(arrays, t, obs[t], arrays["actions"][t], arrays["log_probs"][t], rewards, env, masks, values)


# An episode that has ended: step of the fragment, environment index, number, return, length, values of its infos.
End = tuple[int, int, int, float, int, tuple[float, ...]]


class FragmentMeta(NamedTuple):
    """The parts of a fragment that are not arrays of steps.

    Attributes:
        num_steps: T.
        ends: of the episodes that ended, by step, then environment.
        difficulties: of the running episodes, see `fastrl.collectors.team_backend.TeamBackend`; None: as they are.
    """

    num_steps: int
    ends: Sequence[End] = ()
    difficulties: NDArray[np.float64] | None = None

    @classmethod
    def of_episode(cls, number: int, total: float, length: int, info: tuple[float, ...]) -> FragmentMeta:
        """Meta of a whole episode of this return, with unit "episodes"."""
        return cls(length, [(length - 1, NO_ENV, number, total, length, info)])


def arrays_for(plan: Plan, rows: int) -> Arrays:
    """Allocates the arrays that a runner writes: a fragment's, for whole episodes without those that `fragment_of`
    knows."""
    arrays = allocate_steps(plan, plan.num_steps, rows)
    if plan.unit == "episodes":
        for name in ("final_obs", *STATE_ARRAYS):
            arrays.pop(name, None)
    return arrays


def clear_ends(arrays: Arrays) -> None:
    """Brings arrays of `arrays_for` that a runner has written to the state that it asks for."""
    for name in ("terminations", "truncations", "final_obs", "final_masks"):
        if name in arrays:
            arrays[name].fill(0)


def allocate_steps(plan: Plan, num_steps: int, rows: int) -> Arrays:
    """Allocates a fragment's arrays for so many steps of a plan's environments."""
    actions = plan.actions
    return allocate(
        num_steps,
        rows,
        plan.obs_dim,
        actions.shape,
        actions.dtype,
        obs_dtype=plan.obs_rows.dtype,
        reward_dtype=plan.reward_dtype,
        num_masked=plan.num_masked,
        final_masks=plan.final_masks,
        state_size=plan.state_size,
        values=plan.has_values,
        agents=plan.agents,
    )


def fragment_of(
    plan: Plan, arrays: Arrays, meta: FragmentMeta, version: int, env_indices: NDArray[np.int64]
) -> Fragment:
    """Makes a fragment of the arrays' first steps, without copying them."""
    steps = meta.num_steps
    cut = dict(arrays) if steps == len(arrays["rewards"]) else first_steps(arrays, steps)
    if plan.unit == "episodes":
        cut["final_obs"] = cut["obs"][1:]
        if (states := plan.zero_states(1)) is not None:
            cut |= dict.fromkeys(STATE_ARRAYS, states)
    # Most fragments of few steps have no end.
    ends, infos = _NO_ENDS, tuple[tuple[float, ...], ...]()
    if meta.ends:
        _, indices, numbers, returns, lengths, infos = zip(*meta.ends, strict=True)
        ends = {
            "returns": np.array(returns, np.float64),
            "lengths": np.array(lengths, np.int64),
            "episodes": np.column_stack((indices, numbers)),
        }
    return Fragment(
        **cut,
        **ends,
        version=version,
        env_indices=env_indices,
        episode_info={
            key: np.array([values[i] for values in infos], np.float64)
            for i, key in enumerate(plan.episode_info)
        },
    )


def check_finite(
    plan: Plan,
    arrays: Arrays,
    num_steps: int,
    env_indices: NDArray[np.int64],
    numbers: Sequence[int],
    steps: Sequence[int],
    *,
    has_ends: bool,
) -> None:
    """Refuses rewards and observations that are NaN or infinite.

    Args:
        arrays: of `arrays_for`, filled up to ``num_steps``.
        env_indices: of the environments.
        numbers: of their running episodes at the start of the arrays.
        steps: that had been taken in these episodes.
        has_ends: the environment has given last observations of episodes.

    Raises:
        CollectError: names the value, and the seed that reproduces the episode.
    """
    if all_finite(arrays, num_steps, has_ends=has_ends):
        return
    t, row, what = first_not_finite(arrays, num_steps)
    ends = np.flatnonzero(ended_steps(arrays)[: max(t, 0), row])
    number, step = numbers[row] + len(ends), t - int(ends[-1]) if len(ends) else steps[row] + t + 1
    seed = env_seed(plan.seed, int(env_indices[row]), number)
    raise CollectError(
        f"{plan.env.id}: {what} at step {step} of the episode that reset(seed={seed}) began; rewards and observations"
        " should be finite float32 numbers"
    )


def check_masks(plan: Plan, arrays: Arrays, num_steps: int) -> None:
    """Refuses states in which no action was allowed: the actor took one that its mask forbids, or is to learn what the
    best one is worth.

    Raises:
        CollectError
    """
    if not plan.action_masks:
        return
    masks, actions = arrays["masks"][:num_steps], plan.actions.choices(arrays["actions"][:num_steps])
    nvec = plan.actions.nvec
    firsts = np.cumsum(nvec) - nvec
    taken = np.take_along_axis(masks, actions.reshape(*masks.shape[:-1], -1) + firsts, axis=-1)
    if not taken.all():
        *place, number = np.argwhere(~taken)[0].tolist()
        mask = masks[(*place, slice(firsts[number], firsts[number] + nvec[number]))]
        of_number = f" for number {number}" if len(nvec) > 1 else ""
        of_agent = f"agent {place[-1]} in " if plan.agents else ""
        raise CollectError(
            f"{plan.env.id}: the action mask of {of_agent}a state allows {mask.sum()} of {nvec[number]}"
            f" actions{of_number}, and action {actions[tuple(place)].flat[number]} was taken, which is not one of them;"
            " every state needs an allowed action"
        )
    if plan.final_masks:
        cut = arrays["truncations"][:num_steps] & ~arrays["terminations"][:num_steps]
        if not np.logical_or.reduceat(arrays["final_masks"][:num_steps][cut], firsts, axis=-1).all():
            raise CollectError(
                f"{plan.env.id}: the action mask of the last observation of a truncated episode allows no action; where"
                " none is possible the episode should be terminated"
            )


# The most fragments of a block, and about the most bytes of one.
_FRAGMENTS, _BYTES = 64, 1 << 20


class Part(NamedTuple):
    """The arrays of a fragment, views of its steps, and the fragment itself where no episode ends in it."""

    arrays: Arrays
    steps: list[Step]
    fragment: Fragment


class FragmentBlock:
    """Consecutive fragments of T steps of a plan's environments. What is made of one is made once, and what is done
    with each may be done with several together.

    Args:
        env_indices: int64 [R].
        running: gets the fragments: all at once where the block is full, and after one with ends.
    """

    def __init__(self, plan: Plan, env_indices: NDArray[np.int64], running: RunningEpisodes) -> None:
        self._plan, self._env_indices, self._running = plan, env_indices, running
        bytes_of_one = sum(
            array.nbytes for array in allocate_steps(plan, plan.num_steps, len(env_indices)).values()
        )
        # Each has the memory of its episodes in arrays of its own.
        count = 1 if plan.state_size else min(max(_BYTES // bytes_of_one, 1), _FRAGMENTS)
        self._arrays = allocate_steps(plan, count * plan.num_steps, len(env_indices))
        self._parts = [self._part(i) for i in range(count)]
        # Of the next fragment, and of the first since `take`.
        self._next = self._first = 0
        # Of the last fragment.
        self._ends = FragmentMeta(0)
        # Flags and last observations are not zero, or may be after a failure.
        self._is_written = False

    def _part(self, i: int) -> Part:
        arrays = self._steps(i, i + 1)
        steps = [step_of(arrays, t) for t in range(self._plan.num_steps)]
        return Part(arrays, steps, self._fragment(arrays, FragmentMeta(len(steps))))

    def _steps(self, first: int, end: int) -> Arrays:
        """The arrays of some fragments."""
        return steps_between(self._arrays, first * self._plan.num_steps, end * self._plan.num_steps)

    def _fragment(self, arrays: Arrays, meta: FragmentMeta, version: int = 0) -> Fragment:
        return fragment_of(self._plan, arrays, meta, version, self._env_indices)

    def next(self) -> Part:
        """The next fragment's arrays, ready to be written. Where the block is full, they are the first ones again."""
        if self._next == len(self._parts):
            self.add_running()
            self._next = self._first = 0
        if self._is_written:
            clear_ends(self._arrays)
        self._is_written = True
        return self._parts[self._next]

    def written(
        self, part: Part, meta: FragmentMeta, version: int, restarted: Sequence[int] = ()
    ) -> Fragment:
        """The fragment of arrays that have been written; valid until they are written again.

        Args:
            restarted: rows whose episodes were restarted at its start.
        """
        self._next += 1
        self._ends = meta
        self._is_written = bool(meta.ends)
        fragment = part.fragment
        if meta.ends:
            fragment = self._fragment(part.arrays, meta, version)
        fragment.version = version
        if restarted or meta.ends:
            self.add_running(restarted)
        return fragment

    def add_running(self, restarted: Sequence[int] = ()) -> None:
        """Adds the fragments since the last call to the running episodes. They are restarted with the first alone, and
        end with the last."""
        if self._first < self._next:
            arrays = self._steps(self._first, self._next)
            self._first = self._next
            meta = self._ends._replace(num_steps=len(arrays["rewards"]))
            self._running.add(self._fragment(arrays, meta), restarted)

    def drop(self) -> None:
        """Forgets the fragments that the running episodes have not got."""
        self._first = self._next
