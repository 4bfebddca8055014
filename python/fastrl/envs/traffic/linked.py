"""Environments of several agents that may know of one another by radio only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.traffic.links import STATISTICS

if TYPE_CHECKING:
    from fastrl.envs.traffic.driving_task import DrivingTask, Lanes


def build_with(
    task: DrivingTask | str | None, build: Callable[[str], Any], mode: str, lanes: Lanes | None = None
) -> tuple[Any, int]:
    """The compiled environments that `build` makes for the name of an autoreset mode, with a task, and how many numbers
    it adds to observations. `lanes` gives the names of lanes, where they have some."""
    if task is None:
        return build(mode), 0
    from fastrl.envs.traffic.driving_task import TaskVec

    native = TaskVec(build, task, mode, lanes)
    return native, native.task.terms


def widened(space: Any, terms: int) -> Any:
    """The space of observations with so many numbers more, flat; the same space without any.

    Raises:
        ValueError: observations are no float32 numbers.
    """
    if not terms:
        return space
    if not isinstance(space, Box) or space.dtype != np.float32:
        raise ValueError(
            f"task: expected terms 0, as observations are no Box of float32 numbers, got {terms}"
        )
    ends = np.full(terms, np.inf, np.float32)
    return Box(np.append(space.low, -ends), np.append(space.high, ends), dtype=np.float32)


class LinkedVectorEnv(MultiAgentVectorEnv):
    """K environments whose compiled side has radio links, unless `comms` is "perfect"; then the info of a step also has
    `comms`, see the method."""

    @property
    def _has_links(self) -> bool:
        return bool(getattr(self._native, "num_statistics", 0))

    def info(self) -> dict[str, Any]:
        return {"comms": self.comms()} if self._has_links else {}

    def comms(self) -> dict[str, NDArray[np.float64]]:
        """Statistics of the last message of each agent, [K, A] each: of what it sent `delivery_ratio` and
        `age_of_information` (s) at the receivers within the range, of what it heard `sinr` (dB) and
        `channel_busy_ratio`. NaN of agents that do not act, or of none. After an autoreset they are the new episode's.

        Raises:
            ValueError: there are no links with `comms="perfect"`.
        """
        self._need_links()
        numbers = np.empty((self.num_envs * self.num_agents, len(STATISTICS)))
        self._native.comms(numbers)
        return {
            name: self._per_agent(np.ascontiguousarray(numbers[:, i])) for i, name in enumerate(STATISTICS)
        }

    def links(self, index: int = 0) -> dict[str, NDArray[Any]]:
        """The links of environment `index` at the last message, arrays by name. There are S stations, the first of
        which are the episode's A agents.

        `places` [S, 2], m. `resources` int64 [S], `powers` [S], dBm: what each sent in and with. `shadowing` and
        `blockage` [S, S]: of each pair the shadowing, and what lies above the mean in the loss by a vehicle in between,
        in units of their standard deviations. From sender (column) to agent (row), [A, S], NaN where there is no link:
        `success`, the probability of arrival, and `sinr`, dB (NaN too where the agent was sending in that slot). `age`
        [A, S] in periods, `known` [A, S]: the agent has a state of the sender. `sensed`, with "37885" [A, R]: power in
        each resource, mW, NaN where the agent could not listen.

        Raises:
            ValueError: there are no links with `comms="perfect"`.
        """
        self._need_links()
        return self._native.links(index)

    def _need_links(self) -> None:
        if not self._has_links:
            raise ValueError("there are no links with comms='perfect'")
