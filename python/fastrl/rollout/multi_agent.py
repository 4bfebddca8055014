"""Storage of on-policy rollouts of many agents: a rollout whose rows may hold no agent."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from fastrl.rollout.rollout import Rollout


class MultiAgentRollout(Rollout):
    """T steps of N = K * A rows (K environments of A agents, row = environment * A + agent).

    Row ``t`` of each array can be handed to ``MultiAgentVectorEnv.step_into``. Values in rows that are not alive have
    no meaning, and nothing is learned from them.

    Attributes:
        alive: bool [T + 1, N], whether the row holds an agent that acts on ``obs``.
        final_obs: meaningful in environments in which an agent was truncated.
        advantages, returns: 0 in rows that are not alive.
        others: as of `Rollout`.

    Args:
        num_steps: T.
        num_rows: N.
        obs_dim: length of an agent's observation.
        action_space: the flat one of an agent, see `fastrl.envs.rows.ActionRows`.
        obs_dtype: float32 or uint8.
    """

    def __init__(
        self,
        num_steps: int,
        num_rows: int,
        obs_dim: int,
        action_space: gymnasium.Space[Any],
        obs_dtype: Any = np.float32,
    ) -> None:
        actions: dict[str, Any]
        match action_space:
            case Discrete():
                actions = {"num_actions": int(action_space.n)}
            case MultiDiscrete():
                actions = {
                    "num_actions": int(action_space.nvec.sum()),
                    "action_width": len(action_space.nvec),
                }
            case _:
                (size,) = action_space.shape or ()
                actions = {"num_actions": size, "continuous": True}
        super().__init__(num_steps, num_rows, obs_dim, **actions, obs_dtype=obs_dtype)
        self.alive = np.zeros((num_steps + 1, num_rows), np.bool_)
        self.tensors["alive"] = torch.from_numpy(self.alive)

    def cut_off(self) -> NDArray[np.bool_]:
        """Mask of the steps at which an agent was truncated and not terminated, bool [T, N]."""
        return self.alive[:-1] & super().cut_off()

    def compute_advantages(
        self, gamma: float, gae_lambda: float, reward_scale: float = 1.0, reward_clip: float | None = None
    ) -> None:
        """Fills `advantages` and `returns` from rewards times ``reward_scale`` (``fastrl._native._returns.gae``).

        An agent's episode ends with its termination or truncation, so that nothing of the rows after it is
        bootstrapped. A row without an agent is treated as an episode of one step, terminated, of reward and value 0.
        """
        alive = self.alive[:-1]
        self._compute_gae(
            np.where(alive, self._scaled_rewards(reward_scale, reward_clip), np.float32(0)),
            np.where(alive, self.values[:-1], np.float32(0)),
            self.terminations | ~alive,
            gamma,
            gae_lambda,
        )
