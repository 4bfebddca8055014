"""The vector backend of the collector "vector": a user's own `gymnasium.vector.VectorEnv`, in any autoreset mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from fastrl.collectors.failures import failed
from fastrl.collectors.protocol import CollectError, Plan, expect_spaces
from fastrl.collectors.vector_backends import VectorBackend
from fastrl.envs import contract
from fastrl.envs.contract import ContractError, describe
from fastrl.envs.rows import ActionRows, ObsRows, RowError
from fastrl.envs.serial_envs import StepArrays
from fastrl.envs.vector import as_autoreset_mode
from fastrl.utils.forks import ending_copies

# Environments that a backend steps. One that Python was given exists once: a second backend would reset it in between.
_in_use: weakref.WeakSet[VectorEnv[Any, Any, Any]] = weakref.WeakSet()


class VectorEnvBackend(VectorBackend):
    """A user's own vector environment, in any autoreset mode.

    A reset starts all episodes and gets a seed, an int, as all vector environments take one; from then on the
    environment starts its episodes itself, with its own random generators. So episodes have no seeds by which they
    could be replayed.

    In the autoreset mode "next_step" a step after the end of an episode starts the next one and ignores the action; it
    is no step of the agent.

    Attributes:
        env: the environment.
        ignored: bool [R], rows whose last step was of that kind; None in other modes.

    Raises:
        CollectError: the environment cannot be built, is in use, or has other spaces than the plan.
    """

    def __init__(self, plan: Plan) -> None:
        rows, name = plan.num_envs, plan.env.id
        self._name, self._spec = name, plan.env
        self.env = self._run(lambda: plan.env.make_vector(rows))
        if self.env in _in_use:
            raise CollectError(
                f"{name}: this environment is in use, and there is one of it: evaluations and films during a run need"
                " another; give a function that makes vector environments"
            )
        _in_use.add(self.env)
        self._plan, self._obs_rows = plan, plan.obs_rows
        try:
            obs_space, action_space = self.env.single_observation_space, self.env.single_action_space
            self._action_rows = ActionRows(action_space)
            expect_spaces(plan, ObsRows(obs_space).row_space, self._action_rows.flat_space)
            self._mode = _autoreset_mode(name, self.env)
        except BaseException:
            self.close()
            raise
        self.next_seeds = np.zeros(rows, np.int64)
        self.ended_info = np.full((rows, len(plan.episode_info)), np.nan)
        self._reset_info = np.full_like(self.ended_info, np.nan)
        self._masks = np.ones((rows, plan.num_masked), np.bool_)
        self._ended = np.zeros(rows, np.bool_)
        self.ignored = np.zeros(rows, np.bool_) if self._mode is AutoresetMode.NEXT_STEP else None

    def _run(self, work: Callable[[], Any]) -> Any:
        """Runs code of the environment.

        Raises:
            CollectError: it raised; in one line, with its own traceback.
        """
        try:
            with ending_copies():
                return work()
        except ContractError as error:
            raise CollectError(str(error)) from None
        except (Exception, SystemExit) as error:  # an environment that calls sys.exit() has failed, too
            raise failed(self._name, error) from error

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        assert mask.all(), "later episodes are started by the environment"
        # One number of all rows' seeds: another one whenever a run resumes after an episode has ended.
        seed = int(np.bitwise_xor.reduce(self.next_seeds))
        self._run(lambda: self._reset(obs, mask, seed, None))
        self._ended[:] = False

    def _reset(
        self,
        obs: NDArray[Any],
        mask: NDArray[np.bool_],
        seed: int | None,
        options: dict[str, Any] | None,
    ) -> None:
        result: Any = self.env.reset(seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ContractError(f"{self._name}: reset() should return (obs, infos), got {describe(result)}")
        found, infos = result
        if mask.all():
            self._write("reset", found, obs)
        else:
            every = np.empty_like(obs)
            self._write("reset", found, every)
            obs[mask] = every[mask]
        self._read(infos, mask, mask)

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        assert mask is None, "all environments step together"
        self._run(lambda: self._step(actions, arrays))
        return bool(self._ended.any())

    def _step(self, actions: NDArray[Any], arrays: StepArrays) -> None:
        obs, rewards, terminations, truncations, final_obs, final_masks = arrays
        result: Any = self.env.step(self._action_rows.to_env(actions))
        if not (isinstance(result, tuple) and len(result) == 5):
            raise ContractError(
                f"{self._name}: step() should return (obs, rewards, terminations, truncations, infos), got"
                f" {describe(result)}"
            )
        found, *numbers, infos = result
        self._write("step", found, obs)
        for noun, out, values in zip(
            ("rewards", "terminations", "truncations"),
            (rewards, terminations, truncations),
            numbers,
            strict=True,
        ):
            array = np.asarray(values)
            if array.shape != out.shape or array.dtype.kind not in ("biuf" if noun == "rewards" else "bui"):
                raise ContractError(
                    f"{self._name}: step() should give {noun} as an array of shape {out.shape}, got {describe(values)}"
                )
            out[:] = array
        contract.expect_finite(self._name, rewards, obs)
        if self.ignored is not None:
            self.ignored[:] = self._ended
            # Such a step has no reward, and no episode ends with it.
            rewards[self.ignored] = 0.0
            terminations[self.ignored] = truncations[self.ignored] = False
        ended = terminations | truncations
        if final_masks is not None and (cut := truncations & ~terminations).any():
            self._read_final_masks(infos, cut, final_masks)
        if ended.any():
            self._end(ended, infos, obs, final_obs)
        self._ended = ended
        if self.ignored is not None:
            self._masks[ended] = True
            self._read(infos, self.ignored, ~ended)
        elif self._mode is AutoresetMode.SAME_STEP:
            self._read(infos, ended, np.ones_like(ended))
        else:
            self._read(infos, np.zeros_like(ended), ~ended)

    def _end(
        self, ended: NDArray[np.bool_], infos: Mapping[str, Any], obs: NDArray[Any], final_obs: NDArray[Any]
    ) -> None:
        """Keeps last observations and infos of the episodes that ended, and starts the next ones in mode "disabled"."""
        last_info: Any = infos
        if self._mode is AutoresetMode.SAME_STEP:
            self._write_final(ended, infos, final_obs)
            last_info = infos.get("final_info", {})
        else:
            final_obs[ended] = obs[ended]
        contract.expect_finite(self._name, np.empty(0), final_obs[ended])
        for column, key in enumerate(self._plan.episode_info):
            values, present = self._column(last_info, key)
            self.ended_info[ended, column] = np.where(present, values, self._reset_info[:, column])[ended]
        if self._mode is AutoresetMode.DISABLED:
            self._reset(obs, ended, None, {"reset_mask": ended.copy()})

    def _write(self, method: str, found: Any, out: NDArray[Any]) -> None:
        try:
            self._obs_rows.write_batch(found, out)
        except RowError as error:
            raise ContractError(
                f"{self._name}: {method}() gave observations that its observation_space does not have: {error}"
            ) from None

    def _write_final(
        self, ended: NDArray[np.bool_], infos: Mapping[str, Any], final_obs: NDArray[Any]
    ) -> None:
        """Last observations as of Gymnasium's vector environments: an array of objects; or a batch like others."""
        found = infos.get("final_obs", infos.get("final_observation"))
        if found is None:
            raise ContractError(
                f"{self._name}: in autoreset mode 'same_step' infos should have final_obs where episodes end, got"
                f" {', '.join(map(repr, infos)) or 'nothing'}"
            )
        if not (isinstance(found, np.ndarray) and found.dtype == object):
            every = np.empty_like(final_obs)
            self._write("step", found, every)
            final_obs[ended] = every[ended]
            return
        for row in np.flatnonzero(ended).tolist():
            try:
                self._obs_rows.write(found[row], final_obs[row])
            except RowError as error:
                raise ContractError(
                    f"{self._name}: step() gave a final_obs of another form: {error}"
                ) from None

    def _read(self, infos: Mapping[str, Any], reset: NDArray[np.bool_], acting: NDArray[np.bool_]) -> None:
        """Reads infos of rows that were reset, and action masks of rows that act next."""
        for column, key in enumerate(self._plan.episode_info):
            values, _ = self._column(infos, key)
            self._reset_info[reset, column] = values[reset]
        if self._plan.action_masks and acting.any():
            self._read_masks(infos, acting, getattr(self.env, "action_masks", None), self._masks)

    def _read_final_masks(
        self, infos: Mapping[str, Any], cut: NDArray[np.bool_], out: NDArray[np.bool_]
    ) -> None:
        """Reads the last action masks of episodes that were cut off."""
        if self._mode is not AutoresetMode.SAME_STEP:
            self._read_masks(infos, cut, getattr(self.env, "action_masks", None), out)
            return
        # The environment stands in the next episode already.
        last = infos.get("final_info")
        if not isinstance(last, Mapping) or "action_mask" not in last:
            raise ContractError(
                f"{self._name}: an episode was truncated, and infos['final_info'] has no 'action_mask' of its last"
                " observation, from which is to be learned what the allowed actions are worth: add it, or choose"
                " another autoreset mode"
            )
        self._read_masks(last, cut, None, out)

    def _read_masks(
        self,
        infos: Mapping[str, Any],
        acting: NDArray[np.bool_],
        method: Callable[[], Any] | None,
        out: NDArray[np.bool_],
    ) -> None:
        """Reads the action masks of some rows, by a method or else from infos."""
        given = infos.get("action_mask") if method is None else method()
        present = np.asarray(infos.get("_action_mask", acting)) if method is None else acting
        if given is None or not present[acting].all():
            raise ContractError(
                f"{self._name}: action masks were asked for, but it has neither a method action_masks() nor"
                " infos['action_mask'] for each environment"
            )
        rows = np.flatnonzero(acting)
        shape = out.shape
        array = np.asarray(given)
        if array.dtype == object:
            # Masks of rows that have none are None.
            array = np.stack([given[row] if row in rows else np.ones(shape[1]) for row in range(shape[0])])
        if array.shape != shape or array.dtype.kind not in "buif":
            raise ContractError(
                f"{self._name}: action masks should be an array of bool of shape {shape}, got {describe(given)}"
            )
        out[acting] = array[acting].astype(np.bool_)

    def _column(self, infos: Any, key: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The numbers float64 [R] under a key of infos, NaN where there are none, and which rows have one."""
        rows = len(self.next_seeds)
        values = np.full(rows, np.nan)
        if not isinstance(infos, Mapping):
            # Of older vector environments: one dict, or None, a row.
            for row, info in enumerate(infos):
                [values[row]] = contract.info_values(self._name, (key,), info or {})
            return values, ~np.isnan(values)
        if key not in infos:
            return values, np.zeros(rows, np.bool_)
        present = np.asarray(infos.get(f"_{key}", np.ones(rows, np.bool_)))
        for row in np.flatnonzero(present).tolist():
            [values[row]] = contract.info_values(self._name, (key,), {key: infos[key][row]})
        return values, present

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        out[...] = self._masks

    def close(self) -> None:
        _in_use.discard(self.env)
        self._spec.close(self.env)


def _autoreset_mode(name: str, env: Any) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode") if isinstance(env.metadata, Mapping) else None
    if mode is None:
        mode = getattr(env, "autoreset_mode", None)
    if mode is None:
        raise CollectError(
            f"{name}: the metadata of a vector environment should state its autoreset_mode, as of"
            " gymnasium.vector.AutoresetMode: add it to its class"
        )
    try:
        return as_autoreset_mode(mode)
    except ValueError as error:
        raise CollectError(f"{name}: {error}") from None
