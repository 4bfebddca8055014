"""A check that holds for all vector environments whose states can be saved."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode


def assert_a_state_continues(env: Any, twin: Any, steps: int, before: int) -> None:
    """Plays random actions, hands the state to a twin on the way, and compares all that follows.

    Args:
        env, twin: vector environments with the same options.
        steps: number of them in all.
        before: steps after which the state is saved and loaded.
    """
    env.reset(seed=1)
    env.action_space.seed(2)
    actions = [env.action_space.sample() for _ in range(steps)]
    played(env, actions[:before])
    twin.load_state(env.save_state())
    np.testing.assert_equal(played(twin, actions[before:]), played(env, actions[before:]))


def played(env: Any, actions: list[Any]) -> list[Any]:
    """Results of steps of an environment with some actions, without infos; episodes that ended are reset by hand if it
    does not do so."""
    found = []
    for action in actions:
        obs, rewards, terminations, truncations, _ = env.step(action)
        found.append((obs, rewards, terminations, truncations))
        ended = terminations | truncations
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})
    return found
