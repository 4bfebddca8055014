"""Advantages and returns over rollouts, compiled (source: ``cython/_returns.pyx``).

Arrays are time-major, ``[T, N]``: row ``t`` is step ``t`` of all ``N`` environments. They are float32 and
summed in float64. Every array is the caller's, C-contiguous, and nothing is allocated but ``N`` doubles; the
GIL is released.

All functions share their inputs:

- ``rewards`` float32 [T, N].
- ``values`` float32 [T, N], of the observation that each action was taken on.
- ``terminations``, ``truncations`` bool [T, N], how the episode ended at this step, if it did.
- ``final_values`` float32 [T, N], value of the true last observation of an episode (not of the observation
  after the reset). Read only where ``truncations`` is True and ``terminations`` is False.
- ``last_values`` float32 [N], value of the observation that follows the last row. Not read for environments
  that ended in that row, nor is ``values`` in the row after an end on that end's behalf.

and in their formulas what follows a step is worth

- 0 if ``terminations[t]`` (a step that is both terminated and truncated is terminated);
- ``final_values[t]`` if ``truncations[t]``: the episode was cut off, and its value goes on;
- otherwise what the formula says of row ``t + 1``; in the last row, ``last_values``.

Outputs are float32 [T, N] and overwritten. They share no memory with each other or the inputs.

All functions raise, before anything is written:

- TypeError: something that is not a numpy array, or of another dtype.
- ValueError: another shape, not C-contiguous, read-only or overlapping output, a discount or lambda outside
  [0, 1].
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

    so that the returns are the lambda-returns of Sutton and Barto, "Reinforcement Learning", 2018, section 12.1::

        returns[t] = rewards[t] + gamma * ((1 - gae_lambda) * V(next observation) + gae_lambda * returns[t + 1])

    and V(next observation) is what follows, see above; otherwise ``values[t + 1]``.

    Args:
        gamma: discount, 0 to 1.
        gae_lambda: weight of longer estimates, 0 (one step) to 1 (Monte Carlo).
    """

def discounted_returns(
    rewards: NDArray[np.float32],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
    final_values: NDArray[np.float32],
    last_values: NDArray[np.float32],
    returns: NDArray[np.float32],
    *,
    gamma: float,
) -> None:
    """Sums of discounted rewards up to the end of the episode or the rollout, and the value of what follows::

        returns[t] = rewards[t] + gamma * returns[t + 1]

    With zeros for ``final_values`` and ``last_values`` they are plain sums of rewards.
    """

def vtrace(
    log_ratios: NDArray[np.float32],
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
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    trace_lambda: float = 1.0,
) -> None:
    """V-trace targets and policy-gradient advantages from the experience of another policy.

    Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
    Architectures", 2018, section 4.1 and remark 2::

        rho[t] = min(rho_clip, exp(log_ratios[t]))
        c[t] = trace_lambda * min(c_clip, exp(log_ratios[t]))
        delta[t] = rho[t] * (rewards[t] + gamma * V(next observation) - values[t])
        returns[t] = values[t] + delta[t] + gamma * c[t] * (returns[t + 1] - values[t + 1])
        advantages[t] = rho[t] * (rewards[t] + gamma * returns[t + 1] - values[t])

    where V(next observation) is what follows, otherwise ``values[t + 1]``; beyond an end and the last row
    there is nothing to correct, and V(next observation) stands for ``returns[t + 1]`` too. With equal policies
    (``log_ratios`` 0) the targets are the returns of `gae` with ``gae_lambda`` = ``trace_lambda``.

    Args:
        log_ratios: float32 [T, N], log-probability of the action by the policy to be learnt less that by the
            policy that took it. Infinite ones are clipped as well.
        gamma: discount, 0 to 1.
        rho_clip: which values the targets are those of: 1, of a policy between the two; infinity, of the
            policy to be learnt.
        c_clip: how far a correction reaches back; at most ``rho_clip``.
        trace_lambda: the same by a constant factor, 0 to 1.

    Raises:
        ValueError: as all, and clips other than 0 < ``c_clip`` <= ``rho_clip``.
    """
