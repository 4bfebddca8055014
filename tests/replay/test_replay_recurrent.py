"""Transitions along sequences of fastrl.replay, against a loop over the steps of each sequence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_packed_sequence

from fastrl.replay import Replay, SequenceSampler
from fastrl.replay.recurrent import RecurrentSampler, state_fields
from fastrl.rollout.fragment import Fragment, allocate
from fastrl.sources.transitions import store_fragment

GAMMA = 0.9


class Play:
    """Fragments of environments whose observations count all steps from 1 on, and whose actor's state is minus the
    observation, at the start of an episode 0."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        self.num_envs, self.num_steps, self.count = num_envs, num_steps, 0
        self.obs = [self.next_number() for _ in range(num_envs)]
        self.state_of: dict[int, int] = dict.fromkeys(self.obs, 0)
        # Observations that follow each other in an episode, by the first of two.
        self.following: dict[int, int] = {}

    def next_number(self) -> int:
        self.count += 1
        return self.count

    def fragment(self, ends: list[int]) -> Fragment:
        """The next fragment; ``ends`` says of each step: 0 goes on, 1 terminated, 2 truncated."""
        arrays = allocate(self.num_steps, self.num_envs, 1, num_masked=2, final_masks=True, state_size=1)
        for row, obs in enumerate(self.obs):
            arrays["states"][row] = self.state_of[obs]
            for t in range(self.num_steps):
                end = ends[(row * self.num_steps + t) % len(ends)]
                arrays["obs"][t, row], arrays["actions"][t, row] = obs, obs + 100
                arrays["rewards"][t, row], arrays["masks"][t, row, obs % 2] = obs / 8, True
                after = self.next_number()
                self.following[obs] = after
                self.state_of[after] = -after
                arrays["final_masks"][t, row, after % 2] = True
                if end:
                    arrays["terminations"][t, row], arrays["truncations"][t, row] = end == 1, end == 2
                    arrays["final_obs"][t, row] = after
                    after = self.next_number()
                    self.state_of[after] = 0
                obs = after
            arrays["obs"][-1, row] = self.obs[row] = obs
        nothing = np.zeros(0, np.int64)
        return Fragment(
            **arrays,
            version=1,
            env_indices=np.arange(self.num_envs),
            returns=np.zeros(0),
            lengths=nothing,
            episodes=nothing.reshape(0, 2),
        )


def filled(play: Play, capacity: int, ends: list[list[int]]) -> Replay:
    fields = {"version": (np.uint32, ()), **state_fields(1)}
    replay = Replay(capacity, (1,), num_envs=play.num_envs, num_masked=2, final_masks=True, extra=fields)
    for each in ends:
        fragment = play.fragment(each)
        store_fragment(replay, fragment, fragment.env_indices)
    return replay


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=7), min_size=1, max_size=9),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(3, 30),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_transitions_are_those_of_a_loop_over_each_sequence(
    ends, num_envs, num_steps, capacity, length, burn_in, n_step
):
    play = Play(num_envs, num_steps)
    replay = filled(play, capacity, ends)
    if len(replay) == 0:
        return
    options = {"length": length, "burn_in": burn_in, "seed": 3}
    sampler = RecurrentSampler(replay, 4 * length, n_step=n_step, gamma=GAMMA, **options)
    batch = sampler.sample()
    # Steps around the same ones, by a sampler that has tests of its own.
    options["burn_in"] += length - 1
    drawn = SequenceSampler(replay, 4, **options).sample()
    found = histories(batch.obs)
    expected = []
    for i in range(4):
        count, before = int(drawn.mask[i].sum()), drawn.learn[i].tolist().index(True)
        obs = [int(number) for number in drawn.obs[i, : count + 1, 0]]
        # The step that was drawn may be any of those that are learned from.
        possible = [window(drawn, i, max(before - offset, 0), burn_in, length) for offset in range(length)]
        [(first, begin, end), *_] = [
            (first, begin, end)
            for first, begin, end in possible
            if found[i] == (stored(play, drawn, i, first), obs[first:begin], obs[begin : end + 1])
        ]
        # Nothing but the steps of one episode.
        assert all(play.following[a] == b for a, b in zip(obs[first:], obs[first + 1 :], strict=False))
        for t in range(begin, end):
            last = min(t + n_step, end) - 1
            terminated = bool(drawn.terminated[i, last])
            expected.append(
                (
                    obs[t],
                    obs[t] + 100,
                    pytest.approx(sum(GAMMA**k * obs[t + k] / 8 for k in range(last + 1 - t))),
                    obs[last + 1],
                    pytest.approx(0 if terminated else GAMMA ** (last + 1 - t)),
                    terminated,
                    bool(drawn.truncated[i, last]),
                    [obs[t] % 2 == 0, obs[t] % 2 == 1],
                    [not terminated and obs[last + 1] % 2 == parity for parity in (0, 1)],
                )
            )
    steps = batch.obs.steps
    assert batch.next_obs.steps is steps
    columns = (
        *(steps.data[batch.obs.places, 0].int(), batch.actions, batch.rewards),
        *(steps.data[batch.next_obs.places, 0].int(), batch.discounts, batch.terminated, batch.truncated),
        *(batch.masks, batch.next_masks),
    )
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def window(drawn, i, begin, burn_in, length):
    """The first step of a sequence, the first that is learned from, and the one after the last."""
    count = int(drawn.mask[i].sum())
    first = max(begin - burn_in, 0)
    first = next((t for t in range(first, count) if drawn.extra["has_state"][i, t]), first)
    begin = max(first, begin)
    return first, begin, min(begin + length, count)


def stored(play, drawn, i, step):
    """The state that acting had before a step, 0 where the replay does not have it."""
    return play.state_of[int(drawn.obs[i, step, 0])] if drawn.extra["has_state"][i, step] else 0


def histories(obs):
    """Of each sequence the state, and the observations of the burn-in and of the other steps."""
    burnt = [[] for _ in obs.states]
    if obs.burn_in is not None:
        for sequence, rows in zip(obs.burnt.tolist(), unpacked(obs.burn_in), strict=True):
            burnt[sequence] = rows
    return list(zip(obs.states[:, 0].int().tolist(), burnt, unpacked(obs.steps), strict=True))


def unpacked(steps):
    rows, lengths = pad_packed_sequence(steps, batch_first=True)
    return [each[:length, 0].int().tolist() for each, length in zip(rows, lengths.tolist(), strict=True)]


def test_a_batch_has_as_many_sequences_as_hold_its_transitions():
    replay = filled(Play(1, 2), 60, [[0]] * 40)
    sampler = RecurrentSampler(replay, 10, length=4, burn_in=1)
    assert len(sampler.sample().obs.states) == 3
    other = RecurrentSampler(replay, 10, length=4, burn_in=1, seed=9)
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(sampler.sample().actions, other.sample().actions)


def test_slices_and_devices_keep_the_sequences():
    obs = RecurrentSampler(filled(Play(1, 2), 60, [[0]] * 40), 12, length=4, burn_in=2).sample().obs
    some = obs.to(torch.device("cpu"))[2:5]
    assert len(some) == 3 and torch.equal(some.places, obs.places[2:5])
    assert torch.equal(some.steps.data, obs.steps.data)
