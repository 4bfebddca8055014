"""``fastrl compare`` and `fastrl.compare`, on directories as runs leave them."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import run_cli

import fastrl
from fastrl.runs.compare import ALL, Row
from fastrl.runs.curves import Curve
from fastrl.runs.directory import RunDirectory
from fastrl.runs.facts import RunFacts, State
from fastrl.runs.statistics import bootstrap, improvement, interquartile_mean
from fastrl.utils.config import ConfigError

WALK, HOP = "Walk-v0", "Hop-v0"


def make_run(
    path: Path,
    score: float | None,
    *,
    seed: int = 0,
    algo: str = "ppo",
    env: str = WALK,
    gamma: float = 0.9,
    state: State = "complete",
) -> None:
    """The files of a run whose evaluation at the end had this mean."""
    with RunDirectory(path) as directory:
        directory.write_settings(
            f'kind = "gym"\n[run]\nseed = {seed}\nalgo = "{algo}"\n[env]\nid = "{env}"\n[{algo}]\ngamma = {gamma}\n'
        )
        RunFacts(state, "gym", env, algo, seed, 100, 6, 1.0, 90.0, None, ()).write(path)
        rows = [
            {"time/total_timesteps": 50 * i, "rollout/ep_rew_mean": i, "eval/mean_reward": i} for i in (1, 2)
        ]
        directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if score is not None:
            (path / "summary.json").write_text(json.dumps({"evaluation": {"mean": score}}))


# Scores by environment and algorithm.
SCORES = {
    (WALK, "ppo"): [10.0, 20.0, 30.0, 40.0, 100.0],
    (WALK, "dqn"): [5.0, 20.0, 25.0],
    (HOP, "ppo"): [-3.0, -1.0, -2.0],
    (HOP, "dqn"): [-3.0, -4.0],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two algorithms on two environments, the second one with two settings."""
    number = 0
    for (env, algo), scores in SCORES.items():
        for seed, score in enumerate(scores):
            gamma = 0.5 if algo == "dqn" and seed == 0 else 0.9
            make_run(tmp_path / f"run-{number:02}", score, seed=seed, algo=algo, env=env, gamma=gamma)
            number += 1
    return tmp_path


def row_of(rows: list[Row], env: str, group: str) -> Row:
    (found,) = [row for row in rows if (row.env, row.group) == (env, group)]
    return found


def test_rows_are_the_statistics_of_groups(folder: Path) -> None:
    found = fastrl.compare(folder, "algo")
    rows = found.rows()
    assert [(row.env, row.group, row.runs) for row in rows] == [
        *((WALK, "ppo", 5), (WALK, "dqn", 3)),
        *((HOP, "ppo", 3), (HOP, "dqn", 2)),
    ]
    walk, dqn = row_of(rows, WALK, "ppo"), row_of(rows, WALK, "dqn")
    assert (walk.iqm.value, walk.mean, walk.median, walk.improvement) == (30, 40, 30, None)
    assert walk.iqm == bootstrap(interquartile_mean, SCORES[WALK, "ppo"])
    # Of 15 pairs two are won and one is a tie with 20: (2 + 2) wins, a half.
    assert dqn.improvement is not None
    assert dqn.improvement.value == pytest.approx((0 + 1.5 + 2) / 15)
    assert dqn.improvement == bootstrap(improvement, SCORES[WALK, "dqn"], SCORES[WALK, "ppo"])
    assert (found.metric, len(found.curves), found.left_out) == ("eval/mean_reward", 13, [])


def test_without_a_setting_groups_differ_in_their_seed_alone(folder: Path) -> None:
    names = [group.name for group in fastrl.compare([folder]).groups]
    assert names == ["ppo", "dqn, dqn.gamma 0.5", "dqn, dqn.gamma 0.9"]
    by = fastrl.compare([folder], ["gamma"])
    assert {group.name: len(group.scores[WALK]) for group in by.groups} == {"gamma 0.9": 7, "gamma 0.5": 1}
    both = fastrl.compare([folder], ["algo", "dqn.gamma"])
    assert [group.name for group in both.groups] == [
        *("ppo, dqn.gamma -", "dqn, dqn.gamma 0.5", "dqn, dqn.gamma 0.9")
    ]


def test_references_normalise_scores_and_join_environments(folder: Path) -> None:
    found = fastrl.compare([folder], ["algo"], references={WALK: (0, 100), HOP: (-5, 0)})
    rows = found.rows()
    assert [row.env for row in rows] == [ALL, ALL, WALK, WALK, HOP, HOP]
    walk, hop = np.array(SCORES[WALK, "ppo"]) / 100, (np.array(SCORES[HOP, "ppo"]) + 5) / 5
    ppo, dqn = row_of(rows, ALL, "ppo"), row_of(rows, ALL, "dqn")
    assert ppo.runs == 8 and ppo.iqm == bootstrap(interquartile_mean, walk, hop)
    assert row_of(rows, WALK, "ppo").mean == pytest.approx(0.4)
    # The mean over environments.
    singles = [row_of(rows, env, "dqn").improvement for env in (WALK, HOP)]
    assert dqn.improvement is not None
    assert dqn.improvement.value == pytest.approx(np.mean([each.value for each in singles if each]))


@pytest.mark.slow
def test_the_figure_joins_curves_of_all_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that lacks an environment has no curve among them; returns of 50 and 100 steps are 1 and 2."""
    for number, (env, algo) in enumerate([(WALK, "ppo"), (HOP, "ppo"), (WALK, "dqn")]):
        make_run(tmp_path / str(number), 5.0, env=env, algo=algo)
    drawn: list[tuple[bool, list[Curve]]] = []
    monkeypatch.setattr(
        "fastrl.runs.compare.draw_env",
        lambda axes, curves, metric, labels, *, is_joined: drawn.append((is_joined, curves)),
    )
    fastrl.compare(tmp_path, "algo", references={WALK: (0, 2), HOP: (1, 2)}).draw(tmp_path / "figure.svg")
    assert [is_joined for is_joined, _ in drawn] == [True, False, False]
    walk, hop = drawn[0][1]
    assert (walk.env, hop.env, walk.label, hop.label) == (WALK, HOP, "ppo", "ppo")
    np.testing.assert_array_equal([walk.steps, hop.steps], [[0.5, 1.0]] * 2)
    np.testing.assert_array_equal([walk.values, hop.values], [[0.5, 1.0], [0.0, 1.0]])


@pytest.mark.slow
def test_a_table_and_a_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "figure.svg"
    code, text, err = run_cli(capsys, "compare", folder, "--by", "algo", "--out", out)
    assert (code, err) == (0, "")
    lines = text.splitlines()
    assert lines[:3] == [f"{WALK}:", "", "| group | runs | IQM | mean | median | P(better than ppo) |"]
    assert lines[4].startswith("| ppo | 5 | 30.0 (") and lines[4].endswith(" | 40.0 | 30.0 | - |")
    assert "95% bootstrap interval" in text and text.endswith(f"Figure: {out}\n")
    assert out.read_text().startswith("<?xml")


def test_one_run_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", 7.0)
    make_run(tmp_path / "stopped", 9.0, state="interrupted")
    code, text, err = run_cli(capsys, "compare", tmp_path, "--out", tmp_path / "figure.png")
    assert err == f"fastrl compare: left out: {tmp_path / 'stopped'}: it is interrupted\n"
    assert code == 0 and "| ppo | 1 | 7.00 (no interval) | 7.00 | 7.00 |" in text
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    code, text, _ = run_cli(capsys, "compare", tmp_path, "--json", "--out", tmp_path / "figure.svg")
    (row,) = json.loads(text)["rows"]
    assert code == 0 and row["iqm"] == {"value": 7.0, "low": None, "high": None}


def test_runs_without_a_score_are_left_out(folder: Path) -> None:
    make_run(folder / "x", None)
    make_run(folder / "y", 1.0, state="interrupted")
    make_run(folder / "z", 1.0, algo="sac")
    found = fastrl.compare([folder], ["algo"], references={WALK: (0, 100), HOP: (-5, 0)})
    assert found.left_out == [
        f"{folder / 'x'}: it has no evaluation at its end",
        f"{folder / 'y'}: it is interrupted",
        f"{ALL}: sac has no run on {HOP}",
    ]
    assert [row.group for row in found.rows() if row.env == ALL] == ["ppo", "dqn"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--by", "algorithm"], "by algorithm: no run has such a setting; did you mean algo?"),
        (
            ["--reference", f"{WALK}=0"],
            f"--reference: expected ENV=LOW:HIGH such as CartPole-v1=22:500, got {WALK}=0",
        ),
        (["--reference", "0:1"], "--reference: expected ENV=LOW:HIGH"),
        (
            ["--reference", f"{WALK}=1:1"],
            f"references: expected two different returns for {WALK}, got 1 twice",
        ),
        (
            ["--reference", "Walk-v1=0:1"],
            f"references: expected one for each environment, got none for {WALK}",
        ),
        (
            ["--metric", "eval/mean_rewards"],
            "has no values of eval/mean_rewards; did you mean eval/mean_reward?",
        ),
        (["--out", "f.pdf"], "expected a name that ends in .png or .svg, got f.pdf"),
        (["nowhere"], "nowhere: no such run directory"),
    ],
)
def test_mistakes_of_comparisons_are_one_line(
    options: list[str], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_cli(capsys, "compare", folder, *options)
    assert code == 2
    assert err.count("\n") == 1 and line in err


def test_a_name_of_two_settings_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 1.0)
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write("[other]\ngamma = 1.0\n")
    with pytest.raises(
        ConfigError, match=r"expected the name of one setting, got that of ppo\.gamma and other\.gamma"
    ):
        fastrl.compare([tmp_path / "run"], ["gamma"])
    assert [group.name for group in fastrl.compare([tmp_path], ["ppo.gamma"]).groups] == ["ppo.gamma 0.9"]
