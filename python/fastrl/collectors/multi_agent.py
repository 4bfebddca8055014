"""Collection from a vector environment of many agents, which writes straight into a rollout."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.envs.contract import as_given
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.utils.timer import Stopwatch

# Chooses the actions of one step: reads rollout.obs[t] and alive[t], writes rollout.actions[t] and log_probs[t],
# returns the environment's actions, int64 [K * A] or [K * A, n], or float32 [K * A, n].
ActInto = Callable[[MultiAgentRollout, int], NDArray[Any]]


class MultiAgentEnv(Protocol):
    """The part of ``fastrl.envs.multi_agent.MultiAgentVectorEnv`` that a collector uses."""

    num_envs: int
    num_agents: int
    autoreset_mode: AutoresetMode

    @property
    def single_observation_space(self) -> gymnasium.Space: ...

    @property
    def single_action_space(self) -> gymnasium.Space: ...

    def reset_into(
        self, obs: NDArray[Any], alive: NDArray[np.bool_], *, seed: Any = None, reset_mask: Any = None
    ) -> None: ...

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[Any] | None = None,
    ) -> None: ...


class MultiAgentCollector:
    """Fills rollouts; episodes continue from one rollout to the next.

    Args:
        env: in SAME_STEP autoreset mode.
        act: chooses the actions of a step.
        seeds: one for each environment, for the reset before the first step.

    Raises:
        ValueError: the environment has another autoreset mode, or there is another number of seeds.
    """

    def __init__(self, env: MultiAgentEnv, act: ActInto, seeds: Sequence[int]) -> None:
        mode = AutoresetMode(env.autoreset_mode)
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"training needs an environment with autoreset_mode='same_step', got {mode.value!r}"
            )
        if len(seeds) != env.num_envs:
            raise ValueError(f"expected a seed for each of {env.num_envs} environments, got {len(seeds)}")
        self.env = env
        self.act = act
        self.seeds = list(seeds)
        # The first row of the next rollout; None before the first reset.
        self._obs: NDArray[Any] | None = None
        self._alive: NDArray[np.bool_] | None = None

    def collect(self, rollout: MultiAgentRollout, watch: Stopwatch) -> None:
        """Takes T steps in each environment, the first time after a reset.

        Raises:
            ValueError: the rollout is of other sizes than the environment, or an agent disappeared without an end.
            FloatingPointError: the environment gave rewards that are not finite.
        """
        env = self.env
        shape = (env.num_envs * env.num_agents, *(env.single_observation_space.shape or ()))
        if rollout.obs.shape[1:] != shape:
            raise ValueError(
                f"the rollout holds observations {list(rollout.obs.shape[1:])} a step,"
                f" the environment gives {list(shape)}"
            )
        with watch("environment"):
            self._write_first_obs(rollout)
        for t in range(rollout.num_steps):
            with watch("inference"):
                actions = self.act(rollout, t)
            with watch("environment"):
                env.step_into(
                    actions,
                    rollout.obs[t + 1],
                    rollout.rewards[t],
                    rollout.terminations[t],
                    rollout.truncations[t],
                    rollout.alive[t + 1],
                    rollout.final_obs[t],
                )
            with watch("buffer"):
                self._copy_final_obs(rollout, t)
        self._obs, self._alive = rollout.obs[-1], rollout.alive[-1]
        with watch("buffer"):
            self._check(rollout)

    def _write_first_obs(self, rollout: MultiAgentRollout) -> None:
        if self._obs is None or self._alive is None:
            self.env.reset_into(rollout.obs[0], rollout.alive[0], seed=self.seeds)
        else:
            rollout.obs[0], rollout.alive[0] = self._obs, self._alive

    def _copy_final_obs(self, rollout: MultiAgentRollout, t: int) -> None:
        """Copies the last observations of agents that are truncated while the episode of their environment continues:
        the environment writes these among the next ones."""
        shape = (self.env.num_envs, self.env.num_agents)
        acted = rollout.alive[t]
        cut_off = acted & rollout.truncations[t] & ~rollout.terminations[t]
        if not cut_off.any():
            return
        stopped = rollout.terminations[t] | rollout.truncations[t] | ~acted
        continues = ~stopped.reshape(shape).all(1)
        rows = np.repeat(cut_off.reshape(shape).any(1) & continues, self.env.num_agents)
        rollout.final_obs[t, rows] = rollout.obs[t + 1, rows]

    def _check(self, rollout: MultiAgentRollout) -> None:
        alive = rollout.alive
        gone = alive[:-1] & ~alive[1:] & ~(rollout.terminations | rollout.truncations)
        if gone.any():
            t, row = np.argwhere(gone)[0]
            raise ValueError(
                f"the environment's row {row} was alive and then was not, without having been terminated or"
                f" truncated (step {t} of the rollout)"
            )
        wrong = alive[:-1] & ~np.isfinite(rollout.rewards)
        if wrong.any():
            t, row = np.argwhere(wrong)[0]
            raise FloatingPointError(
                f"the environment gave the reward {as_given(rollout.rewards[t, row])} to row {row}"
                f" (agent {row % self.env.num_agents} of environment {row // self.env.num_agents}); rewards must be"
                " finite"
            )

    def state_dict(self) -> dict[str, Any]:
        """State for `load_state_dict`, apart from the environment's own state. Empty before the first collection."""
        if self._obs is None or self._alive is None:
            return {}
        return {
            "obs": torch.from_numpy(self._obs.copy()),
            "alive": torch.from_numpy(self._alive.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes where the other collector stood. The caller restores the environment's state.

        Raises:
            ValueError: the state is of another number of environments or agents, or of other observations.
        """
        if not state:
            self._obs = self._alive = None
            return
        shape = (self.env.num_envs * self.env.num_agents, *(self.env.single_observation_space.shape or ()))
        if tuple(state["obs"].shape) != shape:
            raise ValueError(
                f"the saved state has observations {list(state['obs'].shape)}, this run {list(shape)}"
                " (rows, length of an observation)"
            )
        self._obs, self._alive = state["obs"].numpy().copy(), state["alive"].numpy().copy()
