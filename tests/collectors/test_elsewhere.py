"""Environments that only the running program can build or import, and the errors of workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import import_path

# A notebook, as far as processes are concerned: there is no file to read again.
NOTEBOOK = """
import functools
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from random_actor import RandomActor
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

# Without `if __name__ == "__main__":`, each worker that imports it would start workers.
UNGUARDED = """
import functools
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from random_actor import RandomActor
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs import ProcessVectorEnv
from fastrl.envs.spec import as_spec
import sys

print("the program runs")

class Mine(CartPoleEnv):
    pass

gymnasium.register("Mine-v0", Mine)
way, spec = sys.argv[1], as_spec({"id": "CartPole-v1", "registered": "Mine-v0", "class": Mine}[sys.argv[2]])
env = spec.make()
plan = Plan(spec, functools.partial(RandomActor, env.action_space), env.observation_space, env.action_space, 2, 3)
with make_collector("sequential", plan) as collector:  # starts no process, and may be read again
    assert len(collector.collect()) == 1
with make_collector("auto", plan, n_workers=2, log=print) as collector:
    print(collector.name, len(collector.collect()))
if way == "executor":
    with make_collector("executor", plan, n_workers=2) as collector:
        print("collected", len(collector.collect()))
else:
    ProcessVectorEnv(spec, 2, start_method=way).close()
"""

# A worker imports it where it needs something of it.
GUARDED = """
import sys
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from fastrl.envs import ProcessVectorEnv

print("the program runs as", __name__, flush=True)

class Mine(CartPoleEnv):
    def step(self, action):
        # What an environment's own processes would import in their turn.
        from multiprocessing.spawn import get_preparation_data
        data = get_preparation_data("own")
        return *super().step(action)[:4], {key: data[key] for key in data if key.startswith("init_main")}

gymnasium.register("Mine-v0", Mine)

if __name__ == "__main__":
    env = {"id": "CartPole-v1", "registered": "Mine-v0", "class": Mine}[sys.argv[2]]
    envs = ProcessVectorEnv(env, 2, start_method=sys.argv[1], info=True, num_workers=1)
    envs.reset(seed=0)
    print(envs.step(envs.action_space.sample())[-1], sys.argv)
    envs.close()
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
    env = {**os.environ, "PYTHONPATH": import_path()}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, env=env
    )


@pytest.mark.slow
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


@pytest.mark.parametrize("way", [pytest.param("executor", marks=pytest.mark.slow), "spawn"])
def test_a_program_runs_once_where_workers_need_nothing_of_it(way: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)
    done = python("program.py", way, "id", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the program runs") == 1


@pytest.mark.parametrize(
    ("way", "env"),
    [
        ("executor", "class"),
        ("spawn", "registered"),
        pytest.param("executor", "registered", marks=pytest.mark.slow),
        pytest.param("spawn", "class", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_would_start_itself_again_and_again_gets_the_cure(
    way: str, env: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)
    done = python("program.py", way, env, cwd=tmp_path)
    assert done.returncode == 1
    why = next(line for line in done.stdout.splitlines() if line.startswith("collecting with"))
    assert why.startswith("collecting with 'sequential': it needs something that is defined in the program")
    assert CURE in why and "sequential 1" in done.stdout.splitlines()
    assert CURE in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("env", ["id", "registered", "class"])
@pytest.mark.parametrize(
    ("start", "way"), [("script", "forkserver"), pytest.param("module", "spawn", marks=pytest.mark.slow)]
)
def test_workers_import_the_program_where_they_need_it(
    start: str, way: str, env: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(GUARDED)
    done = python(*(["program.py"] if start == "script" else ["-m", "program"]), way, env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("the program runs as __main__") == 1
    assert lines.count("the program runs as __mp_main__") == (env != "id")
    assert lines[-1].endswith(f"'{way}', '{env}']")
    if env != "id":
        assert ("init_main_from_path" if start == "script" else "init_main_from_name") in lines[-1]


@pytest.mark.slow
def test_an_environment_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = python("-P", "-c", COMMAND, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


@pytest.mark.slow
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
