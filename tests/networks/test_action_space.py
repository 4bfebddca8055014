"""Tests of the actions that environments get of a policy's draws."""

import json

import gymnasium
import numpy as np
import pytest

from fastrl.networks.action_space import Actions

BOX = Actions(gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32)))


class TestActions:
    def test_box_is_scaled_to_its_bounds_and_clipped(self):
        draws = np.array([[-1, -1], [0, 0], [1, 1], [-7, 7]], np.float32)
        actions = BOX.to_env(draws)
        assert actions.dtype == np.float32
        assert actions.tolist() == [[-1, 0], [0, 5], [1, 10], [-1, 10]]
        assert BOX.from_env(actions[:3]).tolist() == draws[:3].tolist()

    @pytest.mark.parametrize("axes", [(), (5,), (2, 4)])
    def test_actions_are_those_of_numpy_to_the_bit(self, axes):
        generator = np.random.default_rng(0)
        low = np.float32([-0.3, 1e-3, -np.inf, -7])
        high = np.float32([0.9, 1e7, np.inf, -6.9])
        actions = Actions(gymnasium.spaces.Box(low, high))
        draws = generator.normal(0, 2, (*axes, 4)).astype(np.float32)
        draws[..., 2] = np.inf if axes else np.nan
        expected = np.minimum(np.maximum(draws * actions.scale + actions.middle, low), high)
        for given in (draws, np.asfortranarray(draws)):
            assert np.array_equal(actions.to_env(given), expected, equal_nan=True)

    def test_without_bounds_the_draw_is_the_action(self):
        actions = Actions(gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32))
        assert actions.to_env(np.array([[70.0]], np.float32)).tolist() == [[70]]

    @pytest.mark.parametrize("squash", [False, True])
    def test_a_number_whose_bounds_are_equal_is_drawn_as_zero(self, squash):
        space = gymnasium.spaces.Box(np.float32([-1, 0.1]), np.float32([1, 0.1]))
        actions = Actions(space, squash)
        found = actions.to_env(np.float32([[0, 5], [0, -5]]))
        assert found.tolist() == [[0, space.low[1]]] * 2
        assert actions.from_env(found).tolist() == [[0, 0]] * 2

    @pytest.mark.parametrize("squash", [False, True])
    @pytest.mark.parametrize(
        "space",
        [
            gymnasium.spaces.Discrete(3),
            gymnasium.spaces.MultiDiscrete([3, 2]),
            BOX.space,
            gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        ],
    )
    def test_state_goes_through_json(self, space, squash):
        state = Actions(space, squash).state()
        actions = Actions.from_state(json.loads(json.dumps(state)))
        assert actions.space == space and actions.state() == state
        assert actions.squash == (squash and actions.is_box)

    def test_kinds_say_what_is_drawn_and_what_a_policy_gives(self):
        discrete = Actions(gymnasium.spaces.Discrete(3))
        multi = Actions(gymnasium.spaces.MultiDiscrete([3, 2]))
        assert [each.kind for each in (discrete, multi, BOX)] == ["discrete", "multi_discrete", "box"]
        assert [each.size for each in (discrete, multi, BOX)] == [3, 5, 2]
        assert [each.shape for each in (discrete, multi, BOX)] == [(), (2,), (2,)]
        assert [each.dtype for each in (discrete, multi, BOX)] == [np.int64, np.int64, np.float32]
        assert [each.nvec.tolist() for each in (discrete, multi, BOX)] == [[3], [3, 2], []]

    def test_environments_of_their_own_get_ints_or_arrays_of_their_own(self):
        draws = np.array([2, 0])
        assert [type(each) for each in Actions(gymnasium.spaces.Discrete(3)).to_envs(draws)] == [int, int]
        draws = np.array([[2, 0], [1, 1]])
        first, _ = Actions(gymnasium.spaces.MultiDiscrete([3, 2])).to_envs(draws)
        draws[:] = 0
        assert first.tolist() == [2, 0]

    def test_squashed_draws_stay_within_the_bounds_and_come_back(self):
        actions = Actions(BOX.space, squash=True)
        draws = np.array([[-1, 2], [0, 0], [-90, 90], [np.arctanh(0.5), 0]], np.float32)
        found = actions.to_env(draws)
        assert all(BOX.space.contains(action) for action in found)
        np.testing.assert_allclose(found[1:], [[0, 5], [-1, 10], [0.5, 5]], rtol=1e-6)
        np.testing.assert_allclose(actions.from_env(found)[[0, 1, 3]], draws[[0, 1, 3]], rtol=1e-4, atol=1e-6)
        assert np.isfinite(actions.from_env(found)).all()

    def test_unbounded_numbers_are_not_squashed(self):
        space = gymnasium.spaces.Box(np.float32([-np.inf, -1]), np.float32([5, 1]))
        found = Actions(space, squash=True).to_env(np.array([[70, 70], [-70, -70]], np.float32))
        assert found.tolist() == [[5, 1], [-70, -1]]

    @pytest.mark.parametrize(
        "space",
        [
            gymnasium.spaces.Discrete(3, start=1),
            gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
            gymnasium.spaces.Box(-1, 1, (2,), np.float64),
            gymnasium.spaces.MultiDiscrete([[2, 2]]),
            gymnasium.spaces.MultiDiscrete([2, 2], start=[0, 1]),
            gymnasium.spaces.MultiBinary(2),
        ],
    )
    def test_refuses_other_spaces(self, space):
        with pytest.raises(ValueError, match="actions should be Discrete from 0 on"):
            Actions(space)
