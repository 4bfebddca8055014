"""Arbitrary files of fastrl.replay, and forked children: errors, and neither crash nor hang."""

import contextlib
import json
import os
import signal
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import TIMEOUT

from fastrl.replay import PrioritizedSampler, Replay, ReplayError, SequenceSampler, UniformSampler

NAMES = ["rows", "rings", "ages", "starts"]


def step(replay, number, env=0):
    obs, later = np.full((2, 3), [[number], [number + 1]], np.uint8)
    masks = {"mask": np.arange(2) <= number % 2, "next_mask": np.arange(2) > number % 2}
    masks = masks if replay.num_masked else {}
    replay.add(obs, number, float(number), later, number % 5 == 4, False, env=env, **masks)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of one, and what is in it."""
    replay = Replay(12, (3,), np.uint8, num_envs=2, stack=2, num_masked=2, final_masks=True)
    for number in range(17):
        step(replay, number, number % 2)
    folder = tmp_path_factory.mktemp("replay") / "saved"
    replay.save(folder)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def use(folder):
    """Loads or refuses it; what is loaded is sampled and written to."""
    refusals = []
    for read in (Replay.load, Replay.open):
        try:
            replay = read(folder)
        except ReplayError as error:
            refusals.append(str(error))
            continue
        with contextlib.suppress(
            ValueError, TypeError
        ):  # of what it says there may be too few, or no tensors
            UniformSampler(replay, 4, n_step=3).sample()
            PrioritizedSampler(replay, 4, seed=1).sample()
            SequenceSampler(replay, 2, length=3, burn_in=2, seed=1).sample()
            for number in range(30):
                step(replay, number)
    assert not any("\n" in refusal for refusal in refusals)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.integers()
    | st.floats()
    | st.sampled_from(["<f4", "|u1", "|O", "(2,", ">i8", "U3", "zero", "obs", "2i4,f8"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["names", "formats", "offsets", "itemsize", "titles"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def places(value, path=()):
    """The paths to everything in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arbitrary_descriptions_are_refused_or_safe(saved, data):
    folder, files = saved
    description = json.loads(files["replay.json"])
    # Otherwise a checksum would hide what lies behind it.
    description["checksums"] = None
    path = data.draw(st.sampled_from(list(places(description))))
    value = data.draw(values)
    if path:
        inner = description
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    else:
        description = value
    (folder / "replay.json").write_text(json.dumps(description))
    use(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@settings(max_examples=50, deadline=None)
@given(
    st.binary(max_size=80)
    | st.sampled_from([b"[" * 100_000, b"{" * 9, b"1e999", b"9" * 5000, b" " * (2 << 20)])
)
def test_arbitrary_bytes_as_description_are_refused(saved, content):
    folder, files = saved
    (folder / "replay.json").write_bytes(content)
    for read in (Replay.load, Replay.open):
        with pytest.raises(ReplayError) as caught:
            read(folder)
        assert "\n" not in str(caught.value)
    (folder / "replay.json").write_bytes(files["replay.json"])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 255) | st.sampled_from([0, 1, 255])), max_size=9
    ),
)
def test_arbitrary_arrays_are_refused_or_safe(saved, name, changes):
    """With checksums as they should be: what is read lies inside of the arrays, and every call returns."""
    folder, files = saved
    content = bytearray(files[f"{name}.bin"])
    for place, value in changes:
        content[place % len(content)] = value
    description = json.loads(files["replay.json"])
    description["checksums"][name] = zlib.crc32(content)
    (folder / f"{name}.bin").write_bytes(content)
    (folder / "replay.json").write_text(json.dumps(description))
    use(folder)
    for file, before in files.items():
        (folder / file).write_bytes(before)


def test_anything_but_a_file_is_refused(saved, tmp_path):
    _, files = saved
    for name in files:
        folder = tmp_path / name
        folder.mkdir()
        for other, content in files.items():
            (folder / other).write_bytes(content)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ReplayError):
            Replay.load(folder)


# Forked children.


def errors_in_a_fork(calls):
    """The errors of calls in a forked child, which is killed if it takes too long."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Ends the child wherever it waits.
            signal.alarm(int(TIMEOUT))
            errors = []
            for call in calls:
                try:
                    call()
                    errors.append("nothing")
                except RuntimeError as error:
                    errors.append(str(error))
            os.write(writer, json.dumps(errors).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child was killed"
    return json.loads(text)


def test_a_forked_child_gets_an_error_while_a_thread_writes(tmp_path):
    replay = Replay(100_000, (3,), np.uint8)
    for number in range(40):
        step(replay, number)
    uniform, prioritized = UniformSampler(replay, 4), PrioritizedSampler(replay, 4, seed=1)
    sequences = SequenceSampler(replay, 2, length=3, seed=1)
    batch = prioritized.sample()
    many = np.zeros((20_000, 3), np.uint8)
    flags, zeros = np.zeros(20_000, np.bool_), np.zeros(20_000, np.int64)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            replay.add_many(many, zeros, zeros.astype(np.float32), many, flags, flags, envs=zeros)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        # Nearly all the time the lock is held.
        for _ in range(3):
            errors = errors_in_a_fork(
                [
                    lambda: step(replay, 1),
                    lambda: replay.add_many(
                        many[:1], zeros[:1], np.zeros(1, np.float32), many[:1], flags[:1], flags[:1]
                    ),
                    lambda: replay.append(np.zeros(1, replay.dtype)),
                    lambda: replay.cut(0),
                    lambda: replay.save(tmp_path / "child"),
                    uniform.sample,
                    prioritized.sample,
                    sequences.sample,
                    lambda: prioritized.update_priorities(batch.indices, np.ones(4)),
                ]
            )
            assert len(errors) == 9
            assert all(
                "forked child" in line and "belongs to the parent process" in line for line in errors
            ), errors
    finally:
        stop.set()
        thread.join()
    assert not (tmp_path / "child").exists()


def test_a_forked_child_can_make_replays():
    def play():
        mine = Replay(10, (3,), np.uint8)
        for number in range(8):
            step(mine, number)
        UniformSampler(mine, 4).sample()

    assert errors_in_a_fork([play]) == ["nothing"]
