import numpy as np
import pytest
import torch

from fastrl.rollout.rollout import Rollout, discounted_sums


def test_shapes_and_dtypes():
    rollout = Rollout(5, 3, 4, 7, masks=True)
    expected = {
        "obs": ((6, 3, 4), np.float32),
        "actions": ((5, 3), np.int64),
        "log_probs": ((5, 3), np.float32),
        "rewards": ((5, 3), np.float32),
        "terminations": ((5, 3), np.bool_),
        "truncations": ((5, 3), np.bool_),
        "final_obs": ((5, 3, 4), np.float32),
        "values": ((6, 3), np.float32),
        "final_values": ((5, 3), np.float32),
        "advantages": ((5, 3), np.float32),
        "returns": ((5, 3), np.float32),
        "masks": ((6, 3, 7), np.bool_),
        "groups": ((6, 3), np.int64),
        "memories": ((6, 3, 0), np.float32),
        "final_memories": ((5, 3, 0), np.float32),
    }
    assert rollout.tensors.keys() == expected.keys()
    for name, (shape, dtype) in expected.items():
        array = getattr(rollout, name)
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array[-1].flags.c_contiguous
    assert len(rollout) == 15


def test_tensors_share_memory_with_arrays():
    rollout = Rollout(5, 3, 4, 7)
    rollout.obs[2, 1, 0] = 8
    assert rollout.tensors["obs"][2, 1, 0] == 8
    rollout.tensors["actions"][1] = torch.tensor([4, 5, 6])
    assert rollout.actions[1].tolist() == [4, 5, 6]


def test_masks_are_kept_only_if_asked_for():
    rollout = Rollout(5, 3, 4, 7)
    assert rollout.masks is None
    assert "masks" not in rollout.tensors


def test_advantages_of_scaled_rewards():
    rollout = Rollout(3, 2, 1, 2)
    rollout.rewards[:] = [[1, 2], [3, 4], [5, 6]]
    rollout.values[:] = [[0, 0], [0, 0], [0, 0], [10, 20]]
    rollout.truncations[1, 1] = True
    rollout.final_values[1, 1] = 100
    rollout.compute_advantages(gamma=0.5, gae_lambda=1.0, reward_scale=2.0)
    assert rollout.rewards[0, 0] == 1  # rewards themselves stay as they came
    np.testing.assert_allclose(rollout.returns[:, 0], [2 + 0.5 * (6 + 0.5 * 15), 6 + 0.5 * 15, 10 + 5])
    np.testing.assert_allclose(rollout.returns[:, 1], [4 + 0.5 * (8 + 50), 8 + 50, 12 + 10])


@pytest.mark.parametrize("method", ["compute_advantages", "compute_vtrace"])
def test_clipped_rewards(method):
    """They are clipped after they are scaled."""
    results = []
    for rewards, options in (([1, -5, 3], {"reward_scale": 2.0, "reward_clip": 4.0}), ([2, -4, 4], {})):
        rollout = Rollout(3, 1, 1, 2)
        rollout.rewards[:, 0] = rewards
        ratios = [np.zeros((3, 1), np.float32)] if method == "compute_vtrace" else []
        extra = {} if ratios else {"gae_lambda": 0.5}
        getattr(rollout, method)(*ratios, gamma=0.5, **extra, **options)
        results.append((rollout.advantages.tolist(), rollout.returns.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("masks", [False, True])
def test_groups_are_of_equal_observations(masks):
    rng = np.random.default_rng(0)
    rollout = Rollout(20, 7, 3, 2, masks=masks)
    rollout.obs[:] = rng.integers(2, size=rollout.obs.shape)
    if masks:
        rollout.masks[:] = rng.integers(2, size=rollout.masks.shape)
    rollout.find_groups()
    assert len(rollout.distinct_obs()) == 8
    np.testing.assert_array_equal(rollout.distinct_obs()[rollout.groups], rollout.obs)


@pytest.mark.parametrize(("values", "merged"), [(10**9, False), (200_000, False), (3000, True), (1, True)])
@pytest.mark.parametrize("num_rows", [1, 8, 250, 256])
def test_equal_observations_are_merged_where_they_repeat(num_rows, values, merged):
    rollout = Rollout(20_000 // num_rows, num_rows, 2, 2)
    rollout.obs[:] = np.random.default_rng(1).integers(values, size=(*rollout.obs.shape[:2], 1))
    rollout.find_groups()
    obs = rollout.distinct_obs()
    assert (len(obs) < rollout.groups.size) == merged
    np.testing.assert_array_equal(obs[rollout.groups], rollout.obs)
    first = rollout.groups.copy()
    rollout.find_groups()
    np.testing.assert_array_equal(rollout.groups, first)


def test_few_observations_that_go_through_the_network_together_repeat_less():
    rollout = Rollout(200, 100, 1, 2)
    rollout.obs[:] = np.random.default_rng(1).integers(3000, size=rollout.obs.shape)
    rollout.find_groups(together=100)
    assert len(rollout.distinct_obs()) == rollout.groups.size
    rollout.find_groups(together=10**6)
    assert len(rollout.distinct_obs()) < 3001
    rollout.find_groups(merge=False)
    assert len(rollout.distinct_obs()) == rollout.groups.size


def test_cut_off_is_truncated_and_not_terminated():
    rollout = Rollout(1, 4, 1, 2)
    rollout.terminations[0] = [False, False, True, True]
    rollout.truncations[0] = [False, True, False, True]
    assert rollout.cut_off().tolist() == [[False, True, False, False]]


@pytest.mark.parametrize(
    ("sizes", "name"), [((0, 3, 4), "num_steps"), ((5, 0, 4), "num_rows"), ((5, 3, 0), "obs_dim")]
)
def test_refuses_empty_sizes(sizes, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Rollout(*sizes, 7)


@pytest.mark.parametrize("num_steps", [1, 2, 30])
def test_discounted_sums_are_the_obvious_loop(num_steps):
    rng = np.random.default_rng(num_steps)
    rewards = rng.normal(size=(num_steps, 4)).astype(np.float32)
    ended = rng.random((num_steps, 4)) < 0.3
    before = sums = rng.normal(size=4).astype(np.float32)
    expected = []
    for t in range(num_steps):
        sums = 0.9 * sums + rewards[t]
        expected.append(sums)
        sums = np.where(ended[t], 0, sums)
    np.testing.assert_allclose(discounted_sums(rewards, ended, before, 0.9), expected, rtol=1e-5)
