"""Action masks and the infos of episodes in fragments of all collectors."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import ACTIONS, OBS, Chooser, Noise, chooser, rows

from fastrl.collectors import probe
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.cage2.workflow import WORKFLOWS, Cage2WorkflowVectorEnv, encode
from fastrl.envs.spec import EnvSpec, as_spec
from random_actor import RandomActor

COLLECTORS = ("sequential", "sync", "executor")


class Masked(Noise):
    """Allows one or two of its three actions, other ones at each step, and asserts that they are kept to.

    Args:
        how: masks are given by a "method" or by the "info"; or, wrongly, "nowhere", as "short" ones, or "none" allowed;
            "info first" and "method first": the last observation of an episode has none, or one that allows nothing.
    """

    def __init__(self, how: str = "method") -> None:
        super().__init__()
        self.how = how
        if how in ("method", "short", "none", "method first"):
            self.action_masks = self.allowed

    def allowed(self) -> Any:
        if self.how == "short":
            return [True]
        mask = np.zeros(3, np.bool_)
        if self.how != "none" and (self.left or self.how != "method first"):
            mask[[self.left % 3, self.offset]] = True
        return mask

    def _info(self) -> dict[str, Any]:
        gives = self.how == "info" or (self.how == "info first" and self.left)
        return {"action_mask": self.allowed().astype(np.int8)} if gives else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        self.offset = int(self.np_random.integers(3))
        return obs, {"offset": self.offset, "both": -1.0, **self._info()}

    def step(self, action: Any) -> Any:
        assert self.how == "none" or self.allowed()[action]
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"left": self.left, "both": reward} if terminated or truncated else {"both": 5.0}
        return obs, reward, terminated, truncated, info | self._info()


class Fragile(Masked):
    """Kills its process after an episode's third step, once.

    Args:
        once: a folder, in which is noted that it has happened.
    """

    def __init__(self, once: str) -> None:
        super().__init__()
        self.once = Path(once)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == 4 and not (self.once / "killed").exists():
            (self.once / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Brings masks to an environment that has none."""

    def __init__(self) -> None:
        super().__init__(Masked("nowhere"))

    def action_masks(self) -> Any:
        env: Any = self.unwrapped
        return env.allowed()


def plan(unit: Any, env: Any = Masked, info: tuple[str, ...] = (), **options: Any) -> Plan:
    return Plan(
        as_spec(env, **options),
        Chooser,
        OBS,
        ACTIONS,
        num_envs=4,
        num_steps=20,
        unit=unit,
        episodes=9 if unit == "episodes" else 0,
        seed=3,
        action_masks=True,
        final_masks=True,
        episode_info=info,
    )


def collect(name: str, what: Plan, updates: int = 2, **options: Any) -> list[Any]:
    options = options or ({} if name == "sequential" else {"n_workers": 2})
    with make_collector(name, what, **options) as collector:
        fragments = []
        for update in range(updates):
            collector.publish(chooser(update) if what.make_actor().weights_nbytes else b"")
            fragments.append(copy.deepcopy(collector.collect()))
        return fragments


@pytest.mark.parametrize("how", ["method", "info"])
def test_environments_are_measured_by_allowed_actions(how: str) -> None:
    # It asserts that its masks are kept to.
    assert probe.quick_step_seconds(plan("steps", how=how)) > 0
    assert probe.measure(plan("steps", how=how)).step_seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("name", COLLECTORS)
def test_masks_by_a_method_a_wrapper_and_infos_are_the_same(name: str, unit: Any) -> None:
    expected = [rows(each) for each in collect("sequential", plan(unit))]
    for env, options in ((Masked, {}), (Masked, {"how": "info"}), (Wrapped, {})):
        found = collect(name, plan(unit, env, **options))
        assert [rows(each) for each in found] == expected
        for fragment in (fragment for each in found for fragment in each):
            assert fragment.masks.shape == (*fragment.actions.shape, 3)
            assert np.take_along_axis(fragment.masks, fragment.actions[..., None], -1).all()
            assert not fragment.masks.all(-1).any()


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("name", COLLECTORS)
def test_truncated_episodes_have_the_masks_of_their_last_observations(name: str, unit: Any) -> None:
    ends = 0
    what = plan(unit, info=("offset",), how="info")
    for fragment in (fragment for each in collect(name, what) for fragment in each):
        assert fragment.final_masks.shape == fragment.masks.shape
        places = np.argwhere(fragment.terminations | fragment.truncations)
        for (t, row), offset in zip(places, fragment.episode_info["offset"], strict=True):
            if fragment.truncations[t, row]:
                assert set(np.flatnonzero(fragment.final_masks[t, row])) == {0, int(offset)}
                ends += 1
    assert ends > 3


def test_episodes_of_a_worker_that_dies_end_with_the_mask_of_their_last_observation(tmp_path: Path) -> None:
    [[expected]] = collect("sequential", plan("steps"), 1)
    [[found]] = collect("sync", plan("steps", Fragile, once=str(tmp_path)), 1)
    cut = found.truncations & ~(expected.truncations | expected.terminations)
    first = cut.argmax(0)
    rows = np.flatnonzero(cut.any(0))
    assert len(rows)
    for row in rows:
        np.testing.assert_array_equal(found.final_masks[first[row], row], expected.masks[first[row] + 1, row])


@pytest.mark.parametrize("name", COLLECTORS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("info first", r"neither a method action_masks\(\) nor info\['action_mask'\]"),
        ("method first", "the last observation of a truncated episode allows no action"),
    ],
)
def test_only_learners_that_ask_for_last_masks_need_them(name: str, how: str, message: str) -> None:
    what = plan("steps", how=how)
    for each in collect(name, dataclasses.replace(what, final_masks=False)):
        assert all(fragment.final_masks is None for fragment in each)
    with pytest.raises(CollectError, match=message):
        collect(name, what)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("name", COLLECTORS)
def test_infos_are_those_of_the_end_or_else_of_the_reset(name: str, unit: Any) -> None:
    what = plan(unit, info=("left", "offset", "both", "nothing"))
    ends = 0
    for fragment in (fragment for each in collect(name, what) for fragment in each):
        info = fragment.episode_info
        assert {values.dtype for values in info.values()} == {np.dtype(np.float64)}
        assert (info["left"] == 0).all() and np.isnan(info["nothing"]).all()
        assert set(info["offset"]) <= {0.0, 1.0, 2.0}
        last = fragment.rewards[fragment.terminations | fragment.truncations]
        assert info["both"].astype(np.float32).tolist() == last.tolist()
        ends += len(last)
    assert ends > 10


@pytest.mark.parametrize("name", COLLECTORS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nowhere", r"neither a method action_masks\(\) nor info\['action_mask'\]"),
        ("short", "an action mask should be an array of 3 bools, got a list"),
        ("none", "allows 0 of 3 actions, and action 0 was taken"),
    ],
)
def test_wrong_masks_raise_readable_errors(name: str, how: str, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        collect(name, plan("steps", how=how), 1)


def test_infos_that_are_no_numbers() -> None:
    what = plan("steps", info=("action_mask",), how="info")
    with pytest.raises(CollectError, match=r"info\['action_mask'\] should be a number, got an array"):
        collect("sequential", what, 1)


def test_masks_need_discrete_actions() -> None:
    forces = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(ValueError, match="action_masks are for discrete actions"):
        Plan(as_spec("Pendulum-v1"), Chooser, OBS, forces, 1, 1, action_masks=True)


def test_random_actions_keep_to_masks_evenly() -> None:
    masks = np.zeros((3000, 4), np.bool_)
    masks[:, [1, 3]] = True
    actions, log_probs = np.zeros(3000, np.int64), np.zeros(3000, np.float32)
    obs, streams = np.zeros((3000, 2), np.float32), np.arange(3000, dtype=np.uint64) * np.uint64(2**40 + 7)
    actor = RandomActor(gymnasium.spaces.Discrete(4))
    actor.act(obs, streams, np.zeros(3000, np.int64), actions, log_probs, masks)
    counts = np.bincount(actions, minlength=4)
    assert counts[[0, 2]].sum() == 0 and abs(counts[1] - 1500) < 150
    np.testing.assert_allclose(log_probs, -math.log(2), rtol=1e-6)


CAGE2 = {"episode_length": 7, "red_agent": "mix"}


def cage2_plan(**options: Any) -> Plan:
    env = Cage2VectorEnv(1, **CAGE2)  # type: ignore[arg-type]
    actor = functools.partial(RandomActor, env.single_action_space)
    return Plan(
        EnvSpec("fastrl/Cage2-v0", CAGE2),
        actor,
        env.single_observation_space,
        env.single_action_space,
        **{"num_envs": 6, "num_steps": 10, "seed": 2, "action_masks": True, **options},
    )


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_an_environment_of_ones_own_gives_the_same_fragments(unit: Any) -> None:
    what = cage2_plan(unit=unit, episodes=11, episode_info=("red_agent",))
    env = Cage2VectorEnv(6, autoreset_mode="disabled", num_threads=2, **CAGE2)  # type: ignore[arg-type]
    expected = [rows(each) for each in collect("native", what, n_workers=2)]
    assert [rows(each) for each in collect("native", what, env=env)] == expected
    env.reset(seed=1)  # it was left open
    env.close()


def test_red_agents_are_those_of_the_episodes() -> None:
    what = cage2_plan(episode_info=("red_agent",), num_steps=14)
    env = Cage2VectorEnv(6, autoreset_mode="disabled", **CAGE2)  # type: ignore[arg-type]
    with native_collector(what, env=env) as collector:
        seen = set()
        for _ in range(3):
            [fragment] = collector.collect()
            # Of the two episodes that have ended in each row, in the order of their ends.
            assert len(fragment.episode_info["red_agent"]) == 12
            seen |= set(fragment.episode_info["red_agent"].tolist())
            following = env.red_agents()
            [fragment] = collector.collect()
            assert fragment.episode_info["red_agent"][:6].tolist() == following.tolist()
    assert len(seen) == 2


def test_observations_are_refreshed_after_the_owner_has_changed_the_environment() -> None:
    env = Cage2WorkflowVectorEnv(3, episode_length=5, autoreset_mode="disabled")
    what = Plan(
        EnvSpec("Cage2WorkflowVectorEnv"),
        functools.partial(RandomActor, env.single_action_space),
        env.single_observation_space,
        env.single_action_space,
        num_envs=3,
        num_steps=5,
    )
    with native_collector(what, env=env) as collector:
        for workflow in (WORKFLOWS[7], WORKFLOWS[99], WORKFLOWS[3]):
            env.set_workflows([workflow] * 3)
            collector.refresh_observations()
            [fragment] = collector.collect()
            assert (fragment.obs[:5, :, 52:] == encode([workflow])).all()
            assert fragment.terminations[-1].all()


def test_environments_of_ones_own_that_cannot_be_collected_from() -> None:
    what = cage2_plan()
    make: Any = functools.partial(Cage2VectorEnv, **CAGE2)
    with pytest.raises(ValueError, match="expected num_envs 6 as in the plan, got 5"):
        native_collector(what, env=make(5, autoreset_mode="disabled"))
    with pytest.raises(ValueError, match=r"expected autoreset_mode 'disabled', .* got 'SameStep'"):
        native_collector(what, env=make(6, autoreset_mode="same_step"))
    env = make(6, autoreset_mode="disabled")
    with pytest.raises(ValueError, match="does not support an env: leave asynchronous out"):
        native_collector(what, asynchronous=2, env=env)
    env.num_masked = 0
    with pytest.raises(CollectError, match="action masks were asked for, and it has none"):
        native_collector(what, env=env)
    env.num_masked = 145
    env.action_masks = lambda out: out.fill(False)
    with native_collector(what, env=env) as collector, pytest.raises(CollectError, match="allows 0 of 145"):
        collector.collect()
