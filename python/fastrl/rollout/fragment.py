"""Rollout fragments: steps of some environments by one version of the policy, the output of every collector."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.contract import as_given
from fastrl.utils.seeding import NO_ENV


# A frozen one takes twice as long to make.
@dataclass(eq=False)
class Fragment:
    """T steps of R environments, all actions chosen by one version of the policy.

    Attributes:
        obs: float32 or uint8 [T + 1, R, D], rows of `fastrl.envs.rows.ObsRows`; ``obs[t]`` is what action ``t`` was
            chosen on, ``obs[T]`` follows the last step. After the end of an episode at ``t``, ``obs[t + 1]`` is the
            first observation of the next one.
        actions: as they were drawn (see `fastrl.networks.action_space.Actions`): int64 [T, R] of discrete actions,
            int64 [T, R, n] of multi-discrete ones, float32 [T, R, n] of a Box.
        log_probs: float32 [T, R], of the actions under the policy that chose them.
        rewards: float32 [T, R], or of another ``Plan.reward_dtype``.
        terminations, truncations: bool [T, R].
        final_obs: [T, R, D] as ``obs``, true last observations; meaningful only where an episode ended.
        version: of the policy; the first published one is 1.
        env_indices: int64 [R], environment indices, or ``NO_ENV`` for a whole episode (see ``fastrl.utils.seeding``).
        returns: float64 [E], undiscounted returns of the episodes that ended in the fragment.
        lengths: int64 [E], their numbers of steps.
        episodes: int64 [E, 2], their environment indices and numbers.
        masks: bool [T, R, M], which of M choices (see ``Plan.action_masks``) the environment allowed at ``obs``; None
            unless the plan asks for masks. Those of `with_next_masks` have an entry more, of ``obs[T]``.
        final_masks: bool [T, R, M], the same at ``final_obs``; meaningful only where an episode was truncated and not
            terminated. None unless the plan asks for them.
        values: float32 [T, R], of ``obs`` under the policy that acted; None unless its network gives them beside the
            actions.
        states: float32 [R, state_size], the actor's memory of the running episodes before the first step, zeros where
            one starts; None without memory.
        next_states: the same after the last step.
        episode_info: float64 [E] for each key of ``Plan.episode_info``: the value in the last info of the episode, or
            else in the info of its reset; NaN where neither has the key.

    A fragment of a whole episode has one environment and as many steps as the episode: ``final_obs`` is then
    ``obs[1:]``, the same memory.

    Of environments of A agents, all arrays with axes [T, R] have an axis A behind them, such as ``actions`` [T, R, A]
    and ``obs`` [T + 1, R, A, D]; states are [R, A, state_size]. Values in places without a living agent have no
    meaning. ``final_obs`` is meaningful for all agents of an environment in which one was truncated, or whose episode
    ended. ``returns`` are means over the agents that took part. Then there are two arrays more:

        alive: bool [T + 1, R, A], whether an agent acts on ``obs``; None: the environments are a single agent's.
        ends: bool [T, R], whether the episode of the environment ended; None: it does with that of the agent.
    """

    obs: NDArray[Any]
    actions: NDArray[Any]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.floating]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    final_obs: NDArray[Any]
    version: int
    env_indices: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    episodes: NDArray[np.int64]
    masks: NDArray[np.bool_] | None = None
    final_masks: NDArray[np.bool_] | None = None
    values: NDArray[np.float32] | None = None
    states: NDArray[np.float32] | None = None
    next_states: NDArray[np.float32] | None = None
    episode_info: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    alive: NDArray[np.bool_] | None = None
    ends: NDArray[np.bool_] | None = None

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Mask of the steps with which the episode of an environment ended, bool [T, R]."""
        return ended_steps(vars(self))

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def num_rows(self) -> int:
        """R."""
        return self.rewards.shape[1]

    def __len__(self) -> int:
        """Number of steps of environments, T * R."""
        num_steps, num_rows = self.rewards.shape[:2]
        return num_steps * num_rows

    @property
    def place(self) -> tuple[int, int]:
        """Sort key among the fragments of an update: the first environment's index, and a whole episode's number."""
        env_index = int(self.env_indices[0])
        return env_index, int(self.episodes[0, 1]) if env_index == NO_ENV else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


STEP_ARRAYS = ("actions", "log_probs", "rewards", "terminations", "truncations", "final_obs")

# Those that have a row for each environment and none for each step.
STATE_ARRAYS = ("states", "next_states")

# Those that have an entry more than there are steps.
OBS_ARRAYS = ("obs", "alive")


def allocate(
    num_steps: int,
    num_rows: int,
    obs_dim: int,
    action_shape: tuple[int, ...] = (),
    action_dtype: Any = np.int64,
    *,
    obs_dtype: Any = np.float32,
    reward_dtype: Any = np.float32,
    num_masked: int = 0,
    final_masks: bool = False,
    state_size: int = 0,
    values: bool = False,
    agents: tuple[int, ...] = (),
) -> dict[str, NDArray[Any]]:
    """Arrays for ``obs`` and `STEP_ARRAYS` of a fragment, and for ``masks``, ``final_masks``, ``values``, ``states``,
    ``next_states``, ``alive`` and ``ends`` if there are any; zeros.

    Args:
        action_shape, action_dtype: of one draw, see `fastrl.networks.action_space.Actions`.
        num_masked: width of the action masks; 0: no masks.
        final_masks: whether last observations have masks, too.
        state_size: of the actor's memory; 0: none.
        values: whether the actor gives values.
        agents: (A,); (): environments are a single agent's.
    """
    steps = (num_steps, num_rows, *agents)
    optional: dict[str, NDArray[Any]] = {}
    if num_masked:
        for name in ("masks", "final_masks") if final_masks else ("masks",):
            optional[name] = np.zeros((*steps, num_masked), np.bool_)
    if values:
        optional["values"] = np.zeros(steps, np.float32)
    if agents:
        optional["alive"] = np.zeros((num_steps + 1, *steps[1:]), np.bool_)
        optional["ends"] = np.zeros((num_steps, num_rows), np.bool_)
    shape = (num_rows, *agents, state_size)
    states = {name: np.zeros(shape, np.float32) for name in STATE_ARRAYS if state_size}
    return (
        optional
        | states
        | {
            "obs": np.zeros((num_steps + 1, *steps[1:], obs_dim), obs_dtype),
            "actions": np.zeros((*steps, *action_shape), action_dtype),
            "log_probs": np.zeros(steps, np.float32),
            "rewards": np.zeros(steps, reward_dtype),
            "terminations": np.zeros(steps, np.bool_),
            "truncations": np.zeros(steps, np.bool_),
            "final_obs": np.zeros((*steps, obs_dim), obs_dtype),
        }
    )


def first_steps(arrays: Mapping[str, NDArray[Any]], num_steps: int) -> dict[str, NDArray[Any]]:
    """Views of the first steps of a fragment's arrays."""
    return steps_between(arrays, 0, num_steps)


def steps_between(arrays: Mapping[str, NDArray[Any]], start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Views of the steps from one number up to another of a fragment's arrays."""
    return {
        name: array if name in STATE_ARRAYS else array[start : stop + (name in OBS_ARRAYS)]
        for name, array in arrays.items()
    }


def copied_steps(arrays: Mapping[str, NDArray[Any]], num_steps: int) -> dict[str, NDArray[Any]]:
    """Copies of the first steps of a fragment's arrays. Of last observations, which may be large, only those of ended
    episodes are copied; the others are zeros, whose memory is not touched."""
    found = first_steps(arrays, num_steps)
    ended = last_places(found)
    for name, array in found.items():
        if name in ("final_obs", "final_masks"):
            found[name] = np.zeros(array.shape, array.dtype)
            found[name][ended] = array[ended]
        else:
            found[name] = array.copy()
    return found


def ended_steps(arrays: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Mask of the steps of a fragment's arrays with which the episode of an environment ended, bool [T, R]."""
    ends: NDArray[np.bool_] | None = arrays.get("ends")
    return arrays["terminations"] | arrays["truncations"] if ends is None else ends


def last_places(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Mask of the places of a fragment's arrays in which ``final_obs`` is meaningful, bool [T, R]."""
    ended = ended_steps(arrays)
    truncations = arrays["truncations"]
    return ended if truncations.ndim == 2 else ended | truncations.any(2)


def with_next_masks(fragment: Fragment) -> Fragment:
    """A fragment that says which actions are allowed on the observation after its last step: ``masks`` [T + 1, R, M].

    That is known of steps that another one follows, so the last step is left out. A whole episode keeps it: nothing
    follows there, and all actions count as allowed.
    """
    assert fragment.masks is not None
    if fragment.env_indices[0] == NO_ENV:
        return replace(fragment, masks=np.concatenate([fragment.masks, np.ones_like(fragment.masks[:1])]))
    arrays: dict[str, Any] = {
        name: array
        for name in (*STEP_ARRAYS, "obs", "final_masks", "values")
        if (array := getattr(fragment, name)) is not None
    }
    arrays |= first_steps(arrays, fragment.num_steps - 1)
    return replace(fragment, **arrays)


def without_steps(fragment: Fragment, skipped: NDArray[np.bool_]) -> list[Fragment]:
    """Fragments of rows of equal length, without some steps; rows without any step left are dropped.

    Args:
        skipped: bool [T, R], steps to leave out: each follows the end of an episode, and changes nothing but the
            observation.
    """
    counts = skipped.sum(0)
    found = []
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        if count == fragment.num_steps:
            continue
        # A stable sort keeps the steps in order.
        kept = skipped[:, rows].argsort(0, kind="stable")[: fragment.num_steps - count], rows
        mine = np.isin(fragment.episodes[:, 0], fragment.env_indices[rows])
        found.append(
            replace(
                fragment,
                **{name: getattr(fragment, name)[kept] for name in STEP_ARRAYS},
                obs=np.concatenate([fragment.obs[:-1][kept], fragment.obs[-1:, rows]]),
                masks=None if fragment.masks is None else fragment.masks[kept],
                final_masks=None if fragment.final_masks is None else fragment.final_masks[kept],
                values=None if fragment.values is None else fragment.values[kept],
                states=None if fragment.states is None else fragment.states[rows],
                next_states=None if fragment.next_states is None else fragment.next_states[rows],
                env_indices=fragment.env_indices[rows],
                returns=fragment.returns[mine],
                lengths=fragment.lengths[mine],
                episodes=fragment.episodes[mine],
                episode_info={key: values[mine] for key, values in fragment.episode_info.items()},
            )
        )
    return found


def all_finite(arrays: Mapping[str, NDArray[Any]], num_steps: int, *, has_ends: bool) -> bool:
    """Finds out whether rewards and observations of the first steps of a fragment's arrays are finite, and with
    ``has_ends`` last observations. Those of uint8 are: `fastrl.envs.rows.ObsRows` has checked them."""
    rewards, obs = arrays["rewards"][:num_steps], arrays["obs"][: num_steps + 1]
    if obs.dtype == np.uint8:
        return _is_finite(rewards)
    if not (_is_finite(rewards) and _is_finite(obs)):
        return False
    if not has_ends or "final_obs" not in arrays:
        return True
    # Those of the episodes that ended.
    last = last_places(arrays)[:num_steps]
    return not np.count_nonzero(last) or _is_finite(arrays["final_obs"][:num_steps][last])


def _is_finite(values: NDArray[np.floating]) -> bool:
    # A finite sum of squares is found sooner for few numbers; BLAS would share out many among threads.
    few = values.size <= 4096
    return (few and math.isfinite(np.vdot(values, values))) or bool(np.isfinite(values).all())


def first_not_finite(arrays: Mapping[str, NDArray[Any]], num_steps: int) -> tuple[int, int, str]:
    """The step and row of the first NaN or infinity in a fragment that is not `all_finite`, and a text that says
    where it came from. Step -1 is the observation that the first action was chosen on."""

    def not_finite(values: NDArray[Any]) -> str:
        return ", ".join(sorted({str(value) for value in values[~np.isfinite(values)].tolist()}))

    rewards, obs, final_obs = arrays["rewards"], arrays["obs"], arrays.get("final_obs")
    for row in range(rewards.shape[1]):
        if values := not_finite(obs[0, row]):
            return -1, row, f"reset() gave an observation with {values}"
    for t in range(num_steps):
        for row in range(rewards.shape[1]):
            ended = (arrays["terminations"][t, row] | arrays["truncations"][t, row]).any()
            wrong = np.atleast_1d(rewards[t, row])
            if len(agents := np.flatnonzero(~np.isfinite(wrong))):
                of_agent = f" to agent {agents[0]}" if "alive" in arrays else ""
                return t, row, f"step() gave the reward {as_given(wrong[agents[0]])}{of_agent}"
            last = final_obs[t, row] if ended and final_obs is not None else obs[t + 1, row]
            if values := not_finite(last):
                return t, row, f"step() gave an observation with {values}"
            if values := not_finite(obs[t + 1, row]):
                return t, row, f"reset() after it gave an observation with {values}"
    raise ValueError("all numbers of this fragment are finite")
