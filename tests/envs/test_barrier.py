"""The barrier of processes that work in lockstep, as Python sees it; `ProcessVectorEnv` lives on it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from waiting import TIMEOUT

from fastrl._native._rust import LockstepBarrier
from fastrl.utils.processes import SHARED_MEMORY


def test_members_and_leader_alternate() -> None:
    barrier = LockstepBarrier(2, 24)
    members = [pickle.loads(pickle.dumps(barrier)) for _ in range(2)]
    views = [member.data().view(np.int64) for member in members]
    ours = barrier.data().view(np.int64)

    def work(i: int) -> None:
        members[i].join(i)
        joined.wait()
        for _ in range(100):
            members[i].next()
            views[i][i] += views[i][2]
        members[i].done()

    joined = threading.Barrier(3)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    joined.wait()
    for turn in range(100):
        ours[2] = turn
        barrier.start_round()
        assert barrier.wait(TIMEOUT)
        assert ours[:2].tolist() == [turn * (turn + 1) // 2] * 2
    for thread in threads:
        thread.join()


def test_who_is_missing_can_be_given_up_and_replaced() -> None:
    barrier = LockstepBarrier(2, 1)
    assert barrier.wait(0.0) is False and barrier.wait(TIMEOUT) and barrier.missing() == []
    barrier.start_round()
    assert not barrier.wait(0.01) and barrier.missing() == [0, 1]
    with pytest.raises(RuntimeError, match="not complete"):
        barrier.start_round()
    barrier.mark_dead(0)
    member = LockstepBarrier.attach(barrier.name)
    with pytest.raises(RuntimeError, match="no member of this barrier"):
        member.next()
    assert barrier.missing() == [1]
    member.join(1)
    member.done()
    assert barrier.wait(TIMEOUT) and barrier.missing() == []


def test_misuse_is_refused() -> None:
    for members, nbytes in ((0, 8), (8, 0), (10_000, 8), (2, 2**62)):
        with pytest.raises((ValueError, OSError)):
            LockstepBarrier(members, nbytes)
    barrier = LockstepBarrier(1, 8)
    member = LockstepBarrier.attach(barrier.name)
    with pytest.raises(ValueError, match="expected a member from 0 to 0, got 1"):
        member.join(1)
    for call in (member.start_round, member.wait):
        with pytest.raises(RuntimeError, match="only the process that made this barrier"):
            call()
    with pytest.raises(FileNotFoundError):
        LockstepBarrier.attach("nothing")
    assert Path(SHARED_MEMORY + barrier.name).exists()
    barrier.close()
    assert not Path(SHARED_MEMORY + barrier.name).exists()
    # Members that have the segment open keep it.
    barrier.data()[:] = 7
    assert member.data().tolist() == [7] * 8
