"""Environments of all spaces: all collectors bring the same fragments of rows, to the last bit, and resume exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collect_cases import rows
from space_cases import ACTION_SPACES, OBS_SPACES, AnySpaces, plan

from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.utils.seeding import env_seed

CASES = [
    *((obs, "discrete", {}) for obs in OBS_SPACES),
    *(("dict", actions, {}) for actions in ACTION_SPACES),
    ("dict", "discrete", {"masks": True}),
    ("image", "multi-discrete", {"masks": True}),
    ("dict with image", "matrix of multi-discrete", {"masks": True}),
    ("vector", "box", {"squash": True}),
]


def collect(name: str, what: Plan, state: Any = None, updates: int = 2) -> tuple[list[Any], Any]:
    options: dict[str, Any] = {} if name == "sequential" else {"n_workers": 2}
    with make_collector(name, what, **options) as collector:
        if state is not None:
            collector.load_state_dict(state)
        found = []
        for _ in range(updates):
            collector.publish(b"")
            found.append(rows(collector.collect()))
        assert collector.report().failures == ()
        assert collector.report().diverged == 0
        return found, collector.state_dict()


@pytest.mark.parametrize(("obs", "actions", "options"), CASES, ids=str)
def test_fragments_hold_rows_and_draws(obs: str, actions: str, options: dict[str, Any]) -> None:
    what = plan(obs, actions, **options)
    kept, takes = ObsRows(OBS_SPACES[obs]), ActionRows(ACTION_SPACES[actions])
    with make_collector("sequential", what) as collector:
        [fragment] = collector.collect()
    assert fragment.obs.dtype == fragment.final_obs.dtype == kept.dtype
    assert fragment.obs.shape == (13, 5, kept.size)
    drawn = fragment.actions.reshape(-1, *fragment.actions.shape[2:])
    assert drawn.dtype == what.actions.dtype
    if what.actions.is_box:
        drawn = what.actions.to_env(drawn)
    assert all(takes.flat_space.contains(action) for action in drawn)
    # The observations are those of the first environment's first episode.
    env = AnySpaces(obs, actions)
    row = np.zeros(kept.size, kept.dtype)
    kept.write(env.reset(seed=env_seed(what.seed, 0, 0))[0], row)
    assert fragment.obs[0, 0].tobytes() == row.tobytes()
    if fragment.masks is not None:
        assert fragment.masks.shape == (12, 5, what.actions.size)


@pytest.mark.parametrize(
    ("obs", "actions", "options", "unit"),
    [
        *((*case, "steps") for case in CASES),
        *((*case, "episodes") for case in (CASES[7], *CASES[9:12], *CASES[-3:-1])),
    ],
    ids=str,
)
def test_processes_bring_the_same_fragments(obs: str, actions: str, options: Any, unit: Any) -> None:
    what = plan(obs, actions, unit, **options)
    expected, state = collect("sequential", what)
    assert expected[0] != expected[1]
    for name in ("sync", "executor"):
        assert collect(name, what) == (expected, state), name


@pytest.mark.parametrize(("obs", "actions", "options"), [CASES[3], CASES[9], CASES[15], *CASES[-4:]], ids=str)
def test_running_episodes_are_replayed(obs: str, actions: str, options: dict[str, Any]) -> None:
    what = plan(obs, actions, **options)
    expected, _ = collect("sequential", what, updates=4)
    first, state = collect("sequential", what)
    assert first == expected[:2] and any(each.actions for each in state["running"].values())
    for name in ("sequential", "sync", "executor"):
        later, _ = collect(name, what, state)
        assert [[each[1:] for each in update.values()] for update in later] == [
            [each[1:] for each in update.values()] for update in expected[2:]
        ], name
