"""Heartbeats of ranks. A rank that hangs keeps its connections open: the others notice nothing but its silence.

Each rank sends a datagram to each other one every few seconds, from a thread of its own. A rank that has been heard and
then is silent for too long is lost: its process is stopped, its machine has no power, or the network has failed. A time
limit on exchanges would not do: ranks may compute for hours between two of them, while rank 0 evaluates alone.
"""

import contextlib
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

# Exit codes of a rank that has lost another one, and of one that ``fastrl train --ranks`` has started and that has
# trained: a program that is not fastrl may end with 0.
EXIT_LOST, EXIT_TRAINED = 75, 76
# Set in ranks that ``fastrl train --ranks`` has started: it says why they end.
LAUNCHED = "FASTRL_LAUNCHED_RANK"

# What a rank says: it is there, or it leaves.
_BEAT, _LEAVE = 0, 1
# Token of the run, number of the rank, what it says.
_MESSAGE = struct.Struct("!16sIB")
# Parts of the time limit between two beats, and the longest of them, in seconds.
_BEATS, _LONGEST = 20, 5.0
# Most waiting datagrams that are read before a rank is taken for lost.
_MOST_READ = 10_000


class Contact(NamedTuple):
    """The address of a rank.

    Attributes:
        host: address of its machine, as far as it knows.
        port: of its datagrams.
        token: of the run, that of rank 0 counts; datagrams without it are ignored.
    """

    host: str
    port: int
    token: bytes


class Heartbeat:
    """Heartbeats that one rank sends, and a listener for those of the others. It runs while its context is open.

    Only a rank that has been heard can be lost: where datagrams do not get through, none is ever lost. While this
    process is stopped itself, its time does not count.

    Args:
        rank: number of this rank.
        timeout: seconds of silence after which a rank is lost.
        on_lost: called with its number, on a thread of the heartbeat, at most once.
        toward: a host that other ranks can reach: this rank is reached in the same network.
        clock: the time, in seconds.
    """

    def __init__(
        self,
        rank: int,
        timeout: float,
        on_lost: Callable[[int], None],
        toward: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._timeout, self._on_lost, self._clock = rank, timeout, on_lost, clock
        self._interval = min(timeout / _BEATS, _LONGEST)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self.contact = Contact(_local_address(toward), self._socket.getsockname()[1], secrets.token_bytes(16))
        self._token = b""
        self._addresses: dict[int, tuple[str, int]] = {}
        self._heard: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def begin(self, contacts: Sequence[Contact]) -> Self:
        """Starts the heartbeats.

        Args:
            contacts: of all ranks, by rank.
        """
        self._token = contacts[0].token
        self._addresses = {
            rank: (contact.host, contact.port) for rank, contact in enumerate(contacts) if rank != self._rank
        }
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        # A datagram may get lost.
        for _ in range(3):
            self._send(_LEAVE)
        self._socket.close()

    def _run(self) -> None:
        awake = self._clock()
        while not self._ended.is_set():
            now = self._clock()
            if now - awake > self._timeout / 2:
                # This process was stopped, perhaps with all others.
                self._heard = dict.fromkeys(self._heard, now)
            awake = now
            self._send(_BEAT)
            self._listen(now + self._interval)
            silent = [rank for rank, heard in self._heard.items() if awake - heard > self._timeout]
            if silent and not self._ended.is_set():
                self._on_lost(min(silent))
                return

    def _send(self, kind: int) -> None:
        message = _MESSAGE.pack(self._token, self._rank, kind)
        for address in list(self._addresses.values()):
            # A network that fails shows in the others' silence.
            with contextlib.suppress(OSError):
                self._socket.sendto(message, address)

    def _listen(self, until: float) -> None:
        """Notes who is heard, and who has been heard while this thread could not run."""
        while (left := until - self._clock()) > 0 and not self._ended.is_set():
            self._receive(min(left, 0.2))
        for _ in range(_MOST_READ):
            if not self._receive(0.0):
                break

    def _receive(self, seconds: float) -> bool:
        """Waits for a datagram; False if there is none."""
        self._socket.settimeout(seconds)
        try:
            message, sender = self._socket.recvfrom(_MESSAGE.size + 1)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            # A machine has said that nobody listens there.
            return True
        if len(message) != _MESSAGE.size:
            return True
        token, rank, kind = _MESSAGE.unpack(message)
        if token != self._token or rank not in self._addresses:
            return True
        if kind == _LEAVE:
            del self._addresses[rank]
            self._heard.pop(rank, None)
        else:
            # A host may know itself by an address that others cannot use.
            self._addresses[rank] = sender
            self._heard[rank] = self._clock()
        return True


def end_without(lost: int, count: int, local_rank: int, rank: int, timeout: float) -> None:
    """Ends this process, which waits for a rank that is lost and cannot be waked.

    Args:
        lost: the rank.
        count: of ranks.
        local_rank: this rank's number on its machine.
        rank: number of this rank.
        timeout: seconds that the lost one was silent.
    """
    first = rank - local_rank
    # One rank of each machine says it, where no other process does.
    if LAUNCHED not in os.environ and local_rank == (1 if lost == first else 0):
        line = (
            f"fastrl train: error: rank {lost} of {count} has not answered for {timeout:g} s (run.rank_timeout), so"
            " all end; --resume RUN continues from the last checkpoint\n"
        )
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line.encode())
    os._exit(EXIT_LOST)


def _local_address(toward: str) -> str:
    """The address of this machine in the network of a host; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
