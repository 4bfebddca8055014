"""Training in traffic, end to end: episodes a minute and peak memory, beside Stable-Baselines3 and RLlib.

Run: ``pytest benches/bench_traffic_training.py -s`` on an otherwise idle machine. Each trains the preset "performance"
(8 vehicles) with more episodes, in a process of its own, one after the other, on the same environments, with the
same network, rollouts, minibatches and epochs; all agents share a policy. fastrl's run is the whole command, with its
metrics, evaluations and checkpoints; the others only train. Seconds are those of training, without imports.

RLlib wants other versions of other things, so it comes from a virtual environment of its own, in which ``fastrl`` and
``ray[rllib]`` are installed (``pip install ".[pettingzoo]" "ray[rllib]"``): name its Python in FASTRL_RLLIB_PYTHON.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Seconds that the others train for; fastrl's number of episodes takes about as long.
SECONDS = 30.0
EPISODES = 10_000
ENV = "fastrl/coop-highway-v0"


@dataclass(frozen=True)
class Result:
    """Result of a contender: episodes and environment steps, in how many seconds; the most memory that it held, and the
    most of its own (see `memory_of`), MiB."""

    name: str
    episodes: int
    steps: int
    seconds: float
    memory: float
    own: float

    @property
    def per_minute(self) -> float:
        return 60 * self.episodes / self.seconds

    @property
    def speed(self) -> float:
        """Steps of environments a second, which does not depend on how long a policy's episodes last."""
        return self.steps / self.seconds


def settings() -> Any:
    """Those of fastrl's run, for all."""
    from fastrl.tasks.traffic.task import TASK
    from fastrl.utils.config import build

    config_type = TASK.settings_type("ippo")
    preset = TASK.preset_values(config_type, "performance")
    return TASK.resolve_defaults(build(config_type, preset, {"run.total_episodes": EPISODES}))


class ContenderError(Exception):
    """A contender ended before its time; the end of what it said."""


def run(command: list[str], name: str) -> Result:
    """Runs a contender, which prints its episodes, steps and seconds as JSON in its last line; watches its memory.

    Raises:
        ContenderError: it failed.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory = own = 0.0

    def watch() -> None:
        nonlocal memory, own
        while process.poll() is None:
            now, own_now = memory_of(process.pid)
            memory, own = max(memory, now), max(own, own_now)
            time.sleep(0.2)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    out, err = process.communicate()
    watcher.join()
    if process.returncode:
        raise ContenderError(err[-4000:])
    numbers = json.loads(out.strip().splitlines()[-1])
    return Result(name, numbers["episodes"], numbers["steps"], numbers["seconds"], memory, own)


def memory_of(pid: int) -> tuple[float, float]:
    """Memory of a process and all that it has started, MiB: all that is resident, and what is its own of that (the rest
    are pages of files, mostly libraries, of which the system keeps as many as it likes)."""
    parents: dict[int, int] = {}
    sizes: dict[int, tuple[float, float]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it has just ended
        process = int(status.parent.name)
        parents[process] = int(fields["PPid"])
        all_of_it, own = (int(fields.get(name, "0 kB").split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
        sizes[process] = (all_of_it, own)

    def is_ours(process: int) -> bool:
        while process > 1:
            if process == pid:
                return True
            process = parents.get(process, 0)
        return False

    ours = [size for process, size in sizes.items() if is_ours(process)]
    return sum(size for size, _ in ours), sum(own for _, own in ours)


def fastrl_run() -> dict[str, float]:
    """The command itself, in a directory that goes away. Its table goes elsewhere."""
    from fastrl.cli.main import main_train

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        sys.stdout = sys.stderr
        assert (
            main_train(
                ["traffic", "--preset=performance", f"--total-episodes={EPISODES}", f"--run-dir={path}"]
            )
            == 0
        )
        sys.stdout = sys.__stdout__
        summary = json.loads((path / "summary.json").read_text())
    return {name: summary[name] for name in ("episodes", "steps", "seconds")}


def stable_baselines3() -> dict[str, float]:
    """PPO with a row of a `VecEnv` for each agent. Rows of dead agents are zeros until the episode ends."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecEnv

    from fastrl.tasks.traffic.task import make_env

    config = settings()
    envs = make_env(config.env, config.env.num_envs)

    class Rows(VecEnv):
        def __init__(self) -> None:
            rows = envs.num_envs * envs.num_agents
            super().__init__(rows, envs.single_observation_space, envs.single_action_space)
            self.obs = np.empty((rows, *envs.single_observation_space.shape), np.float32)
            self.final_obs = np.empty_like(self.obs)
            self.rewards = np.empty(rows, np.float32)
            self.terminated, self.truncated, self.alive = (np.empty(rows, np.bool_) for _ in range(3))
            self.finished = envs.episodes()["finished"]

        def reset(self):
            envs.reset_into(self.obs, self.alive, seed=0)
            return self.obs.copy()

        def step_async(self, actions):
            self.actions = actions

        def step_wait(self):
            envs.step_into(
                self.actions,
                self.obs,
                self.rewards,
                self.terminated,
                self.truncated,
                self.alive,
                self.final_obs,
            )
            finished = envs.episodes()["finished"]
            ended = np.repeat(finished != self.finished, envs.num_agents)
            self.finished = finished
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for row in np.flatnonzero(self.truncated):
                infos[row] = {"TimeLimit.truncated": True, "terminal_observation": self.final_obs[row]}
            return self.obs.copy(), self.rewards.copy(), self.terminated | self.truncated | ended, infos

        def close(self):
            envs.close()

        def get_attr(self, name, indices=None):
            return [None] * self.num_envs

        def set_attr(self, name, value, indices=None): ...

        def env_method(self, name, *args, indices=None, **kwargs): ...

        def env_is_wrapped(self, wrapper, indices=None):
            return [False] * self.num_envs

    class Until(BaseCallback):
        def _on_rollout_start(self) -> None:
            self.over = time.perf_counter() - start > SECONDS

        def _on_step(self) -> bool:
            return not self.over

    ippo = config.ippo
    torch.set_num_threads(os.cpu_count() or 1)
    ppo = sb3.PPO(
        "MlpPolicy",
        Rows(),
        learning_rate=ippo.learning_rate,
        n_steps=ippo.num_steps,
        batch_size=ippo.minibatch_size,
        n_epochs=ippo.num_epochs,
        gamma=ippo.gamma,
        gae_lambda=ippo.gae_lambda,
        policy_kwargs={"net_arch": list(ippo.hidden), "activation_fn": torch.nn.ReLU},
        seed=0,
        device="cpu",
    )
    start = time.perf_counter()
    ppo.learn(10**12, Until())
    return {
        "episodes": int(envs.episodes()["finished"].sum()),
        "steps": ppo.num_timesteps // envs.num_agents,
        "seconds": time.perf_counter() - start,
    }


def rllib() -> dict[str, float]:
    """PPO on PettingZoo's face of one world, in as many processes as there are cores."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    config = settings()
    options = {"max_agents": config.env.vehicles, "num_agents": config.env.vehicles, "num_threads": 1}

    def make(_: object) -> ParallelPettingZooEnv:
        from fastrl.envs.adapters import parallel_env

        return ParallelPettingZooEnv(parallel_env(ENV, **options))

    register_env("traffic", make)
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=os.cpu_count())
    ippo = config.ippo
    algorithm = (
        PPOConfig()
        .environment("traffic")
        .env_runners(num_env_runners=max((os.cpu_count() or 1) - 1, 1), sample_timeout_s=600)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(ippo.hidden), fcnet_activation="relu"))
        .training(
            lr=ippo.learning_rate,
            gamma=ippo.gamma,
            lambda_=ippo.gae_lambda,
            num_epochs=ippo.num_epochs,
            # Steps of environments, in which each agent makes one: two minibatches of agents' steps.
            train_batch_size_per_learner=2 * ippo.minibatch_size // config.env.vehicles,
            minibatch_size=ippo.minibatch_size // config.env.vehicles,
        )
        .build_algo()
    )
    start = time.perf_counter()
    numbers: dict[str, Any] = {}
    while time.perf_counter() - start < SECONDS:
        numbers = algorithm.train()["env_runners"]
    seconds = time.perf_counter() - start
    algorithm.stop()
    ray.shutdown()
    episodes, steps = numbers["num_episodes_lifetime"], numbers["num_env_steps_sampled_lifetime"]
    return {"episodes": int(episodes), "steps": int(steps), "seconds": seconds}


def only_torch() -> dict[str, float]:
    """The memory of PyTorch alone, which every contender needs."""
    import torch

    time.sleep(1)
    return {"episodes": 0, "steps": torch.get_num_threads(), "seconds": 1.0}


CONTENDERS = {"fastrl": fastrl_run, "sb3": stable_baselines3, "rllib": rllib, "torch": only_torch}


def test_training_beside_stable_baselines3_and_rllib(record: Callable[..., Any]) -> None:
    from results import Case

    results, left_out = [run([sys.executable, __file__, "fastrl"], "fastrl")], {}
    try:
        import stable_baselines3  # noqa: F401

        results.append(run([sys.executable, __file__, "sb3"], "Stable-Baselines3"))
    except ImportError:
        left_out["Stable-Baselines3"] = "not installed: pip install 'fastrl[sb3]'"
    python = os.environ.get("FASTRL_RLLIB_PYTHON")
    if python:
        try:
            results.append(run([python, __file__, "rllib"], "RLlib"))
        except ContenderError as error:
            # Its workers die at times (exit code 1), which is no fault of ours.
            left_out["RLlib"] = f"it did not survive: {str(error).strip().splitlines()[-1]}"
    else:
        left_out["RLlib"] = "FASTRL_RLLIB_PYTHON names no Python that has ray[rllib] and fastrl"
    config, ours = settings(), results[0]
    torch = run([sys.executable, __file__, "torch"], "PyTorch")
    about = (
        f"Preset performance, {config.env.vehicles} vehicles, {config.env.num_envs} environments,"
        f" {config.run.total_episodes:,} episodes of fastrl, {os.cpu_count()} cores."
    )
    alone = f"Importing PyTorch alone takes {torch.memory:,.0f} MiB, of which {torch.own:,.0f} are its own."
    for unit, of, is_memory in (
        ("episodes/min", lambda it: it.per_minute, False),
        ("environment steps/s", lambda it: it.speed, False),
        ("MiB, peak", lambda it: it.memory, True),
        ("MiB of its own, peak", lambda it: it.own, True),
    ):
        record(
            f"Training in traffic, {unit}",
            unit,
            [Case(ENV, {it.name: [of(it)] for it in results})],
            [ours.name],
            about=f"{about} {alone}" if is_memory else about,
            lower_is_better=is_memory,
            left_out=left_out,
            part=unit,
        )
    assert ours.episodes >= EPISODES
    assert all(result.episodes > 0 and result.memory > 0 for result in results)


if __name__ == "__main__":
    print(json.dumps(CONTENDERS[sys.argv[1]]()))
