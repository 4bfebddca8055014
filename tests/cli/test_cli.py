import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from small_runs import OPTIONS, refusal, run_cli, settings_of, train_small

import fastrl
from fastrl.cli.main import COMMANDS, main_train
from fastrl.envs.cage2.baselines import BASELINES
from fastrl.tasks import find
from fastrl.utils.config import leaves

GOLDEN = sorted((Path(__file__).parents[1] / "support" / "golden").rglob("*.npz"))
GOLDEN_4 = next(path for path in GOLDEN if path.parent.name == "cage4")


NAME_FIRST = (
    "fastrl train: error: name what to train on, before the options: fastrl train cage2, or an environment,"
    " fastrl train CartPole-v1"
)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        code, out, err = run_cli(capsys, *arguments)
        assert (code, err) == (0, "")
        for command in COMMANDS:
            assert f"\n  {command} " in out
    assert run_cli(capsys, "--version") == (0, f"fastrl {fastrl.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_cli(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: fastrl {command} ")


def test_help_of_train_names_every_setting_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_cli(capsys, "train", "cage2", "--help-all")
    assert out.startswith("usage: fastrl train cage2 ")
    cage2 = find("cage2")
    for leaf in leaves(cage2.settings_type("ppo")).values():
        option = leaf.setting.option or f"--{leaf.key.rpartition('.')[2].replace('_', '-')}"
        assert re.search(rf"^  {re.escape(option)}\b", out, re.MULTILINE)
        assert leaf.description
    for name in cage2.presets:
        assert f"  {name}: " in out
    for option in (
        "--seed",
        "--device",
        "--total-timesteps",
        "--num-envs",
        "--red-agent",
        "--ruleset",
        "--resume",
    ):
        assert f"{option}" in out


def test_help_of_train_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"], ["--help-all"], ["--profile", "--help"]):
        code, out, err = run_cli(capsys, "train", *arguments)
        assert (code, err) == (0, "")
        for task in ("cage2", "cage2-workflow", "traffic"):
            assert re.search(rf"^  {task}  ", out, re.MULTILINE)
        assert "fastrl train --resume RUN" in out
    # Its examples work.
    examples = re.findall(r"^  fastrl (train .*)$", out, re.MULTILINE)
    assert len(examples) == 4
    for example in examples:
        assert run_cli(capsys, *example.split(), "--print-config")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["CartPole-v1", "--run-dir", "cage2", "--print-config"],
        ["--run-dir", "cage2", "CartPole-v1", "--print-config"],
        ["--run-dir", "cage2", "--print-config", "CartPole-v1"],
        ["--run-dir=cage2", "--seed", "3", "CartPole-v1", "--print-config"],
        ["--print-config", "--", "CartPole-v1"],
    ],
)
def test_the_value_of_an_option_is_not_taken_for_a_task(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(capsys, "train", *arguments)
    assert code == 0
    assert tomllib.loads(out)["kind"] == "gym"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["train", "--run-dir", "gym"],
            NAME_FIRST,
        ),
        (["train", "--resume", "gym"], "fastrl train: error: gym: no such run directory or checkpoint file"),
        (
            ["train", "--config", "gym", "cage2"],
            "fastrl train: error: cannot read gym: No such file or directory",
        ),
        (
            ["train", "cage2", "--run-dir", ""],
            "fastrl train: error: argument --run-dir/--out: should be a path, got an empty text",
        ),
        (
            ["train", "--resume="],
            "fastrl train: error: argument --resume: should be a path, got an empty text",
        ),
        (
            ["train", "cage2", "--run-dir", "r\udcff"],
            "fastrl train: error: argument --run-dir/--out: should be a path in UTF-8, got 'r\\udcff'",
        ),
        (
            ["train", "cage2", "--init", ""],
            "fastrl train: error: --init should be a path, got an empty text",
        ),
        (["eval", ""], "fastrl eval: error: argument RUN: should be a path, got an empty text"),
    ],
)
def test_invalid_paths_are_refused(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(capsys, *arguments) == line
    assert list(tmp_path.iterdir()) == []


def test_help_breaks_lines_between_words_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        ("train", "CartPole-v1"): "module:Class",
        ("train", "traffic"): "fastrl/coop-merge-v0,",
        ("train",): "module:function",
        ("eval",): "baseline:react-remove,",
    }
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for command, word in texts.items():
            _, out, _ = run_cli(capsys, *command, "--help-all" if "train" in command else "--help")
            assert word in out
            lines = out.partition("options:")[2].splitlines()
            # Options with all their values are one word.
            assert all(len(line) <= width or line.lstrip()[:1] in "-[" for line in lines)


def test_a_shell_takes_the_examples_of_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (["league"], ["demos", "record"], ["render"], ["tune"]):
        examples = {}
        for width in (80, 200):
            monkeypatch.setenv("COLUMNS", str(width))
            _, out, _ = run_cli(capsys, *command, "--help")
            lines = re.sub(r" \\\n +", " ", out).splitlines()
            examples[width] = [line for line in lines if line.startswith(f"  fastrl {' '.join(command)} ")]
        assert examples[80] == examples[200] != []


@pytest.mark.slow
def test_commands_that_need_no_torch_do_not_load_it() -> None:
    code = (
        "import sys, fastrl.cli.main\n"
        "fastrl.cli.main.main(sys.argv[1:])\n"
        "print(*{'torch', 'tensorboardX'} & set(sys.modules), file=sys.stderr)"
    )
    for arguments in (["--help"], ["verify", str(GOLDEN[0])], ["eval", "baseline:sleep", "--episodes=2"]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.split() == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["trian"], "fastrl: error: unknown command trian; did you mean train?"),
        (["frobnicate"], f"fastrl: error: unknown command frobnicate; there are {', '.join(COMMANDS)}"),
        (
            ["eval", "baseline:foo"],
            "fastrl eval: error: unknown baseline foo; there are sleep, react-remove, react-restore, random",
        ),
        (["--verison"], "fastrl: error: unknown option --verison; did you mean --version?"),
        (["train", "--seed", "1"], NAME_FIRST),
        (["train", "--algo", "dqn"], NAME_FIRST),
        (
            ["train", "gym"],
            "fastrl train: error: gym names no environment: give its id, such as CartPole-v1, or module:function",
        ),
        (
            ["train", "pixels", "--preset", "toy"],
            "fastrl train: error: pixels names no environment: give its id, such as ALE/Pong-v5, or module:function",
        ),
        (
            ["train", "cartpole"],
            "fastrl train: error: unknown environment cartpole; did you mean CartPole-v1?",
        ),
        (
            ["train", "CartPole-v1", "--env", "Pendulum-v1"],
            "fastrl train: error: two environments: CartPole-v1 and --env Pendulum-v1; name one",
        ),
        (
            ["train", "CartPole-v1", "--algo", "rainbow"],
            (
                "fastrl train: error: --algo should be one of async-ppo, bc, crossq, dqn, impala, ippo, iql, mabc,"
                " mappo, ppo, pqn, reinforce, sac, td3, or module:Class of your own; got 'rainbow'"
            ),
        ),
        (
            ["train", "CartPole-v1", "--algo", "bc", "--demos", "some", "--total-timesteps", "9"],
            (
                "fastrl train: error: run.total_timesteps counts what environments do; bc learns from a data set: set"
                " bc.epochs"
            ),
        ),
        (
            ["train", "CartPole-v1", "--total-steps", "1"],
            "fastrl train: error: unknown option --total-steps; did you mean --total-timesteps?",
        ),
        (
            ["train", "cage2", "--algo", "impale"],
            (
                "fastrl train: error: --algo should be one of async-ppo, bc, crossq, dqn, impala, ippo, iql, mabc,"
                " mappo, ppo, pqn, reinforce, sac, td3, or module:Class of your own; got 'impale'; did you mean impala?"
            ),
        ),
        (
            ["train", "traffic", "--env", "CartPole-v1"],
            (
                "fastrl train: error: --env: CartPole-v1 is not an environment of traffic, fastrl/highway-v0 is one;"
                " fastrl train CartPole-v1 trains in others"
            ),
        ),
        (
            ["train", "foo"],
            (
                "fastrl train: error: unknown environment foo: give cage2, cage2-game, cage2-workflow, cage4, traffic,"
                " a Gymnasium id such as CartPole-v1, or module:function"
            ),
        ),
        (
            ["train", "fastrl/Catch-v0", "--preset", "smoke"],
            "fastrl train: error: --preset: unknown preset smoke; there are atari, mario, toy, rainbow, large-batch",
        ),
        (["train", "cage"], "fastrl train: error: unknown environment cage; did you mean cage2?"),
        (["train", "trafic"], "fastrl train: error: unknown environment trafic; did you mean traffic?"),
        (
            ["train", "cage2", "--lr", "1", "--ppo.learning-rate", "2"],
            "fastrl train: error: --lr and --ppo.learning-rate say the same thing: give one of them",
        ),
        (
            ["train", "cage2", "--ppo.clip", "1"],
            "fastrl train: error: unknown option --ppo.clip; did you mean --ppo.clip-range?",
        ),
        (
            ["train", "cage2", "--ppo.gamma", "2"],
            "fastrl train: error: --ppo.gamma should be less than or equal to 1, got '2'",
        ),
        (
            ["train", "cage2", "--total-timesteps", "many"],
            "fastrl train: error: --total-timesteps should be a valid integer, got 'many'",
        ),
        (
            ["train", "cage2", "--ppo.activation", "rleu"],
            "fastrl train: error: --ppo.activation should be 'tanh' or 'relu', got 'rleu'; did you mean 'relu'?",
        ),
        (
            ["train", "cage2", "--total-timesteps=1", "--total-episodes=1"],
            (
                "fastrl train: error: --total-timesteps and --total-episodes both say how long the run is: give one of"
                " them"
            ),
        ),
        (
            ["train", "cage2", "--preset", "smoky"],
            "fastrl train: error: --preset: unknown preset smoky; did you mean smoke?",
        ),
        (
            ["train", "cage2", "--config", "nowhere.toml"],
            "fastrl train: error: cannot read nowhere.toml: No such file or directory",
        ),
        (
            ["train", "cage2", "--total-episodes", "1e400"],
            "fastrl train: error: --total-episodes should be a valid integer, got '1e400'",
        ),
        (
            ["eval", "baseline:sleep", "--episodes=1e9999"],
            "fastrl eval: error: argument --episodes: should be an integer of at most 1000000000, got '1e9999'",
        ),
        (
            ["eval", "baseline:sleep", "--seed=1e30"],
            f"fastrl eval: error: argument --seed: should be an integer of at most {2**63 - 1}, got '1e30'",
        ),
        (["eval", "nowhere"], "fastrl eval: error: nowhere: no such run directory or checkpoint file"),
        (
            ["eval", "baseline:react-restor"],
            "fastrl eval: error: unknown baseline react-restor; did you mean react-restore?",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *arguments) == line


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval"],
        ["eval", "baseline:sleep", "--episodes", "0"],
        ["eval", "baseline:sleep", "--episodes", "x"],
        ["eval", "baseline:sleep", "--ruleset", "mian"],
        ["eval", "baseline:sleep", "--seed", "-1"],
        ["eval", "baseline:sleep", "--epsiodes", "3"],
        ["verify"],
        ["train", "cage2", "--total-episodes", "0"],
        ["train", "cage2", "cage2"],
    ],
)
def test_other_mistakes_end_in_one_line_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refusal(capsys, *arguments)


def test_later_sources_of_settings_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[env]\nnum_envs = 5\n[ppo]\ngamma = 0.5\n")
    _, out, _ = run_cli(
        capsys,
        "train",
        "cage2",
        "--preset",
        "smoke",
        "--config",
        file,
        "--ppo.gamma",
        "0.25",
        "--print-config",
    )
    settings = tomllib.loads(out)
    smoke = find("cage2").presets["smoke"].values
    assert settings["ppo"]["gamma"] == 0.25
    assert settings["env"]["num_envs"] == 5 != smoke["env"]["num_envs"]
    assert settings["run"]["total_timesteps"] == smoke["run"]["total_timesteps"]
    assert settings["ppo"]["gae_lambda"] == settings_of("cage2").ppo.gae_lambda


def test_options_may_stand_anywhere_and_be_spelled_with_hyphens(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_cli(
        capsys, "train", "--seed", "3", "--print-config", "--ppo.clip-range=0.3", "cage2", "--num-envs", "7"
    )
    settings = tomllib.loads(out)
    assert (settings["run"]["seed"], settings["env"]["num_envs"], settings["ppo"]["clip_range"]) == (
        3,
        7,
        0.3,
    )


@pytest.mark.parametrize(
    ("arguments", "task", "algo"),
    [
        (["Acrobot-v1"], "gym", "ppo"),
        (["--env", "Acrobot-v1"], "gym", "ppo"),
        (["no_such_module:make_env", "--algo=impala"], "gym", "impala"),
        (["--env", "no_such_environment:D1"], "gym", "ppo"),
        (["fastrl/Catch-v0"], "pixels", "dqn"),
        (["fastrl/Catch-v0", "--algo", "dqn"], "pixels", "dqn"),
        (["fastrl/coop-merge-v0", "--algo", "mappo"], "traffic", "mappo"),
        (["fastrl/highway-fast-v0", "--algo", "ppo"], "gym", "ppo"),
        (["traffic", "--env=fastrl/coop-merge-v0"], "traffic", "ippo"),
        (["fastrl/Cage2-v0"], "cage2", "ppo"),
        (["cage2-workflow"], "cage2-workflow", "ppo"),
        (["fastrl.tasks.gym.task:TASK", "--env=fastrl/Cage2-v0"], "gym", "ppo"),
    ],
)
def test_the_task_is_found_by_the_environment_and_the_algorithm(
    arguments: list[str], task: str, algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(capsys, "train", *arguments, "--seed", "3", "--print-config")
    assert code == 0
    settings = tomllib.loads(out)
    assert (settings["kind"], settings["run"]["algo"]) == (task, algo)
    if "id" in settings["env"]:
        env = next(word for word in reversed(arguments) if "v" in word and "algo" not in word)
        assert settings["env"]["id"] == env.removeprefix("--env=")


def test_an_algorithm_that_does_not_learn_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "train", "CartPole-v1", "--algo", "mappo")
    assert line.startswith("fastrl train: error: --algo mappo does not learn in CartPole-v1; ")
    assert {"ppo", "async-ppo", "impala"} <= set(re.split(r"[;, ]+", line.rpartition(";")[2]))


def test_a_file_of_settings_names_its_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_cli(capsys, "train", "Acrobot-v1", "--algo=impala", "--print-config")
    (tmp_path / "run.toml").write_text(out)
    code, again, _ = run_cli(capsys, "train", "--config", tmp_path / "run.toml", "--print-config")
    assert (code, again) == (0, out)
    (tmp_path / "none.toml").write_text("[run]\nseed = 3\n")
    assert "names no task" in refusal(capsys, "train", "--config", tmp_path / "none.toml")


_COMMON = ["algo", "preset", "num-envs", "collector", "n-workers", "seed", "seeds", "run-dir", "resume"]


@pytest.mark.parametrize(
    ("env", "goal", "own", "missing"),
    [
        ("CartPole-v1", "total-timesteps", [], []),
        ("cage2", "total-timesteps", [], []),
        ("fastrl/Catch-v0", "total-timesteps", [], []),
        ("cage2-workflow", "total-episodes", ["workflow", "search"], ["num-envs", "collector"]),
        ("traffic", "total-episodes", ["vehicles", "density"], ["collector", "n-workers"]),
    ],
)
def test_help_shows_the_ten_options_that_matter(
    env: str, goal: str, own: list[str], missing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_cli(capsys, "train", env, "-h")
    shown = re.findall(r"^  --([a-z-]+)", out, re.MULTILINE)
    assert set(shown) == {*_COMMON, goal, *own, "help-all"} - set(missing)
    assert len(shown) - 1 <= 10
    assert run_cli(capsys, "train", env, "--help")[1] == out
    _, everything, _ = run_cli(capsys, "train", env, "--help-all")
    assert "--torch-threads" in everything and "--torch-threads" not in out


def test_help_shows_what_the_environment_would_get(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_cli(capsys, "train", "BipedalWalker-v3", "-h")
    assert "stepped together [32]" in " ".join(out.split()) and "[5_000_000]" in out
    _, out, _ = run_cli(capsys, "train", "BipedalWalker-v3", "--preset", "smoke", "-h")
    assert "stepped together [4]" in " ".join(out.split())


def test_options_need_no_table_where_one_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--eval-episodes=1", "--learning-rate", "-1e-3", "--no-normalize-obs"]
    assert "--ppo.learning-rate should be greater" in refusal(capsys, "train", "CartPole-v1", *words)
    words = ["--eval-episodes=1", "--learning-rate", "1e-3", "--normalize-obs", "--stop-at-return", "-1e2"]
    code, out, _ = run_cli(capsys, "train", "CartPole-v1", *words, "--print-config")
    settings = tomllib.loads(out)
    assert code == 0
    assert (settings["run"]["eval_episodes"], settings["run"]["stop_at_return"]) == (1, -100.0)
    assert (settings["ppo"]["learning_rate"], settings["ppo"]["normalize_obs"]) == (1e-3, True)


def test_a_switch_before_the_environment_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    for switch, value in (
        ("--normalize-obs", True),
        ("--no-normalize-obs", False),
        ("--ppo.normalize_obs", True),
    ):
        code, out, _ = run_cli(capsys, "train", switch, "CartPole-v1", "--print-config")
        settings = tomllib.loads(out)
        assert (code, settings["env"]["id"], settings["ppo"]["normalize_obs"]) == (0, "CartPole-v1", value)
    for words in (["--normalize-obs=true"], ["--normalize-obs", "false"], ["--normalize-obs", "True"]):
        line = refusal(capsys, "train", *words, "CartPole-v1")
        assert "--normalize-obs takes no value" in line and "--no-normalize-obs" in line
    # The word after another option is its value.
    assert "name what to train on" in refusal(capsys, "train", "--run-dir", "CartPole-v1")


def test_a_goal_in_episodes_replaces_one_in_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[run]\ntotal_timesteps = 3\n[env]\nepisode_length = 30\n")
    _, out, _ = run_cli(
        capsys, "train", "cage2", "--config", file, "--total-episodes", "1e2", "--print-config"
    )
    run = tomllib.loads(out)["run"]
    assert (run["total_timesteps"], run["total_episodes"]) == ("none", 100)


def test_fastrl_train_is_fastrl_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_train(["cage2", *OPTIONS, "--total-timesteps", "1", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert main_train(["--resume", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("fastrl-train: error: ")


def test_a_path_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "exp[/1]:fire: [red]"
    train_small(run, iterations=1)
    assert capsys.readouterr().out.replace("\n", "").count(str(run)) >= 2
    code, out, _ = run_cli(capsys, "eval", run, "--episodes=1", "--ruleset=main")
    assert code == 0
    assert "exp[/1]:fire: [red]" in re.sub(r"\s+", " ", out)


def test_absurd_sizes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--ppo.num-steps=1e11", "--num-envs=1e6", "--ppo.hidden=10000000,10000000"):
        options = [*OPTIONS, "--ppo.num-steps=10000", option, "--run-dir", tmp_path / "run"]
        assert "GB of memory" in refusal(capsys, "train", "cage2", *options)
    assert not (tmp_path / "run").exists()


def test_eval_of_a_run_and_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path / "run", iterations=1)
    code, out, err = run_cli(capsys, "eval", tmp_path / "run", "--episodes", "3")
    assert (code, err) == (0, "")
    assert "'main'" in out
    assert "'leaderboard'" in out
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    code, out, err = run_cli(
        capsys,
        "eval",
        checkpoint,
        "baseline:random",
        "--episodes=3",
        "--ruleset=main",
        "--mode=deterministic",
        "--seed=5",
        "--json",
    )
    assert (code, err) == (0, "")
    first, second = json.loads(out)["runs"]
    assert first["contender"] == str(checkpoint)
    assert second["contender"] == "baseline:random"
    for evaluation in (first, second):
        assert (evaluation["ruleset"], evaluation["seed"]) == ("main", 5)
        assert len(evaluation["scores"]) == 9
        assert evaluation["total"] == pytest.approx(sum(score["mean"] for score in evaluation["scores"]))
    _, again, _ = run_cli(
        capsys,
        "eval",
        tmp_path / "run",
        "--episodes=3",
        "--ruleset=main",
        "--seed=5",
        "--json",
    )
    deterministic, stochastic = json.loads(again)["runs"]
    assert (deterministic["mode"], stochastic["mode"]) == ("deterministic", "stochastic")
    assert deterministic["total"] == first["total"] != stochastic["total"]


@pytest.mark.parametrize("name", BASELINES)
def test_eval_of_baselines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_cli(capsys, "eval", f"baseline:{name}", "--episodes", "10", "--ruleset", "leaderboard")
    assert code == 0
    assert f"baseline:{name} on ruleset 'leaderboard'" in out


def test_eval_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    assert "is not a checkpoint, or a damaged one" in refusal(capsys, "eval", tmp_path / "x")
    assert "has no checkpoint" in refusal(capsys, "eval", tmp_path)


def test_verify_of_good_traces(capsys: pytest.CaptureFixture[str]) -> None:
    traces = [*GOLDEN[:3], GOLDEN_4]
    code, out, err = run_cli(capsys, "verify", *traces)
    assert (code, err) == (0, "")
    for path in traces:
        assert path.name in out


@pytest.mark.parametrize("golden", [GOLDEN[0], GOLDEN_4], ids=["cage2", "cage4"])
def test_verify_of_a_trace_that_differs(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(golden) as trace:
        arrays = dict(trace)
    arrays["reward"][7] -= 1
    np.savez(tmp_path / "wrong.npz", **arrays)
    shutil.copy(GOLDEN[0], tmp_path / "right.npz")
    code, out, err = run_cli(capsys, "verify", tmp_path / "right.npz", tmp_path / "wrong.npz")
    assert (code, err) == (1, "")
    difference = next(line for line in out.splitlines() if line.startswith(f"{tmp_path / 'wrong.npz'}: "))
    assert "step 7" in difference


def test_verify_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "foreign.npz").write_bytes(b"hello")
    (tmp_path / "cut.npz").write_bytes(GOLDEN[0].read_bytes()[:-100])
    corrupt = bytearray(GOLDEN[0].read_bytes())
    corrupt[len(corrupt) // 2 : len(corrupt) // 2 + 64] = bytes(64)
    (tmp_path / "corrupt.npz").write_bytes(corrupt)
    for name in ("foreign.npz", "cut.npz", "corrupt.npz", "missing.npz"):
        line = refusal(capsys, "verify", tmp_path / name)
        assert line.startswith(f"fastrl verify: error: {tmp_path / name}: ")
    code, out, err = run_cli(capsys, "verify", GOLDEN[0], tmp_path / "cut.npz")
    assert code == 2
    assert GOLDEN[0].name in out
    assert err.count("\n") == 1


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "fastrl", "verify", str(GOLDEN[0])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait()
