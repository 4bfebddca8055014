"""Modules that commands and runs load before they start, and the number of those that a run goes through.

Processor time depends on the machine; what is loaded does not.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Imports each of which costs as much as a short run: none of them belongs to the start of a run.
HEAVY = "matplotlib", "pandas", "scipy", "tensorboardX", "optuna", "ray", "pettingzoo", "torch._dynamo"

# Runs commands one after another; prints the modules of `HEAVY` and torch that they have loaded.
COMMANDS = f"""
import contextlib, io, sys
from fastrl.cli.main import main
for command in sys.argv[1:]:
    shown = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        main(command.split())
    assert shown.getvalue(), command
print(*{{"torch", *{HEAVY}}} & sys.modules.keys())
"""

# Prints at exit, after what a command has registered for it, whether objects are left out of the search for garbage.
EXIT = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))
from fastrl.cli.main import main
main(["--version"])
"""

RUN = """
import sys
import torch, fastrl
before = set(sys.modules)
model = fastrl.PPO("CartPole-v1", collector="sequential", seed=0)
model.learn(1000)
assert model.steps >= 1000
"""

LOADED = f"""{RUN}
new = sys.modules.keys() - before
print(*{{*{HEAVY}, "rich"}} & new, *(name for name in new if name.startswith("fastrl.")))
"""

# The modules of fastrl of which a function is called, class bodies not counted.
ENTERED = f"""
import inspect, os, sys
import torch, fastrl
folder, entered = os.path.dirname(fastrl.__file__), set()
def note(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(folder):
        entered.add(os.path.relpath(code.co_filename, folder))
sys.setprofile(note)
{RUN}
sys.setprofile(None)
print(*sorted(entered))
"""


def printed(program: str, folder: Path, *arguments: str) -> list[str]:
    """The words that a program prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_commands_search_for_no_garbage_at_exit(tmp_path: Path) -> None:
    assert printed(EXIT, tmp_path)[-1] == "True"


def test_help_settings_and_mistakes_need_no_torch(tmp_path: Path) -> None:
    commands = [
        "--help",
        "train -h",
        "train cage2 -h",
        "train CartPole-v1 --help-all",
        "train CartPole-v1 --algo sac -h",
        "train fastrl/coop-merge-v0 --algo mabc -h",
        "train cage2 --print-config",
        "train cage2 --lrr 3",
        "train CartPole-v1 --preset nothing",
        "tune CartPole-v1 -h",
    ]
    assert printed(COMMANDS, tmp_path, *commands) == []


@pytest.mark.slow
def test_a_run_loads_what_it_uses(tmp_path: Path) -> None:
    names = printed(LOADED, tmp_path)
    assert not {*HEAVY, "rich"} & set(names)
    # Neither stores nor networks nor settings of other algorithms.
    others = (
        "fastrl.replay",
        "fastrl.algorithms.dqn",
        "fastrl.algorithms.sac",
        "fastrl.networks.multi_agent",
    )
    others += (
        "fastrl.demos",
        "fastrl.envs.process",
        "fastrl.collectors.executor",
        "fastrl.cli",
        "fastrl.play.policy",
    )
    assert [name for name in names if name.startswith(others)] == []
    # The folders of other tasks have their names and no more.
    folders = [name for name in names if re.fullmatch(r"fastrl\.tasks\.(?!gym$|preset_file$)\w+", name)]
    assert len(names) - len(folders) <= 131, names


@pytest.mark.slow
def test_a_run_goes_through_few_modules(tmp_path: Path) -> None:
    entered = printed(ENTERED, tmp_path)
    assert "algorithms/ppo.py" in entered
    assert len(entered) <= 79, entered
