"""Lays out fragments as a rollout: side by side where they have equal lengths, else end to end."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.rollout.fragment import STEP_ARRAYS, Fragment
from fastrl.rollout.rollout import Rollout

_STEPS = ("actions", "log_probs", "rewards", "terminations", "truncations")


def lay_out(fragments: Sequence[Fragment], rollout: Rollout) -> Rollout:
    """Makes a rollout of fragments; advantages and returns are left to the learner, as are values that the fragments do
    not have. The arrays of a single fragment are used as they are, those of several are copied.

    Fragments of equal length T are placed side by side, [T, environments of all fragments]. The rows of others follow
    each other in one column, [steps of all rows, 1]. There each row ends at its last step, so that nothing of the next
    one is bootstrapped from: where no episode ended, the rollout has a truncation, whose value is that of the
    observation which follows. That is what a fragment's end means where they stand side by side.

    Each agent of an environment has a row of its own, row = environment * A + agent. The A rows of an environment stand
    side by side in any case: those of fragments of different lengths are in A columns.

    Args:
        fragments: at least one.
        rollout: overwritten and returned if it has the right size; otherwise a new one is returned.

    Raises:
        ValueError: observations or actions of another kind or length than the rollout's.
    """
    if not fragments:
        raise ValueError("there are no fragments to learn from")
    # Rows that stand side by side in any case.
    width = 1 if fragments[0].alive is None else fragments[0].alive.shape[2]
    fragments = [each if each.alive is None else _with_rows_of_agents(each) for each in fragments]
    for fragment in fragments:
        _expect_same_kind(fragment, rollout)
    lengths = [fragment.num_steps for fragment in fragments]
    rows = [fragment.num_rows for fragment in fragments]
    side_by_side = len(set(lengths)) == 1
    size = (lengths[0], sum(rows)) if side_by_side else (int(np.dot(lengths, rows)) // width, width)
    if size != (rollout.num_steps, rollout.num_rows) or (rollout.is_borrowed and len(fragments) > 1):
        rollout = rollout.resized(*size)
    rollout.has_values = all(fragment.values is not None for fragment in fragments)
    if rollout.states is not None:
        places = np.arange(sum(rows))
        firsts, columns = np.zeros_like(places), places
        if not side_by_side:
            of_envs = np.repeat(lengths, np.array(rows) // width)
            firsts, columns = np.repeat(np.cumsum(of_envs) - of_envs, width), places % width
        rollout.state_places = np.stack([firsts, columns], 1)
        rollout.states = np.concatenate([fragment.states for fragment in fragments])  # type: ignore[misc]
    if len(fragments) == 1 and side_by_side and rollout.borrow(_arrays_of(fragments[0])):
        _copy_others(fragments[0], np.s_[:, :], rollout, np.s_[:, :])
        return rollout
    if side_by_side:
        first = 0
        for fragment, width in zip(fragments, rows, strict=True):
            _copy(fragment, np.s_[:, :], rollout, np.s_[:, first : first + width])
            first += width
        return rollout
    start = 0
    for fragment, length in zip(fragments, lengths, strict=True):
        for row in range(0, fragment.num_rows, width):
            group, last = slice(row, row + width), start + length - 1
            # The observation after a row is overwritten by the next one's first, and read for the last only.
            _copy(fragment, np.s_[:, group], rollout, np.s_[start : start + length, :])
            start += length
            running = ~(rollout.terminations[last] | rollout.truncations[last])
            if rollout.alive is not None:
                running &= rollout.alive[last]
            if running.any():
                rollout.truncations[last] |= running
                rollout.final_obs[last] = fragment.obs[-1, group]
                if rollout.final_masks is not None:
                    assert fragment.masks is not None
                    rollout.final_masks[last] = fragment.masks[-1, group]
    return rollout


def _with_rows_of_agents(fragment: Fragment) -> Fragment:
    """Views of the arrays of environments of A agents, in which each agent has a row."""
    given = _arrays_of(fragment) | ({} if fragment.masks is None else {"masks": fragment.masks})
    arrays: dict[str, Any] = {
        name: array.reshape(len(array), -1, *array.shape[3:]) for name, array in given.items()
    }
    if fragment.states is not None:
        arrays["states"] = fragment.states.reshape(-1, fragment.states.shape[-1])
    return dataclasses.replace(fragment, **arrays)


def _arrays_of(fragment: Fragment) -> dict[str, NDArray[Any]]:
    """The arrays that have the same form in a rollout."""
    names = ("obs", *STEP_ARRAYS) if fragment.alive is None else ("obs", "alive", *STEP_ARRAYS)
    return {name: getattr(fragment, name) for name in names}


def _copy(
    fragment: Fragment, source: tuple[slice, slice], rollout: Rollout, place: tuple[slice, slice]
) -> None:
    """Copies some rows of a fragment to some steps and rows of a rollout."""
    for name in _STEPS:
        getattr(rollout, name)[place] = getattr(fragment, name)[source]
    rollout.obs[_with_last(place)] = fragment.obs[source]
    if fragment.alive is None:
        ended = rollout.terminations[place] | rollout.truncations[place]
        rollout.final_obs[place][ended] = fragment.final_obs[source][ended]
    else:
        rollout.final_obs[place] = fragment.final_obs[source]
        rollout.alive[_with_last(place)] = fragment.alive[source]
    _copy_others(fragment, source, rollout, place)


def _with_last(place: tuple[slice, slice]) -> tuple[slice, slice]:
    """A place of an array that has an entry more than there are steps."""
    steps, rows = place
    return slice(steps.start, None if steps.stop is None else steps.stop + 1), rows


def _copy_others(
    fragment: Fragment, source: tuple[slice, slice], rollout: Rollout, place: tuple[slice, slice]
) -> None:
    """Copies what has another form in a rollout than in a fragment."""
    if fragment.values is not None:
        rollout.values[: rollout.num_steps][place] = fragment.values[source]
    if rollout.masks is not None:
        assert fragment.masks is not None
        steps, rows = place
        first, masks = steps.start or 0, fragment.masks[source]
        # In the last row, where no action is chosen, all are allowed unless the fragment says more.
        rollout.masks[first : first + len(masks), rows] = masks
    if rollout.final_masks is not None:
        assert fragment.final_masks is not None
        rollout.final_masks[place] = fragment.final_masks[source]


def _expect_same_kind(fragment: Fragment, rollout: Rollout) -> None:
    """Refuses fragments of other observations or actions.

    Raises:
        ValueError
    """
    obs_dim, action_shape = rollout.obs.shape[-1], rollout.actions.shape[2:]
    if fragment.obs.shape[-1] != obs_dim:
        raise ValueError(
            f"fragments have observations of length {fragment.obs.shape[-1]}, the learner expects {obs_dim}"
        )
    if fragment.obs.dtype != rollout.obs.dtype:
        raise ValueError(
            f"fragments have observations of {fragment.obs.dtype}, the learner expects {rollout.obs.dtype}"
        )
    if fragment.actions.shape[2:] != action_shape or fragment.actions.dtype != rollout.actions.dtype:
        raise ValueError(
            f"fragments have actions {fragment.actions.dtype} {list(fragment.actions.shape[2:])}, the learner"
            f" expects {rollout.actions.dtype} {list(action_shape)}"
        )
    if (fragment.alive is None) != (rollout.alive is None):
        raise ValueError(
            "fragments of environments of many agents are for learners of many agents, and only for those"
        )
    if (None if fragment.states is None else fragment.states.shape[1:]) != (
        None if rollout.states is None else rollout.states.shape[1:]
    ):
        raise ValueError(
            "the memory of the actor that collected fragments has another size than the learner's: the plan's actor"
            " should be the learner's"
        )
    if (fragment.masks is None) != (rollout.masks is None):
        raise ValueError(
            "the learner uses action masks and the fragments have none: the plan should ask for them"
            if fragment.masks is None
            else "fragments have action masks and the learner uses none"
        )
