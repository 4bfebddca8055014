"""Uniform and prioritized samplers of fastrl.replay: probabilities, weights and bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.replay import MixedSampler, PrioritizedSampler, Replay, UniformSampler


def filled(count, num_envs=1, capacity=None):
    """Steps of one endless episode in each environment; actions count all of them up from 0."""
    replay = Replay(capacity or count, (1,), num_envs=num_envs)
    add(replay, 0, count)
    return replay


def add(replay, first, count):
    for number in range(first, first + count):
        env, step = number % replay.num_envs, number // replay.num_envs
        obs = np.full(1, step, np.float32)
        replay.add(obs, number, 1.0, obs + 1, False, False, env)


def handles(replay):
    """Indices of all that is stored, by action."""
    batch = UniformSampler(replay, len(replay), replacement=False).sample()
    return dict(zip(batch.actions.tolist(), batch.indices.tolist(), strict=True))


def chi_square(counts, shares):
    expected = counts.sum() * shares / shares.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("replacement", [True, False])
def test_uniform_draws_are_uniform(replacement):
    """Over rings of different lengths, one of which has wrapped around."""
    replay = filled(60, num_envs=3)
    add(replay, 60, 21)
    for number in range(30):
        replay.add(
            np.full(1, 500 + number, np.float32), 1000 + number, 0.0, np.zeros(1, np.float32), True, False
        )
    names = sorted(handles(replay))
    sampler = UniformSampler(replay, 10, replacement=replacement, seed=11)
    counts = dict.fromkeys(names, 0)
    for _ in range(10_000):
        for action in sampler.sample().actions.tolist():
            counts[action] += 1
    assert len(names) == 50
    found = chi_square(np.array(list(counts.values())), np.ones(50))
    # 49 degrees of freedom; without replacement the variance is (1 - 9/49) of that.
    assert found < 86
    assert found > 15


def test_without_replacement_no_transition_repeats():
    replay = filled(40)
    for size in (1, 7, 39, 40):
        sampler = UniformSampler(replay, size, replacement=False, seed=2)
        for _ in range(50):
            assert len(set(sampler.sample().indices.tolist())) == size
    with pytest.raises(ValueError, match="41 transitions without replacement from 40"):
        UniformSampler(replay, 41, replacement=False).sample()
    assert len(UniformSampler(replay, 41).sample().actions) == 41


def test_a_seed_fixes_the_batches_and_a_state_restores_them():
    replay = filled(100)
    draws = [UniformSampler(replay, 8, seed=seed) for seed in (1, 1, 2)]
    batches = [torch.cat([sampler.sample().actions.clone() for _ in range(5)]) for sampler in draws]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    draws[2].load_state_dict(draws[0].state_dict())
    assert torch.equal(draws[0].sample().actions, draws[2].sample().actions)


@pytest.mark.parametrize("replacement", [True, False])
def test_several_batches_are_those_of_as_many_draws(replacement):
    draws = [UniformSampler(filled(100, 3), 8, n_step=3, replacement=replacement, seed=1) for _ in range(2)]
    for count in (3, 1, 5, 3):
        several, expected = draws[0].sample_several(count), [draws[1].sample() for _ in range(count)]
        assert several.count == count and len(several.actions) == 8 * count
        for part, rows in zip(several.parts, several.actions.split(8), strict=True):
            assert torch.equal(part.actions, rows)
        # Of the draws one by one the last three are still there.
        for part, other in zip(several.parts[-3:], expected[-3:], strict=True):
            for name, value in vars(other).items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(getattr(part, name), value), name
    assert draws[0].state_dict() == draws[1].state_dict()
    with pytest.raises(TypeError, match="MixedSampler draws one batch at a time"):
        MixedSampler(*draws).sample_several(2)


def test_batches_do_not_change_until_two_more_were_drawn():
    sampler = UniformSampler(filled(1000), 32)
    first = sampler.sample()
    kept = first.actions.clone()
    sampler.sample()
    sampler.sample()
    assert torch.equal(first.actions, kept)
    assert sampler.sample().actions.data_ptr() == first.actions.data_ptr()


def test_prioritized_draws_are_proportional():
    replay = filled(50, num_envs=2)
    sampler = PrioritizedSampler(replay, 10, alpha=0.5, seed=5)
    index = handles(replay)
    priorities = np.arange(1.0, 51) ** 2
    sampler.update_priorities(np.array([index[action] for action in range(50)]), priorities)
    counts = np.zeros(50)
    for _ in range(10_000):
        np.add.at(counts, sampler.sample().actions.numpy(), 1)
    # One draw from each of ten parts varies less than free draws: below the 99.9% of those, 85.
    assert chi_square(counts, priorities**0.5) < 85
    assert abs(counts[49] / counts.sum() - 50 / 1275) < 0.002


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 100)), max_size=12), min_size=1, max_size=8),
    st.integers(2, 20),
    st.integers(1, 2),
    st.sampled_from(["batch", "buffer"]),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_prioritized_is_a_dict_of_priorities(rounds, capacity, num_envs, normalize, alpha, beta):
    """Priorities by transition, new ones with the highest; weights as the paper has them."""
    replay = Replay(capacity, (1,), num_envs=num_envs)
    sampler = PrioritizedSampler(replay, 16, alpha=alpha, beta=beta, normalize=normalize, seed=3)
    model, index, highest, written, stale = {}, {}, 1.0, 0, 0
    for updates in rounds:
        add(replay, written, 4)
        written += 4
        there = handles(replay)
        index |= there
        model = {action: model.get(action, highest) for action in there}
        updates = [(action, priority) for action, priority in updates if action in index]
        for action, priority in updates:
            if action in model:
                model[action] = max(priority**alpha, 1e-300)
                highest = max(highest, model[action])
            else:
                stale += 1
        at = np.array([index[action] for action, _ in updates], np.int64)
        sampler.update_priorities(at, np.array([priority for _, priority in updates], np.float64))
        assert sampler.stale == stale
        batch = sampler.sample()
        state = sampler.state_dict()
        leaves = state["priorities"].numpy()
        assert state["highest"] == pytest.approx(highest)
        assert sorted(leaves[leaves > 0]) == pytest.approx(sorted(model.values()))
        drawn = np.array([model[action] for action in batch.actions.tolist()])
        probabilities = drawn / sum(model.values())
        weights = (len(model) * probabilities) ** -beta
        above = [value for value in model.values() if value > 1e-300] or [1e-300]
        least = min(above) if normalize == "buffer" else drawn.min()
        most = (len(model) * least / sum(model.values())) ** -beta
        assert batch.weights.numpy() == pytest.approx(np.minimum(weights / most, 1), rel=1e-5)
        assert batch.weights.max() <= 1


def test_priority_zero_is_allowed_and_not_lost():
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 10, alpha=1.0)
    index = handles(replay)
    everything = np.array(list(index.values()))
    sampler.update_priorities(everything, np.zeros(10))
    # All of them 0: still a sum, and all alike.
    assert sorted(sampler.sample().actions.tolist()) == list(range(10))
    sampler.update_priorities(everything[:1], np.ones(1))
    assert set(sampler.sample().indices.tolist()) == {int(everything[0])}
    sampler.update_priorities(everything, np.ones(10))
    assert sorted(sampler.sample().actions.tolist()) == list(range(10))
    assert sampler.stale == 0


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_one_priority_of_zero_leaves_the_weights_of_the_others(normalize):
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 200, alpha=1.0, beta=0.5, normalize=normalize)
    everything = np.array(list(handles(replay).values()))
    sampler.update_priorities(everything, np.array([0.0] + [1.0] * 5 + [4.0] * 4))
    assert set(sampler.sample().weights.tolist()) == {1.0, 0.5}
    sampler.update_priorities(everything, np.zeros(10))
    assert set(sampler.sample().weights.tolist()) == {1.0}


def test_priorities_without_bounds_leave_a_finite_sum():
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 10, alpha=3.0, beta=1.0, normalize="buffer")
    index = np.array(list(handles(replay).values()))
    sampler.update_priorities(index, np.array([1e300] * 5 + [1e-300] * 5))
    for _ in range(20):
        batch = sampler.sample()
        assert set(batch.indices.tolist()) == set(index[:5].tolist())
        assert torch.isfinite(batch.weights).all()
    add(replay, 10, 5)
    assert len(sampler.sample().actions) == 10


priorities = st.one_of(
    st.just(0.0),
    st.floats(0, 10),
    st.floats(1e-300, 1e290),
    st.builds(lambda exponent: 10.0**exponent, st.integers(-300, 290)),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(2, 700), st.integers(1, 40))
def test_draws_and_weights_over_all_magnitudes(data, capacity, batch_size):
    """Against cumulative sums: draw i lies in part i of the sum, and never where nothing is stored."""
    replay = filled(data.draw(st.integers(1, capacity)), capacity=capacity)
    sampler = PrioritizedSampler(replay, batch_size, alpha=1.0, beta=1.0, normalize="buffer")
    index = np.array(list(handles(replay).values()))
    for _ in range(data.draw(st.integers(1, 4))):
        updates = data.draw(st.lists(st.tuples(st.sampled_from(index.tolist()), priorities), max_size=30))
        at, new = np.array([i for i, _ in updates], np.int64), np.array([value for _, value in updates])
        sampler.update_priorities(at, new.astype(np.float64))
        leaves = sampler.state_dict()["priorities"].numpy()
        batch = sampler.sample()
        found = batch.indices.numpy() & ((1 << (len(leaves) - 1).bit_length()) - 1)
        assert (leaves[found] > 0).all()
        ends = np.cumsum(leaves)
        total, parts = ends[-1], np.arange(batch_size + 1) / batch_size * ends[-1]
        assert (parts[:-1] <= ends[found] + 1e-12 * total).all()
        assert (parts[1:] >= ends[found] - leaves[found] - 1e-12 * total).all()
        above = leaves[leaves > 1e-300]
        expected = np.minimum((above.min() if len(above) else 1e-300) / leaves[found], 1)
        assert batch.weights.numpy() == pytest.approx(expected, rel=1e-5, abs=1e-38)


def test_tiny_priorities_behind_large_ones_lead_nowhere_else():
    """Sums in float32 would lead past the end, or to a row that holds no transition."""
    count = 20_000
    replay = filled(count, capacity=2 * count + 3)
    sampler = PrioritizedSampler(replay, 50_000, alpha=1.0)
    index = np.array(list(handles(replay).values()))
    sampler.update_priorities(index, np.where(np.arange(count) % 500, 1e-9, 1e7))
    leaves = sampler.state_dict()["priorities"].numpy()
    for _ in range(3):
        found = sampler.sample().indices.numpy() & ((1 << (len(leaves) - 1).bit_length()) - 1)
        assert found.max() < count
        assert (leaves[found] > 0).all()


def test_sums_do_not_drift():
    """After many changes of all magnitudes each of equal priorities is drawn from its own part of the sum."""
    replay = filled(1000)
    sampler = PrioritizedSampler(replay, 1000, alpha=1.0)
    index = np.array(list(handles(replay).values()))
    rng = np.random.default_rng(1)
    for _ in range(2000):
        sampler.update_priorities(rng.choice(index, 64), rng.random(64) * 10.0 ** rng.integers(-9, 9))
    sampler.update_priorities(index, np.full(1000, 0.125))
    assert sorted(sampler.sample().actions.tolist()) == list(range(1000))


def test_stale_indices_of_overwritten_items_are_rejected():
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 4, alpha=1.0)
    old = handles(replay)
    before = sampler.state_dict()["priorities"].clone()
    add(replay, 10, 11)  # a whole turn of the ring: each row holds another transition
    sampler.update_priorities(np.array(list(old.values())), np.full(10, 99.0))
    assert sampler.stale == 10
    after = sampler.state_dict()
    assert after["highest"] == 1.0
    assert after["priorities"].max() == 1.0
    assert before.sum() == after["priorities"].sum()


def test_the_last_priority_of_a_transition_counts():
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 4, alpha=1.0)
    index = handles(replay)
    sampler.update_priorities(np.array([index[3], index[4], index[3]]), np.array([5.0, 2.0, 7.0]))
    priorities = sampler.state_dict()["priorities"]
    assert sorted(priorities.tolist())[-2:] == [2.0, 7.0]
    assert priorities.sum() == 8 + 2 + 7


@pytest.mark.parametrize(
    ("indices", "priorities", "error"),
    [
        (None, [1.0, np.nan], ValueError),
        (None, [1.0, -1.0], ValueError),
        (None, [1.0, np.inf], ValueError),
        (None, [1.0], ValueError),
        (None, ["a", "b"], TypeError),
        ([0, -1], [1.0, 1.0], IndexError),
        ([0, 15], [1.0, 1.0], IndexError),
        ([0.5, 1.5], [1.0, 1.0], TypeError),
        ([[0, 1]], [[1.0, 1.0]], ValueError),
    ],
)
def test_bad_updates_change_nothing(indices, priorities, error):
    replay = filled(10)
    sampler = PrioritizedSampler(replay, 2)
    batch = sampler.sample()
    sampler.update_priorities(batch.indices, torch.tensor([0.5, 0.25]))
    before = sampler.state_dict()
    with pytest.raises(error):
        sampler.update_priorities(
            batch.indices if indices is None else np.array(indices), np.array(priorities)
        )
    after = sampler.state_dict()
    assert torch.equal(before.pop("priorities"), after.pop("priorities"))
    assert before == after


@pytest.mark.parametrize("sampler", [UniformSampler, PrioritizedSampler])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": -3}, ValueError),
        ({"batch_size": 2.0}, TypeError),
        ({"n_step": 0}, ValueError),
        ({"n_step": 1.5}, TypeError),
        ({"gamma": 1.1}, ValueError),
        ({"gamma": -0.1}, ValueError),
        ({"gamma": np.nan}, ValueError),
        ({"seed": -1}, ValueError),
        ({"seed": "a"}, TypeError),
        ({"replay": None}, TypeError),
    ],
)
def test_bad_arguments_of_samplers(sampler, options, error):
    arguments = {"replay": filled(5), "batch_size": 2, **options}
    with pytest.raises(error):
        sampler(arguments.pop("replay"), arguments.pop("batch_size"), **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -1.0},
        {"alpha": np.nan},
        {"alpha": np.inf},
        {"beta": -0.5},
        {"beta": np.nan},
        {"normalize": "max"},
    ],
)
def test_bad_arguments_of_the_prioritized_sampler(options):
    with pytest.raises(ValueError):
        PrioritizedSampler(filled(5), 2, **options)


def test_beta_may_be_set_and_is_checked():
    sampler = PrioritizedSampler(filled(5), 2)
    sampler.beta = 1.0
    assert sampler.beta == 1.0
    for beta in (-1.0, np.nan, np.inf):
        sampler.beta = beta
        with pytest.raises(ValueError, match="beta"):
            sampler.sample()


def test_states_of_another_storage_are_refused():
    sampler = PrioritizedSampler(filled(10), 2)
    other = PrioritizedSampler(filled(5), 2).state_dict()
    before = sampler.state_dict()
    for state in (
        other,
        {**before, "highest": float("nan")},
        {**before, "priorities": -before["priorities"]},
        {**before, "priorities": before["priorities"] * 0},
        {**before, "priorities": before["priorities"] * 2, "generator": ["0"] * 4},
        {**before, "generator": ["1"] * 3},
    ):
        with pytest.raises(ValueError):
            sampler.load_state_dict(state)
        after = sampler.state_dict()
        assert torch.equal(after["priorities"], before["priorities"])
        assert after["generator"] == before["generator"]
