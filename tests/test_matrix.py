"""Algorithms with spaces and collectors: the page is what the code says, and each combination trains and resumes to
the bit."""

from __future__ import annotations

import itertools
import re
from itertools import islice
from pathlib import Path
from typing import Any

import draw_matrix
import pytest
from gymnasium.vector import SyncVectorEnv
from parallel_toys import AnyTeam
from small_runs import differences, untimed, untimed_state
from space_cases import AnySpaces

from fastrl.algorithms import algorithms
from fastrl.algorithms.protocol import OffPolicyAlgorithm
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.tasks import find
from fastrl.training.trainer import Trainer

# An update has 16 steps; episodes have up to 9.
UPDATES, UPDATE = 4, 16
SMALL: dict[str, dict[str, Any]] = {
    "dqn": {"batch_size": 4, "hidden": (4,), "target_every": 2, "epsilon_steps": 20},
    "impala": {"num_steps": 8, "hidden": (4,), "max_staleness": 0},
    "ppo": {"num_steps": 8, "hidden": (4,), "minibatch_size": 8, "num_epochs": 2},
    "pqn": {"num_steps": 8, "hidden": (4,), "minibatch_size": 8, "epsilon_steps": 20},
    "ippo": {"num_steps": 8, "hidden": (4,), "minibatch_size": 8},
    "reinforce": {"num_steps": 8, "hidden": (4,)},
    "iql": {"batch_size": 4, "hidden": (4,)},
    "sac": {"batch_size": 4, "hidden": (4,)},
    "crossq": {"batch_size": 4, "hidden": (4,), "policy_hidden": (4,), "policy_every": 1},
    "td3": {"batch_size": 4, "hidden": (4,)},
}
SMALL["async-ppo"] = SMALL["ppo"] | {"max_staleness": 0}
SMALL["mappo"] = SMALL["ippo"]
# Half of the run, when learning has started.
REPLAY = {"capacity": 40, "learning_starts": 16, "train_freq": 8, "updates_per_step": 0.25, "save": True}


def cells(section: str) -> list[tuple[str, ...]]:
    """The row and column of each cell of a section of the page that says yes, after the algorithm where there is a
    table for each."""
    page = draw_matrix.PAGE.read_text(encoding="utf-8")
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found: list[tuple[str, ...]] = []
    for part in re.split("^### ", text, flags=re.M):
        lines = re.findall(r"^\|(.*)\|$", part, re.M)
        if not lines:
            continue
        head, _, *rows = ([cell.strip(" `") for cell in line.split("|")] for line in lines)
        algorithms = [(name,) for name in part.partition("\n")[0].split(", ")] if "\n### " in text else [()]
        for first, (row, *rest) in itertools.product(algorithms, rows):
            found += [
                (*first, row, column) for column, cell in zip(head[1:], rest, strict=True) if cell == "yes"
            ]
    assert found
    return found


def covering(found: list[tuple[str, ...]]) -> list[Any]:
    """The cells of algorithms, observations and actions: all of vectors, and of each other kind of observations one of
    actions, another for each algorithm. The rest has the mark ``learning``."""
    params = []
    for algorithm, obs, actions in found:
        taken = [cell[2] for cell in found if cell[:2] == (algorithm, obs)]
        turn = list(draw_matrix.OBSERVATIONS).index(obs) + list(algorithms()).index(algorithm)
        is_covered = obs == "vector" or actions == taken[turn % len(taken)]
        marks = () if is_covered else pytest.mark.learning
        params.append(pytest.param(algorithm, obs, actions, marks=marks))
    return params


def spec_of(obs: str, actions: str, **options: Any) -> EnvSpec:
    return as_spec(
        AnySpaces, obs=draw_matrix.OBSERVATIONS[obs], actions=draw_matrix.ACTIONS[actions], **options
    )


def training_of(algorithm: str, spec: EnvSpec | str, settings: dict[str, Any], task: str = "gym") -> Trainer:
    """A small training; settings by dotted key, or of the algorithm by their names."""
    found = find(task) if isinstance(spec, str) else find(task).on(spec)
    table = found.algorithm_table(algorithm)
    changes: dict[str, Any] = {
        "run.algo": algorithm,
        "run.device": "cpu",
        "run.total_timesteps": UPDATES * UPDATE,
        "run.row_seconds": 0.0,
        "run.eval_episodes": 0,
        "env.num_envs": 2,
    }
    if hasattr(found.env, "id"):
        changes["env.id"] = spec if isinstance(spec, str) else spec.id
    if task == "gym":
        changes["collect.collector"] = "sequential"
    if issubclass(algorithms()[algorithm], OffPolicyAlgorithm):
        changes |= {f"replay.{name}": value for name, value in REPLAY.items()}
    own = SMALL[algorithm] | settings
    changes |= {key if "." in key else f"{table}.{key}": value for key, value in own.items()}
    training = found.make_trainer(found.make_settings(changes))
    assert isinstance(training, Trainer)
    return training


def rows_of(training: Trainer, count: int) -> list[Any]:
    """The next rows, without what clocks measure; then the session ends."""
    rows = training.rows()
    found = [
        {name: repr(value) for name, value in untimed(row.record()).items()} for row in islice(rows, count)
    ]
    rows.close()  # type: ignore[attr-defined]
    return found


def check(
    algorithm: str, spec: Any, path: Path, *halves: dict[str, Any], task: str = "gym", **settings: Any
) -> None:
    """Trains, and trains in halves, each with settings of its own; both should end alike."""
    straight = training_of(algorithm, spec, settings, task)
    expected = rows_of(straight, 2**30)
    assert len(expected) >= UPDATES and float(expected[-1]["time/episodes"]) > 0
    stop = len(expected) // 2
    first, second = halves or ({}, {})
    training = training_of(algorithm, spec, settings | first, task)
    found = rows_of(training, stop)
    save_checkpoint(path / "stopped", training.state_dict())
    training.source.save_files(path)
    training = training_of(algorithm, spec, settings | second, task)
    training.source.load_files(path)
    training.load_state_dict(load_checkpoint(path / "stopped"))
    found += rows_of(training, 2**30)
    ends = [untimed_state(each.state_dict()) for each in (training, straight)]
    assert differences(*ends) == []
    assert found == expected


@pytest.mark.slow
def test_the_page_is_what_the_code_says() -> None:
    assert draw_matrix.PAGE.read_text(encoding="utf-8") == draw_matrix.draw(), (
        "run python docs/draw_matrix.py"
    )


@pytest.mark.parametrize(
    ("algorithm", "obs", "actions"), covering(cells("One agent: observations and actions"))
)
def test_one_agent(algorithm: str, obs: str, actions: str, tmp_path: Path) -> None:
    check(algorithm, spec_of(obs, actions), tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "obs", "actions"), covering(cells("Many agents: PettingZoo's parallel environments"))
)
def test_many_agents(algorithm: str, obs: str, actions: str, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    spaces = {"obs": draw_matrix.OBSERVATIONS[obs], "actions": draw_matrix.ACTIONS[actions]}
    check(algorithm, as_spec(AnyTeam, **spaces), tmp_path, task="pettingzoo")


@pytest.mark.parametrize(("env", "algorithm"), cells("Many agents: fastrl's environments"))
def test_many_agents_of_ours(env: str, algorithm: str, tmp_path: Path) -> None:
    if "Cage4" in env:
        check(algorithm, env, tmp_path, task="cage4", **{"env.episode_length": 6})
        return
    short = {"env.options": ("horizon=5", "warmup_steps=0")} if "ring" in env else {"env.duration": 4.0}
    check(algorithm, env, tmp_path, task="traffic", **short, **{"env.vehicles": 2})


@pytest.mark.parametrize(("algorithm", "actions"), cells("Action masks"))
def test_action_masks(algorithm: str, actions: str, tmp_path: Path) -> None:
    if algorithm not in draw_matrix.TEAMS:
        check(algorithm, spec_of("Dict", actions, masks=True), tmp_path, action_masks=True)
        return
    pytest.importorskip("pettingzoo")
    spaces = {"obs": draw_matrix.OBSERVATIONS["Dict"], "actions": draw_matrix.ACTIONS[actions]}
    spec = as_spec(AnyTeam, **spaces, masks=True)
    check(algorithm, spec, tmp_path, task="pettingzoo", action_masks=True)


@pytest.mark.parametrize(("algorithm", "memory"), cells("Memory"))
def test_memory(algorithm: str, memory: str, tmp_path: Path) -> None:
    obs = "vector" if memory == "lstm" else "Dict with image"
    settings: dict[str, Any] = {"memory": memory, "memory_size": 3}
    if algorithm not in draw_matrix.TEAMS:
        check(algorithm, spec_of(obs, draw_matrix.actions_of(algorithm)), tmp_path, **settings)
        return
    pytest.importorskip("pettingzoo")
    spaces = {"obs": draw_matrix.OBSERVATIONS[obs], "actions": draw_matrix.ACTIONS["Discrete"]}
    check(algorithm, as_spec(AnyTeam, **spaces), tmp_path, task="pettingzoo", **settings)


# What each algorithm collects in other processes, where compiled actors act; this process collects all of it.
ELSEWHERE = {
    "ppo": ("Tuple", "MultiBinary"),
    "async-ppo": ("MultiBinary", "MultiDiscrete"),
    "impala": ("Dict", "Box"),
    "dqn": ("Discrete", "Discrete"),
    "pqn": ("Dict", "Discrete"),
    "iql": ("MultiDiscrete", "Discrete"),
    "sac": ("Dict", "Box"),
    "crossq": ("Tuple", "Box"),
    "td3": ("Tuple", "Box"),
}
UNITS = {"steps": {}, "episodes": {"collect.episodes_per_update": 3}}


def collector(name: str, n_workers: int = 2) -> dict[str, Any]:
    return {"collect.collector": name, "collect.n_workers": n_workers}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("algorithm", draw_matrix.SINGLE)
def test_worker_processes(algorithm: str, unit: str, tmp_path: Path) -> None:
    """A run that is resumed with another collector ends as in this process."""
    halves = collector("sync"), collector("executor")
    check(algorithm, spec_of(*ELSEWHERE[algorithm]), tmp_path, *halves, **UNITS[unit])


@pytest.mark.parametrize("unit", UNITS)
def test_worker_processes_with_states_in_the_replay(unit: str, tmp_path: Path) -> None:
    """Of whole episodes the replay has the state of the first step alone."""
    halves, settings = (collector("sync"), collector("executor")), {"memory": "lstm", "memory_size": 3}
    check("dqn", spec_of("Dict", "Discrete"), tmp_path, *halves, **UNITS[unit], **settings)


@pytest.mark.slow
def test_worker_processes_with_pytorch(tmp_path: Path) -> None:
    """PyTorch's last bits depend on how many environments one process acts for: here on both."""
    halves = collector("sync"), collector("executor", 1)
    check("async-ppo", spec_of("image", "Box"), tmp_path, *halves)


def in_turns(algorithms: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each algorithm with one unit of collection. Ray starts a process for each worker, and what an algorithm does with
    either unit is tested with other processes."""
    return list(zip(algorithms, itertools.cycle(UNITS), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "unit"), in_turns(draw_matrix.SINGLE))
def test_ray(algorithm: str, unit: str, local_ray: None, tmp_path: Path) -> None:
    check(algorithm, spec_of(*ELSEWHERE[algorithm]), tmp_path, collector("ray"), {}, **UNITS[unit])


COMPILED = {
    "discrete": EnvSpec("fastrl/Cage2-v0", {"episode_length": 5}),
    "box": EnvSpec("fastrl/ring-v0", {"horizon": 5, "warmup_steps": 0}),
}


GRU = {"memory": "gru", "memory_size": 3}


@pytest.mark.parametrize(
    ("algorithm", "actions", "memory"),
    [
        ("dqn", "discrete", {}),
        ("dqn", "discrete", GRU),
        ("iql", "box", {}),
        ("pqn", "discrete", {}),
        ("pqn", "discrete", GRU),
        ("sac", "box", {}),
        ("sac", "box", GRU),
        ("crossq", "box", {}),
        ("td3", "box", {}),
        *itertools.product(("async-ppo", "impala", "ppo"), COMPILED, ({}, GRU)),
    ],
    ids=lambda value: "memory" if value == GRU else None,
)
def test_native(algorithm: str, actions: str, memory: dict[str, Any], tmp_path: Path) -> None:
    check(algorithm, COMPILED[actions], tmp_path, collector("native"), {}, **memory)


@pytest.mark.parametrize("algorithm", draw_matrix.SINGLE)
def test_a_vector_environment(algorithm: str) -> None:
    """It starts its episodes itself, so that a resumed run restarts them; one seed fixes a run all the same."""
    found = []
    for seed in (0, 0, 1):
        actions = "box" if algorithm in ("crossq", "td3") else "discrete"
        env = SyncVectorEnv([lambda actions=actions: AnySpaces("vector", actions)] * 2)
        training = training_of(algorithm, as_spec(env), {"run.seed": seed, "collect.collector": "vector"})
        rows_of(training, 2**30)
        found.append(untimed_state(training.state_dict()))
    assert differences(*found[:2]) == []
    assert differences(found[0]["policy"], found[2]["policy"])


@pytest.mark.parametrize("algorithm", [*draw_matrix.SINGLE, *draw_matrix.TEAMS])
def test_a_live_simulation(algorithm: str) -> None:
    """Its experience depends on the time; a resumed run starts other episodes and learns on."""
    is_team = algorithm in draw_matrix.TEAMS
    spec = team_of(algorithm) if is_team else spec_of(*ELSEWHERE[algorithm])
    live = {"collect.collector": "live", "collect.queue": 16, "run.total_timesteps": 3 * UPDATES * UPDATE}
    task = "pettingzoo" if is_team else "gym"
    first, second = (training_of(algorithm, spec, live, task) for _ in range(2))
    # Rows that come before the simulation has started are of no update.
    rows = first.rows()
    next(row for row in rows if first.iteration == UPDATES)
    rows.close()  # type: ignore[attr-defined]
    assert 0 < first.steps <= UPDATES * UPDATE
    state = first.state_dict()
    second.load_state_dict(state)
    found = rows_of(second, 2**30)
    assert second.steps >= 3 * UPDATES * UPDATE and second.iteration > first.iteration
    assert found[-1]["collect/missed"] == "0" and int(found[-1]["collect/simulated"]) > 0
    assert differences(state["policy"], second.state_dict()["policy"])


TEAMS_ELSEWHERE = {
    "ippo": ("Tuple", "MultiBinary"),
    "mappo": ("Dict", "Box"),
    "reinforce": ("Discrete", "MultiDiscrete"),
}


def team_of(algorithm: str) -> EnvSpec:
    obs, actions = TEAMS_ELSEWHERE[algorithm]
    return as_spec(AnyTeam, obs=draw_matrix.OBSERVATIONS[obs], actions=draw_matrix.ACTIONS[actions])


@pytest.mark.parametrize("memory", [{}, GRU], ids=["", "memory"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("algorithm", draw_matrix.TEAMS)
def test_many_agents_in_worker_processes(
    algorithm: str, unit: str, memory: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("pettingzoo")
    halves = collector("sync"), collector("executor")
    check(algorithm, team_of(algorithm), tmp_path, *halves, task="pettingzoo", **UNITS[unit], **memory)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "unit"), in_turns(draw_matrix.TEAMS))
def test_many_agents_in_worker_processes_of_ray(
    algorithm: str, unit: str, local_ray: None, tmp_path: Path
) -> None:
    pytest.importorskip("pettingzoo")
    check(algorithm, team_of(algorithm), tmp_path, collector("ray"), {}, task="pettingzoo", **UNITS[unit])


@pytest.mark.parametrize("memory", [{}, GRU], ids=["", "memory"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("algorithm", draw_matrix.TEAMS)
def test_many_agents_of_ours_in_threads_and_processes(
    algorithm: str, unit: str, memory: dict[str, Any], tmp_path: Path
) -> None:
    halves = collector("native"), collector("executor")
    settings = {"env.duration": 4.0, "env.vehicles": 2, **UNITS[unit], **memory}
    check(algorithm, "fastrl/coop-merge-v0", tmp_path, *halves, task="traffic", **settings)
