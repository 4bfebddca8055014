"""Action masks of many agents: in fragments of all collectors, from a run that was stopped, and wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pettingzoo")

from parallel_toys import Masked

from fastrl.collectors import probe
from fastrl.collectors.factory import make_collector
from fastrl.collectors.parallel_spec import ParallelSpec
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import packed, unpacked
from fastrl.envs.spec import as_spec
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.utils.seeding import NO_ENV

AGENTS, ENVS, STEPS = 3, 4, 15


def plan(unit: Any = "steps", **options: Any) -> Plan:
    own = as_spec(Masked, **options)
    spec = ParallelSpec(own.id, spec=own, max_episode_steps=20)
    env = spec.make_team(1)
    obs_space, action_space = env.single_observation_space, env.single_action_space
    env.close()
    assert obs_space.shape is not None
    networks: Any = {
        name: PolicyNetwork(
            obs_space.shape[0],
            Actions(action_space),
            hidden=(8,),
            num_ids=AGENTS,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed, name in enumerate("ab")
    }
    return Plan(
        spec,
        MultiAgentPolicy(["a", "b", "a"], networks, Actions(action_space)).actor_spec(),
        obs_space,
        action_space,
        num_envs=ENVS,
        num_agents=AGENTS,
        num_steps=STEPS,
        unit=unit,
        episodes=5 if unit == "episodes" else 0,
        seed=3,
        action_masks=True,
    )


ARRAYS = ("obs", "actions", "log_probs", "rewards", "terminations", "truncations", "alive", "ends", "masks")


def contents(fragments: list[Any]) -> list[Any]:
    """All that fragments hold; those of steps side by side."""
    found = [{name: getattr(each, name).copy() for name in ARRAYS} for each in fragments]
    if fragments[0].env_indices[0] == NO_ENV:
        return found
    return [{name: np.concatenate([each[name] for each in found], axis=1) for name in ARRAYS}]


def collected(name: str, what: Plan, state: Any = None) -> tuple[list[Any], Any]:
    """Two updates' worth, and the state between them."""
    options = {} if name == "sequential" else {"n_workers": 2}
    with make_collector(name, what, **options) as collector:
        if state is not None:
            collector.load_state_dict(state)
        first = contents(collector.collect())
        between = unpacked(packed(collector.state_dict()))
        found = [first, contents(collector.collect())]
        assert not collector.report().failures and not collector.report().diverged
    return found, between


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("name", ["sync", "executor", pytest.param("ray", marks=pytest.mark.slow)])
def test_all_collectors_give_the_same_fragments_and_resume_from_each_other(
    name: str, unit: Any, request: pytest.FixtureRequest
) -> None:
    if name == "ray":
        request.getfixturevalue("local_ray")
    what = plan(unit)
    expected, state = collected("sequential", what)
    found, between = collected(name, what)
    np.testing.assert_equal(found, expected)
    np.testing.assert_equal(collected(name, what, state)[0][0], expected[1])
    np.testing.assert_equal(collected("sequential", what, between)[0][0], expected[1])


def test_environments_are_measured_by_allowed_actions() -> None:
    # An action that is not allowed raises.
    assert probe.measure(plan()).step_seconds > 0


def test_fragments_have_the_masks_of_the_agents_that_act() -> None:
    for how in ("infos", "observations"):
        for fragment in collected("sequential", plan(how=how))[0]:
            [arrays] = fragment
            masks, alive = arrays["masks"], arrays["alive"][:-1]
            assert masks.shape == (STEPS, ENVS, AGENTS, 50)
            assert (masks[alive].sum(-1) == 2).all() and masks[~alive].all()
            # "b" has fewer actions.
            assert not masks[:, :, 1, 40:][alive[:, :, 1]].any()
            assert np.take_along_axis(masks, arrays["actions"][..., None], -1).all()


def test_a_rollout_has_a_row_of_masks_for_each_agent() -> None:
    what = plan()
    with make_collector("sequential", what) as collector:
        [fragment] = collector.collect()
        rollout = Rollout(STEPS, ENVS * AGENTS, what.obs_dim, 50, masks=True, many_agents=True)
        rollout = lay_out([fragment], rollout)
        assert rollout.masks is not None and rollout.masks[-1].all()
        np.testing.assert_array_equal(rollout.masks[:-1], fragment.masks.reshape(STEPS, -1, 50))


@pytest.mark.parametrize("name", ["sequential", "executor"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "nowhere",
            r"reset\(\) gave agent 'a' none: neither infos\['a'\]\['action_mask'\] nor an observation",
        ),
        ("short", "an action mask should be an array of 50 bools, got a list"),
        ("none", "the action mask of agent 0 in a state allows 0 of 50 actions, and action .* was taken"),
    ],
)
def test_wrong_masks_raise_readable_errors(name: str, how: str, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        collected(name, plan(how=how))
