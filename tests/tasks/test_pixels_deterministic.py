"""Pixel runs in which environments and learner take turns: one seed, one run; stopped and resumed, the same run."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_runs import differences
from test_pixels import SMALL, make_trainer, rows_of

from fastrl.cli.main import main
from fastrl.envs.pixels import PixelEnv, SeededGames
from fastrl.runs.checkpoint import load_newest

TURNS = ["--no-replay.overlap", "--replay.train-freq=1", "--num-envs=4", "--replay.capacity=300"]
# A row of metrics after each minibatch, and after each round without one.
OPTIONS = [*TURNS, "--replay.save", "--run.eval-episodes=0", "--run.row-seconds=0"]
RAINBOW = ["--dqn.prioritized", "--dqn.noisy", "--dqn.dueling", "--env.stack=1"]
UNTIMED = ("second", "share", "fps", "elapsed")


def train(run: Path, *options: str, steps: int = 600) -> None:
    arguments = [*SMALL, *OPTIONS, f"--total-timesteps={steps}", f"--run-dir={run}"]
    assert main(["train", *arguments, *options]) == 0


def end_of(run: Path) -> dict[str, Any]:
    _, state = load_newest(run)
    return {name: value for name, value in state.items() if name not in ("seconds", "parts", "config")}


def untimed(run: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not any(word in name for word in UNTIMED)}
        for row in rows_of(run)
    ]


@pytest.mark.slow
def test_one_seed_fixes_the_run_for_any_number_of_processes(tmp_path: Path) -> None:
    train(tmp_path / "two", "--collector=sync", "--n-workers=2")
    train(tmp_path / "one", "--run.checkpoint-seconds=0.2")
    train(tmp_path / "other", "--seed=1")
    assert differences(end_of(tmp_path / "two"), end_of(tmp_path / "one")) == []
    of_workers = {"collect/worker_memory_mib"}
    rows = [
        [{name: row[name] for name in row.keys() - of_workers} for row in untimed(tmp_path / run)]
        for run in ("two", "one")
    ]
    assert rows[0] == rows[1]
    last = untimed(tmp_path / "two")[-1]
    # A tenth of a minibatch for each step since there were 100 to learn from: the newest 4 wait for what follows.
    assert (last["time/total_timesteps"], last["time/iterations"]) == (600, 49)
    assert last["time/episodes"] == 4
    assert any(row["rollout/ep_rew_mean"] is not None for row in untimed(tmp_path / "two"))
    assert differences(end_of(tmp_path / "two")["policy"], end_of(tmp_path / "other")["policy"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], RAINBOW], ids=["uniform", "prioritized"])
def test_stopped_in_the_middle_of_episodes_it_ends_as_if_never_stopped(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", *options)
    train(tmp_path / "parts", *options, steps=200)
    for steps in (300, 600):
        assert main(["train", "--resume", str(tmp_path / "parts"), f"--total-timesteps={steps}"]) == 0
    assert "not to the bit" not in capsys.readouterr().out
    assert differences(end_of(tmp_path / "parts"), end_of(tmp_path / "whole")) == []
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


@pytest.mark.slow
def test_a_resume_that_is_not_to_the_bit_says_so(tmp_path: Path) -> None:
    train(tmp_path / "run", steps=200)

    def said(change: dict[str, Any], without: str = "") -> str:
        out = io.StringIO()
        trainer = make_trainer(*OPTIONS, "--total-timesteps=300", console=Console(file=out, width=200))
        _, state = load_newest(tmp_path / "run")
        minibatches = {
            name: value for name, value in state["source"]["minibatches"].items() if name != without
        }
        trainer.source.load_files(tmp_path / "run")
        trainer.load_state_dict(
            state | {"source": state["source"] | {"minibatches": minibatches | change}, "callbacks": {}}
        )
        assert list(trainer.rows())[-1].steps == 300
        return out.getvalue()

    assert "not to the bit" not in said({})
    line = "not to the bit as if it had never stopped: "
    assert line + "the replay was not saved" in said({}, without="sampler")
    assert line + "the replay that was saved is not the checkpoint's" in said({"replay": 1})


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

    def mask(self) -> None: ...

    def screen(self) -> Any:
        return np.zeros(self.shape, np.uint8)

    def close(self) -> None: ...


def test_a_life_does_not_use_up_the_seed_of_a_game() -> None:
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
