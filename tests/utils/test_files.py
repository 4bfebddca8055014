import ast
import json
import math
import os
import secrets
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from matplotlib.figure import Figure

import fastrl
from fastrl.utils.files import (
    MAX_LINE_BYTES,
    DamagedFileError,
    append_file,
    atomic_path,
    new_file,
    parse_json,
    read_file,
    read_json,
    read_lines,
    save_figure,
    to_json,
    write_atomically,
)
from fastrl.utils.video import write_video

PACKAGE = Path(fastrl.__file__).parent


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of somebody else."""
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


def test_files_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old and long")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "link.gif"
    picture = np.zeros((8, 8, 3), np.uint8)
    for write in (
        lambda: write_atomically(link, b"new"),
        lambda: save_figure(link.with_suffix(".png"), Figure()),
        lambda: write_video(link, [picture], fps=10),
    ):
        for path in (link, link.with_suffix(".png")):
            path.unlink(missing_ok=True)
            path.symlink_to(victim)
        write()
        assert victim.read_text() == "mine"
    assert not link.is_symlink() and link.read_bytes().startswith(b"GIF")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_name_that_is_there_already_is_not_written_to(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if somebody guesses the temporary name."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "guess")
    for name in (".file.txt.guess.tmp", ".file.guess.tmp.txt", "new"):
        (tmp_path / name).symlink_to(victim)
    path = tmp_path / "file.txt"
    with pytest.raises(FileExistsError):
        write_atomically(path, b"new")
    with pytest.raises(FileExistsError), atomic_path(path):
        pass
    with pytest.raises(FileExistsError):
        new_file(tmp_path / "new")
    assert victim.read_text() == "mine" and not path.exists()


def test_nothing_is_appended_to_links_and_pipes(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "nowhere", "pipe"):
        with pytest.raises(DamagedFileError, match=f"{name} is a link or no regular file"):
            append_file(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        append_file(tmp_path)
    assert victim.read_text() == "mine" and not (tmp_path / "nothing").exists()
    for text in (b"a", b"b"):
        with append_file(tmp_path / "file") as file:
            file.write(text)
    assert (tmp_path / "file").read_bytes() == b"ab"


WRITERS = {
    *("write_text", "write_bytes", "savefig", "save_file", "savez", "savez_compressed", "tofile", "to_csv"),
    *(
        "mkstemp",
        "NamedTemporaryFile",
        "copyfile",
        "copy2",
        "copytree",
        "touch",
        "FileIO",
        "memmap",
        "fdopen",
    ),
    *("symlink_to", "hardlink_to", "imwrite", "imsave", "mimsave", "get_writer", "SummaryWriter"),
}
# Calls of the package that write in another way than by `fastrl.utils.files`, and why each may.
OTHER_WAYS = {
    ("envs/traffic/trajectories.py", "savez_compressed"): "into an open file",
    ("exports/arrays.py", "savez"): "into an open file",
    ("replay/storage.py", "tofile"): "into an open file",
    ("replay/storage.py", "memmap"): "of files that were made by new_file, or are no links",
    ("runs/loggers.py", "SummaryWriter"): "TensorBoard's own, into its own folder",
    ("tuning/fork.py", "copytree"): "into a directory that was just made",
    ("tuning/worker.py", "fdopen"): "of standard output",
    ("utils/output.py", "open"): "/dev/null",
    ("utils/output.py", "fdopen"): "of standard streams",
    ("utils/output.py", "FileIO"): "of standard streams",
    ("utils/shared_tables.py", "mkstemp"): "in shared memory, by a name that cannot be guessed",
    ("utils/shared_tables.py", "open"): "in shared memory, by the name that its maker has handed over",
    ("utils/video.py", "get_writer"): "to a path of atomic_path",
}


def writing_calls(path: Path) -> set[str]:
    """The names of calls that may write files in a module."""
    found = set()
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = (
            []
            if not isinstance(call, ast.Call | ast.ClassDef)
            else [call.func]
            if isinstance(call, ast.Call)
            else call.bases
        )
        for name in (getattr(each, "attr", getattr(each, "id", "")) for each in names):
            if name in WRITERS:
                found.add(name)
            elif name == "open" and isinstance(call, ast.Call):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                modes = [each.value for each in given if isinstance(each, ast.Constant)]
                writes = any(
                    isinstance(mode, str) and len(mode) < 4 and set(mode) & set("wax+") for mode in modes
                )
                flags = {
                    getattr(each, "attr", getattr(each, "id", "")) for arg in given for each in ast.walk(arg)
                }
                if writes or flags & {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "_FLAGS"}:
                    found.add(name)
    return found


def test_all_files_of_the_package_are_written_by_these_functions() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "utils" / "files.py"
        for name in writing_calls(path)
    }
    assert found == OTHER_WAYS.keys()


def test_only_regular_files_of_bounded_length_are_read(tmp_path: Path) -> None:
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_bytes(b"x" * (MAX_LINE_BYTES + 1))
    for read in (read_file, read_json, lambda path: list(read_lines(path))):
        with pytest.raises(DamagedFileError, match="pipe is no regular file"):
            read(pipe)
        with pytest.raises(DamagedFileError, match="is no regular file"):
            read(tmp_path)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "nothing")
    with pytest.raises(DamagedFileError, match="long has more than 9 bytes"):
        read_file(long, 9)
    assert [len(line) for line in read_lines(long)] == [MAX_LINE_BYTES, 1]
    long.write_bytes(b"one\ntw\xffo\nthree")
    assert list(read_lines(long)) == ["one\n", "tw\ufffdo\n", "three"]
    assert (
        list(read_lines(long, start=-7)) == ["o\n", "three"] and len(list(read_lines(long, start=-99))) == 3
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        (b"\xff\xfe{", "it is not JSON"),
        ("9" * 5000, "it is not JSON: Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a":' + "[" * 300 + "]" * 300 + "}", "nested too deeply"),
        ("[1]", "expected an object, got a list"),
        ("null", "expected an object, got a value"),
    ],
)
def test_documents_that_are_no_objects_are_refused(text: str | bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=why):
        parse_json(text)
    file = tmp_path / "f.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DamagedFileError, match=f"f.json is damaged: .*{why}"):
        read_json(file)


def test_json_is_standard() -> None:
    text = to_json(
        {"nan": math.nan, "list": [math.inf, 1.5, "ü"], "tuple": (1, None), "deep": {"x": -math.inf}}
    )
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {
        "nan": None,
        "list": [None, 1.5, "ü"],
        "tuple": [1, None],
        "deep": {"x": None},
    }


def test_json_of_a_mapping_that_is_no_dict() -> None:
    assert json.loads(to_json({"a": MappingProxyType({"b": 1.5})})) == {"a": {"b": 1.5}}


def test_json_has_no_control_characters_that_a_terminal_obeys() -> None:
    value = ["\x1b[31m", "\x9b31m", "\x7f", "\udcff"]
    text = to_json(value)
    assert text.isprintable() and json.loads(text) == value
