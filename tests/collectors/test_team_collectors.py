"""Collection from environments of many agents: what fragments hold, equal episodes from all collectors, resuming."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from multi_agent_run import plan_of
from team_env import TeamEnv, TeamEnvSpec, by_numbers

from fastrl.collectors.factory import make_collector
from fastrl.collectors.parallel_spec import ParallelSpec
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import packed, unpacked
from fastrl.collectors.synchronous import team_collector
from fastrl.collectors.team_backend import EPISODE_INFO, Difficulty
from fastrl.collectors.team_spec import CompiledTeamSpec
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.networks.team_actor import Member, TeamActor
from fastrl.rollout.fragment import STATE_ARRAYS, last_places
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.utils.seeding import NO_ENV, env_seeds

MERGE = CompiledTeamSpec("fastrl/coop-merge-v0", {"max_agents": 3, "num_agents": 3})
SPREAD_ID = "mpe2.simple_spread_v3:parallel_env"
SPREAD = ParallelSpec(SPREAD_ID, spec=EnvSpec(SPREAD_ID, {"max_cycles": 9}), max_episode_steps=20)


RULES = functools.partial(
    TeamActor, ["rule"] * 3, {"rule": Member(rule=by_numbers)}, Actions(Discrete(3)).state()
)


def test_fragments_are_what_stepping_by_hand_gives():
    env, other = TeamEnv(5, 3), TeamEnv(5, 3)
    with team_collector("sequential", plan_of(env, RULES, 7, seed=4), workers=1) as collector:
        fragments = [collector.collect()[0] for _ in range(1)]
    [fragment] = fragments
    seeds = [env_seeds(4, np.arange(5), np.full(5, number)).tolist() for number in range(9)]
    other.autoreset_mode = env.autoreset_mode
    obs, alive, numbers = np.zeros((15, 3), np.float32), np.zeros(15, np.bool_), np.zeros(5, np.int64)
    other.reset_into(obs, alive, seed=seeds[0])
    for t in range(7):
        np.testing.assert_array_equal(fragment.obs[t], obs.reshape(5, 3, 3))
        np.testing.assert_array_equal(fragment.alive[t], alive.reshape(5, 3))
        actions = np.where(alive, by_numbers(obs, np.arange(15) % 3), 0)
        np.testing.assert_array_equal(fragment.actions[t].ravel(), actions)
        rewards, flags = np.zeros(15, np.float32), np.zeros((2, 15), np.bool_)
        other.step_into(actions, obs, rewards, *flags, alive)
        np.testing.assert_array_equal(fragment.rewards[t].ravel(), rewards)
        np.testing.assert_array_equal(
            [fragment.terminations[t].ravel(), fragment.truncations[t].ravel()], flags
        )
        over = ~alive.reshape(5, 3).any(1)
        np.testing.assert_array_equal(fragment.ends[t], over)
        np.testing.assert_array_equal(fragment.final_obs[t, over], obs.reshape(5, 3, 3)[over])
        numbers += over
        if over.any():
            other.reset_into(
                obs, alive, seed=[seeds[n][i] for i, n in enumerate(numbers.tolist())], reset_mask=over
            )
    np.testing.assert_array_equal(fragment.obs[7], obs.reshape(5, 3, 3))
    assert len(fragment) == 35 and len(fragment.episodes) == numbers.sum() > 0


def test_returns_are_means_over_the_agents_that_took_part():
    env = TeamEnv(4, 3, horizon=3)
    env.set_difficulty(num_agents=2)
    with team_collector("sequential", plan_of(env, RULES, 30), workers=1) as collector:
        [fragment] = collector.collect()
    assert set(fragment.episode_info["num_agents"].tolist()) == {2.0}
    for (env_index, number), total, length in zip(
        fragment.episodes.tolist(), fragment.returns.tolist(), fragment.lengths.tolist(), strict=True
    ):
        ends = np.flatnonzero(fragment.ends[:, env_index])
        last = ends[number]
        rewards = fragment.rewards[last - length + 1 : last + 1, env_index]
        assert total == pytest.approx(rewards.sum() / 2, abs=1e-6)


def test_one_that_is_cut_off_alone_keeps_its_true_last_observation():
    class Leaves(TeamEnv):
        """Agent 0 is truncated with the first step, the episode continues."""

        def step_into(self, actions, obs, rewards, terminations, truncations, alive, final_obs=None):
            super().step_into(actions, obs, rewards, terminations, truncations, alive, final_obs)
            if self.age[0] == 1:
                truncations[0], self.alive[0, 0], alive[0] = True, False, False

    env = Leaves(1, 3)
    with team_collector("sequential", plan_of(env, RULES, 1), workers=1) as collector:
        [fragment] = collector.collect()
    rollout = lay_out([fragment], Rollout(1, 3, 3, 3, many_agents=True))
    assert rollout.cut_off()[0].tolist() == [True, False, False]
    assert rollout.final_obs[0].tolist() == rollout.obs[1].tolist()
    assert rollout.final_obs[0, 0, 1] == np.float32(1 / env.horizon)


def test_an_agent_may_not_vanish():
    class Loses(TeamEnv):
        def step_into(self, *arguments):
            super().step_into(*arguments)
            arguments[5][1] = False

    with (
        team_collector("sequential", plan_of(Loses(1, 3), RULES, 2), workers=1) as collector,
        pytest.raises(CollectError, match="agent 1 of environment 0 was alive and then was not"),
    ):
        collector.collect()


def test_resumed_episodes_keep_the_difficulty_that_they_started_with():
    def started(env):
        return team_collector("sequential", plan_of(env, RULES, 7, seed=1), workers=1)

    env = TeamEnv(4, 3, horizon=4)
    with started(env) as one:
        one.set_difficulty(1, Difficulty(1, 0.0))
        one.collect()
        one.set_difficulty(2, Difficulty(3, 0.5))
        state = unpacked(packed(one.state_dict()))
        [expected] = one.collect()
        expected = dataclasses.replace(expected, obs=expected.obs.copy(), alive=expected.alive.copy())
    assert {len(each.difficulty) for each in state["running"].values()} == {24}
    with started(TeamEnv(4, 3, horizon=4)) as other:
        other.set_difficulty(2, Difficulty(3, 0.5))
        other.load_state_dict(state)
        assert other.state_dict()["running"] == state["running"]
        [found] = other.collect()
        assert not other.report().diverged
    np.testing.assert_array_equal(found.obs, expected.obs)
    np.testing.assert_array_equal(found.alive, expected.alive)
    assert found.episode_info["level"].tolist() == expected.episode_info["level"].tolist()
    assert set(found.episode_info["level"].tolist()) == {1.0, 2.0}


def remembering(obs_space, actions):
    """The actor of policies of which two remember, each other numbers."""
    policies = {
        name: PolicyNetwork(
            obs_space.shape[0],
            actions,
            hidden=(8,),
            memory=memory,
            memory_size=size,
            generator=torch.Generator().manual_seed(size),
        )
        for name, memory, size in (("a", "gru", 6), ("b", "lstm", 4), ("c", "none", 1))
    }
    for policy in policies.values():
        policy.body[-1].weight.data.mul_(300)
    return MultiAgentPolicy(["a", "b", "c"], policies, actions).actor_spec()


def plan_for(spec, unit, memory=False):
    env = spec.make_team(1, workers=1)
    spaces = env.single_observation_space, env.single_action_space
    env.close()
    rules = functools.partial(RULES.func, *RULES.args[:2], Actions(spaces[1]).state())
    return Plan(
        spec,
        remembering(spaces[0], Actions(spaces[1])) if memory else rules,
        *spaces,
        num_envs=4,
        num_agents=3,
        num_steps=25,
        unit=unit,
        episodes=5 if unit == "episodes" else 0,
        seed=7,
        episode_info=EPISODE_INFO,
    )


ARRAYS = (
    "obs",
    "actions",
    "log_probs",
    "rewards",
    "terminations",
    "truncations",
    "final_obs",
    "alive",
    "ends",
)


def contents(fragments):
    """All that fragments hold, in the order of environments."""
    if fragments[0].env_indices[0] == NO_ENV:
        return [{name: getattr(each, name)[: each.num_steps].copy() for name in ARRAYS} for each in fragments]
    found = {
        name: np.concatenate([getattr(each, name)[:25] for each in fragments], axis=1) for name in ARRAYS
    }
    found["final_obs"] = found["final_obs"][last_places(found)]
    if fragments[0].states is not None:
        found |= {name: np.concatenate([getattr(each, name) for each in fragments]) for name in STATE_ARRAYS}
    return [found]


def episodes_of(fragments):
    rows = (np.column_stack([each.episodes, each.returns, each.lengths]) for each in fragments)
    return sorted(np.concatenate(list(rows)).tolist())


COLLECTORS = [("native", {}), ("sync", {"n_workers": 2}), ("executor", {"n_workers": 2})]


@pytest.mark.parametrize("memory", [False, True], ids=["", "memory"])
@pytest.mark.parametrize(
    ("spec", "unit"),
    [
        (MERGE, "steps"),
        pytest.param(MERGE, "episodes", marks=pytest.mark.slow),
        pytest.param(SPREAD, "steps", marks=pytest.mark.slow),
        pytest.param(SPREAD, "episodes", marks=pytest.mark.slow),
    ],
    ids=["compiled-steps", "compiled-episodes", "pettingzoo-steps", "pettingzoo-episodes"],
)
def test_all_collectors_give_the_same_fragments_and_resume_from_each_other(spec, unit, memory):
    if spec is SPREAD:
        pytest.importorskip("mpe2")
    plan = plan_for(spec, unit, memory)

    def collected(name, options, state=None):
        with make_collector(name, plan, **options) as collector:
            if state is not None:
                collector.load_state_dict(state)
            first = collector.collect()
            arrays, episodes = contents(first), episodes_of(first)
            state = unpacked(packed(collector.state_dict()))
            if memory and unit == "steps":
                states = [each.state for each in state["running"].values()]
                assert {len(each) for each in states} == {96} and any(map(any, states))
            second = collector.collect()
            assert not collector.report().failures and not collector.report().diverged
            return [arrays, contents(second)], [episodes, episodes_of(second)], state

    expected, episodes, state = collected("sequential", {})
    for name, options in COLLECTORS if spec is MERGE else COLLECTORS[1:]:
        found = collected(name, options)
        np.testing.assert_equal(found[0], expected)
        assert found[1] == episodes
        np.testing.assert_equal(collected(name, options, state)[0][0], expected[1])
        np.testing.assert_equal(collected("sequential", {}, found[2])[0][0], expected[1])


RAY = pytest.param("ray", {"n_workers": 2}, marks=pytest.mark.slow)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(("name", "options"), [*COLLECTORS, RAY])
def test_episodes_start_with_the_newest_difficulty_in_every_collector(name, options, unit, request):
    """Also where a running episode is resumed by another collector, after the difficulty has changed."""
    if name == "ray":
        request.getfixturevalue("local_ray")
    plan = plan_for(MERGE, unit)

    def collected(name, options, state=None):
        found = []
        with make_collector(name, plan, **options) as collector:
            if state is not None:
                collector.load_state_dict(state)
            for level in (1, 2) if state is None else (2,):
                collector.set_difficulty(level, Difficulty(num_agents=level, density=0.2 * level))
                for _ in range(3):
                    fragments = collector.collect()
                    found.append((contents(fragments), levels_of(fragments)))
                middle = unpacked(packed(collector.state_dict())) if level == 1 else None
                state = state or middle
            assert not collector.report().failures and not collector.report().diverged
        return found, state

    expected, state = collected("sequential", {})
    seen = {level for _, levels in expected[3:] for _, level in levels}
    assert seen == ({1.0, 2.0} if unit == "steps" else {2.0})
    if unit == "steps":
        assert {len(each.difficulty) for each in state["running"].values()} == {24}
    found, other = collected(name, options)
    np.testing.assert_equal(found, expected)
    assert other == state
    np.testing.assert_equal(collected(name, options, state)[0], expected[3:])


def levels_of(fragments):
    """Number of each ended episode, with the level of its difficulty."""
    rows = (zip(each.episodes[:, 1], each.episode_info["level"], strict=True) for each in fragments)
    return sorted((int(number), float(level)) for fragment in rows for number, level in fragment)


@pytest.mark.parametrize(
    ("name", "match"), [("vector", "gymnasium.vector.VectorEnv"), ("native", "is none: choose 'sequential'")]
)
def test_collectors_that_do_not_suit_are_refused(name, match):
    with pytest.raises((ValueError, CollectError), match=match):
        make_collector(name, plan_of(TeamEnv(2, 3), RULES, 2))


def test_masks_are_of_discrete_actions_and_of_environments_that_have_them():
    with pytest.raises(ValueError, match="action_masks are for discrete actions"):
        plan_of(TeamEnv(2, 3, box=True), RULES, 2, action_masks=True)
    env = TeamEnv(2, 3)
    env.num_masked = 0
    with pytest.raises(CollectError, match="action masks were asked for, and it has none"):
        make_collector("sequential", plan_of(env, RULES, 2, action_masks=True))


def test_errors_of_the_environment_are_one_line_with_its_traceback():
    class Raises(TeamEnv):
        def step_into(self, *arguments):
            raise RuntimeError("engine broke")

    spec = TeamEnvSpec("team", env=Raises(1, 3))
    assert not spec.is_compiled
    with (
        team_collector("sequential", plan_of(Raises(1, 3), RULES, 2), workers=1) as collector,
        pytest.raises(RuntimeError, match="engine broke"),
    ):
        collector.collect()
