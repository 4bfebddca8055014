"""Python environments in worker processes, several in each, stepped together: arrays in shared memory, one barrier a
step."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastrl._native._rust import LockstepBarrier
from fastrl.envs.process_worker import NO_SEED, STAY, Built, Command, Layout, Memory, Task, Told, work
from fastrl.envs.spec import EnvSpec, Factory, as_spec
from fastrl.envs.vector import as_autoreset_mode
from fastrl.utils import processes

StartMethod = Literal["spawn", "forkserver"]

# So often it is looked whether a worker that is not done is still alive, in seconds.
LOOK = 0.05
# What `close` grants workers to end by themselves.
PATIENCE = 5.0
ARRAYS = Box | Discrete | MultiBinary | MultiDiscrete


@dataclass(frozen=True)
class Death:
    """A worker that has ended, or was ended because it gave no answer.

    Attributes:
        worker: which.
        envs: the numbers of its environments.
        cause: one line.
        traceback: its own; empty if it was killed, or ``refused``.
        refused: an environment gave what Gymnasium's interface does not allow: to start it again is of no use.
    """

    worker: int
    envs: range
    cause: str
    traceback: str
    refused: bool = False


class WorkerError(RuntimeError):
    """Workers have died; the message has the first one's traceback, ``deaths`` all of them."""

    def __init__(self, deaths: Sequence[Death]) -> None:
        first = deaths[0]
        rows = f"environment {first.envs[0]}" + (f" to {first.envs[-1]}" if len(first.envs) > 1 else "")
        super().__init__(f"worker {first.worker} ({rows}): {first.cause}\n\n{first.traceback}".rstrip())
        self.deaths = tuple(deaths)


@dataclass
class _Crew:
    """The processes, for whoever has to end them: `ProcessVectorEnv` or, when that was forgotten, its finaliser."""

    processes: list[BaseProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)
    rounds: LockstepBarrier | None = None
    memory: Memory | None = None
    owner: int = field(default_factory=os.getpid)

    def end(self, patience: float = PATIENCE) -> None:
        if os.getpid() != self.owner:
            # A fork of the process that they belong to.
            return
        listening = False
        if self.rounds is not None and self.memory is not None:
            with contextlib.suppress(RuntimeError):
                # Who is dead already does its part no more, and who hangs will not hear it.
                listening = self.rounds.wait(patience)
                if listening:
                    self.memory.command[0] = Command.CLOSE
                    self.rounds.start_round()
            self.rounds.close()
        for pipe in self.pipes:
            pipe.close()
        processes.join_or_kill(self.processes, patience if listening or self.rounds is None else 0.0)
        self.processes, self.pipes, self.rounds = [], [], None


class ProcessVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments in W processes.

    Actions, observations, rewards and flags lie in memory that all processes share: a step pickles nothing, and costs
    one barrier (``fastrl._native._rust.LockstepBarrier``). Workers load no torch, keep to one thread, leave Ctrl-C to
    this process, and end with it even if it is killed.

    Args:
        env: how to build one: a Gymnasium id, the import path ``"my_module:make_env"`` of a function or class, one
            itself if it pickles, or an `EnvSpec`. Observations and actions should be arrays: Box, Discrete,
            MultiDiscrete or MultiBinary.
        num_envs: N.
        num_workers: W, each with N / W environments; "auto": as many as there are cores, at most N.
        autoreset_mode: what follows the end of an episode, see Gymnasium's `AutoresetMode`.
        max_episode_steps: after which an episode is truncated if it has not ended; None: as the environment has it.
        start_method: "spawn" or "forkserver".
        step_timeout: seconds that a step or reset may take until who is not done is taken for hanging, and killed;
            None: any time.
        start_timeout: seconds for building the environments.
        info: what environments tell beside their observations is not shared memory's: with True, what is not empty is
            pickled through pipes and comes out as Gymnasium's vector environments have it; with False, `info` is empty
            but for ``final_obs`` and ``final_info`` (which is empty then) of SAME_STEP mode.
        action_masks: whether environments say which of their discrete actions they allow, by a method
            ``action_masks()`` or ``info["action_mask"]``; see the method here.
        episode_info: keys of infos whose numbers at the end of episodes are kept in ``ended_info``.
        options: keyword arguments for the environment.

    Attributes:
        next_seeds: int64 [N]. What environments are given the next time that they reset themselves, each used once; -1,
            where nothing else was written, goes on with the environment's own generator. In SAME_STEP mode -2 leaves
            the reset out: the row shows the last observation, and has to be reset before it steps again.
        ended_info: float64 [N, K], of the episodes that the last step ended, the numbers under ``episode_info``: of the
            last info, or else the reset's, or NaN.
        deaths: workers that are dead now.

    Raises:
        TypeError: ``env`` does not pickle. ValueError: an option is out of its range, spaces are not arrays or differ
        between environments. WorkerError: environments could not be built; it has the worker's traceback.
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
        episode_info: Sequence[str] = (),
        **options: Any,
    ) -> None:
        processes.require_main_guard()
        self._crew = _Crew()
        self._end = weakref.finalize(self, self._crew.end)
        self._spec = as_spec(env, **options)
        self.num_envs = _at_least_one("num_envs", num_envs)
        if num_workers == "auto":
            num_workers = min(self.num_envs, len(os.sched_getaffinity(0)))
        self.num_workers = _at_least_one("num_workers", num_workers)
        if self.num_workers > self.num_envs:
            raise ValueError(
                f"num_workers: expected at most one an environment, {self.num_envs}, got {self.num_workers}"
            )
        if start_method not in ("spawn", "forkserver"):
            raise ValueError(f"start_method: expected 'spawn' or 'forkserver', got {start_method!r}")
        if max_episode_steps is not None:
            _at_least_one("max_episode_steps", max_episode_steps)
        for name, seconds in (("step_timeout", step_timeout), ("start_timeout", start_timeout)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name}: expected more than 0 seconds, got {seconds}")
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            # Its processes then have loaded what they need before they start, and share the memory of it.
            self._context.set_forkserver_preload([work.__module__])
        bounds = [self.num_envs * w // self.num_workers for w in range(self.num_workers + 1)]
        self._has_masks = action_masks
        self._tasks = [
            Task(
                w,
                range(bounds[w], bounds[w + 1]),
                self._spec,
                self.autoreset_mode,
                max_episode_steps,
                info,
                action_masks,
                tuple(episode_info),
            )
            for w in range(self.num_workers)
        ]
        self.deaths: list[Death] = []
        self._running = False
        try:
            self._start_all()
        except BaseException:
            self._crew.end(0.0)
            raise

    def _start_all(self) -> None:
        for task in self._tasks:
            process, pipe = self._start(task)
            self._crew.processes.append(process)
            self._crew.pipes.append(pipe)
        until = time.monotonic() + self._start_timeout
        built: list[Built] = [self._hear(w, until) for w in range(self.num_workers)]
        first = built[0]
        obs_space, action_space = first.spaces[0]
        for name, space in (("observations", obs_space), ("actions", action_space)):
            if not isinstance(space, ARRAYS):
                raise ValueError(
                    f"env: {name} should be arrays (Box, Discrete, MultiDiscrete or MultiBinary), those of"
                    f" {self._spec.id} are {space}: gymnasium.wrappers.FlattenObservation makes a Box of them"
                )
        self.single_observation_space, self.single_action_space = obs_space, action_space
        if self._has_masks and not isinstance(action_space, Discrete):
            raise ValueError(
                f"action_masks: expected discrete actions, those of {self._spec.id} are {action_space}"
            )
        for task, other in zip(self._tasks, built, strict=True):
            self._expect_same(task, other)
        self.observation_space = batch_space(obs_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        obs, action = self.observation_space, self.action_space
        assert obs.shape is not None and action.shape is not None
        self._layout = Layout(
            self.num_envs,
            self.num_workers,
            obs.shape[1:],
            np.dtype(obs.dtype),
            action.shape[1:],
            np.dtype(action.dtype),
            int(action_space.n) if self._has_masks and isinstance(action_space, Discrete) else 0,
            len(self._tasks[0].episode_info),
        )
        self._crew.rounds = self._rounds = LockstepBarrier(self.num_workers, self._layout.nbytes)
        self._crew.memory = self._memory = memory = Memory(self._rounds, self._layout)
        memory.seeds[:] = NO_SEED
        self.next_seeds, self.ended_info = memory.seeds, memory.info
        self._obs_rows = memory.obs.reshape(self.num_envs, -1)
        self._final_rows = memory.final_obs.reshape(self.num_envs, -1)
        self._bounds = _bounds(action_space)
        # Whether an episode has ended in DISABLED mode, or has not begun: then it has to be reset first.
        self._to_reset = np.ones(self.num_envs, np.bool_)
        self._everyone = np.ones(self.num_envs, np.bool_)
        for w in range(self.num_workers):
            self._seat(w)
        for w in range(self.num_workers):
            self._hear(w, until)

    def _expect_same(self, task: Task, built: Built) -> None:
        expected = (self.single_observation_space, self.single_action_space)
        for i, spaces in zip(task.envs, built.spaces, strict=True):
            for name, ours, theirs in zip(("observations", "actions"), expected, spaces, strict=True):
                if ours != theirs:
                    raise ValueError(
                        f"env: all environments should have the same spaces; {name} of environment {i} are {theirs},"
                        f" those of environment 0 are {ours}"
                    )

    def _start(self, task: Task) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        # Not daemonic in multiprocessing's sense, whose environments could not start processes themselves.
        arguments = (task.index, pickle.dumps(task), theirs)
        process = self._context.Process(target=work, args=arguments, name=f"environments {task.index}")
        with processes.starting_workers():
            process.start()
        theirs.close()
        return process, ours

    def _seat(self, w: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._crew.pipes[w].send((self._rounds, self._layout))

    def _hear(self, w: int, until: float) -> Any:
        """What a worker that starts says.

        Raises:
            WorkerError: it has died, or says nothing.
        """
        pipe, process = self._crew.pipes[w], self._crew.processes[w]
        heard = connection.wait([pipe], max(until - time.monotonic(), 0))
        if not heard:
            process.kill()
            process.join()
            cause = f"its environments were not built within {self._start_timeout:g} s"
            raise WorkerError([Death(w, self._tasks[w].envs, cause, "")])
        try:
            said = pipe.recv()
        except EOFError:
            said = ""
        if isinstance(said, str):
            raise WorkerError([self._death(w, said)])
        return said

    def _death(self, w: int, told: str) -> Death:
        """Of a worker that has ended or is about to."""
        process = self._crew.processes[w]
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        if told and "\n" not in told:
            # No traceback: a `ContractError`.
            return Death(w, self._tasks[w].envs, told, "", refused=True)
        last = told.strip().splitlines()[-1] if told else ""
        return Death(w, self._tasks[w].envs, last or processes.exit_cause(process.exitcode), told)

    @property
    def pids(self) -> list[int]:
        """Of the workers' processes."""
        return [process.pid or 0 for process in self._crew.processes]

    @property
    def worker_envs(self) -> list[range]:
        """The environments of each worker."""
        return [task.envs for task in self._tasks]

    @property
    def worker_seconds(self) -> NDArray[np.float64]:
        """Float64 [W, 2]: what each worker has spent on resets and steps, and waiting, since it was started."""
        return self._memory.times.copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts new episodes; ``options={"reset_mask": bool [N]}`` selects the environments that do. The others go on,
        and their rows show the observation that they stand at. Other options are for the environments' own ``reset``.
        An int as seed gives environment i the seed ``seed + i``."""
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
        """As `reset`; writes the rows of ``obs``, float32 [N, obs_dim] or [N, *S], that it resets, and leaves the
        others. Revives workers that were restarted: their environments have to be reset."""
        rows = self._flat("obs", obs)
        self._reset(seed, reset_mask, None)
        np.copyto(rows, self._obs_rows, casting="unsafe", where=self._memory.mask[:, None])

    def _reset(self, seed: Any, mask: Any, options: dict[str, Any] | None) -> dict[str, Any]:
        self._check_open()
        if mask is None:
            mask = self._everyone
        self._check_mask("reset_mask", mask)
        seeds = self._seeds(seed)
        memory = self._memory
        memory.seeds[mask] = seeds[mask]
        if options:
            for pipe in self._crew.pipes:
                pipe.send(options)
        infos = self._round(Command.RESET, mask)
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
        infos = self._infos(self._step(np.asarray(actions), self._everyone))
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
    ) -> None:
        """As `step`, into the caller's arrays: obs float32 [N, obs_dim] or [N, *S], rewards [N], terminations and
        truncations bool [N]. ``final_obs``, as obs, belongs to SAME_STEP mode: rows whose episode ended get its last
        observation, the others are left as they are.

        Args:
            mask: bool [N], only these environments step; the rows of the others are left as they are.

        Raises:
            ValueError: an action of integers is none of the action space's; nothing has stepped. (Numbers of a Box of
                floats are not compared with its bounds, which is up to the environment.)
            WorkerError: workers have died, before or in this step. Those of the others have stepped, and their rows
                are written.
        """
        rows = self._flat("obs", obs)
        finals = None if final_obs is None else self._flat("final_obs", final_obs)
        if finals is not None and self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ValueError("final_obs: expected None unless autoreset_mode is 'same_step'")
        if mask is not None:
            self._check_mask("mask", mask)
        takes_part = self._everyone if mask is None else mask
        memory = self._memory
        error = None
        try:
            self._step(np.asarray(actions), takes_part)
        except WorkerError as died:
            error = died
            takes_part = takes_part.copy()
            for death in self.deaths:
                takes_part[death.envs] = False
        if takes_part is self._everyone:
            np.copyto(rows, self._obs_rows, casting="unsafe")
            rewards[...], terminations[...], truncations[...] = (
                memory.rewards,
                memory.terminations,
                memory.truncations,
            )
        else:
            np.copyto(rows, self._obs_rows, casting="unsafe", where=takes_part[:, None])
            for ours, theirs in (
                (rewards, memory.rewards),
                (terminations, memory.terminations),
                (truncations, memory.truncations),
            ):
                np.copyto(ours, theirs, casting="same_kind", where=takes_part)
        if finals is not None:
            ended = (memory.terminations | memory.truncations) & takes_part
            if ended.any():
                finals[ended] = self._final_rows[ended]
        if error is not None:
            raise error

    def _step(self, actions: NDArray[Any], mask: NDArray[np.bool_]) -> list[tuple[int, dict[str, Any]]]:
        self._check_open()
        if (self._to_reset & mask).any():
            first = int(np.flatnonzero(self._to_reset & mask)[0])
            raise ResetNeeded(
                f"environment {first} has to be reset: its episode has ended, or none has begun"
            )
        memory = self._memory
        if actions.shape != memory.actions.shape:
            raise ValueError(f"actions: expected shape {memory.actions.shape}, got {actions.shape}")
        if not np.can_cast(actions.dtype, memory.actions.dtype, "same_kind"):
            raise TypeError(f"actions: expected {memory.actions.dtype}, got {actions.dtype}")
        # Before they are converted, which could make another action of one that is out of range.
        if self._bounds is not None:
            self._check_bounds(actions, mask)
        self._settle()
        memory.actions[...] = actions
        infos = self._round(Command.STEP, mask)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            np.logical_or(memory.terminations, memory.truncations, out=self._to_reset, where=mask)
        elif self.autoreset_mode is AutoresetMode.SAME_STEP and (stays := memory.seeds == STAY).any():
            self._to_reset |= (memory.terminations | memory.truncations) & mask & stays
        return infos

    def _check_bounds(self, actions: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        low, high = self._bounds or (0, 0)
        # One look for what is usual: without a sign, a number below 0 is a large one.
        if (
            isinstance(low, int)
            and low == 0
            and actions.dtype.itemsize == 8
            and np.maximum.reduce(actions.view(np.uint64), None) <= high
        ):
            return
        outside = (actions < low) | (actions > high)
        if outside.any():
            rows = np.flatnonzero(outside.reshape(self.num_envs, -1).any(axis=1) & mask)
            if len(rows):
                raise ValueError(
                    f"actions: expected those of {self.single_action_space}, got {actions[rows[0]].tolist()} for"
                    f" environment {rows[0]}"
                )

    def _flat(self, name: str, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        if obs.shape == self._obs_rows.shape:
            return obs
        if obs.shape != self._memory.obs.shape or not obs.flags.c_contiguous:
            raise ValueError(f"{name}: expected shape {self._obs_rows.shape}, got {obs.shape}")
        return obs.reshape(self._obs_rows.shape)

    def _check_open(self) -> None:
        if self._crew.rounds is None:
            raise ClosedEnvironmentError("this environment is closed: make a new one")
        if self.deaths:
            raise WorkerError(self.deaths)

    def _settle(self) -> None:
        """A round that an interrupt has left running comes to its end."""
        if self._running:
            self._await()
            self._messages()

    def _round(self, command: Command, mask: NDArray[np.bool_]) -> list[tuple[int, dict[str, Any]]]:
        """One round; what workers tell of their environments, by number."""
        self._settle()
        memory = self._memory
        memory.command[0] = command
        memory.mask[...] = mask
        self._running = True
        self._rounds.start_round()
        self._await()
        infos = self._messages() if memory.told.any() else []
        if self.deaths:
            raise WorkerError(self.deaths)
        return infos

    def _await(self) -> None:
        """Until the round is complete; parts of the dead and of those that hang are given up."""
        slice_ = LOOK if self._step_timeout is None else min(LOOK, self._step_timeout)
        if not self._rounds.wait(slice_):
            until = time.monotonic() + (self._step_timeout or float("inf")) - slice_
            while not self._rounds.wait(slice_):
                for w in self._rounds.missing():
                    process = self._crew.processes[w]
                    if process.is_alive() and time.monotonic() >= until:
                        process.kill()
                        process.join()
                        cause = f"no answer for {self._step_timeout:g} s"
                        self._bury(Death(w, self._tasks[w].envs, cause, ""))
                    elif not process.is_alive():
                        self._bury(self._death(w, ""))
        self._running = False

    def _bury(self, death: Death) -> None:
        self.deaths.append(death)
        self._memory.told[death.worker] = Told.NOTHING
        self._to_reset[death.envs] = True
        if death.worker in self._rounds.missing():
            self._rounds.mark_dead(death.worker)

    def _messages(self) -> list[tuple[int, dict[str, Any]]]:
        infos = []
        for w in np.flatnonzero(self._memory.told).tolist():
            try:
                said = self._crew.pipes[w].recv()
            except (EOFError, OSError):
                said = ""
            if isinstance(said, str):
                self._bury(self._death(w, said))
            else:
                infos += said
        return infos

    def _infos(self, told: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, info in told:
            infos = self._add_info(infos, info, i)
        return infos

    def action_masks(self, out: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """Bool [N, num_actions]: which actions each environment allows now.

        Raises:
            ValueError: masks were not asked for when this was made.
        """
        if not self._has_masks:
            raise ValueError("action_masks: pass action_masks=True to ProcessVectorEnv first")
        out = np.empty_like(self._memory.masks) if out is None else out
        out[...] = self._memory.masks
        return out

    def restart(self) -> None:
        """Starts dead workers anew. Their environments have to be reset before they step.

        Raises:
            WorkerError: one could not build its environments again.
        """
        if self._crew.rounds is None:
            raise ClosedEnvironmentError("this environment is closed: make a new one")
        until = time.monotonic() + self._start_timeout
        dead = [death.worker for death in self.deaths]
        for w in dead:
            # An earlier attempt may have left one that has built its environments.
            self._crew.processes[w].kill()
            self._crew.processes[w].join()
            self._crew.pipes[w].close()
            self._crew.processes[w], self._crew.pipes[w] = self._start(self._tasks[w])
        for w in dead:
            self._expect_same(self._tasks[w], self._hear(w, until))
            self._seat(w)
            self._hear(w, until)
        self.deaths = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The attribute ``name`` of each environment, wrappers included, called if it can be. Results are pickled.

        Raises:
            RuntimeError: it raised; the message has the worker's traceback.
        """
        return self._ask(name, None, args, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self._ask(name, None, (), {})

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each environment, to the same value or to those of a list."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values: expected {self.num_envs} for {name!r}, got {len(values)}")
        self._ask(name, values, (), {})

    def _ask(self, name: str, values: Sequence[Any] | None, args: Any, kwargs: Any) -> tuple[Any, ...]:
        self._check_open()
        self._settle()
        for pipe in self._crew.pipes:
            pipe.send((name, values, args, kwargs))
        self._round(Command.CALL, self._everyone)
        answers = [pipe.recv() for pipe in self._crew.pipes]
        for _, problem in answers:
            if problem:
                raise RuntimeError(f"{name!r} of an environment:\n\n{problem}".rstrip())
        return tuple(value for results, _ in answers for value in results)

    def render(self) -> tuple[Any, ...] | None:
        """What each environment's ``render`` gives."""
        return None if self.render_mode is None else self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        self._end()


def _bounds(space: Space[Any]) -> tuple[Any, Any] | None:
    """The least and the greatest action of a space, or of each of its numbers; None where they are no integers."""
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


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")
    return int(value)
