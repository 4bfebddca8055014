"""The barrier of processes that work in lockstep, as Python sees it; `ProcessVectorEnv` lives on it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from waiting import TIMEOUT

from fastrl._native._rust import Rounds
from fastrl.utils.processes import SHARED_MEMORY


def test_members_and_leader_take_turns() -> None:
    rounds = Rounds(2, 24)
    members = [pickle.loads(pickle.dumps(rounds)) for _ in range(2)]
    views = [member.data().view(np.int64) for member in members]
    ours = rounds.data().view(np.int64)

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
        rounds.begin()
        assert rounds.wait(TIMEOUT)
        assert ours[:2].tolist() == [turn * (turn + 1) // 2] * 2
    for thread in threads:
        thread.join()


def test_who_is_missing_can_be_given_up_and_replaced() -> None:
    rounds = Rounds(2, 1)
    assert rounds.wait(0.0) is False and rounds.wait(TIMEOUT) and rounds.missing() == []
    rounds.begin()
    assert not rounds.wait(0.01) and rounds.missing() == [0, 1]
    with pytest.raises(RuntimeError, match="not complete"):
        rounds.begin()
    rounds.give_up(0)
    member = Rounds.attach(rounds.name)
    with pytest.raises(RuntimeError, match="no member of these rounds"):
        member.next()
    assert rounds.missing() == [1]
    member.join(1)
    member.done()
    assert rounds.wait(TIMEOUT) and rounds.missing() == []


def test_misuse_is_refused() -> None:
    for members, nbytes in ((0, 8), (8, 0), (10_000, 8), (2, 2**62)):
        with pytest.raises((ValueError, OSError)):
            Rounds(members, nbytes)
    rounds = Rounds(1, 8)
    member = Rounds.attach(rounds.name)
    with pytest.raises(ValueError, match="expected a member from 0 to 0, got 1"):
        member.join(1)
    for call in (member.begin, member.wait):
        with pytest.raises(RuntimeError, match="only the process that made these rounds"):
            call()
    with pytest.raises(FileNotFoundError):
        Rounds.attach("nothing")
    assert Path(SHARED_MEMORY + rounds.name).exists()
    rounds.close()
    assert not Path(SHARED_MEMORY + rounds.name).exists()
    # Who has them open goes on.
    rounds.data()[:] = 7
    assert member.data().tolist() == [7] * 8
