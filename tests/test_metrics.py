import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

from fastrl.metrics import ConsoleSink, JsonlSink, TensorBoardSink, TrainRow, brief, count, duration


def row(steps: int, **changes: Any) -> TrainRow:
    values: dict[str, Any] = {
        "steps": steps,
        "iteration": steps // 10,
        "episodes": 3,
        "mean_return": -12.5,
        "mean_length": 100.0,
        "returns": {"bline": -20.0, "meander": -5.0},
        "losses": {"policy_loss": 0.5, "value_loss": 0.25, "entropy": 4.5},
        "seconds": 1.5,
        "steps_per_second": 1000.0,
        "parts": {"environment": 0.25, "update": 1.0},
    }
    return TrainRow(**values | changes)


def test_a_record_has_all_numbers_once() -> None:
    record = row(10).record()
    assert next(iter(record)) == "steps"
    assert record == {
        "steps": 10,
        "iteration": 1,
        "episodes": 3,
        "mean_return": -12.5,
        "mean_length": 100.0,
        "mean_return_bline": -20.0,
        "mean_return_meander": -5.0,
        "policy_loss": 0.5,
        "value_loss": 0.25,
        "entropy": 4.5,
        "seconds": 1.5,
        "steps_per_second": 1000.0,
        "seconds_environment": 0.25,
        "seconds_update": 1.0,
    }


def test_jsonl_is_standard_json(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(row(10))
    sink.write(row(20, mean_return=math.nan, losses={"policy_loss": math.inf}))
    # Each row is there as soon as it is written.
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    sink.close()
    assert json.loads(lines[0]) == row(10).record()
    assert json.loads(lines[1])["mean_return"] is None
    assert json.loads(lines[1])["policy_loss"] is None
    assert "NaN" not in lines[1]
    assert "Infinity" not in lines[1]


@pytest.mark.parametrize("damage", ["", '{"steps": 30', "\x00\x00", '{"step": 30}\n', "[]\n", '"steps"\n'])
@pytest.mark.parametrize(
    ("after", "kept"), [(0, []), (5, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30])]
)
def test_jsonl_goes_on_after_a_checkpoint(tmp_path: Path, damage: str, after: int, kept: list[int]) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    for steps in (10, 20, 30):
        sink.write(row(steps))
    sink.close()
    with path.open("a") as file:
        file.write(damage)
    sink = JsonlSink(path, after=after)
    sink.write(row(99))
    sink.flush()
    assert [json.loads(line)["steps"] for line in path.read_text().splitlines()] == [*kept, 99]
    sink.close()


def events(directory: Path) -> list[Event]:
    """What TensorBoard would read: records of length, checksum, data, checksum."""
    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[12 + length + 4 :]
    return found


def test_tensorboard_gets_every_finite_number(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(row(10))
    sink.write(row(20, mean_return=math.nan))
    sink.close()
    scalars = {
        (event.step, value.tag): value.simple_value
        for event in events(tmp_path)
        for value in event.summary.value
    }
    assert scalars[10, "episode/mean_return"] == -12.5
    assert scalars[10, "ppo/entropy"] == 4.5
    assert scalars[20, "time/seconds_update"] == 1.0
    assert (20, "episode/mean_return") not in scalars
    assert len(scalars) == 2 * (len(row(10).record()) - 1) - 1


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    TensorBoardSink(tmp_path).close()
    assert not any(event.HasField("session_log") for event in events(tmp_path))
    TensorBoardSink(tmp_path, after=20).close()
    starts = [event.step for event in events(tmp_path) if event.HasField("session_log")]
    assert starts == [21]


def shown(*, terminal: bool, steps: list[int], interval: float = 10.0) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    sink = ConsoleSink(console, total=40, interval=interval)
    for each in steps:
        sink.write(row(each))
    sink.close()
    return out.getvalue()


def test_without_a_terminal_there_are_lines_now_and_then() -> None:
    text = shown(terminal=False, steps=[10, 20, 30, 45])
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    # The first at once, the last at the end.
    assert [line.split("  ")[0] for line in lines] == ["10 steps (25%)", "45 steps (100%)"]
    assert "return -12.5  policy 0.50  value 0.25  entropy 4.50" in lines[0]
    assert lines[1].endswith("  0:00 left")
    assert len(shown(terminal=False, steps=[10, 20, 30], interval=0).splitlines()) == 3
    assert shown(terminal=False, steps=[]) == ""


def test_on_a_terminal_there_is_a_bar() -> None:
    text = shown(terminal=True, steps=[10, 20])
    assert "\x1b" in text
    assert "50%" in text
    assert "20/40 steps" in text
    assert "return -12.5" in text
    assert "left" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "-"),
        (-1134.94, "-1134.9"),
        (3.14159, "3.14"),
        (0.00123, "0.0012"),
        (0.0, "0"),
        (-0.5, "-0.50"),
    ],
)
def test_brief(value: float, text: str) -> None:
    assert brief(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (45_312, "45.3k"), (2e6, "2.0M"), (3e9, "3.0G")]
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03"), (math.nan, "-:--")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
