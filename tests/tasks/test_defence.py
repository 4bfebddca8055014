"""What a defender of CAGE 2 is judged by beside its score."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import refusal, run_cli

from fastrl.envs.cage2.baselines import make_baseline
from fastrl.envs.cage2.env import ACTIONS, HOSTS, Cage2VectorEnv
from fastrl.tasks.cage2.defence import Defence, WatchedGames, facts_of
from fastrl.tasks.cage2.evaluate import Contender, evaluate
from fastrl.utils.files import to_json

USER0, USER1, SERVER = (HOSTS.index(host) for host in ("User0", "User1", "Op_Server0"))


def restore(host: str) -> int:
    return ACTIONS.index(f"Restore {host}")


def slow_facts(has: Any, stopped: Any, actions: Any) -> dict[str, list[Any]]:
    """The facts of N episodes, step by step."""
    found: dict[str, list[Any]] = {}
    for game in range(has.shape[1]):
        one = {"compromises": 0, "removals": 0, "removal_steps": 0, "needless_restores": 0}
        since = {host: 0 for host in range(13) if has[0, game, host]}
        first, held = 0, np.zeros(13)
        for step in range(1, len(has)):
            name = ACTIONS[actions[step - 1, game]]
            if name.startswith("Restore"):
                host = HOSTS.index(name.split()[1])
                holds = has[step - 1, game, host] and host != USER0
                one["needless_restores"] += not (holds or (host == SERVER and stopped[step - 1, game]))
            for host in range(13):
                if has[step, game, host] and host not in since:
                    since[host] = step
                    one["compromises"] += 1
                if not has[step, game, host] and host in since:
                    one["removals"] += 1
                    one["removal_steps"] += step - since.pop(host)
            held += has[step, game]
            first = first or step * bool(has[step, game, SERVER])
        for key, value in {**one, "first_step_at_server": first, "held": held / (len(has) - 1)}.items():
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("length", [1, 2, 40])
def test_facts_are_those_of_a_slow_model(length: int) -> None:
    rng = np.random.default_rng(length)
    has = rng.random((length + 1, 30, 13)) < rng.random((30, 13))
    has[0] = False
    has[..., USER0] = True
    stopped = rng.random((length + 1, 30)) < 0.5
    actions = rng.integers(0, len(ACTIONS), (length, 30))
    actions[rng.random(actions.shape) < 0.4] = restore("Op_Server0")
    expected = slow_facts(has, stopped, actions)
    facts = facts_of(has, stopped, actions)
    assert facts.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(facts[key], values, err_msg=key)


def test_watched_games_are_the_plain_ones() -> None:
    watched = WatchedGames(20, red_agent="bline", actions="effective", autoreset_mode="disabled")
    plain = Cage2VectorEnv(20, red_agent="bline", actions="effective", autoreset_mode="disabled")
    (obs, _), (expected, _) = watched.reset(seed=3), plain.reset(seed=3)
    rng = np.random.default_rng(0)
    has, stopped, taken = [plain.truth()["red_access"] > 0], [plain.episode_info("service_stopped")], []
    outs = [(np.empty(20), np.zeros(20, np.bool_), np.zeros(20, np.bool_)) for _ in range(2)]
    for _ in range(100):
        # Mostly Sleep, so that red stops the service.
        actions = rng.integers(0, watched.single_action_space.n, 20) * (rng.random(20) < 0.2)
        watched.step_into(actions, obs, *outs[0])
        plain.step_into(actions, expected, *outs[1])
        np.testing.assert_array_equal(obs, expected)
        has.append(plain.truth()["red_access"] > 0)
        stopped.append(plain.episode_info("service_stopped"))
        taken.append(np.array(plain.actions)[actions])
        # The service's price is the largest one by far.
        assert ((outs[1][0] <= -10) == (stopped[-1] == 1)).all()
    assert np.max(stopped) == 1
    facts = watched.facts()
    for key, values in slow_facts(np.array(has), np.array(stopped) > 0, np.array(taken)).items():
        np.testing.assert_allclose(facts[key], values, err_msg=key)


def test_measures_with_a_known_answer() -> None:
    facts = {
        "held": np.linspace(0, 1, 26).reshape(2, 13),
        "compromises": np.array([3, 1]),
        "removals": np.array([2, 0]),
        "removal_steps": np.array([10, 0]),
        "needless_restores": np.array([0, 4]),
        "first_step_at_server": np.array([0, 17]),
    }
    found = Defence.of(facts)
    assert found.held["Defender"].mean == pytest.approx(0.26)
    assert (found.steps_to_removal.mean, found.removed.mean) == (5, 0.5)
    # Of the residuals 2 - 0.5 * 3 and 0 - 0.5 * 1, over a mean of 2 compromises.
    assert found.removed.standard_error == pytest.approx(0.25)
    assert (found.needless_restores.mean, found.server_reached.mean) == (2, 0.5)
    assert found.first_step_at_server.mean == 17
    assert math.isnan(found.first_step_at_server.standard_error)
    assert Defence.from_tree(json.loads(to_json(asdict(found)))) == found
    nothing = Defence.of({name: np.zeros_like(values) for name, values in facts.items()})
    assert math.isnan(nothing.removed.mean) and nothing.server_reached.mean == 0


def test_standard_errors_cover_the_truth() -> None:
    """Over many evaluations the error of the ratio is the deviation of the ratio."""
    blue = Contender.from_baseline("random")
    options: dict[str, Any] = {"ruleset": "main", "horizons": [50], "red_agents": ["meander"], "episodes": 60}
    found = [evaluate(blue, seed=seed, **options).scores[0].defence for seed in range(60)]
    for name in ("removed", "steps_to_removal", "needless_restores"):
        each = [getattr(defence, name) for defence in found]
        spread = float(np.std([it.mean for it in each], ddof=1))
        assert spread == pytest.approx(np.mean([it.standard_error for it in each]), rel=0.4), name


def test_a_defender_that_sleeps_removes_nothing() -> None:
    sleeper = Contender.from_baseline("sleep")
    evaluation = evaluate(sleeper, ruleset="main", episodes=20, horizons=[100], red_agents=["bline", "sleep"])
    attacked, alone = (score.defence for score in evaluation.scores)
    assert attacked is not None and alone is not None
    assert (attacked.removed.mean, attacked.server_reached.mean) == (0, 1)
    assert math.isnan(attacked.steps_to_removal.mean)
    assert 8 < attacked.first_step_at_server.mean < 40
    assert attacked.held["User0"].mean == 1
    assert sum(share.mean for share in alone.held.values()) == 1
    assert alone.needless_restores.mean == 0


def test_every_restore_in_peace_is_needless() -> None:
    def make_act(env: Any, seed: int) -> Any:
        return lambda obs: np.full(len(obs), restore("User0"), np.int64)

    evaluation = evaluate(Contender("r", "none", make_act), ruleset="main", episodes=3, red_agents=["bline"])
    assert [it.defence.needless_restores.mean for it in evaluation.scores if it.defence] == [30, 50, 100]


def test_a_single_agent_is_measured_as_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_act(env: Any, seed: int) -> Any:
        blue = make_baseline("react-restore", env.num_envs)
        return lambda obs: blue.act(env.alerts())

    options: dict[str, Any] = {"ruleset": "leaderboard", "episodes": 6}
    one, many = (evaluate(Contender("x", "none", make_act, batch=size), **options) for size in (1, 6))
    assert one == many


def test_the_command_shows_measures_in_tables_json_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "eval", "baseline:react-restore", "baseline:random", "--episodes=3", "--ruleset=main"
    code, text, _ = run_cli(capsys, *given)
    assert code == 0
    for words in (
        "what red held and lost",
        "% of the steps that red has each host",
        "needless",
        "User0 is always",
    ):
        assert words in text
    figure = tmp_path / "held.svg"
    code, out, _ = run_cli(capsys, *given, "--json", "--figure", figure)
    assert code == 0
    first = json.loads(out)["runs"][0]["scores"][0]
    assert first["defence"]["held"]["User0"] == {"mean": 1.0, "standard_error": 0.0}
    assert set(first["defence"]) == set(Defence.__dataclass_fields__)
    drawn = figure.read_text()
    assert "needless restores" in drawn and "Op_Server0" in drawn and "baseline:random" in drawn
    assert "there is no folder" in refusal(capsys, *given, "--figure", tmp_path / "none" / "x.png")
    other = "eval", "baseline:guard", "--env=cage4", "--episodes=1", "--figure", tmp_path / "x.png"
    assert "--figure does not go with a run of cage4" in refusal(capsys, *other)
