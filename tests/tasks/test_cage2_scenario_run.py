"""Runs of cage2 in the network of a scenario file."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_runs import refusal, run_cli, train_refusal, train_small

from fastrl.cli.main import main
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.cage2.memory import Ruleset, observation_names
from fastrl.envs.cage2.scenario import load_scenario
from fastrl.play.policy import load_policy
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks.cage2.evaluate import Contender, evaluate
from fastrl.tasks.cage2.explain import costs_by_host

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
    assert "Meander" in shown and "CardiffUni" not in shown
    assert "what red held and lost, ruleset 'main' in shop.yaml" in shown
    assert "each host" in shown and "User0 is always red's" in shown


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
        (
            [f"--scenario={SHOP}", "--env.observe=truth"],
            "observe: expected 'blue' with a scenario of your own",
        ),
        ([f"--scenario={FILES / 'contractor.yaml'}"], "red_agent: B_line starts on a host named User0"),
    ],
)
def test_settings_that_do_not_go_with_a_scenario_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in train_refusal(capsys, "cage2", *options)


def test_what_is_for_the_challenge_alone_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "its blue defends the network of" in refusal(capsys, "exploit", run)
    code, _, err = run_cli(capsys, "eval", run, "baseline:sleep", "--episodes=1", "--figure=scores.png")
    assert code == 2 and "the picture shows the hosts of one network" in err


def test_a_run_is_explained_in_the_scenario(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, figure = tmp_path / "game.json", tmp_path / "game.svg"
    short = ["--continuations=4", "--steps=3-4", "--most=3", "--episode-length=12", "--seed=1"]
    assert main(["explain", str(run), *short, f"--json={tree}", f"--figure={figure}"]) == 0
    capsys.readouterr()
    game, hosts = json.loads(tree.read_text()), load_scenario(SHOP).hosts
    assert game["return"] == pytest.approx(-sum(game["costs"].values())) and len(game["steps"]) == 12
    for step in game["steps"]:
        assert tuple(step["red_access"]) == hosts and step["costs"].keys() <= {*hosts}
        assert step["action"].partition(" ")[2] in ("", *hosts)
        for each in step["alternatives"]:
            assert sum(each["costs"].values()) == pytest.approx(-each["mean"], abs=1e-3)
    assert all(host in figure.read_text() for host in hosts)


@pytest.mark.parametrize("ruleset", ["main", "plusplus"])
def test_costs_of_hosts_add_up_in_every_network(ruleset: Ruleset) -> None:
    env = Cage2VectorEnv(64, red_agent="bline", ruleset=ruleset, scenario=FILES / "offices.yaml")
    env.reset(seed=0)
    rng, network, impact = np.random.default_rng(0), env.network, 0.0
    for _ in range(60):
        actions = np.where(rng.random(64) < 0.9, 0, rng.integers(len(network.actions), size=64))
        _, rewards, *_ = env.step(actions)
        costs = costs_by_host(env.truth()["red_access"], actions, rewards, ruleset, network)
        np.testing.assert_allclose(costs.sum(axis=1), -rewards, atol=1e-9)
        assert (costs > -1e-6).all()
        impact = max(impact, costs[:, network.hosts.index("Op_Server0")].max())
    assert impact >= 10


def test_all_of_a_file_that_a_run_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest memory, the rules of CybORG++, 30 hosts: trained, scored, explained and filmed."""
    path, file = tmp_path / "run", FILES / "offices.yaml"
    options = [f"--scenario={file}", "--env.memory=full", "--ruleset=plusplus", "--env.actions=effective"]
    train_small(path, *options, iterations=1)
    obs_dim = len(observation_names("full", scenario=load_scenario(file)))
    assert load_policy(path).obs_dim == obs_dim
    held, game, film = tmp_path / "held.svg", tmp_path / "game.png", tmp_path / "game.gif"
    capsys.readouterr()
    assert main(["eval", str(path), "--episodes=2", "--mode=deterministic", f"--figure={held}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "on ruleset 'main' in offices.yaml" in shown and "each of the 11 hosts that it has most" in shown
    contested = {*load_scenario(file).hosts} - {"User0", "Defender"}
    assert all(host in held.read_text() for host in contested)
    short = ["--continuations=2", "--steps=2", "--episode-length=5"]
    assert main(["explain", str(path), *short, f"--figure={game}"]) == 0
    assert main(["render", str(path), f"--out={film}"]) == 0
    for picture in (game, film):
        with Image.open(picture) as drawn:
            assert drawn.width > 600


def test_policies_on_rows_are_not_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path / "run", f"--scenario={SHOP}", "--rows=20", "--ppo.encoder=pointer", iterations=1)
    assert "only runs without --rows can be explained" in refusal(capsys, "explain", tmp_path / "run")
    code, _, err = run_cli(capsys, "eval", tmp_path / "run", "--episodes=1", "--figure=scores.png")
    assert code == 2 and "leave it out for several, and for --rows" in err


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
