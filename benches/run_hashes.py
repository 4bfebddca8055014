"""Hashes of the parameters that short runs of every preset end in, to show that a change of shape changed no bit.

Run it on the old commit and on the new one, each in a checkout with its own installation, and compare what it prints::

    python benches/run_hashes.py > old.txt
    python benches/run_hashes.py > new.txt
    diff old.txt new.txt

It drives the command line alone and reads checkpoints as plain safetensors files, so it does not depend on how the
package is laid out; its options are those of its own commit. Runs are on the CPU with one PyTorch thread; hashes differ
between machines and PyTorch versions. Runs from pixels take turns: otherwise collector and learner do not wait for each
other. PPO's gradient steps have two backends, and so two hashes; commits without that setting used PyTorch.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch

# Those whose gradient steps have two backends, with the settings that these hashes were first taken with.
_CAGE2 = "--run.eval-episodes 0 --ppo.gamma 0.99"
PPO_RUNS = (
    f"cage2 --preset smoke --total-timesteps 60000 {_CAGE2} --no-ppo.action-masks",
    f"cage2 --preset smoke --total-timesteps 30000 {_CAGE2} --ppo.action-masks",
    f"cage2 --preset challenge --total-timesteps 30000 {_CAGE2} --ppo.minibatch-size 4096 --env.num-envs 32",
    f"cage2 --preset smoke --total-timesteps 30000 {_CAGE2} --no-ppo.action-masks --collector sequential",
    "cage2-workflow --preset smoke --no-inner.action-masks",
    "CartPole-v1 --preset smoke --collector sequential --run.eval-episodes 0",
    "CartPole-v1 --preset classic --total-timesteps 8000 --collector executor --n-workers 2 --run.eval-episodes 0",
    "Pendulum-v1 --preset pendulum --total-timesteps 8000 --collector sequential --run.eval-episodes 0",
    "fastrl.tasks.gym.task:TASK --env fastrl/Cage2-v0 --preset smoke --collector native --run.eval-episodes 0",
)
RUNS = (
    *(
        f"{run} --{'inner' if 'workflow' in run else 'ppo'}.update-backend {backend}"
        for backend in ("torch", "compiled")
        for run in PPO_RUNS
    ),
    "CartPole-v1 --preset smoke --algo impala --collector sequential --run.eval-episodes 0",
    # With the settings that these hashes were first taken with.
    *(
        f"traffic --preset fast --total-episodes 60 --algo {name} --num-envs 4 --{name}.critic-epochs {epochs}"
        f" --{name}.minibatch-size 8192 --{name}.lr-schedule step --{name}.entropy-coef 0.01"
        f" --{name}.final-entropy-coef 0.001 --{name}.gamma 0.99 --{name}.gae-lambda {gae_lambda}"
        f" --env.collision-reward=-1{more}"
        for name, epochs, gae_lambda, more in (
            ("mappo", 2, 0.95, " --mappo.num-epochs 2"),
            ("ippo", 2, 0.95, " --ippo.num-epochs 2"),
            ("reinforce", 4, 1.0, ""),
        )
    ),
    "traffic --preset ring --total-episodes 64",
    "fastrl/Catch-v0 --total-timesteps 4000 --run.eval-episodes 0 --no-replay.overlap",
    "fastrl/Catch-v0 --total-timesteps 3001 --preset toy --run.eval-episodes 0 --no-replay.overlap --dqn.noisy",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the runs whose command has this in it")
    options = parser.parse_args()
    for run in (run for run in RUNS if options.only in run):
        print(parameters_of(run.split()), run, flush=True)


def parameters_of(run: list[str]) -> str:
    """A hash of the parameters in the newest checkpoint of a run.

    Names and order of the tensors do not count, nor how often one is stored: they belong to the layout.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "run")
        command = [
            sys.executable,
            "-m",
            "fastrl",
            "train",
            *run,
            "--device",
            "cpu",
            "--run-dir",
            str(directory),
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"failed: {done.stderr.strip().splitlines()[-1:]}"
        newest = max((directory / "checkpoints").glob("step-*.safetensors"))
        contents = {
            hashlib.sha256(
                f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()
            ).hexdigest()
            for name, tensor in safetensors.torch.load_file(newest).items()
            if name.endswith((".weight", ".bias", "log_std"))
        }
        if not contents:
            return "failed: the checkpoint has no tensors of these names"
        return hashlib.sha256("".join(sorted(contents)).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
