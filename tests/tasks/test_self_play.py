"""Runs whose opponents are their own past policies: a pool of snapshots that grows."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_runs import differences, train_refusal, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.cli.run_arguments import Command
from fastrl.play.team_policy import TeamPolicy
from fastrl.runs.checkpoint import CheckpointError, load_checkpoint, load_newest, save_checkpoint
from fastrl.runs.episodes import Episodes
from fastrl.tasks import find
from fastrl.training.opponents import OpponentsCallback
from fastrl.training.trainer import Trainer

SMALL = (
    "--opponents=self",
    "--env.num-envs=3",
    "--env.snapshot-every=24",
    "--env.pool-size=2",
    "--ippo.num-steps=8",
    "--ippo.hidden=8",
    "--ippo.learning-rate=0.05",
    "--run.eval-episodes=0",
    "--run.torch-threads=1",
    "--run.row-seconds=0",
    "--device=cpu",
    "--total-timesteps=192",
)
GAME = "rock_paper_scissors:RockPaperScissors"
# Episodes of traffic and of CAGE 4 last longer than a snapshot stays in the pool.
TASKS: dict[str, tuple[str, ...]] = {
    "traffic": ("traffic", "--learners=0,2", "--vehicles=4", "--env.duration=30", "--ippo.memory=gru"),
    "cage4": ("cage4", "--learners=*_0,*_4", "--env.episode-length=40", "--env.view=challenge"),
    "pettingzoo": (GAME, "--learners=first", "--env.options=rounds=5"),
}


def read(name: str, *options: str) -> Any:
    """The settings of a command line."""
    return Command(find(name), "fastrl train", [*TASKS[name], *SMALL, *options]).settings()


@dataclasses.dataclass(frozen=True)
class Env:
    """Settings of a pool."""

    pool_size: int = 2
    snapshot_every: int = 10
    opponent_priority: str = "given"
    opponents: tuple[str, ...] = ("self",)


@dataclasses.dataclass(frozen=True)
class Pooled:
    """Settings of a run with a pool."""

    env: Env = Env()


def state_of(trainer: Trainer) -> dict[str, Any]:
    """The state of a run after its last update, without the folder of its snapshots, and these."""
    state = untimed_state(trainer.state_dict())
    folder = Path(state.pop("snapshots")["directory"])
    state["files"] = {file.name: untimed_state(load_checkpoint(file)) for file in sorted(folder.iterdir())}
    return state


@pytest.mark.parametrize("priority", ["given", "hard"])
@pytest.mark.parametrize("name", TASKS)
def test_a_run_resumes_to_the_bit(name: str, priority: str, tmp_path: Path) -> None:
    make = functools.partial(find(name).make_trainer, read(name, f"--env.opponent-priority={priority}"))
    straight, halved = make(), make()
    rows = [row.record() for row in straight.rows()]
    for row in rows:
        shares = [value for key, value in row.items() if key.startswith("opponents/self-") and "share" in key]
        assert len(shares) == 2 and sum(shares) == pytest.approx(1)
    stepping = halved.rows()
    list(islice(stepping, 4))
    stepping.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", halved.state_dict())
    resumed = make()
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    expected = state_of(straight)
    assert len(expected["files"]) == 9
    assert differences(expected, state_of(resumed)) == []


@pytest.mark.parametrize("options", [("--n-workers=2",), ("--collector=executor", "--n-workers=1")])
def test_worker_processes_play_against_the_same_snapshots(options: tuple[str, ...], tmp_path: Path) -> None:
    task, hard = find("pettingzoo"), "--env.opponent-priority=hard"
    straight, halved = (task.make_trainer(read("pettingzoo", hard)) for _ in range(2))
    list(straight.rows())
    stepping = halved.rows()
    list(islice(stepping, 3))
    stepping.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", halved.state_dict())
    resumed = task.make_trainer(read("pettingzoo", hard, *options))
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    learned, expected = state_of(resumed), state_of(straight)
    for key in ("learner", "callbacks", "files"):
        assert differences(learned[key], expected[key]) == []


def test_a_run_directory_keeps_the_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    options = [*TASKS["traffic"], *SMALL, "--run.eval-episodes=2"]
    assert main(["train", *options, f"--run-dir={run}"]) == 0
    names = [f"snapshot-{number:06d}.safetensors" for number in range(9)]
    assert sorted(file.name for file in (run / "snapshots").iterdir()) == names
    first, last = (load_checkpoint(run / "snapshots" / name) for name in (names[0], names[-1]))
    assert (first["steps"], last["steps"]) == (0, 192)
    assert differences(last["policy"], load_newest(run)[1]["policy"]) == []

    def scores(run: Path) -> Any:
        capsys.readouterr()
        assert main(["eval", str(run), "--episodes=3", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["runs"][0]["mean_return"]

    before = scores(run)
    assert main(["render", str(run), f"--log={tmp_path / 'log.npz'}"]) == 0
    # A run that has been moved finds them, and one that is resumed elsewhere takes them with it.
    run = run.rename(tmp_path / "moved")
    assert scores(run) == before
    file = load_newest(run)[0]
    assert main(["train", f"--resume={file}", "--total-timesteps=240", f"--run-dir={other}"]) == 0
    assert len(list((other / "snapshots").iterdir())) == 11
    # A snapshot is an opponent as any run, also beside those of another run.
    beside = [*options, f"--opponents=self:3,{run / 'snapshots' / names[3]}"]
    assert main(["train", *beside, f"--run-dir={tmp_path / 'against'}"]) == 0
    row = json.loads((tmp_path / "against" / "metrics.jsonl").read_text().splitlines()[-1])
    found = [row[f"opponents/{name}/share"] for name in (names[3], "self-1", "self-2")]
    assert found == pytest.approx([1 / 4, 3 / 8, 3 / 8])
    shutil.rmtree(run / "snapshots")
    assert main(["eval", str(run), "--episodes=3"]) == 2
    assert "no such run directory or checkpoint file" in capsys.readouterr().err


def test_a_model_plays_against_its_past(tmp_path: Path) -> None:
    def make() -> Any:
        return fastrl.IPPO(
            GAME,
            learners=["first"],
            opponents=["self"],
            snapshot_every=24,
            pool_size=3,
            num_envs=3,
            num_steps=8,
            hidden=(8,),
            eval_episodes=0,
            device="cpu",
        )

    model = make().learn(96, progress=False)
    assert np.isfinite(model.evaluate(4)).all()
    model.save(tmp_path / "model.safetensors")
    loaded: Any = fastrl.load(tmp_path / "model.safetensors", trust=True)
    assert loaded.evaluate(4) == model.evaluate(4)
    for each in (model, loaded):
        each.learn(96, progress=False)
    assert differences(state_of(model.trainer), state_of(loaded.trainer)) == []
    in_directory = make().learn(96, run_dir=tmp_path / "run", progress=False)
    in_directory.learn(96, run_dir=tmp_path / "run", progress=False)
    assert differences(state_of(model.trainer), state_of(in_directory.trainer)) == []
    assert len(list((tmp_path / "run" / "snapshots").iterdir())) == 9


def test_opponents_of_other_spaces_are_played_by_the_policy_of_their_group(tmp_path: Path) -> None:
    """Agent "b" has other spaces than "a" and "late"."""
    whole = ("parallel_toys:Differing", *SMALL, "--learners=a,b")
    trainer = find("pettingzoo").make_trainer(
        Command(find("pettingzoo"), "fastrl train", [*whole]).settings()
    )
    list(trainer.rows())
    assert len(state_of(trainer)["files"]) == 9


def test_returns_are_those_against_the_present_places_of_the_pool(tmp_path: Path) -> None:
    source: Any = SimpleNamespace(
        opponents={"runs/a": 1.0, "self": 2.0},
        collect=SimpleNamespace(is_live=False),
        given=[],
        use_snapshots=lambda directory: None,
        spec=SimpleNamespace(check_self=lambda state: None),
    )
    source.set_weights = lambda weights, count: source.given.append((weights, count))
    make = functools.partial(OpponentsCallback, source, Pooled(), {}, lambda settings: None)
    callback = make()
    ranks = SimpleNamespace(is_first=True, gather=lambda mine: [mine])
    training = SimpleNamespace(header={}, ranks=ranks, policy_checkpoint=lambda: {"policy": {}})
    run: Any = SimpleNamespace(directory=tmp_path, training=training, timesteps=0)
    callback.on_start(run)
    assert source.given == [([1 / 3, 2 / 3, 0.0], 1)]

    def update(steps: int, *ended: tuple[int, float]) -> dict[str, float]:
        indices, returns = np.array([*zip(*ended, strict=True)]) if ended else np.zeros((2, 0))
        run.timesteps = steps
        run.ended = Episodes(returns, info={"opponent": indices.astype(np.int64)})
        callback.on_update(run)
        return {key.removeprefix("opponents/"): value for key, value in callback.metrics(run.ended).items()}

    found = update(5, (0, 4.0), (1, 2.0))
    assert (found["a/return"], found["self-1/return"]) == (4, 2) and np.isnan(found["self-2/return"])
    found = update(12)
    assert (found["a/return"], found["self-2/return"]) == (4, 2) and np.isnan(found["self-1/return"])
    assert [found[f"{name}/share"] for name in ("a", "self-1", "self-2")] == pytest.approx([1 / 3] * 3)
    found = update(20, (2, 7.0), (1, 4.0))
    # The first snapshot has left: an episode against it that still ran does not count.
    assert found["self-2/return"] == 7 and source.given[-1][1] == 3
    assert np.isnan(update(29, (1, 100.0))["self-1/return"])
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    assert resumed.weights() == callback.weights()
    np.testing.assert_equal(resumed.state_dict(), callback.state_dict())


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*options: str) -> str:
        return train_refusal(capsys, *options, f"--run-dir={tmp_path / 'run'}")

    found = refused("parallel_toys:Differing", "--learners=a", *SMALL)
    assert found == "--opponents self: this run has no policy for b, it has learned to play a"
    assert not (tmp_path / "run").exists()
    assert "a live simulation draws by given weights, got the opponent self" in refused(
        *TASKS["traffic"], *SMALL, "--collector=live"
    )
    assert "one side's policy cannot play the other; train the sides in turn" in refused(
        "cage2-game", "--side=red", "--opponents=self"
    )
    demos = ("--algo=mabc", f"--demos={tmp_path}", "--opponents=self")
    assert "--opponents self: learning from demonstrations takes no snapshots" in refused(
        *TASKS["traffic"][:-1], *demos
    )


def test_a_snapshot_that_is_gone_is_named(tmp_path: Path) -> None:
    task, settings = find("pettingzoo"), read("pettingzoo")
    trainer = task.make_trainer(settings)
    list(islice(trainer.rows(), 2))
    state = trainer.state_dict()
    (Path(state["snapshots"]["directory"]) / "snapshot-000001.safetensors").unlink()
    resumed = task.make_trainer(settings)
    resumed.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"snapshot-000001.safetensors: this snapshot .* is not there"):
        list(resumed.rows())


def mixed(file: Path) -> NDArray[np.float64]:
    """The probabilities of rock, paper and scissors of a policy."""
    found: Any = TeamPolicy(load_checkpoint(file)["policy"]).distribution(np.zeros((1, 1), np.float32))
    probabilities: NDArray[np.float64] = found.distribution.probs.detach().numpy()[0].astype(np.float64)
    return probabilities


@pytest.mark.slow
def test_a_pool_of_past_policies_ends_the_cycle_of_rock_paper_scissors(tmp_path: Path) -> None:
    """Against its newest self a policy chases it for ever; against all past ones it comes near to a third each."""
    payoff = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])

    def losses(pool_size: int, priority: str = "given") -> tuple[float, float]:
        """The win of a best response to the mean of the past policies, and the mean win to one of them."""
        model: Any = fastrl.IPPO(
            GAME,
            learners=["first"],
            opponents=["self"],
            opponent_priority=priority,
            snapshot_every=1024,
            pool_size=pool_size,
            num_envs=64,
            num_steps=4,
            minibatch_size=128,
            num_epochs=4,
            hidden=(8,),
            learning_rate=0.03,
            lr_schedule="constant",
            entropy_coef=0.2,
            final_entropy_coef=0.2,
            eval_episodes=0,
            device="cpu",
        )
        run = tmp_path / f"{pool_size}-{priority}"
        model.learn(20_480, run_dir=run, progress=False)
        policies = np.array([mixed(file) for file in sorted((run / "snapshots").iterdir())])
        assert len(policies) == 21
        responses = policies @ payoff.T
        return float(responses.mean(0).max()), float(responses.max(1).mean())

    # Three seeds gave 0.12 to 0.17 and 0.65 to 0.70 against the newest one, 0.02 to 0.07 and 0.10 to 0.29 with a pool.
    newest, pool, hard = losses(1), losses(100), losses(100, "hard")
    assert newest[1] > 0.5
    assert pool[0] < 0.1 and pool[1] < 0.35
    assert hard[0] < 0.1 and hard[1] < 0.35
