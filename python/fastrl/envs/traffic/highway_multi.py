"""highway-env's highways as environments of several agents, with one agent each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.traffic.highway_config import (
    HIGHWAY_DEFAULTS,
    HIGHWAY_FAST_DEFAULTS,
    MOST_ENVS,
    action_space,
    as_integer,
    checked,
    native_options,
    observation_space,
)
from fastrl.envs.viewer import View


class HighwayMultiAgentVectorEnv(MultiAgentVectorEnv):
    """K highways with one agent each; observations are flat.

    Args:
        num_envs: K.
        config: highway-env's keys, see `fastrl.envs.HighwayVectorEnv`.
        fast: the defaults of `highway-fast-v0`, and collisions of the controlled vehicle only.
        num_threads: threads that step the highways, 0 for one a core.
        autoreset_mode: Gymnasium's enum or the name of a mode.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        config: Mapping[str, Any] | None = None,
        fast: bool = False,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        num_envs = as_integer("num_envs", num_envs, 1, MOST_ENVS)
        num_threads = as_integer("num_threads", num_threads, 0, 1024)
        settings = checked(config or {}, HIGHWAY_FAST_DEFAULTS if fast else HIGHWAY_DEFAULTS)
        options = native_options(settings, fast=fast)
        space = observation_space(settings)
        super().__init__(
            lambda mode: _rust.HighwayVec(num_envs, num_threads=num_threads, autoreset_mode=mode, **options),
            Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type),  # type: ignore[union-attr]
            action_space(settings),
            autoreset_mode=autoreset_mode,
            name="fastrl/highway-fast-v0" if fast else "fastrl/highway-v0",
            view=View.of_config(settings),
            fps=float(settings["policy_frequency"]),
        )


def highway_fast(num_envs: int, **options: Any) -> HighwayMultiAgentVectorEnv:
    """`fastrl/highway-fast-v0`."""
    return HighwayMultiAgentVectorEnv(num_envs, fast=True, **options)
