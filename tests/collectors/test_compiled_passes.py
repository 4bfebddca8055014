"""Rollouts in compiled passes: the same fragments as from single steps by Python."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from fastrl.collectors.protocol import Difficulty, Plan
from fastrl.collectors.synchronous import LockstepCollector, native_collector, team_collector
from fastrl.collectors.team_backend import EPISODE_INFO
from fastrl.collectors.team_spec import CompiledTeamSpec
from fastrl.collectors.vector_runner import VectorEnvRunner
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.team_actor import Member, TeamActor
from fastrl.rollout.fragment import Fragment

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")

KINDS = {"discrete": "discrete", "box": "gaussian"}


def network(obs_dim: int, actions: Actions, memory: str) -> partial[MlpActor]:
    architecture = {"kind": KINDS[actions.kind], "obs_dim": obs_dim, "outputs": actions.size}
    architecture |= {"hidden": [24], "activation": "tanh"}
    architecture |= {"memory": memory, "memory_size": 0 if memory == "none" else 8}
    return partial(MlpActor, architecture)


def single_plan(env_id: str, memory: str, options: dict[str, Any], **others: Any) -> Plan:
    spec = as_spec(env_id, **options)
    one = spec.make()
    spaces = one.observation_space, one.action_space
    one.close()
    make_actor = network(ObsRows(spaces[0]).size, Actions(ActionRows(spaces[1]).flat_space), memory)
    return Plan(spec, make_actor, *spaces, **{"num_envs": 7, "num_steps": 90, "seed": 7, **others})


def team_plan(env_id: str, memory: str, options: dict[str, Any], **others: Any) -> Plan:
    spec = CompiledTeamSpec(env_id, options)
    one = spec.make_team(1, workers=1)
    spaces, num_agents = (one.obs_space, one.single_action_space), one.num_agents
    obs_dim = one.single_observation_space.shape[0]
    one.close()
    actions = Actions(spaces[1])
    member = Member(network(obs_dim, actions, memory))
    make_actor = partial(TeamActor, ["all"] * num_agents, {"all": member}, actions.state())
    sizes = {"num_envs": 5, "num_steps": 60, "seed": 7}
    return Plan(
        spec, make_actor, *spaces, num_agents=num_agents, episode_info=EPISODE_INFO, **{**sizes, **others}
    )


def expect_same(expected: Fragment, found: Fragment) -> None:
    for name, value in vars(expected).items():
        other = getattr(found, name)
        if name == "final_obs":
            # The rest has no meaning.
            ended = expected.terminations | expected.truncations
            value, other = value[ended], other[ended]
        np.testing.assert_equal(other, value, err_msg=name)
        assert getattr(value, "dtype", int) == getattr(other, "dtype", int)


def expect_passes_like_steps(single: LockstepCollector, passes: LockstepCollector) -> Fragment:
    """Collects from both, of which the first takes single steps; returns the last fragment."""
    assert isinstance(single.runner, VectorEnvRunner)
    single.runner.before_step = lambda t: None
    plan, is_team = single.plan, single.plan.num_agents is not None
    weights = np.random.default_rng(3).normal(0, 0.3, plan.make_actor().weights_nbytes // 4)
    for collector in (single, passes):
        collector.publish(weights.astype(np.float32))
    for level in range(3):
        fragments = []
        for collector in (single, passes):
            if is_team and plan.env.id.startswith("fastrl/coop"):
                collector.set_difficulty(level, Difficulty(3 - level, 0.5 * level))
            fragments.append(collector.collect())
        [[expected], [found]] = fragments
        expect_same(expected, found)
    states = [collector.state_dict() for collector in (single, passes)]
    assert str(states[0]) == str(states[1])
    return expected


@pytest.mark.parametrize("num_threads", [1, 2, 3, 41])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_of_masked_games(num_threads: int, memory: str) -> None:
    # More than one pass; episodes end within and at the end of them.
    options = {"episode_length": 29, "red_agent": "mix"}
    plan = single_plan("fastrl/Cage2-v0", memory, options, num_envs=41, num_steps=450)
    plan = replace(plan, action_masks=True, final_masks=True, episode_info=("red_agent",))
    with (
        native_collector(plan, n_workers=1) as single,
        native_collector(plan, n_workers=num_threads) as passes,
    ):
        expect_passes_like_steps(single, passes)


@pytest.mark.parametrize(
    ("env_id", "memory", "options", "has_masks"),
    [
        ("fastrl/merge-v0", "none", {}, False),
        ("fastrl/roundabout-v0", "gru", {}, True),
        ("fastrl/racetrack-v0", "none", {}, False),
        ("fastrl/ring-v0", "lstm", {"horizon": 40, "warmup_steps": 10}, False),
        ("fastrl/highway-fast-v0", "none", {"config": {"action": {"type": "ContinuousAction"}}}, False),
    ],
)
def test_of_roads(env_id: str, memory: str, options: dict[str, Any], has_masks: bool) -> None:
    plan = single_plan(env_id, memory, options, action_masks=has_masks, final_masks=has_masks)
    with native_collector(plan, n_workers=1) as single, native_collector(plan, n_workers=3) as passes:
        assert len(expect_passes_like_steps(single, passes).episodes)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    ("env_id", "memory", "options", "has_masks"),
    [
        ("fastrl/coop-merge-v0", "none", {"max_agents": 3}, False),
        (
            "fastrl/coop-merge-v0",
            "gru",
            {"max_agents": 3, "action_type": "continuous", "duration": 4.0},
            False,
        ),
        ("fastrl/coop-highway-v0", "none", {"max_agents": 3, "duration": 10.0}, False),
        ("fastrl/ring-v0", "none", {"num_agents": 2, "horizon": 40, "warmup_steps": 10}, False),
        ("fastrl/v2x-resource-v0", "none", {"time_budget": 25}, False),
        ("fastrl/lights-v0", "none", {"net": "arterial", "duration": 50}, False),
        ("fastrl/intersection-multi-agent-v1", "gru", {}, True),
    ],
)
def test_of_many_agents(
    env_id: str, memory: str, options: dict[str, Any], has_masks: bool, num_threads: int
) -> None:
    plan = team_plan(env_id, memory, options, action_masks=has_masks)
    with (
        team_collector("native", plan, workers=1) as single,
        team_collector("native", plan, workers=num_threads) as passes,
    ):
        fragment = expect_passes_like_steps(single, passes)
    assert len(fragment.episodes)
    assert not np.isnan(fragment.episode_info["num_agents"]).any()


def test_of_a_network_for_other_actions() -> None:
    spec = EnvSpec("fastrl/racetrack-v0")
    plan = single_plan(spec.id, "none", {})
    two = partial(MlpActor, {**plan.make_actor.args[0], "outputs": 2})
    with native_collector(replace(plan, make_actor=two), n_workers=1) as collector:
        collector.publish(np.zeros(two().weights_nbytes // 4, np.float32))
        with pytest.raises(ValueError, match="expected an actor of 288 inputs and 1 outputs"):
            collector.collect()
