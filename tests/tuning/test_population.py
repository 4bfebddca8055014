"""Population-based training: who copies whom, forks of runs, and what is left of a lineage."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from small_runs import learnt, same
from tuning_fakes import SPACE, new_study, quality, search

from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks import find
from fastrl.training.run import resume_run
from fastrl.training.stages import stages_of
from fastrl.tuning.figures import population_figure
from fastrl.tuning.fork import fork
from fastrl.tuning.population import (
    generation_of,
    lineage,
    lineage_values,
    members,
    parent_of,
    perturbed,
    population_space,
)
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, TuneError
from fastrl.tuning.tune import space_for
from fastrl.utils.config import to_toml

RATES = SPACE.partition("[ppo.hidden]")[0]
CONFIG: dict[str, Any] = {"method": "pbt", "trials": 8, "generations": 4, "confirm": 2, "confirm_seeds": 2}


def score(trial: Trial, share: float) -> float:
    return quality(trial)


def test_the_worst_copy_the_best_and_change_a_little(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", RATES, **CONFIG) as study:
        found = search(study, score)
        assert len([name for name in study.trials if name.startswith("member-")]) == 8 * 4
        for generation in range(1, 4):
            before, after = members(study, generation - 1), members(study, generation)
            order = sorted(before, key=lambda trial: trial.score)
            for trial in after:
                parent = parent_of(study, generation, trial.number)
                if before[trial.number] in order[:2]:
                    assert before[parent] in order[-2:] and trial.point != before[parent].point
                else:
                    assert parent == trial.number and trial.point == before[parent].point
        best = [max(trial.score for trial in members(study, generation)) for generation in range(4)]
        mean = [np.mean([trial.score for trial in members(study, generation)]) for generation in range(4)]
        assert best[3] >= best[0] and mean[3] > mean[0] + 0.5
        assert found.chosen is not None and found.chosen.score == best[3]
        assert len({trial.seed for trial in study.trials.values()}) == 8 * 4 + 2 + 2
        # The figure: scores and two settings; of each generation but the first two copies.
        panels = population_figure(study).axes
        assert [panel.get_ylabel() for panel in panels] == ["score", "learning_rate", "gamma"]
        for panel in panels:
            lines = panel.get_lines()
            assert sum(line.get_linestyle() == "--" for line in lines) == 2 * 3
        points = [line for line in panels[0].get_lines() if line.get_marker() == "o"]
        drawn = sorted(float(line.get_ydata()[0]) for line in points)
        assert drawn == sorted(trial.score for name, trial in study.trials.items() if "member" in name)


def test_members_that_failed_go_on_from_others(tmp_path: Path) -> None:
    def failing(trial: Trial, share: float) -> float:
        return math.nan if trial.name.startswith("member-000") and trial.number % 2 else quality(trial)

    with new_study(tmp_path / "s", RATES, **CONFIG) as study:
        search(study, failing)
        assert all(parent_of(study, 1, member) % 2 == 0 for member in range(8))
    with new_study(tmp_path / "t", RATES, **CONFIG) as study, pytest.raises(TuneError, match="all members"):
        search(study, lambda trial, share: math.nan)


def test_a_resumed_population_is_the_same(tmp_path: Path) -> None:
    def kill(trial: Trial) -> None:
        if trial.name == "member-002-003":
            raise InterruptedError

    with new_study(tmp_path / "whole", RATES, **CONFIG) as whole:
        search(whole, score)
    new_study(tmp_path / "cut", RATES, **CONFIG).close()
    with pytest.raises(InterruptedError), Study(tmp_path / "cut") as cut:
        search(cut, score, before=kill)
    with Study(tmp_path / "cut") as cut:
        search(cut, score)
        assert {name: trial.point for name, trial in cut.trials.items()} == {
            name: trial.point for name, trial in whole.trials.items()
        }


def test_a_lineage_is_the_stages_of_a_run(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", RATES, **CONFIG) as study:
        search(study, score)
        copied = next(
            member for member in range(8) if len({str(point) for point in lineage(study, member)}) > 1
        )
        points = lineage(study, copied)
        assert points[-1] == members(study, 3)[copied].point
        settings = study.with_values(lineage_values(study, copied))
        stages = stages_of(settings)
        total = settings.run.total_timesteps
        for generation, point in enumerate(points):
            stage = next(
                each for each in stages if each.until is None or (generation + 1) * total // 4 <= each.until
            )
            own = stage.settings.ppo
            assert (own.learning_rate, own.final_learning_rate) == (point["ppo.learning_rate"], None)
            assert own.gamma == point["ppo.gamma"]


def test_only_fractions_change_while_a_run_trains(tmp_path: Path) -> None:
    task = find("gym")
    settings = task.make_settings({"env.id": "CartPole-v1", "run.algo": "ppo"})
    space = space_for(task, settings, None, [], "pbt")
    names = {each.name for each in space.parameters}
    assert {"ppo.learning_rate", "ppo.gamma", "ppo.clip_range"} <= names
    assert not {"ppo.num_steps", "ppo.minibatch_size", "ppo.activation", "ppo.hidden.width"} & names
    file = tmp_path / "space.toml"
    file.write_text(SPACE)
    with pytest.raises(TuneError, match=r"fractions alone, not ppo\.hidden\.width"):
        space_for(task, settings, file, [], "pbt")
    assert population_space(space).parameters == space.parameters
    point = space.at([0.5] * len(space.parameters))
    for seed in range(20):
        near = perturbed(space, point, np.random.default_rng(seed))
        assert all(each.low <= near[each.name] <= each.high for each in space.parameters)


@pytest.mark.parametrize(
    ("env", "algo", "options"),
    [
        ("CartPole-v1", "ppo", ["--num-envs=4"]),
        pytest.param(
            "Pendulum-v1",
            "sac",
            ["--sac.hidden=8", "--replay.save", "--replay.learning-starts=500", "--sac.batch-size=16"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fork_goes_on_from_the_other_run(env: str, algo: str, options: list[str], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    common = [env, f"--algo={algo}", *options, "--n-workers=1", "--run.eval-episodes=1"]
    assert main(["train", *common, "--total-timesteps=600", f"--run-dir={source}"]) == 0
    before = load_newest(source)[1]
    task = find("gym")
    tree = before["config"]
    tree[algo]["learning_rate"] = 5e-5
    tree["run"] |= {"seed": 7, "total_timesteps": 1200}
    settings = task.make_settings(tree=tree)
    file = tmp_path / "target.toml"
    file.write_text(f'kind = "gym"\n\n{to_toml(settings)}')
    fork(source, target, file)
    copy = load_newest(target)[1]
    assert same(copy["learner"], before["learner"]) and copy["steps"] == before["steps"]
    fork(source, target, tmp_path / "nowhere")  # nothing: it is there
    summary = resume_run(task, target, {}, None, Console(quiet=True))
    assert summary.status == "complete" and summary.steps >= 1200
    after = load_newest(target)[1]
    assert after["config"][algo]["learning_rate"] == 5e-5 and after["config"]["run"]["seed"] == 7
    moved = [
        float((after["policy"]["weights"][name] - weights).abs().max())
        for name, weights in before["policy"]["weights"].items()
        if torch.is_tensor(weights)
    ]
    # Adam moves each weight by about the learning rate in a step.
    assert 0 < max(moved) < 0.2
    assert same(learnt(source), {key: value for key, value in before.items() if key in learnt(source)})
    assert (target / "replay").exists() == (algo == "sac")
    steps = [int(line.partition(",")[0]) for line in (target / "episodes.csv").read_text().splitlines()[1:]]
    assert min(steps) <= before["steps"] < max(steps)


def test_generations_are_numbered() -> None:
    assert generation_of(Trial("member-012-003", 3, {}, 0)) == 12
