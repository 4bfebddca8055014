"""The journal of a search: whole lines, or none."""

import errno
import os
from pathlib import Path

import pytest

from fastrl.tuning import journal
from fastrl.tuning.journal import Journal, JournalError, dump, parse

RECORDS = [
    {"event": "ended", "trial": f"trial-{i}", "score": i / 3, "text": 'ä", "crc": "0'} for i in range(3)
]


def test_records_come_back(tmp_path: Path) -> None:
    with Journal(tmp_path) as writer:
        for record in RECORDS:
            writer.append(record)
    with Journal(tmp_path) as reader:
        assert reader.records == RECORDS and reader.damaged == []


def test_a_journal_that_is_cut_anywhere_loses_its_last_line_alone(tmp_path: Path) -> None:
    lines = [dump(record) for record in RECORDS]
    data = b"".join(lines)
    for cut in range(len(data) + 1):
        (tmp_path / journal.NAME).write_bytes(data[:cut])
        whole = sum(sum(map(len, lines[: i + 1])) <= cut for i in range(3))
        with Journal(tmp_path) as opened:
            assert opened.records == RECORDS[:whole]
            opened.append(RECORDS[0])
        with Journal(tmp_path) as opened:
            assert opened.records == [*RECORDS[:whole], RECORDS[0]]


@pytest.mark.parametrize("byte", [0, 10, -3])
def test_a_damaged_line_is_left_out_and_named(byte: int, tmp_path: Path) -> None:
    lines = [bytearray(dump(record)) for record in RECORDS]
    lines[1][byte] ^= 1
    (tmp_path / journal.NAME).write_bytes(b"".join(lines))
    with Journal(tmp_path) as opened:
        assert opened.records == [RECORDS[0], RECORDS[2]] and opened.damaged == [2]


def test_every_changed_bit_is_noticed() -> None:
    line = dump(RECORDS[0])
    for place in range(len(line) - 1):
        for bit in range(8):
            changed = bytearray(line)
            changed[place] ^= 1 << bit
            assert parse(bytes(changed)) is None


@pytest.mark.parametrize("taken", [0, 10])
def test_a_full_disk_leaves_the_journal_as_it_was(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    with Journal(tmp_path) as opened:
        opened.append(RECORDS[0])
        with monkeypatch.context() as patch:
            calls = []

            def once_then_full(file: int, data: bytes) -> int:
                calls.append(len(data))
                if taken and len(calls) == 1:
                    return real(file, data[:taken])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr(os, "write", once_then_full)
            with pytest.raises(OSError, match="No space left") as caught:
                opened.append(RECORDS[1])
        assert caught.value.filename == str(tmp_path / journal.NAME)
        assert opened.records == RECORDS[:1]
        opened.append(RECORDS[2])
    with Journal(tmp_path) as opened:
        assert opened.records == [RECORDS[0], RECORDS[2]] and opened.damaged == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalError, match="in use"):
        Journal(tmp_path)
    Journal(tmp_path).close()
