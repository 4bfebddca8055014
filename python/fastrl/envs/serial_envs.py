"""Environments that one process steps one after the other: a worker of `ProcessVectorEnv`, or a collector."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.envs import contract

# Special values of seeds: reset without a seed, and no reset.
NO_SEED = -1
NO_RESET = -2


StepArrays = tuple[
    NDArray[Any],
    NDArray[Any],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[Any],
    NDArray[np.bool_] | None,
]
"""Arrays of a step of R rows: ``obs`` [R, D], ``rewards`` [R], ``terminations``, ``truncations``, ``final_obs`` as obs,
and ``final_masks`` [R, M] or None."""


class SerialEnvs:
    """N environments, each of which has its row in the arrays that are given.

    Args:
        envs: may be added to before the first reset.
        form: of their observations.
        seeds: int64 [N], the seed of the next reset, which sets it to `NO_SEED`; or `NO_SEED` or `NO_RESET`.
        masks: bool [N, M], gets the allowed actions; [N, 0]: none are asked for.
        ended_info: float64 [N, K], gets the values of ``episode_info`` where a step ends an episode.
        mode: the autoreset mode.
        max_episode_steps: time limit of episodes, beside the environments' own.
        episode_info: K keys of infos.
        keeps_infos: fills ``infos``.

    Attributes:
        infos: numbers of environments and their infos that are not empty; emptied by their reader.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        form: contract.Form,
        seeds: NDArray[np.int64],
        masks: NDArray[np.bool_],
        ended_info: NDArray[np.float64],
        *,
        mode: AutoresetMode,
        max_episode_steps: int | None,
        episode_info: tuple[str, ...],
        keeps_infos: bool = False,
    ) -> None:
        self.envs, self._form, self._seeds = envs, form, seeds
        self._masks, self._ended_info = masks, ended_info
        self._mode, self._keys, self._keeps_infos = mode, episode_info, keeps_infos
        self._limit = max_episode_steps or sys.maxsize
        self._has_masks = masks.shape[1] > 0
        self._mask_methods = [contract.mask_method(env) if self._has_masks else None for env in envs]
        self._reset_info: list[tuple[float, ...]] = [()] * len(envs)
        self._lengths, self._ended = [0] * len(envs), [False] * len(envs)
        self.infos: list[tuple[int, dict[str, Any]]] = []

    def reset(
        self, obs: NDArray[Any], mask: NDArray[np.bool_], options: dict[str, Any] | None = None
    ) -> None:
        """Resets the environments of a mask, bool [N], and writes their rows of ``obs``."""
        for k in np.flatnonzero(mask).tolist():
            self._add_info(k, self._reset_one(k, obs, options))

    def _reset_one(self, k: int, obs: NDArray[Any], options: dict[str, Any] | None = None) -> dict[str, Any]:
        seed = int(self._seeds[k])
        self._seeds[k] = NO_SEED
        obs[k], info = contract.reset(self.envs[k], self._form, None if seed == NO_SEED else seed, options)
        self._lengths[k], self._ended[k] = 0, False
        self._read_mask(self._masks, k, info)
        if self._keys:
            self._reset_info[k] = contract.info_values(self._form.name, self._keys, info)
        return info

    def _read_mask(self, masks: NDArray[np.bool_], k: int, info: dict[str, Any]) -> None:
        if self._has_masks:
            masks[k] = contract.action_mask(self._form.name, self._mask_methods[k], info, masks.shape[1])

    def _add_info(self, k: int, info: dict[str, Any]) -> None:
        if self._keeps_infos and info:
            self.infos.append((k, info))

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        """Steps the environments; returns whether an episode ended. In mode SAME_STEP its last observation goes to
        ``final_obs``, and to ``obs`` the first one of the next, unless the seed is `NO_RESET`.

        Args:
            arrays: are written; ``final_masks`` gets the last masks of episodes that are truncated and not terminated.
            mask: bool [N], of the environments to step; None: all.
        """
        obs, rewards, terminations, truncations, final_obs, final_masks = arrays
        form, limit, lengths, has_ended = self._form, self._limit, self._lengths, self._ended
        take_step, has_masks, keeps_infos = contract.step, self._has_masks, self._keeps_infos
        # Environments get Python numbers, or arrays that are not written to later.
        given = actions.tolist() if actions.ndim == 1 else actions.copy()
        active = None if mask is None else mask.tolist()
        has_ends = False
        for k, (env, action) in enumerate(zip(self.envs, given, strict=True)):
            if active is not None and not active[k]:
                continue
            if has_ended[k]:
                self._add_info(k, self._reset_one(k, obs))
                rewards[k], terminations[k], truncations[k] = 0.0, False, False
                continue
            seen, reward, terminated, truncated, info = take_step(env, form, action)
            lengths[k] += 1
            if lengths[k] >= limit and not terminated:
                truncated = True
            rewards[k], terminations[k], truncations[k] = reward, terminated, truncated
            obs[k] = seen
            if terminated or truncated:
                has_ends = True
                info = self._end(k, info, obs, final_obs, None if terminated else final_masks)
            elif has_masks:
                self._read_mask(self._masks, k, info)
            if keeps_infos:
                self._add_info(k, info)
        return has_ends

    def _end(
        self,
        k: int,
        info: dict[str, Any],
        obs: NDArray[Any],
        final_obs: NDArray[Any],
        final_masks: NDArray[np.bool_] | None,
    ) -> dict[str, Any]:
        """Handles the end of an episode with the last step; returns the step's info."""
        if final_masks is not None:
            self._read_mask(final_masks, k, info)
        if self._keys:
            self._ended_info[k] = contract.info_values(self._form.name, self._keys, info, self._reset_info[k])
        if self._mode is not AutoresetMode.SAME_STEP:
            self._ended[k] = self._mode is AutoresetMode.NEXT_STEP
            return info
        final_obs[k] = obs[k]
        return {"final_info": info, **({} if self._seeds[k] == NO_RESET else self._reset_one(k, obs))}
