"""fastrl.replay.prefetch: the same batches, one ahead; priorities one later; errors reach the caller."""

import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.replay.prefetch import Prefetcher


class Counting:
    """A sampler that says what was asked of it, with two batches in rotation."""

    def __init__(self, fail_at=()):
        self.batches = [SimpleNamespace(obs=torch.zeros(3), indices=torch.zeros(3)) for _ in range(2)]
        self.drawn = 0
        self.log = []
        self.threads = set()
        self.fail_at = set(fail_at)

    def sample(self):
        self.threads.add(threading.current_thread().name)
        self.drawn += 1
        if self.drawn in self.fail_at:
            raise IndexError(f"no draw {self.drawn}")
        self.log.append(("sample", self.drawn))
        batch = self.batches[self.drawn % 2]
        batch.obs.fill_(self.drawn)
        batch.indices.fill_(self.drawn)
        return batch

    def update_priorities(self, indices, priorities):
        self.threads.add(threading.current_thread().name)
        if priorities.isnan().any():
            raise ValueError("priorities must be numbers")
        self.log.append(("update", int(indices[0])))


def wait_for_batch(ahead):
    """Waits until the batch ahead has been drawn."""
    ahead.ahead.exception()


def test_batches_are_those_of_the_sampler_in_order():
    with Prefetcher(Counting()) as ahead:
        for expected in range(1, 50):
            batch = ahead.sample()
            wait_for_batch(ahead)  # the next one is in its place by now, and leaves this one alone
            assert (batch.obs == expected).all()


def test_is_one_batch_ahead_and_no_more():
    sampler = Counting()
    with Prefetcher(sampler) as ahead:
        assert sampler.drawn == 0
        for count in range(1, 5):
            ahead.sample()
            wait_for_batch(ahead)
            assert sampler.drawn == count + 1
    assert sampler.drawn == 5


def test_only_the_thread_uses_the_sampler():
    sampler = Counting()
    with Prefetcher(sampler) as ahead:
        for _ in range(5):
            batch = ahead.sample()
            ahead.update_priorities(batch.indices, torch.ones(3))
        wait_for_batch(ahead)
        assert len(sampler.threads) == 1
        assert threading.current_thread().name not in sampler.threads


@settings(deadline=None, max_examples=30)
@given(st.lists(st.booleans(), max_size=12))
def test_priorities_count_one_batch_later(updates):
    """With and without waiting for the thread, whose timing makes no difference."""
    logs = []
    for wait in (False, True):
        sampler = Counting()
        with Prefetcher(sampler) as ahead:
            for update in updates:
                batch = ahead.sample()
                if wait:
                    wait_for_batch(ahead)
                if update:
                    ahead.update_priorities(batch.indices, torch.ones(3))
        logs.append(sampler.log)
    expected = []
    if updates:
        expected.append(("sample", 1))
    for k in range(1, len(updates) + 1):
        # `sample` has returned batch k: priorities of batch k - 1 affect batch k + 1.
        if k > 1 and updates[k - 2]:
            expected.append(("update", k - 1))
        expected.append(("sample", k + 1))
    if updates and updates[-1]:
        expected.append(("update", len(updates)))  # by close()
    assert logs == [expected, expected]


def test_beta_is_set_before_the_next_draw():
    class Recording(Counting):
        beta = 0.4

        def sample(self):
            self.log.append(self.beta)
            return super().sample()

    sampler = Recording()
    with Prefetcher(sampler) as ahead:
        for beta in (None, 0.5, 0.6):
            ahead.beta = beta
            ahead.sample()
            wait_for_batch(ahead)
    assert [entry for entry in sampler.log if isinstance(entry, float)] == [0.4, 0.4, 0.5, 0.6]


def test_errors_reach_the_caller_which_can_try_again():
    with Prefetcher(Counting(fail_at=[1, 3])) as ahead:
        with pytest.raises(IndexError, match="no draw 1"):
            ahead.sample()
        assert (ahead.sample().obs == 2).all()
        with pytest.raises(IndexError, match="no draw 3"):
            ahead.sample()
        assert (ahead.sample().obs == 4).all()


def test_errors_of_priorities_reach_the_caller():
    with Prefetcher(Counting()) as ahead:
        batch = ahead.sample()
        ahead.update_priorities(batch.indices, torch.full((3,), torch.nan))
        ahead.sample()
        with pytest.raises(ValueError, match="must be numbers"):
            ahead.sample()
        assert (ahead.sample().obs == 3).all()


def test_close_ends_the_thread():
    before = set(threading.enumerate())
    ahead = Prefetcher(Counting())
    ahead.sample()
    assert set(threading.enumerate()) != before
    ahead.close()
    ahead.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(RuntimeError, match="closed"):
        ahead.sample()


def test_close_before_the_first_batch():
    sampler = Counting()
    Prefetcher(sampler).close()
    assert sampler.log == []


def test_close_passes_the_last_priorities():
    sampler = Counting()
    ahead = Prefetcher(sampler)
    batch = ahead.sample()
    ahead.update_priorities(batch.indices, torch.ones(3))
    ahead.close()
    assert sampler.log[-1] == ("update", 1)


def test_priorities_after_close_are_refused():
    ahead = Prefetcher(Counting())
    batch = ahead.sample()
    ahead.close()
    with pytest.raises(RuntimeError, match="closed"):
        ahead.update_priorities(batch.indices, torch.ones(3))


def test_forgotten_prefetchers_are_freed():
    sampler = Counting()
    ahead = Prefetcher(sampler)
    ahead.sample()
    wait_for_batch(ahead)
    gone = weakref.ref(ahead)
    del ahead
    gc.collect()
    assert gone() is None


def filled_replay(steps=500):
    """Observations count up, so that a transition says which one it is."""
    replay = Replay(400, (1,), np.float32, num_masked=3, final_masks=True)
    for i in range(steps):
        add(replay, i)
    return replay


def add(replay, i):
    masks = {"mask": np.arange(3) != i % 3, "next_mask": np.arange(3) != (i + 1) % 3}
    replay.add(np.float32([i]), i % 3, i, np.float32([i + 1]), i % 17 == 16, False, **masks)


@pytest.mark.parametrize("kind", [UniformSampler, PrioritizedSampler])
def test_of_a_replay_the_batches_are_the_same(kind):
    plain, ahead_of = (kind(filled_replay(), 32, n_step=3, seed=5) for _ in range(2))
    names = ("obs", "actions", "rewards", "next_obs", "discounts", "indices", "weights", "terminated")
    names += ("masks", "next_masks")
    with Prefetcher(ahead_of) as ahead:
        for _ in range(50):
            ours = ahead.sample()
            wait_for_batch(ahead)
            theirs = plain.sample()
            for name in names:
                assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_of_a_prioritized_replay_priorities_count_one_batch_later():
    """The same as a loop that is always one batch ahead."""
    plain, ahead_of = (PrioritizedSampler(filled_replay(), 32, n_step=3, seed=5) for _ in range(2))
    waiting, errors = plain.sample(), None
    with Prefetcher(ahead_of) as ahead:
        for _ in range(50):
            ours, theirs = ahead.sample(), waiting
            if errors is not None:
                plain.update_priorities(*errors)
            waiting = plain.sample()
            assert torch.equal(ours.indices, theirs.indices)
            assert torch.equal(ours.weights, theirs.weights)
            errors = theirs.indices.clone(), theirs.obs[:, 0].remainder(7) + 0.1
            ahead.update_priorities(ours.indices, ours.obs[:, 0].remainder(7) + 0.1)


def test_batches_are_consistent_while_others_write():
    replay = filled_replay()
    with Prefetcher(UniformSampler(replay, 64, seed=1)) as ahead:
        for i in range(500, 5_000):
            add(replay, i)
            if i % 5 == 0:
                batch = ahead.sample()
                assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0] + 1)
                assert torch.equal(batch.rewards, batch.obs[:, 0])
