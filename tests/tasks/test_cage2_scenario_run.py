"""Runs of cage2 in the network of a scenario file."""

from pathlib import Path

import pytest
from small_runs import refusal, run_cli, train_refusal, train_small

from fastrl.cli.main import main
from fastrl.envs.cage2.scenario import load_scenario
from fastrl.play.policy import load_policy
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks.cage2.evaluate import Contender, evaluate

FILES = Path(__file__).parents[1] / "support" / "golden" / "cage2_scenarios"
SHOP, DRAWN = FILES / "shop.yaml", FILES / "drawn.yml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "run"
    train_small(path, f"--scenario={SHOP}", "--run.eval-episodes=2")
    return path


def test_a_run_is_trained_and_scored_in_the_scenario(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = load_newest(run)[1]
    scenario = load_scenario(SHOP)
    assert (state["actions"], state["num_actions"]) == ([*scenario.effective_actions], len(scenario.actions))
    assert state["config"]["env"]["scenario"] == str(SHOP)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=2", "--ruleset=main", "--mode=deterministic"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "on ruleset 'main' in shop.yaml" in shown
    assert "The network is that of shop.yaml: no scores of the challenge." in shown
    assert "Meander" in shown and "CardiffUni" not in shown and "what red held" not in shown


def test_red_agents_that_cannot_play_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES / "contractor.yaml"
    train_small(tmp_path / "run", f"--scenario={file}", "--red-agent=meander", "--run.eval-episodes=2")
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--episodes=2", "--ruleset=main"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "B_line cannot play there." in shown and "Meander" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario=nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        ([f"--scenario={SHOP}", "--ruleset=plusplus"], "expected 'main' or 'leaderboard' with a scenario"),
        ([f"--scenario={SHOP}", "--env.memory=full"], "memory, observe: expected 'none' or 'scan'"),
        ([f"--scenario={SHOP}", "--env.observe=truth"], "memory, observe: expected 'none' or 'scan'"),
        ([f"--scenario={FILES / 'contractor.yaml'}"], "red_agent: B_line starts on a host named User0"),
    ],
)
def test_settings_that_do_not_go_with_a_scenario_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in train_refusal(capsys, "cage2", *options)


def test_what_is_for_the_challenge_alone_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "explained are games in the challenge's network" in refusal(capsys, "explain", run)
    assert "its blue defends the network of" in refusal(capsys, "exploit", run)
    code, _, err = run_cli(capsys, "eval", run, "--episodes=1", "--figure=scores.png")
    assert code == 2 and "the picture shows the hosts of the challenge" in err


def test_one_policy_is_trained_and_scored_in_networks_of_several_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    options = [f"--scenario={DRAWN}", "--rows=20", "--ppo.encoder=pointer"]
    train_small(path, *options, iterations=2)
    state = load_newest(path)[1]
    assert state["policy"]["kind"] == "pointer" and state["num_actions"] == 221
    capsys.readouterr()
    assert main(["eval", str(path), "--episodes=2", "--ruleset=main"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "in drawn.yml" in shown and "B_line" in shown
    assert main(["train", "--resume", str(path), "--total-timesteps=240"]) == 0


def test_the_same_policy_plays_any_network_by_rows(tmp_path: Path) -> None:
    train_small(tmp_path / "run", f"--scenario={DRAWN}", "--rows=20", "--ppo.encoder=pointer", iterations=1)
    contender = Contender.from_policy(load_policy(tmp_path / "run"), "mine")
    scored = evaluate(contender, ruleset="main", episodes=3, scenario=SHOP, rows=20)
    again = evaluate(contender, ruleset="main", episodes=3, scenario=SHOP, rows=20)
    assert scored == again and scored.scenario == "shop.yaml" and len(scored.scores) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([f"--scenario={DRAWN}"], "random: networks that are drawn are observed by rows"),
        (["--rows=20"], "--rows is for networks of a scenario file"),
        ([f"--scenario={DRAWN}", "--rows=20", "--env.memory=full"], "--rows has rows of its own"),
        ([f"--scenario={DRAWN}", "--rows=20", "--env.observe=truth"], "--rows has rows of its own"),
        ([f"--scenario={DRAWN}", "--rows=20", "--env.actions=0,1"], "--rows has rows of its own"),
        ([f"--scenario={DRAWN}", "--rows=5"], "rows: expected"),
        ([f"--scenario={SHOP}", "--ppo.encoder=pointer"], "the encoder pointer is for one table"),
        (
            [f"--scenario={DRAWN}", "--rows=20", "--ppo.encoder=pointer", "--ppo.normalize-obs"],
            "the encoder pointer has neither normalize_obs",
        ),
    ],
)
def test_settings_that_do_not_go_with_rows_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in train_refusal(capsys, "cage2", *options)


def test_the_encoder_pointer_is_for_discrete_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the encoder pointer is for discrete actions" in train_refusal(
        capsys, "Pendulum-v1", "--ppo.encoder=pointer"
    )
