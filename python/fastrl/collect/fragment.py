"""What every collector hands over: some steps of some rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.streams import EPISODES


@dataclass(frozen=True)
class Fragment:
    """T steps of R rows, all actions chosen by one version of the policy.

    Attributes:
        obs: float32 [T + 1, R, D]; row ``t`` is what action ``t`` was chosen on, row T what follows the last. After the
            end of an episode at ``t``, row ``t + 1`` is the first observation of the next one.
        actions: int64 [T, R], or float32 [T, R, n] as they were drawn (see `fastrl.actions.Actions`).
        log_probs: float32 [T, R], of the actions under the policy that chose them.
        rewards: float32 [T, R].
        terminations, truncations: bool [T, R].
        final_obs: float32 [T, R, D], true last observations; meaningful only where an episode ended.
        version: of the policy; the first that was published is 1.
        lanes: int64 [R], which rows they are (``fastrl.streams`` tells what a lane is).
        returns: float64 [E], undiscounted returns of the episodes that ended here.
        lengths: int64 [E], their numbers of steps.
        episodes: int64 [E, 2], their lanes and numbers.

    A fragment that is a whole episode has one row, as many steps as the episode, and ends with it: then ``obs[T]`` is
    ``final_obs[T - 1]``.
    """

    obs: NDArray[np.float32]
    actions: NDArray[Any]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    final_obs: NDArray[np.float32]
    version: int
    lanes: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    episodes: NDArray[np.int64]

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def num_rows(self) -> int:
        """R."""
        return self.rewards.shape[1]

    def __len__(self) -> int:
        """Steps held, T * R."""
        return self.rewards.size

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among those of an update: its first lane, and of a whole episode the number."""
        lane = int(self.lanes[0])
        return lane, int(self.episodes[0, 1]) if lane == EPISODES else 0

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


STEP_ARRAYS = ("actions", "log_probs", "rewards", "terminations", "truncations", "final_obs")


def allocate(
    num_steps: int, num_rows: int, obs_dim: int, action_shape: tuple[int, ...]
) -> dict[str, NDArray[Any]]:
    """Arrays for ``obs`` and `STEP_ARRAYS` of a fragment, zeros.

    Args:
        action_shape: () for discrete actions, int64; (n,) for float32 [n].
    """
    steps = (num_steps, num_rows)
    return {
        "obs": np.zeros((num_steps + 1, num_rows, obs_dim), np.float32),
        "actions": np.zeros((*steps, *action_shape), np.float32 if action_shape else np.int64),
        "log_probs": np.zeros(steps, np.float32),
        "rewards": np.zeros(steps, np.float32),
        "terminations": np.zeros(steps, np.bool_),
        "truncations": np.zeros(steps, np.bool_),
        "final_obs": np.zeros((*steps, obs_dim), np.float32),
    }
