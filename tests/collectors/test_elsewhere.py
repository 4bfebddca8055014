"""Environments that only the running program can build or import, and the errors of workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A notebook, as far as processes are concerned: there is no file to read again.
NOTEBOOK = """
import functools
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from fastrl.networks.compiled_actor import RandomActor
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs import ProcessVectorEnv
from fastrl.envs.spec import as_spec

class Mine(CartPoleEnv):
    pass

gymnasium.register("Mine-v0", Mine)
env = Mine()
for made in ("Mine-v0", Mine, "__main__:Mine"):
    plan = Plan(
        as_spec(made), functools.partial(RandomActor, env.action_space), env.observation_space, env.action_space, 2, 3
    )
    with make_collector("auto", plan, n_workers=2, log=print) as collector:
        print(collector.name, len(collector.collect()))
    for name in ("executor", "sync"):
        try:
            make_collector(name, plan, n_workers=2).collect()
        except Exception as error:
            print(name, str(error).splitlines()[-1])
"""

# Without `if __name__ == "__main__":`, each worker would start workers.
UNGUARDED = """
import functools
from fastrl.networks.compiled_actor import RandomActor
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs import ProcessVectorEnv
from fastrl.envs.spec import as_spec
import sys

spec = as_spec("CartPole-v1")
env = spec.make()
plan = Plan(spec, functools.partial(RandomActor, env.action_space), env.observation_space, env.action_space, 2, 3)
with make_collector("sequential", plan) as collector:  # starts nobody, and may be read again
    assert len(collector.collect()) == 1
with make_collector("auto", plan, n_workers=2, log=print) as collector:
    print(collector.name, len(collector.collect()))
if sys.argv[1] == "executor":
    make_collector("executor", plan, n_workers=2).collect()
else:
    ProcessVectorEnv("CartPole-v1", 2, start_method=sys.argv[1])
"""

CURE = 'put the code that starts them under `if __name__ == "__main__":`'

MINE = """
from gymnasium.envs.classic_control import CartPoleEnv
class Env(CartPoleEnv):
    pass
"""

# As the installed command runs: its own folder is on the path, the current one is not.
COMMAND = """
import sys
from fastrl.cli.main import main
small = ["--num-envs=2", "--total-timesteps=8", "--ppo.num-steps=4", "--ppo.minibatch-size=8", "--run.eval-episodes=1"]
for way, method in (("auto", "forkserver"), ("executor", "forkserver"), ("sync", "spawn")):
    workers = [] if way == "auto" else ["--n-workers=2", "--start-method=" + method]
    assert main(["train", "mine:Env", *small, "--run-dir=" + way, "--collector=" + way, *workers]) == 0
assert main(["train", "--resume=auto", "--total-timesteps=16", "--env=mine:Env"]) == 0
assert main(["eval", "auto", "--episodes=1", "--trust"]) == 0
print(sys.path.index(sys.argv[1]) == len(sys.path) - 1)
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ}
    )


def test_an_environment_of_a_notebook_runs_there_and_workers_say_where_it_should_be(tmp_path: Path) -> None:
    done = python("-c", NOTEBOOK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    whys = (
        ("'Mine-v0' is registered in one process only", "my_module:Mine-v0"),
        ("Can't get attribute 'Mine' on <module '__main__' (built-in)>", "my_module:make_env"),
        ("'__main__:Mine' is in one process only", "my_module:Mine"),
    )
    for (why, path), (auto, played, executor, sync) in zip(
        whys, zip(*[iter(lines)] * 4, strict=True), strict=True
    ):
        cure = (
            f"{why}, so other processes cannot build it; put the function that makes it into a module, such as"
            " my_module.py,"
        )
        assert auto.startswith(f"collecting with 'sequential': env: {cure} and give '{path}'")
        assert played == "sequential 1"
        for name, line in (("executor", executor), ("sync", sync)):
            assert line.startswith(name)
            assert cure in line and line.endswith(
                "or collect with 'sequential', which steps it in this process"
            )


@pytest.mark.parametrize("way", ["executor", "spawn"])
def test_a_program_that_would_start_itself_again_and_again_gets_the_cure_last(
    way: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)
    done = python("program.py", way, cwd=tmp_path)
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert (
        first.startswith("collecting with 'sequential': each process imports the program") and CURE in first
    )
    assert second == "sequential 1"
    assert done.stderr.splitlines()[-1].endswith(CURE)


def test_an_environment_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = python("-P", "-c", COMMAND, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_a_directory_is_not_imported_from_unless_a_module_is_named(tmp_path: Path) -> None:
    """Viewing a run of another user's folder executes nothing that lies there."""
    (tmp_path / "CartPole.py").write_text("raise SystemExit('imported')")
    code = (
        "import sys\nfrom fastrl.cli.main import main\n"
        "code = main(['train', 'CartPole-v1', '--print-config'])\n"
        "print(code, sys.argv[1] in sys.path)"
    )
    done = python("-P", "-c", code, str(tmp_path), cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
