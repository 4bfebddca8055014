"""Settings of runs in traffic: presets, defaults that depend on others, what an environment is given."""

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.cli.main import main
from fastrl.collectors.protocol import Difficulty
from fastrl.tasks.traffic.settings import (
    PRESETS,
    RING,
    EnvConfig,
    environment_options,
    episode_steps,
    full_traffic,
    step_seconds,
)
from fastrl.tasks.traffic.task import TASK
from fastrl.utils.config import ConfigError, build, check, leaves, to_toml

ALGORITHMS = ("ippo", "mappo", "reinforce")


def config(algorithm: str = "ippo", **values: Any) -> Any:
    config_type = TASK.settings_type(algorithm)
    return build(
        config_type,
        {"run.algo": algorithm},
        {key.replace("__", "."): value for key, value in values.items()},
    )


def preset(name: str, algorithm: str = "ippo") -> Any:
    return TASK.make_settings({"run.algo": algorithm}, preset=name)


def expected_updates(settings: Any) -> int:
    """Updates of a run whose episodes are as long as they can be."""
    steps = settings.run.total_episodes * episode_steps(settings.env)
    num_steps = getattr(settings, settings.run.algo).num_steps
    return -(-steps // (num_steps * settings.env.num_envs))


@pytest.mark.parametrize(
    ("name", "vehicles", "episodes"),
    [
        ("fast", 4, 100),
        ("stable", 6, 200),
        ("performance", 8, 300),
        ("large-scale", 10, 100),
        ("mega-scale", 12, 500),
    ],
)
def test_presets_are_what_their_names_stand_for(name: str, vehicles: int, episodes: int) -> None:
    it = preset(name)
    assert (it.env.vehicles, it.run.total_episodes) == (vehicles, episodes)
    assert f"{vehicles} vehicles, {episodes} episodes" in PRESETS[name].description
    # Few episodes make many updates all the same.
    assert expected_updates(TASK.resolve_defaults(it)) >= 60


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", PRESETS)
def test_all_presets_are_settings(name: str, algorithm: str) -> None:
    assert TASK.resolve_defaults(preset(name, algorithm)).run.algo == algorithm


def test_algorithms_of_a_family_share_the_values_of_presets() -> None:
    assert preset("fast", "reinforce").reinforce.num_steps == preset("fast").ippo.num_steps == 32
    assert preset("ring").ippo == preset("ring", "mappo").mappo


def test_all_environments_but_the_ring_learn_from_few_episodes() -> None:
    for env_id in ("fastrl/coop-highway-v0", "fastrl/coop-merge-v0"):
        it = TASK.make_settings({"env.id": env_id})
        assert (it.ippo.num_epochs, it.ippo.minibatch_size, it.ippo.final_entropy_coef) == (4, 256, 0)
    assert TASK.make_settings({"env.id": RING}).ippo == type(it.ippo)()
    # A preset that is named comes on top.
    assert preset("few-episodes").ippo == preset("performance").ippo


def test_crossings_of_several_agents_pool_over_the_vehicles_around_them() -> None:
    it = TASK.make_settings({"env.id": "fastrl/intersection-multi-agent-v0", "run.algo": "mappo"})
    assert (it.mappo.encoder, it.mappo.gamma, it.curriculum.start_vehicles) == ("rows", 0.9, 1)
    assert TASK.make_settings({"env.id": "fastrl/intersection-v0", "run.algo": "ippo"}).ippo.encoder == "auto"


def test_only_presets_of_very_few_episodes_change_what_a_crash_costs() -> None:
    costs = {name: preset(name).env.collision_reward for name in PRESETS}
    assert {name for name, cost in costs.items() if cost is not None} == {"fast", "large-scale"}


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**7), st.sampled_from(ALGORITHMS), st.integers(1, 500), st.booleans())
def test_the_number_of_environments_suits_the_number_of_episodes(
    episodes: int, algorithm: str, num_steps: int, is_live: bool
) -> None:
    given = {
        "run__total_episodes": episodes,
        f"{algorithm}__num_steps": num_steps,
        "collect__collector": "live" if is_live else "auto",
    }
    it = TASK.resolve_defaults(config(algorithm, **given))
    num_envs = it.env.num_envs
    assert num_envs is not None
    # A power of two, so that it is no different for a few episodes more.
    assert 2 <= num_envs <= (8 if is_live else 128)
    assert num_envs & (num_envs - 1) == 0
    # No fewer updates than are aimed at, unless there are too few steps for that.
    assert expected_updates(it) >= min(128, episodes * 40 / (2 * num_steps))
    assert TASK.resolve_defaults(it) == it


def test_a_goal_in_steps_chooses_the_number_of_environments_too() -> None:
    goals = {"run__total_episodes": None, "run__total_timesteps": 300 * 40}
    assert TASK.resolve_defaults(config(**goals)).env == TASK.resolve_defaults(config()).env


def test_what_is_given_stays() -> None:
    assert TASK.resolve_defaults(config(env__num_envs=3)).env.num_envs == 3


def test_a_cooperative_environment_gets_what_is_set_and_nothing_else() -> None:
    assert environment_options(EnvConfig()) == {"max_agents": 8, "num_agents": 8, "num_threads": 0}
    env = EnvConfig(
        id="fastrl/coop-merge-v0",
        vehicles=5,
        density=0.5,
        duration=20.0,
        cooperation=1.0,
        collision_reward=-30.0,
        action_type="continuous",
        options=("lanes=3", "policy_frequency = 2", "autoreset_mode=same_step"),
    )
    assert environment_options(env) == {
        "max_agents": 5,
        "num_agents": 5,
        "density": 0.5,
        "duration": 20.0,
        "cooperation": 1.0,
        "collision_reward": -30.0,
        "action_type": "continuous",
        "num_threads": 0,
        "lanes": 3,
        "policy_frequency": 2,
        "autoreset_mode": "same_step",
    }
    assert step_seconds(env) == 0.5
    assert episode_steps(env) == 40
    assert full_traffic(env) == Difficulty(5, 0.5)
    assert full_traffic(EnvConfig()) == Difficulty(8, 1.0)


def test_other_environments_get_theirs() -> None:
    ring = EnvConfig(id="fastrl/ring-v0", vehicles=2, options=("sims_per_step=5",))
    assert environment_options(ring) == {"num_agents": 2, "num_threads": 0, "sims_per_step": 5}
    assert step_seconds(ring) == 0.5
    assert episode_steps(ring) == 3000
    # The quotient of 40 s and a thirtieth of a second is a little more than 1200.
    assert episode_steps(EnvConfig(options=("policy_frequency=30",))) == 1200
    assert environment_options(EnvConfig(id="fastrl/highway-v0", vehicles=1)) == {"num_threads": 0}
    assert environment_options(EnvConfig(id="fastrl/highway-v0")) == {"num_threads": 0}
    with pytest.raises(
        ConfigError, match="fastrl/highway-v0 has one vehicle that learns; choose --vehicles 1"
    ):
        environment_options(EnvConfig(id="fastrl/highway-v0", vehicles=2))
    with pytest.raises(ConfigError, match=r"--env\.density is not an option of fastrl/ring-v0"):
        environment_options(EnvConfig(id="fastrl/ring-v0", density=1.0))


def test_settings_written_are_read_back() -> None:
    it = TASK.resolve_defaults(config(env__options=("lanes=3", "background=5"), curriculum__mode="auto"))
    assert build(type(it), check(type(it), tomllib.loads(to_toml(it)), "file")) == it


def test_help_names_every_setting_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "traffic", "--help-all"])
    out = capsys.readouterr().out
    assert out.startswith("usage: fastrl train traffic ")
    for leaf in leaves(TASK.settings_type("ippo")).values():
        short = leaf.setting.option or f"--{leaf.key.rpartition('.')[2].replace('_', '-')}"
        assert re.search(rf"^  ({short}|{re.escape(leaf.long_option)})\b", out, re.MULTILINE)
        assert leaf.description
    for name in PRESETS:
        assert f"  {name}: " in out
    for option in (
        "--vehicles",
        "--total-episodes",
        "--save-freq",
        "--eval-freq",
        "--speed",
        "--algo",
        "--lr",
    ):
        assert f"{option}" in out


def test_a_whole_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--preset performance --vehicles 12 --total-episodes 800 --save-freq 100 --eval-freq 50"
    assert main(["train", "traffic", *line.split(), "--lr", "2e-4", "--speed=10", "--print-config"]) == 0
    it = tomllib.loads(capsys.readouterr().out)
    assert (it["env"]["vehicles"], it["run"]["total_episodes"]) == (12, 800)
    assert (it["run"]["save_freq"], it["run"]["eval_freq"]) == (100, 50)
    assert it["ippo"]["learning_rate"] == 2e-4
    assert it["collect"]["speed"] == 10
    assert main(["train", "traffic", "--algo=reinforce", "--lr", "2e-4", "--print-config"]) == 0
    it = tomllib.loads(capsys.readouterr().out)
    assert it["reinforce"]["learning_rate"] == 2e-4
    assert "ippo" not in it
