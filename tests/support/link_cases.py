"""Checks of radio links that hold in the cooperative worlds and on road networks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Draw = Callable[[Any, np.random.Generator], NDArray[Any]]


def assert_traffic_is_undisturbed(make: Callable[[str], Any], draw: Draw, steps: int) -> None:
    """Compares all cars of environments that differ in ``comms`` alone, step by step, under the same actions.

    Args:
        make: the environments with a value of ``comms``.
        draw: actions for all agents of an environment.
        steps: number of them.
    """
    seen = []
    for comms in ("perfect", "range", "37885"):
        env = make(comms)
        env.reset(seed=5)
        rng = np.random.default_rng(2)
        cars = []
        for _ in range(steps):
            env.step(draw(env, rng))
            cars += [env.scene(i).cars() for i in range(env.num_envs)]
        seen.append(cars)
    for other in seen[1:]:
        for ours, theirs in zip(seen[0], other, strict=True):
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])


def assert_no_links(env: Any) -> None:
    """Checks that an environment with ``comms="perfect"`` refuses to show links; leaves it after a reset."""
    env.reset(seed=0)
    for call in (env.comms, env.links):
        with pytest.raises(ValueError, match="there are no links with comms='perfect'"):
            call()
