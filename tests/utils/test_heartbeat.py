"""Heartbeats: silence tells that a rank hangs."""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Collection, Iterator

import pytest
from waiting import wait_until

from fastrl.utils.heartbeat import EXIT_LOST, Contact, Heartbeat, end_without

TIMEOUT = 1.0


class Ranks:
    """Heartbeats of ranks in this process, each with a clock of its own, which stands still.

    Attributes:
        beats: of each rank, what it says and what it loses, as a rank more sees it, which is never heard itself.
        lost: pairs of a rank and the one that it has lost, which ends its beats.
    """

    def __init__(self, count: int, stack: contextlib.ExitStack) -> None:
        self.clocks = [0.0] * count
        self.lost: dict[int, int] = {}
        self.beats: list[Heartbeat] = []
        for rank in range(count):
            beat = Heartbeat(
                rank,
                TIMEOUT,
                lambda other, rank=rank: self.lost.__setitem__(rank, other),  # type: ignore[misc]
                clock=lambda rank=rank: self.clocks[rank],  # type: ignore[misc]
            )
            self.beats.append(stack.enter_context(beat))
        self._witness = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._witness.bind(("127.0.0.1", 0))
        self._witness.settimeout(0.01)
        self._seen: Counter[int] = Counter()
        own = [beat.contact for beat in self.beats]
        # It comes last, so that what it sees the others have been sent.
        contacts = [*own, Contact("127.0.0.1", self._witness.getsockname()[1], b"")]
        self._ranks = {contact.port: rank for rank, contact in enumerate(own)}
        for beat in self.beats:
            beat.begin(contacts)
        wait_until(lambda: len(self._look()) == count)

    def _look(self) -> Counter[int]:
        """The number of datagrams of each rank."""
        with contextlib.suppress(TimeoutError):
            self._seen[self._ranks[self._witness.recvfrom(100)[1][1]]] += 1
        return self._seen

    def pass_time(self, seconds: float, ranks: Collection[int]) -> None:
        """Lets time pass for some ranks, each of which then beats once more, unless it has lost another one."""
        before = Counter(self._seen)
        for rank in ranks:
            self.clocks[rank] += seconds
        wait_until(
            lambda: (
                self._look() and all(self._seen[rank] > before[rank] or rank in self.lost for rank in ranks)
            )
        )


@pytest.fixture
def three() -> Iterator[Ranks]:
    with contextlib.ExitStack() as stack:
        yield Ranks(3, stack)


def test_a_silent_rank_is_lost_to_all_others(three: Ranks) -> None:
    for _ in range(10):
        three.pass_time(0.4 * TIMEOUT, (0, 1, 2))
    assert not three.lost
    # It neither beats nor says that it leaves.
    for _ in range(2):
        three.pass_time(0.4 * TIMEOUT, (0, 2))
    assert not three.lost
    while len(three.lost) < 2:
        three.pass_time(0.4 * TIMEOUT, {0, 2} - three.lost.keys())
    assert three.lost == {0: 1, 2: 1} and three.clocks[0] <= 8 * TIMEOUT


def test_a_rank_that_leaves_is_not_lost(three: Ranks) -> None:
    three.beats[2].__exit__()
    for _ in range(10):
        three.pass_time(0.4 * TIMEOUT, (0, 1))
    assert not three.lost


def test_datagrams_of_others_are_ignored(three: Ranks) -> None:
    first = three.beats[0].contact
    with Heartbeat(1, TIMEOUT / 100, lambda rank: None) as stranger:
        contact = stranger.contact
        stranger.begin([Contact(first.host, first.port, contact.token), contact])
        while 0 not in three.lost:
            three.pass_time(0.4 * TIMEOUT, {0, 2} - three.lost.keys())
    assert three.lost[0] == 1


def test_ranks_that_were_all_stopped_go_on(three: Ranks) -> None:
    for _ in range(3):
        three.pass_time(3 * TIMEOUT, (0, 1, 2))
        three.pass_time(0.1 * TIMEOUT, (0, 1, 2))
    assert not three.lost


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
