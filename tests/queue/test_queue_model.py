"""fastrl.queue against a simple model, call by call."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from queue_records import ORDERS, POLICIES, RECORD, ids_of, rows_of

from fastrl.queue import Empty, Full, Queue


class QueueMachine(RuleBasedStateMachine):
    """A queue, and for each ring of it a deque of records' numbers."""

    @initialize(
        capacity=st.sampled_from([2, 4, 8]), policy=st.sampled_from(POLICIES), order=st.sampled_from(ORDERS)
    )
    def start(self, capacity, policy, order):
        self.queue = Queue(RECORD, capacity, max_producers=3, policy=policy, order=order)
        self.producers = [self.queue.producer() for _ in range(3)]
        self.rings = [deque() for _ in range(3 if order == "per_producer" else 1)]
        self.next_id = self.put = self.got = self.dropped_newest = self.dropped_oldest = 0

    def fresh(self, count):
        self.next_id += count
        return rows_of(*range(self.next_id - count, self.next_id))

    def ring(self, producer):
        return self.rings[producer % len(self.rings)]

    def waiting(self):
        return sum(len(ring) for ring in self.rings)

    def taken(self, rows):
        """Each record is the oldest of its ring."""
        for number in ids_of(rows):
            matching = [ring for ring in self.rings if ring and ring[0] == number]
            assert matching, f"{number} came, expected the first of one of {self.rings}"
            matching[0].popleft()
        self.got += len(rows)

    @rule(producer=st.integers(0, 2), count=st.integers(0, 11), one=st.booleans())
    def put_rows(self, producer, count, one):
        rows = self.fresh(1 if one else count)
        ring, policy = self.ring(producer), self.queue.policy
        room = self.queue.capacity - len(ring)
        p = self.producers[producer]
        try:
            if one:
                p.put(rows[0], timeout=0)
                put = 1
            else:
                put = p.put_many(rows, timeout=0)
        except Full:
            assert (policy == "block" and room == 0) or (policy == "error" and room < len(rows))
            return
        assert put == (min(room, len(rows)) if policy == "block" else len(rows))
        if policy == "drop_oldest":
            ring.extend(ids_of(rows))
            self.put += min(len(rows), self.queue.capacity)
            while len(ring) > self.queue.capacity:
                ring.popleft()
                self.dropped_oldest += 1
        else:
            ring.extend(ids_of(rows[:room]))
            self.put += len(rows[:room])
            self.dropped_newest += len(rows[room:]) if policy == "drop_newest" else 0

    @precondition(lambda self: self.waiting() == 0)
    @rule(producer=st.integers(0, 2), count=st.integers(1, 4), size=st.integers(1, 11))
    def reserve_and_take(self, producer, count, size):
        """At once, because a reservation may leave slots out at the ring's end until it is taken."""
        rows = self.fresh(min(count, self.queue.capacity // 2))
        with pytest.raises(ZeroDivisionError), self.producers[producer].reserve(len(rows)) as view:
            view["id"] = 1 / 0
        with pytest.raises(Empty):  # in total order the consumer has to pass over what was given up
            self.queue.get(block=False)
        with self.producers[producer].reserve(len(rows), timeout=0) as view:
            view[:] = rows
        self.ring(producer).extend(ids_of(rows))
        self.put += len(rows)
        while self.waiting():
            with self.queue.peek(size, timeout=0) as view:
                self.taken(view.copy())

    @rule(count=st.integers(1, 11), into=st.booleans())
    def get_many(self, count, into):
        out = np.zeros(11, RECORD) if into else None
        waiting = self.waiting()
        try:
            rows = self.queue.get_many(count, out, timeout=0)
        except Empty:
            assert waiting == 0
        else:
            assert len(rows) == min(count, waiting)
            self.taken(rows)

    @rule()
    def get(self):
        try:
            row = self.queue.get(block=False)
        except Empty:
            assert self.waiting() == 0
        else:
            self.taken(np.array([row]))

    @precondition(lambda self: self.waiting() > 0)
    @rule(count=st.integers(1, 11))
    def peek(self, count):
        with self.queue.peek(count, timeout=0) as view:
            assert 1 <= len(view) <= count
            self.taken(view.copy())

    @rule(producer=st.integers(0, 2))
    def another_producer(self, producer):
        """With the same index: it is the first that is free."""
        self.producers[producer].close()
        self.producers[producer] = self.queue.producer()

    @invariant()
    def counters_add_up(self):
        if hasattr(self, "queue"):
            stats = self.queue.stats()
            assert (stats.put, stats.got, stats.depth) == (self.put, self.got, self.waiting())
            assert (stats.dropped_newest, stats.dropped_oldest) == (self.dropped_newest, self.dropped_oldest)

    def teardown(self):
        if hasattr(self, "queue"):
            for producer in self.producers:
                producer.close()
            self.queue.close()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@given(
    capacity=st.sampled_from([2, 4, 8]),
    order=st.sampled_from(ORDERS),
    steps=st.lists(
        st.tuples(st.sampled_from(["reserve", "put", "get", "peek"]), st.integers(1, 5)), max_size=60
    ),
)
@settings(deadline=None)
def test_reservations_among_other_calls_keep_the_order(capacity, order, steps):
    next_id = expected = 0
    with Queue(RECORD, capacity, max_producers=1, order=order) as q, q.producer() as p:
        for step, count in [*steps, *[("peek", 9)] * (capacity + 1)]:
            try:
                if step == "put":
                    next_id += p.put_many(rows_of(*range(next_id, next_id + count)), timeout=0)
                elif step == "reserve":
                    count = min(count, capacity // 2)
                    with p.reserve(count, timeout=0) as view:
                        view[:] = rows_of(*range(next_id, next_id + count))
                    next_id += count
                elif step == "get":
                    rows = q.get_many(count, timeout=0)
                    assert ids_of(rows) == list(range(expected, expected + len(rows)))
                    expected += len(rows)
                else:
                    with q.peek(count, timeout=0) as rows:
                        assert ids_of(rows) == list(range(expected, expected + len(rows)))
                    expected += len(rows)
            except Full:
                assert q.stats().depth > 0
            except Empty:
                assert expected == next_id
        assert expected == next_id
