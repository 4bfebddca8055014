"""Heartbeats: silence tells that a rank hangs."""

import contextlib
import os
import queue
import signal
import time

import pytest
from rank_runs import on_ranks

from fastrl.utils.heartbeat import EXIT_LOST, Heartbeat, end_without
from fastrl.utils.ranks import Ranks

TIMEOUT = 1.0


def beating(stack: contextlib.ExitStack, count: int, lost: "queue.Queue[tuple[int, int]]") -> list[Heartbeat]:
    """Heartbeats of so many ranks in this process; what each loses goes into a queue, with its number."""
    own = [
        Heartbeat(rank, TIMEOUT, lambda other, rank=rank: lost.put((rank, other)))  # type: ignore[misc]
        for rank in range(count)
    ]
    contacts = [each.contact for each in own]
    return [stack.enter_context(each.begin(contacts)) for each in own]


def test_a_silent_rank_is_lost_to_all_others() -> None:
    lost: queue.Queue[tuple[int, int]] = queue.Queue()
    with contextlib.ExitStack() as stack:
        ranks = beating(stack, 3, lost)
        time.sleep(1.5 * TIMEOUT)
        assert lost.empty()
        # It neither beats nor says that it leaves.
        ranks[1]._ended.set()
        assert {lost.get(timeout=60), lost.get(timeout=60)} == {(0, 1), (2, 1)}


def test_a_rank_that_leaves_is_not_lost() -> None:
    lost: queue.Queue[tuple[int, int]] = queue.Queue()
    with contextlib.ExitStack() as stack:
        ranks = beating(stack, 3, lost)
        time.sleep(0.5 * TIMEOUT)
        ranks[2].__exit__()
        time.sleep(2 * TIMEOUT)
        assert lost.empty()


def test_datagrams_of_others_are_ignored() -> None:
    lost: queue.Queue[tuple[int, int]] = queue.Queue()
    with contextlib.ExitStack() as stack:
        first, second = beating(stack, 2, lost)
        stranger = Heartbeat(1, TIMEOUT, lambda rank: None)
        stack.enter_context(stranger.begin([stranger.contact, stranger.contact]))
        stranger._addresses = {0: ("127.0.0.1", first.contact.port)}
        time.sleep(0.5 * TIMEOUT)
        second._ended.set()
        assert lost.get(timeout=60) == (0, 1)


def stop_and_go_on(ranks: Ranks) -> bool:
    """Stops all ranks for longer than they wait for each other."""
    with ranks.watched(TIMEOUT):
        time.sleep(0.5 * TIMEOUT)
        if ranks.is_first:
            pids = ranks.gather(os.getpid())
            if os.fork() == 0:
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(3 * TIMEOUT)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                os._exit(0)
            os.wait()
        else:
            ranks.gather(os.getpid())
        time.sleep(0.5 * TIMEOUT)
        return ranks.lead(True) == [True]


def test_ranks_that_were_all_stopped_go_on() -> None:
    assert on_ranks(2, stop_and_go_on) == [True, True]


@pytest.mark.parametrize(
    ("local_rank", "lost", "says"), [(0, 3, True), (0, 1, True), (1, 0, False), (1, 2, True)]
)
def test_one_rank_of_each_machine_says_who_is_lost(
    local_rank: int, lost: int, says: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    # Its machine has ranks 2 and 3.
    end_without(lost, 4, local_rank, 2 + local_rank, 120)
    line = (
        f"fastrl train: error: rank {lost} of 4 has not answered for 120 s (run.rank_timeout), so all end;"
        " --resume RUN continues from the last checkpoint\n"
    )
    assert capfd.readouterr().err == (line if says else "")
    assert codes == [EXIT_LOST]
