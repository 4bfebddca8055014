"""Trainings of the game of two agents of CAGE Challenge 2: both sides, and one against frozen opponents."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import differences, settings_of, train_refusal, train_small, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.envs import Cage2VectorEnv
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.tasks import find
from fastrl.tasks.cage2_game.opponents import GameSpec

SMALL = (
    "--env.num-envs=4",
    "--env.episode-length=12",
    "--ippo.num-steps=8",
    "--ippo.hidden=8",
    "--run.eval-episodes=0",
    "--run.torch-threads=1",
    "--device=cpu",
    "--total-timesteps=96",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories: defenders of cage2, and of both sides and of red."""
    root = tmp_path_factory.mktemp("runs")
    train_small(root / "scan", "--env.memory=scan", "--env.actions=effective")
    train_small(root / "gru", "--ppo.memory=gru", "--ppo.memory-size=4", "--env.actions=none")
    assert main(["train", "cage2-game", *SMALL, f"--run-dir={root / 'both'}"]) == 0
    red = ["--side=red", f"--opponents={root / 'scan'},{root / 'gru'},{root / 'both'}"]
    assert main(["train", "cage2-game", *SMALL, *red, f"--run-dir={root / 'red'}"]) == 0
    return root


@pytest.mark.parametrize("name", ["scan", "gru"])
def test_a_frozen_defender_acts_as_in_its_own_environment(runs: Path, name: str) -> None:
    spec = GameSpec(
        "fastrl/Cage2Game-v0",
        {"num_threads": 1, "episode_length": 12},
        side="red",
        opponents=[str(runs / name)],
    )
    game, policy = spec.make_team(5), fastrl.load_policy(runs / name)
    inner = game.unopposed  # type: ignore[attr-defined]
    env = Cage2VectorEnv(5, memory=policy.memory, episode_length=12, num_threads=1, autoreset_mode="disabled")
    game.reset(seed=3)
    obs, _ = env.reset(seed=3)
    memory = np.zeros((5, policy.state_size), np.float32) if policy.state_size else None
    for _ in range(12):
        masks = env.action_masks() if policy.needs_action_mask else None
        blue = policy.act(obs, True, masks, memory)
        red = inner.choose_red()
        rewards = game.step(red[:, None])[1]
        obs, reward, *_ = env.step(blue)
        np.testing.assert_array_equal(rewards[:, 0], -reward.astype(np.float32))


def test_opponents_of_several_runs_play_and_are_drawn(runs: Path) -> None:
    names = tuple(str(runs / name) for name in ("scan", "gru", "both"))
    env = GameSpec("fastrl/Cage2Game-v0", {"num_threads": 1}, side="red", opponents=names).make_team(64)
    env.reset(seed=0)
    assert {*env.drawn()} == {0, 1, 2}  # type: ignore[attr-defined]
    assert env.single_observation_space.shape == (181,) and env.num_masked == 56
    mixed = ("meander", str(runs / "red"), str(runs / "both"))
    env = GameSpec("fastrl/Cage2Game-v0", {"num_threads": 1}, side="blue", opponents=mixed).make_team(64)
    env.reset(seed=0)
    env.step(np.zeros((64, 1), np.int64))
    assert {*env.drawn()} == {0, 1, 2} and list(env.agents) == ["blue"]  # type: ignore[attr-defined]


# A shared policy collects in compiled rollouts.
@pytest.mark.parametrize("policies", ["blue,red", "both,both"])
@pytest.mark.parametrize("collector", ["native", "sequential", "executor"])
def test_returns_are_blues_where_both_sides_learn(collector: str, policies: str) -> None:
    options = [*SMALL, f"--collector={collector}", "--ippo.num-steps=24", f"--ippo.policies={policies}"]
    trainer = find("cage2-game").make_trainer(settings_of("cage2-game", *options))
    with trainer.source:
        fragments = trainer.source.next(trainer.watch)
        counted, returns = trainer.source.take_episodes().returns, []
    for fragment in fragments:
        games = fragment.rewards.reshape(2, 12, -1, 2).astype(np.float64).sum(axis=1)
        np.testing.assert_array_equal(games[..., 0], -games[..., 1])
        returns += games[..., 0].ravel().tolist()
    assert len(counted) == 8 and sorted(counted) == pytest.approx(sorted(returns)) and min(counted) < 0
    assert trainer.source.lines()[-1] == "returns are those of blue"


def test_no_more_agents_are_scored_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GameSpec, "scored_agents", 3)
    options = [*SMALL, "--collector=native", "--ippo.policies=both,both"]
    trainer = find("cage2-game").make_trainer(settings_of("cage2-game", *options))
    with (
        trainer.source,
        pytest.raises(ValueError, match="scored: expected 1 to 2, the number of agents, got 3"),
    ):
        trainer.source.next(trainer.watch)


@pytest.mark.parametrize("side", ["both", "blue", "red"])
def test_a_run_resumes_to_the_bit(side: str, runs: Path, tmp_path: Path) -> None:
    others = {
        "both": (),
        "blue": ("bline", str(runs / "red")),
        "red": (str(runs / "scan"), str(runs / "gru")),
    }
    options = [*SMALL, f"--side={side}", f"--opponents={','.join(others[side])}"]
    options.append("--env.opponent-priority=hard")
    options = [option for option in options if option != "--opponents="]
    task, settings = find("cage2-game"), settings_of("cage2-game", *options)
    straight = task.make_trainer(settings)
    assert len(list(straight.rows())) > 0
    halved = task.make_trainer(settings)
    rows = halved.rows()
    list(islice(rows, 1))
    rows.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", halved.state_dict())
    halved = task.make_trainer(settings)
    halved.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(halved.rows())
    assert differences(*(untimed_state(each.state_dict()) for each in (straight, halved))) == []


def test_runs_are_scored_and_loaded(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["eval", str(runs / "both"), str(runs / "red"), "--episodes=3", "--json"]) == 0
    blue, red = json.loads(capsys.readouterr().out)["runs"]
    assert blue["mean"] <= 0 <= red["mean"] and len(red["returns"]) == 3
    model: Any = fastrl.load(runs / "red")
    actions, _ = model.predict(np.zeros((1, 181), np.float32))
    assert actions.shape == (1,)


def test_the_game_is_found_by_its_id() -> None:
    model = fastrl.IPPO("fastrl/Cage2Game-v0", num_envs=2, num_steps=8, hidden=(4,), device="cpu")
    assert model.task.name == "cage2-game" and model.settings["ippo"]["policies"] == []
    model.learn(32)
    assert sorted(model.network) == ["blue", "red"]  # type: ignore[arg-type]


def test_opponents_that_do_not_fit_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*options: str) -> str:
        return train_refusal(capsys, "cage2-game", *SMALL, *options)

    scan, red = str(runs / "scan"), str(runs / "red")
    assert "expected none where both sides learn" in refused(f"--opponents={scan}")
    assert "expected run directories of blue, got none" in refused("--side=red")
    assert "expected run directories of blue, got bline" in refused("--side=red", "--opponents=bline")
    assert "is a run of cage2: expected one of cage2-game" in refused("--side=blue", f"--opponents={scan}")
    assert "has learned red, and cannot play blue" in refused("--side=red", f"--opponents={red}")
    assert "runs/none: no such run directory" in refused("--side=red", "--opponents=runs/none")
