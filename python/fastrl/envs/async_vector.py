"""Asynchronous stepping of compiled environments: send actions to some, receive the first that are ready.

```python
env = AsyncNativeVectorEnv(HighwayVectorEnv(64, density=2.0), seed=0)
env.reset()
while True:
    batch = env.recv(16)                      # the first 16 of 64 that are ready
    env.send(policy(batch.obs), batch.env_ids)
```

Synchronous stepping waits at each step for the slowest environment; here a slow environment delays only itself. That
pays if steps take uneven times and there are more environments than threads; for short, even steps synchronous stepping
is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native._rust import AsyncVec
from fastrl.envs.vector import NativeVectorEnv, as_autoreset_mode, as_seed


class Batch(NamedTuple):
    """The results of M environments' last steps, in the order in which they became ready.

    Attributes:
        env_ids: int64 [M].
        obs: float32 [M, D]; where an episode ended with "same_step", the first observation of the next one.
        rewards: float32 [M]; 0 after a reset.
        terminations, truncations: bool [M].
        final_obs: float32 [M, D], true last observations; only defined where an episode ended.
        final_masks: bool [M, num_masked], true last action masks; only defined where an episode ended.
        episode_info: float64 [M, K], the numbers of the K keys of `AsyncNativeVectorEnv`; only defined where an episode
            ended.
    """

    env_ids: NDArray[np.int64]
    obs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    final_obs: NDArray[np.float32]
    final_masks: NDArray[np.bool_]
    episode_info: NDArray[np.float64]


class AsyncNativeVectorEnv:
    """N compiled environments of one agent each, stepped by threads as their actions come.

    An environment is in flight from `reset` or `send` until `recv` returns it. Only environments that are not in flight
    can be sent, so each steps exactly once a send. Timing decides which environments are ready first, not their
    trajectories: episode ``number`` of stream ``stream`` is reset with
    ``fastrl.utils.seeding.env_seed(seed, stream, number)``, like a single environment with ``reset(seed=...)``.

    Args:
        env: its environments move into this object, and it is closed.
        seed: of all episodes.
        autoreset_mode: "same_step": the step that ends an episode starts the stream's next one; "disabled": episodes
            are started by `reset` only.
        num_threads: threads that step; 0 means one a core.
        episode_info: keys whose numbers are read at the end of each episode, see `NativeVectorEnv.episode_info`.

    Raises:
        TypeError: `env` is no `NativeVectorEnv`.
        ValueError: environments of several agents, or an option out of range.
    """

    def __init__(
        self,
        env: NativeVectorEnv,
        *,
        seed: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
        episode_info: Sequence[str] = (),
    ) -> None:
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            raise ValueError("autoreset_mode: expected 'same_step' or 'disabled', got 'next_step'")
        if not isinstance(env, NativeVectorEnv):
            raise TypeError(
                f"env: expected a NativeVectorEnv, got {type(env).__name__}: only compiled environments of one"
                " agent each can be stepped asynchronously"
            )
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.num_masked = env.num_masked
        self._num_infos = len(episode_info)
        self._native: AsyncVec = env.asynchronous(
            as_seed(seed),
            same_step=self.autoreset_mode is AutoresetMode.SAME_STEP,
            num_threads=num_threads,
            episode_info=episode_info,
        )
        self.obs_dim = self._native.obs_dim

    @property
    def in_flight(self) -> int:
        """The number of environments in flight, which `recv` can return."""
        return self._native.in_flight

    @property
    def busy_seconds(self) -> float:
        """Seconds of all threads spent on steps and resets so far."""
        return self._native.busy_seconds

    def reset(
        self,
        env_ids: NDArray[np.int64] | None = None,
        *,
        streams: NDArray[np.int64] | None = None,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        """Starts episodes, whose first observations `recv` returns.

        Args:
            env_ids: int64 [M], environments that are not in flight; all N if None.
            streams: int64 [M], not negative, their random streams; the environments' ids if None.
            numbers: int64 [M], not negative, of the episodes; 0 if None. The stream's next episode has the next number.

        Raises:
            TypeError, ValueError: an array does not fit, or an environment is in flight; nothing has changed then.
        """
        ids = np.arange(self.num_envs) if env_ids is None else env_ids
        streams = ids if streams is None else streams
        numbers = np.zeros(len(ids), np.int64) if numbers is None else numbers
        self._native.reset(ids, _unsigned("streams", streams), _unsigned("numbers", numbers))

    def action_masks(self, env_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The actions that may have an effect now in M environments that are not in flight, bool [M, num_masked].

        Raises:
            ValueError: the simulator has no masks, or an environment is in flight.
        """
        out = np.empty((len(env_ids), self.num_masked), np.bool_)
        self._native.action_masks(env_ids, out)
        return out

    def send(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        """Sends an action to each of M environments that are not in flight.

        Args:
            actions: integers [M], or float32 [M, n] where the action space is a Box.
            env_ids: int64 [M], each once.

        Raises:
            TypeError, ValueError: an array or an action does not fit, or an environment is in flight.
            gymnasium.error.ResetNeeded: one was never reset, or its episode has ended with "disabled".
            Nothing has changed then.
        """
        array = np.asarray(actions)
        numbers = isinstance(self.single_action_space, Box)
        if array.dtype.kind not in ("iuf" if numbers else "iu"):
            expected = "numbers" if numbers else "integers"
            raise TypeError(f"actions: expected {expected}, got dtype {array.dtype}")
        self._native.send(env_ids, np.ascontiguousarray(array, np.float32 if numbers else np.int64))

    def recv(self, count: int | None = None, timeout: float | None = None) -> Batch:
        """Waits for the first `count` environments that are ready; for all in flight if None.

        Raises:
            ValueError: fewer are in flight, or `count` is below 1.
            TimeoutError: fewer were ready within `timeout` seconds; they can still be received.
        """
        count = self.in_flight if count is None else count
        if count < 1:
            raise ValueError(
                f"recv: expected to wait for at least 1 environment, got {count};"
                f" {self.in_flight} are in flight"
            )
        # Never allocates more than one environment too many, which the compiled side refuses.
        count = min(count, self.num_envs + 1)
        batch = Batch(
            np.empty(count, np.int64),
            np.empty((count, self.obs_dim), np.float32),
            np.empty(count, np.float32),
            np.empty(count, np.bool_),
            np.empty(count, np.bool_),
            np.zeros((count, self.obs_dim), np.float32),
            np.zeros((count, self.num_masked), np.bool_),
            np.zeros((count, self._num_infos)),
        )
        if not self.recv_into(batch, timeout):
            raise TimeoutError(f"no {count} environments were ready within {timeout} s")
        return batch

    def recv_into(self, batch: Batch, timeout: float | None = None) -> bool:
        """Does as `recv`, into a caller's arrays of length M; returns False if fewer than M were ready in time."""
        return self._native.recv(*batch, timeout=timeout)

    def close(self) -> None:
        """Waits for steps in progress and ends the threads and environments. May be called again."""
        self._native.close()


def _unsigned(name: str, values: NDArray[np.int64]) -> NDArray[np.uint64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got dtype {array.dtype}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name}: expected no number below 0, got {array.min()}")
    return np.ascontiguousarray(array, np.uint64)
