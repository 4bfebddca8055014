"""Learning curves that are trained in pieces."""

from pathlib import Path

import pytest

import learning_curves
from learning_curves import Planned, Row, planned, read_rows, train_missing

PLAN = {
    "runs": [
        {
            "env": "A",
            "algo": "sac",
            "steps": 10,
            "seeds": 2,
            "variants": {"small": {"x": 1}, "large": {"x": 2}},
        },
        {
            "env": "B",
            "algo": "dqn",
            "steps": 20,
            "seeds": 1,
            "random_demos": 7,
            "settings": {"x": 0, "y": 3},
            "variants": {"one": {"x": 4}},
        },
    ]
}


def test_runs_come_seed_by_seed_with_the_settings_of_their_variant() -> None:
    runs = list(planned(PLAN))
    assert [(run.env, run.variant, run.seed) for run in runs] == [
        ("A", "small", 0),
        ("A", "large", 0),
        ("B", "one", 0),
        ("A", "small", 1),
        ("A", "large", 1),
    ]
    assert [run.random_demos for run in runs[:3]] == [0, 0, 7]
    assert [run.settings for run in runs[:3]] == [{"x": 1}, {"x": 2}, {"x": 4, "y": 3}]


def test_algorithms_share_variants_and_variants_add_options_of_the_environment() -> None:
    group = {
        "env": "A",
        "algo": {"ippo": {}, "mappo": {"x": 1}},
        "steps": 10,
        "seeds": 1,
        "options": ["a=1"],
        "variants": {"plain": {}, "more": {"env__options": ["b=2"]}},
    }
    runs = [(run.algo, run.variant, run.settings) for run in planned({"runs": [group]})]
    assert runs == [
        ("ippo", "plain", {"env__options": ["a=1"]}),
        ("ippo", "more", {"env__options": ["a=1", "b=2"]}),
        ("mappo", "plain", {"x": 1, "env__options": ["a=1"]}),
        ("mappo", "more", {"x": 1, "env__options": ["a=1", "b=2"]}),
    ]


def test_runs_that_have_a_row_of_the_same_settings_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Planned] = []

    def ended(run: Planned) -> Row:
        started.append(run)
        if len(started) == 3:
            raise KeyboardInterrupt
        return Row(run, [(5, 1.0), (10, 2.0 + run.seed)], 0.5)

    monkeypatch.setattr(learning_curves, "in_a_process", ended)
    runs, path = list(planned(PLAN)), tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        train_missing(runs, path, 1)
    kept = [row.run for row in read_rows(path)]
    assert kept[:2] == runs[:2] and runs[2] not in kept
    train_missing(runs, path, 1)
    rows = read_rows(path)
    assert sorted(runs.index(row.run) for row in rows) == [0, 1, 2, 3, 4]
    assert (rows[0].last, rows[0].mean) == (2.0, 1.5)
    changed = [Planned(**{**vars(runs[0]), "settings": {"x": 9}}), *runs[1:]]
    train_missing(changed, path, 1)
    assert read_rows(path)[5:] == [Row(changed[0], [(5, 1.0), (10, 2.0)], 0.5)]


@pytest.mark.slow
def test_a_run_is_evaluated_at_its_points() -> None:
    settings = {"hidden": [8], "run__eval_episodes": 2}
    row = learning_curves.in_a_process(Planned("CartPole-v1", "ppo", "small", 0, 4096, 2, settings))
    assert row.run.settings == settings and row.cpu_seconds > 0
    assert len(row.curve) == 2 and row.curve[-1][0] >= 4096 > row.curve[0][0] >= 2048
    assert all(value >= 1 for _, value in row.curve)
