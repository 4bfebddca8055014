"""Several agents on highway-env's roads, trained from the command line and from Python."""

import json
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import pytest
from small_runs import differences, train_refusal
from traffic_runs import small
from train_process import start_training
from waiting import wait_until

import fastrl
from fastrl.cli.main import main
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks import task_for
from fastrl.tasks.traffic.configured import ConfiguredWorld
from fastrl.tasks.traffic.settings import (
    EnvConfig,
    environment_options,
    episode_steps,
    step_seconds,
    vehicles_of,
)
from fastrl.utils.config import ConfigError

CROSSING = "fastrl/intersection-multi-agent-v2"


def few(algorithm: str = "ippo", *options: object) -> list[str]:
    """Options of a run of a second on the crossing, with those that are given."""
    chosen = [each for each in small(f"--algo={algorithm}") if not each.startswith("--vehicles")]
    return [*chosen, "--total-episodes=12", *map(str, options)]


def train(env_id: str, run: Path, *options: object, algorithm: str = "ippo") -> int:
    return main(["train", env_id, *few(algorithm, *options), f"--run-dir={run}"])


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@pytest.mark.parametrize(
    ("env_id", "algorithm", "task"),
    [
        (CROSSING, None, "traffic"),
        ("fastrl/intersection-multi-agent-v0", "mappo", "traffic"),
        ("fastrl/intersection-v2", None, "gym"),
        ("fastrl/intersection-v2", "ippo", "traffic"),
        ("fastrl/roundabout-v0", "reinforce", "traffic"),
        ("fastrl/roundabout-v0", "ppo", "gym"),
        ("fastrl/racetrack-oval-v1", None, "gym"),
        ("fastrl/parking-v0", "mappo", "traffic"),
        ("fastrl/road-v0", "ippo", "traffic"),
        ("CartPole-v1", "ippo", None),
    ],
)
def test_the_algorithm_decides_whether_a_road_has_one_agent_or_several(
    env_id: str, algorithm: str | None, task: str | None
) -> None:
    assert task_for(env_id, algorithm) == task


@pytest.mark.parametrize(
    ("env_id", "algorithm", "options", "agents"),
    [
        ("fastrl/intersection-multi-agent-v0", "ippo", (), 2),
        ("fastrl/intersection-multi-agent-v1", "mappo", (), 2),
        (CROSSING, "reinforce", ("--vehicles=4",), 4),
        (CROSSING, "mappo", ("--env-options", "comms=range"), 2),
        ("fastrl/roundabout-v0", "ippo", ("--vehicles=3",), 3),
        ("fastrl/merge-v0", "mappo", ("--vehicles=3",), 3),
        ("fastrl/racetrack-v0", "ippo", ("--vehicles=2", "--env.duration=4"), 2),
        ("fastrl/parking-v0", "ippo", ("--vehicles=2", "--env.duration=4"), 2),
        ("fastrl/road-v0", "ippo", ("--vehicles=2", "--env.duration=8"), 2),
        ("fastrl/two-way-v0", "ippo", (), 1),
    ],
)
def test_a_command_trains_all_vehicles_and_scores_them(
    env_id: str,
    algorithm: str,
    options: tuple[str, ...],
    agents: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    assert train(env_id, run, *options, algorithm=algorithm) == 0
    assert summary(run)["status"] == "complete"
    assert load_newest(run)[1]["config"]["env"]["vehicles"] == agents
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["curriculum/vehicles"] == agents
    shares = [row["rollout/ep_success_rate"] for row in rows if row["rollout/episodes"]]
    assert all(0 <= share <= 1 for share in shares)
    assert shares
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "4", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert "success_rate" in json.dumps(scores)


def test_python_trains_them_too() -> None:
    sizes: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "hidden": (8,), "minibatch_size": 32}
    model = fastrl.IPPO(CROSSING, seed=0, vehicles=3, **sizes)
    model.learn(total_episodes=4)
    assert model.settings["env"]["vehicles"] == 3
    assert all(map(math.isfinite, model.evaluate(episodes=4)))
    single = fastrl.MAPPO("fastrl/racetrack-v0", **sizes)
    assert single.settings["env"]["id"] == "fastrl/racetrack-v0"


def test_settings_become_keys_of_the_config() -> None:
    env = EnvConfig(
        id=CROSSING,
        vehicles=3,
        duration=20.0,
        collision_reward=-8.0,
        options=('config={"policy_frequency": 2, "spawn_probability": 0.2}', "comms=range"),
    )
    assert environment_options(env) == {
        "num_threads": 0,
        "comms": "range",
        "config": {
            "policy_frequency": 2,
            "spawn_probability": 0.2,
            "controlled_vehicles": 3,
            "duration": 20.0,
            "collision_reward": -8.0,
        },
    }
    assert (step_seconds(env), episode_steps(env), vehicles_of(env)) == (0.5, 40, 3)


@pytest.mark.parametrize(
    ("env_id", "options", "vehicles", "seconds", "steps"),
    [
        (CROSSING, (), 2, 1.0, 13),
        (CROSSING, ('config={"controlled_vehicles": 4}',), 4, 1.0, 13),
        ("fastrl/racetrack-v0", (), 1, 0.2, 1500),
        ("fastrl/two-way-v0", (), 1, 1.0, 15),
        ("fastrl/merge-v0", (), 1, 1.0, 40),
        ("fastrl/highway-fast-v0", (), 1, 1.0, 30),
        ("fastrl/road-v0", (), 1, 0.5, 120),
    ],
)
def test_what_is_not_set_is_the_environments_own(
    env_id: str, options: tuple[str, ...], vehicles: int, seconds: float, steps: int
) -> None:
    env = EnvConfig(id=env_id, options=options)
    assert (vehicles_of(env), step_seconds(env), episode_steps(env)) == (vehicles, seconds, steps)


def test_a_config_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="config should be a dict"):
        ConfiguredWorld(CROSSING, 3)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["fastrl/roundabout-v0", "--algo=ippo", "--vehicles=9"],
            "--env fastrl/roundabout-v0: config['controlled_vehicles']: expected 1 to 5, got 9",
        ),
        (
            ["fastrl/two-way-v0", "--algo=mappo", "--vehicles=2"],
            "--vehicles 2: fastrl/two-way-v0 has one vehicle that learns; choose --vehicles 1",
        ),
        (
            ["fastrl/merge-v0", "--algo=ippo", "--env.duration=5"],
            "--env.duration is not an option of fastrl/merge-v0",
        ),
        (
            [CROSSING, "--env.cooperation=1"],
            f"--env.cooperation is not an option of {CROSSING}",
        ),
        (
            [CROSSING, "--vehicles=3", "--env-options", 'config={"controlled_vehicles": 2}'],
            ("--vehicles 3 and config['controlled_vehicles'] = 2 contradict each other: give one"),
        ),
        (
            [CROSSING, "--env-options", 'config={"controled_vehicles": 2}'],
            f"--env {CROSSING}: config: unknown key 'controled_vehicles'; did you mean controlled_vehicles?",
        ),
        (
            [CROSSING, "--env-options", "comms=rang"],
            f"--env {CROSSING}: comms: expected 'perfect', 'range' or '37885', got 'rang'; did you mean range?",
        ),
        (
            [CROSSING, "--env-options", "comms=range", 'comms_options={"connected": 2}'],
            f"--env {CROSSING}: connected: expected 0 to 1, got 2",
        ),
        (
            [CROSSING, "--preset=performance"],
            (
                f"--preset performance is for other environments than --env {CROSSING}, which has few-episodes,"
                " crossing"
            ),
        ),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_refusal(capsys, *arguments, f"--run-dir={tmp_path / 'run'}") == line
    assert not (tmp_path / "run").exists()


# The crossing with some of everything: a curriculum, links, three vehicles.
WHOLE = (
    "--vehicles=3",
    "--total-episodes=240",
    "--env-options",
    "comms=37885",
    'comms_options={"selection": "agent", "slots": 2}',
    "--curriculum.mode=auto",
    "--curriculum.start-vehicles=1",
    "--curriculum.start-density=0.5",
    "--curriculum.levels=2",
    "--curriculum.window=6",
    "--curriculum.up=0.2",
    "--curriculum.down=0.1",
)
CLOCKS = ("second", "share", "fps", "elapsed")


def rows(run: Path) -> list[dict[str, Any]]:
    """The rows of a run without what clocks measure."""
    kept = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(word in k for word in CLOCKS)} for row in kept]


@pytest.mark.slow
def test_a_curriculum_brings_more_vehicles_and_traffic(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(CROSSING, run, *WHOLE) == 0
    seen = {
        (row["curriculum/level"], row["curriculum/vehicles"], row["curriculum/density"]) for row in rows(run)
    }
    assert seen == {(0, 1, 0.5), (1, 2, 0.75), (2, 3, 1.0)}


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(CROSSING, whole, *WHOLE, "--run.checkpoint-seconds=0") == 0
    options = [*few("ippo", *WHOLE), "--run.checkpoint-seconds=0", f"--run-dir={killed}"]
    process = start_training(CROSSING, *options, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(list((killed / "checkpoints").glob("*0*"))) > 0 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists()
    assert main(["train", "--resume", str(killed)]) == 0
    states = [load_newest(run)[1] for run in (killed, whole)]
    for state in states:
        del state["seconds"], state["parts"], state["config"]
    assert differences(*states) == []
    assert rows(killed) == rows(whole)


@pytest.mark.slow
def test_it_trains_while_the_simulation_runs_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("fastrl/roundabout-v0", run, "--vehicles=2", "--collector=live", "--speed=0") == 0
    assert rows(run)[-1]["collect/simulated"] > 0


@pytest.mark.slow
def test_a_run_is_filmed_with_its_links(tmp_path: Path) -> None:
    run, film, ages = tmp_path / "run", tmp_path / "film.gif", tmp_path / "ages.png"
    assert train(CROSSING, run, "--env-options", "comms=range") == 0
    assert main(["render", str(run), f"--out={film}", f"--ages={ages}", "--fps=2"]) == 0
    pictures = iio.imread(film)
    assert pictures.shape[0] > 4
    assert pictures.shape[1:] == (600, 600, 3)
    assert (pictures[0] != pictures[-1]).any()
    assert ages.stat().st_size > 1000
