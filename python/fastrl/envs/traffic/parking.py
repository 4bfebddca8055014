"""highway-env's car parks, compiled: `fastrl.envs.traffic.roads` with goals and a reward for any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.roads import RoadEnv, RoadVectorEnv


class ParkingVectorEnv(RoadVectorEnv):
    """N car parks; options as in `RoadVectorEnv`. Observations are dicts of float64 [N, 6]: `observation`,
    `achieved_goal`, `desired_goal`. Rows of `step_into` are float32 [N, 18]: achieved goal, desired goal, observation.
    """

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any, p: float = 0.5
    ) -> Any:
        """Rewards of goals [..., 6] that were achieved where others were desired, [...]: minus the p-th power of the
        distance weighted by the config's `reward_weights`. `info` does not matter. Crashes are not part of it, as in
        highway-env's `ParkingEnv.compute_reward`.

        Raises:
            ValueError: goals of another shape, or a task, whose rewards need more than goals.
        """
        if self.task is not None:
            raise ValueError(
                "compute_reward: hindsight knows no rewards of a task: choose another algorithm or no task"
            )
        apart, weights = np.abs(achieved_goal - desired_goal), np.array(self.config["reward_weights"])
        if apart.shape[-1:] != weights.shape:
            raise ValueError(
                f"achieved_goal, desired_goal: expected {len(weights)} numbers each, as many as reward_weights, got"
                f" shape {apart.shape}"
            )
        return -np.power(np.dot(apart, weights), p)


class ParkingEnv(RoadEnv):
    """One car park for `gymnasium.make`, a goal environment as hindsight needs it."""

    vector_class = ParkingVectorEnv
    vector: ParkingVectorEnv

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any, p: float = 0.5
    ) -> Any:
        """See `ParkingVectorEnv.compute_reward`."""
        return self.vector.compute_reward(achieved_goal, desired_goal, info, p)

    def compute_terminated(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any) -> Any:
        """True where a goal is reached, bool [...] of goals [..., 6]; `info` does not matter.

        An episode ends there as a success, and so it does for hindsight where the goal was replaced. Crashes, which
        also end episodes, are not part of it. highway-env has no such method.

        Raises:
            ValueError: as of `compute_reward`.
        """
        return (
            self.compute_reward(achieved_goal, desired_goal, info)
            > -self.vector.config["success_goal_reward"]
        )
