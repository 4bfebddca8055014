import dataclasses
import io
import json
import math
import struct
from pathlib import Path

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event
from waiting import TIMEOUT

from fastrl.training.loggers import ConsoleSink, JsonlSink, TensorBoardSink
from fastrl.training.metrics import Number, Row


@dataclasses.dataclass(frozen=True)
class SomeRow(Row):
    mean_return: float = -12.5
    loss: float = 0.5

    def groups(self) -> dict[str, dict[str, Number]]:
        return {"episode": {"mean_return": self.mean_return}, "dqn": {"loss": self.loss}}

    def highlights(self) -> list[str]:
        return [f"return {self.mean_return}", f"loss {self.loss}"]


def test_jsonl_is_standard_json(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(SomeRow(10))
    sink.write(SomeRow(20, mean_return=math.nan, loss=math.inf))
    # Each row is there as soon as it is written.
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    sink.close()
    assert json.loads(lines[0]) == SomeRow(10).record()
    assert json.loads(lines[1])["mean_return"] is None
    assert json.loads(lines[1])["loss"] is None
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
        sink.write(SomeRow(steps))
    sink.close()
    with path.open("a") as file:
        file.write(damage)
    sink = JsonlSink(path, after=after)
    sink.write(SomeRow(99))
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
    sink.write(SomeRow(10))
    sink.write(SomeRow(20, mean_return=math.nan))
    sink.close()
    scalars = {
        (event.step, value.tag): value.simple_value
        for event in events(tmp_path)
        for value in event.summary.value
    }
    assert scalars[10, "episode/mean_return"] == -12.5
    assert scalars[10, "dqn/loss"] == 0.5
    assert scalars[20, "dqn/loss"] == 0.5
    assert (20, "episode/mean_return") not in scalars
    assert len(scalars) == 2 * (len(SomeRow(10).record()) - 1) - 1


@pytest.mark.parametrize("after", [0, 20])
def test_tensorboard_hides_what_came_after_the_checkpoint(after: int, tmp_path: Path) -> None:
    TensorBoardSink(tmp_path, after).close()
    starts = [event.step for event in events(tmp_path) if event.HasField("session_log")]
    assert starts == [after + 1]


def shown(*, terminal: bool, steps: list[int], interval: float = TIMEOUT) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    sink = ConsoleSink(console, total=40, interval=interval)
    for each in steps:
        sink.write(SomeRow(each))
    sink.close()
    return out.getvalue()


def test_without_a_terminal_there_are_lines_now_and_then() -> None:
    text = shown(terminal=False, steps=[10, 20, 30, 45])
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    # The first at once, the last at the end.
    assert [line.split("  ")[0] for line in lines] == ["10 steps (25%)", "45 steps (100%)"]
    assert "return -12.5  loss 0.5  " in lines[0]
    assert lines[1].endswith("  0:00 left")
    assert len(shown(terminal=False, steps=[10, 20, 30], interval=0).splitlines()) == 3
    assert shown(terminal=False, steps=[]) == ""


def test_no_number_is_cut_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, force_terminal=True, width=34, color_system=None), total=40)
    sink.write(SomeRow(10))
    sink.close()
    assert "loss 0.5" in [line.strip() for line in out.getvalue().splitlines()]
    assert "\u2026" not in out.getvalue()


def test_what_is_done_between_rows_is_shown() -> None:
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, width=100), total=40, interval=0)
    sink.show(10)
    sink.show(30)
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == [
        "10 steps (25%)",
        "30 steps (75%)",
    ]
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, force_terminal=True, width=100), total=40)
    sink.show(30)
    sink.close()
    assert "30/40 steps" in out.getvalue()


def test_on_a_terminal_there_is_a_bar() -> None:
    text = shown(terminal=True, steps=[10, 20])
    assert "\x1b" in text
    assert "50%" in text
    assert "20/40 steps" in text
    assert "return -12.5" in text
    assert "left" in text
