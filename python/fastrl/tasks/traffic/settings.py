"""Settings of a run that trains agents in traffic, and presets."""

import importlib
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.collectors.protocol import Difficulty
from fastrl.envs.multi_agent import Reward
from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.tasks.opponents import OpponentsConfig
from fastrl.tasks.preset_file import PresetFile
from fastrl.tasks.traffic.configured import ConfiguredWorld, is_configured
from fastrl.utils.config import ConfigError, Setting, section
from fastrl.utils.env_options import EnvOptions, parse_options
from fastrl.utils.names import did_you_mean
from fastrl.utils.trust import Reach, imports_network, passes_import_paths

# Updates that the default number of environments leaves room for, and the least and the most environments that it
# chooses; the latter also for a simulation that runs while its agents are trained. Runs of a few hundred episodes need
# many updates more than they need large ones.
_UPDATES = 128
_MIN_ENVS = 2
_MAX_ENVS = 128
_MAX_ENVS_LIVE = 8


@section
class EnvConfig(OpponentsConfig):
    """The traffic, see fastrl.envs.make_multi."""

    id: Annotated[
        str,
        Field(
            description="fastrl/coop-highway-v0, fastrl/coop-merge-v0, fastrl/ring-v0, fastrl/v2x-resource-v0,"
            " fastrl/lights-v0, or a highway or road network such as fastrl/intersection-multi-agent-v2"
        ),
        Setting(option="--env"),
    ] = "fastrl/coop-highway-v0"
    vehicles: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="learning vehicles in each environment; none: 8, or as many as the road network has by itself",
        ),
        Setting(option="--vehicles"),
    ] = None
    density: Annotated[
        float | None,
        Field(
            ge=0,
            description="density of the traffic around the learning vehicles; none: the environment's own, 1",
        ),
        Setting(option="--density"),
    ] = None
    num_envs: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="environments that are stepped together; none: by the number of episodes",
        ),
        Setting(option="--num-envs"),
    ] = None
    duration: Annotated[
        float | None, Field(gt=0, description="seconds of an episode; none: the environment's own")
    ] = None
    cooperation: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="share of the team's mean reward in each reward, 0 to 1; none: the environment's own",
        ),
    ] = None
    collision_reward: Annotated[
        float | None,
        Field(le=0, description="reward of an agent that crashes; none: the environment's own, -1"),
    ] = None
    action_type: Annotated[
        Literal["meta", "continuous"] | None,
        Field(
            description="meta: five manoeuvres; continuous: acceleration and steering; none: the environment's own"
        ),
    ] = None
    reward: Annotated[
        str | None,
        Field(
            description="import path module:function of a function that changes the rewards of each step; none: the"
            " simulator's"
        ),
        Reach(imports_network),
    ] = None
    options: Annotated[EnvOptions, Reach(passes_import_paths)] = ()
    num_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of the simulator; 0: one per core"),
        Setting(resumable=True),
    ] = 0


RING = "fastrl/ring-v0"
V2X = "fastrl/v2x-resource-v0"
LIGHTS = "fastrl/lights-v0"

# Settings that only cooperative environments have, and those that stand for a key of a config.
_COOP = ("density", "duration", "cooperation", "collision_reward", "action_type")
_CONFIG = ("duration", "collision_reward")
# Seconds of an episode by default; where nothing else ends it, as many as it takes at most.
_SECONDS = {"fastrl/coop-highway-v0": 40.0, "fastrl/coop-merge-v0": 60.0}
_USUAL_SECONDS = 40.0
_VEHICLES = 8


def choose_num_envs(steps: int, num_steps: int, *, is_live: bool) -> int:
    """The number of environments for a run: a power of two, the largest that leaves room for ``_UPDATES`` updates.

    Args:
        steps: environment steps of the run.
        num_steps: steps of each environment between updates.
        is_live: the collector is a live simulation.
    """
    fitting = max(steps / (_UPDATES * num_steps), _MIN_ENVS)
    return min(2 ** math.floor(math.log2(fitting)), _MAX_ENVS_LIVE if is_live else _MAX_ENVS)


def vehicles_of(config: EnvConfig) -> int:
    """Learning vehicles, or lights, of an environment."""
    if config.vehicles is not None:
        return config.vehicles
    if config.id == LIGHTS:
        return _lights(environment_options(config))
    return _world(config).vehicles if is_configured(config.id) else _VEHICLES


def _lights(options: dict[str, Any]) -> int:
    from fastrl.envs.traffic.lights import count_lights

    return count_lights(options.get("net", "crossing"))


def _world(config: EnvConfig) -> ConfiguredWorld:
    return ConfiguredWorld(config.id, environment_options(config).get("config"))


def step_seconds(config: EnvConfig) -> float:
    """Simulated seconds of a step."""
    options = environment_options(config)
    if is_configured(config.id):
        return _world(config).step_seconds
    if config.id == V2X:
        return 1e-3
    if config.id == LIGHTS:
        return float(options.get("delta_time", 5))
    if config.id == RING:
        return float(options.get("dt", 0.1)) * float(options.get("sims_per_step", 1))
    # Cooperative environments with continuous actions are stepped frame by frame.
    usual = options.get("simulation_frequency", 5) if options.get("action_type") == "continuous" else 1
    return 1.0 / float(options.get("policy_frequency", usual))


def episode_steps(config: EnvConfig) -> int:
    """Steps after which an episode ends at the latest."""
    options = environment_options(config)
    if config.id == V2X:
        return max(int(options.get("time_budget", 100)), 1)
    if config.id == LIGHTS:
        return max(math.ceil(options.get("duration", 900) / step_seconds(config)), 1)
    if config.id == RING:
        return max(int(options.get("horizon", 3000)), 1)
    if is_configured(config.id):
        return _world(config).episode_steps(_USUAL_SECONDS)
    seconds = float(options.get("duration", _SECONDS[config.id]))
    # Rounded, because the division is inexact: 20 s of 0.2 s are 100 steps.
    return max(math.ceil(round(seconds / step_seconds(config), 6)), 1)


def full_traffic(config: EnvConfig) -> Difficulty:
    """The traffic that a curriculum leads to."""
    return Difficulty(vehicles_of(config), 1.0 if config.density is None else config.density)


def environment_options(config: EnvConfig) -> dict[str, Any]:
    """Arguments of ``fastrl.envs.make_multi`` besides the id and the number of environments.

    Raises:
        ConfigError: no environment of traffic, or an option that it does not have.
    """
    if config.id not in MULTI_AGENT_IDS:
        if meant := did_you_mean(config.id, MULTI_AGENT_IDS):
            raise ConfigError(f"--env: unknown environment {config.id}{meant}")
        raise ConfigError(
            f"--env: {config.id} is not an environment of traffic, fastrl/highway-v0 is one; fastrl train {config.id}"
            " trains in others"
        )
    given = {name: getattr(config, name) for name in _COOP if getattr(config, name) is not None}
    options: dict[str, Any] = {"num_threads": config.num_threads}
    if config.reward is not None:
        options["reward"] = _imported(config.reward)
    further = parse_options(config.options)
    if is_configured(config.id):
        values = {name: given.pop(name) for name in _CONFIG if name in given}
        world = ConfiguredWorld(config.id, further.get("config"))
        if keys := world.with_settings(config.vehicles, **values):
            further["config"] = keys
    vehicles = _VEHICLES if config.vehicles is None else config.vehicles
    if config.id.startswith("fastrl/coop-"):
        options |= {"max_agents": vehicles, "num_agents": vehicles, **given}
    elif given:
        raise ConfigError(f"--env.{next(iter(given))} is not an option of {config.id}")
    elif config.id == RING:
        options["num_agents"] = vehicles
    elif config.id == V2X:
        options["num_links"] = vehicles
    elif config.id == LIGHTS and config.vehicles not in (None, _lights(further)):
        raise ConfigError(f"--vehicles: the network of {LIGHTS} has {_lights(further)} lights, each an agent")
    return options | further


def _imported(path: str) -> Reward:
    """The function of an import path.

    Raises:
        ConfigError: there is none.
    """
    module, colon, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"env.reward {path}: {error}") from None
    if not callable(found):
        raise ConfigError(f"env.reward: expected an import path such as my_module:my_reward, got {path!r}")
    reward: Reward = found
    return reward


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))


def check_preset(name: str, env_id: str) -> None:
    """Refuses a preset of another environment.

    Raises:
        ConfigError: names the presets that the environment has.
    """
    suitable = [each for each in PRESETS if _suits(each, env_id)]
    if env_id in MULTI_AGENT_IDS and name in PRESETS and name not in suitable:
        raise ConfigError(
            f"--preset {name} is for other environments than --env {env_id}, which has {', '.join(suitable)}"
        )


def _suits(preset: str, env_id: str) -> bool:
    if preset == "few-episodes":
        return True
    only = {"ring": RING, "v2x": V2X, "lights": LIGHTS, "crossing": "fastrl/intersection-multi-agent-"}.get(
        preset, "fastrl/coop-"
    )
    return env_id.startswith(only)
