import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from small_runs import OPTIONS, train_small
from tensorboardX.proto.event_pb2 import Event

from fastrl.cli.main import main
from fastrl.collectors.protocol import Report
from fastrl.training.profiler import LEARNER_ACTIVITIES, Breakdown, Profile, draw, load, show, table

Spans = list[tuple[float, float]]


def text_of(breakdown: Breakdown) -> str:
    file = io.StringIO()
    Console(width=80, file=file).print(table(breakdown))
    return file.getvalue()


def asynchronous(
    workers: int, ahead: int, updates: int, play: Callable[[], float], learn: Callable[[], float]
) -> tuple[float, float, Spans, list[Spans]]:
    """A learner that takes one finished task after the other while workers continue, at most ``ahead`` of them running
    or waiting. Returns when it ended, how long it waited, when it was at work, and when each worker was."""
    free = [0.0] * workers
    busy: list[Spans] = [[] for _ in range(workers)]
    finished: list[float] = []
    slots = [0.0] * ahead  # when each may begin another task
    learning: Spans = []
    now = waited = 0.0

    def begin() -> None:
        slot = min(range(len(slots)), key=slots.__getitem__)
        worker = min(range(workers), key=free.__getitem__)
        start = max(slots.pop(slot), free[worker])
        free[worker] = start + play()
        busy[worker].append((start, free[worker]))
        finished.append(free[worker])

    for _ in range(ahead):
        begin()
    for _ in range(updates):
        finished.sort()
        ready = finished.pop(0)
        waited += max(ready - now, 0.0)
        now = max(now, ready)
        slots.append(now)
        begin()
        learning.append((now, now + learn()))
        now = learning[-1][1]
    return now, waited, learning, busy


def overlap(a: Spans, b: Spans) -> float:
    return sum(max(min(x[1], y[1]) - max(x[0], y[0]), 0.0) for x in a for y in b)


def check_sums(breakdown: Breakdown) -> None:
    for line in breakdown.timelines:
        assert sum(line.share(part) for part in line.activities) == pytest.approx(1)
        assert sum(line.activities.values()) == pytest.approx(line.seconds)
        assert all(seconds >= -1e-9 for seconds in line.activities.values())
        assert [part for part in LEARNER_ACTIVITIES if part in line.activities] == list(line.activities)
    assert sum(breakdown.overlap.values()) == pytest.approx(breakdown.seconds)
    assert all(seconds >= -1e-9 for seconds in breakdown.overlap.values())


def test_a_learner_that_collects_itself() -> None:
    profile = Profile()
    for _ in range(2):
        shares = profile.lap(10.0, {"update": 5.0, "inference": 1.0, "environment": 3.0}, 1000, 10).shares
        assert shares == pytest.approx({"environment": 0.3, "inference": 0.1, "update": 0.5, "other": 0.1})
    breakdown = profile.breakdown()
    check_sums(breakdown)
    (learner,) = breakdown.timelines
    assert list(learner.activities) == ["environment", "inference", "update", "other"]
    assert breakdown.overlap == pytest.approx(
        {"collecting": 8.0, "both": 0.0, "learning": 12.0, "neither": 0.0}
    )
    part = breakdown.to_tree()["timelines"][0]["parts"]["environment"]
    assert part == pytest.approx({"seconds": 6.0, "share": 0.3, "per_step": 0.003, "per_episode": 0.3})


def test_a_collector_in_the_learners_process_is_no_worker() -> None:
    # Its parts were measured inside "waiting", and its report counts from the beginning.
    profile = Profile()
    for i in (1, 2):
        report = Report(seconds={"environment": 2.0 * i, "inference": 1.0 * i, "weights": 0.5 * i})
        profile.lap(8.0, {"waiting": 4.0, "update": 4.0}, 100, 1, report)
    breakdown = profile.breakdown()
    check_sums(breakdown)
    (learner,) = breakdown.timelines
    assert learner.activities == pytest.approx(
        {"environment": 4.0, "inference": 2.0, "publishing": 1.0, "update": 8.0, "other": 1.0}
    )
    assert breakdown.overlap["collecting"] == pytest.approx(7.0)
    assert breakdown.overlap["both"] == 0


def test_workers_that_a_learner_waits_for_overlap_with_nothing() -> None:
    # Two workers, busy for 4 and 6 of the 6 seconds in which the learner waits.
    profile = Profile()
    shares = profile.lap(
        10.0,
        {"waiting": 6.0, "update": 4.0},
        100,
        1,
        Report(workers=2, seconds={"environment": 8.0, "inference": 2.0, "waiting": 2.0}),
    ).shares
    assert shares["workers_environment"] == pytest.approx(0.4)
    assert sum(share for name, share in shares.items() if name.startswith("workers_")) == pytest.approx(1)
    breakdown = profile.breakdown()
    check_sums(breakdown)
    assert breakdown.overlap["both"] == 0
    assert breakdown.overlap["learning"] == pytest.approx(4.0)
    assert breakdown.overlap["collecting"] == pytest.approx(5.0)


def test_starting_is_told_apart() -> None:
    profile = Profile()
    profile.lap(5.0, {"waiting": 5.0}, 0, 0, Report(workers=2))
    profile.lap(5.0, {"waiting": 1.0, "update": 4.0}, 10, 1, Report(workers=2, seconds={"environment": 8.0}))
    breakdown = profile.breakdown()
    check_sums(breakdown)
    learner, workers = breakdown.timelines
    # Six seconds waited, four of them while the mean worker was busy at most.
    assert learner.activities["starting"] == pytest.approx(2.0)
    assert workers.activities["starting"] == pytest.approx(4.0)
    assert breakdown.overlap["both"] == pytest.approx(0.0)


def test_workers_that_tell_late_make_no_share_above_one() -> None:
    profile = Profile()
    profile.lap(1.0, {"waiting": 1.0}, 0, 0, Report(workers=1))
    report = Report(workers=1, seconds={"environment": 2.0})
    shares = profile.lap(1.0, {"waiting": 1.0}, 9, 1, report).shares
    assert shares["workers_environment"] == 1
    check_sums(profile.breakdown())


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("learn", [0.05, 0.4, 3.0])
def test_overlap_on_a_synthetic_timeline(workers: int, learn: float) -> None:
    """Against the intersection of the true intervals, from a learner that starves to one that is always late."""
    random = np.random.default_rng(workers)
    end, waited, learning, busy = asynchronous(
        workers, 2 * workers, 400, lambda: random.exponential(1.0), lambda: learn * random.uniform(0.5, 1.5)
    )
    worked = [[(start, min(stop, end)) for start, stop in spans if start < end] for spans in busy]
    true = sum(overlap(spans, learning) for spans in worked) / workers
    seconds = sum(stop - start for spans in worked for start, stop in spans)
    profile = Profile()
    profile.lap(
        end,
        {"waiting": waited, "update": end - waited},
        400,
        400,
        # The first wait is for no start: workers start at once.
        Report(workers=workers, seconds={"environment": seconds}, cold_start=1e-9),
    )
    breakdown = profile.breakdown()
    check_sums(breakdown)
    assert breakdown.overlap["both"] == pytest.approx(true, rel=0.01, abs=0.005 * end)
    assert breakdown.overlap["neither"] == pytest.approx(0.0, abs=0.005 * end)


def test_what_workers_did_meanwhile_is_taken_from_the_collector_that_measures_it() -> None:
    """Here they idle while the learner waits, and are at work while it learns."""
    profile = Profile()
    for i, meanwhile in enumerate((1.0, 7.0)):
        report = Report(
            workers=2, seconds={"environment": 4.0 * (i + 1)}, overlap_seconds=meanwhile, cold_start=1e-12
        )
        profile.lap(5.0, {"waiting": 2.0, "update": 3.0}, 10, 1, report)
    found = {"collecting": 0.5, "both": 3.5, "learning": 2.5, "neither": 3.5}
    assert profile.breakdown().overlap == pytest.approx(found)
    # More than both have done at all it cannot be.
    profile.lap(
        1.0, {"waiting": 1.0}, 0, 0, Report(workers=2, seconds={"environment": 8.0}, overlap_seconds=100.0)
    )
    assert profile.breakdown().overlap["both"] == 4.0
    # One lap without: it is an estimate again.
    profile.lap(1.0, {"waiting": 1.0}, 0, 0, Report(workers=2, seconds={"environment": 8.0}))
    assert profile.breakdown().overlap["both"] == 0.0


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from([*LEARNER_ACTIVITIES[:-1], "sampling", "own"]), st.floats(0, 1), max_size=5
            ),
            st.floats(0, 3),
            st.dictionaries(st.sampled_from(["environment", "inference", "queue"]), st.floats(0, 3)),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_shares_add_up(laps: list[tuple[dict[str, float], float, dict[str, float]]], workers: int) -> None:
    profile, totals = Profile(), {"environment": 0.0, "inference": 0.0, "queue": 0.0}
    for parts, more, spent in laps:
        totals = {name: seconds + spent.get(name, 0.0) for name, seconds in totals.items()}
        report = Report(workers=workers, seconds=totals)
        shares = profile.lap(sum(parts.values()) + more, parts, 1, 0, report).shares
        for group in (False, True):
            mine = [share for name, share in shares.items() if name.startswith("workers_") == group]
            assert sum(mine) == pytest.approx(1) or not any(mine)
    breakdown = profile.breakdown()
    for line in breakdown.timelines:
        assert sum(line.activities.values()) == pytest.approx(line.seconds)
    assert sum(breakdown.overlap.values()) == pytest.approx(breakdown.seconds, abs=1e-9)
    assert Breakdown.from_tree(json.loads(json.dumps(breakdown.to_tree()))) == breakdown


def test_the_gpu_counts_by_time() -> None:
    use = iter([0.2, 0.8])
    profile = Profile(lambda: next(use))
    assert profile.lap(1.0, {}, 1, 1).shares["gpu"] == 0.2
    profile.lap(3.0, {}, 1, 1)
    assert profile.breakdown().gpu_use == pytest.approx(0.65)
    assert "GPU" in text_of(profile.breakdown())


def test_files_are_as_they_should_be(tmp_path: Path) -> None:
    profile = Profile()
    show(tmp_path, Console(quiet=True))
    profile.save(tmp_path / "profile.json")
    assert not list(tmp_path.iterdir()), "nothing was measured"
    profile.lap(1.0, {"update": 0.25, "waiting": 0.5}, 10, 0, Report(workers=3, seconds={"environment": 1.0}))
    profile.save(tmp_path / "profile.json")
    assert load(tmp_path / "profile.json") == profile.breakdown()
    draw(profile.breakdown(), tmp_path / "profile.png")
    picture = (tmp_path / "profile.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n") and len(picture) > 5000


def test_the_table_has_every_part() -> None:
    profile = Profile()
    profile.lap(
        2.0, {"update": 0.5, "waiting": 1.0}, 1000, 10, Report(workers=3, seconds={"environment": 3.0})
    )
    text = text_of(profile.breakdown())
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "where the time went: 2.0 s, 1,000 steps, 10 episodes"
    assert any(line.split() == ["update", "███▌", "25.0%", "0.50", "500.00", "50.00"] for line in lines)
    assert any("3 workers, summed" in line for line in lines)


def values_of(run: Path) -> dict[str, list[float]]:
    """The scalars in TensorBoard's files."""
    found: dict[str, list[float]] = {}
    for file in (run / "tensorboard").glob("events*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(value.simple_value)
    return found


GYM = ["--collector=sequential", "--total-timesteps=1500", "--run.eval-episodes=0"]
WORKFLOW = [
    "--total-episodes=60",
    "--inner.measured-episodes=10",
    "--workflow=op_server,enterprise,op_host,defender,user",
    "--no-plain-ppo",
    "--env.episode-length=5",
    "--episodes-per-update=10",
    "--run.eval-episodes=0",
]
TRAFFIC = [
    "--total-episodes=4",
    "--num-envs=2",
    "--vehicles=2",
    "--run.eval-episodes=0",
    "--ippo.num-steps=8",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cage2", [*OPTIONS, "--total-timesteps=240"]),
        ("cage2-workflow", WORKFLOW),
        ("CartPole-v1", GYM),
        ("traffic", TRAFFIC),
    ],
)
def test_runs_show_where_their_time_went(
    kind: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", kind, *options, f"--run-dir={run}", "--profile"]) == 0
    text = capsys.readouterr().out
    assert "where the time went: " in text and "only collecting" in text
    assert text.count("where the time went") == 2, "in full and as a picture, not in short besides"
    assert (run / "profile.png").read_bytes().startswith(b"\x89PNG")
    breakdown = load(run / "profile.json")
    check_sums(breakdown)
    (learner,) = breakdown.timelines
    assert {"environment", "inference", "buffer", "returns", "update"} <= set(learner.activities)
    assert all(learner.activities[name] > 0 for name in ("environment", "inference", "buffer", "update"))
    tags = {tag for tag in values_of(run) if tag.startswith("time/share_")}
    assert {f"time/share_{name}" for name in learner.activities} <= tags
    # Not all rows of a search have the same activities.
    for line in (run / "metrics.jsonl").read_text().splitlines():
        shares = [share for tag, share in json.loads(line).items() if tag.startswith("time/share_")]
        assert math.fsum(shares) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_collectors_in_processes_have_a_timeline_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = ["fastrl/Catch-v0", "--n-workers=1", "--total-timesteps=600", "--run.row-seconds=0.2"]
    sizes = [
        "--collector=executor",
        "--replay.capacity=2000",
        "--replay.learning-starts=200",
        "--run.eval-episodes=0",
        "--device=cpu",
    ]
    assert main(["train", *options, *sizes, f"--run-dir={run}", "--profile"]) == 0
    text = capsys.readouterr().out
    assert "workers" in text
    assert "time of the" not in text, "in full, not in short besides"
    breakdown = load(run / "profile.json")
    check_sums(breakdown)
    learner, workers = breakdown.timelines
    assert (learner.name, workers.name, workers.count) == ("learner", "workers", 1)
    assert workers.activities["environment"] > 0
    assert not math.isnan(sum(workers.activities.values()))
    assert breakdown.steps >= 600


def test_a_run_that_has_nothing_left_to_do_tells_its_times_in_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path / "run", iterations=1)
    assert capsys.readouterr().out.count("where the time went") == 1
    again = ["--resume", str(tmp_path / "run"), "--run-dir", str(tmp_path / "again"), "--profile"]
    assert main(["train", *again]) == 0
    text = capsys.readouterr().out
    assert text.count("where the time went") == 1 and "only collecting" not in text
    assert not (tmp_path / "again" / "profile.png").exists()
