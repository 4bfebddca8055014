"""A vector environment of Python environments in worker processes, which are stepped together in shared memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl.envs.process_pool import StartMethod, WorkerPool
from fastrl.envs.process_worker import Command, EnvsBuilt, Layout, WorkerTask
from fastrl.envs.rows import ActionRows
from fastrl.envs.serial_envs import NO_RESET, NO_SEED
from fastrl.envs.spec import EnvSpec, Factory, as_spec
from fastrl.envs.vector import as_autoreset_mode
from fastrl.envs.worker_error import Death, WorkerError
from fastrl.utils import processes
from fastrl.utils.arguments import as_integer, one_of

ARRAYS = Box | Discrete | MultiBinary | MultiDiscrete


class ProcessVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments in W processes.

    Actions, observations, rewards and flags lie in shared memory: a step pickles nothing, and costs one barrier
    (``fastrl._native._rust.LockstepBarrier``). Workers load no torch, use one thread, leave Ctrl-C to this process, and
    end with it even if it is killed.

    Args:
        env: a Gymnasium id, the import path ``"my_module:make_env"`` of a function or class, a function or class that
            pickles, or an `EnvSpec`. Observations and actions should be arrays: Box, Discrete, MultiDiscrete or
            MultiBinary.
        num_envs: N.
        num_workers: W, each with N / W environments; "auto": the number of cores, at most N.
        autoreset_mode: see Gymnasium's `AutoresetMode`.
        max_episode_steps: time limit of episodes, beside the environment's own; None: only its own.
        start_method: "spawn" or "forkserver".
        step_timeout: seconds after which a worker that has not finished a step or reset is killed; None: no limit.
        start_timeout: seconds for building the environments.
        info: with True, infos that are not empty are pickled through pipes and returned in the form of Gymnasium's
            vector environments; with False, `info` is empty except for ``final_obs`` and an empty ``final_info`` in
            SAME_STEP mode.
        action_masks: read the environments' action masks, from a method ``action_masks()`` or from
            ``info["action_mask"]``; see the method here.
        final_masks: read them at the end of truncated episodes, too; see `step_into`.
        episode_info: keys of infos whose numbers at the end of episodes are kept in ``ended_info``.
        options: keyword arguments for the environment.

    Attributes:
        next_seeds: int64 [N], seeds of the environments' next autoresets, each used once. The default -1 continues the
            environment's own generator. In SAME_STEP mode -2 skips the autoreset: the environment keeps its last
            observation, and has to be reset before it steps again.
        ended_info: float64 [N, K], for the episodes that ended with the last step the numbers under ``episode_info``:
            of the last info, else of the reset's, else NaN.

    Raises:
        TypeError: ``env`` does not pickle.
        ValueError: an option is out of its range, or spaces are not arrays or differ between environments.
        WorkerError: environments could not be built; the message has the worker's traceback.
    """

    def __init__(
        self,
        env: str | EnvSpec | Factory,
        num_envs: int = 1,
        num_workers: int | Literal["auto"] = "auto",
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        start_method: StartMethod = "spawn",
        step_timeout: float | None = None,
        start_timeout: float = 300.0,
        info: bool = False,
        action_masks: bool = False,
        final_masks: bool = False,
        episode_info: Sequence[str] = (),
        **options: Any,
    ) -> None:
        processes.require_main_guard()
        self._spec = as_spec(env, **options)
        self.num_envs = as_integer("num_envs", num_envs, 1, None)
        if num_workers == "auto":
            num_workers = min(self.num_envs, len(os.sched_getaffinity(0)))
        self.num_workers = as_integer("num_workers", num_workers, 1, None)
        if self.num_workers > self.num_envs:
            raise ValueError(
                f"num_workers: expected at most one an environment, {self.num_envs}, got {self.num_workers}"
            )
        one_of("start_method", start_method, get_args(StartMethod))
        if max_episode_steps is not None:
            as_integer("max_episode_steps", max_episode_steps, 1, None)
        for name, seconds in (("step_timeout", step_timeout), ("start_timeout", start_timeout)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name}: expected more than 0 seconds, got {seconds}")
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        bounds = [self.num_envs * w // self.num_workers for w in range(self.num_workers + 1)]
        self._has_masks = action_masks
        tasks = [
            WorkerTask(
                w,
                range(bounds[w], bounds[w + 1]),
                self._spec,
                self.autoreset_mode,
                max_episode_steps,
                info,
                action_masks,
                final_masks,
                tuple(episode_info),
            )
            for w in range(self.num_workers)
        ]
        self._pool = WorkerPool(tasks, start_method, step_timeout=step_timeout, start_timeout=start_timeout)
        self._close_pool = weakref.finalize(self, self._pool.close)
        try:
            self._start_all()
        except BaseException:
            self._pool.close(0.0)
            raise

    def _start_all(self) -> None:
        built = self._pool.start()
        first = built[0]
        obs_space, action_space = first.spaces[0]
        for name, space in (("observations", obs_space), ("actions", action_space)):
            if not isinstance(space, ARRAYS):
                raise ValueError(
                    f"env: {name} should be arrays (Box, Discrete, MultiDiscrete or MultiBinary), those of"
                    f" {self._spec.id} are {space}: gymnasium.wrappers.FlattenObservation makes a Box of them"
                )
        self.single_observation_space, self.single_action_space = obs_space, action_space
        num_masked = 0
        if self._has_masks:
            if not isinstance(action_space, Discrete | MultiDiscrete):
                raise ValueError(
                    f"action_masks: expected discrete actions, those of {self._spec.id} are {action_space}"
                )
            num_masked = ActionRows(action_space).num_choices
        for task, other in zip(self._pool.tasks, built, strict=True):
            self._expect_same(task, other)
        self.observation_space = batch_space(obs_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        obs, action = self.observation_space, self.action_space
        assert obs.shape is not None and action.shape is not None
        layout = Layout(
            self.num_envs,
            self.num_workers,
            obs.shape[1:],
            np.dtype(obs.dtype),
            action.shape[1:],
            np.dtype(action.dtype),
            num_masked,
            len(self._pool.tasks[0].episode_info),
        )
        self._memory = memory = self._pool.share(layout)
        memory.seeds[:] = NO_SEED
        self.next_seeds, self.ended_info = memory.seeds, memory.info
        self._flat_obs = memory.obs.reshape(self.num_envs, -1)
        self._flat_final_obs = memory.final_obs.reshape(self.num_envs, -1)
        self.bounds = bounds(action_space)
        # Environments that have to be reset before they step: no episode has started, or it has ended in DISABLED mode.
        self._to_reset = np.ones(self.num_envs, np.bool_)
        self._all = np.ones(self.num_envs, np.bool_)

    def _expect_same(self, task: WorkerTask, built: EnvsBuilt) -> None:
        expected = (self.single_observation_space, self.single_action_space)
        for i, spaces in zip(task.envs, built.spaces, strict=True):
            for name, ours, theirs in zip(("observations", "actions"), expected, spaces, strict=True):
                if ours != theirs:
                    raise ValueError(
                        f"env: all environments should have the same spaces; {name} of environment {i} are {theirs},"
                        f" those of environment 0 are {ours}"
                    )

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    @property
    def deaths(self) -> list[Death]:
        """Workers that are dead now."""
        return self._pool.deaths

    @property
    def observations(self) -> NDArray[Any]:
        """The environments' newest observations [N, *S], in the memory that workers write."""
        return self._memory.obs

    @property
    def worker_seconds(self) -> NDArray[np.float64]:
        """Seconds that each worker spent on resets and steps, and waiting, since it was started: float64 [W, 2]."""
        return self._memory.times.copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts new episodes; ``options={"reset_mask": bool [N]}`` selects the environments that are reset. The others
        keep their episodes and return their current observations. Other options are passed to the environments' own
        ``reset``. An int as seed gives environment i the seed ``seed + i``."""
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        infos = self._reset(seed, mask, options or None)
        return self._memory.obs.copy(), infos

    def reset_into(
        self,
        obs: NDArray[np.float32],
        *,
        seed: int | Sequence[int | None] | NDArray[Any] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Does as `reset`, into ``obs``, float32 [N, obs_dim] or [N, *S]: writes the observations of the environments
        that it resets and leaves the others as they are."""
        flat = self._flat("obs", obs)
        self._reset(seed, reset_mask, None)
        np.copyto(flat, self._flat_obs, casting="unsafe", where=self._memory.mask[:, None])

    def _reset(self, seed: Any, mask: Any, options: dict[str, Any] | None) -> dict[str, Any]:
        self._check_open()
        if mask is None:
            mask = self._all
        self._check_mask("reset_mask", mask)
        seeds = self._seeds(seed)
        memory = self._memory
        memory.seeds[mask] = seeds[mask]
        if options:
            self._pool.send(options)
        infos = self._run_round(Command.RESET, mask)
        self._to_reset &= ~mask
        return self._infos(infos)

    def _check_mask(self, name: str, mask: Any) -> None:
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            got = f"{mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"{name}: expected an array of bool, got {got}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"{name}: expected shape ({self.num_envs},), got {mask.shape}")
        if not mask.any():
            raise ValueError(f"{name}: expected at least one True, got none")

    def _seeds(self, seed: Any) -> NDArray[np.int64]:
        if seed is None:
            return np.full(self.num_envs, NO_SEED)
        if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
            super().reset(seed=int(seed))
            seed = range(int(seed), int(seed) + self.num_envs)
        if len(seed) != self.num_envs:
            raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seed)}")
        given = [NO_SEED if s is None else int(s) for s in seed]
        wrong = [s for s in given if not NO_SEED <= s < 2**63]
        if wrong:
            raise ValueError(f"seed: expected 0 to 2**63 - 1, got {wrong[0]}")
        return np.array(given, np.int64)

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps every environment. In SAME_STEP mode, when episodes end, ``info`` has ``final_obs`` [N, *S] with its
        mask ``_final_obs``, and ``final_info`` with ``_final_info``."""
        memory = self._memory
        infos = self._infos(self._step(np.asarray(actions), self._all))
        terminations, truncations = memory.terminations.copy(), memory.truncations.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (ended := terminations | truncations).any():
            final_obs = np.zeros_like(memory.final_obs)
            final_obs[ended] = memory.final_obs[ended]
            infos |= {"final_obs": final_obs, "_final_obs": ended, "_final_info": ended.copy()}
            infos.setdefault("final_info", {})
        return memory.obs.copy(), memory.rewards.copy(), terminations, truncations, infos

    def step_into(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
        *,
        mask: NDArray[np.bool_] | None = None,
        final_masks: NDArray[np.bool_] | None = None,
    ) -> None:
        """Does as `step`, into the caller's arrays: obs float32 [N, obs_dim] or [N, *S], rewards [N], terminations and
        truncations bool [N]. ``final_obs``, like obs, belongs to SAME_STEP mode: where an episode ended it gets the
        last observation, elsewhere it is left as it is.

        Args:
            mask: bool [N], only these environments step; the entries of the others are left as they are.
            final_masks: bool [N, num_actions], gets the last action masks of episodes that were truncated and not
                terminated; for an environment that was made with ``final_masks=True``.

        Raises:
            ValueError: an integer action is outside of the action space; nothing has stepped. (The bounds of a Box of
                floats are left to the environment.)
            WorkerError: workers have died, before or in this step. The environments of the others have stepped, and
                their entries are written.
        """
        flat = self._flat("obs", obs)
        finals = None if final_obs is None else self._flat("final_obs", final_obs)
        if finals is not None and self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ValueError("final_obs: expected None unless autoreset_mode is 'same_step'")
        if mask is not None:
            self._check_mask("mask", mask)
        active = self._all if mask is None else mask
        memory = self._memory
        error = None
        try:
            self._step(np.asarray(actions), active)
        except WorkerError as died:
            error = died
            active = active.copy()
            for death in self.deaths:
                active[death.envs] = False
        where: Any = True if active is self._all else active
        np.copyto(flat, self._flat_obs, casting="unsafe", where=where if where is True else where[:, None])
        for out, shared in (
            (rewards, memory.rewards),
            (terminations, memory.terminations),
            (truncations, memory.truncations),
        ):
            np.copyto(out, shared, casting="same_kind", where=where)
        if finals is not None:
            ended = (memory.terminations | memory.truncations) & active
            if ended.any():
                finals[ended] = self._flat_final_obs[ended]
        if final_masks is not None:
            cut = memory.truncations & ~memory.terminations & active
            final_masks[cut] = memory.final_masks[cut]
        if error is not None:
            raise error

    def _step(self, actions: NDArray[Any], mask: NDArray[np.bool_]) -> list[tuple[int, dict[str, Any]]]:
        self._check_open()
        if (self._to_reset & mask).any():
            first = int(np.flatnonzero(self._to_reset & mask)[0])
            raise ResetNeeded(
                f"environment {first} has to be reset: its episode has ended, or none has started"
            )
        memory = self._memory
        if actions.shape != memory.actions.shape:
            raise ValueError(f"actions: expected shape {memory.actions.shape}, got {actions.shape}")
        if not np.can_cast(actions.dtype, memory.actions.dtype, "same_kind"):
            raise TypeError(f"actions: expected {memory.actions.dtype}, got {actions.dtype}")
        # Before the conversion, which could turn an invalid action into a valid one.
        if self.bounds is not None:
            self._check_bounds(actions, mask)
        self._pool.finish_round()
        memory.actions[...] = actions
        infos = self._run_round(Command.STEP, mask)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            np.logical_or(memory.terminations, memory.truncations, out=self._to_reset, where=mask)
        elif self.autoreset_mode is AutoresetMode.SAME_STEP and (kept := memory.seeds == NO_RESET).any():
            self._to_reset |= (memory.terminations | memory.truncations) & mask & kept
        return infos

    def _check_bounds(self, actions: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        low, high = self.bounds or (0, 0)
        # The fast path for Discrete: as unsigned integers, negative numbers are too large.
        if (
            isinstance(low, int)
            and low == 0
            and actions.dtype.itemsize == 8
            and np.maximum.reduce(actions.view(np.uint64), None) <= high
        ):
            return
        outside = (actions < low) | (actions > high)
        if outside.any():
            wrong = np.flatnonzero(outside.reshape(self.num_envs, -1).any(axis=1) & mask)
            if len(wrong):
                raise ValueError(
                    f"actions: expected those of {self.single_action_space}, got {actions[wrong[0]].tolist()} for"
                    f" environment {wrong[0]}"
                )

    def _flat(self, name: str, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        if obs.shape == self._flat_obs.shape:
            return obs
        if obs.shape != self._memory.obs.shape or not obs.flags.c_contiguous:
            raise ValueError(f"{name}: expected shape {self._flat_obs.shape}, got {obs.shape}")
        return obs.reshape(self._flat_obs.shape)

    def _check_open(self) -> None:
        self._pool.check_open()
        if self.deaths:
            raise WorkerError(self.deaths)

    def _run_round(self, command: Command, mask: NDArray[np.bool_]) -> list[tuple[int, dict[str, Any]]]:
        """Runs a round in all workers and returns the infos of environments with their indices."""
        try:
            return self._pool.run_round(command, mask)
        except WorkerError:
            for death in self.deaths:
                self._to_reset[death.envs] = True
            raise

    def _infos(self, pairs: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, info in pairs:
            infos = self._add_info(infos, info, i)
        return infos

    def action_masks(self, out: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """The actions that each environment allows now, bool [N, num_actions]; of MultiDiscrete ones the choices of all
        numbers side by side, bool [N, sum of nvec].

        Raises:
            ValueError: this was made without ``action_masks=True``.
        """
        if not self._has_masks:
            raise ValueError("action_masks: pass action_masks=True to ProcessVectorEnv first")
        out = np.empty_like(self._memory.masks) if out is None else out
        out[...] = self._memory.masks
        return out

    def restart(self) -> None:
        """Starts dead workers again. Their environments have to be reset before they step.

        Raises:
            WorkerError: a worker could not build its environments again.
        """
        self._pool.restart(self._expect_same)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment or its wrappers, called if it is callable. Results are pickled.

        Raises:
            RuntimeError: the attribute raised an error; the message has the worker's traceback.
        """
        return self._call_workers(name, None, args, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self._call_workers(name, None, (), {})

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment, to the same value or to those of a list."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values: expected {self.num_envs} for {name!r}, got {len(values)}")
        self._call_workers(name, values, (), {})

    def _call_workers(
        self, name: str, values: Sequence[Any] | None, args: Any, kwargs: Any
    ) -> tuple[Any, ...]:
        self._check_open()
        self._pool.finish_round()
        self._pool.send((name, values, args, kwargs))
        self._run_round(Command.CALL, self._all)
        answers = self._pool.recv()
        for _, problem in answers:
            if problem:
                raise RuntimeError(f"{name!r} of an environment:\n\n{problem}".rstrip())
        return tuple(value for results, _ in answers for value in results)

    def render(self) -> tuple[Any, ...] | None:
        """The results of each environment's ``render``."""
        return None if self.render_mode is None else self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        self._close_pool()


def bounds(space: Space[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest action of a space of integers, or of each of its elements; None for other spaces."""
    match space:
        case Discrete():
            return int(space.start), int(space.start + space.n - 1)
        case MultiDiscrete():
            return space.start, space.start + (space.nvec - 1)
        case MultiBinary():
            return 0, 1
        case Box() if space.dtype is not None and space.dtype.kind in "iu":
            return space.low, space.high
    return None
