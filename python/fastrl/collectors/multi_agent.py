"""Collection from worlds of many agents, which write straight into a rollout of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.utils.timer import Stopwatch

# Chooses the actions of one step: reads rollout.obs[t] and alive[t], writes rollout.actions[t] and log_probs[t],
# returns the environment's actions, int64 [K * A] or float32 [K * A, n].
TeamAct = Callable[[MultiAgentRollout, int], NDArray[Any]]


class TeamEnv(Protocol):
    """What is used of ``fastrl.envs.multi_agent.MultiAgentVectorEnv``."""

    num_envs: int
    num_agents: int
    autoreset_mode: AutoresetMode

    @property
    def single_observation_space(self) -> gymnasium.Space: ...

    @property
    def single_action_space(self) -> gymnasium.Space: ...

    def reset_into(
        self, obs: NDArray[np.float32], alive: NDArray[np.bool_], *, seed: Any = None, reset_mask: Any = None
    ) -> None: ...

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class TeamStats:
    """What one collection saw.

    Attributes:
        steps: steps of worlds, T * K.
        agent_steps: steps of living agents.
        episodes: episodes of worlds that ended, E.
        returns: float64 [E], mean over an episode's agents of the undiscounted sums of their rewards, in the
            order in which the episodes ended.
        lengths: int64 [E], their numbers of steps.
    """

    steps: int
    agent_steps: int
    episodes: int
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]


class TeamCollector:
    """Fills rollouts of rows; episodes go on from one rollout to the next.

    Args:
        env: steps in SAME_STEP autoreset mode.
        act: chooses the actions of a step.
        seeds: one for each world, for the reset before the first step.

    Raises:
        ValueError: the environment has another autoreset mode, or another number of seeds.
    """

    def __init__(self, env: TeamEnv, act: TeamAct, seeds: Sequence[int]) -> None:
        mode = AutoresetMode(env.autoreset_mode)
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"training needs an environment with autoreset_mode='same_step', got {mode.value!r}"
            )
        if len(seeds) != env.num_envs:
            raise ValueError(f"expected a seed for each of {env.num_envs} worlds, got {len(seeds)}")
        self.env = env
        self.act = act
        self.seeds = list(seeds)
        # What the next rollout begins with; None before the first reset.
        self._obs: NDArray[np.float32] | None = None
        self._alive: NDArray[np.bool_] | None = None
        # Of the running episodes: sums of rewards and who took part, a row; steps, a world.
        self._sums = np.zeros(env.num_envs * env.num_agents)
        self._present = np.zeros(env.num_envs * env.num_agents, np.bool_)
        self._lengths = np.zeros(env.num_envs, np.int64)

    def collect(self, rollout: MultiAgentRollout, watch: Stopwatch) -> TeamStats:
        """Takes T steps in each world, the first time after a reset.

        Raises:
            ValueError: the rollout is of other sizes than the environment, or an agent left without an end.
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
            self._begin(rollout)
        returns, lengths = [np.empty(0)], [np.empty(0, np.int64)]
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
                ended = self._settle(rollout, t)
                self._sums += np.where(rollout.alive[t], rollout.rewards[t], 0)
                self._present |= rollout.alive[t]
                self._lengths += 1
                if ended.any():
                    returns.append(self._finish(ended))
                    lengths.append(self._lengths[ended])
                    self._lengths[ended] = 0
        self._obs, self._alive = rollout.obs[-1], rollout.alive[-1]
        with watch("buffer"):
            self._check(rollout)
        all_returns = np.concatenate(returns)
        return TeamStats(
            steps=rollout.num_steps * env.num_envs,
            agent_steps=int(np.count_nonzero(rollout.alive[:-1])),
            episodes=len(all_returns),
            returns=all_returns,
            lengths=np.concatenate(lengths),
        )

    def _begin(self, rollout: MultiAgentRollout) -> None:
        if self._obs is None or self._alive is None:
            self.env.reset_into(rollout.obs[0], rollout.alive[0], seed=self.seeds)
        else:
            rollout.obs[0], rollout.alive[0] = self._obs, self._alive

    def _settle(self, rollout: MultiAgentRollout, t: int) -> NDArray[np.bool_]:
        """Puts the true last observations where they belong; returns which worlds ended, bool [K]."""
        worlds = (self.env.num_envs, self.env.num_agents)
        acted = rollout.alive[t]
        stopped = rollout.terminations[t] | rollout.truncations[t] | ~acted
        ended: NDArray[np.bool_] = stopped.reshape(worlds).all(1)
        # Of a world that goes on without somebody, the true last observation stands among the next ones.
        cut_off = (acted & rollout.truncations[t] & ~rollout.terminations[t]).reshape(worlds).any(1) & ~ended
        if cut_off.any():
            rows = np.repeat(cut_off, self.env.num_agents)
            rollout.final_obs[t, rows] = rollout.obs[t + 1, rows]
        return ended

    def _finish(self, ended: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Mean returns of the worlds that ended, whose sums begin anew."""
        worlds = (self.env.num_envs, self.env.num_agents)
        sums, present = self._sums.reshape(worlds), self._present.reshape(worlds)
        means: NDArray[np.float64] = sums[ended].sum(1) / np.maximum(present[ended].sum(1), 1)
        sums[ended], present[ended] = 0, False
        return means

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
                f"the environment gave the reward {rollout.rewards[t, row]} to row {row}"
                f" (agent {row % self.env.num_agents} of world {row // self.env.num_agents}); rewards must be finite"
            )

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, apart from the environment's own state. Empty before the first collection."""
        if self._obs is None or self._alive is None:
            return {}
        parts = {
            "obs": self._obs,
            "alive": self._alive,
            "sums": self._sums,
            "present": self._present,
            "lengths": self._lengths,
        }
        return {name: torch.from_numpy(array.copy()) for name, array in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other collector stood. The caller restores the environment's state.

        Raises:
            ValueError: the state is of another number of worlds or agents, or another observation.
        """
        if not state:
            self._obs = self._alive = None
            for array in (self._sums, self._present, self._lengths):
                array[:] = 0
            return
        shape = (self.env.num_envs * self.env.num_agents, *(self.env.single_observation_space.shape or ()))
        if tuple(state["obs"].shape) != shape:
            raise ValueError(
                f"the saved state has observations {list(state['obs'].shape)}, this run {list(shape)}"
                " (rows, length of an observation)"
            )
        self._obs, self._alive = state["obs"].numpy().copy(), state["alive"].numpy().copy()
        self._sums[:], self._present[:] = state["sums"].numpy(), state["present"].numpy()
        self._lengths[:] = state["lengths"].numpy()
