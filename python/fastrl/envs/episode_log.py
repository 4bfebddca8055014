"""Episode statistics for simulators of several agents that keep none themselves."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

EPISODE_FIELDS = (
    "finished",
    "length",
    "return_mean",
    "num_agents",
    "collision_rate",
    "mean_speed",
    "throughput",
    "min_ttc",
    "success",
    "driving_time",
    "arrival_time",
)
"""Keys of `MultiAgentVectorEnv.episodes()`: the number of finished episodes, and measures of the last one."""


class EpisodeLog:
    """Counts lengths and returns in K environments of A agents from the arrays that their steps write.

    An episode has ended when every agent that was alive before a step ends with it.

    Attributes:
        alive: agents that act next, bool [K, A].
        finished: episodes that have ended, int64 [K].
    """

    def __init__(self, num_envs: int, num_agents: int) -> None:
        self._shape = (num_envs, num_agents)
        self.alive = np.zeros(self._shape, np.bool_)
        self._all_alive = False
        self._agents = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._last = np.full((3, num_envs), np.nan)
        self.finished = np.zeros(num_envs, np.int64)

    def reset(self, alive: NDArray[np.bool_], reset_mask: NDArray[np.bool_] | None) -> None:
        """Counts a reset: `alive` bool [K*A], `reset_mask` bool [K] (None: all)."""
        mask = np.ones(len(self._agents), np.bool_) if reset_mask is None else reset_mask
        self._start(mask, alive.reshape(self._shape))
        self._all_alive = bool(self.alive.all())

    def _start(self, mask: NDArray[np.bool_], alive: NDArray[np.bool_]) -> None:
        self.alive[mask] = alive[mask]
        self._agents[mask] = alive[mask].sum(axis=1)
        self._returns[mask] = 0.0
        self._lengths[mask] = 0

    def step(
        self,
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        alive: NDArray[np.bool_],
    ) -> None:
        """Counts a step; all arrays are [K*A]."""
        self._returns += rewards.reshape(self._shape).sum(axis=1, dtype=np.float64)
        if self._all_alive and alive.all() and not (terminations.any() or truncations.any()):
            # Most steps of most simulators: the rest takes longer than to step one small environment.
            self._lengths += 1
            return
        stepped = self.alive.any(axis=1)
        self._lengths += stepped
        ended = stepped & ~(self.alive & ~(terminations | truncations).reshape(self._shape)).any(axis=1)
        lengths, returns, agents = self._lengths[ended], self._returns[ended], self._agents[ended]
        self._last[:, ended] = lengths, returns / agents, agents
        self.finished += ended
        # With autoreset, the next episode starts with the step that ends one, or with the step after it.
        self._start(np.logical_or(ended, ~stepped), alive.reshape(self._shape))
        self.alive[:] = alive.reshape(self._shape)
        self._all_alive = bool(self.alive.all())

    def episodes(self) -> dict[str, NDArray]:
        """See `MultiAgentVectorEnv.episodes`; without what only a simulator knows."""
        length, return_mean, num_agents = self._last.copy()
        counted = {"length": length, "return_mean": return_mean, "num_agents": num_agents}
        return {"finished": self.finished.copy(), **counted}

    def _arrays(self, index: int | None = None) -> list[NDArray]:
        """The arrays of all environments, or of one."""
        at = slice(None) if index is None else slice(index, index + 1)
        counts = self.alive[at], self._agents[at], self._returns[at], self._lengths[at]
        return [*counts, self._last[:, at], self.finished[at]]

    def save_state(self, index: int | None = None) -> bytes:
        """The statistics of all environments, or of one."""
        body = b"".join(array.tobytes() for array in self._arrays(index))
        return zlib.crc32(body).to_bytes(4, "little") + body

    def split(self, state: bytes, num_envs: int) -> tuple[bytes, EpisodeLog]:
        """Divides a saved state into the bytes before its statistics of so many environments, and these.

        Raises:
            ValueError: they are damaged.
        """
        saved = EpisodeLog(num_envs, self._shape[1])
        arrays = saved._arrays()
        at = len(state) - sum(array.nbytes for array in arrays)
        if at < 4 or zlib.crc32(state[at:]).to_bytes(4, "little") != state[at - 4 : at]:
            raise ValueError("this environment state cannot be restored: its episode statistics are damaged")
        rest = state[: at - 4]
        for array in arrays:
            array[...] = np.frombuffer(state[at : at + array.nbytes], array.dtype).reshape(array.shape)
            at += array.nbytes
        return rest, saved

    def set(self, saved: EpisodeLog, index: int | None = None) -> None:
        """Takes over statistics of as many environments, or of one in all or in one."""
        for array, own in zip(self._arrays(index), saved._arrays(), strict=True):
            array[...] = own
        self._all_alive = bool(self.alive.all())
