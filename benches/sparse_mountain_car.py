"""MountainCar-v0 with a reward for the top alone, to measure what intrinsic rewards explore."""

from typing import Any

import gymnasium


class SparseMountainCar(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays 1 when the car reaches the top, else 0; chance seldom gets it there."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("MountainCar-v0"))

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, float(terminated), terminated, truncated, info
