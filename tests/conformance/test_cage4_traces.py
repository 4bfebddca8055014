"""Fidelity: the simulator reproduces recorded episodes of CAGE Challenge 4, from the seed and from the decisions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import cage4_reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage4.traces import Cage4Trace
from fastrl.envs.trace_files import TraceError, read_arrays, replay_file

GOLDEN = sorted((Path(__file__).parents[1] / "support" / "golden" / "cage4").glob("*.npz"))
SHARED = Path(__file__).parents[3] / "shared" / "cage4"
ALL_TRACES = GOLDEN + sorted((SHARED / "traces").glob("*.npz"))
SIMULATOR = SHARED / "reference.py"
Arrays = dict[str, NDArray[Any]]
MODES: tuple[Any, ...] = ("decisions", "seed")


def load(path: Path) -> tuple[dict[str, Any], Arrays]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("meta"))), arrays


def replay(mode: Any, meta: dict[str, Any], arrays: Arrays) -> tuple[int, int, Any]:
    flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in arrays.items()}
    flat["host"] = flat["host"].astype(np.uint8)
    return _rust.replay_cage4(
        mode, meta["red"], meta["seed"], meta["seeding"] == "constructor", meta["steps"], flat
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ALL_TRACES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_step_of_every_trace_is_reproduced(path: Path, mode: str) -> None:
    meta, arrays = load(path)
    assert replay(mode, meta, arrays) == (len(arrays["reward"]), 0, None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "column",
    [
        "obs",
        "phase",
        "reward_work",
        "reward_cost",
        "blue_success",
        "green_success",
        "red_target",
        "red_success",
        "exploit",
        "services",
        "processes",
        "top_pid",
        "suspicious",
        "blocked",
        "fsm",
        "red_active",
        "red_ticks",
        "red_known_sessions",
        "sessions",
        "tape",
    ],
)
def test_a_changed_record_is_found_and_described(column: str, mode: str) -> None:
    meta, arrays = load(GOLDEN[0])
    changed, step = arrays[column].copy(), 105
    at = arrays[f"{column}_off"][step] if column in ("sessions", "tape") else step
    changed[at] = changed[at] ^ 1
    _, mismatches, first = replay(mode, meta, arrays | {column: changed})
    assert mismatches > 0 and first[:2] == (0, step)
    assert column in first[2] or column == "tape"


def test_another_seed_and_another_agent_do_not_pass() -> None:
    meta, arrays = load(GOLDEN[0])
    assert replay("seed", meta | {"seed": meta["seed"] + 1}, arrays)[1] > 0
    other = {"fsm": "discovery", "discovery": "fsm"}[meta["red"]]
    assert replay("seed", meta | {"red": other}, arrays)[1] > 0


CHANGES: list[tuple[str, Any, str]] = [
    ("blue_action", 242, "blue_action holds 242, expected 0 to 241"),
    ("length", 7, "length holds 7, expected 150"),
    ("tape_off", 3, "tape_off does not rise from 0"),
    ("red_start", 0, "red starts on a host where it cannot"),
    ("service", 9, "a host has"),
    ("blue_pid", -1, "a pid is -1"),
    ("host", 0, "hosts are missing between others"),
]


@pytest.mark.parametrize(("column", "value", "message"), CHANGES)
def test_impossible_values_give_one_clear_line(column: str, value: int, message: str) -> None:
    meta, arrays = load(GOLDEN[0])
    changed = arrays[column].copy()
    # The first host is a router, which every subnet has.
    changed.reshape(-1)[5 if column == "service" else 0] = value
    with pytest.raises(ValueError, match=message):
        replay("seed", meta, arrays | {column: changed})


def test_arrays_that_are_missing_or_of_another_kind_are_refused() -> None:
    meta, arrays = load(GOLDEN[0])
    with pytest.raises(KeyError, match="the array obs is missing"):
        replay("seed", meta, {name: array for name, array in arrays.items() if name != "obs"})
    with pytest.raises(TypeError, match="obs: expected a C-contiguous uint8 array"):
        replay("seed", meta, arrays | {"obs": arrays["obs"].astype(np.int16)})
    with pytest.raises(ValueError, match="obs holds 10728 values, expected 10800 for 150 steps"):
        replay("seed", meta, arrays | {"obs": arrays["obs"][1:]})
    for name, value, message in [
        ("red", "bline", "red_agent: expected 'fsm' or 'discovery', got 'bline'"),
        ("steps", 1, "steps is 1, expected 2 to 1000"),
    ]:
        with pytest.raises(ValueError, match=message):
            replay("seed", meta | {name: value}, arrays)
    with pytest.raises(ValueError, match="mode: expected 'decisions' or 'seed', got 'both'"):
        replay("both", meta, arrays)


def load_trace(path: Any) -> Cage4Trace:
    return Cage4Trace.from_arrays(*read_arrays(path))


def test_files_that_are_no_traces_give_one_clear_line(tmp_path: Path) -> None:
    with np.load(GOLDEN[0]) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))

    def report(**changed: Any) -> str:
        np.savez(tmp_path / "changed.npz", **arrays | changed)
        error = replay_file(tmp_path / "changed.npz", load_trace).error
        assert error is not None and "\n" not in error
        return error

    for changes, message in [
        ({"red": "bline"}, "its red is 'bline', expected 'fsm' or 'discovery'"),
        ({"seeding": None}, "its seeding is None, expected 'reset' or 'constructor'"),
        ({"steps": 1.5}, "its steps are 1.5, expected a number"),
        ({"steps": 2**31}, f"steps is {2**31}, expected 2 to 1000"),
        ({"seed": 2**64}, f"its seed is {2**64}, expected an integer from 0 to 2**64 - 1"),
        ({"actions": [["Sleep"]]}, "not a trace of CAGE Challenge 4: its actions are others"),
    ]:
        assert report(meta=np.array(json.dumps(meta | changes))) == message
    assert report(fsm=arrays["fsm"].astype(int)).startswith("fsm: expected a C-contiguous uint8 array")
    assert report(length=np.zeros(0, np.int32)).startswith("host holds 137 values, expected 0")
    # A generator that runs on would have had other draws.
    meta |= {"seeding": "constructor"}
    del arrays["meta"]
    assert Cage4Trace.from_arrays(meta, arrays).replay("seed")[1] > 0
    arrays["meta"] = np.array(json.dumps(meta))
    del arrays["red_ticks"]
    assert report() == "not a CAGE 4 trace: the array red_ticks is missing"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_refused_or_unchanged(at: int, noise: bytes) -> None:
    good = bytearray(GOLDEN[-1].read_bytes())
    at %= len(good)
    good[at : at + len(noise)] = noise[: len(good) - at]
    # Any other error than a TraceError fails the test.
    with contextlib.suppress(TraceError):
        assert load_trace(io.BytesIO(bytes(good))).replay("decisions")[1:] == (0, None)


@pytest.mark.slow
@pytest.mark.skipif(not SIMULATOR.exists(), reason="needs the simulator in plain Python")
@pytest.mark.parametrize("red", ["fsm", "discovery"])
def test_random_policies_meet_the_same_game_as_in_plain_python(red: str) -> None:
    module = cage4_reference.load(SIMULATOR)
    # Lengths with all three remainders of the phases.
    for seed, steps in [(1000, 120), (2000, 61), (3000, 200)]:
        meta = {
            "red": red,
            "seed": seed,
            "seeding": "constructor" if steps == 61 else "reset",
            "steps": steps,
        }
        arrays = cage4_reference.record(module, red, seed, 2, steps, chained=steps == 61)
        for mode in MODES:
            assert replay(mode, meta, arrays) == (2 * steps, 0, None)
