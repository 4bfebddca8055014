"""A run of `seconds_to_score`: one contender learns one task from one seed, until its evaluations reach the score.

The clock starts when the libraries are loaded and, of RLtools, compiled, and stands still during evaluations.
Contenders import what they need: RLtools with MKL refuses a process that has PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

# Seeds of episodes that evaluate count up from here, far from where contenders start with those of training.
FIRST_SEED = 10_000_000
CORES = 2

# Chooses actions [N, ...] for a batch of observations, a dict of arrays of a space Dict.
Predict = Callable[[Any], NDArray[Any]]
# Mean score of the policy as it is now, from the number of the evaluation.
Score = Callable[[int], float]


@dataclass(frozen=True)
class Run:
    """Task, contender and settings of a run; see ``seconds_to_score.toml``."""

    task: str
    env: str
    measure: str
    score: float
    episodes: int
    every: int
    max_seconds: float
    contender: str
    algo: str
    steps: int
    seed: int
    settings: dict[str, Any]
    needs: str = ""


class Clock:
    """Seconds of training of a run, and its evaluations.

    Attributes:
        evaluations: seconds of training, steps and mean score of each.
    """

    def __init__(self, run: Run) -> None:
        self.evaluations: list[tuple[float, int, float]] = []
        self._run, self._due, self._paused = run, min(run.every, run.steps), 0.0
        self._start = time.perf_counter()

    @property
    def is_reached(self) -> bool:
        """The last evaluation has the score."""
        return bool(self.evaluations) and self.evaluations[-1][2] >= self._run.score

    def is_over(self, steps: int, score: Score) -> bool:
        """Evaluates the policy where that is due; true once the score is reached or the time is up.

        Args:
            steps: environment steps so far.
        """
        now = time.perf_counter()
        seconds = now - self._start - self._paused
        is_late = seconds >= self._run.max_seconds
        if steps < self._due and not is_late:
            return False
        self._due = min((steps // self._run.every + 1) * self._run.every, max(self._run.steps, steps + 1))
        mean = score(len(self.evaluations))
        self.evaluations.append((round(seconds, 2), steps, round(mean, 3)))
        self._paused += time.perf_counter() - now
        return is_late or self.is_reached


class Episodes:
    """Episodes that evaluate policies without exploration, others in each evaluation, the same for all contenders."""

    def __init__(self, run: Run, wrap: Callable[[Any], Any] = lambda env: env) -> None:
        self._has_arrived = run.measure == "arrived"
        self._envs = [wrap(gymnasium.make(run.env)) for _ in range(run.episodes)]

    def mean(self, predict: Predict, number: int) -> float:
        """Mean return, or the share that arrives.

        Args:
            number: of the evaluation.
        """
        first = FIRST_SEED + number * len(self._envs)
        obs = [env.reset(seed=first + k)[0] for k, env in enumerate(self._envs)]
        scores, active = np.zeros(len(obs)), list(range(len(obs)))
        while active:
            batch: Any = [obs[k] for k in active]
            if isinstance(batch[0], dict):
                batch = {name: np.stack([each[name] for each in batch]) for name in batch[0]}
            else:
                batch = np.stack(batch)
            for k, action in zip(list(active), predict(batch), strict=True):
                obs[k], reward, terminated, truncated, info = self._envs[k].step(action)
                if self._has_arrived:
                    scores[k] = terminated and not info["crashed"]
                else:
                    scores[k] += float(reward)
                if terminated or truncated:
                    active.remove(k)
        return float(scores.mean())


def with_fastrl(run: Run) -> Clock:
    """A model of fastrl; settings are those of `fastrl.Model`, ``preset`` too."""
    import fastrl
    from fastrl.callbacks import Callback
    from fastrl.callbacks import Run as Training

    episodes = None if run.measure == "cage2" else Episodes(run)

    class Evaluations(Callback):
        def on_update(self, run: Training) -> bool:
            return not clock.is_over(run.timesteps, lambda number: score(run, number))

    def score(training: Training, number: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            training.save(Path(folder) / "policy")
            policy = fastrl.load(Path(folder) / "policy")
        if episodes is not None:
            return episodes.mean(lambda obs: policy.predict(obs)[0], number)
        seed = FIRST_SEED + number
        return policy.evaluate(run.episodes, seed=seed, ruleset="main", mode="deterministic")[0]

    load_torch()
    clock = Clock(run)
    model = fastrl.Model(
        run.env, algo=run.algo, seed=run.seed, device="cpu", run__eval_episodes=0, **run.settings
    )
    model.learn(run.steps, callbacks=[Evaluations()], progress=False)
    return clock


def with_stable_baselines3(run: Run, library: str = "stable_baselines3") -> Clock:
    """A model of Stable-Baselines3, or of sbx, whose interface is the same.

    Settings are arguments of its algorithm and of its policy (``net_arch``, ``activation``, ``log_std_init``,
    ``ortho_init``), and these: ``n_envs``; ``normalize``, true of observations and rewards, or ``"rewards"``;
    ``wrapper`` of an environment; ``vector_env``, options of a compiled environment of fastrl; ``torch_threads``. A
    number such as ``"lin_0.001"`` falls to 0 in the course of the run.
    """
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    import fastrl  # noqa: F401 (registers its environments)
    from fastrl.envs.adapters import SB3VecEnv

    kind = getattr(importlib.import_module(library), run.algo)
    settings = {name: scheduled(value) for name, value in run.settings.items()}
    num_envs, options = settings.pop("n_envs", 1), settings.pop("vector_env", None)
    normalize, wrapper = settings.pop("normalize", False), named(settings.pop("wrapper", None))
    load_torch(settings.pop("torch_threads", CORES))
    of_policy = ("net_arch", "activation", "log_std_init", "ortho_init")
    policy = {name: settings.pop(name) for name in of_policy if name in settings}
    if "activation" in policy:
        policy["activation_fn"] = named(policy.pop("activation"))
    judge = Cage2(run, options) if run.measure == "cage2" else Episodes(run, wrapper or (lambda env: env))

    class OverError(Exception):
        pass

    class Evaluations(BaseCallback):
        # The policy has just learned, or has not yet acted.
        def _on_rollout_start(self) -> None:
            if clock.is_over(self.num_timesteps, lambda number: judge.mean(predict, number)):
                raise OverError

        def _on_step(self) -> bool:
            return True

        _on_training_end = _on_rollout_start

    def predict(obs: Any) -> NDArray[Any]:
        return model.predict(env.normalize_obs(obs) if normalize else obs, deterministic=True)[0]

    clock = Clock(run)
    env: Any
    if options is None:
        env = make_vec_env(run.env, num_envs, seed=run.seed, wrapper_class=wrapper)
    else:
        how: Any = {"vectorization_mode": "vector_entry_point", "autoreset_mode": "same_step", **options}
        env = SB3VecEnv(gymnasium.make_vec(run.env, num_envs, **how))
    if normalize:
        env = VecNormalize(env, norm_obs=normalize != "rewards", gamma=settings["gamma"])
    model = kind("MlpPolicy", env, seed=run.seed, device="cpu", policy_kwargs=policy, **settings)
    with contextlib.suppress(OverError):
        model.learn(run.steps, callback=Evaluations())
    return clock


def load_torch(threads: int = 1) -> None:
    """Loads PyTorch, also what it imports with its first optimizer, which takes a second."""
    import torch

    torch.set_num_threads(threads)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


def scheduled(value: Any) -> Any:
    """A setting, or what falls from ``"lin_0.001"`` to 0 with the share of the run that remains."""
    if isinstance(value, str) and value.startswith("lin_"):
        first = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * first
    return value


def named(path: str | None) -> Any:
    """The object that ``"module:name"`` names."""
    module, _, name = (path or "").partition(":")
    return getattr(importlib.import_module(module), name) if path else None


class Cage2:
    """Nine cells of the challenge's protocol, `Run.episodes` each, for policies of others than fastrl.

    Args:
        options: of the environment that the policy has learned in.
    """

    def __init__(self, run: Run, options: Mapping[str, Any]) -> None:
        self._episodes, self._options = run.episodes, options

    def mean(self, predict: Predict, number: int) -> float:
        """The total."""
        from fastrl.envs.cage2.env import action_indices
        from fastrl.tasks.cage2.evaluate import Contender, evaluate

        actions = np.array(action_indices(self._options["actions"]))
        contender = Contender(
            "policy", self._options["memory"], lambda env, seed: lambda obs: actions[predict(obs)]
        )
        return evaluate(
            contender, ruleset="main", episodes=self._episodes, seed=FIRST_SEED + number
        ).mean_return


def with_rltools(run: Run) -> Clock:
    """SAC in C++ on Gymnasium's environment; settings are its arguments."""
    import rltools  # type: ignore[import-not-found, unused-ignore]

    def rescaled(env: Any) -> Any:
        return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))

    def make_env() -> Any:
        env = rescaled(gymnasium.make(run.env))
        env.reset(seed=run.seed)
        return env

    def predict(obs: NDArray[Any]) -> NDArray[Any]:
        return np.stack([state.action(each) for each in obs])

    episodes = Episodes(run, rescaled)
    sac = rltools.SAC(
        make_env,
        interface_name="fastrl_score",
        enable_evaluation=False,
        STEP_LIMIT=run.steps + 1,
        **run.settings,
    )
    clock, steps = Clock(run), 0
    state = sac.State(run.seed)
    while steps < run.steps:
        state.step()
        steps += 1
        if clock.is_over(steps, lambda number: episodes.mean(predict, number)):
            break
    return clock


CONTENDERS: dict[str, Callable[[Run], Clock]] = {
    "fastrl": with_fastrl,
    "Stable-Baselines3": with_stable_baselines3,
    "sbx": lambda run: with_stable_baselines3(run, "sbx"),
    "RLtools": with_rltools,
}


def main(text: str) -> None:
    """Prints a line of JSON: whether the score was reached, and the evaluations."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    run = Run(**json.loads(text))
    if run.needs:
        # Registers its environments.
        importlib.import_module(run.needs)
    # Libraries print to where the answer goes.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    clock = CONTENDERS[run.contender](run)
    print(json.dumps({"reached": clock.is_reached, "evaluations": clock.evaluations}), file=answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
