"""Storage of rollouts: arrays [T, N, ...] that environments write into and learners read."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native import _returns, _rows

# At most so many observations are looked at to decide whether equal ones are merged: where the share of different ones
# is larger than this, merging costs more than it gains.
MERGE_SAMPLE = 4096
MERGE_SHARE = 0.9


class Rollout:
    """T steps of N rows, allocated once and overwritten by each collection. A row is an environment or, of environments
    of A agents, an agent: row = environment * A + agent.

    Arrays are numpy, time-major and C-contiguous, so that row ``t`` of each can be handed to
    ``NativeVectorEnv.step_into``. ``tensors[name]`` is a torch view of the same memory.

    Attributes:
        obs: float32 or uint8 [T + 1, N, obs_dim], see `fastrl.envs.rows.ObsRows`; row ``t`` is what action ``t`` was
            chosen on, row T what follows the last.
        actions: as the policy drew them (see `fastrl.networks.action_space.Actions`): int64 [T, N], int64
            [T, N, action_width] of multi-discrete ones, or float32 [T, N, num_actions].
        log_probs: float32 [T, N], of the actions under the policy that chose them.
        rewards: float32 [T, N].
        terminations, truncations: bool [T, N].
        final_obs: [T, N, obs_dim] as ``obs``, true last observations; meaningful only where an episode ended.
            (Memory that is never written to costs address space only.) Of many agents: in environments in which one
            ended.
        values: float32 [T + 1, N], of ``obs``.
        has_values: actors have given those of the first T steps.
        final_values: float32 [T, N], of ``final_obs``; meaningful only where `cut_off`.
        advantages, returns: float32 [T, N], written by `compute_advantages`.
        alive: bool [T + 1, N], whether the row holds an agent that acts on ``obs``; None: all do. Nothing is learned
            from other rows, whose advantages and returns are 0.
        masks: bool [T + 1, N, num_actions], or None: which actions were allowed on ``obs``; all in row T, where none
            is chosen.
        final_masks: bool [T, N, num_actions], or None: those on ``final_obs``; meaningful only where `cut_off`. With
            them row T of ``masks`` says what is allowed there, too.
        groups: int64 [T + 1, N], written by `find_groups`: steps with equal observations have the same number, if
            equal ones are merged.
        memories: float32 [T + 1, N, memory_size], what policies of many agents remember at ``obs``; written by the
            learner.
        final_memories: float32 [T, N, memory_size], the same at ``final_obs``.
        states: float32 [F, state_size], the actor's memory at the start of each row of a fragment, or None without
            memory; set by ``fastrl.rollout.layout.lay_out``.
        state_places: int64 [F, 2], step and row at which each of these rows of fragments starts.
        is_borrowed: some arrays are a fragment's, and not to be overwritten with those of others.

    Args:
        num_steps: T.
        num_rows: N.
        obs_dim: length of an observation.
        num_actions: number of discrete actions, of all choices of a multi-discrete one, or of numbers in a continuous
            one.
        masks: whether to keep action masks.
        final_masks: whether to keep those of last observations, too.
        continuous: whether actions are.
        action_width: how many numbers a multi-discrete action has; 0: actions are of another kind.
        obs_dtype: float32 or uint8.
        state_size: of the actor's memory; 0: none.
        many_agents: rows are of agents, not all of which live.
        memory_size: numbers that a policy of many agents remembers; 0: none.
    """

    def __init__(
        self,
        num_steps: int,
        num_rows: int,
        obs_dim: int,
        num_actions: int,
        masks: bool = False,
        continuous: bool = False,
        *,
        action_width: int = 0,
        final_masks: bool = False,
        obs_dtype: Any = np.float32,
        state_size: int = 0,
        many_agents: bool = False,
        memory_size: int = 0,
    ) -> None:
        for name, size in {"num_steps": num_steps, "num_rows": num_rows, "obs_dim": obs_dim}.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.num_steps = num_steps
        self.num_rows = num_rows
        self.num_actions = num_actions
        self.continuous = continuous
        self.action_width = action_width
        steps = (num_steps, num_rows)
        states = (num_steps + 1, num_rows)
        self.obs = np.zeros((*states, obs_dim), obs_dtype)
        width = num_actions if continuous else action_width
        self.actions: NDArray[Any] = np.zeros(
            (*steps, width) if width else steps, np.float32 if continuous else np.int64
        )
        self.log_probs = np.zeros(steps, np.float32)
        self.rewards = np.zeros(steps, np.float32)
        self.terminations = np.zeros(steps, np.bool_)
        self.truncations = np.zeros(steps, np.bool_)
        self.final_obs = np.zeros((*steps, obs_dim), obs_dtype)
        self.values = np.zeros(states, np.float32)
        self.final_values = np.zeros(steps, np.float32)
        self.advantages = np.zeros(steps, np.float32)
        self.returns = np.zeros(steps, np.float32)
        self.alive: Any = np.zeros(states, np.bool_) if many_agents else None
        self.masks = np.ones((*states, num_actions), np.bool_) if masks else None
        self.final_masks = np.zeros((*steps, num_actions), np.bool_) if final_masks else None
        self.groups = np.zeros(states, np.int64)
        self.memories = np.zeros((*states, memory_size), np.float32)
        self.final_memories = np.zeros((*steps, memory_size), np.float32)
        self.tensors: dict[str, Tensor] = {
            name: torch.from_numpy(array)
            for name, array in vars(self).items()
            if isinstance(array, np.ndarray)
        }
        self.states = np.zeros((0, state_size), np.float32) if state_size else None
        self.state_places = np.zeros((0, 2), np.int64)
        self.has_values = self.is_borrowed = False
        self._first = np.zeros(1, np.int64)
        self._merged = True

    def resized(self, num_steps: int, num_rows: int) -> "Rollout":
        """An empty rollout of another size for the same observations and actions."""
        return Rollout(
            num_steps,
            num_rows,
            self.obs.shape[-1],
            self.num_actions,
            self.masks is not None,
            self.continuous,
            action_width=self.action_width,
            final_masks=self.final_masks is not None,
            obs_dtype=self.obs.dtype,
            state_size=0 if self.states is None else self.states.shape[1],
            many_agents=self.alive is not None,
            memory_size=self.memories.shape[2],
        )

    def borrow(self, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Uses a fragment's arrays, by name, of the same shapes as its own; false: they have another layout in memory,
        and nothing has changed."""
        for name, array in arrays.items():
            flags = array.flags
            if array.dtype != getattr(self, name).dtype or not (flags.carray):
                return False
        for name, array in arrays.items():
            setattr(self, name, array)
            self.tensors[name] = torch.from_numpy(array)
        self.is_borrowed = True
        return True

    def __len__(self) -> int:
        """Number of steps held, T * N."""
        return self.num_steps * self.num_rows

    def flat(self, name: str) -> Tensor:
        """A view of an array's first T steps as [T * N, ...]."""
        return self.tensors[name][: self.num_steps].flatten(0, 1)

    def find_groups(self, merge: bool = True, together: int = MERGE_SAMPLE) -> None:
        """Fills `groups`, and finds the observations that `distinct_obs` gives.

        Equal observations are merged if enough of a sample of them repeat; the sample depends on the rollout's size
        alone.

        Args:
            merge: look for equal observations; otherwise each is a group of its own.
            together: how many observations go through the network together, among which equal ones save work.
        """
        groups = self.groups.reshape(-1)
        self._merged = merge and self._repeats(min(together, MERGE_SAMPLE))
        if self._merged:
            self._first = _rows.group_rows(_as_rows(self.obs), groups)
        else:
            groups[:] = np.arange(len(groups))

    def _repeats(self, size: int) -> bool:
        """Finds whether so many observations, spread over the rollout, have equal ones among them."""
        obs = _as_rows(self.obs)
        if size < len(obs):
            # Steps of the golden section, without a divisor in common with the number of rows, meet each row once.
            step = round(0.618 * len(obs))
            while math.gcd(step, len(obs)) > 1:
                step += 1
            obs = obs[np.arange(size) * step % len(obs)]
        return len(_rows.group_rows(obs, np.empty(len(obs), np.int64))) <= MERGE_SHARE * len(obs)

    def distinct_obs(self) -> NDArray[Any]:
        """``obs`` with one row a group, [G, obs_dim]: ``distinct_obs()[groups]`` is the whole. A copy where equal
        ones are merged, else a view."""
        obs = _as_rows(self.obs)
        return obs[self._first] if self._merged else obs

    def cut_off(self) -> NDArray[np.bool_]:
        """Mask of the steps at which an episode was truncated and not terminated, bool [T, N]."""
        cut_off = self.truncations & ~self.terminations
        return cut_off if self.alive is None else cut_off & self.alive[:-1]

    def compute_advantages(
        self,
        gamma: float,
        gae_lambda: float,
        reward_scale: float = 1.0,
        reward_clip: float | None = None,
        bonus: NDArray[np.float32] | None = None,
    ) -> None:
        """Fills `advantages` and `returns` from rewards times ``reward_scale``, clipped to plus and minus
        ``reward_clip``, and a ``bonus`` [T, N] that is added to them (``fastrl._native._returns.gae``)."""
        rewards, values, terminations = (
            self._scaled_rewards(reward_scale, reward_clip),
            self.values[:-1],
            self.terminations,
        )
        if bonus is not None:
            rewards = rewards + bonus
        if self.alive is not None:
            # An agent's episode ends with its termination or truncation. A row without an agent is an episode of one
            # step, terminated, of reward and value 0.
            alive = self.alive[:-1]
            rewards, values = (np.where(alive, each, np.float32(0)) for each in (rewards, values))
            terminations = terminations | ~alive
        _returns.gae(
            rewards,
            values,
            terminations,
            self.truncations,
            self.final_values,
            self.values[-1],
            self.advantages,
            self.returns,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )

    def compute_vtrace(
        self,
        log_ratios: NDArray[np.float32],
        gamma: float,
        *,
        trace_lambda: float = 1.0,
        rho_clip: float = 1.0,
        c_clip: float = 1.0,
        reward_scale: float = 1.0,
        reward_clip: float | None = None,
    ) -> None:
        """Fills `advantages` and `returns` from what other policies did (``fastrl._native._returns.vtrace``).

        Args:
            log_ratios: float32 [T, N], log-probabilities of the actions under the policy to be learnt less those under
                the policies that took them.
        """
        _returns.vtrace(
            log_ratios,
            self._scaled_rewards(reward_scale, reward_clip),
            self.values[:-1],
            self.terminations,
            self.truncations,
            self.final_values,
            self.values[-1],
            self.advantages,
            self.returns,
            gamma=gamma,
            rho_clip=rho_clip,
            c_clip=c_clip,
            trace_lambda=trace_lambda,
        )

    def _scaled_rewards(self, scale: float, clip: float | None) -> NDArray[np.float32]:
        scaled = self.rewards if scale == 1.0 else self.rewards * np.float32(scale)
        return scaled if clip is None else scaled.clip(-clip, clip)


def explained_variance(returns: NDArray[np.float32], values: NDArray[np.float32]) -> float:
    """1: values are the returns; 0: they are no better than the mean return, or returns are constant, or there are
    none."""
    variance = float(returns.var()) if returns.size else 0.0
    return 0.0 if variance == 0 else 1 - float((returns - values).var()) / variance


def discounted_sums(
    rewards: NDArray[np.float32], ended: NDArray[np.bool_], before: NDArray[np.float32], gamma: float
) -> NDArray[np.float32]:
    """Sums of the rewards so far, ``sums[t] = gamma * sums[t - 1] + rewards[t]``, which restart with each episode.

    Args:
        rewards: float32 [T, N].
        ended: bool [T, N], whether an episode ended at the step.
        before: float32 [N], the sums before the first step.
        gamma: discount, 0 to 1.

    Returns:
        float32 [T, N].
    """
    # Seen from the last step to the first they are discounted returns, which the compiled module knows.
    sums = np.empty(rewards.shape, np.float32)
    begins = np.zeros(ended.shape, np.bool_)
    begins[:-1] = ended[-2::-1]
    truncations, final_values = np.zeros_like(begins), np.zeros_like(sums)
    _returns.discounted_returns(
        np.ascontiguousarray(rewards[::-1]), begins, truncations, final_values, before, sums, gamma=gamma
    )
    return sums[::-1]


def _as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """[T + 1, N, K] as [(T + 1) * N, K]."""
    return array.reshape(-1, array.shape[-1])
