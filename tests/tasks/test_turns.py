"""Runs from pixels in which games and learner take turns: one seed, one run; stopped and resumed, the same run."""

import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_runs import differences
from test_pixels import SMALL, rows_of, settings

from fastrl.cli.main import main
from fastrl.collectors.protocol import CollectError
from fastrl.envs.pixels import PixelEnv, SeededGames
from fastrl.tasks.pixels import run
from fastrl.tasks.pixels.run import Training
from fastrl.training.checkpoint import load_newest
from fastrl.training.session import TrainError

TURNS = ["--run.deterministic=true", "--collectors=2", "--replay.capacity=300", "--run.save_replay=true"]
RAINBOW = ["--dqn.prioritized=true", "--dqn.noisy=true", "--dqn.dueling=true", "--env.stack=1"]
UNTIMED = ("second", "share", "learner_", "collectors_", "replay_fill")


@pytest.fixture(autouse=True)
def rows_every_100_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROW_STEPS", 100)


def trained(run: Path, *options: str, steps: int = 600) -> None:
    arguments = [*SMALL, *TURNS, "--run.eval_episodes=0", f"--total-steps={steps}", f"--run-dir={run}"]
    assert main(["train", *arguments, *options]) == 0


def end_of(run: Path) -> dict[str, Any]:
    _, state = load_newest(run)
    return {name: value for name, value in state.items() if name not in ("seconds", "config")}


def untimed(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not any(word in name for word in UNTIMED)}
        for row in rows_of(run)
    ]


def test_one_seed_fixes_the_run_whatever_number_of_processes_plays(tmp_path: Path) -> None:
    trained(tmp_path / "two")
    trained(tmp_path / "one", "--collectors=1", "--collect.envs=4", "--run.checkpoint_seconds=0")
    trained(tmp_path / "other", "--seed=1")
    assert differences(end_of(tmp_path / "two"), end_of(tmp_path / "one")) == []
    assert untimed(tmp_path / "two") == untimed(tmp_path / "one")
    last = untimed(tmp_path / "two")[-1]
    # A tenth of a batch a step since there were 100 steps to learn from.
    assert (last["steps"], last["batches"]) == (600, 50)
    assert last["games"] == 4
    assert any(row["mean_return"] is not None for row in untimed(tmp_path / "two"))
    assert differences(end_of(tmp_path / "two")["policy"], end_of(tmp_path / "other")["policy"])


@pytest.mark.parametrize("options", [[], RAINBOW], ids=["uniform", "prioritized"])
def test_stopped_in_the_middle_of_games_it_ends_as_if_never_stopped(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "whole", *options)
    trained(tmp_path / "parts", *options, steps=200)
    for steps in (300, 600):
        assert main(["train", "--resume", str(tmp_path / "parts"), f"--total-steps={steps}"]) == 0
    assert "not to the bit" not in capsys.readouterr().out
    assert differences(end_of(tmp_path / "parts"), end_of(tmp_path / "whole")) == []
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


def test_what_cannot_go_on_to_the_bit_says_so(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=200)

    def told(change: dict[str, Any], without: str = "") -> str:
        out = io.StringIO()
        config = settings(*TURNS, "--run.eval_episodes=0", "--total-steps=300")
        replay = run._saved_replay(tmp_path / "run", config)
        training = Training(config, Console(file=out, width=200), replay)
        _, state = load_newest(tmp_path / "run")
        turns = {name: value for name, value in state["turns"].items() if name != without} | change
        training.restore(state | {"turns": turns})
        assert [row.steps for row in training.rows()] == [300]
        return out.getvalue()

    assert told({}) == ""
    line = "not to the bit as if it had never stopped: "
    assert line + "the same seeds and actions led elsewhere" in told({"shown": 1})
    assert line + "the replay was not saved" in told({}, without="sampler")
    assert line + "the replay that was saved is not the checkpoint's" in told({"replay": 1})
    with pytest.raises(TrainError, match="the checkpoint's games are not those of this run"):
        told({"lengths": [1]})


def test_a_process_that_dies_ends_the_run_in_one_line() -> None:
    training = Training(settings(*TURNS, "--total-steps=100000"), Console(quiet=True))
    rows = training.rows()
    next(rows)  # type: ignore[call-overload]
    assert training._turns is not None
    os.kill(training._turns._envs.pids[0], signal.SIGKILL)
    with pytest.raises(
        CollectError, match=r"collector 0 died \(killed by SIGKILL\): a deterministic run ends"
    ):
        list(rows)
    with pytest.raises(TrainError, match="prefetch on does not go with"):
        Training(settings(*TURNS, "--collect.prefetch=on"), Console(quiet=True))


class TwoLives:
    """A game of four frames that loses its first life after two of them."""

    shape, num_actions = (2, 2), 2

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None) -> None:
        self.seeds.append(seed)
        self.frame = 0

    @property
    def lives(self) -> int:
        return 2 if self.frame < 2 else 1

    def act(self, action: int) -> tuple[float, bool, bool]:
        self.frame += 1
        return 1.0, self.frame > 4, False

    def screen(self) -> Any:
        return np.zeros(self.shape, np.uint8)

    def close(self) -> None: ...


def test_a_games_seed_is_not_used_up_by_a_life() -> None:
    game = TwoLives()
    env = SeededGames(PixelEnv(game, size=(2, 2), frame_skip=1, noop_max=0, life_loss_ends=True))
    env.reset(seed=5)
    ends = 0
    while ends < 4:
        _, _, terminated, _, _ = env.step(0)
        if terminated:
            ends += 1
            env.reset(seed=10 + ends)
    # The first and the third end were that of a life.
    assert game.seeds == [5, 12, 14]
