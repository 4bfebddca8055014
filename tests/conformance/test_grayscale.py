"""Pictures in shades of grey beside those of the installed highway-env, which pygame draws.

They are the same to the bit where vehicles are. A vehicle that is 1e-14 m elsewhere may lie across the edge of a pixel,
and is then drawn one pixel aside.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import installed_highway  # noqa: F401 (skips without it)
import numpy as np
import pytest

import fastrl  # noqa: F401 (registers the environments)

pygame = pytest.importorskip("pygame")

STYLES: list[dict[str, Any]] = [
    {"observation_shape": (128, 64), "stack_size": 4, "scaling": 1.75},
    {"observation_shape": (90, 84), "stack_size": 1, "scaling": 7.3, "centering_position": [0.5, 0.4]},
    {"observation_shape": (60, 60), "stack_size": 2, "scaling": 0.8, "weights": [0.2, 0.2, 0.5]},
]


# All styles on one road, and every road in one style.
@pytest.mark.parametrize(
    ("name", "style"),
    [
        *(("highway-fast-v0", style) for style in STYLES),
        ("merge-v0", STYLES[0]),
        ("roundabout-v0", STYLES[1]),
        ("two-way-v0", STYLES[2]),
        ("u-turn-v0", STYLES[0]),
        ("racetrack-v0", STYLES[1]),
    ],
)
def test_pictures_are_those_of_highway_env(
    monkeypatch: pytest.MonkeyPatch, name: str, style: dict[str, Any]
) -> None:
    import highway_env

    # With that highway-env draws nothing.
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    gymnasium.register_envs(highway_env)
    looks = {"type": "GrayscaleObservation", "weights": [0.2989, 0.587, 0.114]} | style
    reference, ours = (
        gymnasium.make(prefix + name, config={"observation": looks}, disable_env_checker=True)
        for prefix in ("", "fastrl/")
    )
    assert ours.observation_space == reference.observation_space
    different: list[float] = []
    for seed in range(2):
        theirs, mine = reference.reset(seed=seed)[0], ours.reset(seed=seed)[0]
        ours.action_space.seed(seed)
        for _ in range(8):
            assert theirs.dtype == mine.dtype
            different.append(float((theirs != mine).mean()))
            action = ours.action_space.sample()
            theirs, _, *ends, _ = reference.step(action)
            mine = ours.step(action)[0]
            if any(ends):
                break
    assert len(np.unique(theirs)) >= 3
    # A stack shows each picture several times.
    assert sum(share > 0 for share in different) <= style["stack_size"]
    assert max(different) < 0.03


def test_copies_and_states_keep_the_stack() -> None:
    looks = {
        "type": "GrayscaleObservation",
        "observation_shape": (40, 20),
        "stack_size": 3,
        "weights": [0.2989, 0.587, 0.114],
    }
    for name in ("fastrl/highway-v0", "fastrl/merge-v0"):
        vector = gymnasium.make_vec(name, 2, config={"observation": looks})
        obs, _ = vector.reset(seed=0)
        assert not obs[:, :2].any() and obs[:, 2].any()
        state = vector.save_state()  # type: ignore[attr-defined]
        after = vector.step(np.array([1, 1]))[0]
        np.testing.assert_array_equal(after[:, 1], obs[:, 2])
        twin = gymnasium.make_vec(name, 2, config={"observation": looks})
        twin.load_state(state)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(twin.step(np.array([1, 1]))[0], after)
