"""Searches: what is proposed, stopped, confirmed and resumed. Nothing trains here, see `tuning_fakes`."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tuning_fakes import FunctionPool, new_study, quality, search, space_from, write_run

from fastrl.tasks import find
from fastrl.tuning import report
from fastrl.tuning.phases import Candidate, front
from fastrl.tuning.pruning import rungs, should_stop
from fastrl.tuning.settings import TuneConfig
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Evaluated, Result, Trial, TuneError, best_first, read_result, seed_of
from fastrl.tuning.tune import finish, run_search, tune
from fastrl.utils.config import ConfigError, load_toml


def lottery(trial: Trial, share: float) -> float:
    """The best learning rate is 1e-3, and gives 1 with little noise. Above 1e-2 returns are 0 on average and differ by
    2: of many such trials the best one looks better than the best settings."""
    noise = np.random.default_rng(trial.seed).normal()
    if trial.point["ppo.learning_rate"] > 1e-2:
        return 2 * noise
    return quality(trial) + 0.05 * noise


@pytest.mark.parametrize("seed", range(4))
def test_confirmation_rejects_the_lucky_trial(seed: int, tmp_path: Path) -> None:
    study = new_study(tmp_path / "s", seed=seed, trials=60, method="random", pruner="none", confirm=12)
    with study:
        found = search(study, lottery)
    lucky = best_first(study.of_search())[0]
    assert lucky.point["ppo.learning_rate"] > 1e-2 and lucky.score > 1.2
    assert found.chosen is not lucky
    assert abs(math.log10(found.chosen.point["ppo.learning_rate"]) + 3) < 0.5
    of_lucky = next(each for each in found.confirmed if each.trial is lucky)
    assert of_lucky.bound < 0.5 < found.confirmed[0].bound
    # What is reported is what new seeds give.
    assert np.mean(found.final) == pytest.approx(quality(found.chosen), abs=0.15)


def test_without_confirmation_the_lucky_trial_wins(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", trials=60, method="random", pruner="none", confirm=0) as study:
        found = search(study, lottery)
    assert found.chosen.point["ppo.learning_rate"] > 1e-2 and found.confirmed == []


@pytest.mark.parametrize(("method", "trials"), [("tpe", 40), pytest.param("gp", 20, marks=pytest.mark.slow)])
def test_a_model_is_better_than_random_draws(method: str, trials: int, tmp_path: Path) -> None:
    means = {}
    for name in ("random", method):
        scores = []
        for seed in range(2):
            config: dict[str, Any] = {"trials": trials, "method": name, "confirm": 0, "report_episodes": 0}
            with new_study(tmp_path / f"{name}-{seed}", seed=seed, **config) as study:
                search(study, lambda trial, share: quality(trial) * share)
                scores += [quality(trial) for trial in study.of_search()[trials // 2 :]]
        means[name] = float(np.mean(scores))
    assert means[method] > means["random"] + 0.3


@pytest.mark.parametrize("method", ["random", "tpe", pytest.param("gp", marks=pytest.mark.slow), "halving"])
def test_the_same_seed_gives_the_same_trials_also_resumed(method: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"trials": 10, "method": method, "confirm": 2, "confirm_seeds": 2}
    score = lambda trial, share: quality(trial) * share  # noqa: E731

    def trials_of(study: Study) -> list[Any]:
        return [(trial.name, trial.seed, trial.point, trial.result) for trial in study.trials.values()]

    with new_study(tmp_path / "whole", **config) as whole:
        search(whole, score)
    with new_study(tmp_path / "again", **config) as again:
        search(again, score)
    assert trials_of(again) == trials_of(whole)

    def kill(trial: Trial) -> None:
        if trial.name in ("trial-0005", "confirm-0001-1"):
            raise InterruptedError

    new_study(tmp_path / "cut", **config).close()
    with pytest.raises(InterruptedError), Study(tmp_path / "cut") as cut:
        search(cut, score, before=kill)
    with Study(tmp_path / "cut") as cut:
        search(cut, score)
    assert trials_of(cut) == trials_of(whole)
    with new_study(tmp_path / "other", seed=1, **config) as other:
        search(other, score)
    assert other.of_search()[0].point != whole.of_search()[0].point


@pytest.mark.slow
def test_wherever_the_journal_ends_nothing_is_lost_and_the_budget_is_exact(tmp_path: Path) -> None:
    config: dict[str, Any] = {"trials": 8, "method": "random", "confirm": 2, "confirm_seeds": 2}
    with new_study(tmp_path / "whole", **config) as whole:
        search(whole, lottery, size=2)
    data = (tmp_path / "whole" / "journal.jsonl").read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == 10]
    for cut in [0, *(end + shift for end in ends for shift in (-30, 1))][::3]:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / "journal.jsonl").write_bytes(data[:cut])
        with Study(copy) as study:
            ended = {name for name, trial in study.trials.items() if trial.result is not None}
            pool = FunctionPool(study, lottery, size=2)
            findings = run_search(study, Console(quiet=True), pool)
            # Nothing that had ended ran again, also where only its run directory said so.
            assert not ended & {trial.name for trial in pool.started}
            assert {trial.name: trial.score for trial in study.trials.values()} == {
                trial.name: trial.score for trial in whole.trials.values()
            }
            assert (
                len(study.of_search()) == 8
                and findings.chosen.number == report.chosen_of(findings.confirmed, study.of_search()).number
            )
        shutil.rmtree(copy)


def test_seeds_of_search_confirmation_and_report_differ(tmp_path: Path) -> None:
    with new_study(tmp_path / "s", trials=10, method="random", confirm=3, confirm_seeds=3) as study:
        found = search(study, lottery)
        kinds: dict[str, set[int]] = {}
        for trial in study.trials.values():
            kinds.setdefault(trial.name.partition("-")[0], set()).add(trial.seed)
        assert [len(kinds[name]) for name in ("trial", "confirm", "report")] == [10, 3, 3]
        assert len(set.union(*kinds.values())) == 16
        # Candidates have the same seeds, so that they can be compared.
        runs = [trial for trial in study.trials.values() if trial.name.startswith("confirm")]
        assert {trial.seed for trial in runs if trial.number == found.chosen.number} == kinds["confirm"]
        settings = study.trial_settings(study.trials["trial-0003"])
        assert settings.run.threads == study.cpus
        assert settings.run.seed == study.trials["trial-0003"].seed != study.seed
        assert settings.run.eval_points == study.config.points == 4
    assert seed_of(0, 1, 2) != seed_of(0, 2, 2) != seed_of(0, 2, 1)


@pytest.mark.parametrize(("collector", "workers"), [("auto", 2), ("executor", 2), ("sequential", "auto")])
def test_runs_side_by_side_divide_the_workers_where_their_collector_has_some(
    tmp_path: Path, collector: str, workers: int | str
) -> None:
    settings = find("gym").make_settings(
        {"env.id": "CartPole-v1", "run.algo": "ppo", "collect.collector": collector}
    )
    space = space_from("[ppo]\ngamma = {low = 0.9, high = 0.99}\n", tmp_path / "s", settings)
    with Study.create(tmp_path / "s", TuneConfig(n_workers=2), find("gym"), settings, space) as study:
        study.cpus = 2
        assert (
            study.trial_settings(Trial("trial-0001", 1, {"ppo.gamma": 0.5}, 0)).collect.n_workers == workers
        )


def trial_with(number: int, *scores: float, state: str = "complete") -> Trial:
    evaluations = tuple(Evaluated(i, 100 * i, score) for i, score in enumerate(scores, 1))
    return Trial("t", number, {}, 0, result=Result(state, scores[-1], evaluations, seconds=number + 1.0))


def evaluated(*scores: float) -> list[Evaluated]:
    return [Evaluated(i, 100 * i, score) for i, score in enumerate(scores, 1)]


def test_the_median_of_others_at_the_same_point_decides() -> None:
    config = TuneConfig(method="tpe")
    others = [trial_with(i, i, 10 + i, 20, 20) for i in range(5)]
    assert should_stop(config, evaluated(1.5), others)
    assert not should_stop(config, evaluated(2.5), others)
    # The best so far counts, a dip does not.
    assert not should_stop(config, evaluated(13, 0), others)
    # Not before five have got there, and never at the end.
    assert not should_stop(config, evaluated(-100), others[1:])
    assert not should_stop(config, evaluated(0, 0, 0, 0), others)
    assert not should_stop(TuneConfig(pruner="none"), evaluated(-100), others)
    assert should_stop(config, evaluated(math.nan), [])


def test_halving_lets_the_best_third_go_on() -> None:
    config = TuneConfig(method="halving")
    assert config.points == 9 and rungs(9) == [3, 1]
    others = [trial_with(i, float(i)) for i in range(5)]
    assert not should_stop(config, evaluated(4.5), others)
    assert not should_stop(config, evaluated(3.5), others)
    assert should_stop(config, evaluated(2.5), others)
    assert not should_stop(config, evaluated(-1.0), others[:1])
    # Between rungs nothing is stopped.
    assert not should_stop(config, evaluated(9.0, -5.0), others)
    # An evaluation may pass several points at once.
    jump = [Evaluated(2, 100, 2.5)]
    assert should_stop(config, jump, others[:0] + [trial_with(i, i, float(i)) for i in range(5)])


def test_a_trial_is_stopped_by_its_evaluations_and_says_so(tmp_path: Path) -> None:
    config: dict[str, Any] = {"trials": 40, "method": "halving", "confirm": 0, "report_episodes": 0}
    with new_study(tmp_path / "s", **config) as study:
        search(study, lambda trial, share: quality(trial) * share)
        states = [trial.result.state for trial in study.of_search()]
        assert 15 <= states.count("pruned") <= 35
        assert best_first(study.of_search())[0].score > 0.9
        stopped = next(trial for trial in study.of_search() if trial.result.state == "pruned")
        assert stopped.result.evaluations[-1].point in (1, 3)
        assert stopped.result.score == stopped.result.evaluations[-1].score and math.isnan(stopped.score)


def test_the_front_has_what_nothing_beats_in_both() -> None:
    trials = [
        trial_with(0, 1.0),
        trial_with(1, 0.5),
        trial_with(2, 3.0),
        trial_with(3, 3.0),
        trial_with(4, 4.0),
    ]
    assert [trial.number for trial in front([*trials, trial_with(5, 9.0, state="pruned")])] == [0, 2, 4]


@pytest.mark.slow
def test_score_per_second_has_a_table_of_the_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {"trials": 12, "objective": "score-per-second", "confirm": 2, "confirm_seeds": 2}
    with new_study(tmp_path / "s", **config) as study:
        assert study.config.stops_early == "none"
        findings = search(study, lottery)
        finish(findings, Console())
        shown = capsys.readouterr().out
        assert "trials that no other one beats in both score and seconds" in shown
        assert "no other one beats" in (study.directory / "report.md").read_text()
        assert {each.trial.number for each in findings.confirmed} <= {
            trial.number for trial in front(study.of_search())
        }


def test_bound_is_mean_less_standard_error() -> None:
    candidate = Candidate(trial_with(0, 1.0), (1.0, 2.0, 3.0))
    assert candidate.bound == pytest.approx(2 - 1 / math.sqrt(3))
    assert math.isnan(Candidate(trial_with(0, 1.0), (1.0,)).bound)


@pytest.mark.slow
def test_the_report_has_scores_of_search_and_confirmation_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_study(tmp_path / "s", trials=10, method="random", confirm=3, confirm_seeds=3) as study:
        found = finish(search(study, lottery), Console(width=200))
    shown = capsys.readouterr().out
    for text in ("search", "again", "mean - error", "parameters", "when trained again with 3 other seeds"):
        assert text in shown and (text in (tmp_path / "s" / "report.md").read_text() or text == "search")
    assert found.score == pytest.approx(np.mean(found.confirmed[0].scores))
    tree = load_toml(tmp_path / "s" / "best.toml")
    assert tree["kind"] == "gym" and tree["run"]["seed"] == 0
    assert tree["ppo"]["learning_rate"] == found.values["ppo.learning_rate"]
    rows = (tmp_path / "s" / "trials.csv").read_text().splitlines()
    assert len(rows) == 11 and rows[0].startswith("trial,state,score")
    summary = json.loads((tmp_path / "s" / "tune.json").read_text())
    assert summary["confirmed"][0]["mean"] == pytest.approx(found.score)


def test_settings_that_do_not_go_together_cost_their_trial_alone(tmp_path: Path) -> None:
    space = "[sac.critics]\nlow = 1\nhigh = 4\n[sac.target_critics]\nlow = 1\nhigh = 4\n"
    task = find("gym")
    settings = task.make_settings({"env.id": "Pendulum-v1", "run.algo": "sac"})
    config = TuneConfig(trials=12, method="random", confirm=0, report_episodes=0)
    parsed = space_from(space, tmp_path / "s", settings)
    with Study.create(tmp_path / "s", config, task, settings, parsed) as study:
        search(study, lambda trial, share: 1.0)
        states = [trial.result.state for trial in study.of_search()]
        assert len(states) == 12 and {"complete", "failed"} == set(states)
        failed = next(trial for trial in study.of_search() if trial.result.state == "failed")
        assert "target_critics should be at most critics" in failed.result.error


def test_a_directory_with_a_search_or_something_else_is_refused(tmp_path: Path) -> None:
    new_study(tmp_path / "s").close()
    with pytest.raises(TuneError, match="resume it with --resume"):
        new_study(tmp_path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text("mine")
    with pytest.raises(TuneError, match=r"notes\.txt in it"):
        new_study(tmp_path / "t")
    with pytest.raises(TuneError, match="has no search in it"):
        Study(tmp_path / "t")
    with pytest.raises(ConfigError, match="give at least 1"):
        tune("CartPole-v1", directory=tmp_path / "u", run__eval_episodes=0)


def test_a_run_is_read_as_complete_when_all_of_it_is_written(tmp_path: Path) -> None:
    write_run(tmp_path, [1.0, 2.0])
    assert read_result(tmp_path).score == 2.0
    (tmp_path / "run.json").unlink()
    assert read_result(tmp_path) is None
