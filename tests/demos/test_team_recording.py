"""Recordings of many agents: what the collector's fragments have, from every collector, resumed and replayed."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel_toys import Leavers
from paths import import_path
from waiting import TIMEOUT, wait_until

import fastrl
from fastrl.collectors.parallel_spec import ParallelSpec
from fastrl.collectors.protocol import CollectError
from fastrl.collectors.sequential import sequential_collector
from fastrl.demos import recorder
from fastrl.demos.fragment_writing import TeamFragmentWriter, lives_of
from fastrl.demos.recorder import noise_of
from fastrl.demos.team_plan import find_team, make_team_plan
from fastrl.envs.contract import ACTION_MASK, AGENT, ENV_EPISODE, ENV_STEP
from fastrl.envs.spec import as_spec
from fastrl.replay.episode_writer import EpisodeWriter, facts_of
from fastrl.utils.errors import UserError
from fastrl.utils.seeding import NO_ENV, env_seed

MERGE: dict[str, Any] = {"env": "fastrl/coop-merge-v0", "env_options": {"num_agents": 3, "duration": 5.0}}
LEAVERS = "parallel_toys:Leavers"


def teacher(obs: Any, agent: str) -> int:
    """Chooses the hidden number."""
    assert agent in ("a", "b", "late")
    return int(obs[0] > 0)


def files(path: Path) -> dict[str, bytes]:
    found = {each.name: each.read_bytes() for each in path.iterdir()}
    assert found
    return found


def record(out: Path, env: Any = LEAVERS, expert: Any = "random", episodes: int = 5, **options: Any) -> Any:
    options.setdefault("collector", "sequential")
    return fastrl.demos.record(env, expert, episodes, out, trust=True, **options)


KINDS: dict[str, dict[str, Any]] = {
    "agents that come and go": {"noise": 0.2},
    "agents of other spaces": {"env": "parallel_toys:Differing", "noise": 0.3},
    "continuous actions": {"env_options": {"continuous": True}, "noise": 0.1},
    "images": {"env": "parallel_toys:Kinds", "env_options": {"obs": "image", "actions": "multi_binary"}},
    "dicts with images": {"env": "parallel_toys:Kinds", "env_options": {"obs": "mixed"}},
    "action masks": {"env": "parallel_toys:Masked", "infos": ("action_mask",), "noise": 0.5},
    "compiled": {**MERGE, "noise": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_collector_writes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind]
    demos = record(tmp_path / "sequential", **options)
    expected = files(tmp_path / "sequential")
    collectors = [("native", 2), ("executor", 2)] if kind == "compiled" else [("sync", 2), ("executor", 3)]
    for collector, n_workers in collectors:
        out = tmp_path / collector
        record(out, **options | {"collector": collector, "n_workers": n_workers})
        assert files(out) == expected, collector
    record(tmp_path / "parts", **options, episodes=2)
    record(tmp_path / "parts", **options, resume=True)
    assert files(tmp_path / "parts") == expected
    report = fastrl.demos.replay(tmp_path / "sequential", trust=True)
    assert report.agrees and (report.episodes, report.steps) == (5, demos.num_steps), report.lines()


@pytest.mark.parametrize("kind", ["agents that come and go", "dicts with images", "action masks", "compiled"])
def test_episodes_are_those_of_the_fragments(kind: str, tmp_path: Path) -> None:
    options = {"env": LEAVERS, "env_options": {}, "infos": (), **KINDS[kind]}
    demos = record(tmp_path / "demos", **options)
    found = find_team(options["env"], options["env_options"], None)
    assert found is not None
    plan, *_ = make_team_plan(
        found[0],
        "random",
        5,
        seed=0,
        max_episode_steps=found[1],
        infos=options["infos"],
        run=None,
        deterministic=True,
        make_noise=lambda space: noise_of(options.get("noise", 0.0), None, space),
    )
    with sequential_collector(plan) as collector:
        fragments = collector.collect()
    places = [(fragment, *life) for fragment in fragments for life in lives_of(fragment)]
    assert len(places) == len(demos) > 5
    for (fragment, agent, start, end), episode in zip(places, demos, strict=True):
        number = int(fragment.episodes[0, 1])
        assert episode.seed == env_seed(0, NO_ENV, number)
        assert episode.infos[AGENT].tolist() == [agent] * (end - start + 1)
        assert episode.infos[ENV_EPISODE].tolist() == [number] * (end - start + 1)
        assert episode.infos[ENV_STEP].tolist() == list(range(start, end + 1))
        rows = fragment.obs[start : end + 1, 0, agent]
        assert np.array_equal(episode.observations.reshape(rows.shape), rows)
        assert np.array_equal(episode.actions, fragment.actions[start:end, 0, agent, 0])
        if "noise" in options:
            assert np.array_equal(episode.expert_actions, fragment.actions[start:end, 0, agent, 1])
        assert np.array_equal(episode.rewards, fragment.rewards[start:end, 0, agent])
        ended = episode.terminated | episode.truncated
        assert ended[-1] and not ended[:-1].any()
        assert fragment.alive[start:end, 0, agent].all()
        if plan.action_masks:
            assert np.array_equal(episode.infos[ACTION_MASK], fragment.masks[start:end, 0, agent])
    steps = sum(int(fragment.alive.sum()) for fragment in fragments)
    assert demos.num_steps == steps


def test_only_what_is_missing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an episode that is there in part, as after a kill, the rest, also where a second try is stopped at once."""
    demos = record(tmp_path / "whole")
    expected = files(tmp_path / "whole")
    out = tmp_path / "part"
    make = functools.partial(
        EpisodeWriter, out, facts_of(demos.meta), demos.obs_space, demos.action_space, resume=True
    )
    part = make()
    for episode in list(demos)[:4]:
        part.write(episode)
    part.flush()
    assert demos.first_infos(ENV_EPISODE).tolist()[3:5] == [1, 1]
    plan = make_team_plan(
        ParallelSpec("toy", spec=as_spec(Leavers), max_episode_steps=10),
        "random",
        5,
        seed=0,
        max_episode_steps=10,
        infos=(),
        run=None,
        deterministic=True,
        make_noise=lambda space: None,
    )[0]
    stopped = TeamFragmentWriter(plan, make(), False)
    assert stopped.next_number == 1
    stopped.close()
    record(out, resume=True)
    assert files(out) == expected

    def started(*arguments: Any, **options: Any) -> None:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(recorder, "Recording", started)
    record(out, resume=True)
    assert files(out) == expected


@pytest.mark.slow
def test_ray_writes_the_same_bytes_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install '.[test-all]'")
    options: dict[str, Any] = {"noise": 0.2, "collector": "ray", "n_workers": 2}
    record(tmp_path / "sequential", noise=0.2)
    record(tmp_path / "ray", **options, episodes=2)
    record(tmp_path / "ray", **options, resume=True)
    assert files(tmp_path / "ray") == files(tmp_path / "sequential")


def test_agents_have_their_names_and_groups(tmp_path: Path) -> None:
    demos = record(tmp_path / "demos", "parallel_toys:Differing", teacher, 3)
    groups = [("a", "group0"), ("b", "group1"), ("late", "group0")]
    assert demos.meta["agents"] == [{"name": name, "group": group} for name, group in groups]
    # "a" leaves after 3 steps, "late" comes with the third and stays to the end.
    assert demos.first_infos(AGENT).tolist() == [0, 1, 2] * 3
    assert demos.lengths.tolist() == [3, 6, 4] * 3
    assert demos.returns.tolist() == [3, 6, 4] * 3
    assert [each.infos[ENV_STEP][0] for each in demos] == [0, 0, 2] * 3
    assert demos[0].terminated[-1] and demos[1].truncated[-1]
    assert demos[demos.first_infos(AGENT) == 2].lengths.tolist() == [4] * 3


def test_a_run_is_an_expert_of_all_agents(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = fastrl.IPPO(LEAVERS, num_envs=4, num_steps=8, hidden=[8], env__max_episode_steps=5, seed=0)
    model.learn(64, run_dir=run)
    demos = record(tmp_path / "sequential", None, run, 4)
    assert max(demos.lengths) == 5 and demos.meta["expert"]["algorithm"] == "ippo"
    names = [each["name"] for each in demos.meta["agents"]]
    for episode in demos:
        agent = names[int(episode.infos[AGENT][0])]
        chosen = [model.predict({agent: obs})[0][agent] for obs in episode.observations[:-1]]
        assert episode.actions.tolist() == chosen
    record(tmp_path / "executor", None, run, 4, collector="executor", n_workers=2)
    assert files(tmp_path / "executor") == files(tmp_path / "sequential")
    drawn = record(tmp_path / "drawn", None, run, 4, deterministic=False)
    assert [each.actions.tolist() for each in drawn] != [each.actions.tolist() for each in demos]


@pytest.mark.parametrize("encoder", ["compiled", "torch"])
def test_a_run_with_a_memory_remembers(encoder: str, tmp_path: Path) -> None:
    env, options = "parallel_toys:Hints", {"activation": "relu" if encoder == "compiled" else "elu"}
    model = fastrl.IPPO(
        env, memory="gru", memory_size=8, num_envs=2, num_steps=8, hidden=[8], seed=3, **options
    )
    network = next(iter(model.trainer.algorithm.actors.values())).network
    # Actions depend on the steps before.
    network.body[-1].weight.data.mul_(300)
    network.memory.bias_hh.data.add_(0.3)
    model.save(tmp_path / "model.safetensors")
    demos = record(tmp_path / "sequential", env, str(tmp_path / "model.safetensors"), 6)
    names, forgetful = [each["name"] for each in demos.meta["agents"]], []
    for episode in demos:
        agent, state = names[int(episode.infos[AGENT][0])], None
        for obs, action in zip(episode.observations[:-1], episode.actions, strict=True):
            forgetful.append(model.predict({agent: obs})[0][agent] == action)
            chosen, state = model.predict({agent: obs}, state=state)
            assert chosen[agent] == action
    assert not all(forgetful)
    for collector in ("sync", "executor"):
        record(
            tmp_path / collector,
            env,
            str(tmp_path / "model.safetensors"),
            6,
            collector=collector,
            n_workers=2,
        )
        assert files(tmp_path / collector) == files(tmp_path / "sequential")


def test_a_masked_policy_of_images_acts_alike_everywhere(tmp_path: Path) -> None:
    """PyTorch acts for the images."""
    run = tmp_path / "run"
    options = {"env__options": ("obs=image",), "encoder": "mlp", "hidden": [8], "num_steps": 8, "num_envs": 2}
    fastrl.MAPPO("parallel_toys:Kinds", seed=0, **options).learn(32, run_dir=run)
    record(tmp_path / "sequential", None, run, 4, deterministic=False)
    record(tmp_path / "sync", None, run, 4, deterministic=False, collector="sync", n_workers=2)
    assert files(tmp_path / "sync") == files(tmp_path / "sequential")
    masked = fastrl.IPPO("parallel_toys:Masked", action_masks=True, num_envs=2, num_steps=8, seed=0)
    masked.learn(32, run_dir=tmp_path / "masked")
    demos = record(tmp_path / "demos", None, tmp_path / "masked", noise=0.5)
    for episode in demos:
        assert episode.infos[ACTION_MASK][np.arange(len(episode)), episode.actions].all()


def test_vehicles_of_a_run_drive(tmp_path: Path) -> None:
    """An id that is an environment of one agent, too."""
    model = fastrl.IPPO("fastrl/ring-v0", vehicles=2, num_envs=2, num_steps=4, seed=0, hidden=[8])
    model.learn(total_timesteps=16, run_dir=tmp_path / "run")
    demos = record(tmp_path / "demos", None, tmp_path / "run", 2, max_episode_steps=20, collector="auto")
    assert [each["name"] for each in demos.meta["agents"]] == ["0", "1"]
    assert demos.lengths.tolist() == [20] * 4
    named = record(tmp_path / "named", "fastrl/ring-v0", tmp_path / "run", 2, max_episode_steps=20)
    assert files(tmp_path / "named") == files(tmp_path / "demos") and len(named) == 4
    report = fastrl.demos.replay(named)
    assert report.agrees and (report.episodes, report.steps) == (2, 80), report.lines()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"infos": ("speed",)},
            "infos: of many agents action_mask can be recorded, got 'speed': leave it out",
        ),
        (
            {"expert": "nobody"},
            "--expert nobody: no such file; it should be of many agents a run directory or",
        ),
        (
            {"expert": "test_team_recording:missing"},
            "expert test_team_recording:missing: missing does not exist",
        ),
        ({"env_options": {"length": 0, "colour": 1}}, "got an unexpected keyword argument 'colour'"),
        ({"collector": "native"}, "--collector native: .* is none"),
        ({"noise": 2.0}, "noise: expected a number from 0 on, of epsilon at most 1"),
    ],
)
def test_errors_are_one_line(options: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, CollectError), match=line) as error:
        record(tmp_path / "demos", **options)
    assert "\n" not in str(error.value)


def test_an_expert_that_fails_names_its_episode(tmp_path: Path) -> None:
    def raising(obs: Any, agent: str) -> int:
        if agent == "late":
            raise ZeroDivisionError("too late")
        return 0

    line = r"raised ZeroDivisionError: too late at step 2 of episode 0 \(reset with seed \d+\)"
    with pytest.raises(CollectError, match=line):
        record(tmp_path / "demos", expert=raising)


def test_a_replay_says_where_an_environment_differs(tmp_path: Path) -> None:
    out = tmp_path / "demos"
    record(out, "parallel_toys:Leavers", teacher, 2)
    for name, difference in {
        "obs": r"agent 0 has another observation before step 3: obs\[1\]: .* stored, now ",
        "reward": r"agent 1 has another reward at step 2: 1.0 stored, now 0.5",
        "end": r"step 2 ends otherwise for agent 1: no end stored, now truncated",
        "last": r"agent 0 has another last observation after step 3: obs\[0\]: .* stored, now ",
    }.items():
        report = fastrl.demos.replay(out, env=functools.partial(Changed, name))
        assert not report.agrees and re.match(difference, report.differences[0][1]), report.lines()
    part = fastrl.demos.load(out).filter(top=0.5)
    assert "their episodes are not in the data set" in fastrl.demos.replay(part, trust=True).differences[0][1]
    with pytest.raises(UserError, match=r"has one agent, .* has many: give the environment of the data set"):
        fastrl.demos.replay(out, env="CartPole-v1")


class Changed(Leavers):
    """Something is another than in `Leavers`."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        if self.t == 2:
            obs["a"][1] += self.what == "obs"
            rewards["b"] *= 0.5 if self.what == "reward" else 1
            if self.what == "end":
                truncations["b"] = True
                self.agents.remove("b")
        if self.t == 3 and self.what == "last":
            obs["a"][0] += 1
        return obs, rewards, terminations, truncations, infos


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_episodes(tmp_path: Path) -> None:
    record(tmp_path / "whole", "test_team_recording:slow_leavers", episodes=60, env_options={"seconds": 0.0})
    whole = fastrl.demos.load(tmp_path / "whole")
    out, kills = tmp_path / "demos", 0
    command = [sys.executable, "-m", "fastrl", "demos", "record", "test_team_recording:slow_leavers"]
    options = ["--expert", "random", "--episodes", "60", "--out", str(out), "--collector", "sequential"]
    while True:
        resume = ["--resume"] if (out / "meta.json").exists() else []
        process = subprocess.Popen(
            [*command, *options, *resume],
            env={**os.environ, "PYTHONPATH": import_path(__file__)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        before = len(list(out.glob("shard*"))) and len(fastrl.demos.load(out))
        wait_until(lambda: process.poll() is not None or _count(out) > before)  # noqa: B023
        if kills == 2 or process.poll() is not None:
            assert process.wait(timeout=TIMEOUT) == 0, process.stderr and process.stderr.read()
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills
    demos = fastrl.demos.load(out)
    assert len(demos) == len(whole)
    for one, other in zip(demos, whole, strict=True):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)


def _count(out: Path) -> int:
    try:
        return len(fastrl.demos.load(out))
    except (UserError, OSError):
        return 0


def slow_leavers(seconds: float = 0.02) -> Any:
    """`Leavers` whose steps take some time."""

    class Slow(Leavers):
        def step(self, actions: Any) -> Any:
            time.sleep(seconds)
            return super().step(actions)

    return Slow()
