import io
import json
import math
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event
from waiting import TIMEOUT, wait_until

from fastrl.callbacks import Episodes
from fastrl.loggers import (
    ConsoleLogger,
    CsvLogger,
    EpisodesLogger,
    JsonlLogger,
    LoggedRun,
    Logger,
    LoggerError,
    TensorBoardLogger,
)
from fastrl.runs.directory import RunDirectory
from fastrl.runs.loggers import start_loggers
from fastrl.runs.row import Row


def some_row(steps: int, mean_return: float = -12.5, loss: float = 0.5) -> Row:
    numbers = {"rollout/ep_rew_mean": mean_return, "train/loss": loss}
    return Row(steps, steps, numbers)


def logged(path: Path, after: int = 0, console: Console | None = None, episodes: int = 0) -> LoggedRun:
    with RunDirectory(path) as directory:
        return LoggedRun(directory, after, episodes, total=40, console=console or Console(quiet=True))


def test_jsonl_is_standard_json(tmp_path: Path) -> None:
    logger = JsonlLogger(logged(tmp_path))
    logger.log(some_row(10))
    logger.log(some_row(20, mean_return=math.nan, loss=math.inf))
    # Each row is there as soon as it is written.
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    logger.close()
    assert json.loads(lines[0]) == some_row(10).record()
    assert json.loads(lines[1])["rollout/ep_rew_mean"] is None
    assert json.loads(lines[1])["train/loss"] is None
    assert "NaN" not in lines[1]
    assert "Infinity" not in lines[1]


@pytest.mark.parametrize(
    "damage", ["", '{"time/total_timesteps": 30', "\x00\x00", '{"step": 30}\n', "[]\n", '"steps"\n']
)
@pytest.mark.parametrize(
    ("after", "kept"), [(0, []), (5, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30])]
)
def test_jsonl_goes_on_after_a_checkpoint(tmp_path: Path, damage: str, after: int, kept: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(logged(tmp_path))
    for steps in (10, 20, 30):
        logger.log(some_row(steps))
    logger.close()
    with path.open("a") as file:
        file.write(damage)
    logger = JsonlLogger(logged(tmp_path, after))
    logger.log(some_row(99))
    logger.flush()
    assert [json.loads(line)["time/total_timesteps"] for line in path.read_text().splitlines()] == [*kept, 99]
    logger.close()


def test_a_table_for_spreadsheets_grows_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(logged(tmp_path))
    logger.log(some_row(10))
    logger.log(Row(20, 20, {**some_row(20).metrics, "eval/mean_reward": 3.0}))
    logger.log(some_row(30, mean_return=math.nan))
    logger.close()
    header, *lines = path.read_text().splitlines()
    assert header == "time/total_timesteps,rollout/ep_rew_mean,train/loss,eval/mean_reward"
    assert lines == ["10,-12.5,0.5,", "20,-12.5,0.5,3.0", "30,,0.5,"]
    # A run that resumes after 20 steps.
    logger = CsvLogger(logged(tmp_path, after=20))
    logger.log(some_row(40))
    logger.close()
    assert path.read_text().splitlines() == [header, *lines[:2], "40,-12.5,0.5,"]
    # A run that starts over.
    logger = CsvLogger(logged(tmp_path))
    logger.log(some_row(10))
    logger.close()
    assert path.read_text().splitlines() == [
        "time/total_timesteps,rollout/ep_rew_mean,train/loss",
        "10,-12.5,0.5",
    ]


def test_every_episode_of_training_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    logger = EpisodesLogger(logged(tmp_path))
    for steps in (10, 20, 30):
        ended = Episodes(np.array([1.5, -2.0]), np.array([3, 4]), np.array([steps - 3, steps]))
        logger.log(Row(steps, steps, {}, ended=ended if steps != 20 else None))
    logger.close()
    with path.open("a") as file:
        file.write("30,1.")
    EpisodesLogger(logged(tmp_path, after=30, episodes=4)).close()
    lines = ["time/total_timesteps,return,length", "7,1.5,3", "10,-2.0,4", "27,1.5,3", "30,-2.0,4"]
    assert path.read_text().splitlines() == lines
    EpisodesLogger(logged(tmp_path, after=10, episodes=2)).close()
    assert path.read_text().splitlines() == lines[:3]


@dataclass(frozen=True)
class Settings:
    seed: int = 3
    hidden: tuple[int, ...] = (8, 8)


def test_tensorboard_shows_the_settings_as_hyper_parameters(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as directory:
        TensorBoardLogger(LoggedRun(directory, settings=Settings())).close()
    tags = {value.tag for event in events(tmp_path / "tensorboard") for value in event.summary.value}
    assert "_hparams_/session_start_info" in tags
    data = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert b"hidden" in data and b"[8, 8]" in data


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_trackers_write_files_without_a_server(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name, reason=f"pip install '.[{name}]'")
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    with RunDirectory(tmp_path / "run") as directory:
        [logger] = start_loggers([name], LoggedRun(directory, settings=Settings()))
        for steps in (10, 20):
            logger.log(some_row(steps, mean_return=math.nan if steps == 20 else -12.5))
        logger.close()
    if name == "wandb":
        [log] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
        # Its service writes the file.
        wait_until(lambda: b"rollout/ep_rew_mean" in log.read_bytes())
        return
    [metric] = (tmp_path / "run" / "mlruns").glob("*/*/metrics/rollout/ep_rew_mean")
    assert [line.split()[1:] for line in metric.read_text().splitlines()] == [["-12.5", "10"]]
    [param] = (tmp_path / "run" / "mlruns").glob("*/*/params/hidden")
    assert param.read_text() == "[8, 8]"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_tracker_is_said_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LoggerError, match=rf"install the extra, pip install 'fastrl\[{name}\]'"):
        start_loggers([name], logged(tmp_path))


def events(directory: Path) -> list[Event]:
    """Events as TensorBoard would read them: records of length, checksum, data, checksum."""
    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[12 + length + 4 :]
    return found


def test_tensorboard_gets_every_finite_number(tmp_path: Path) -> None:
    logger = TensorBoardLogger(logged(tmp_path))
    logger.log(some_row(10))
    logger.log(some_row(20, mean_return=math.nan))
    logger.close()
    scalars = {
        (event.step, value.tag): value.simple_value
        for event in events(tmp_path / "tensorboard")
        for value in event.summary.value
    }
    assert scalars[10, "rollout/ep_rew_mean"] == -12.5
    assert scalars[10, "train/loss"] == 0.5
    assert scalars[20, "train/loss"] == 0.5
    assert (20, "rollout/ep_rew_mean") not in scalars
    assert len(scalars) == 2 * (len(some_row(10).record()) - 1) - 1


@pytest.mark.parametrize("after", [0, 20])
def test_tensorboard_hides_what_came_after_the_checkpoint(after: int, tmp_path: Path) -> None:
    TensorBoardLogger(logged(tmp_path, after)).close()
    starts = [event.step for event in events(tmp_path / "tensorboard") if event.HasField("session_log")]
    assert starts == [after + 1]


def shown(path: Path, *, terminal: bool, steps: list[int], interval: float = TIMEOUT) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    logger = ConsoleLogger(logged(path, console=console), interval=interval)
    for each in steps:
        logger.log(some_row(each))
    logger.close()
    return out.getvalue()


def test_without_a_terminal_there_are_lines_now_and_then(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=False, steps=[10, 20, 30, 45])
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    # The first at once, the last at the end.
    assert [line.split("  ")[0] for line in lines] == ["10 steps (25%)", "45 steps (100%)"]
    assert "return -12.5  loss 0.50  " in lines[0]
    assert lines[1].endswith("  0:00 left")
    assert len(shown(tmp_path, terminal=False, steps=[10, 20, 30], interval=0).splitlines()) == 3
    assert shown(tmp_path, terminal=False, steps=[]) == ""


def test_no_number_is_cut_on_a_narrow_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    logger = ConsoleLogger(
        logged(tmp_path, console=Console(file=out, force_terminal=True, width=34, color_system=None))
    )
    logger.log(some_row(10))
    logger.close()
    assert "loss 0.50" in [line.strip() for line in out.getvalue().splitlines()]
    assert "\u2026" not in out.getvalue()


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=True, steps=[10, 20])
    assert "\x1b" in text
    assert "50%" in text
    assert "20/40 steps" in text
    assert "return -12.5" in text
    assert "left" in text


class Collected(Logger):
    """A logger of a user's own."""

    rows: ClassVar[list[Row]] = []

    def __init__(self, run: LoggedRun) -> None:
        self.rows.clear()

    def log(self, row: Row) -> None:
        self.rows.append(row)


def test_a_logger_of_the_users_own_is_one_class(tmp_path: Path) -> None:
    own, board = start_loggers([f"{__name__}:Collected", "tensorboard"], logged(tmp_path))
    assert isinstance(board, TensorBoardLogger)
    for logger in (own, board):
        logger.log(some_row(10))
        logger.close()
    assert Collected.rows == [some_row(10)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tensorbord",
            "run.loggers should be of csv, mlflow, tensorboard, wandb, or module:Class",
        ),
        ("nowhere:Logger", "run.loggers nowhere:Logger: No module named 'nowhere'"),
        (
            "json:loads",
            "run.loggers json:loads: should be a class with the methods log\\(row\\) and close\\(\\)",
        ),
    ],
)
def test_what_is_no_logger_is_said_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(LoggerError, match=message):
        start_loggers([name], logged(tmp_path))
