"""Recordings: the same bytes from every collector, whole episodes whatever happens, errors in one line."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from demo_experts import balance, swing
from paths import import_path
from waiting import TIMEOUT, wait_until

import fastrl
from fastrl.collectors.protocol import CollectError
from fastrl.demos.find_expert import find_expert
from fastrl.demos.recorder import Recording, make_plan
from fastrl.envs.spec import EnvSpec
from fastrl.utils.errors import UserError
from fastrl.utils.seeding import NO_ENV, env_seed

PROCESSES = ("sync", "executor")


def files(path: Path) -> dict[str, bytes]:
    """The bytes of all files of a data set, by name."""
    found = {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}
    assert found
    return found


def record(out: Path, collector: str = "sequential", n_workers: int = 2, **options: Any) -> Any:
    options.setdefault("env", "CartPole-v1")
    options.setdefault("expert", "demo_experts:balance")
    options.setdefault("episodes", 9)
    workers = {} if collector == "sequential" else {"n_workers": n_workers}
    return fastrl.demos.record(out=out, collector=collector, **workers, **options)


@pytest.mark.parametrize(
    ("options", "collectors"),
    [
        ({"noise": 0.2}, PROCESSES),
        pytest.param({"noise": 0.2}, ("ray",), marks=pytest.mark.slow),
        ({"env": "Pendulum-v1", "expert": "demo_experts:swing", "noise": 0.3, "episodes": 4}, PROCESSES),
        ({"env": "space_cases:AnySpaces", "expert": "random", "env_options": {"obs": "dict"}}, PROCESSES),
        (
            {
                "env": "space_cases:AnySpaces",
                "expert": "random",
                "env_options": {"obs": "matrix of float64", "actions": "matrix of float64"},
                "noise": 0.1,
            },
            PROCESSES,
        ),
        (
            {
                "env": "space_cases:AnySpaces",
                "expert": "random",
                "env_options": {"obs": "image", "actions": "matrix of multi-discrete"},
                "noise": 0.5,
            },
            PROCESSES,
        ),
        ({"env": "demo_experts:Letters", "expert": "demo_experts:first_word", "infos": ("all",)}, PROCESSES),
        ({"env": "demo_experts:OneStep", "expert": "random", "episodes": 30}, PROCESSES),
        (
            {
                "env": "fastrl/Cage2-v0",
                "expert": "baseline:react-restore",
                "env_options": {"red_agent": "mix", "episode_length": 30},
                "noise": 0.1,
                "episodes": 40,
            },
            (*PROCESSES, "native"),
        ),
        (
            {
                "env": "fastrl/ring-v0",
                "expert": "driver:follower-stopper",
                "noise": 0.1,
                "episodes": 3,
                "max_episode_steps": 60,
            },
            (*PROCESSES, "native"),
        ),
        (
            {"env": "fastrl/ring-v0", "expert": "driver:pi", "episodes": 3, "max_episode_steps": 450},
            ("native",),
        ),
        ({"env": "fastrl/highway-fast-v0", "expert": "random", "episodes": 5}, ("native",)),
        ({"env": "fastrl/highway-v0", "expert": "driver:idm", "episodes": 4, "noise": 0.1}, ("native",)),
    ],
    ids=lambda value: None if isinstance(value, tuple) else value.get("env", "CartPole-v1"),
)
def test_every_collector_writes_the_same_bytes(
    options: dict[str, Any], collectors: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "ray" in collectors:
        request.getfixturevalue("local_ray")
    demos = record(tmp_path / "sequential", **options)
    expected = files(tmp_path / "sequential")
    assert len(demos) == options.get("episodes", 9)
    for collector in collectors:
        for n_workers in (1, 3) if collector == "executor" else (2,):
            out = tmp_path / f"{collector}-{n_workers}"
            record(out, collector, n_workers, **options)
            assert files(out) == expected, (collector, n_workers)
    # Actions led to what is stored.
    report = fastrl.demos.replay(tmp_path / "sequential", trust=True)
    assert report.agrees and report.episodes == len(demos), report.lines()


class Changed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Something of the second step is another."""

    def __init__(self, env: Any, what: str) -> None:
        super().__init__(env)
        self.what, self.t = what, 0

    def reset(self, **options: Any) -> Any:
        self.t = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, reward, *ends, info = self.env.step(action)
        if self.t == 2:
            if self.what == "error":
                raise ZeroDivisionError("the pole is broken")
            other = {"obs": obs + 1, "shape": obs[:3], "ragged": [[1], [1, 2]]}
            obs, reward = other.get(self.what, obs), 0.5 if self.what == "reward" else reward
            ends[1] = ends[1] or self.what == "end"
        return obs, reward, *ends, info


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("obs", r"from step 2 of \d+ on another observation: obs\[0\]: .* stored, now "),
        ("shape", r"from step 2 of \d+ on another observation: obs: shape \[4\] stored, now \[3\]"),
        ("ragged", r"from step 2 of \d+ on another observation: it does not fit the space: ValueError: "),
        ("reward", r"from step 2 of \d+ on another reward: 1.0 stored, now 0.5"),
        ("end", r"step 2 of \d+ ends otherwise: no end stored, now truncated"),
    ],
)
def test_a_replay_says_where_an_environment_differs(what: str, line: str, tmp_path: Path) -> None:
    record(tmp_path / "demos", episodes=2)
    other = lambda: Changed(gymnasium.make("CartPole-v1"), what)  # noqa: E731
    report = fastrl.demos.replay(tmp_path / "demos", env=other)
    assert [index for index, _ in report.differences] == [0, 1] and not report.agrees
    assert re.match(line, report.differences[0][1]), report.lines()


def test_an_environment_that_fails_in_a_replay_is_to_blame(tmp_path: Path) -> None:
    demos = record(tmp_path / "demos", episodes=1)
    other = lambda: Changed(gymnasium.make("CartPole-v1"), "error")  # noqa: E731
    line = rf"failed at step 2 of the episode that reset\(seed={demos[0].seed}\) started: ZeroDivisionError: the pole"
    with pytest.raises(CollectError, match=line):
        fastrl.demos.replay(tmp_path / "demos", env=other)


def test_episodes_are_those_of_the_environment(tmp_path: Path) -> None:
    demos = record(tmp_path / "demos", episodes=3, seed=5)
    env = gymnasium.make("CartPole-v1")
    for i in range(3):
        episode = demos[i]
        assert (episode.index, episode.seed) == (i, env_seed(5, NO_ENV, i))
        seen, rewards = [env.reset(seed=episode.seed)[0]], []
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(balance(seen[-1]))
            seen.append(obs)
            rewards.append(reward)
            over = terminated or truncated
        assert np.array_equal(episode.observations, seen) and episode.observations.dtype == np.float32
        assert episode.rewards.tolist() == rewards and episode.rewards.dtype == np.float64
        assert (bool(episode.terminated[-1]), bool(episode.truncated[-1])) == (terminated, truncated)
        assert not episode.terminated[:-1].any() and not episode.truncated[:-1].any()
        assert episode.expert_actions is None


def test_texts_large_numbers_and_infos_are_exact(tmp_path: Path) -> None:
    out = tmp_path / "demos"
    demos = record(
        out, env="demo_experts:Letters", expert="demo_experts:first_word", infos=("side", "vector", "odd")
    )
    assert fastrl.demos.replay(out, trust=True).agrees
    for episode in (demos[i] for i in range(len(demos))):
        count = episode.observations["count"]
        assert count.dtype == np.float64 and count.shape == (5, 2) and (count > 2.0**40 - 1).all()
        assert len(np.unique(count)) > 5
        assert [str(text) in ("left", "right", "") for text in episode.observations["mission"]] == [True] * 5
        assert episode.observations["stage"].tolist() == [5, 6, 7, 5, 6]
        assert episode.rewards.tolist() == [
            1 / (step + 1 + action) for step, action in enumerate(episode.actions.tolist())
        ]
        assert episode.infos["side"].tolist() == [0, *episode.actions.tolist()]
        assert episode.infos["vector"].shape == (5, 3)
        # Of infos that are not always there.
        assert [math.isnan(value) for value in episode.infos["odd"]] == [True, False, True, False, True]


@pytest.mark.slow
def test_noise_keeps_the_actions_of_the_expert(tmp_path: Path) -> None:
    demos = record(tmp_path / "demos", noise=0.25, episodes=60)
    taken = np.concatenate([demos[i].actions for i in range(60)])
    own = np.concatenate([demos[i].expert_actions for i in range(60)])
    obs = np.concatenate([demos[i].observations[:-1] for i in range(60)])
    assert own.tolist() == [balance(each) for each in obs]
    # Half of the random actions are the expert's.
    assert abs((taken != own).mean() - 0.125) < 4 * math.sqrt(0.125 * 0.875 / len(own))
    gaussian = record(
        tmp_path / "gaussian", env="Pendulum-v1", expert="demo_experts:swing", noise=0.1, episodes=5
    )
    taken = np.concatenate([gaussian[i].actions for i in range(5)])
    own = np.concatenate([gaussian[i].expert_actions for i in range(5)])
    inside = np.abs(own) < 1
    # A tenth of half the range of 4.
    assert abs((taken - own)[inside].std() - 0.2) < 0.02
    assert (np.abs(taken) <= 2).all() and taken.dtype == np.float32


def test_masked_policies_and_noise_keep_to_the_masks(tmp_path: Path) -> None:
    model = fastrl.PPO("fastrl/Cage2-v0", action_masks=True, num_envs=8, seed=0, hidden=(16,))
    model.learn(64)
    model.save(tmp_path / "model.safetensors")
    options = {
        "env": None,
        "expert": tmp_path / "model.safetensors",
        "max_episode_steps": 20,
        "noise": 0.5,
        "episodes": 12,
    }
    demos = record(tmp_path / "sequential", **options)
    for collector in (*PROCESSES, "native"):
        record(tmp_path / collector, collector, **options)
        assert files(tmp_path / collector) == files(tmp_path / "sequential"), collector
    env = model.env_spec.make().unwrapped
    for i in range(4):
        env.reset(seed=demos[i].seed)
        for action in demos[i].actions.tolist():
            assert env.action_masks()[action]
            env.step(action)
    assert fastrl.demos.replay(tmp_path / "native").agrees


@pytest.mark.parametrize("network", [None, pytest.param("own_networks:Net", marks=pytest.mark.slow)])
def test_a_run_is_an_expert(network: str | None, tmp_path: Path) -> None:
    model = fastrl.PPO("CartPole-v1", num_envs=4, seed=0, **({} if network is None else {"network": network}))
    model.learn(256, run_dir=tmp_path / "run")
    options = {"env": None, "expert": tmp_path / "run", "episodes": 4, "max_episode_steps": 30, "trust": True}
    demos = record(tmp_path / "sequential", **options)
    for i in range(4):
        expected, _ = model.predict(demos[i].observations[:-1])
        assert demos[i].actions.tolist() == expected.tolist()
    record(tmp_path / "executor", "executor", **options)
    assert files(tmp_path / "executor") == files(tmp_path / "sequential")
    drawn = record(tmp_path / "drawn", **options, deterministic=False)
    assert drawn[0].actions.tolist() != demos[0].actions.tolist()


@pytest.mark.parametrize("batch_norm", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_draws_of_values_of_actions_explore_as_the_run_did_last(batch_norm: bool, tmp_path: Path) -> None:
    model = fastrl.DQN(
        "CartPole-v1", num_envs=2, seed=0, epsilon=0.5, final_epsilon=0.5, batch_norm=batch_norm
    )
    model.learn(32, run_dir=tmp_path / "run")
    options = {"env": None, "expert": tmp_path / "run", "episodes": 20, "max_episode_steps": 30}
    likeliest = record(tmp_path / "likeliest", **options)
    drawn = record(tmp_path / "drawn", **options, deterministic=False)
    record(tmp_path / "executor", "executor", **options, deterministic=False)
    assert files(tmp_path / "executor") == files(tmp_path / "drawn")
    shares = []
    for demos in (likeliest, drawn):
        episodes = [(demos[i].actions, model.predict(demos[i].observations[:-1])[0]) for i in range(20)]
        shares.append(float(np.mean(np.concatenate([taken != best for taken, best in episodes]))))
    # One of two random actions is the best.
    assert shares[0] == 0 and abs(shares[1] - 0.25) < 0.1


@pytest.mark.slow
def test_a_model_of_stable_baselines3_is_an_expert(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    for algorithm, env in (("PPO", "CartPole-v1"), ("SAC", "Pendulum-v1"), ("DQN", "CartPole-v1")):
        file = tmp_path / f"{algorithm}.zip"
        model = getattr(sb3, algorithm)("MlpPolicy", env, seed=0, device="cpu")
        model.save(file)
        options = {"env": env, "expert": file, "episodes": 2, "max_episode_steps": 20, "trust": True}
        demos = record(tmp_path / algorithm, **options)
        for obs, action in zip(demos[1].observations[:-1], demos[1].actions, strict=True):
            assert np.array_equal(model.predict(obs, deterministic=True)[0], action)
        record(tmp_path / f"{algorithm} 2", "executor", 1, **options)
        assert files(tmp_path / f"{algorithm} 2") == files(tmp_path / algorithm)
    with pytest.raises(
        UserError, match="is a pickle, which can run code; only if you trust this file, give --trust"
    ):
        record(tmp_path / "refused", **{**options, "trust": False})


def test_a_function_of_the_caller_is_an_expert(tmp_path: Path) -> None:
    record(tmp_path / "named")
    demos = record(tmp_path / "own", expert=lambda obs: balance(obs))
    named = fastrl.demos.load(tmp_path / "named")
    assert [demos[i].actions.tolist() for i in range(9)] == [named[i].actions.tolist() for i in range(9)]


# Interrupts


def run_recording(out: Path, *arguments: str, episodes: int = 200) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "fastrl", "demos", "record", "demo_experts:slow_cartpole"]
    options = ["--expert", "demo_experts:balance", "--episodes", str(episodes), "--out", str(out)]
    return subprocess.Popen(
        [*command, *options, *arguments],
        env={**os.environ, "PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def count(out: Path) -> int:
    """Episodes that are there."""
    try:
        return len(fastrl.demos.load(out))
    except (UserError, OSError):
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["sequential", "executor"])
def test_ctrl_c_keeps_whole_episodes_and_resume_ends_with_the_same_bytes(
    collector: str, tmp_path: Path
) -> None:
    fast = {"env": "CartPole-v1", "episodes": 12, "max_episode_steps": 60}
    options = ["--collector", collector, "--max-episode-steps", "60"]
    options += ["--n-workers", "2"] if collector == "executor" else []
    record(tmp_path / "whole", **{**fast, "env": "demo_experts:slow_cartpole"}, env_options={"seconds": 0})
    out = tmp_path / "demos"
    process = run_recording(out, *options, "--env-options", "seconds=0.01", episodes=12)
    wait_until(out.exists)
    time.sleep(2.0)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode in (0, 130), error
    kept = count(out)
    assert process.returncode == 0 or f"{kept} of 12 episodes are in {out}; --resume continues" in error
    resumed = run_recording(out, *options, "--env-options", "seconds=0.01", "--resume", episodes=12)
    assert resumed.wait(timeout=TIMEOUT) == 0, resumed.communicate()
    assert count(out) == 12
    whole, demos = fastrl.demos.load(tmp_path / "whole"), fastrl.demos.load(out)
    for i in range(12):
        assert np.array_equal(whole[i].observations, demos[i].observations)
        assert np.array_equal(whole[i].actions, demos[i].actions)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_episodes(tmp_path: Path) -> None:
    options = {"episodes": 30, "env": "demo_experts:slow_cartpole", "max_episode_steps": 40}
    record(tmp_path / "whole", **options)
    expected = files(tmp_path / "whole")
    out = tmp_path / "demos"
    arguments = ["--max-episode-steps", "40", "--collector", "sequential"]
    random = np.random.default_rng(0)
    kills = 0
    while (before := count(out)) < 30:
        process = run_recording(out, *arguments, *(["--resume"] if before else []), episodes=30)
        wait_until(lambda before=before, process=process: count(out) > before or process.poll() is not None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=random.random())
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        kept = fastrl.demos.load(out)
        assert len(kept) > before and min(kept.lengths) >= 1
    assert kills
    # The totals of a recording that was killed at its very end are written by a last resume.
    record(out, **options, resume=True)
    assert {name: data for name, data in files(out).items() if not name.startswith(".")} == expected


@pytest.mark.slow
def test_more_episodes_are_added(tmp_path: Path) -> None:
    record(tmp_path / "whole", episodes=25)
    for episodes in (1, 2, 17, 25):
        record(tmp_path / "parts", episodes=episodes, resume=True)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_recording_is_resumed_as_it_was(tmp_path: Path) -> None:
    record(tmp_path / "demos", episodes=2)
    for changes in ({"seed": 1}, {"noise": 0.1}, {"expert": "random"}, {"max_episode_steps": 7}):
        with pytest.raises(UserError, match=r"demos"):
            record(tmp_path / "demos", **changes, resume=True)
    with pytest.raises(UserError, match="--resume"):
        record(tmp_path / "demos", episodes=2)


def test_a_worker_that_dies_costs_nothing(tmp_path: Path) -> None:
    options = {"env": "demo_experts:Dying", "episodes": 12}
    for name, at in (("whole", 99), ("parts", 3)):
        record(
            tmp_path / name,
            "executor",
            **options,
            env_options={"at": at, "remembered": str(tmp_path / "remembered")},
        )
    assert (tmp_path / "remembered").exists()
    whole, parts = (fastrl.demos.load(tmp_path / name) for name in ("whole", "parts"))
    for i in range(12):
        assert np.array_equal(whole[i].observations, parts[i].observations)


def test_workers_of_compiled_actors_load_no_torch(tmp_path: Path) -> None:
    # Tests of ranks in the same process let the server that forks workers import PyTorch.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    spec = EnvSpec("CartPole-v1")
    env = spec.make()
    expert = find_expert("demo_experts:loads_no_torch", env)
    plan = make_plan(spec, expert, env, 400, seed=0, noise=None, max_episode_steps=0)
    with Recording(plan, 0, "executor", 2, expert) as recording:
        while not recording.is_done:
            recording.take(1.0)
        assert all(0 < mib <= 60 for mib in recording.collector.report().memory_mib)


def test_an_agent_with_a_memory_is_an_expert(tmp_path: Path) -> None:
    options = {"env": "cage2", "expert": "demo_experts:Submission", "episodes": 5}
    demos = record(tmp_path / "sequential", "sequential", **options)
    record(tmp_path / "executor", "executor", **options)
    assert files(tmp_path / "executor") == files(tmp_path / "sequential")
    # Each episode begins anew, and the environment's other actions and observations change nothing.
    plain = {**options, "env": "fastrl/Cage2-v0", "env_options": {"red_agent": "mix"}}
    others = record(tmp_path / "plain", "sequential", **plain)
    np.testing.assert_array_equal(others.returns, demos.returns)
    assert [list(episode.actions[:3]) for episode in others] == [[133, 28, 135]] * 5
    with pytest.raises(CollectError, match="plays one episode at a time, --collector sequential or executor"):
        record(tmp_path / "sync", "sync", **options)


# Errors


@pytest.mark.parametrize("collector", ["sequential", *PROCESSES])
@pytest.mark.parametrize(
    ("expert", "message"),
    [
        (
            "raising",
            r"expert demo_experts:raising raised ZeroDivisionError: the pole leans at step \d+ of episode",
        ),
        (
            "nonsense",
            r"returned something else: expected an action of Discrete\(2\), got 2, at step \d+ of episode",
        ),
        ("not_a_number", r"expected an action of Discrete\(2\), got a list, at step 0 of episode"),
    ],
)
def test_an_expert_that_fails_is_named_in_one_line(
    expert: str, message: str, collector: str, tmp_path: Path
) -> None:
    with pytest.raises(CollectError, match=message) as caught:
        record(tmp_path / "demos", collector, expert=f"demo_experts:{expert}")
    first = str(caught.value).splitlines()[0]
    assert "reset with seed" in first and f"whole episodes are in {tmp_path}" in first
    assert ("the pole leans" in caught.value.traceback) == (expert == "raising")
    assert count(tmp_path / "demos") < 9


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        ("not_finite", r"got \[nan\], at step 0 of episode"),
        ("too_strong", r"got \[5.0\]; np.clip keeps it there, at step 0 of episode"),
        ("two_numbers", r"got an array of float32 of shape \(2,\), at step 0 of episode"),
    ],
)
def test_numbers_that_are_no_actions_are_not_recorded(expert: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CollectError, match=message) as caught:
        record(tmp_path / "demos", env="Pendulum-v1", expert=f"demo_experts:{expert}")
    first = f"expert demo_experts:{expert} returned something else: expected an action of Box(-2.0, 2.0"
    assert str(caught.value).startswith(first)
    assert "correct the expert, then --resume" in str(caught.value) and "\n" not in str(caught.value)
    assert count(tmp_path / "demos") == 0


def test_a_nan_is_named_and_whole_episodes_before_it_are_kept(tmp_path: Path) -> None:
    message = r"Broken: the observation after step 2 of episode 4 \(reset with seed \d+\) has nan.*; 4 whole episodes"
    with pytest.raises(CollectError, match=message):
        record(tmp_path / "demos", env="demo_experts:Broken", expert="random")
    assert count(tmp_path / "demos") == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert": "nowhere"}, "--expert nowhere: no such file; it should be a run directory"),
        ({"expert": "demo_experts:missing"}, "missing does not exist in demo_experts"),
        ({"expert": "no_such_module:f"}, "No module named 'no_such_module'"),
        ({"expert": 3}, "expected a run directory, .* or a function; got 3"),
        ({"env": "CartPole-v7"}, "CartPole-v7"),
        (
            {"env": "demo_experts:two_cartpoles"},
            "makes a vector environment, .* give what makes one environment",
        ),
        ({"noise": 1.5}, "epsilon at most 1, got 1.5"),
        ({"noise": 0.5, "noise_kind": "gaussian"}, "Gaussian noise is for a Box of floats"),
        ({"episodes": 0}, "expected a number from 1 on, got 0"),
        ({"infos": ("missing",)}, "infos have no 'missing'"),
        ({"collector": "native"}, "native"),
        ({"collector": "vector"}, "vector"),
        ({"env": None}, "the expert is no run"),
        (
            {"env": gymnasium.make("CartPole-v1"), "env_options": {"size": 3}},
            "is built already: give the options",
        ),
    ],
)
def test_mistakes_are_refused_in_one_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, CollectError), match=message) as caught:
        record(tmp_path / "demos", **options)
    assert "\n" not in str(caught.value)


def test_a_policy_of_another_environment_is_refused(tmp_path: Path) -> None:
    model = fastrl.PPO("CartPole-v1", num_envs=2, seed=0)
    model.save(tmp_path / "cart.safetensors")
    with pytest.raises(UserError, match="the policy takes 4 numbers"):
        record(tmp_path / "demos", env="Acrobot-v1", expert=tmp_path / "cart.safetensors")


@pytest.mark.slow
def test_a_full_disk_keeps_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = record(tmp_path / "whole", episodes=40)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "from fastrl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "demos"
    arguments = ["demos", "record", "CartPole-v1", "--expert", "demo_experts:balance", "--episodes", "40"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--out", str(out), "--collector", "sequential"],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "error" in line]
    assert str(out) in line and "--resume" in line and "File too large" in line
    record(out, episodes=40, resume=True)
    demos = fastrl.demos.load(out)
    assert [demos[i].seed for i in range(40)] == [whole[i].seed for i in range(40)]
    assert np.array_equal(demos[39].observations, whole[39].observations)


def test_swing_is_an_action_of_pendulum() -> None:
    assert gymnasium.make("Pendulum-v1").action_space.contains(swing(np.zeros(3)))
