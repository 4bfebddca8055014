"""Settings from files: none imports code, connects to a machine or writes elsewhere unless its reader allows it."""

import shutil
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_runs import refusal

from fastrl.algorithms import algorithms
from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_newest, save_checkpoint
from fastrl.tasks import find, tasks
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.run import evaluate_run
from fastrl.utils.config import build, leaves
from fastrl.utils.errors import UserError
from fastrl.utils.trust import TrustError, from_file, reaches, trust_option

# The settings of every task with every algorithm that it takes.
CONFIGS = {
    (task, name): find(task).settings_type(name)
    for task in tasks()
    for name, algorithm in algorithms().items()
    if find(task).takes(algorithm)
}
GymConfig, Cage2Config = CONFIGS["gym", "ppo"], CONFIGS["cage2", "ppo"]

TINY = [
    *("--num-envs=1", "--total-timesteps=8", "--ppo.num-steps=8", "--ppo.minibatch-size=8", "--ppo.hidden=4"),
    *("--collector=sequential", "--run.eval-episodes=0", "--device=cpu"),
]

# A module that leaves a note when it is imported, and another when what it has is called.
TRAP = """
import gymnasium
from pathlib import Path
Path({folder!r}, "imported").touch()
def make(**options):
    Path({folder!r}, "called").touch()
    return gymnasium.make("CartPole-v1")
gymnasium.registry.pop("Trap-v0", None)
gymnasium.register("Trap-v0", make)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on CartPole."""
    path = tmp_path_factory.mktemp("trust") / "run"
    assert main(["train", "CartPole-v1", *TINY, f"--run-dir={path}"]) == 0
    return path


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the module ``trap_module``, and its notes."""
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "trap_module.py").write_text(TRAP.format(folder=str(folder)))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "trap_module", raising=False)
    return folder


def notes(trap: Path) -> set[str]:
    return {path.name for path in trap.iterdir()} & {"imported", "called"}


def forged(run: Path, to: Path, **changes: Any) -> Path:
    """A checkpoint of a run with other settings, by dotted key with __ for the dot."""
    state = deepcopy(load_newest(run)[1])
    for key, value in changes.items():
        table, name = key.split("__")
        state["config"][table][name] = value
    path = to / "run" / "checkpoints" / "step-000000000008.safetensors"
    path.parent.mkdir(parents=True)
    save_checkpoint(path, state)
    shutil.copy(run / "config.toml", to / "run" / "config.toml")
    return path.parent.parent


def test_a_checkpoint_runs_no_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The attack: `os.system` is importable everywhere."""
    proof = tmp_path / "proof"
    evil = forged(run, tmp_path, env__id="os:system", env__options=[f'command="touch {proof}"'])
    for command in (["eval", evil], ["train", "--resume", evil], ["train", "gym", "--resume", evil]):
        line = refusal(capsys, *command)
        assert f"env.id would import the module 'os' and call its system(command=\"touch {proof}\")" in line
        assert line.endswith(
            "only if you trust this file, give --trust or --env os:system (in Python, env=... or trust=True)"
        )
    with pytest.raises(TrustError):
        evaluate_run(find("gym"), evil, EvaluationOptions(1))
    assert not proof.exists()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["trap_module:make", "trap_module:Trap-v0"])
def test_code_is_imported_if_it_is_named_or_the_file_is_trusted(
    env: str, run: Path, trap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = forged(run, tmp_path, env__id=env)
    assert "would import the module 'trap_module'" in refusal(capsys, "eval", theirs, "--episodes=1")
    assert "would import the module 'trap_module'" in refusal(capsys, "train", "--resume", theirs)
    config = tmp_path / "mine.toml"
    config.write_text(f'kind = "gym"\n[env]\nid = "{env}"\n')
    begin = ["train", *TINY, "--config", config, "--run-dir", tmp_path / "new"]
    assert "mine.toml: env.id would import the module 'trap_module'" in refusal(capsys, *begin)
    assert notes(trap) == set()
    other = refusal(capsys, "eval", theirs, "--env", "CartPole-v1")
    assert str(theirs) in other and f"is of a run with env.id '{env}', not 'CartPole-v1'" in other
    assert "env.id cannot change" in refusal(capsys, "train", "--resume", theirs, "--env=CartPole-v1")
    assert notes(trap) == set()

    assert main(["eval", str(theirs), "--episodes=1", "--env", env]) == 0
    assert notes(trap) == {"imported", "called"}
    assert main(["eval", str(theirs), "--episodes=1", "--trust"]) == 0
    assert main(["train", "--resume", str(theirs), "--total-timesteps=16", "--env", env]) == 0
    assert main(["train", "--resume", str(theirs), "--total-timesteps=24", "--trust"]) == 0
    assert main([*map(str, begin), "--env=CartPole-v1"]) == 0
    assert main([*map(str, begin[:-1]), str(tmp_path / "newer"), "--trust"]) == 0
    assert len(evaluate_run(find("gym"), theirs, EvaluationOptions(2), trust=True).to_tree()["returns"]) == 2


def test_runs_on_pixels_import_nothing_either(
    trap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('kind = "pixels"\n[env]\nid = "trap_module:Trap-v0"\n')
    line = refusal(capsys, "train", "--config", config)
    assert "env.id would import the module 'trap_module' for the environment 'Trap-v0'" in line
    config.write_text('kind = "pixels"\n[env]\nid = "fastrl/Catch-v0"\n[replay]\npath = "elsewhere/frames"\n')
    line = refusal(capsys, "train", "--config", config)
    assert "replay.path would write to 'elsewhere/frames'" in line
    assert "--trust or --replay.path elsewhere/frames" in line
    assert notes(trap) == set()


def test_a_checkpoint_connects_to_no_cluster(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Ray cluster runs code in every process that connects to it."""
    theirs = forged(run, tmp_path, collect__collector="ray", collect__ray_address="198.51.100.1:6379")
    line = refusal(capsys, "train", "--resume", theirs)
    assert "collect.ray_address would connect to the Ray cluster at '198.51.100.1:6379'" in line
    assert "--trust or --ray-address 198.51.100.1:6379" in line


def test_a_link_in_a_run_is_not_followed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, other = forged(run, tmp_path), tmp_path / "metrics.jsonl"
    shutil.copy(run / "metrics.jsonl", other)
    before = other.read_bytes()
    (theirs / "metrics.jsonl").symlink_to(other)
    assert "metrics.jsonl is a link" in refusal(capsys, "train", "--resume", theirs, "--total-timesteps=16")
    assert other.read_bytes() == before


def gym_values(**env: Any) -> dict[str, Any]:
    return {f"env.{key}": value for key, value in env.items()}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("env_id=os:system",), "os:system"),
        (('wrappers=[{"kind": "a.b:Make"}]',), "a.b:Make"),
        (("ok=1", 'deep={"evil.module:Env-v0": 1}'), "evil.module:Env-v0"),
    ],
)
def test_import_paths_are_not_passed_to_environments(options: tuple[str, ...], text: str) -> None:
    """Such as Shimmy's GymV26Environment-v0, which takes an id of the old gym."""
    tree = {"env": {"id": "GymV26Environment-v0", "options": list(options)}}
    with pytest.raises(TrustError, match=f"env.options would pass '{text}' to the environment"):
        from_file(GymConfig, tree, "run")
    assert from_file(GymConfig, tree, "run", trust=True)["env.options"] == options


def test_no_task_of_traffic_is_imported_from_a_file() -> None:
    tree = {"env": {"options": ["task=evil:Task"]}}
    with pytest.raises(TrustError, match=r"env.options would pass 'evil:Task' to the environment"):
        from_file(CONFIGS["traffic", "ippo"], tree, "run")


def test_settings_without_effects_beyond_the_run_need_no_trust() -> None:
    options = ("a=1", "time=12:30", 'text="at 5: go"', "map=4x4", "url=", "task=passing")
    assert reaches(GymConfig, gym_values(id="fastrl/Cage2-v0", options=options)) == {}
    for (task, _), config_type in CONFIGS.items():
        # The environment that pettingzoo starts from is of another package.
        assert trust_option(build(config_type)) == (" --trust" if task == "pettingzoo" else "")
    assert trust_option(build(GymConfig, {"env.id": "mine:Env"})) == " --trust"
    assert trust_option(build(Cage2Config, {"collect.ray_address": "host:1"})) == " --trust"


def test_every_setting_of_text_or_a_path_is_marked_or_listed_as_harmless() -> None:
    """A new setting that is text or a path is looked at here, once, and marked with `Reach` or listed."""
    harmless = {
        # Checkpoints, which are read and nothing else.
        *((task, "run.init_from") for task in tasks()),
        # Recorded episodes: numbers and text, in Arrow files.
        *((task, "demos.path") for task in tasks()),
        # Settings that import nothing: `fastrl.training.stages` refuses others.
        *((task, "run.stages") for task in tasks()),
        ("traffic", "env.id"),  # of fastrl's own, from a fixed list
        *(
            (task, f"env.{key}")
            for task in ("cage4", "traffic", "pettingzoo")
            for key in ("learners", "opponents")
        ),
        # Any names.
        *(
            (task, f"{name}.policies")
            for task in ("cage2-game", "cage4", "traffic", "pettingzoo")
            for name in ("ippo", "mabc", "mappo", "reinforce")
        ),
        ("cage2", "env.red_agent"),  # three names
        ("cage2", "env.scenario"),  # a file that names hosts
        ("cage2-game", "env.red_agent"),
        ("cage2-workflow", "env.red_agent"),
        ("cage4", "env.rules"),
        ("cage2-workflow", "search.workflow"),  # five names
        *((task, "dqn.conv") for task in ("gym", "cage2", "pixels")),  # sizes
    }
    for (task, _), config_type in CONFIGS.items():
        for key, leaf in leaves(config_type).items():
            is_text = any(word in leaf.metavar() for word in ("TEXT", "PATH", "KEY=VALUE"))
            assert ("Reach(" in repr(leaf.type)) == (is_text and (task, key) not in harmless), key


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    tree = {"env": {"id": "os:system", "options": ["command=rm \x1b[2K\x1b[1Atrue" + "x" * 1000]}}
    with pytest.raises(TrustError) as caught:
        from_file(GymConfig, tree, "run")
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert message.isprintable()
    assert r"command=rm \x1b[2K\x1b[1Atrue" in message
    assert len(message) < 700


def test_a_traffic_policy_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = [
        "--total-episodes=2",
        "--num-envs=2",
        "--ippo.num-steps=10",
        "--ippo.hidden=4",
        "--run.eval-episodes=0",
    ]
    ring = ["--env=fastrl/ring-v0", "--vehicles=1", "--env.options=horizon=10"]
    assert main(["train", "traffic", *small, *ring, "--device=cpu", f"--run-dir={run}"]) == 0
    file, state = load_newest(run)
    state["config"]["env"] |= {"id": "fastrl/coop-merge-v0", "options": []}
    save_checkpoint(file, state)
    assert "the policy does not fit its environment, fastrl/coop-merge-v0" in refusal(
        capsys, "eval", run, "--episodes=1"
    )
