"""Advantages and returns of rollouts, compiled (source: ``cython/_returns.pyx``).

Arrays are time-major, ``[T, N]``: row ``t`` is step ``t`` of all ``N`` environments. They are float32 and summed in
float64. The caller owns all arrays, which are C-contiguous; only ``N`` doubles are allocated. The GIL is released.

All functions have these inputs:

- ``rewards`` float32 [T, N].
- ``values`` float32 [T, N], of the observation before each action.
- ``terminations``, ``truncations`` bool [T, N], True where the episode ended at the step.
- ``final_values`` float32 [T, N], value of the true last observation of an episode (not of the observation after the
  reset). Read only where ``truncations`` is True and ``terminations`` is False.
- ``last_values`` float32 [N], value of the observation after the last row. Not read for environments whose episodes
  ended in that row. Nor is ``values`` read in the row after an end for the value after that end.

In their formulas the value after step ``t`` is

- 0 if ``terminations[t]`` (a step that is both terminated and truncated is terminated);
- ``final_values[t]`` if ``truncations[t]``;
- otherwise the term of row ``t + 1`` in the formula; in the last row, ``last_values``.

Outputs are float32 [T, N] and overwritten. They share no memory with each other or with the inputs.

All functions raise, before anything is written:

- TypeError: not a numpy array, or another dtype.
- ValueError: another shape, not C-contiguous or not aligned; an output that is read-only or overlaps another array; a
  discount or lambda outside [0, 1].
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

    where V(next observation) is the value after the step as defined above, from ``values[t + 1]``.

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
    """Sums of discounted rewards up to the end of the episode or of the rollout, with the value after it::

        returns[t] = rewards[t] + gamma * returns[t + 1]

    With zeros for ``final_values`` and ``last_values`` these are sums of rewards alone.
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

    where V(next observation) is the value after the step as defined above, from ``values[t + 1]``. After an end and
    after the last row there is no correction, and ``returns[t + 1]`` is V(next observation) too. With equal policies
    (``log_ratios`` 0) the targets are the returns of `gae` with ``gae_lambda`` = ``trace_lambda``.

    Args:
        log_ratios: float32 [T, N], log-probability of the action under the learner's policy minus that under the policy
            that took it. May be infinite.
        gamma: discount, 0 to 1.
        rho_clip: limit of rho. It decides of which policy the targets are values: with infinity, of the learner's
            policy; with 1, of one between the two.
        c_clip: limit of c, at most ``rho_clip``. Smaller values let corrections reach less far back.
        trace_lambda: factor of c, 0 to 1.

    Raises:
        ValueError: as all, and clips other than 0 < ``c_clip`` <= ``rho_clip``.
    """
