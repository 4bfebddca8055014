"""Collection from a native vector environment, which writes straight into the rollout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.rollout.rollout import Rollout
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from fastrl.envs.vector import NativeVectorEnv

# Chooses the actions of one step: reads rollout.obs[t] (and masks[t]), writes rollout.actions[t] and
# log_probs[t].
Act = Callable[[Rollout, int], None]


@dataclass(frozen=True)
class CollectStats:
    """What one collection saw.

    Attributes:
        steps: environment steps taken, T * N.
        episodes: episodes that ended, E.
        returns: float64 [E], undiscounted sums of their rewards, in the order in which they ended.
        lengths: int64 [E], their numbers of steps.
        red_agents: uint8 [E], which red agent they were played against (an index as in the environment's
            ``red_agents()``), or None where the environment has no such method.
    """

    steps: int
    episodes: int
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    red_agents: NDArray[np.uint8] | None


class NativeCollector:
    """Fills a rollout again and again; episodes go on from one rollout to the next.

    Args:
        env: steps in SAME_STEP autoreset mode: after an end, ``obs`` is the next episode's first observation
            and the true last one goes to ``final_obs``.
        rollout: whose arrays are written.
        act: chooses the actions of a step.
        seeds: one for each environment, for the reset before the first step.

    Raises:
        ValueError: the environment has another autoreset mode, other sizes than the rollout, or no masks
            although the rollout keeps them.
    """

    def __init__(self, env: "NativeVectorEnv", rollout: Rollout, act: Act, seeds: Sequence[int]) -> None:
        mode = AutoresetMode(env.autoreset_mode)
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"training needs an environment with autoreset_mode='same_step', got {mode.value!r}"
            )
        self._action_masks = getattr(env, "action_masks", None)
        if rollout.masks is not None and self._action_masks is None:
            raise ValueError("action masks were asked for, and the environment has no action_masks()")
        obs_shape = (env.num_envs, *(env.single_observation_space.shape or ()))
        if obs_shape != rollout.obs.shape[1:]:
            raise ValueError(
                f"the rollout holds observations {list(rollout.obs.shape[1:])} a step,"
                f" the environment gives {list(obs_shape)}"
            )
        self.env = env
        self.rollout = rollout
        self.act = act
        self.seeds = list(seeds)
        self.started = False
        self.episode_returns = np.zeros(env.num_envs)
        self.episode_lengths = np.zeros(env.num_envs, np.int64)
        self.episode_red_agents: NDArray[np.uint8] | None = None

    def collect(self, watch: Stopwatch) -> CollectStats:
        """Takes T steps in each environment, the first time after a reset.

        Raises:
            ValueError: an action was chosen that its mask forbids, which happens only if the mask allows
                none.
        """
        env, rollout = self.env, self.rollout
        with watch("environment"):
            if self.started:
                rollout.obs[0] = rollout.obs[-1]
            else:
                env.reset_into(rollout.obs[0], seed=self.seeds)
                self.episode_red_agents = self._current_red_agents()
                self.started = True
            self._read_masks(0)
        returns, lengths, red_agents = [], [], []
        for t in range(rollout.num_steps):
            with watch("inference"):
                self.act(rollout, t)
            with watch("environment"):
                env.step_into(
                    rollout.actions[t],
                    rollout.obs[t + 1],
                    rollout.rewards[t],
                    rollout.terminations[t],
                    rollout.truncations[t],
                    rollout.final_obs[t],
                )
                self._read_masks(t + 1)
            with watch("buffer"):
                self.episode_returns += rollout.rewards[t]
                self.episode_lengths += 1
                ended = rollout.terminations[t] | rollout.truncations[t]
                if ended.any():
                    returns.append(self.episode_returns[ended])
                    lengths.append(self.episode_lengths[ended])
                    self.episode_returns[ended] = 0
                    self.episode_lengths[ended] = 0
                    if self.episode_red_agents is not None:
                        red_agents.append(self.episode_red_agents[ended])
                        self.episode_red_agents = self._current_red_agents()
        with watch("buffer"):
            self._check_masks()
        all_returns = np.concatenate([np.empty(0), *returns])
        return CollectStats(
            steps=len(rollout),
            episodes=len(all_returns),
            returns=all_returns,
            lengths=np.concatenate([np.empty(0, np.int64), *lengths]),
            red_agents=(
                None
                if self.episode_red_agents is None
                else np.concatenate([np.empty(0, np.uint8), *red_agents])
            ),
        )

    def look(self) -> None:
        """Reads anew what the environment shows, for it has been changed since its last step."""
        if self.started:
            self.env.observe_into(self.rollout.obs[-1])

    def _read_masks(self, t: int) -> None:
        if self.rollout.masks is not None and self._action_masks is not None:
            self._action_masks(out=self.rollout.masks[t])

    def _current_red_agents(self) -> NDArray[np.uint8] | None:
        read = getattr(self.env, "red_agents", None)
        return None if read is None else np.array(read(), np.uint8)

    def _check_masks(self) -> None:
        masks, actions = self.rollout.masks, self.rollout.actions
        if masks is None:
            return
        allowed = np.take_along_axis(masks[:-1], actions[..., None], axis=-1)[..., 0]
        if not allowed.all():
            t, i = np.argwhere(~allowed)[0]
            raise ValueError(
                f"action_masks() allowed {masks[t, i].sum()} of {masks.shape[-1]} actions to environment {i}"
                f" and action {actions[t, i]} was not one of them; every state needs an allowed action"
            )

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, apart from the environment's own state: tensors and plain values.

        Empty before the first collection.
        """
        if not self.started:
            return {}
        red_agents = self.episode_red_agents
        return {
            "obs": torch.from_numpy(self.rollout.obs[-1].copy()),
            "episode_returns": torch.from_numpy(self.episode_returns.copy()),
            "episode_lengths": torch.from_numpy(self.episode_lengths.copy()),
            "episode_red_agents": None if red_agents is None else torch.from_numpy(red_agents.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other collector stood. The caller restores the environment's state.

        Raises:
            ValueError: the state is of another number of environments or another observation.
        """
        if not state:
            self.started = False
            self.episode_returns[:] = 0
            self.episode_lengths[:] = 0
            return
        if tuple(state["obs"].shape) != self.rollout.obs.shape[1:]:
            raise ValueError(
                f"the saved state has observations {list(state['obs'].shape)},"
                f" this run {list(self.rollout.obs.shape[1:])} (environments, length of an observation)"
            )
        self.rollout.obs[-1] = state["obs"].numpy()
        self.episode_returns[:] = state["episode_returns"].numpy()
        self.episode_lengths[:] = state["episode_lengths"].numpy()
        red_agents = state["episode_red_agents"]
        self.episode_red_agents = None if red_agents is None else red_agents.numpy().copy()
        self.started = True
