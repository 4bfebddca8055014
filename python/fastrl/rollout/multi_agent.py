"""Storage of on-policy rollouts of many agents: arrays [T, K * A, ...], and which rows hold a living agent."""

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native import _returns


class MultiAgentRollout:
    """T steps of N = K * A rows (K worlds of A agents, row = world * A + agent), overwritten by each collection.

    Arrays are numpy, time-major and C-contiguous, so that row ``t`` of each can be handed to
    ``MultiAgentVectorEnv.step_into``. ``tensors[name]`` is a torch view of the same memory.

    What stands in rows that are not alive means nothing, and nothing is learnt from it.

    Attributes:
        obs: float32 [T + 1, N, obs_dim]; row ``t`` is what action ``t`` was chosen on, row T what follows the last.
        alive: bool [T + 1, N], whether the row holds an agent that acts on ``obs``.
        actions: int64 [T, N], or float32 [T, N, n] as the policy drew them (see `fastrl.networks.multi_agent.Actions`).
        log_probs: float32 [T, N], of the actions under the policy that chose them.
        rewards: float32 [T, N].
        terminations, truncations: bool [T, N].
        final_obs: float32 [T, N, obs_dim], true last observations; meaningful in worlds in which somebody was
            truncated. (Memory that is never written to costs address space only.)
        values: float32 [T + 1, N], of ``obs``.
        final_values: float32 [T, N], of ``final_obs``; meaningful only where `cut_off`.
        advantages, returns: float32 [T, N], written by `compute_advantages`; 0 in rows that are not alive.

    Args:
        num_steps: T.
        num_rows: N.
        obs_dim: length of an agent's observation.
        action_space: of one agent, Discrete or Box of one dimension.
    """

    def __init__(self, num_steps: int, num_rows: int, obs_dim: int, action_space: gymnasium.Space) -> None:
        for name, size in {"num_steps": num_steps, "num_rows": num_rows, "obs_dim": obs_dim}.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.num_steps = num_steps
        self.num_rows = num_rows
        steps = (num_steps, num_rows)
        states = (num_steps + 1, num_rows)
        self.obs = np.zeros((*states, obs_dim), np.float32)
        self.alive = np.zeros(states, np.bool_)
        self.actions: NDArray[np.int64] | NDArray[np.float32]
        if isinstance(action_space, gymnasium.spaces.Discrete):
            self.actions = np.zeros(steps, np.int64)
        else:
            self.actions = np.zeros((*steps, *(action_space.shape or ())), np.float32)
        self.log_probs = np.zeros(steps, np.float32)
        self.rewards = np.zeros(steps, np.float32)
        self.terminations = np.zeros(steps, np.bool_)
        self.truncations = np.zeros(steps, np.bool_)
        self.final_obs = np.zeros((*steps, obs_dim), np.float32)
        self.values = np.zeros(states, np.float32)
        self.final_values = np.zeros(steps, np.float32)
        self.advantages = np.zeros(steps, np.float32)
        self.returns = np.zeros(steps, np.float32)
        self.tensors: dict[str, Tensor] = {
            name: torch.from_numpy(array)
            for name, array in vars(self).items()
            if isinstance(array, np.ndarray)
        }

    def flat(self, name: str) -> Tensor:
        """A view of an array's first T steps as [T * N, ...]."""
        return self.tensors[name][: self.num_steps].flatten(0, 1)

    def cut_off(self) -> NDArray[np.bool_]:
        """Where an agent was truncated and not terminated, bool [T, N]."""
        return self.alive[:-1] & self.truncations & ~self.terminations

    def compute_advantages(self, gamma: float, gae_lambda: float, reward_scale: float = 1.0) -> None:
        """Fills `advantages` and `returns` from rewards times ``reward_scale`` (``fastrl._native._returns.gae``).

        An agent's life ends with its termination or truncation, so that nothing flows back to it from the rows
        after it. A row without an agent is made a life of one step, terminated, of reward and value 0.
        """
        alive = self.alive[:-1]
        _returns.gae(
            np.where(alive, self.rewards * np.float32(reward_scale), np.float32(0)),
            np.where(alive, self.values[:-1], np.float32(0)),
            self.terminations | ~alive,
            self.truncations,
            self.final_values,
            self.values[-1],
            self.advantages,
            self.returns,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
