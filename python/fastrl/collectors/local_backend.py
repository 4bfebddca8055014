"""The vector backend of single environments that this process steps one after the other."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan, expect_spaces
from fastrl.collectors.vector_backends import VectorBackend
from fastrl.envs import contract
from fastrl.envs.serial_envs import SerialEnvs, StepArrays


class LocalBackend(VectorBackend):
    """Environments of this process; their errors are raised as they are."""

    needs_check = True

    def __init__(self, plan: Plan) -> None:
        rows, self._plan = plan.num_envs, plan
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._row_space = plan.obs_rows.row_space
        self._is_flat = len(self._row_space.shape) == 1
        self._masks = np.zeros((rows, plan.num_masked), np.bool_)
        self.next_seeds = np.zeros(rows, np.int64)
        self.ended_info = np.full((rows, len(plan.episode_info)), np.nan)

    def build(self) -> None:
        """Builds the environments; called once.

        Raises:
            CollectError: their spaces are not those that the learner expects.
            Exception: whatever they raise.
        """
        plan, space = self._plan, self._row_space
        for _ in range(plan.num_envs):
            env = plan.env.make()
            self._envs.append(env)
            expect_spaces(plan, env.observation_space, env.action_space)
        self._serial = SerialEnvs(
            self._envs,
            contract.obs_form(plan.env.id, space.shape, space.dtype),
            self.next_seeds,
            self._masks,
            self.ended_info,
            mode=AutoresetMode.SAME_STEP,
            max_episode_steps=plan.num_steps if plan.unit == "episodes" else None,
            episode_info=plan.episode_info,
        )

    def _in_shape(self, rows: NDArray[Any]) -> NDArray[Any]:
        """A view of rows [R, D] in the shape of the environments' observations."""
        return rows.reshape(len(rows), *self._row_space.shape)

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._serial.reset(self._in_shape(obs), mask)

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        # A view of rows that have the shape already would cost half a microsecond.
        if not self._is_flat:
            obs, rewards, terminations, truncations, final_obs, final_masks = arrays
            obs, final_obs = self._in_shape(obs), self._in_shape(final_obs)
            arrays = obs, rewards, terminations, truncations, final_obs, final_masks
        return self._serial.step(actions, arrays, mask)

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        out[...] = self._masks

    def close(self) -> None:
        while self._envs:
            contract.close(self._envs.pop(0))
