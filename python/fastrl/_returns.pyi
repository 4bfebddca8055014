"""Advantages and returns over rollouts, compiled (source: ``cython/_returns.pyx``).

Arrays are time-major, ``[T, N]``: row ``t`` is step ``t`` of all ``N`` environments. They are float32 and
summed in float64. Every array is the caller's, C-contiguous, and nothing is allocated but ``N`` doubles; the
GIL is released.
"""

import numpy as np
from numpy.typing import NDArray

def gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
    final_values: NDArray[np.float32],
    last_values: NDArray[np.float32],
    advantages: NDArray[np.float32],
    returns: NDArray[np.float32],
    *,
    gamma: float,
    gae_lambda: float,
) -> None:
    """Generalised advantage estimation, written into ``advantages`` and ``returns``.

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016,
    equations 11 and 16::

        delta[t] = rewards[t] + gamma * V(next observation) - values[t]
        advantages[t] = delta[t] + gamma * gae_lambda * advantages[t + 1]    (without the latter at an end)
        returns[t] = advantages[t] + values[t]

    where V(next observation) is

    - 0 if ``terminations[t]`` (a step that is both terminated and truncated is terminated);
    - ``final_values[t]`` if ``truncations[t]``: the episode was cut off, and its value goes on;
    - otherwise ``values[t + 1]``, or ``last_values`` in the last row.

    Args:
        rewards: float32 [T, N].
        values: float32 [T, N], value of the observation that each action was taken on.
        terminations, truncations: bool [T, N], how the episode ended at this step, if it did.
        final_values: float32 [T, N], value of the true last observation of an episode (not of the observation
            after the reset). Read only where ``truncations`` is True and ``terminations`` is False.
        last_values: float32 [N], value of the observation that follows the last row. Not read for
            environments that ended in that row.
        advantages, returns: float32 [T, N], overwritten. They share no memory with each other or the inputs.
        gamma: discount, 0 to 1.
        gae_lambda: weight of longer estimates, 0 (one step) to 1 (Monte Carlo).

    Raises:
        TypeError: something that is not a numpy array, or of another dtype.
        ValueError: another shape, not C-contiguous, read-only or overlapping output, ``gamma`` or
            ``gae_lambda`` outside [0, 1]. Nothing has been written then.
    """
