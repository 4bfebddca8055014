"""Callbacks: what they see, how they stop a run, and what is left of a run that one of them breaks."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console
from small_runs import learnt, rows_of, settings_of
from test_evaluation import evaluation_of
from test_trainer import STEPS, FakeSource, trainer_of

import fastrl
from fastrl.callbacks import BestCheckpoint, Callback, EarlyStopping, ProgressBar, Run, VideoRecorder
from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_checkpoint
from fastrl.runs.directory import RunDirectory
from fastrl.runs.errors import HookError, TrainError
from fastrl.runs.facts import RunFacts
from fastrl.tasks import find
from fastrl.training import callbacks
from fastrl.training.run import train

SMALL = [
    *("CartPole-v1", "--collector=sequential", "--num-envs=2", "--ppo.num-steps=16"),
    *("--ppo.minibatch-size=32", "--run.eval-episodes=0", "--run.row-seconds=0"),
]


class Watching(Callback):
    """Notes what it sees, and stops at a given row."""

    def __init__(self, stops_at: str = "", after: int = 1) -> None:
        self.seen: list[tuple[str, int]] = []
        self._stops_at, self._after = stops_at, after

    def _note(self, event: str, run: Run) -> bool:
        self.seen.append((event, run.timesteps))
        return not (event == self._stops_at and sum(each == event for each, _ in self.seen) >= self._after)

    def on_start(self, run: Run) -> bool:
        return self._note("start", run)

    def on_update(self, run: Run) -> bool:
        return self._note("update", run)

    def on_checkpoint(self, run: Run) -> bool:
        assert run.checkpoint is not None and run.checkpoint.exists()
        return self._note("checkpoint", run)

    def on_evaluation(self, run: Run) -> bool:
        assert run.scores is not None
        return self._note("evaluation", run)

    def on_end(self, run: Run) -> None:
        self._note("end", run)


def trained(path: Path, *callbacks: Callback, options: tuple[str, ...] = ()) -> Any:
    """A small run with callbacks; returns its summary."""
    task, settings = (
        find("gym"),
        settings_of("gym", "--env=CartPole-v1", *SMALL[1:], "--total-timesteps=128", *options),
    )
    trainer = task.make_trainer(settings)
    trainer.callbacks.extend(callbacks)
    with RunDirectory(path) as directory:
        return train(task, trainer, settings, directory, Console(quiet=True))


def test_a_callback_sees_all_of_a_run(tmp_path: Path) -> None:
    seen = Watching()
    options = ("--run.eval-episodes=1", "--run.checkpoint-seconds=0")
    summary = trained(tmp_path / "run", seen, options=options)
    updates = [(event, 32 * i) for i in range(1, 5) for event in ("update", "checkpoint")]
    # A checkpoint after each row, and one at the end.
    ending = [("checkpoint", 128), ("evaluation", 128), ("end", 128)]
    assert seen.seen == [("start", 0), *updates, *ending]
    assert (summary.status, summary.stopped_by) == ("complete", None)


@pytest.mark.parametrize(("event", "steps"), [("start", 0), ("update", 64), ("checkpoint", 64)])
def test_one_that_returns_false_stops_the_run_cleanly(event: str, steps: int, tmp_path: Path) -> None:
    after = 1 if event == "start" else 2
    summary = trained(tmp_path / "run", Watching(event, after), options=("--run.checkpoint-seconds=0",))
    assert (summary.status, summary.stopped_by, summary.steps) == ("complete", "Watching", steps)
    assert learnt(tmp_path / "run")["steps"] == steps
    tree = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert tree["stopped_by"] == "Watching"
    out = io.StringIO()
    summary.print(Console(file=out, width=100))
    assert "stopped by callback Watching" in out.getvalue()
    facts = RunFacts.read(tmp_path / "run")
    assert facts is not None and (facts.state, facts.stopped_by) == ("complete", "Watching")


class Broken(Callback):
    def on_update(self, run: Run) -> None:
        if run.timesteps >= 64:
            raise ZeroDivisionError("oh no")


class BrokenAtTheEnd(Broken):
    def on_end(self, run: Run) -> None:
        raise FloatingPointError("still broken")


def test_the_first_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HookError, match="ZeroDivisionError: oh no"):
        trained(tmp_path / "run", BrokenAtTheEnd())
    facts = RunFacts.read(tmp_path / "run")
    assert facts is not None and facts.state == "failed"


def test_one_that_raises_ends_the_run_with_its_checkpoint(tmp_path: Path) -> None:
    seen = Watching()
    with pytest.raises(HookError, match="callback Broken failed: ZeroDivisionError: oh no") as error:
        trained(tmp_path / "run", seen, Broken())
    assert "on_update" in error.value.traceback
    assert learnt(tmp_path / "run")["steps"] == 64
    assert seen.seen[-1] == ("end", 64)
    facts = RunFacts.read(tmp_path / "run")
    assert facts is not None and facts.state == "failed" and "oh no" in str(facts.stopped_by)
    assert main(["train", f"--resume={tmp_path / 'run'}"]) == 0
    assert learnt(tmp_path / "run")["steps"] == 128


class BrokenLogger:
    broken: ClassVar[str] = "log"

    def __init__(self, run: Any) -> None:
        if self.broken == "init":
            raise ZeroDivisionError("oh no")

    def log(self, row: Any) -> None:
        if self.broken == "log" and row.steps >= 64:
            raise ZeroDivisionError("oh no")

    def close(self) -> None:
        if self.broken == "close":
            raise ZeroDivisionError("oh no")


@pytest.mark.parametrize(("where", "steps"), [("init", None), ("log", 64), ("close", 128)])
def test_a_logger_that_raises_ends_the_run_with_its_checkpoint(
    where: str,
    steps: int | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BrokenLogger, "broken", where)
    run = tmp_path / "run"
    logger = f"--run.loggers={__name__}:BrokenLogger"
    assert main(["train", *SMALL, "--total-timesteps=128", f"--run-dir={run}", logger]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and "oh no" in err.splitlines()[-1] and "BrokenLogger failed" in err
    if steps is None:
        assert not list(run.glob("checkpoints/*"))
    else:
        assert learnt(run)["steps"] == steps


@pytest.mark.slow
def test_a_run_stops_at_a_return(tmp_path: Path) -> None:
    options = ["--stop-at-return=8", "--total-timesteps=20000", "--ppo.learning-rate=1e-9"]
    assert main(["train", *SMALL, *options, f"--run-dir={tmp_path / 'run'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["stopped_by"], summary["status"]) == ("EarlyStopping", "complete")
    assert summary["episodes"] >= 100 and summary["steps"] < 20000
    assert rows_of(tmp_path / "run")[-1]["time/total_timesteps"] == summary["steps"]


def stopped_after(callback: EarlyStopping, scores: list[float]) -> int:
    """Environment steps at which a run stops whose evaluations, one an update, give these scores."""
    by_steps = {STEPS * (i + 1): score for i, score in enumerate(scores)}
    evaluation, _ = evaluation_of(by_steps, 2)
    total = STEPS * len(scores)
    trainer = trainer_of(FakeSource(), evaluation, callback, total_timesteps=total, eval_freq=2)
    list(trainer.rows())
    return trainer.steps


def test_early_stopping() -> None:
    assert stopped_after(EarlyStopping(5.0), [1, 2, 5, 6]) == 3 * STEPS
    assert stopped_after(EarlyStopping(patience=2), [1, 2, 1, 2, 3]) == 4 * STEPS
    assert stopped_after(EarlyStopping(patience=2, min_delta=1.5), [1, 2, 2, 3, 4]) == 3 * STEPS
    assert stopped_after(EarlyStopping(patience=3), [1, 2, 1, 2, 3]) == 5 * STEPS
    with pytest.raises(ValueError, match="expected a threshold, patience or both"):
        EarlyStopping()
    with pytest.raises(TrainError, match=r"set run\.eval_freq"):
        list(trainer_of(FakeSource(), EarlyStopping(patience=1)).rows())


def test_early_stopping_is_resumed() -> None:
    first, second = EarlyStopping(1e9), EarlyStopping(1e9)
    trainer = trainer_of(FakeSource(), first)
    list(trainer.rows())
    resumed = trainer_of(FakeSource(), second)
    resumed.load_state_dict(trainer.state_dict())
    assert second.state_dict() == first.state_dict()
    assert len(first.state_dict()["returns"]) == 6
    # A checkpoint without it is no hindrance.
    plain = trainer_of(FakeSource())
    trainer_of(FakeSource(), EarlyStopping(1.0)).load_state_dict(plain.state_dict())


def test_callbacks_of_one_class_keep_their_own_states() -> None:
    trainer = trainer_of(FakeSource(), EarlyStopping(1e9), EarlyStopping(2e9))
    assert set(trainer.state_dict()["callbacks"]) == {"EarlyStopping", "EarlyStopping-2"}


def test_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    evaluation, _ = evaluation_of({10: 1.0, 20: 5.0, 30: 3.0}, 2)
    best = BestCheckpoint(tmp_path / "folder" / "best.safetensors")
    list(trainer_of(FakeSource(), evaluation, best, eval_freq=2).rows())
    assert load_checkpoint(best.path)["steps"] == 20
    with pytest.raises(TrainError, match="no evaluations on the way"):
        list(trainer_of(FakeSource(), BestCheckpoint()).rows())


def test_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bool] = []
    advances: list[float] = []

    class Noting(contextlib.AbstractContextManager[None]):
        def __init__(self, text: str, total: float) -> None:
            self.advance = advances.append

        def __exit__(self, *error: object) -> None:
            ends.append(True)

    monkeypatch.setattr(callbacks, "Progress", Noting)
    trainer = trainer_of(FakeSource(), ProgressBar())
    list(trainer.rows())
    assert sum(advances) == trainer.steps and not ends
    for _ in range(2):
        trainer.notify(lambda callback: callback.on_end(trainer.view))
    assert ends == [True]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--ppo.memory=gru",)], ids=["plain", "memory"])
def test_episodes_are_filmed(options: tuple[str, ...], tmp_path: Path) -> None:
    trained(tmp_path / "run", VideoRecorder(64, suffix=".gif"), options=options)
    films = sorted(path.name for path in (tmp_path / "run" / "videos").iterdir())
    assert films == [f"step-{steps:012d}.gif" for steps in (32, 96, 128)]


def test_what_cannot_be_filmed_is_said_in_one_line() -> None:
    with pytest.raises(TrainError, match="toy on fake has no task that films it"):
        list(trainer_of(FakeSource(), VideoRecorder()).rows())


@pytest.mark.slow
def test_a_model_takes_callbacks_and_loggers(tmp_path: Path) -> None:
    class Recorder:
        steps: ClassVar[list[int]] = []
        closed = False

        def log(self, row: Any) -> None:
            self.steps.append(row.steps)

        def close(self) -> None:
            self.closed = True

    recorder, run = Recorder(), tmp_path / "run"
    model = fastrl.PPO("CartPole-v1", num_envs=2, num_steps=16, minibatch_size=32, eval_episodes=0)
    model.learn(320, callbacks=[Watching("update", 3)], loggers=[recorder], run_dir=run)
    assert model.steps == recorder.steps[-1] == 96 and recorder.closed
    assert json.loads((run / "summary.json").read_text())["stopped_by"] == "Watching"
    # A stopped run is not done: it can continue.
    assert model.learn(32).steps == 128
    with pytest.raises(HookError, match="oh no"):
        model.learn(64, callbacks=[Broken()])
    assert model.steps == 160


def test_the_view_of_a_run(tmp_path: Path) -> None:
    class Look(Callback):
        def on_end(self, run: Run) -> None:
            assert (run.env, run.algorithm, run.seed) == ("CartPole-v1", "ppo", 3)
            assert (run.goal, run.unit, run.done, run.iterations) == (128, "steps", 128, 4)
            assert run.settings["run"]["seed"] == 3
            assert run.metrics["time/total_timesteps"] == 128 and not run.has_evaluations
            assert run.episodes >= 0 and np.isfinite(run.ended.returns).all()
            run.save(tmp_path / "saved" / "model.safetensors")

    trained(tmp_path / "run", Look(), options=("--seed=3",))
    assert load_checkpoint(tmp_path / "saved" / "model.safetensors")["steps"] == 128
