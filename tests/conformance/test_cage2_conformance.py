"""The vector environments of CAGE 2 pass the conformance kit with all options."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.vector import VectorEnv

from fastrl.envs import Cage2VectorEnv
from fastrl.testing import check_vector_env

LENGTH = 13


@pytest.mark.parametrize("ruleset", ["main", "plusplus", pytest.param("leaderboard", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        {"red_agent": "bline"},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"red_agent": "meander"},
                {"red_agent": {"bline": 0.5, "meander": 0.3, "sleep": 0.2}},
                {"red_agent": "mix", "memory": "scan"},
                {"red_agent": "mix", "memory": "decoys"},
            )
        ),
        {"red_agent": "mix", "memory": "full"},
        {"red_agent": "mix", "memory": "full", "observe": "truth"},
        {"red_agent": "mix", "actions": "effective", "info_state": True},
        {"red_agent": "bline", "random": "python"},
    ],
    ids=str,
)
def test_cage2_passes(ruleset: str, options: dict[str, Any]) -> None:
    def make(**kwargs: Any) -> VectorEnv:
        return Cage2VectorEnv(ruleset=ruleset, episode_length=LENGTH, **options, **kwargs)

    check_vector_env(make, steps=4 * LENGTH, time_limit=LENGTH, terminates=False)


def test_cage2_made_by_gymnasium_passes() -> None:
    def make(**kwargs: Any) -> VectorEnv:
        return gymnasium.make_vec(
            "fastrl/Cage2-v0", vectorization_mode="vector_entry_point", episode_length=LENGTH, **kwargs
        )

    check_vector_env(make, num_envs=2, steps=2 * LENGTH, time_limit=LENGTH, terminates=False)
