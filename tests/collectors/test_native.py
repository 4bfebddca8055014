import numpy as np
import pytest
from fake_env import Bandit, Constant, Corridor
from gymnasium.vector import AutoresetMode

from fastrl.collectors.native import NativeCollector
from fastrl.rollout.rollout import Rollout
from fastrl.utils.timer import Stopwatch


def collector_for(env, num_steps=7, masks=False, seed=0):
    """A collector that acts at random."""
    num_actions = int(env.single_action_space.n)
    rollout = Rollout(
        num_steps, env.num_envs, env.single_observation_space.shape[0], num_actions, masks=masks
    )
    rng = np.random.default_rng(seed)

    def act(rollout, t):
        rollout.actions[t] = rng.integers(num_actions, size=env.num_envs)

    return NativeCollector(env, rollout, act, seeds=list(range(env.num_envs)))


def test_rollouts_go_on_where_the_last_one_ended():
    collector = collector_for(Bandit(stagger=True))
    collector.collect(Stopwatch())
    last = collector.rollout.obs[-1].copy()
    collector.collect(Stopwatch())
    np.testing.assert_array_equal(collector.rollout.obs[0], last)


def test_resets_once_with_the_seeds_it_was_given():
    env = Bandit(num_envs=3)
    collector = collector_for(env)
    collector.collect(Stopwatch())
    assert env.seeds == [0, 1, 2]
    env.seeds = None
    collector.collect(Stopwatch())
    assert env.seeds is None


@pytest.mark.parametrize("num_steps", [1, 7, 40])
def test_episode_statistics(num_steps):
    """Against sums over the recorded rewards."""
    env = Corridor(num_envs=5, length=3, episode_length=9, stagger=True)
    collector = collector_for(env, num_steps)
    sums, lengths = np.zeros(5), np.zeros(5, int)
    for _ in range(80 // num_steps):
        stats = collector.collect(Stopwatch())
        assert stats.steps == num_steps * 5
        expected_returns, expected_lengths = [], []
        rollout = collector.rollout
        for t in range(num_steps):
            sums += rollout.rewards[t]
            lengths += 1
            for i in np.flatnonzero(rollout.terminations[t] | rollout.truncations[t]):
                expected_returns.append(sums[i])
                expected_lengths.append(lengths[i])
                sums[i], lengths[i] = 0, 0
        assert stats.episodes == len(expected_returns)
        assert stats.returns.tolist() == expected_returns
        assert stats.lengths.tolist() == expected_lengths
        assert stats.red_agents is None


def test_red_agents_are_those_of_the_episode_that_ended():
    class WithRedAgents(Bandit):
        """Red agent 0 in the first episode of environment i plus i, one more in each later one."""

        def reset_into(self, obs, **kwargs):
            self.red = np.arange(self.num_envs, dtype=np.uint8)
            super().reset_into(obs, **kwargs)

        def step_into(self, actions, obs, rewards, terminations, truncations, final_obs=None):
            super().step_into(actions, obs, rewards, terminations, truncations, final_obs)
            self.red[truncations] += 1

        def red_agents(self):
            return self.red

    collector = collector_for(WithRedAgents(num_envs=2, episode_length=3), num_steps=7)
    assert collector.collect(Stopwatch()).red_agents.tolist() == [0, 1, 1, 2]
    assert collector.collect(Stopwatch()).red_agents.tolist() == [2, 3, 3, 4]


def test_final_obs_and_next_obs_are_told_apart():
    collector = collector_for(Constant(num_envs=2, episode_length=3), num_steps=6)
    collector.collect(Stopwatch())
    rollout = collector.rollout
    assert rollout.obs[:, 0, 0].tolist() == [3, 1, 1, 3, 1, 1, 3]
    assert rollout.final_obs[[2, 5], :, 0].tolist() == [[5, 5], [5, 5]]
    assert rollout.truncations[:, 0].tolist() == [False, False, True] * 2
    assert not rollout.terminations[:, 0].any()
    assert rollout.terminations[:, 1].tolist() == [False, False, True] * 2


def test_masks_are_those_of_the_observations():
    env = Bandit(masked=True)
    collector = collector_for(env, masks=True)
    env_masks = []
    act = collector.act

    def act_and_note(rollout, t):
        env_masks.append(env.action_masks())
        act(rollout, t)
        rollout.actions[t] = env_masks[-1].argmax(1)

    collector.act = act_and_note
    collector.collect(Stopwatch())
    np.testing.assert_array_equal(collector.rollout.masks[:-1], env_masks)
    np.testing.assert_array_equal(collector.rollout.masks[-1], env.action_masks())


def test_refuses_forbidden_actions():
    collector = collector_for(Bandit(masked=True), masks=True)
    with pytest.raises(
        ValueError, match=r"allowed 3 of 6 actions to environment \d+ and action \d was not one"
    ):
        collector.collect(Stopwatch())


@pytest.mark.parametrize("stagger", [False, True])
def test_saved_and_restored_it_goes_on_exactly(stagger):
    envs = [Corridor(stagger=stagger), Corridor(stagger=stagger)]
    first, second = (collector_for(env) for env in envs)
    first.collect(Stopwatch())
    first.collect(Stopwatch())
    second.load_state_dict(first.state_dict())
    first.env.save_state()
    envs[1].load_state(envs[0].save_state())
    for collector in (first, second):
        rng = np.random.default_rng(3)

        def act(rollout, t, rng=rng):
            rollout.actions[t] = rng.integers(2, size=rollout.num_envs)

        collector.act = act
    for _ in range(6):
        a, b = first.collect(Stopwatch()), second.collect(Stopwatch())
        np.testing.assert_array_equal(a.returns, b.returns)
        np.testing.assert_array_equal(a.lengths, b.lengths)
        for name in ("obs", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(first.rollout, name), getattr(second.rollout, name))


def test_state_before_the_first_collection_is_that_of_a_new_collector():
    first, second = collector_for(Bandit()), collector_for(Bandit())
    second.load_state_dict(first.state_dict())
    first.collect(Stopwatch())
    second.collect(Stopwatch())
    np.testing.assert_array_equal(first.rollout.obs, second.rollout.obs)


def test_refuses_the_state_of_other_sizes():
    small, large = collector_for(Bandit(num_envs=2)), collector_for(Bandit(num_envs=3))
    small.collect(Stopwatch())
    with pytest.raises(ValueError, match=r"saved state has observations \[2, 4\], this run \[3, 4\]"):
        large.load_state_dict(small.state_dict())


def test_refuses_an_environment_of_other_sizes():
    with pytest.raises(
        ValueError, match=r"rollout holds observations \[2, 4\] a step, the environment gives \[3, 4\]"
    ):
        NativeCollector(Bandit(num_envs=3), Rollout(5, 2, 4, 6), lambda rollout, t: None, seeds=[0, 1])


def test_refuses_other_autoreset_modes():
    env = Bandit()
    env.autoreset_mode = AutoresetMode.NEXT_STEP
    with pytest.raises(ValueError, match="autoreset_mode='same_step'"):
        collector_for(env)


def test_refuses_masks_where_there_are_none():
    class WithoutMasks(Bandit):
        action_masks = None

    with pytest.raises(ValueError, match=r"no action_masks\(\)"):
        collector_for(WithoutMasks(), masks=True)


def test_time_goes_to_its_parts():
    watch = Stopwatch()
    collector_for(Bandit()).collect(watch)
    assert set(watch.seconds) == {"inference", "environment", "buffer"}
