"""Commands in a folder whose files have the names of modules: no process that they start runs these."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastrl.runs.listing import find_runs, read_run

# As the console script, whose folder is first in the import path, in place of the current one.
PROGRAM = """
import json, sys
from fastrl.cli.main import main

if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        code = main(command)
        if code:
            sys.exit(f"{command} ended with {code}")
"""

SMALL = ["--num-envs=2", "--ppo.num-steps=16", "--ppo.minibatch-size=32", "--ppo.hidden=8", "--device=cpu"]
TRAIN = ["train", "CartPole-v1", *SMALL, "--total-timesteps=64", "--run.eval-episodes=1"]
RECORD = ["demos", "record", "CartPole-v1", "--expert=random"]
SEARCH = ["--trials=1", "--method=random", "--confirm=0", "--report-episodes=0", "--pruner=none"]
PROCESSES = [
    [*TRAIN, "--collector=executor", "--n-workers=1", "--run-dir=runs/executor"],
    [*TRAIN, "--collector=sync", "--n-workers=1", "--run-dir=runs/sync"],
    [*RECORD, "--episodes=2", "--out=demos", "--collector=executor", "--n-workers=1"],
    ["autotune", "CartPole-v1", *SMALL, "--tune-seconds=1", "--out=tuned.toml"],
]
COMMANDS = [
    [*TRAIN, "--collector=sequential", "--ranks=2", "--run-dir=runs/ranks"],
    # The user's own module is at the end of the import path, where this process has it.
    ["train", "own_module:make", *SMALL, "--total-timesteps=64", "--seeds=0,1", "--run-dir=runs/seeds"],
    ["tune", *TRAIN[1:], *SEARCH, "--dir=runs/tune"],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "names", "files"),
    [
        pytest.param(PROCESSES, {"executor", "sync"}, ["tuned.toml", "demos"], id="processes"),
        pytest.param(
            COMMANDS, {"ranks", "seeds/seed-0", "seeds/seed-1"}, ["runs/tune/best.toml"], id="commands"
        ),
    ],
)
def test_no_module_of_the_current_folder_runs(
    commands: list[list[str]], names: set[str], files: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "program.py"
    folder = tmp_path / "folder"
    program.parent.mkdir()
    folder.mkdir()
    program.write_text(PROGRAM)
    for name in ("fastrl", "gymnasium", "signal", "random", "torch"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + '\\n')")
    (folder / "own_module.py").write_text("import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1')\n")
    options = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(commands)],
        cwd=folder,
        env=options,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    runs = {str(run.relative_to(folder / "runs")): read_run(run) for run in find_runs(folder / "runs")}
    assert runs.keys() == names
    assert all(run.state == "complete" and run.steps == 64 for run in runs.values())
    assert all((folder / file).exists() for file in files)
