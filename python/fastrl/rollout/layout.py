"""Copies fragments into a rollout: side by side where they have equal lengths, else end to end."""

from collections.abc import Sequence

import numpy as np

from fastrl.rollout.fragment import Fragment
from fastrl.rollout.rollout import Rollout


def lay_out(fragments: Sequence[Fragment], rollout: Rollout) -> Rollout:
    """Copies fragments into a rollout; values, advantages and returns are left to the learner.

    Fragments of equal length T are placed side by side, [T, environments of all fragments]. Others must be whole
    episodes, and follow each other in one column, [steps of all fragments, 1]: each ends at its last step, so that
    nothing of the next episode is bootstrapped from.

    Args:
        fragments: at least one.
        rollout: overwritten and returned if it has the right size; otherwise a new one is returned.

    Raises:
        ValueError: observations or actions of another kind or length than the rollout's, or fragments of different
            lengths that are not whole episodes.
    """
    if not fragments:
        raise ValueError("there are no fragments to learn from")
    obs_dim, action_shape = rollout.obs.shape[-1], rollout.actions.shape[2:]
    for fragment in fragments:
        if fragment.obs.shape[-1] != obs_dim:
            raise ValueError(
                f"fragments have observations of length {fragment.obs.shape[-1]}, the learner expects {obs_dim}"
            )
        if fragment.actions.shape[2:] != action_shape or fragment.actions.dtype != rollout.actions.dtype:
            raise ValueError(
                f"fragments have actions {fragment.actions.dtype} {list(fragment.actions.shape[2:])}, the learner"
                f" expects {rollout.actions.dtype} {list(action_shape)}"
            )
        if (fragment.masks is None) != (rollout.masks is None):
            raise ValueError(
                "the learner uses action masks and the fragments have none: the plan should ask for them"
                if fragment.masks is None
                else "fragments have action masks and the learner uses none"
            )
    lengths = [fragment.num_steps for fragment in fragments]
    side_by_side = len(set(lengths)) == 1
    rows = [fragment.num_rows for fragment in fragments]
    if not side_by_side:
        for fragment in fragments:
            ended = fragment.terminations[-1] | fragment.truncations[-1]
            if fragment.num_rows != 1 or not ended.all():
                raise ValueError(
                    f"fragments of {sorted(set(lengths))} steps do not fit side by side, and end to end only whole"
                    " episodes do"
                )
    num_steps, num_rows = (lengths[0], sum(rows)) if side_by_side else (sum(lengths), 1)
    if (num_steps, num_rows) != (rollout.num_steps, rollout.num_rows):
        rollout = Rollout(
            num_steps,
            num_rows,
            obs_dim,
            rollout.num_actions,
            masks=rollout.masks is not None,
            continuous=rollout.continuous,
        )
    step = row = 0
    for fragment, length, width in zip(fragments, lengths, rows, strict=True):
        place = np.s_[step : step + length, row : row + width]
        for name in ("actions", "log_probs", "rewards", "terminations", "truncations"):
            getattr(rollout, name)[place] = getattr(fragment, name)
        # The observation after a whole episode is overwritten by the next one's first, and read for the last only.
        rollout.obs[step : step + length + 1, row : row + width] = fragment.obs
        ended = fragment.terminations | fragment.truncations
        rollout.final_obs[place][ended] = fragment.final_obs[ended]
        if rollout.masks is not None:
            rollout.masks[place] = fragment.masks
        if side_by_side:
            row += width
        else:
            step += length
    return rollout
