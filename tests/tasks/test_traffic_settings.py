"""Settings of runs in traffic: presets, what is decided for the user, what an environment is given."""

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.cli.main import main
from fastrl.tasks.traffic.curriculum import Difficulty
from fastrl.tasks.traffic.settings import (
    PRESETS,
    EnvConfig,
    TrafficConfig,
    environment_options,
    expected_updates,
    full_traffic,
    rollout_steps,
    settled,
    step_seconds,
)
from fastrl.utils.config import ConfigError, build, check, leaves, to_toml


def config(**values: Any) -> TrafficConfig:
    return build(TrafficConfig, {key.replace("__", "."): value for key, value in values.items()})


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
    it = build(TrafficConfig, check(TrafficConfig, PRESETS[name].values, name))
    assert (it.env.vehicles, it.run.episodes) == (vehicles, episodes)
    assert f"{vehicles} vehicles, {episodes} episodes" in PRESETS[name].description
    # Few episodes make many updates all the same.
    assert expected_updates(settled(it)) >= 12


def test_all_presets_are_settings() -> None:
    for name, preset in PRESETS.items():
        settled(build(TrafficConfig, check(TrafficConfig, preset.values, name)))


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 10**7), st.sampled_from(["mappo", "ippo", "reinforce"]), st.integers(1, 500), st.booleans()
)
def test_worlds_suit_the_number_of_episodes(
    episodes: int, algorithm: str, num_steps: int, online: bool
) -> None:
    open_one = config(
        run__episodes=episodes,
        run__algorithm=algorithm,
        mappo__num_steps=num_steps,
        reinforce__num_steps=num_steps,
        online__enabled=online,
    )
    it = settled(open_one)
    num_envs = it.env.num_envs
    assert num_envs is not None
    assert rollout_steps(it) == num_steps
    # A power of two, so that it is no different for a few episodes more.
    assert 2 <= num_envs <= (8 if online else 128)
    assert num_envs & (num_envs - 1) == 0
    # No fewer updates than half of what is aimed at, unless there are too few steps for that.
    assert expected_updates(it) >= min(14, episodes * 40 / (2 * num_steps))
    assert settled(it) == it


def test_what_is_given_stays() -> None:
    assert settled(config(env__num_envs=3)).env.num_envs == 3


def test_a_cooperative_environment_gets_what_is_set_and_nothing_else() -> None:
    assert environment_options(EnvConfig()) == {"max_agents": 8, "num_agents": 8, "num_threads": 0}
    env = EnvConfig(
        id="fastrl/coop-merge-v0",
        vehicles=5,
        density=0.5,
        duration=20.0,
        cooperation=1.0,
        action_type="continuous",
        options=("lanes=3", "policy_frequency = 2", "autoreset_mode=same_step"),
    )
    assert environment_options(env) == {
        "max_agents": 5,
        "num_agents": 5,
        "density": 0.5,
        "duration": 20.0,
        "cooperation": 1.0,
        "action_type": "continuous",
        "num_threads": 0,
        "lanes": 3,
        "policy_frequency": 2,
        "autoreset_mode": "same_step",
    }
    assert step_seconds(env) == 0.5
    assert full_traffic(env) == Difficulty(5, 0.5)
    assert full_traffic(EnvConfig()) == Difficulty(8, 1.0)


def test_other_environments_get_theirs() -> None:
    ring = EnvConfig(id="fastrl/ring-v0", vehicles=2, options=("sims_per_step=5",))
    assert environment_options(ring) == {"num_agents": 2, "num_threads": 0, "sims_per_step": 5}
    assert step_seconds(ring) == 0.5
    assert environment_options(EnvConfig(id="fastrl/highway-v0", vehicles=1)) == {"num_threads": 0}
    with pytest.raises(
        ConfigError, match="fastrl/highway-v0 has one vehicle that learns; choose --vehicles 1"
    ):
        environment_options(EnvConfig(id="fastrl/highway-v0"))
    with pytest.raises(ConfigError, match=r"--env\.density is not an option of fastrl/ring-v0"):
        environment_options(EnvConfig(id="fastrl/ring-v0", density=1.0))


def test_settings_written_are_read_back() -> None:
    it = settled(config(env__options=("lanes=3", "background=5"), curriculum__mode="auto"))
    assert build(TrafficConfig, check(TrafficConfig, tomllib.loads(to_toml(it)), "file")) == it


def test_help_names_every_setting_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "traffic", "--help"])
    out = capsys.readouterr().out
    assert out.startswith("usage: fastrl train traffic ")
    for key, leaf in leaves(TrafficConfig).items():
        assert f"--{key} " in out
        assert leaf.description
    for name in PRESETS:
        assert f"  {name}: " in out
    for option in (
        "--vehicles",
        "--episodes",
        "--save-freq",
        "--eval-freq",
        "--online",
        "--algorithm",
        "--lr",
    ):
        assert f"{option}" in out


def test_a_whole_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--preset performance --vehicles 12 --episodes 800 --save-freq 100 --eval-freq 50"
    assert main(["train", "traffic", *line.split(), "--lr", "2e-4", "--online", "--print-config"]) == 0
    it = tomllib.loads(capsys.readouterr().out)
    assert (it["env"]["vehicles"], it["run"]["episodes"]) == (12, 800)
    assert (it["run"]["save_freq"], it["run"]["eval_freq"]) == (100, 50)
    assert it["mappo"]["learning_rate"] == 2e-4
    assert it["online"]["enabled"] is True
    assert main(["train", "traffic", "--algorithm=reinforce", "--lr", "2e-4", "--print-config"]) == 0
    it = tomllib.loads(capsys.readouterr().out)
    assert it["reinforce"]["learning_rate"] == 2e-4 != it["mappo"]["learning_rate"]
