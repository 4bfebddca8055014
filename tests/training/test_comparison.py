"""Paired differences and spreads over seeds of training, against slow models."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import train_small

from fastrl.cli.main import main
from fastrl.training.comparison import Scored, compare
from fastrl.training.evaluation import Returns
from fastrl.utils.config import ConfigError
from fastrl.utils.files import to_json


def scored(name: str, returns: Any, seed: int = 0, variant: Any = None, **env: Any) -> Scored:
    settings = {"run": {"seed": seed, "algo": "ppo"}, "env": {"id": "x", "num_envs": 8, **env}}
    return Scored(name, variant or {}, Returns(tuple(returns)), settings)


def test_a_paired_difference_is_the_mean_over_episodes() -> None:
    rng = np.random.default_rng(0)
    luck = rng.normal(size=50) * 10
    a, b, c = (luck + rng.normal(size=50) + shift for shift in (0, 1, 2))
    subjects = [scored("a", a), scored("b", b, num_envs=4), scored("c", c)]
    first, second = compare(subjects, paired=True).differences
    for difference, other in ((first, b), (second, c)):
        gaps = [float(x - y) for x, y in zip(other, a, strict=True)]
        assert (difference.to, difference.episodes) == ("a", 50)
        assert difference.total.mean == pytest.approx(statistics.fmean(gaps))
        assert difference.total.standard_error == pytest.approx(statistics.stdev(gaps) / math.sqrt(50))
        independent = math.hypot(*(statistics.stdev(map(float, x)) / math.sqrt(50) for x in (a, other)))
        assert difference.total.standard_error < independent / 4
        tree = json.loads(to_json(difference.to_tree()))
        assert tree["total"] == tree["parts"]["return"]
    assert first.line().startswith("b - a: ") and "50 episodes" in first.line()
    assert compare(subjects).differences == []


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "name at least two"),
        ([scored("b", [1.0], length=5)], "b has other episodes than a, they differ in env.length"),
        ([scored("b", [1.0, 2.0])], "b has other episodes than a"),
        ([Scored("b", {}, Returns((1.0,), seeded=False))], "of b keeps no returns of episodes with seeds"),
    ],
)
def test_episodes_that_cannot_be_paired_are_refused(others: list[Scored], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compare([scored("a", [1.0]), *others], paired=True)
    assert "\n" not in str(caught.value)


def test_evaluations_of_the_same_variant_are_paired() -> None:
    """A baseline has no mode and is paired with both."""
    one, two = {"ruleset": "main", "mode": "deterministic"}, {"ruleset": "main", "mode": "stochastic"}
    other = {"ruleset": "leaderboard", "mode": "stochastic"}
    subjects = [scored("a", [i, 0.0], 0, v) for i, v in enumerate((one, two, other))]
    subjects += [scored("b", [5.0, 0.0], 1, v) for v in (one, two, other)]
    subjects += [Scored("baseline", {"ruleset": "main"}, Returns((8.0, 0.0)))]
    found = compare(subjects, paired=True).differences
    assert [(each.name, each.variant, each.total.mean) for each in found] == [
        ("b", one, 2.5),
        ("b", two, 2.0),
        ("b", other, 1.5),
        ("baseline", one, 4.0),
        ("baseline", two, 3.5),
    ]


def test_runs_that_differ_in_their_seed_are_a_group() -> None:
    means = [3.0, 5.0, 10.0]
    group = [scored(f"runs/x-{seed}", [mean - 1, mean + 1], seed) for seed, mean in enumerate(means)]
    alone = scored("runs/other", [1.0, 1.0], 7, num_envs=16)
    [spread] = compare([*group, alone]).spreads
    assert (spread.name, spread.seeds) == ("3 seeds of runs/x-*", [0, 1, 2])
    deviation = statistics.stdev(means)
    assert spread.total == spread.parts["return"]
    assert spread.total == pytest.approx(
        {"mean": 6.0, "deviation": deviation, "standard_error": deviation / 3**0.5, "min": 3.0, "max": 10.0}
    )
    assert "mean 6.00, standard deviation 3.61, standard error 2.08, from 3.00 to 10.00" in spread.line()
    # Two checkpoints of one run are no sample over seeds.
    assert compare([group[0], scored("runs/x-0/best", [1.0], 0)]).spreads == []


@pytest.mark.slow
def test_the_command_line_compares_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (3, 4):
        train_small(tmp_path / "runs" / f"seed-{seed}", f"--seed={seed}", iterations=1)
    capsys.readouterr()
    common = ["--episodes=4", "--ruleset=main", "--seed=1"]
    assert main(["eval", str(tmp_path / "runs"), "--paired", "--json", *common]) == 0
    tree = json.loads(capsys.readouterr().out)
    names = [str(tmp_path / "runs" / f"seed-{seed}") for seed in (3, 4)]
    modes = ("deterministic", "stochastic")
    assert [(run["run"], run["mode"]) for run in tree["runs"]] == [(n, m) for n in names for m in modes]
    for mode, spread, difference in zip(modes, tree["seeds"], tree["paired"], strict=True):
        totals = [run["total"] for run in tree["runs"] if run["mode"] == mode]
        assert (spread["runs"], spread["seeds"], spread["mode"]) == (names, [3, 4], mode)
        assert spread["total"]["mean"] == pytest.approx(statistics.fmean(totals))
        assert spread["total"]["deviation"] == pytest.approx(statistics.stdev(totals))
        assert (difference["run"], difference["to"], difference["mode"]) == (names[1], names[0], mode)
        assert difference["total"]["mean"] == pytest.approx(totals[1] - totals[0])
        assert len(spread["parts"]) == len(difference["parts"]) == 9
    assert main(["eval", str(tmp_path / "runs"), "--paired", *common]) == 0
    out = capsys.readouterr().out
    assert "2 seeds of" in out and "standard deviation" in out and "A - B:" in out
    assert main(["eval", names[0], "--paired", *common]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_runs_on_one_gymnasium_environment_are_paired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--total-timesteps=64", "--ppo.num-steps=16", "--run.eval-episodes=0", "--device=cpu"]
    for name, seed, steps in (("a", 0, 30), ("b", 1, 30), ("c", 1, 20)):
        options = [f"--seed={seed}", "--env.num-envs=2", "--env.options", f"max_episode_steps={steps}"]
        run_dir = f"--run-dir={tmp_path / name}"
        assert main(["train", "CartPole-v1", run_dir, "--collector=sequential", *small, *options]) == 0
    capsys.readouterr()
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert main(["eval", a, b, "--paired", "--json", "--episodes=6"]) == 0
    tree = json.loads(capsys.readouterr().out)
    gaps = np.subtract(*(run["returns"] for run in reversed(tree["runs"])))
    assert tree["paired"][0]["total"]["mean"] == pytest.approx(gaps.mean())
    assert tree["seeds"][0]["total"]["mean"] == pytest.approx(np.mean([run["mean"] for run in tree["runs"]]))
    assert main(["eval", a, b, "--paired", "--episodes=6"]) == 0
    out = capsys.readouterr().out
    assert f"{b} - {a}: " in out and "from the differences of 6 episodes" in out
    assert main(["eval", a, c, "--paired", "--episodes=6"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "they differ in env.options" in err
