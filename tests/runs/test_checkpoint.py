import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrl.runs.checkpoint import (
    CheckpointError,
    Checkpoints,
    find_checkpoint,
    load_checkpoint,
    load_newest,
    save_checkpoint,
)

STATE = {
    "weights": {
        "0.weight": torch.arange(12.0).reshape(3, 4),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
    },
    "mask": torch.tensor([True, False]),
    "half": torch.tensor([1.5, -0.0]).bfloat16(),
    "empty": torch.empty(0, 52),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "env": bytes(range(256)) * 3,
    "nothing": b"",
    "steps": 12345678901234567890,
    "rate": 0.1 + 0.2,
    "nan": float("nan"),
    "none": None,
    "names": ["a", "ü", [True, {}]],
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, types included."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


def test_reads_back_to_the_bit(path: Path) -> None:
    save_checkpoint(path, STATE)
    assert same(STATE, load_checkpoint(path))
    assert [item.name for item in path.parent.iterdir()] == [path.name]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab./", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(json_values, st.binary(max_size=100))
def test_any_plain_value_reads_back(
    tmp_path_factory: pytest.TempPathFactory, value: Any, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "c"
    save_checkpoint(path, {"value": value, "data": data})
    assert same({"value": value, "data": data}, load_checkpoint(path))


def test_tensors_that_share_memory_read_back(path: Path) -> None:
    whole = torch.arange(6.0)
    save_checkpoint(path, {"whole": whole, "part": whole[2:4], "again": whole})
    assert same(load_checkpoint(path), {"whole": whole, "part": whole[2:4], "again": whole})


@pytest.mark.parametrize("value", [object(), {1: 2}, {"$tensor": "x"}, {1, 2}, 1j])
def test_what_it_cannot_hold_is_refused_and_leaves_the_old_file(path: Path, value: Any) -> None:
    save_checkpoint(path, {"a": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"value": value})
    assert load_checkpoint(path) == {"a": 1}


def test_names_that_collide_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="a/b"):
        save_checkpoint(path, {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}})


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_every_damaged_byte_is_noticed(path: Path) -> None:
    save_checkpoint(path, {"w": torch.arange(5.0), "s": b"state", "n": 3})
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        try:
            state = load_checkpoint(path)
        except CheckpointError:
            continue
        # Only blanks that pad the header mean nothing.
        assert good[position : position + 1] == b" "
        assert same(state, {"w": torch.arange(5.0), "s": b"state", "n": 3})


def test_every_truncation_is_noticed(path: Path) -> None:
    save_checkpoint(path, {"w": torch.arange(5.0), "s": b"state"})
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        refusal(path)
    path.write_bytes(good + b"x")
    refusal(path)


def test_what_was_loaded_does_not_depend_on_the_file_any_more(path: Path) -> None:
    save_checkpoint(path, STATE)
    state = load_checkpoint(path)
    path.write_bytes(b"")
    assert same(STATE, state)


def test_foreign_files_are_refused(path: Path) -> None:
    for content in (
        b"",
        b"hello",
        os.urandom(1000),
        pickle.dumps({"a": 1}),
        b"PK\x03\x04" + bytes(500),
        b"\xff" * 64,
    ):
        path.write_bytes(content)
        assert "not a checkpoint, or a damaged one" in refusal(path)
    torch.save({"a": torch.zeros(3)}, path)
    assert "not a checkpoint, or a damaged one: a zip file, as Stable-Baselines3 saves" in refusal(path)
    safetensors.torch.save_file({"w": torch.zeros(3)}, path)
    assert "some other safetensors file" in refusal(path)


def test_a_pickle_in_it_is_not_run(path: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    path.write_bytes(pickle.dumps(Trap()))
    refusal(path)
    assert not (tmp_path / "ran").exists()


def test_other_versions_are_refused(path: Path) -> None:
    metadata = {"format": "fastrl-checkpoint", "version": "99", "document": "{}", "sha256": ""}
    safetensors.torch.save_file({"w": torch.zeros(3)}, path, metadata)
    assert "version 99" in refusal(path)


@pytest.mark.parametrize(
    "document", ["", "[]", "3", '{"a": {"$tensor": "b"}}', '{"a": {"$bytes": []}}', "[" * 9999]
)
def test_documents_that_make_no_sense_are_refused(path: Path, document: str) -> None:
    metadata = {
        "format": "fastrl-checkpoint",
        "version": "1",
        "document": document,
        "sha256": hashlib.sha256(document.encode()).hexdigest(),
    }
    path.write_bytes(safetensors.torch.save({}, metadata))
    refusal(path)


def test_a_document_that_asks_for_copies_of_a_tensor_is_refused(path: Path) -> None:
    """A thousand copies of a large one would not fit into memory."""
    save_checkpoint(path, {"a": b"0" * 100, "b": b"1"})
    data = path.read_bytes()
    tensors = safetensors.torch.load(data)
    document = json.dumps({"a": {"$bytes": "a"}, "b": {"$bytes": "a"}})
    digest = hashlib.sha256(document.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode() + raw(tensor))
    metadata = {
        "format": "fastrl-checkpoint",
        "version": "1",
        "document": document,
        "sha256": digest.hexdigest(),
    }
    path.write_bytes(safetensors.torch.save(tensors, metadata))
    assert "its document was made by something else" in refusal(path)


def test_kinds_of_tensors_that_are_not_known_are_refused(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refusal(path)


def test_a_pipe_in_place_of_a_checkpoint_is_refused(path: Path) -> None:
    """It would be waited for for ever."""
    os.mkfifo(path)
    assert "is no file" in refusal(path)


def test_missing_files_and_directories_are_refused(path: Path) -> None:
    assert "no such file" in refusal(path)
    refusal(path.parent)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=2)
    for steps in (5, 10_000_000_000_000, 200, 30):
        checkpoints.save(steps, {"steps": steps})
    assert [load_checkpoint(path)["steps"] for path in checkpoints.paths()] == [200, 10_000_000_000_000]
    newest = checkpoints.paths()[-1]
    assert (
        find_checkpoint(tmp_path / "run")
        == find_checkpoint(newest.parent)
        == find_checkpoint(newest)
        == newest
    )


def test_later_ones_are_dropped(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.drop_after(0)
    for steps in (1, 20, 300):
        checkpoints.save(steps, {})
    checkpoints.drop_after(20)
    assert [path.name for path in checkpoints.paths()] == [
        "step-000000000001.safetensors",
        "step-000000000020.safetensors",
    ]


def test_left_overs_and_strangers_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    checkpoints.directory.mkdir()
    (checkpoints.directory / ".step-000000000009.safetensors.7.tmp").write_bytes(b"half")
    (checkpoints.directory / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(tmp_path)
    checkpoints.save(1, {})
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == [
        "notes.txt",
        "step-000000000001.safetensors",
    ]


def test_of_a_damaged_newest_one_the_one_before_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    older = checkpoints.save(1, {"steps": 1})
    newest = checkpoints.save(2, {"steps": 2})
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{newest}.*; the one before it is {older}$"):
        load_newest(tmp_path)
    with pytest.raises(CheckpointError, match="damaged one"):
        load_newest(newest)
    assert load_newest(older) == (older, {"steps": 1})


KILL_WHILE_SAVING = """
import os, random, signal, sys, time, torch
from pathlib import Path
from fastrl.runs.checkpoint import Checkpoints, load_newest

run = Path(sys.argv[1])
checkpoints = Checkpoints(run / "checkpoints", keep=2)
chance = random.Random(0)
last = 0
checkpoints.save(last, {"step": last, "data": torch.full((20_000,), last)})
kills, end = 0, time.monotonic() + 600
while kills < 40 or (last <= 10 and time.monotonic() < end):
    kills += 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for step in range(last + 1, 10**9):
            checkpoints.save(step, {"step": step, "data": torch.full((20_000,), step)})
            os.write(writer, b".")
    os.close(writer)
    # Longer and longer where nothing gets done in so short a time.
    time.sleep(chance.uniform(0, 0.00125 * max(kills, 40)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    saved = len(os.read(reader, 10**6))
    os.close(reader)
    state = load_newest(run)[1]
    assert state["step"] >= last + saved, (state["step"], last, saved)
    assert state["data"].eq(state["step"]).all()
    last = state["step"]
checkpoints.save(last + 1, {})
assert len(list(checkpoints.directory.iterdir())) == 2
print(last)
"""


@pytest.mark.slow
def test_killed_while_saving_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILL_WHILE_SAVING, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10
