"""Sequences and hindsight goals of fastrl.replay, against lists of episodes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import MASKS, Writer
from test_replay import make, operations

from fastrl.replay import HindsightSampler, Replay, SequenceSampler


def expected_sequence(model, env, episode, i, length, burn_in):
    """First step, how many of them warm up, how many there are."""
    oldest = model.rings[env].head - model.rows_per_env
    steps = min(len(episode.steps), len(episode.obs) - 1)
    first = i
    while first > 0 and i - first < burn_in:
        if episode.start + max(0, first - 1 - model.stack + 1) < oldest:
            break
        first -= 1
    last = min(i + length, steps)
    return first, i - first, last - first


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    operations,
    st.integers(1, 14),
    st.integers(1, 3),
    st.sampled_from([1, 3]),
    st.sampled_from(["zero", "repeat"]),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(list(MASKS)),
)
def test_sequences_are_those_of_lists_of_episodes(
    ops, capacity, num_envs, stack, pad, length, burn_in, masks
):
    replay, model = make(capacity, num_envs, stack, pad, masks=masks)
    writer = Writer(replay, model)
    for operation in ops:
        writer.do(operation)
    if len(replay) == 0:
        return
    sampler = SequenceSampler(replay, len(replay), length=length, burn_in=burn_in, replacement=False)
    # The second time what the first one left behind must not show.
    for _ in range(4):
        batch = sampler.sample()
    found, expected = [], []
    for env, episode, i in model.starts():
        first, before, count = expected_sequence(model, env, episode, i, length, burn_in)
        obs = [model.stacked(episode, first + t) for t in range(count + 1)]
        steps = episode.steps[first : first + count]
        learn = [t >= before for t in range(count)]
        allowed = episode.masks[first : first + count + model.final_masks] if model.num_masked else []
        expected.append(
            (
                count,
                b"".join(frame.tobytes() for frame in obs),
                [
                    (int(step[0]), float(step[1]), bool(step[2]), bool(step[3]), float(step[4]))
                    for step in steps
                ],
                learn,
                [mask.tolist() for mask in allowed],
            )
        )
    assert (batch.action_masks is None) == (masks == "none")
    for i in range(len(replay)):
        count = int(batch.mask[i].sum())
        allowed = [] if batch.action_masks is None else batch.action_masks[i].tolist()
        assert not np.any(allowed[count + model.final_masks :])
        assert batch.mask[i, :count].all()
        assert not batch.learn[i, count:].any()
        assert not batch.obs[i, count + 1 :].any()
        assert not batch.rewards[i, count:].any()
        assert not batch.actions[i, count:].any()
        assert not batch.terminated[i, count:].any()
        assert not batch.truncated[i, count:].any()
        columns = (batch.actions, batch.rewards, batch.terminated, batch.truncated, batch.extra["extra"])
        found.append(
            (
                count,
                batch.obs[i, : count + 1].numpy().tobytes(),
                list(zip(*(column[i, :count].tolist() for column in columns), strict=True)),
                batch.learn[i, :count].tolist(),
                allowed[: count + model.final_masks],
            )
        )
    assert sorted(found) == sorted(expected)
    assert (batch.learn.sum(1) >= 1).all()
    assert (batch.learn.sum(1) <= length).all()


def test_burn_in_beyond_the_largest_age():
    replay = Replay(1000, (1,))
    for i in range(900):
        obs = np.full(1, i, np.float32)
        replay.add(obs, i, 1.0, obs + 1, False, False)
    batch = SequenceSampler(replay, 64, length=10, burn_in=255, seed=1).sample()
    for i in range(64):
        count = int(batch.mask[i].sum())
        assert (np.diff(batch.obs[i, : count + 1, 0]) == 1).all()
        assert torch.equal(batch.obs[i, :count, 0].long(), batch.actions[i, :count])
        first = int(batch.actions[i][batch.learn[i]][0])
        assert int((batch.mask[i] & ~batch.learn[i]).sum()) == min(first, 255)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"length": 0}, ValueError),
        ({"length": 2.5}, TypeError),
        ({"burn_in": -1}, ValueError),
        ({"burn_in": 256}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"seed": -1}, ValueError),
        ({"replay": None}, TypeError),
    ],
)
def test_bad_arguments_of_sequences(options, error):
    arguments = {"replay": Replay(5, (1,)), "batch_size": 2, "length": 2, **options}
    with pytest.raises(error):
        SequenceSampler(arguments.pop("replay"), arguments.pop("batch_size"), **arguments)


def test_sequences_need_steps_and_restore_their_state():
    replay = Replay(50, (1,))
    with pytest.raises(ValueError, match="no transition yet"):
        SequenceSampler(replay, 2, length=3).sample()
    for i in range(50):
        replay.add(np.full(1, i, np.float32), i, 1.0, np.full(1, i + 1, np.float32), False, i % 9 == 0)
    a, b = SequenceSampler(replay, 4, length=3, seed=1), SequenceSampler(replay, 4, length=3, seed=2)
    a.sample()
    b.load_state_dict(a.state_dict())
    assert torch.equal(a.sample().actions, b.sample().actions)


# Hindsight. Observations are [where in the episode list, achieved, desired].


def goals(replay, strategy, ratio=1.0, size=400, **options):
    return HindsightSampler(
        replay,
        size,
        achieved=slice(1, 2),
        desired=slice(2, 3),
        reward_fn=lambda reached, wanted: (reached == wanted).all(1).float(),
        her_ratio=ratio,
        strategy=strategy,
        **options,
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    operations,
    st.integers(1, 14),
    st.integers(1, 3),
    st.sampled_from(["future", "final", "episode"]),
    st.sampled_from(list(MASKS)),
)
def test_goals_are_those_of_lists_of_episodes(ops, capacity, num_envs, strategy, masks):
    replay, model = make(capacity, num_envs, dtype=np.float32, masks=masks)
    writer = Writer(replay, model)
    sampler = goals(replay, strategy)
    for operation in ops:
        writer.do(operation)
        if len(replay) == 0:
            continue
        possible, allowed = {}, {}
        for env, episode, i in model.starts():
            left = max(0, model.rings[env].head - model.rows_per_env - episode.start)
            after = {
                "future": episode.obs[i + 1 :],
                "final": episode.obs[-1:],
                "episode": episode.obs[left + 1 :],
            }[strategy]
            key = episode.obs[i][:2].tobytes(), episode.obs[i + 1][:2].tobytes()
            possible[key] = {float(obs[1]) for obs in after}
            allowed[key] = [episode.masks[j].tolist() for j in (i, i + 1) if model.has_mask(j - i)]
        batch = sampler.sample()
        found = {}
        masked = [column for column in (batch.masks, batch.next_masks) if column is not None]
        for i, (obs, after, reward) in enumerate(
            zip(batch.obs.numpy(), batch.next_obs.numpy(), batch.rewards.tolist(), strict=True)
        ):
            assert obs[2] == after[2]
            assert reward == (after[1] == after[2])
            key = obs[:2].tobytes(), after[:2].tobytes()
            assert [column[i].tolist() for column in masked] == allowed[key]
            found.setdefault(key, set()).add(float(obs[2]))
        for key, reached in found.items():
            assert reached <= possible[key]
        if len(replay) == 1:
            assert next(iter(found.values())) == next(iter(possible.values()))


def episode_of(length, replay=None, first=0):
    if replay is None:
        replay = Replay(100, (3,))
    for i in range(length):
        obs = np.array([i, first + i, -1], np.float32)
        after = np.array([i + 1, first + i + 1, -1], np.float32)
        replay.add(obs, i, -1.0, after, False, i == length - 1)
    return replay


def test_future_of_the_last_step_is_its_own_next_observation():
    """SB3 #847: a goal is what a later step reached, not where it began."""
    batch = goals(episode_of(5), "future").sample()
    last = batch.actions == 4
    assert last.any()
    assert (batch.next_obs[last, 2] == 5).all()
    assert (batch.rewards[last] == 1).all()
    # Of each step, all later observations and no other.
    for step in range(5):
        reached = set(batch.next_obs[batch.actions == step, 2].tolist())
        assert reached == set(range(step + 1, 6))


def test_future_is_uniform_over_later_observations():
    counts = np.zeros(10)
    sampler = goals(episode_of(10), "future", seed=8)
    for _ in range(50):
        batch = sampler.sample()
        at = batch.next_obs[batch.actions == 0, 2].long().numpy()
        np.add.at(counts, at - 1, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 28  # 9 degrees of freedom: 99.9%


def test_goals_of_a_half_overwritten_episode():
    replay = episode_of(30, Replay(20, (3,)))
    batch = goals(replay, "episode").sample()
    assert set(batch.next_obs[:, 2].tolist()) == set(range(11, 31))
    replay = episode_of(5, replay, first=100)
    batch = goals(replay, "episode", size=2000).sample()
    old = batch.obs[:, 1] < 100
    assert set(batch.next_obs[old, 2].tolist()) == set(range(17, 31))
    assert set(batch.next_obs[~old, 2].tolist()) == set(range(101, 106))


def test_only_her_ratio_of_a_batch_gets_another_goal():
    replay = episode_of(10)
    batch = goals(replay, "final", ratio=0.25, size=40).sample()
    assert (batch.next_obs[:10, 2] == 10).all()
    assert (batch.next_obs[10:, 2] == -1).all()
    assert (batch.rewards[10:] == -1).all()
    assert torch.equal(batch.rewards[:10], (batch.next_obs[:10, 1] == 10).float())
    assert (goals(replay, "final", ratio=0.0, size=40).sample().next_obs[:, 2] == -1).all()


def test_terminated_may_follow_the_goal():
    sampler = goals(episode_of(5), "future", gamma=0.9, terminated_fn=lambda a, b: (a == b).all(1))
    batch = sampler.sample()
    assert torch.equal(batch.terminated, batch.rewards == 1)
    assert torch.equal(batch.discounts, torch.where(batch.terminated, 0.0, float(np.float32(0.9))))


def test_where_nothing_is_allowed_nothing_follows_whatever_the_goal():
    replay, obs = Replay(10, (3,), num_masked=2, final_masks=True), np.eye(3, dtype=np.float32)
    for after, allowed in ((obs[1], True), (obs[2], False)):
        replay.add(
            obs[0],
            int(allowed),
            0.0,
            after,
            True,
            False,
            mask=np.ones(2, bool),
            next_mask=np.array([False, allowed]),
        )
    batch = goals(replay, "final", gamma=0.9, terminated_fn=lambda a, b: (a != b).all(1)).sample()
    assert not batch.terminated.any()
    assert torch.equal(batch.discounts, torch.where(batch.actions == 1, float(np.float32(0.9)), 0.0))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strategy": "past"}, ValueError),
        ({"her_ratio": 1.5}, ValueError),
        ({"her_ratio": float("nan")}, ValueError),
        ({"achieved": slice(0, 2)}, ValueError),
        ({"achieved": slice(0, 0), "desired": slice(0, 0)}, ValueError),
        ({"achieved": slice(0, 3, 2), "desired": slice(0, 2)}, ValueError),
        ({"gamma": 2.0}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"replay": Replay(5, (3, 3))}, ValueError),
        ({"replay": Replay(5, (3,), stack=2)}, ValueError),
        ({"replay": None}, TypeError),
    ],
)
def test_bad_arguments_of_hindsight(options, error):
    arguments = {
        "replay": Replay(5, (3,)),
        "batch_size": 2,
        "achieved": slice(0, 1),
        "desired": slice(2, 3),
        "reward_fn": lambda reached, wanted: reached[:, 0],
        **options,
    }
    with pytest.raises(error):
        HindsightSampler(arguments.pop("replay"), arguments.pop("batch_size"), **arguments)


def test_functions_must_return_one_value_each():
    sampler = HindsightSampler(
        episode_of(5),
        8,
        achieved=slice(1, 2),
        desired=slice(2, 3),
        reward_fn=lambda reached, wanted: (reached == wanted).float(),
    )
    with pytest.raises(ValueError, match="reward_fn must return shape"):
        sampler.sample()


def test_hindsight_keeps_up_with_many_turns_of_the_ring_between_two_draws():
    replay, model = make(12, 2, dtype=np.float32)
    writer = Writer(replay, model)
    sampler = goals(replay, "final")
    for turn in range(20):
        for _ in range(turn * 5):
            writer.add([0, 1], [(False, False, False), (turn % 2 == 0, False, False)], True)
        if len(replay):
            batch = sampler.sample()
            newest = {float(ring.episodes[-1].obs[-1][1]) for ring in model.rings}
            assert newest <= set(batch.obs[:, 2].tolist())
