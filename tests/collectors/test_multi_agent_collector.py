"""Collection from environments of many agents: the contents of rollouts, exact continuation."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from team_env import TeamEnv

from fastrl.collectors.multi_agent import MultiAgentCollector
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.utils.timer import Stopwatch


def random_actions(seed=0):
    rng = np.random.default_rng(seed)

    def act(rollout, t):
        rollout.actions[t] = rng.integers(0, 3, rollout.num_rows)
        return rollout.actions[t]

    return act


def rollout_for(env, num_steps=7):
    return MultiAgentRollout(num_steps, env.num_envs * env.num_agents, 3, env.single_action_space)


def collector_for(env, seed=0):
    return MultiAgentCollector(env, random_actions(seed), list(range(env.num_envs)))


def test_the_rollout_is_what_stepping_by_hand_gives():
    env, other = TeamEnv(5, 3), TeamEnv(5, 3)
    collector, rollout = collector_for(env), rollout_for(env)
    act = random_actions()
    obs, alive = np.empty((15, 3), np.float32), np.empty(15, np.bool_)
    other.reset_into(obs, alive, seed=list(range(5)))
    for _ in range(3):
        collector.collect(rollout, Stopwatch())
        for t in range(7):
            np.testing.assert_array_equal(rollout.obs[t], obs)
            np.testing.assert_array_equal(rollout.alive[t], alive)
            scratch = MultiAgentRollout(1, 15, 3, env.single_action_space)
            step = (scratch.rewards[0], scratch.terminations[0], scratch.truncations[0])
            other.step_into(act(scratch, 0), obs, *step, alive, scratch.final_obs[0])
            np.testing.assert_array_equal(rollout.rewards[t], step[0])
            np.testing.assert_array_equal(rollout.terminations[t], step[1])
            np.testing.assert_array_equal(rollout.truncations[t], step[2])
            cut = rollout.cut_off()[t]
            np.testing.assert_array_equal(rollout.final_obs[t, cut], scratch.final_obs[0, cut])
        np.testing.assert_array_equal(rollout.obs[7], obs)


def test_one_that_is_cut_off_alone_keeps_its_true_last_observation():
    class Leaves(TeamEnv):
        """Agent 0 is truncated with the first step, the episode continues."""

        def step_into(self, actions, obs, rewards, terminations, truncations, alive, final_obs=None):
            super().step_into(actions, obs, rewards, terminations, truncations, alive, final_obs)
            if self.age[0] == 1:
                truncations[0], self.alive[0, 0], alive[0] = True, False, False

    env = Leaves(1, 2)
    env.reset_into(*(np.empty((2, 3), np.float32), np.empty(2, np.bool_)), seed=[0])
    collector, rollout = MultiAgentCollector(env, stays, [4]), rollout_for(env, 1)
    collector.collect(rollout, Stopwatch())
    assert rollout.cut_off()[0].tolist() == [True, False]
    assert rollout.final_obs[0].tolist() == rollout.obs[1].tolist()
    assert rollout.final_obs[0, 0, 1] == 1 / env.horizon


def stays(rollout, t):
    return np.ones(rollout.num_rows, np.int64)


def test_resumes_where_another_stood():
    env = TeamEnv(3, 2)
    collector, rollout = collector_for(env), rollout_for(env)
    collector.collect(rollout, Stopwatch())
    state, env_state = collector.state_dict(), env.save_state()
    collector.act = random_actions(1)
    collector.collect(rollout, Stopwatch())
    other_env = TeamEnv(3, 2)
    other, other_rollout = collector_for(other_env), rollout_for(other_env)
    assert other.state_dict() == {}
    other_env.load_state(env_state)
    other.load_state_dict(state)
    other.act = random_actions(1)
    other.collect(other_rollout, Stopwatch())
    np.testing.assert_array_equal(other_rollout.obs, rollout.obs)
    other.load_state_dict({})
    assert other.state_dict() == {}


def test_refuses_another_autoreset_mode():
    env = TeamEnv(2, 2)
    env.autoreset_mode = AutoresetMode.NEXT_STEP
    with pytest.raises(ValueError, match="autoreset_mode='same_step'"):
        collector_for(env)


def test_refuses_another_number_of_seeds():
    with pytest.raises(ValueError, match="a seed for each of 2 environments, got 1"):
        MultiAgentCollector(TeamEnv(2, 2), stays, [1])


def test_refuses_a_rollout_of_another_size():
    env = TeamEnv(2, 2)
    with pytest.raises(ValueError, match=r"\[4, 5\] a step, the environment gives \[4, 3\]"):
        collector_for(env).collect(MultiAgentRollout(1, 4, 5, gymnasium.spaces.Discrete(3)), Stopwatch())


def test_refuses_the_state_of_another_size():
    with pytest.raises(ValueError, match=r"observations \[9, 3\], this run \[4, 3\]"):
        collector_for(TeamEnv(2, 2)).load_state_dict({"obs": torch.zeros(9, 3)})


def test_an_agent_may_not_vanish():
    class Loses(TeamEnv):
        def step_into(self, *arguments):
            super().step_into(*arguments)
            arguments[5][1] = False

    env = Loses(1, 3)
    with pytest.raises(ValueError, match="row 1 was alive and then was not"):
        MultiAgentCollector(env, stays, [0]).collect(rollout_for(env, 2), Stopwatch())
