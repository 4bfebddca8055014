"""What a worker of `ProcessVectorEnv` does, and the memory that it shares with the learner's process."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native._rust import LockstepBarrier
from fastrl.envs import contract
from fastrl.envs.spec import ElsewhereError, EnvSpec, unpickled
from fastrl.utils import processes

# Arrays begin at multiples of it, so that no two lie on one line of a core's cache.
ALIGNED = 128


class Command(enum.IntEnum):
    """What a round is for."""

    STEP = 0
    RESET = 1
    CALL = 2
    CLOSE = 3


class Told(enum.IntEnum):
    """Whether a worker sends something through its pipe after a round."""

    NOTHING = 0
    INFOS = 1
    FAILED = 2


# Of `Memory.seeds`: as `env.reset()` without a seed; and no reset at all.
NO_SEED = -1
STAY = -2


@dataclass(frozen=True)
class Layout:
    """What `Memory` holds: N environments in W workers, observations and actions as their spaces have them."""

    num_envs: int
    num_workers: int
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    num_masked: int
    num_info: int

    def arrays(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        n, w = self.num_envs, self.num_workers
        return {
            "command": ((1,), np.int64),
            "mask": ((n,), np.bool_),
            "seeds": ((n,), np.int64),
            "actions": ((n, *self.action_shape), self.action_dtype),
            "obs": ((n, *self.obs_shape), self.obs_dtype),
            "final_obs": ((n, *self.obs_shape), self.obs_dtype),
            "rewards": ((n,), np.float64),
            "terminations": ((n,), np.bool_),
            "truncations": ((n,), np.bool_),
            "masks": ((n, self.num_masked), np.bool_),
            "info": ((n, self.num_info), np.float64),
            "told": ((w,), np.uint8),
            "times": ((w, 2), np.float64),
        }

    @property
    def nbytes(self) -> int:
        return sum(_room(shape, dtype) for shape, dtype in self.arrays().values())


def _room(shape: tuple[int, ...], dtype: Any) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-max(size, 1) // ALIGNED) * ALIGNED


class Memory:
    """Views of the bytes beside the rounds.

    Attributes:
        command: int64 [1], what the round is for.
        mask: bool [N], the environments that it is for.
        seeds: int64 [N], what ``reset`` is given next, or `NO_SEED`, which it is set to then.
        actions, obs, final_obs: [N, ...], as the spaces have them.
        rewards: float64 [N]; terminations, truncations: bool [N].
        masks: bool [N, num_actions], which actions are allowed now; [N, 0] unless they are asked for.
        info: float64 [N, K], of the episodes that the last step ended, the values of the K infos that are asked for.
        told: uint8 [W], `Told`.
        times: float64 [W, 2], seconds that each worker spent on its part, and waiting, in all.
    """

    command: NDArray[np.int64]
    mask: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    actions: NDArray[Any]
    obs: NDArray[Any]
    final_obs: NDArray[Any]
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    masks: NDArray[np.bool_]
    info: NDArray[np.float64]
    told: NDArray[np.uint8]
    times: NDArray[np.float64]

    def __init__(self, rounds: LockstepBarrier, layout: Layout) -> None:
        data, at = rounds.data(), 0
        for name, (shape, dtype) in layout.arrays().items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            setattr(self, name, data[at : at + size].view(dtype).reshape(shape))
            at += _room(shape, dtype)


@dataclass(frozen=True)
class Task:
    """A worker's: it is pickled into its process.

    Attributes:
        index: which worker.
        envs: the numbers of its environments.
        spec: how to build them.
        mode: what follows an end.
        max_episode_steps: after which an episode is truncated, if it has not ended.
        info: whether infos are sent.
        action_masks: whether action masks are read.
        episode_info: keys of infos whose values at the end of an episode are kept.
    """

    index: int
    envs: range
    spec: EnvSpec
    mode: AutoresetMode
    max_episode_steps: int | None
    info: bool
    action_masks: bool
    episode_info: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """What a worker tells of its environments when it has built them.

    Attributes:
        spaces: of observations and actions, of each.
        metadata, render_mode: of the first.
    """

    spaces: list[tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]
    metadata: dict[str, Any]
    render_mode: str | None


class _Worker:
    """The environments of one worker, and its views of the memory."""

    def __init__(self, task: Task, envs: list[gymnasium.Env[Any, Any]], memory: Memory) -> None:
        self.task, self.envs = task, envs
        rows = slice(task.envs.start, task.envs.stop)
        self.seeds, self.mask, self.actions = memory.seeds[rows], memory.mask[rows], memory.actions[rows]
        self.obs, self.final_obs, self.rewards = (
            memory.obs[rows],
            memory.final_obs[rows],
            memory.rewards[rows],
        )
        self.terminations, self.truncations = memory.terminations[rows], memory.truncations[rows]
        self.masks, self.info = memory.masks[rows], memory.info[rows]
        self.mask_methods = [contract.mask_method(env) if task.action_masks else None for env in envs]
        self.reset_info: list[tuple[float, ...]] = [()] * len(envs)
        self.form = contract.form_of(task.spec.id, memory.obs.shape[1:], memory.obs.dtype)
        self.lengths = [0] * len(envs)
        self.ended = [False] * len(envs)
        self.limit = task.max_episode_steps or sys.maxsize
        self.infos: list[tuple[int, dict[str, Any]]] = []

    def reset_one(self, k: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
        seed = int(self.seeds[k])
        self.seeds[k] = NO_SEED
        self.obs[k], info = contract.reset(
            self.envs[k], self.form, None if seed == NO_SEED else seed, options
        )
        self.lengths[k], self.ended[k] = 0, False
        self.read_mask(k, info)
        if self.task.episode_info:
            self.reset_info[k] = contract.info_values(self.form.name, self.task.episode_info, info)
        return info

    def read_mask(self, k: int, info: dict[str, Any]) -> None:
        if self.task.action_masks:
            self.masks[k] = contract.action_mask(
                self.form.name, self.mask_methods[k], info, self.masks.shape[1]
            )

    def reset(self, options: dict[str, Any] | None) -> None:
        for k in np.flatnonzero(self.mask).tolist():
            self.tell(k, self.reset_one(k, options))

    def tell(self, k: int, info: dict[str, Any]) -> None:
        if self.task.info and info:
            self.infos.append((self.task.envs[k], info))

    def step(self) -> None:
        mode, rewards, terminations, truncations = (
            self.task.mode,
            self.rewards,
            self.terminations,
            self.truncations,
        )
        for k, (env, takes_part) in enumerate(zip(self.envs, self.mask.tolist(), strict=True)):
            if not takes_part:
                continue
            if self.ended[k] and mode is AutoresetMode.NEXT_STEP:
                self.tell(k, self.reset_one(k))
                rewards[k], terminations[k], truncations[k] = 0.0, False, False
                continue
            action = self.actions[k]
            # Environments get numbers of Python, and arrays that nobody writes to later.
            given = action.item() if action.ndim == 0 else action.copy()
            obs, reward, terminated, truncated, info = contract.step(env, self.form, given)
            self.lengths[k] += 1
            if self.lengths[k] >= self.limit and not terminated:
                truncated = True
            rewards[k], terminations[k], truncations[k] = reward, terminated, truncated
            if not (terminated or truncated):
                self.obs[k] = obs
                self.read_mask(k, info)
                self.tell(k, info)
                continue
            if self.task.episode_info:
                self.info[k] = contract.info_values(
                    self.form.name, self.task.episode_info, info, self.reset_info[k]
                )
            if mode is AutoresetMode.SAME_STEP:
                self.obs[k] = self.final_obs[k] = obs
                began = {} if self.seeds[k] == STAY else self.reset_one(k)
                self.tell(k, {"final_info": info, **began})
            else:
                self.obs[k], self.ended[k] = obs, True
                self.tell(k, info)

    def call(self, name: str, values: Sequence[Any] | None, args: Any, kwargs: Any) -> list[Any]:
        """An attribute of each environment, called if it can be; or, with values, set."""
        if values is not None:
            for env, i in zip(self.envs, self.task.envs, strict=True):
                env.set_wrapper_attr(name, values[i])
            return []
        results = []
        for env in self.envs:
            attribute = env.get_wrapper_attr(name)
            results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return results


def work(index: int, payload: bytes, pipe: Connection) -> None:
    """The program of a worker's process. It ends with its parent, or when that closes its environments.

    Args:
        index: which worker.
        payload: its pickled `Task`.
    """
    names: list[str] = []
    processes.init_worker(names)
    envs: list[gymnasium.Env[Any, Any]] = []
    rounds: LockstepBarrier | None = None
    memory: Memory | None = None
    try:
        task: Task = unpickled(payload)
        envs = [task.spec.make() for _ in task.envs]
        spaces = [(env.observation_space, env.action_space) for env in envs]
        pipe.send(Built(spaces, dict(envs[0].metadata), envs[0].render_mode))
        rounds, layout = pipe.recv()
        names.append(rounds.name)
        memory = Memory(rounds, layout)
        rounds.join(index)
        pipe.send(None)
        _play(_Worker(task, envs, memory), rounds, memory, pipe)
    except BaseException as error:
        # Errors about an environment's interface or place are one line, all others come with their traceback.
        in_a_line = isinstance(error, contract.ContractError | ElsewhereError)
        text = str(error) if in_a_line else traceback.format_exc()
        if rounds is not None and memory is not None:
            memory.told[index] = Told.FAILED
            rounds.done()
        # Nobody listens if the parent was done with this worker.
        with contextlib.suppress(OSError):
            pipe.send(text)
        sys.exit(1)
    finally:
        for env in envs:
            contract.close(env)


def _play(worker: _Worker, rounds: LockstepBarrier, memory: Memory, pipe: Connection) -> None:
    index = worker.task.index
    told, times, command = memory.told, memory.times[index], memory.command
    spent = waited = 0.0
    end = time.perf_counter()
    while True:
        rounds.next()
        start = time.perf_counter()
        match int(command[0]):
            case Command.STEP:
                worker.step()
            case Command.RESET:
                worker.reset(pipe.recv() if pipe.poll() else None)
            case Command.CALL:
                told[index] = Told.NOTHING
                rounds.done()
                pipe.send(_answer(worker, *pipe.recv()))
                continue
            case Command.CLOSE:
                return
        waited, spent = waited + start - end, spent + (end := time.perf_counter()) - start
        times[0], times[1] = spent, waited
        told[index] = Told.INFOS if worker.infos else Told.NOTHING
        if worker.infos:
            # First the round, then what may have to wait until the parent reads it.
            rounds.done()
            pipe.send(worker.infos)
            worker.infos = []


def _answer(worker: _Worker, *question: Any) -> tuple[Any, str]:
    """What `_Worker.call` gives, or the traceback of what went wrong."""
    try:
        return worker.call(*question), ""
    except Exception:
        return None, traceback.format_exc()
