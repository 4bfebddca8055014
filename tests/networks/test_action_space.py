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

    def test_without_bounds_the_draw_is_the_action(self):
        actions = Actions(gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32))
        assert actions.to_env(np.array([[70.0]], np.float32)).tolist() == [[70]]

    @pytest.mark.parametrize(
        "space",
        [gymnasium.spaces.Discrete(3), BOX.space, gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)],
    )
    def test_state_goes_through_json(self, space):
        actions = Actions.from_state(json.loads(json.dumps(Actions(space).state())))
        assert actions.space == space

    @pytest.mark.parametrize(
        "space",
        [
            gymnasium.spaces.Discrete(3, start=1),
            gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
            gymnasium.spaces.Box(-1, 1, (2,), np.float64),
            gymnasium.spaces.MultiDiscrete([2, 2]),
        ],
    )
    def test_refuses_other_spaces(self, space):
        with pytest.raises(ValueError, match="actions should be Discrete from 0 on"):
            Actions(space)
