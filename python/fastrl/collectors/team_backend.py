"""The vector backend of environments of many agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError, Difficulty, Plan, expect_spaces
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.vector_backends import JointBackend, expect_masks
from fastrl.envs.contract import ContractError, as_given
from fastrl.envs.record_episodes import MEASURES
from fastrl.envs.rows import ObsRows
from fastrl.envs.serial_envs import StepArrays
from fastrl.networks.compiled_actor import masks_by_number

if TYPE_CHECKING:
    from fastrl._native._rust import Mlp
    from fastrl.envs.multi_agent import MultiAgentVectorEnv
    from fastrl.envs.opponents import OpponentVectorEnv
    from fastrl.envs.vector import RolloutEnd

# The level of difficulty at the start of an episode, among the keys of ``Plan.episode_info``.
LEVEL = "level"
# The index of the opponent that was drawn for an episode, among these keys.
OPPONENT = "opponent"

EPISODE_INFO = (*(name for name in MEASURES if name not in ("length", "return_mean")), LEVEL)
"""The keys of ``Plan.episode_info`` that a `TeamBackend` knows."""


class TeamBackend(JointBackend):
    """Environments of A agents each, stepped together.

    Arrays of steps have an axis of agents, [R, A, ...]; actions are flat, [R * A, ...].

    Args:
        workers: that step the environments, see `TeamSpec.make_team`.

    Raises:
        CollectError: they cannot be built, have other spaces than the plan, or no action masks though it asks for them.
    """

    alive: NDArray[np.bool_]
    _env: MultiAgentVectorEnv

    def __init__(self, plan: Plan, workers: int | None = None) -> None:
        rows, agents, spec = plan.num_envs, plan.num_agents, plan.env
        assert isinstance(spec, TeamSpec) and agents is not None, "the plan is of many agents"
        env = spec.make_team(rows, workers=workers, action_masks=plan.action_masks)
        self._env, self._name = env, spec.id
        # Rows of images are flat.
        expect_spaces(plan, ObsRows(env.obs_space).row_space, env.single_action_space)
        expect_masks(plan, env)
        super().__init__(plan)
        self.alive = np.zeros((rows, agents), np.bool_)
        self.over = np.zeros(rows, np.bool_)
        self._has_masks, self._nvec = plan.action_masks, plan.actions.nvec
        # See `difficulties`: those that were set last, those of each row's next episode and of its running one.
        self._opposed = cast("OpponentVectorEnv", env) if spec.shares() else None
        self._difficulty = self._row(0)
        self._next, self._running = np.tile(self._difficulty, (2, rows, 1))

    def _reset_env(self, obs: NDArray[Any], seeds: Any, mask: NDArray[np.bool_]) -> None:
        try:
            self._env.reset_into(_flat(obs), _flat(self.alive), seed=seeds, reset_mask=mask)
        except ContractError as error:
            raise CollectError(str(error)) from None
        self._running[mask] = self._next[mask]

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        obs, rewards, terminations, truncations, final_obs, _ = arrays
        idle = self._due.copy() if mask is None else self._due | ~mask
        self._reset_due()
        if self._has_masks and idle.any():
            actions = self._with_allowed(actions, idle)
        acted = self.alive.copy()
        outputs: tuple[NDArray[Any], ...] = (obs, rewards, terminations, truncations, self.alive)
        try:
            self._env.step_into(actions, *map(_flat, outputs))
        except ContractError as error:
            raise CollectError(str(error)) from None
        if self._limit:
            late = self._at_limit()
            truncations[late] |= acted[late] & ~terminations[late]
            self.alive[late] = False
        # Of agents that did not act the simulator may say anything.
        rewards[~acted], terminations[~acted], truncations[~acted] = 0.0, False, False
        if not np.isfinite(rewards).all():
            row, agent = np.argwhere(~np.isfinite(rewards))[0].tolist()
            raise CollectError(
                f"{self._name}: step() gave the reward {as_given(rewards[row, agent])} to agent {agent} of environment"
                f" {row}; rewards should be finite numbers"
            )
        lost = acted & ~self.alive & ~(terminations | truncations)
        if lost.any():
            row, agent = np.argwhere(lost)[0].tolist()
            raise CollectError(
                f"{self._name}: agent {agent} of environment {row} was alive and then was not, without having been"
                " terminated or truncated"
            )
        self.over[:] = ~self.alive.any(1)
        last = truncations.any(1) | self.over
        if last.any():
            final_obs[last] = obs[last]
        has_ends = bool(self.over.any())
        if has_ends:
            self._end(obs)
        return has_ends

    def rollout(self, actor: Mlp, **arrays: Any) -> tuple[list[RolloutEnd], float]:
        ended, inference = super().rollout(actor, **arrays)
        _flat(self.alive)[:], self.over[:] = arrays["alive"][-1], arrays["ends"][-1]
        for _, row, *_, info in ended:
            if LEVEL in self._keys:
                info[self._keys.index(LEVEL)] = self._running[row, 0]
            self._running[row] = self._next[row]
        return ended, inference

    def _with_allowed(self, actions: NDArray[Any], idle: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions in which rows that do not play, for which nobody has chosen, take the first ones that are allowed."""
        masks = self._env.action_masks().reshape(*self.alive.shape, -1)[idle]
        firsts = [each.argmax(-1) for each in masks_by_number(masks, self._nvec)]
        chosen = actions.reshape(*self.alive.shape, -1).copy()
        chosen[idle] = np.stack(firsts, axis=-1)
        return chosen.reshape(actions.shape)

    def _end(self, obs: NDArray[Any]) -> None:
        """Keeps the infos of the episodes that are over, and starts the next ones."""
        statistics = self._env.episodes()
        for column, key in enumerate(self._keys):
            values = self._running[:, 0] if key == LEVEL else statistics.get(key)
            if key == OPPONENT and self._opposed is not None:
                values = self._opposed.drawn()
            if values is not None:
                self.ended_info[self.over, column] = values[self.over]
        self._start_next(self.over, obs)

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self._env.action_masks(_flat(out))
        # Actors read no mask of an agent that does not act.
        out[~self.alive] = True

    def difficulties(self) -> NDArray[np.float64] | None:
        """Level, agents, density and weights of N opponents of the running episodes, float64 [R, 3 + N], and where the
        opponents have a pool how many snapshots it had had, [R, 4 + N]. NaN where they are as they are; None: they are
        so everywhere."""
        return None if np.isnan(self._running[:, 1:]).all() else self._running.copy()

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        """See `fastrl.collectors.protocol.Collector.set_difficulty`."""
        new = self._row(level, difficulty)
        if np.array_equal(new, self._difficulty, equal_nan=True):
            return
        self._difficulty = new
        self._start_with(np.tile(self._difficulty, (len(self.over), 1)))

    def _row(self, level: int, difficulty: Difficulty | None = None) -> NDArray[np.float64]:
        """A row as of `difficulties`."""
        num_agents, density, opponents, snapshots = difficulty or Difficulty()
        row = np.full(3 if self._opposed is None else 3 + self._opposed.num_opponents, np.nan)
        row[:3] = level, num_agents, density
        row[3:] = opponents or np.nan
        return row if self._opposed is None or not self._opposed.has_pool else np.append(row, snapshots)

    def start_replay(self, episodes: Sequence[RunningEpisode]) -> None:
        rows = [np.frombuffer(each.difficulty) if each.difficulty else self._difficulty for each in episodes]
        try:
            self._start_with(np.array(rows, np.float64))
        except (ValueError, TypeError) as error:
            raise CollectError(f"{self._name}: the saved difficulty of a running episode: {error}") from None

    def end_replay(self) -> None:
        self._start_with(np.tile(self._difficulty, (len(self.over), 1)))

    def _start_with(self, difficulties: NDArray[np.float64]) -> None:
        self._next[...] = difficulties
        num_agents, density = difficulties[:, 1:3].T
        if np.isfinite(num_agents).all():
            self._env.set_difficulty(num_agents=num_agents.astype(np.int64), density=density)
        if self._opposed is not None and np.isfinite(difficulties[:, 3:]).all():
            self._opposed.set_weights(difficulties[:, 3 : 3 + self._opposed.num_opponents])
            if self._opposed.has_pool:
                self._opposed.set_pool(difficulties[:, -1].astype(np.int64))

    def close(self) -> None:
        self._env.close()


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """A view [R * A, ...] of what is [R, A, ...]."""
    return array.reshape(-1, *array.shape[2:])
