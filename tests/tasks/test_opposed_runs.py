"""Agents of environments of many that learn while policies of runs play the others: traffic, CAGE 4, PettingZoo."""

from __future__ import annotations

import dataclasses
import functools
import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from small_runs import differences, train_refusal, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.cli.run_arguments import Command
from fastrl.play.team_policy import TeamPolicy
from fastrl.runs.checkpoint import load_checkpoint, load_newest, save_checkpoint
from fastrl.runs.episodes import Episodes
from fastrl.tasks import find
from fastrl.training import opposed_spec
from fastrl.training.opponents import OpponentsCallback
from fastrl.training.opposed_spec import policy_state

SMALL = (
    "--env.num-envs=3",
    "--ippo.num-steps=8",
    "--ippo.hidden=8",
    "--run.eval-episodes=0",
    "--run.torch-threads=1",
    "--device=cpu",
    "--total-timesteps=96",
)
TASKS: dict[str, tuple[str, ...]] = {
    "traffic": ("traffic", "--vehicles=4", "--env.duration=6", "--run.row-seconds=0"),
    "cage4": ("cage4", "--env.episode-length=12", "--env.view=challenge", "--run.row-seconds=0"),
    "pettingzoo": ("parallel_toys:Differing", "--run.row-seconds=0"),
}
LEARNERS = {"traffic": "0,2", "cage4": "*_0,*_4", "pettingzoo": "b"}
OTHERS = {"traffic": "1", "cage4": "*_1,*_2,*_3", "pettingzoo": "a,late"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of each task: of all agents, and of some that learned against those."""
    root = tmp_path_factory.mktemp("runs")
    for name, (task, *options) in TASKS.items():
        whole, some = root / f"{name}-all", root / f"{name}-some"
        shared = [*options, *SMALL, "--ippo.memory=gru", "--ippo.memory-size=4"]
        assert main(["train", task, *shared, f"--run-dir={whole}"]) == 0
        beside = [f"--learners={OTHERS[name]}", f"--opponents={whole}"]
        assert main(["train", task, *options, *SMALL, *beside, f"--run-dir={some}"]) == 0
    return root


def read(name: str, *options: str) -> Any:
    """The settings of a command line."""
    return Command(find(name), "fastrl train", [*TASKS[name], *SMALL, *options]).settings()


def settings(name: str, runs: Path, *options: str) -> Any:
    some = f":2,{runs / f'{name}-some'}" if name == "pettingzoo" else ""
    opposed = (f"--learners={LEARNERS[name]}", f"--opponents={runs / f'{name}-all'}{some}")
    return read(name, *opposed, *options)


@pytest.mark.parametrize("name", TASKS)
def test_frozen_agents_play_as_in_the_run_that_they_come_from(name: str, runs: Path) -> None:
    task = find(name)
    config = read(name)
    opposed = read(name, f"--learners={LEARNERS[name]}", f"--opponents={runs / f'{name}-all'}")
    policy = TeamPolicy(policy_state(str(runs / f"{name}-all"))["policy"])
    whole = task.team_spec(config).make_team(4)
    env: Any = task.team_spec(opposed).make_team(4)
    free = [list(map(str, whole.agents)).index(str(agent)) for agent in env.agents]
    (obs, _), (all_obs, all_alive) = env.reset(seed=5), whole.reset(seed=5)
    act = policy.act_in(whole, action_masks=task.has_action_masks(config))
    states: Any = None
    for _ in range(5):
        np.testing.assert_array_equal(obs, all_obs[:, free, : obs.shape[2]])
        flat = all_obs.reshape(-1, all_obs.shape[2])
        actions, states = act(flat, all_alive.ravel(), states)
        by_agent = actions.reshape(4, -1)
        all_obs, all_rewards, _, _, all_alive, _ = whole.step(by_agent)
        obs, rewards, *_ = env.step(by_agent[:, free])
        np.testing.assert_array_equal(rewards, all_rewards[:, free])


def test_a_process_reads_opponents_once_and_again_where_their_files_have_changed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def load(path: Path) -> Any:
        read.append(path)
        return load_newest(path)

    monkeypatch.setattr(opposed_spec, "load_newest", load)
    file, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    state = load_newest(runs / "traffic-all")[1]
    for each in (file, other):
        save_checkpoint(each, state)
    opposed = settings("traffic", runs)
    opposed = dataclasses.replace(
        opposed, env=dataclasses.replace(opposed.env, opponents=(str(file), str(other)))
    )

    def steps_of_one_game() -> Any:
        # Each evaluation makes a spec, and a team for each batch.
        spec = find("traffic").team_spec(opposed)
        assert spec is not None
        for _ in range(3):
            env = spec.make_team(4)
        env.reset(seed=0)
        return [env.step(np.zeros((4, 2), np.int64))[0] for _ in range(4)]

    before = steps_of_one_game()
    np.testing.assert_array_equal(before, steps_of_one_game())
    assert sorted(read) == sorted([file, other])
    for actor in state["policy"]["actors"].values():
        actor["weights"] = {name: -tensor for name, tensor in actor["weights"].items()}
    save_checkpoint(file, state)
    assert (np.array(before) != steps_of_one_game()).any()
    assert read[2:] == [file]


@pytest.mark.parametrize("priority", ["given", "hard"])
@pytest.mark.parametrize("name", TASKS)
def test_a_run_resumes_to_the_bit(name: str, priority: str, runs: Path, tmp_path: Path) -> None:
    options = [f"--env.opponent-priority={priority}"]
    make = functools.partial(find(name).make_trainer, settings(name, runs, *options))
    straight, halved = make(), make()
    metrics = [row.record() for row in straight.rows()]
    shares = [{n: x for n, x in row.items() if n.endswith("/share")} for row in metrics]
    assert len(shares) > 2 and all(sum(each.values()) == pytest.approx(1) for each in shares)
    if name == "pettingzoo":
        assert (shares[-1]["opponents/pettingzoo-all/share"] == pytest.approx(2 / 3)) == (priority == "given")
    rows = halved.rows()
    list(islice(rows, 1))
    rows.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", halved.state_dict())
    resumed = make()
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    assert differences(*(untimed_state(each.state_dict()) for each in (straight, resumed))) == []


def test_worker_processes_take_over_a_run_and_play_against_the_same_opponents(
    runs: Path, tmp_path: Path
) -> None:
    hard = "--env.opponent-priority=hard"
    task, alone = find("pettingzoo"), settings("pettingzoo", runs, hard)
    straight, halved = task.make_trainer(alone), task.make_trainer(alone)
    list(straight.rows())
    rows = halved.rows()
    list(islice(rows, 2))
    rows.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", halved.state_dict())
    resumed = task.make_trainer(settings("pettingzoo", runs, hard, "--n-workers=2"))
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    learned, expected = (untimed_state(each.state_dict()) for each in (resumed, straight))
    assert differences(learned["learner"], expected["learner"]) == []
    assert differences(learned["callbacks"], expected["callbacks"]) == []


@pytest.mark.parametrize("name", TASKS)
def test_scores_films_and_demos_are_of_the_agents_that_learn(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some, trust = str(runs / f"{name}-some"), ["--trust"] if name == "pettingzoo" else []
    capsys.readouterr()
    assert main(["eval", some, "--episodes=2", "--json", *trust]) == 0
    scores = json.loads(capsys.readouterr().out)["runs"][0]
    assert np.isfinite(scores.get("mean_return", scores.get("mean", 0.0)))
    if name == "traffic":
        assert np.isnan(scores["success_rate"] or np.nan)
        assert main(["render", some, f"--log={tmp_path / 'log.npz'}"]) == 0
        agents = np.load(tmp_path / "log.npz")["alive"]
        assert agents.shape[1] == 4 and agents[0].tolist() == [False, True, False, False]
    if name != "pettingzoo":
        assert main(["render", some, f"--out={tmp_path / 'film.mp4'}"]) == 0
    command = ["demos", "record", f"--expert={some}", "--episodes=1", f"--out={tmp_path / 'demos'}"]
    assert main([*command, *trust]) == 0
    # Its clone plays against the same opponents.
    opposed = [f"--learners={OTHERS[name]}", f"--opponents={runs / f'{name}-all'}", "--mabc.epochs=1"]
    clone = [*opposed, "--algo=mabc", "--run.eval-episodes=1", f"--demos={tmp_path / 'demos'}"]
    task = TASKS[name][:-1]
    assert main(["train", *task, *clone, "--device=cpu", f"--run-dir={tmp_path / 'clone'}"]) == 0


def test_a_model_names_learners_and_opponents(runs: Path) -> None:
    run = str(runs / "pettingzoo-all")
    model: Any = fastrl.IPPO(
        "parallel_toys:Differing",
        learners=("late", "b"),
        opponents=[run],
        num_envs=2,
        num_steps=8,
        hidden=(4,),
        device="cpu",
    ).learn(32, progress=False)
    # In the environment's order, each with a policy of its own, for their spaces differ.
    assert model.policy.form.agents == ("b", "late") and len(model.policy.team.networks) == 2
    assert model.policy.predict({"b": model.policy.form.obs_rows[0].space.sample()})[0].keys() == {"b"}


def test_hard_opponents_are_drawn_more_often() -> None:
    class Weighed:
        opponents: ClassVar = {"runs/a": 1.0, "runs/b": 1.0, "old/b": 2.0, "runs/c": 1.0}
        collect = SimpleNamespace(is_live=False)
        given: ClassVar[list[tuple[float, ...]]] = []

        def set_weights(self, weights: list[float]) -> None:
            self.given.append(tuple(weights))

    source: Any = Weighed()
    settings = SimpleNamespace(env=SimpleNamespace(opponent_priority="hard"))
    make = functools.partial(OpponentsCallback, source, settings, {}, lambda settings: None)
    callback = make()
    assert source.given == [(0.2, 0.2, 0.4, 0.2)]
    ended = Episodes(np.array([4.0, 1.0, 3.0, 3.0, 0.0]), info={"opponent": np.array([0, 1, 2, 2, 0])})
    run: Any = SimpleNamespace(ended=ended)
    callback.on_update(run)
    # Returns are 2, 1 and 3; against the last nobody has played.
    weights = np.array([0.1 + 0.9 / 4, 1, 2 * 0.1, 1])
    np.testing.assert_allclose(source.given[-1], weights / weights.sum())
    metrics = callback.metrics(ended)
    assert metrics["opponents/b-1/return"] == 1 and np.isnan(metrics["opponents/c/return"])
    assert metrics["opponents/b-2/share"] == source.given[-1][2]
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    assert resumed.weights() == callback.weights() == list(source.given[-1])
    # The newest episodes count most.
    for _ in range(300):
        callback.on_update(run)
    assert callback.state_dict()["means"][2] == pytest.approx(3)


def test_a_live_simulation_draws_by_fixed_weights(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opposed = ("--learners=1", f"--opponents={runs / 'traffic-all'}", "--env.opponent-priority=hard")
    found = train_refusal(capsys, *TASKS["traffic"], *SMALL, *opposed, "--collector=live")
    assert "draws by given weights, got hard" in found


def test_what_does_not_fit_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(name: str, *options: str) -> str:
        return train_refusal(capsys, *TASKS[name], *SMALL, *options)

    whole = {name: f"--opponents={runs / f'{name}-all'}" for name in TASKS}
    assert refused("cage4", "--learners=*_0") == (
        "--learners: expected --opponents, run directories that play the other agents"
    )
    assert "--opponents: expected --learners beside it, some of 0, 1, 2, 3" in refused(
        "traffic", whole["traffic"]
    )
    assert "expected some agents, and not all of a, b, late" in refused(
        "pettingzoo", "--learners=*", whole["pettingzoo"]
    )
    assert "--learners c: there is no such agent, only a, b, late" in refused(
        "pettingzoo", "--learners=c", whole["pettingzoo"]
    )
    assert "is a run of cage4 fastrl/Cage4-v0: expected one of traffic fastrl/coop-highway-v0" in refused(
        "traffic", "--learners=1", whole["cage4"]
    )
    some = f"--opponents={runs / 'pettingzoo-some'}"
    assert "has no policy for b, it has learned to play a, late" in refused(
        "pettingzoo", "--learners=a", some
    )
    assert "does not fit agent blue_agent_0 of fastrl/Cage4-v0" in refused(
        "cage4", "--env.view=hosts", "--learners=*_4", whole["cage4"]
    )
    assert "runs/none: no such run directory" in refused("traffic", "--learners=1", "--opponents=runs/none")
    curriculum = ("--learners=1", whole["traffic"], "--curriculum.mode=auto")
    assert "--curriculum.mode: expected off beside --learners" in refused("traffic", *curriculum)


def test_an_agent_that_learns_is_there_from_the_start(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opposed = ["--learners=late", f"--opponents={runs / 'pettingzoo-all'}"]
    assert main(["train", *TASKS["pettingzoo"], *SMALL, *opposed, f"--run-dir={runs / 'late'}"]) == 1
    assert "no agent that learns is there at the start of an episode" in capsys.readouterr().err


def test_a_shared_policy_plays_every_agent(runs: Path) -> None:
    state = load_newest(runs / "traffic-some")[1]
    assert len(state["policy"]["policies"]) == 1
    spec = read("traffic", "--learners=3", f"--opponents={runs / 'traffic-some'}")
    assert list(find("traffic").team_spec(spec).make_team(2).agents) == [3]  # type: ignore[union-attr]
