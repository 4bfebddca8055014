"""The program of a worker of `ProcessVectorEnv`, and the memory that it shares with its parent."""

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
from fastrl.envs.serial_envs import SerialEnvs, StepArrays
from fastrl.envs.spec import ElsewhereError, EnvSpec, unpickle
from fastrl.utils import processes

# Alignment of the arrays in bytes, so that no two share a cache line.
ALIGNED = 128


class Command(enum.IntEnum):
    """The work of a round."""

    STEP = 0
    RESET = 1
    CALL = 2
    CLOSE = 3


class Reply(enum.IntEnum):
    """The message that a worker sends through its pipe after a round."""

    NONE = 0
    INFOS = 1
    ERROR = 2


@dataclass(frozen=True)
class Layout:
    """Shapes and dtypes of `Memory`: N environments in W workers, observations and actions as in their spaces."""

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
            "final_masks": ((n, self.num_masked), np.bool_),
            "info": ((n, self.num_info), np.float64),
            "replies": ((w,), np.uint8),
            "times": ((w, 2), np.float64),
        }

    @property
    def nbytes(self) -> int:
        return sum(_aligned_size(shape, dtype) for shape, dtype in self.arrays().values())


def _aligned_size(shape: tuple[int, ...], dtype: Any) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-max(size, 1) // ALIGNED) * ALIGNED


class Memory:
    """The shared arrays, views of the bytes beside the barrier.

    Attributes:
        command: int64 [1], the `Command` of the round.
        mask: bool [N], the environments that take part in the round.
        seeds: int64 [N], of `fastrl.envs.serial_envs.SerialEnvs`.
        actions, obs, final_obs: [N, ...], in the spaces' shapes and dtypes.
        rewards: float64 [N]; terminations, truncations: bool [N].
        masks: bool [N, num_actions], which actions are allowed now; [N, 0] unless they are asked for.
        final_masks: as ``masks``, at the end of episodes that were truncated and not terminated.
        info: float64 [N, K], of the episodes that the last step ended, the values of the K infos that are asked for.
        replies: uint8 [W], `Reply`.
        times: float64 [W, 2], total seconds that each worker has worked and waited.
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
    final_masks: NDArray[np.bool_]
    info: NDArray[np.float64]
    replies: NDArray[np.uint8]
    times: NDArray[np.float64]

    def __init__(self, barrier: LockstepBarrier, layout: Layout) -> None:
        data, at = barrier.data(), 0
        for name, (shape, dtype) in layout.arrays().items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            setattr(self, name, data[at : at + size].view(dtype).reshape(shape))
            at += _aligned_size(shape, dtype)


@dataclass(frozen=True)
class WorkerTask:
    """The environments and settings of a worker, pickled for its process.

    Attributes:
        index: of the worker.
        envs: indices of its environments.
        spec: builds an environment.
        mode: the autoreset mode.
        max_episode_steps: time limit of episodes, beside the environment's own.
        info: send infos to the parent.
        action_masks: read action masks.
        final_masks: also where an episode was truncated.
        episode_info: keys of infos whose values at the end of an episode are kept.
    """

    index: int
    envs: range
    spec: EnvSpec
    mode: AutoresetMode
    max_episode_steps: int | None
    info: bool
    action_masks: bool
    final_masks: bool
    episode_info: tuple[str, ...]


@dataclass(frozen=True)
class EnvsBuilt:
    """A worker's message after it has built its environments.

    Attributes:
        spaces: observation space and action space of each.
        metadata, render_mode: of the first.
    """

    spaces: list[tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]
    metadata: dict[str, Any]
    render_mode: str | None


class _Worker:
    """The environments of one worker, and its views of the shared arrays."""

    def __init__(self, task: WorkerTask, envs: list[gymnasium.Env[Any, Any]], memory: Memory) -> None:
        self.task = task
        own = slice(task.envs.start, task.envs.stop)
        self.mask, self.obs = memory.mask[own], memory.obs[own]
        self.actions = memory.actions[own]
        self.arrays: StepArrays = (
            self.obs,
            memory.rewards[own],
            memory.terminations[own],
            memory.truncations[own],
            memory.final_obs[own],
            memory.final_masks[own] if task.final_masks else None,
        )
        self.envs = SerialEnvs(
            envs,
            contract.obs_form(task.spec.id, memory.obs.shape[1:], memory.obs.dtype),
            memory.seeds[own],
            memory.masks[own],
            memory.info[own],
            mode=task.mode,
            max_episode_steps=task.max_episode_steps,
            episode_info=task.episode_info,
            keeps_infos=task.info,
        )

    def step(self) -> None:
        self.envs.step(self.actions, self.arrays, self.mask)

    def infos(self) -> list[tuple[int, dict[str, Any]]]:
        """Infos since the last call, with the environments' indices."""
        found, self.envs.infos = self.envs.infos, []
        return [(self.task.envs[k], info) for k, info in found]

    def call(self, name: str, values: Sequence[Any] | None, args: Any, kwargs: Any) -> list[Any]:
        """Gets an attribute of each environment, and calls it if it is callable; with values, sets it."""
        if values is not None:
            for env, i in zip(self.envs.envs, self.task.envs, strict=True):
                env.set_wrapper_attr(name, values[i])
            return []
        results = []
        for env in self.envs.envs:
            attribute = env.get_wrapper_attr(name)
            results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return results


def work(index: int, payload: bytes, pipe: Connection) -> None:
    """Runs a worker's process until its parent closes the environments or ends.

    Args:
        index: of the worker.
        payload: its pickled `WorkerTask`.
    """
    names: list[str] = []
    processes.init_worker(names)
    envs: list[gymnasium.Env[Any, Any]] = []
    barrier: LockstepBarrier | None = None
    memory: Memory | None = None
    try:
        task: WorkerTask = unpickle(payload)
        envs = [task.spec.make() for _ in task.envs]
        spaces = [(env.observation_space, env.action_space) for env in envs]
        pipe.send(EnvsBuilt(spaces, dict(envs[0].metadata), envs[0].render_mode))
        barrier, layout = pipe.recv()
        names.append(barrier.name)
        memory = Memory(barrier, layout)
        barrier.join(index)
        pipe.send(None)
        _run_rounds(_Worker(task, envs, memory), barrier, memory, pipe)
    except BaseException as error:
        # Errors about an environment's interface or import are one line, all others come with their traceback.
        is_one_line = isinstance(error, contract.ContractError | ElsewhereError)
        text = str(error) if is_one_line else traceback.format_exc()
        if barrier is not None and memory is not None:
            memory.replies[index] = Reply.ERROR
            barrier.done()
        # The parent may have closed its end of the pipe.
        with contextlib.suppress(OSError):
            pipe.send(text)
        sys.exit(1)
    finally:
        for env in envs:
            contract.close(env)


def _run_rounds(worker: _Worker, barrier: LockstepBarrier, memory: Memory, pipe: Connection) -> None:
    index = worker.task.index
    replies, times, command = memory.replies, memory.times[index], memory.command
    worked = waited = 0.0
    end = time.perf_counter()
    while True:
        barrier.next()
        start = time.perf_counter()
        match int(command[0]):
            case Command.STEP:
                worker.step()
            case Command.RESET:
                worker.envs.reset(worker.obs, worker.mask, pipe.recv() if pipe.poll() else None)
            case Command.CALL:
                replies[index] = Reply.NONE
                barrier.done()
                pipe.send(_call_attribute(worker, *pipe.recv()))
                continue
            case Command.CLOSE:
                return
        waited, worked = waited + start - end, worked + (end := time.perf_counter()) - start
        times[0], times[1] = worked, waited
        infos = worker.infos()
        replies[index] = Reply.INFOS if infos else Reply.NONE
        if infos:
            # The round first: `send` may block until the parent reads, which it does after the round.
            barrier.done()
            pipe.send(infos)


def _call_attribute(worker: _Worker, *message: Any) -> tuple[Any, str]:
    """The results of `_Worker.call`, or the traceback of its error."""
    try:
        return worker.call(*message), ""
    except Exception:
        return None, traceback.format_exc()
